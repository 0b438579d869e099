//! Head fields common to the words of every lock with resets.

/// Head fields used by a reset, in one lock system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Addend that sets the bit *resetting*, if the bit is clear.
    pub resetting: u64,
    /// Lowest bit of the generation.
    pub generation_shift: u32,
    /// Bits of the generation.
    pub generation_bits: u32,
    /// Whether the generation field also counts other events, during a reset and at any other time.
    /// A reset increments the field, but the field does not name the reset: every generation reads
    /// as 0.
    pub is_count: bool,
}

impl Head {
    /// Returns whether the lock is being reset. The mark takes precedence over the rest of the
    /// word.
    pub const fn is_resetting(self, word: u64) -> bool {
        word & self.resetting != 0
    }

    /// Number of resets, modulo the number of generations.
    pub const fn generation(self, word: u64) -> u64 {
        if self.is_count { 0 } else { self.field(word) }
    }

    const fn field(self, word: u64) -> u64 {
        word >> self.generation_shift & ((1 << self.generation_bits) - 1)
    }

    /// Returns the word of the free lock in the next generation.
    pub const fn after_reset(self, word: u64) -> u64 {
        let next = (self.field(word) + 1) & ((1 << self.generation_bits) - 1);
        next << self.generation_shift
    }
}

#[cfg(test)]
mod tests {
    use crate::word::CasRwWord;

    #[test]
    fn a_head_is_read_as_its_word_is() {
        let head = CasRwWord::HEAD;
        for generation in [0, 5, 127] {
            let marked = CasRwWord::written(generation, 9).word() + CasRwWord::RESETTING;
            assert!(head.is_resetting(marked));
            assert!(!head.is_resetting(marked - CasRwWord::RESETTING));
            assert_eq!(head.generation(marked), u64::from(generation));
            let after = CasRwWord::free((generation + 1) % 128).word();
            assert_eq!(head.after_reset(marked), after);
        }
    }
}
