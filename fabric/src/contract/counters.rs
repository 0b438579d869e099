//! Counts of a lane's verbs and messages, by kind.

use crate::contract::verbs::VerbKind;

/// Memory and connections that a node provides to other nodes, as seen by its host now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LentResources {
    /// Bytes of the node's regions.
    pub registered_bytes: u64,
    /// Registered bytes that were touched, and so take memory; `None` if the host cannot tell them
    /// from other memory of the process.
    pub used_bytes: Option<u64>,
    /// Established connections (`tcp`), or attached processes (`shm`).
    pub connections: usize,
}

/// Counts since the lane was opened. `+=` adds up several lanes; `-` gives the difference between
/// two readings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbCounters {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps.
    pub compare_and_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_and_adds: u64,
    /// Doorbells: one per connection in a batch.
    pub doorbells: u64,
    /// Messages sent.
    pub messages: u64,
    /// Bytes moved by verbs, both ways.
    pub verb_bytes: u64,
    /// Bytes sent in messages.
    pub message_bytes: u64,
}

impl VerbCounters {
    /// Total number of one-sided verbs.
    #[inline]
    pub fn verbs(&self) -> u64 {
        self.reads + self.writes + self.compare_and_swaps + self.fetch_and_adds
    }

    /// Counts verbs of one kind, with `bytes` in total.
    #[inline]
    pub(crate) fn count_verbs(&mut self, kind: VerbKind, verbs: u64, bytes: usize) {
        let count = match kind {
            VerbKind::Read => &mut self.reads,
            VerbKind::Write => &mut self.writes,
            VerbKind::CompareAndSwap => &mut self.compare_and_swaps,
            VerbKind::FetchAndAdd => &mut self.fetch_and_adds,
        };
        *count += verbs;
        self.verb_bytes += bytes as u64;
    }

    #[inline]
    pub(crate) fn count_message(&mut self, bytes: usize) {
        self.messages += 1;
        self.message_bytes += bytes as u64;
    }
}

impl std::ops::AddAssign<&Self> for VerbCounters {
    #[inline]
    fn add_assign(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.compare_and_swaps += other.compare_and_swaps;
        self.fetch_and_adds += other.fetch_and_adds;
        self.doorbells += other.doorbells;
        self.messages += other.messages;
        self.verb_bytes += other.verb_bytes;
        self.message_bytes += other.message_bytes;
    }
}

impl std::ops::SubAssign<&Self> for VerbCounters {
    fn sub_assign(&mut self, earlier: &Self) {
        self.reads -= earlier.reads;
        self.writes -= earlier.writes;
        self.compare_and_swaps -= earlier.compare_and_swaps;
        self.fetch_and_adds -= earlier.fetch_and_adds;
        self.doorbells -= earlier.doorbells;
        self.messages -= earlier.messages;
        self.verb_bytes -= earlier.verb_bytes;
        self.message_bytes -= earlier.message_bytes;
    }
}

impl std::ops::Sub<&Self> for VerbCounters {
    type Output = Self;

    /// Returns the counts from `earlier` to `self`.
    fn sub(mut self, earlier: &Self) -> Self {
        self -= earlier;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another number in each field, so that no two can be mixed up.
    fn counters(first: u64) -> VerbCounters {
        VerbCounters {
            reads: first,
            writes: 2 * first,
            compare_and_swaps: 3 * first,
            fetch_and_adds: 4 * first,
            doorbells: 5 * first,
            messages: 6 * first,
            verb_bytes: 7 * first,
            message_bytes: 8 * first,
        }
    }

    #[test]
    fn what_was_added_is_the_difference() {
        let (before, more) = (counters(100), counters(1));
        let mut after = before.clone();
        after += &more;
        assert_eq!(after, counters(101));
        assert_eq!(after.clone() - &before, more);
        assert_eq!(after - &counters(101), VerbCounters::default());
    }
}
