//! Fields that the heads of all locks have that are reset.

/// Fields of the head that a reset uses, in one lock system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Summand that sets the bit *resetting*, if it is clear.
    pub resetting: u64,
    /// Lowest bit of the generation.
    pub generation_shift: u32,
    /// Bits of the generation.
    pub generation_bits: u32,
    /// Whether that field counts other things too, while the lock is being reset and at any other
    /// time. It is raised by a reset, and names none: all generations are called 0.
    pub is_count: bool,
}

impl Head {
    /// Whether the lock is being reset. This precedes all else that the word says.
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

    /// The free lock of the next generation.
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
