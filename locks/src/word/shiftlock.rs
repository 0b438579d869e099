//! The word of a ShiftLock: the tail of the writers' queue, the readers, and a count of releases
//! (ShiftLock §3.7, in half of its bytes).
//!
//! ```text
//! releases (26 bits) | readers (12) | resetting (1) | epoch (1) | tail (24)
//! ```
//!
//! The tail is a [`Waiter`](crate::Waiter)'s number; 0 if no writer holds the lock or waits for it.
//! The epoch is that of ShiftLock §3.5, modulo two: it changes when writers give the lock to the
//! readers. The count of releases is modulo 2²⁶: it is the highest field, so what runs over is
//! lost. What is said of two counts is said of their difference, as long as that is below 2²⁵.
//!
//! # Why the count goes on through a reset
//! There is no room for the number of a request beside the tail, as the word of `mcs` has it. So
//! the count tells one use of a waiter's name from the next: each use that hands the lock on raises
//! it, before its name is free for another. A reset has to raise it too: names are used again after
//! it, while what was said before may be under way. One is enough, because a resetter frees the
//! lock only when no verb on it is under way: the count that it finds is the largest that anyone
//! has seen. So a reset counts as one more release. (As published, it adds half of the range, by
//! which waiters notice it. Here they are told.)
//!
//! # Why there is no generation
//! Releases of those who held the lock are counted while it is marked. So the count does not name
//! the reset that is going on, as a generation would, and there is no room for one. A generation
//! tells a resetter that an answer is of its own reset. That follows here from other rules: a claim
//! is replaced only when its holder can reach the memory no more; a member answers calls, not
//! resets, and only when all its uses are at rest; and none of them begins anew before its lane has
//! found the head free by a READ that came after the answer. `tests/reset` explores resets without
//! generations too.

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
    /// Summand of a reader that asks for the lock.
    pub const READER: u64 = 1 << READERS_SHIFT;
    /// Summand of a release.
    pub const RELEASE: u64 = 1 << RELEASES_SHIFT;
    /// The epoch.
    pub const EPOCH: u64 = 1 << EPOCH_SHIFT;
    /// Summand that marks the lock as being reset, if it is not marked.
    pub const RESETTING: u64 = 1 << RESETTING_SHIFT;
    /// Bits of the tail.
    pub const TAIL: u64 = (1 << TAIL_BITS) - 1;
    /// Bits that the release of the last writer in the queue replaces.
    pub const CLOSED: u64 = Self::TAIL | Self::EPOCH | u64::MAX << RELEASES_SHIFT;
    /// Largest number of readers that hold the lock or wait for it.
    pub const MAX_READERS: u32 = (1 << READERS_BITS) - 1;

    /// Fields that a reset uses.
    pub const HEAD: Head = Head {
        resetting: Self::RESETTING,
        generation_shift: RELEASES_SHIFT,
        generation_bits: RELEASES_BITS,
        is_count: true,
    };

    /// A word as it was read.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word of a free lock with this count of releases.
    pub const fn free(releases: u32) -> Self {
        Self((releases as u64) << RELEASES_SHIFT)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Number of the waiter that is the tail; 0 if there is no writer.
    pub const fn tail(self) -> u32 {
        (self.0 & Self::TAIL) as u32
    }

    /// The epoch: its lowest bit.
    pub const fn is_odd(self) -> bool {
        self.0 & Self::EPOCH != 0
    }

    /// Number of readers that hold the lock or wait for it.
    pub const fn readers(self) -> u32 {
        (self.0 >> READERS_SHIFT) as u32 & Self::MAX_READERS
    }

    /// Number of releases.
    pub const fn releases(self) -> u32 {
        (self.0 >> RELEASES_SHIFT) as u32
    }

    /// The word with this tail.
    #[must_use]
    pub const fn with_tail(self, who: u32) -> Self {
        Self(self.0 & !Self::TAIL | who as u64)
    }

    /// The word with this number of readers.
    #[must_use]
    pub const fn with_readers(self, readers: u32) -> Self {
        let others = self.0 & !((Self::MAX_READERS as u64) << READERS_SHIFT);
        Self(others | (readers as u64) << READERS_SHIFT)
    }

    /// The word in this epoch.
    #[must_use]
    pub const fn in_epoch(self, is_odd: bool) -> Self {
        Self(self.0 & !Self::EPOCH | (is_odd as u64) << EPOCH_SHIFT)
    }

    /// The word after the release of the last writer in the queue: the readers have the lock.
    #[must_use]
    pub const fn closed(self) -> Self {
        Self((self.0 & !Self::TAIL ^ Self::EPOCH).wrapping_add(Self::RELEASE))
    }

    /// Whether the lock is being reset. This precedes all else that the word says.
    pub const fn is_resetting(self) -> bool {
        Self::HEAD.is_resetting(self.0)
    }

    /// Whether there is neither a holder nor a waiter.
    pub const fn is_free(self) -> bool {
        self.tail() == 0 && self.readers() == 0 && !self.is_resetting()
    }

    /// The word of a lock that its keeper frees, as published: it adds half of the count's range.
    #[must_use]
    pub const fn freed(self) -> Self {
        let half = 1 << (RELEASES_BITS - 1);
        Self::free(self.releases()).plus(half)
    }

    /// The word with so many more releases.
    #[must_use]
    pub const fn plus(self, releases: u32) -> Self {
        Self(self.0.wrapping_add((releases as u64) << RELEASES_SHIFT))
    }

    /// Whether this count has been changed by [`Self::freed`] since it was that of `earlier`: they
    /// differ by more than a quarter of the range.
    pub const fn has_leapt(self, earlier: Self) -> bool {
        let by = self.releases().wrapping_sub(earlier.releases()) % (1 << RELEASES_BITS);
        let quarter = 1 << (RELEASES_BITS - 2);
        quarter <= by && by <= 3 * quarter
    }

    /// Whether this count of releases is that of `earlier`, or came after it.
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
