//! The second word of an RMA-RW lock: readers arrived and departed, and whether writers have the
//! lock.
//!
//! ```text
//! writers (1 bit) | readers that have come (31) | readers that have gone (32)
//! ```
//!
//! The first word is the tail of the writers' queue, [`super::McsWord`]. A refused reader counts as
//! arrived for a moment. Every sum is exact: neither counter gets near the end of its field,
//! because no reader is admitted at the limit, where both counters are set back.

const GONE_BITS: u32 = 32;
const WRITERS: u64 = 1 << 63;

/// The second word of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RmaRwCounts(u64);

impl RmaRwCounts {
    /// Number of readers admitted before the counters are set back.
    pub const LIMIT: u32 = 4000;
    /// Addend of an arriving reader.
    pub const COMES: u64 = 1 << GONE_BITS;
    /// Addend of a departing reader.
    pub const GOES: u64 = 1;
    /// Addend of a writer that announces writers, if the flag is clear.
    pub const ANNOUNCED: u64 = WRITERS;
    /// The word at which readers set the counters back.
    pub const USED_UP: Self = Self::new(Self::LIMIT, Self::LIMIT);

    /// Returns the word of a lock not held by writers.
    pub const fn new(come: u32, gone: u32) -> Self {
        Self((come as u64) << GONE_BITS | gone as u64)
    }

    /// Wraps a word as read from memory.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Number of arrived readers, including readers being refused.
    pub const fn come(self) -> u32 {
        ((self.0 & !WRITERS) >> GONE_BITS) as u32
    }

    /// Number of departed readers.
    pub const fn gone(self) -> u32 {
        self.0 as u32
    }

    /// Returns whether writers have the lock, or the first writer waits for the last readers.
    pub const fn has_writers(self) -> bool {
        self.0 & WRITERS != 0
    }

    /// Returns whether a reader arriving now gets the lock.
    pub const fn admits(self) -> bool {
        !self.has_writers() && self.come() < Self::LIMIT
    }

    /// Returns whether every arrived reader has departed.
    pub const fn is_drained(self) -> bool {
        self.come() == self.gone()
    }

    /// Returns the addend by which the last writer of a series admits readers and sets both
    /// counters back. `gone` is the number of departed readers at the time the writer got the lock.
    pub const fn admitting(gone: u32) -> u64 {
        (WRITERS | Self::new(gone, gone).0).wrapping_neg()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counters_are_apart(come in 0..1_u32 << 31, gone: u32, written: bool) {
            let counts = RmaRwCounts::new(come, gone);
            let flag = if written { RmaRwCounts::ANNOUNCED } else { 0 };
            let word = RmaRwCounts::of(counts.word() + flag);
            prop_assert_eq!((word.come(), word.gone(), word.has_writers()), (come, gone, written));
            prop_assert_eq!(word.is_drained(), come == gone);
            prop_assert_eq!(word.admits(), !written && come < RmaRwCounts::LIMIT);
        }

        /// Readers that are being refused stay counted until they have taken that back.
        #[test]
        fn the_last_writer_sets_both_counters_back(gone in 0..=4000_u32, refused in 0..9_u32) {
            let word = RmaRwCounts::new(gone + refused, gone).word() + RmaRwCounts::ANNOUNCED;
            let after = word.wrapping_add(RmaRwCounts::admitting(gone));
            prop_assert_eq!(RmaRwCounts::of(after), RmaRwCounts::new(refused, 0));
        }
    }

    #[test]
    fn a_reader_that_is_refused_leaves_nothing() {
        let full = RmaRwCounts::USED_UP;
        assert!(!full.admits() && full.is_drained());
        let counted = full.word() + RmaRwCounts::COMES;
        assert_eq!(counted.wrapping_add(RmaRwCounts::COMES.wrapping_neg()), full.word());
        let last = RmaRwCounts::new(RmaRwCounts::LIMIT - 1, 0);
        assert!(last.admits() && RmaRwCounts::of(0).admits());
    }
}
