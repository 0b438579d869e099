//! The word of an MCS lock: the tail of its queue.
//!
//! ```text
//! tail (24 bits) | resetting (1) | generation (7) | number of the tail's request (32)
//! ```
//!
//! The tail is a [`Waiter`]'s number; 0 if nobody holds the lock. Waiters are names that are used
//! again, so the word has the low half of the request's number beside it: who is next to wait can
//! say which use of the name it has come after.

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
    /// Summand that marks the lock as being reset, if it is not marked.
    pub const RESETTING: u64 = 1 << RESETTING_SHIFT;

    /// Bits that name the tail: those that an enqueue replaces.
    pub const TAIL: u64 = u64::MAX << TAIL_SHIFT | u32::MAX as u64;

    /// Fields that a reset uses.
    pub const HEAD: Head = Head {
        resetting: Self::RESETTING,
        generation_shift: NUMBER_BITS,
        generation_bits: GENERATION_BITS,
        is_count: false,
    };

    /// A word as it was read.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The word with this tail: a waiter's number, and the low half of its request's.
    #[must_use]
    pub const fn with_tail(self, who: u32, number: u32) -> Self {
        Self(self.0 & !Self::TAIL | (who as u64) << TAIL_SHIFT | number as u64)
    }

    /// The word without a tail: the lock is free.
    #[must_use]
    pub const fn without_tail(self) -> Self {
        Self(self.0 & !Self::TAIL)
    }

    /// Number of the waiter that is the tail; 0 if nobody holds the lock.
    pub const fn tail(self) -> u32 {
        (self.0 >> TAIL_SHIFT) as u32
    }

    /// The low half of the number of the tail's request.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// Whether the lock is being reset. This precedes all else that the word says.
    pub const fn is_resetting(self) -> bool {
        Self::HEAD.is_resetting(self.0)
    }

    /// Whether the lock is free.
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
