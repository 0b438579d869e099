//! The lock of a ShiftLock as published (ShiftLock §3.7, Fig. 3): two words, changed in one step by
//! 16-byte atomics.
//!
//! ```text
//! epoch (1 bit) | readers (23) | tail (40)
//! releases (64)
//! ```
//!
//! The fields are the same as in [`ShiftWord`](super::ShiftWord), which packs them into one word.
//! In the paper, the tail is the number of a queue pair and of the pair's node; here, a
//! [`Waiter`](crate::Waiter)'s number. Sums do not carry across field boundaries: counting out one
//! reader too many leaves the epoch unchanged.

const TAIL_BITS: u32 = 40;
const READERS_SHIFT: u32 = TAIL_BITS;
const READERS_BITS: u32 = 23;
const EPOCH_SHIFT: u32 = READERS_SHIFT + READERS_BITS;

const _: () = assert!(EPOCH_SHIFT + 1 == u64::BITS);

/// Low bits of the count of releases in a notice.
const SAID_BITS: u32 = 50;
/// Bits of the number of writers in a notice.
const WRITERS_BITS: u32 = 12;
const SAID_SHIFT: u32 = 1 + WRITERS_BITS;

const _: () = assert!(SAID_SHIFT + SAID_BITS + 1 == u64::BITS);

/// The two words of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct WideShiftWord {
    first: u64,
    releases: u64,
}

impl WideShiftWord {
    /// Bits of the tail, in the value of both words together.
    pub const TAIL: u128 = (1 << TAIL_BITS) - 1;
    /// Bits replaced by the release of the last writer in the queue.
    pub const CLOSED: u128 = Self::TAIL | Self::EPOCH | (u64::MAX as u128) << u64::BITS;
    /// Highest bit of every field, beyond which a sum does not carry.
    pub const BOUNDARY: u128 = 1 << (TAIL_BITS - 1) | 1 << (EPOCH_SHIFT - 1) | Self::EPOCH;
    /// Addend of a reader's request.
    pub const READER: u128 = 1 << READERS_SHIFT;
    /// Addend that subtracts a reader.
    pub const READER_LESS: u128 = (Self::MAX_READERS as u128) << READERS_SHIFT;
    /// Addend of a release.
    pub const RELEASE: u128 = 1 << u64::BITS;
    /// The epoch's bit, which is also the addend that changes the epoch.
    pub const EPOCH: u128 = 1 << EPOCH_SHIFT;
    /// Maximum number of readers holding the lock or waiting.
    pub const MAX_READERS: u32 = (1 << READERS_BITS) - 1;

    /// Wraps the words as read from memory.
    pub const fn of([first, releases]: [u64; 2]) -> Self {
        Self { first, releases }
    }

    /// Returns the words of a free lock with a count of releases.
    pub const fn free(releases: u64) -> Self {
        Self { first: 0, releases }
    }

    /// The words.
    pub const fn words(self) -> [u64; 2] {
        [self.first, self.releases]
    }

    /// The words as one number, with the first word in the low bits.
    pub const fn value(self) -> u128 {
        (self.releases as u128) << u64::BITS | self.first as u128
    }

    /// Waiter number of the tail; 0 without a writer.
    pub const fn tail(self) -> u32 {
        (self.first & Self::TAIL as u64) as u32
    }

    /// Returns whether the epoch is odd: the epoch's lowest bit.
    pub const fn is_odd(self) -> bool {
        self.first >> EPOCH_SHIFT != 0
    }

    /// Number of readers holding the lock or waiting.
    pub const fn readers(self) -> u32 {
        (self.first >> READERS_SHIFT) as u32 & Self::MAX_READERS
    }

    /// Number of releases.
    pub const fn releases(self) -> u64 {
        self.releases
    }

    /// Returns the words with a new tail.
    #[must_use]
    pub const fn with_tail(self, who: u32) -> Self {
        Self { first: self.first & !(Self::TAIL as u64) | who as u64, ..self }
    }

    /// Returns the words with a new number of readers.
    #[must_use]
    pub const fn with_readers(self, readers: u32) -> Self {
        let others = self.first & !((Self::MAX_READERS as u64) << READERS_SHIFT);
        Self { first: others | (readers as u64) << READERS_SHIFT, ..self }
    }

    /// Returns the words with a new epoch.
    #[must_use]
    pub const fn in_epoch(self, is_odd: bool) -> Self {
        let others = self.first & !(Self::EPOCH as u64);
        Self { first: others | (is_odd as u64) << EPOCH_SHIFT, ..self }
    }

    /// Returns the words with `releases` added to the count.
    #[must_use]
    pub const fn plus(self, releases: u32) -> Self {
        Self { releases: self.releases.wrapping_add(releases as u64), ..self }
    }

    /// Returns the words after the release of the last writer in the queue: the readers have the
    /// lock.
    #[must_use]
    pub const fn closed(self) -> Self {
        self.with_tail(0).in_epoch(!self.is_odd()).plus(1)
    }

    /// Returns whether the lock has neither holders nor waiters.
    pub const fn is_free(self) -> bool {
        self.tail() == 0 && self.readers() == 0
    }

    /// Returns the words of a lock freed by its keeper: the keeper adds half of the count's range.
    #[must_use]
    pub const fn freed(self) -> Self {
        Self::free(self.releases ^ 1 << (u64::BITS - 1))
    }

    /// Returns whether [`Self::freed`] has changed the count since `earlier`: the two counts differ
    /// by a quarter of the range or more.
    pub const fn has_leapt(self, earlier: Self) -> bool {
        let by = self.releases.wrapping_sub(earlier.releases);
        let quarter = 1 << (u64::BITS - 2);
        quarter <= by && by <= 3 * quarter
    }

    /// Encodes the content of a notice: the epoch, the number of writers in a row, the low bits of
    /// the count, and the count's highest bit, which [`Self::freed`] changes.
    pub const fn says(self, writers: u16) -> u64 {
        let low = self.releases & ((1 << SAID_BITS) - 1);
        let top = self.releases >> (u64::BITS - 1) << (u64::BITS - 1);
        top | low << SAID_SHIFT | (writers as u64) << 1 | self.is_odd() as u64
    }

    /// Decodes a notice for a use that has found these words: returns the sender's count and epoch,
    /// and the number of writers. Of the counts that match the notice, the nearest to the count of
    /// these words is returned; the answer is correct if fewer than 2⁴⁹ releases lie between the
    /// two.
    pub const fn told(self, says: u64) -> (Self, u16) {
        let said = says << 1 >> (SAID_SHIFT + 1);
        // The signed difference of the low bits.
        let unused = u64::BITS - SAID_BITS;
        let by = (said.wrapping_sub(self.releases) << unused).cast_signed() >> unused;
        let near = self.releases.wrapping_add(by.cast_unsigned());
        let has_leapt = (near ^ says) >> (u64::BITS - 1);
        let releases = near ^ has_leapt << (u64::BITS - 1);
        let writers = (says >> 1) as u16 & ((1 << WRITERS_BITS) - 1);
        (Self::free(releases).in_epoch(says & 1 != 0), writers)
    }

    /// Returns whether the count in a notice is equal to or later than the count of these words.
    pub const fn is_said_since(self, says: u64) -> bool {
        self.told(says).0.releases.wrapping_sub(self.releases) < 1 << (u64::BITS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::wide::{WideSwap, value_of, wide_sum};
    use proptest::prelude::*;

    fn summed(word: WideShiftWord, addend: u128) -> WideShiftWord {
        let sum = wide_sum(word.value(), addend, WideShiftWord::BOUNDARY);
        WideShiftWord::of([sum as u64, (sum >> u64::BITS) as u64])
    }

    proptest! {
        #[test]
        fn fields_are_apart(
            who in 0..1_u32 << 24,
            readers in 0..=WideShiftWord::MAX_READERS,
            releases: u64,
            is_odd: bool,
        ) {
            let word = WideShiftWord::free(releases).with_tail(who).with_readers(readers);
            let word = word.in_epoch(is_odd);
            prop_assert_eq!((word.tail(), word.readers()), (who, readers));
            prop_assert_eq!((word.releases(), word.is_odd()), (releases, is_odd));
            prop_assert_eq!(word.is_free(), who == 0 && readers == 0);
            prop_assert_eq!(value_of(word.words()), word.value());
            let next = WideShiftWord::free(releases.wrapping_add(1)).with_tail(who);
            let closed = word.closed();
            prop_assert_eq!(closed, next.with_tail(0).with_readers(readers).in_epoch(!is_odd));
            let closes = WideSwap {
                compare: u128::from(who),
                compare_mask: WideShiftWord::TAIL,
                swap: closed.value(),
                swap_mask: WideShiftWord::CLOSED,
            };
            prop_assert_eq!(closes.applied_to(word.value()), Some(closed.value()));
            let freed = word.freed();
            prop_assert_eq!(freed, WideShiftWord::free(releases.wrapping_add(1 << 63)));
            prop_assert!(freed.has_leapt(word) && !word.has_leapt(word));
            prop_assert!(freed.plus(u32::MAX).has_leapt(word));
            prop_assert!(!word.plus(u32::MAX).has_leapt(word));
            // Sums reach no other field, not even from none.
            let less = readers.checked_sub(1).unwrap_or(WideShiftWord::MAX_READERS);
            prop_assert_eq!(
                summed(word, WideShiftWord::RELEASE | WideShiftWord::READER_LESS),
                next.with_readers(less).in_epoch(is_odd)
            );
            let more = (readers + 1) % (WideShiftWord::MAX_READERS + 1);
            prop_assert_eq!(summed(word, WideShiftWord::READER), word.with_readers(more));
            prop_assert_eq!(
                summed(word, WideShiftWord::RELEASE | WideShiftWord::EPOCH),
                next.with_readers(readers).in_epoch(!is_odd)
            );
        }

        #[test]
        fn counts_are_said_beyond_their_limit_and_after_a_leap(
            found: u64,
            by in 0..1_u32 << 20,
            writers in 0..1_u16 << 12,
            is_odd: bool,
        ) {
            let found = WideShiftWord::free(found).with_tail(7).with_readers(9);
            for said in [found.plus(by), found.freed().plus(by)] {
                let said = WideShiftWord::free(said.releases()).in_epoch(is_odd);
                prop_assert_eq!(found.told(said.says(writers)), (said, writers));
            }
            let later = found.plus(by + 1);
            prop_assert!(found.is_said_since(found.says(writers)));
            prop_assert!(found.is_said_since(later.says(writers)));
            prop_assert!(!later.is_said_since(found.says(writers)));
        }
    }
}
