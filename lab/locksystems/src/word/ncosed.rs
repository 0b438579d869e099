//! The word of an N-CoSED lock: the tail of a queue of writers, and a number of readers.
//!
//! ```text
//! tail (32 bits) | readers (32)
//! ```
//!
//! The tail is a [`Waiter`](lotus_locks::Waiter)'s number; 0 if no writer holds the lock or waits.
//! Without a tail, the counted readers hold the lock. With a tail, the counted readers have arrived
//! after the tail's writer, and wait for the writer.

const READERS_BITS: u32 = 32;

/// The word of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NcosedWord(u64);

impl NcosedWord {
    /// Addend of a reader's request.
    pub const READER: u64 = 1;

    /// Wraps a word as read from memory.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// Returns the word with a tail, 0 for no writer, and a number of readers.
    pub const fn new(tail: u32, readers: u32) -> Self {
        Self((tail as u64) << READERS_BITS | readers as u64)
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Waiter number of the tail; 0 without a writer.
    pub const fn tail(self) -> u32 {
        (self.0 >> READERS_BITS) as u32
    }

    /// Number of readers.
    pub const fn readers(self) -> u32 {
        self.0 as u32
    }

    /// Returns whether the lock has neither holders nor waiters.
    pub const fn is_free(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_apart(tail in 0..1_u32 << 24, readers in 0..u32::MAX) {
            let word = NcosedWord::new(tail, readers);
            prop_assert_eq!((word.tail(), word.readers()), (tail, readers));
            prop_assert_eq!(word.is_free(), tail == 0 && readers == 0);
            let more = NcosedWord::of(word.word() + NcosedWord::READER);
            prop_assert_eq!(more, NcosedWord::new(tail, readers + 1));
        }
    }
}
