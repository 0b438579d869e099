//! The second word of an RMA-RW lock: readers that have come and gone, and whether writers have it.
//!
//! ```text
//! writers (1 bit) | readers that have come (31) | readers that have gone (32)
//! ```
//!
//! The first word is the tail of the writers' queue, [`super::McsWord`]. A reader that is refused
//! is among those that have come for a moment. All sums are exact: neither number gets near the end
//! of its field, because no reader is admitted at the limit, where both are set back.

const GONE_BITS: u32 = 32;
const WRITERS: u64 = 1 << 63;

/// The second word of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RmaRwCounts(u64);

impl RmaRwCounts {
    /// Number of readers that may come until the counters are set back.
    pub const LIMIT: u32 = 4000;
    /// Summand of a reader that comes.
    pub const COMES: u64 = 1 << GONE_BITS;
    /// Summand of a reader that goes.
    pub const GOES: u64 = 1;
    /// Summand of a writer that announces writers, if there are none.
    pub const ANNOUNCED: u64 = WRITERS;
    /// The word at which readers set the counters back.
    pub const USED_UP: Self = Self::new(Self::LIMIT, Self::LIMIT);

    /// The word of a lock that writers do not have.
    pub const fn new(come: u32, gone: u32) -> Self {
        Self((come as u64) << GONE_BITS | gone as u64)
    }

    /// A word as it was read.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Number of readers that have come, with those that are being refused.
    pub const fn come(self) -> u32 {
        ((self.0 & !WRITERS) >> GONE_BITS) as u32
    }

    /// Number of readers that have gone.
    pub const fn gone(self) -> u32 {
        self.0 as u32
    }

    /// Whether writers have the lock, or the first of them waits for the last readers.
    pub const fn has_writers(self) -> bool {
        self.0 & WRITERS != 0
    }

    /// Whether a reader that comes now holds the lock.
    pub const fn admits(self) -> bool {
        !self.has_writers() && self.come() < Self::LIMIT
    }

    /// Whether all readers that have come are gone.
    pub const fn is_drained(self) -> bool {
        self.come() == self.gone()
    }

    /// Summand by which the last of some writers admits readers, and sets the counters back, where
    /// `gone` readers had gone when it got the lock.
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
