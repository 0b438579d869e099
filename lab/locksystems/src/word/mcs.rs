//! The word of an MCS lock: the tail of the queue.
//!
//! ```text
//! tail (24 bits) | resetting (1) | generation (7) | number of the tail's request (32)
//! ```
//!
//! The tail is a [`Waiter`]'s number; 0 if no client holds the lock. Waiter names are reused. The
//! word therefore also has the low half of the tail's request number, by which the next waiter can
//! say which use of the name it has queued behind (I298).

use lotus_locks::word::Head;

const NUMBER_BITS: u32 = 32;
const GENERATION_BITS: u32 = 7;
const RESETTING_SHIFT: u32 = NUMBER_BITS + GENERATION_BITS;
const TAIL_SHIFT: u32 = RESETTING_SHIFT + 1;

const _: () = assert!(TAIL_SHIFT + 24 == u64::BITS);

/// The word of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct McsWord(u64);

impl McsWord {
    /// Addend that marks the lock as being reset, if the mark is clear.
    pub const RESETTING: u64 = 1 << RESETTING_SHIFT;

    /// Bits of the tail, replaced by an enqueue.
    pub const TAIL: u64 = u64::MAX << TAIL_SHIFT | u32::MAX as u64;

    /// Fields used by a reset.
    pub const HEAD: Head = Head {
        resetting: Self::RESETTING,
        generation_shift: NUMBER_BITS,
        generation_bits: GENERATION_BITS,
        is_count: false,
    };

    /// Wraps a word as read from memory.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Returns the word with a new tail: a waiter's number, and the low half of the request's
    /// number.
    #[must_use]
    pub const fn with_tail(self, who: u32, number: u32) -> Self {
        Self(self.0 & !Self::TAIL | (who as u64) << TAIL_SHIFT | number as u64)
    }

    /// Returns the word without a tail: the lock is free.
    #[must_use]
    pub const fn without_tail(self) -> Self {
        Self(self.0 & !Self::TAIL)
    }

    /// Waiter number of the tail; 0 if no client holds the lock.
    pub const fn tail(self) -> u32 {
        (self.0 >> TAIL_SHIFT) as u32
    }

    /// Low half of the tail's request number.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// Returns whether the lock is being reset. The mark takes precedence over the rest of the
    /// word.
    pub const fn is_resetting(self) -> bool {
        Self::HEAD.is_resetting(self.0)
    }

    /// Returns whether the lock is free.
    pub const fn is_free(self) -> bool {
        self.tail() == 0 && !self.is_resetting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_apart(
            who in 1..1_u32 << 24,
            number: u32,
            generation in 0..127_u64,
            is_marked: bool,
        ) {
            let mark = if is_marked { McsWord::RESETTING } else { 0 };
            let free = McsWord::of(generation << 32 | mark);
            let word = free.with_tail(who, number);
            prop_assert_eq!((word.tail(), word.number()), (who, number));
            prop_assert_eq!(word.is_resetting(), is_marked);
            prop_assert_eq!(McsWord::HEAD.generation(word.word()), generation);
            prop_assert_eq!(word.without_tail(), free);
            prop_assert_eq!(free.is_free(), !is_marked);
            prop_assert!(!word.is_free());
            let next = McsWord::of(McsWord::HEAD.after_reset(word.word()));
            prop_assert_eq!(next, McsWord::of((generation + 1) << 32));
        }
    }
}
