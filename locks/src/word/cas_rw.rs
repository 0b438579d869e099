//! A readers-writer lock in one word: writers take the lock by compare-and-swap, readers by
//! fetch-and-add. Known as "retry on fail" in DSLR §6.1, and as CASLock in DecLock §6.1.
//!
//! ```text
//! owner (24 bits) | resetting (1) | generation (7) | readers (32)
//! ```

use super::Head;

const READERS_BITS: u32 = 32;
const GENERATION_BITS: u32 = 7;
const RESETTING_SHIFT: u32 = READERS_BITS + GENERATION_BITS;
const OWNER_SHIFT: u32 = RESETTING_SHIFT + 1;
const GENERATION_MASK: u64 = ((1 << GENERATION_BITS) - 1) << READERS_BITS;

const _: () = assert!(OWNER_SHIFT + 24 == u64::BITS);

/// The word of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct CasRwWord(u64);

/// Outcome of an acquisition's atomic, decided by the word found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Acquired {
    /// The lock is held.
    Held,
    /// The reader is counted, and waits for the writer to leave.
    Behind,
    /// The word is unchanged: another client holds the lock, or the generation is not the expected
    /// one.
    Refused,
    /// The lock is being reset. The reset erases the acquisition's addition; the client does not
    /// take the addition back.
    Resetting,
}

impl CasRwWord {
    /// Addend of a reader's fetch-and-add.
    pub const READER: u64 = 1;
    /// Addend that marks the lock as being reset, if the mark is clear.
    pub const RESETTING: u64 = 1 << RESETTING_SHIFT;

    /// Fields used by a reset.
    pub const HEAD: Head = Head {
        resetting: Self::RESETTING,
        generation_shift: READERS_BITS,
        generation_bits: GENERATION_BITS,
        is_count: false,
    };

    /// Wraps a word as read from memory.
    pub const fn of(word: u64) -> Self {
        Self(word)
    }

    /// Returns the word of a free lock in a generation.
    pub const fn free(generation: u8) -> Self {
        Self((generation as u64) << READERS_BITS & GENERATION_MASK)
    }

    /// Returns the word of a lock held by the writer `owner`, in a generation. The writer's release
    /// subtracts [`Self::owned`].
    pub const fn written(generation: u8, owner: u32) -> Self {
        Self(Self::free(generation).0 | Self::owned(owner))
    }

    /// Returns the part of the word that names a writer.
    pub const fn owned(owner: u32) -> u64 {
        (owner as u64) << OWNER_SHIFT
    }

    /// The word.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Number of the writer; 0 without a writer.
    pub const fn owner(self) -> u32 {
        (self.0 >> OWNER_SHIFT) as u32
    }

    /// Returns whether the lock is being reset. The mark takes precedence over the rest of the
    /// word.
    pub const fn is_resetting(self) -> bool {
        Self::HEAD.is_resetting(self.0)
    }

    /// Number of resets, modulo 128.
    pub const fn generation(self) -> u8 {
        Self::HEAD.generation(self.0) as u8
    }

    /// Returns whether the lock has neither holders nor waiters, and is not being reset.
    pub const fn is_free(self) -> bool {
        self.owner() == 0 && self.readers() == 0 && !self.is_resetting()
    }

    /// Number of counted readers.
    pub const fn readers(self) -> u32 {
        self.0 as u32
    }

    /// Returns the word that ends a reset: the free lock of the next generation.
    pub const fn after_reset(self) -> Self {
        Self(Self::HEAD.after_reset(self.0))
    }

    /// Returns the outcome of a reader's fetch-and-add that has found this word.
    pub const fn to_reader(self) -> Acquired {
        match (self.is_resetting(), self.owner()) {
            (true, _) => Acquired::Resetting,
            (false, 0) => Acquired::Held,
            (false, _) => Acquired::Behind,
        }
    }

    /// Returns the outcome of a writer's compare-and-swap from `expected` that has found this word.
    pub const fn to_writer(self, expected: Self) -> Acquired {
        match (self.is_resetting(), self.0 == expected.0) {
            (true, _) => Acquired::Resetting,
            (false, true) => Acquired::Held,
            (false, false) => Acquired::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_are_apart(generation in 0..128_u8, owner in 0..1_u32 << 24, readers: u32) {
            let written = CasRwWord::written(generation, owner);
            let word = CasRwWord::of(written.word() + u64::from(readers) * CasRwWord::READER);
            prop_assert_eq!(word.owner(), owner);
            prop_assert_eq!(word.generation(), generation);
            prop_assert_eq!(word.readers(), readers);
            prop_assert!(!word.is_resetting());
            let marked = CasRwWord::of(word.word() + CasRwWord::RESETTING);
            prop_assert!(marked.is_resetting());
            prop_assert_eq!(marked.to_reader(), Acquired::Resetting);
            prop_assert_eq!(marked.to_writer(marked), Acquired::Resetting);
            prop_assert_eq!(marked.owner(), owner);
            prop_assert_eq!(marked.after_reset(), CasRwWord::free((generation + 1) % 128));
            prop_assert_eq!(CasRwWord::of(word.word() - CasRwWord::owned(owner)).owner(), 0);
        }
    }

    #[test]
    fn a_free_lock_is_taken_and_a_held_one_is_not() {
        let free = CasRwWord::of(0);
        assert_eq!(free, CasRwWord::free(0));
        assert_eq!(free.to_reader(), Acquired::Held);
        assert_eq!(free.to_writer(free), Acquired::Held);
        assert_eq!(free.to_writer(CasRwWord::free(1)), Acquired::Refused);
        let written = CasRwWord::written(0, 3);
        assert_eq!(written.to_reader(), Acquired::Behind);
        assert_eq!(written.to_writer(free), Acquired::Refused);
    }
}
