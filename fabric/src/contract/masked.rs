//! Masked atomics on one word: their effect on NICs, as pure functions.
//!
//! Masks divide a word into fields: a masked compare-and-swap compares some fields and replaces
//! others, and a masked fetch-and-add carries nothing from a field into the next. The definitions
//! come from "Advanced Transport" in the MLNX OFED manual; ShiftLock §4 builds its lock word on
//! masked atomics.

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
    /// Expected value of the compared bits.
    pub compare: u64,
    /// Mask of the compared bits.
    pub compare_mask: u64,
    /// New values of the replaced bits.
    pub swap: u64,
    /// Mask of the replaced bits.
    pub swap_mask: u64,
}

impl MaskedSwap {
    /// Number of words of the encoded operands.
    pub(crate) const WORDS: usize = 4;

    /// Returns the word that replaces `old`, or `None` if a compared bit differs.
    #[inline]
    pub const fn applied_to(self, old: u64) -> Option<u64> {
        match (old ^ self.compare) & self.compare_mask {
            0 => Some(old & !self.swap_mask | self.swap & self.swap_mask),
            _ => None,
        }
    }

    /// Encodes the operands.
    pub(crate) const fn to_words(self) -> [u64; Self::WORDS] {
        [self.compare, self.compare_mask, self.swap, self.swap_mask]
    }

    /// Decodes operands from `words`.
    pub(crate) const fn of_words(words: [u64; Self::WORDS]) -> Self {
        let [compare, compare_mask, swap, swap_mask] = words;
        Self { compare, compare_mask, swap, swap_mask }
    }
}

/// Returns the sum of a masked fetch-and-add. A bit of `boundary` marks the highest bit of a field,
/// from which nothing is carried into the bit above.
///
/// ```
/// use lotus_fabric::masked::masked_sum;
///
/// // Two fields of 32 bits: the lower one wraps and leaves the upper one as it is.
/// assert_eq!(masked_sum(5 << 32 | 0xFFFF_FFFF, 1 << 32 | 1, 1 << 31), 6 << 32);
/// ```
#[inline]
pub const fn masked_sum(old: u64, addend: u64, boundary: u64) -> u64 {
    // With the highest bits cleared, no sum overflows its field.
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
