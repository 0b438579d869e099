//! Masked atomics on one word: the effect that NICs give them, as pure functions.
//!
//! A mask makes fields of a word: a compare-and-swap then looks at some of them and replaces
//! others, and a fetch-and-add carries nothing from one into the next. The definitions are those of
//! "Advanced Transport" in the MLNX OFED manual; ShiftLock §4 builds its lock word on them.

/// Operands of a masked compare-and-swap.
///
/// ```
/// use lotus_fabric::masked::MaskedSwap;
///
/// // If the low byte is zero, the high one becomes 7.
/// let swap = MaskedSwap { compare: 0, compare_mask: 0xFF, swap: 7 << 56, swap_mask: 0xFF << 56 };
/// assert_eq!(swap.applied_to(0x1234_0000), Some(7 << 56 | 0x1234_0000));
/// assert_eq!(swap.applied_to(0x1234_0001), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaskedSwap {
    /// Value that the compared bits must have.
    pub compare: u64,
    /// Bits that are compared.
    pub compare_mask: u64,
    /// Values of the bits that are replaced.
    pub swap: u64,
    /// Bits that are replaced.
    pub swap_mask: u64,
}

impl MaskedSwap {
    /// Number of words in which the operands travel.
    pub(crate) const WORDS: usize = 4;

    /// The word that takes the place of `old`; `None` if a compared bit differs.
    #[inline]
    pub const fn applied_to(self, old: u64) -> Option<u64> {
        match (old ^ self.compare) & self.compare_mask {
            0 => Some(old & !self.swap_mask | self.swap & self.swap_mask),
            _ => None,
        }
    }

    /// The operands as they travel.
    pub(crate) const fn to_words(self) -> [u64; Self::WORDS] {
        [self.compare, self.compare_mask, self.swap, self.swap_mask]
    }

    /// The operands that travel as `words`.
    pub(crate) const fn of_words(words: [u64; Self::WORDS]) -> Self {
        let [compare, compare_mask, swap, swap_mask] = words;
        Self { compare, compare_mask, swap, swap_mask }
    }
}

/// Sum of a masked fetch-and-add. Each bit of `boundary` is the highest one of a field, from which
/// nothing is carried into the bit above.
///
/// ```
/// use lotus_fabric::masked::masked_sum;
///
/// // Two fields of 32 bits: the lower one wraps and leaves the upper one as it is.
/// assert_eq!(masked_sum(5 << 32 | 0xFFFF_FFFF, 1 << 32 | 1, 1 << 31), 6 << 32);
/// ```
#[inline]
pub const fn masked_sum(old: u64, addend: u64, boundary: u64) -> u64 {
    // Without their highest bits no sum of two fields leaves its field.
    (old & !boundary).wrapping_add(addend & !boundary) ^ (old ^ addend) & boundary
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, bit by bit.
    fn sum_by_bits(old: u64, addend: u64, boundary: u64) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..u64::BITS {
            let ones = (old >> bit & 1) + (addend >> bit & 1) + carry;
            sum |= (ones & 1) << bit;
            carry = if boundary >> bit & 1 == 1 { 0 } else { ones >> 1 };
        }
        sum
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_definition(old: u64, addend: u64, boundary: u64) {
            prop_assert_eq!(masked_sum(old, addend, boundary), sum_by_bits(old, addend, boundary));
            prop_assert_eq!(masked_sum(old, addend, 0), old.wrapping_add(addend));
            prop_assert_eq!(masked_sum(old, addend, u64::MAX), old ^ addend);
        }

        #[test]
        fn a_swap_changes_the_bits_of_its_mask_if_the_compared_ones_agree(
            old: u64, compare_mask: u64, swap: u64, swap_mask: u64, flipped: u64,
        ) {
            let operands = |compare| MaskedSwap { compare, compare_mask, swap, swap_mask };
            let new = operands(old ^ flipped & !compare_mask).applied_to(old);
            let new = new.expect("only bits that are not compared differ");
            prop_assert_eq!(new & swap_mask, swap & swap_mask);
            prop_assert_eq!(new & !swap_mask, old & !swap_mask);
            let differs = flipped & compare_mask != 0;
            prop_assert_eq!(operands(old ^ flipped).applied_to(old).is_none(), differs);
            let same = operands(old);
            prop_assert_eq!(MaskedSwap::of_words(same.to_words()), same);
        }
    }
}
