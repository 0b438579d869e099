//! The word of a ShiftLock: the tail of the writers' queue, the readers, and a count of releases
//! (ShiftLock §3.7, in half of its bytes).
//!
//! ```text
//! releases (26 bits) | readers (12) | resetting (1) | epoch (1) | tail (24)
//! ```
//!
//! The tail is a [`Waiter`](crate::Waiter)'s number; 0 if no writer holds the lock or waits. The
//! epoch is the epoch of ShiftLock §3.5, modulo two, and changes when writers give the lock to the
//! readers. The count of releases is modulo 2²⁶: the highest field of the word loses its carry. Two
//! counts are compared by their difference, which has to be below 2²⁵.
//!
//! # Why the count goes on through a reset
//! The word has no room for a request number beside the tail, unlike the word of `mcs`. The count
//! therefore tells one use of a waiter's name from the next: a use that hands the lock on
//! increments the count before the name is free for reuse. A reset has to increment the count too,
//! because names are reused after the reset while earlier messages may still be in flight. An
//! increment of one is enough: a resetter frees the lock only when no verb on the lock is in
//! flight, so the count found is the largest count ever seen. A reset thus counts as one more
//! release. (As published, a reset adds half of the range, by which waiters notice the reset. Here
//! waiters are told.)
//!
//! # Why there is no generation
//! Holders' releases are counted while the lock is marked. The count therefore cannot name the
//! reset in progress, as a generation would, and the word has no room for a generation. A
//! generation tells a resetter that an answer belongs to its own reset. Here the guarantee follows
//! from three rules: a claim is replaced only when the claimant can no longer reach the memory; a
//! member answers calls, not resets, and only when every use on the member is at rest; and no use
//! begins anew before its lane has found the head free by a READ after the answer. `tests/reset`
//! explores resets without generations too.

use super::Head;

const TAIL_BITS: u32 = 24;
const EPOCH_SHIFT: u32 = TAIL_BITS;
const RESETTING_SHIFT: u32 = EPOCH_SHIFT + 1;
const READERS_SHIFT: u32 = RESETTING_SHIFT + 1;
const READERS_BITS: u32 = 12;
const RELEASES_SHIFT: u32 = READERS_SHIFT + READERS_BITS;
const RELEASES_BITS: u32 = u64::BITS - RELEASES_SHIFT;

const _: () = assert!(RELEASES_BITS == 26);

/// The word of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ShiftWord(u64);

impl ShiftWord {
    /// Addend of a reader's request.
    pub const READER: u64 = 1 << READERS_SHIFT;
    /// Addend of a release.
    pub const RELEASE: u64 = 1 << RELEASES_SHIFT;
    /// The epoch.
    pub const EPOCH: u64 = 1 << EPOCH_SHIFT;
    /// Addend that marks the lock as being reset, if the mark is clear.
    pub const RESETTING: u64 = 1 << RESETTING_SHIFT;
    /// Bits of the tail.
    pub const TAIL: u64 = (1 << TAIL_BITS) - 1;
    /// Bits replaced by the release of the last writer in the queue.
    pub const CLOSED: u64 = Self::TAIL | Self::EPOCH | u64::MAX << RELEASES_SHIFT;
    /// Maximum number of readers holding the lock or waiting.
    pub const MAX_READERS: u32 = (1 << READERS_BITS) - 1;

    /// Fields used by a reset.
    pub const HEAD: Head = Head {
        resetting: Self::RESETTING,
        generation_shift: RELEASES_SHIFT,
        generation_bits: RELEASES_BITS,
        is_count: true,
    };

    /// Wraps a word as read from memory.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// Returns the word of a free lock with a count of releases.
    pub const fn free(releases: u32) -> Self {
        Self((releases as u64) << RELEASES_SHIFT)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Waiter number of the tail; 0 without a writer.
    pub const fn tail(self) -> u32 {
        (self.0 & Self::TAIL) as u32
    }

    /// Returns whether the epoch is odd: the epoch's lowest bit.
    pub const fn is_odd(self) -> bool {
        self.0 & Self::EPOCH != 0
    }

    /// Number of readers holding the lock or waiting.
    pub const fn readers(self) -> u32 {
        (self.0 >> READERS_SHIFT) as u32 & Self::MAX_READERS
    }

    /// Number of releases.
    pub const fn releases(self) -> u32 {
        (self.0 >> RELEASES_SHIFT) as u32
    }

    /// Returns the word with a new tail.
    #[must_use]
    pub const fn with_tail(self, who: u32) -> Self {
        Self(self.0 & !Self::TAIL | who as u64)
    }

    /// Returns the word with a new number of readers.
    #[must_use]
    pub const fn with_readers(self, readers: u32) -> Self {
        let others = self.0 & !((Self::MAX_READERS as u64) << READERS_SHIFT);
        Self(others | (readers as u64) << READERS_SHIFT)
    }

    /// Returns the word with a new epoch.
    #[must_use]
    pub const fn in_epoch(self, is_odd: bool) -> Self {
        Self(self.0 & !Self::EPOCH | (is_odd as u64) << EPOCH_SHIFT)
    }

    /// Returns the word after the release of the last writer in the queue: the readers have the
    /// lock.
    #[must_use]
    pub const fn closed(self) -> Self {
        Self((self.0 & !Self::TAIL ^ Self::EPOCH).wrapping_add(Self::RELEASE))
    }

    /// Returns whether the lock is being reset. The mark takes precedence over the rest of the
    /// word.
    pub const fn is_resetting(self) -> bool {
        Self::HEAD.is_resetting(self.0)
    }

    /// Returns whether the lock has neither holders nor waiters.
    pub const fn is_free(self) -> bool {
        self.tail() == 0 && self.readers() == 0 && !self.is_resetting()
    }

    /// Returns the word of a lock freed by its keeper, as published: the keeper adds half of the
    /// count's range.
    #[must_use]
    pub const fn freed(self) -> Self {
        let half = 1 << (RELEASES_BITS - 1);
        Self::free(self.releases()).plus(half)
    }

    /// Returns the word with `releases` added to the count.
    #[must_use]
    pub const fn plus(self, releases: u32) -> Self {
        Self(self.0.wrapping_add((releases as u64) << RELEASES_SHIFT))
    }

    /// Returns whether [`Self::freed`] has changed the count since `earlier`: the two counts differ
    /// by a quarter of the range or more.
    pub const fn has_leapt(self, earlier: Self) -> bool {
        let by = self.releases().wrapping_sub(earlier.releases()) % (1 << RELEASES_BITS);
        let quarter = 1 << (RELEASES_BITS - 2);
        quarter <= by && by <= 3 * quarter
    }

    /// Returns whether the count of releases is equal to or later than the count of `earlier`.
    pub const fn is_since(self, earlier: Self) -> bool {
        self.releases().wrapping_sub(earlier.releases()) % (1 << RELEASES_BITS)
            < 1 << (RELEASES_BITS - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RELEASES: u32 = 1 << RELEASES_BITS;

    proptest! {
        #[test]
        fn fields_are_apart(
            who in 0..1_u32 << 24,
            readers in 0..=ShiftWord::MAX_READERS,
            releases in 0..RELEASES,
            is_odd: bool,
            is_marked: bool,
        ) {
            let free = ShiftWord::free(releases);
            prop_assert!(free.is_free());
            let mark = if is_marked { ShiftWord::RESETTING } else { 0 };
            let word = free.with_tail(who).with_readers(readers).in_epoch(is_odd);
            let word = ShiftWord::of(word.word() + mark);
            prop_assert_eq!((word.tail(), word.readers()), (who, readers));
            prop_assert_eq!((word.releases(), word.is_odd()), (releases, is_odd));
            prop_assert_eq!(word.is_resetting(), is_marked);
            prop_assert_eq!(word.is_free(), who == 0 && readers == 0 && !is_marked);
            let closed = word.closed();
            prop_assert_eq!(closed.releases(), (releases + 1) % RELEASES);
            prop_assert_eq!((closed.tail(), closed.is_odd()), (0, !is_odd));
            prop_assert_eq!((closed.readers(), closed.is_resetting()), (readers, is_marked));
            let replaced = word.word() & !ShiftWord::CLOSED | closed.word() & ShiftWord::CLOSED;
            prop_assert_eq!(replaced, closed.word());
            let after = ShiftWord::of(ShiftWord::HEAD.after_reset(word.word()));
            prop_assert_eq!(after, ShiftWord::free((releases + 1) % RELEASES));
            prop_assert_eq!(ShiftWord::HEAD.generation(word.word()), 0);
            let freed = word.freed();
            prop_assert_eq!(freed, ShiftWord::free((releases + RELEASES / 2) % RELEASES));
            prop_assert!(freed.has_leapt(word) && !word.has_leapt(word));
            prop_assert!(freed.plus(RELEASES / 4).has_leapt(word));
            prop_assert!(!word.plus(RELEASES / 4 - 1).has_leapt(word));
        }

        #[test]
        fn sums_reach_no_other_field(
            readers in 1..ShiftWord::MAX_READERS,
            releases in 0..RELEASES,
            is_odd: bool,
        ) {
            let of = |releases| ShiftWord::free(releases).with_tail(7).in_epoch(is_odd);
            let word = of(releases).with_readers(readers);
            let next = of((releases + 1) % RELEASES);
            let sum = |summand: u64| ShiftWord::of(word.word().wrapping_add(summand));
            prop_assert_eq!(sum(ShiftWord::READER), word.with_readers(readers + 1));
            prop_assert_eq!(sum(ShiftWord::RELEASE), next.with_readers(readers));
            let leaves = ShiftWord::RELEASE.wrapping_sub(ShiftWord::READER);
            prop_assert_eq!(sum(leaves), next.with_readers(readers - 1));
        }

        #[test]
        fn counts_are_compared_beyond_their_limit(from in 0..RELEASES, by in 1..RELEASES / 2) {
            let [one, other] = [from, (from + by) % RELEASES].map(ShiftWord::free);
            prop_assert!(one.is_since(one) && other.is_since(one) && !one.is_since(other));
        }
    }
}
