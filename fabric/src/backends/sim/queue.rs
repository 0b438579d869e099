//! Virtual time, and the queue of events.
//!
//! Events are ordered by (time, sequence): simultaneous events happen in the order of scheduling.
//! The order, and so the whole run, follows from the seed and nothing else.
//!
//! The queue is a calendar queue (Brown, CACM 1988): a ring of buckets for the near future, which
//! receive events unsorted. A bucket is sorted when its time has come, and then holds a handful of
//! events. The few events beyond the ring, timers and faults, wait in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use slab::Slab;

/// A moment of virtual time since the world began, or a span of virtual time, in picoseconds,
/// because NICs serve operations in fractions of a nanosecond. 64 bits last for 213 days.
pub(super) type Picos = u64;

pub(super) const PICOS_PER_NANO: Picos = 1000;
/// A moment that is never reached.
pub(super) const NEVER: Picos = Picos::MAX;

pub(super) fn picos(span: Duration) -> Picos {
    Picos::try_from(span.as_nanos()).map_or(NEVER, |nanos| nanos.saturating_mul(PICOS_PER_NANO))
}

pub(super) fn duration(picos: Picos) -> Duration {
    Duration::from_nanos(picos / PICOS_PER_NANO)
}

/// An event; the number is the index of its subject.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// A core is due for a turn.
    Core(u32),
    /// The first verb on a connection takes its next step.
    Connection(u32),
    /// The last completion of a batch reaches its lane.
    Completed(u32),
    /// The acknowledgement of a new connection reaches its lane.
    Reconnected(u32),
    /// A message arrives.
    Message(u32),
    /// A verb arrives after the initiator has given up.
    Straggler(u32),
    /// An entry of the schedule of faults is due.
    Fault(u32),
}

impl Event {
    /// Returns a number for the trace hash.
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

/// Time span of a bucket, as a shift: 2^14 ps = 16 ns, during which a large cluster has a few
/// events.
const BUCKET_SHIFT: u32 = 14;
/// Buckets of the ring. The ring spans 17 us, longer than most verbs take.
const BUCKETS: usize = 1024;
/// Buckets per word of the occupancy map.
const MAP_BITS: usize = u64::BITS as usize;
/// The end of a bucket's list.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: Picos,
    sequence: u64,
    event: Event,
}

impl Entry {
    /// Returns the number of the bucket, counted from time zero.
    #[inline]
    fn bucket(&self) -> u64 {
        self.at >> BUCKET_SHIFT
    }
}

/// The pending events.
pub(super) struct Queue {
    pushed: u64,
    /// Events of bucket `current` and earlier, the next one last.
    near: Vec<Entry>,
    current: u64,
    /// The first entries of the buckets after `current`, which are lists.
    ring: Box<[u32; BUCKETS]>,
    /// Bitmap of the non-empty buckets.
    map: [u64; BUCKETS / MAP_BITS],
    /// Nodes of the lists: an entry and the number of the next node.
    links: Slab<(Entry, u32)>,
    /// Events that were beyond the ring at the time of scheduling.
    far: BinaryHeap<Reverse<Entry>>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            pushed: 0,
            near: Vec::new(),
            current: 0,
            ring: Box::new([NONE; BUCKETS]),
            map: [0; BUCKETS / MAP_BITS],
            links: Slab::new(),
            far: BinaryHeap::new(),
        }
    }
}

impl Queue {
    #[inline]
    pub(super) fn push(&mut self, at: Picos, event: Event) {
        self.pushed += 1;
        let entry = Entry { at, sequence: self.pushed, event };
        let bucket = entry.bucket();
        if bucket <= self.current {
            let place = self.near.partition_point(|other| *other > entry);
            self.near.insert(place, entry);
        } else if bucket - self.current < BUCKETS as u64 {
            self.throw(bucket as usize % BUCKETS, entry);
        } else {
            self.far.push(Reverse(entry));
        }
    }

    /// Adds an event to a bucket of the ring.
    #[inline]
    fn throw(&mut self, bucket: usize, entry: Entry) {
        self.ring[bucket] = self.links.insert((entry, self.ring[bucket])) as u32;
        self.map[bucket / MAP_BITS] |= 1 << (bucket % MAP_BITS);
    }

    /// Time of the next event.
    #[inline]
    pub(super) fn next_at(&mut self) -> Option<Picos> {
        if self.near.is_empty() {
            self.turn_ring();
        }
        match (self.near.last(), self.far.peek()) {
            (Some(near), Some(Reverse(far))) => Some(near.at.min(far.at)),
            (near, far) => near.or(far.map(|Reverse(far)| far)).map(|entry| entry.at),
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Picos, Event)> {
        if self.near.is_empty() {
            self.turn_ring();
        }
        let next = match (self.near.last(), self.far.peek()) {
            (Some(near), Some(Reverse(far))) if far < near => self.far.pop().map(|far| far.0),
            (Some(_), _) => self.near.pop(),
            (None, _) => self.far.pop().map(|Reverse(entry)| entry),
        };
        next.map(|entry| (entry.at, entry.event))
    }

    /// Moves on to the next non-empty bucket, or to the first event beyond the ring.
    fn turn_ring(&mut self) {
        let Some(ahead) = self.next_bucket() else {
            if let Some(Reverse(far)) = self.far.peek() {
                self.current = self.current.max(far.bucket());
            }
            return;
        };
        self.current += ahead as u64;
        let bucket = self.current as usize % BUCKETS;
        self.map[bucket / MAP_BITS] &= !(1 << (bucket % MAP_BITS));
        let mut key = std::mem::replace(&mut self.ring[bucket], NONE);
        while key != NONE {
            let (entry, next) = self.links.remove(key as usize);
            self.near.push(entry);
            key = next;
        }
        self.near.sort_unstable_by(|one, other| other.cmp(one));
    }

    /// Distance from `current` to the next non-empty bucket.
    #[inline]
    fn next_bucket(&self) -> Option<usize> {
        let first = self.current as usize % BUCKETS;
        // The first word is checked twice: from `current` on, and at the end up to `current`.
        (0..=self.map.len()).find_map(|step| {
            let word = (first / MAP_BITS + step) % self.map.len();
            let passed = if step == 0 { u64::MAX << (first % MAP_BITS) } else { u64::MAX };
            let used = self.map[word] & passed;
            let bucket = word * MAP_BITS + used.trailing_zeros() as usize;
            (used != 0).then(|| (bucket + BUCKETS - first) % BUCKETS)
        })
    }
}

/// A running hash over all events: two runs with equal hashes were the same run.
#[derive(Clone, Copy)]
pub(super) struct TraceHash(u64);

impl TraceHash {
    pub(super) fn new(seed: u64) -> Self {
        let mut hash = Self(0x9E37_79B9_7F4A_7C15);
        hash.add(seed);
        hash
    }

    /// Mixes in a value: one multiplication to 128 bits, with the halves of the product folded
    /// together.
    #[inline]
    pub(super) fn add(&mut self, value: u64) {
        // The addition keeps zeroes from staying zero.
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
    use std::collections::BTreeMap;

    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::run::env::SmallRng;

    /// Compares with a sorted list: near and far events, many at one moment, some scheduled while
    /// others are taken out, some before the bucket that was last opened.
    #[test]
    fn events_come_by_time_and_then_as_they_were_scheduled() {
        let mut rng = SmallRng::seed_from_u64(1);
        let (mut queue, mut expected) = (Queue::default(), BTreeMap::new());
        let mut now = 0;
        for number in 0..100_000 {
            if rng.random_range(0..2) == 0 {
                let span = 1 << rng.random_range(0..32);
                let at = now + rng.random_range(0..span) / 64 * 64;
                queue.push(at, Event::Core(number));
                expected.insert((at, number), Event::Core(number));
            } else {
                let next = expected.pop_first().map(|((at, _), event)| (at, event));
                assert_eq!(queue.next_at(), next.map(|(at, _)| at));
                // The next event may be peeked at without being taken.
                if rng.random_range(0..4) > 0 {
                    assert_eq!(queue.pop(), next);
                    now = next.map_or(now, |(at, _)| at);
                } else if let Some((at, event @ Event::Core(number))) = next {
                    expected.insert((at, number), event);
                }
            }
        }
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
