//! Virtual time and the events on it.
//!
//! Events are ordered by (time, sequence): what was scheduled first happens first at one moment.
//! That order, and so the whole run, follows from the seed and nothing else.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A moment of virtual time since the world began, or a span of it, in picoseconds: NICs serve
/// operations in fractions of a nanosecond. 64 bits last for 213 days.
pub(super) type Picos = u64;

pub(super) const PICOS_PER_NANO: Picos = 1000;
/// A moment that never comes.
pub(super) const NEVER: Picos = Picos::MAX;

pub(super) fn picos(span: Duration) -> Picos {
    Picos::try_from(span.as_nanos()).map_or(NEVER, |nanos| nanos.saturating_mul(PICOS_PER_NANO))
}

pub(super) fn duration(picos: Picos) -> Duration {
    Duration::from_nanos(picos / PICOS_PER_NANO)
}

/// What happens; the number names whom or what it happens to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// A core has something to do.
    Core(u32),
    /// The first verb on a connection takes its next step.
    Connection(u32),
    /// The last completion of a batch reaches its lane.
    Completed(u32),
    /// The acknowledgement of a new connection reaches its lane.
    Reconnected(u32),
    /// A message arrives.
    Message(u32),
    /// A verb whose initiator has given up on it arrives all the same.
    Straggler(u32),
    /// An entry of the schedule of faults is due.
    Fault(u32),
}

impl Event {
    /// For the trace hash.
    #[inline]
    pub(super) fn code(self) -> u64 {
        let (kind, subject) = match self {
            Self::Core(core) => (1, core),
            Self::Connection(connection) => (2, connection),
            Self::Completed(batch) => (3, batch),
            Self::Reconnected(reconnect) => (4, reconnect),
            Self::Message(message) => (5, message),
            Self::Straggler(straggler) => (6, straggler),
            Self::Fault(fault) => (7, fault),
        };
        kind << 32 | u64::from(subject)
    }
}

/// The events to come.
#[derive(Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(Picos, u64, Event)>>,
    pushed: u64,
}

impl Queue {
    #[inline]
    pub(super) fn push(&mut self, at: Picos, event: Event) {
        self.pushed += 1;
        self.heap.push(Reverse((at, self.pushed, event)));
    }

    /// When the next event is due.
    #[inline]
    pub(super) fn next_at(&self) -> Option<Picos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Picos, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }
}

/// A running hash over everything that happens: two runs with equal hashes were the same run.
#[derive(Clone, Copy)]
pub(super) struct TraceHash(u64);

impl TraceHash {
    pub(super) fn new(seed: u64) -> Self {
        let mut hash = Self(0x9E37_79B9_7F4A_7C15);
        hash.add(seed);
        hash
    }

    /// One multiplication to 128 bits, whose halves are folded together.
    #[inline]
    pub(super) fn add(&mut self, value: u64) {
        // The sum keeps zeroes from staying zero.
        let mixed = (self.0 ^ value).wrapping_add(0xA076_1D64_78BD_642F);
        let product = u128::from(mixed) * 0xE703_7ED1_A0B4_28DB;
        self.0 = (product as u64 ^ (product >> 64) as u64).rotate_left(23);
    }

    pub(super) fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_as_they_were_scheduled() {
        let mut queue = Queue::default();
        for (at, core) in [(5, 0), (3, 1), (5, 2), (3, 3), (4, 4)] {
            queue.push(at, Event::Core(core));
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, event)| event).collect();
        assert_eq!(order, [1, 3, 4, 0, 2].map(Event::Core));
    }

    #[test]
    fn the_hash_depends_on_the_order() {
        let of = |values: &[u64]| {
            let mut hash = TraceHash::new(0);
            values.iter().for_each(|value| hash.add(*value));
            hash.value()
        };
        assert_eq!(of(&[1, 2]), of(&[1, 2]));
        assert_ne!(of(&[1, 2]), of(&[2, 1]));
        assert_ne!(of(&[0, 0]), of(&[0]));
    }

    #[test]
    fn spans_beyond_all_time_saturate() {
        assert_eq!(picos(Duration::MAX), NEVER);
        assert_eq!(duration(picos(Duration::from_nanos(7))), Duration::from_nanos(7));
    }
}
