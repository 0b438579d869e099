//! Atomics on 16 bytes: their effect on NICs, as pure functions.
//!
//! Both atomics work on two words at an address that is a multiple of sixteen; the first word has
//! the low bits. Both take masks, as the atomics on one word do ([`crate::masked`]). They are the
//! extended atomics of ConnectX; a lock with its queue or its timestamps fits into 16 bytes.

use crate::contract::region::WORD_BYTES;

/// Bytes that a wide atomic works on; its address is a multiple of this number.
pub const WIDE_BYTES: usize = 16;
/// Number of words that a wide atomic works on.
pub(crate) const WIDE_WORDS: usize = WIDE_BYTES / WORD_BYTES;
/// Number of words of the encoded operands of a fetch-and-add.
pub(crate) const SUMMANDS_WORDS: usize = 2 * WIDE_WORDS;

/// Operands of a compare-and-swap of 16 bytes.
///
/// ```
/// use lotus_fabric::wide::WideSwap;
///
/// // If the low word is zero, the high one becomes 7.
/// let low = u128::from(u64::MAX);
/// let swap = WideSwap { compare: 0, compare_mask: low, swap: 7 << 64, swap_mask: !low };
/// assert_eq!(swap.applied_to(3 << 64), Some(7 << 64));
/// assert_eq!(swap.applied_to(3 << 64 | 1), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WideSwap {
    /// Expected value of the compared bits.
    pub compare: u128,
    /// Mask of the compared bits.
    pub compare_mask: u128,
    /// New values of the replaced bits.
    pub swap: u128,
    /// Mask of the replaced bits.
    pub swap_mask: u128,
}

impl WideSwap {
    /// Number of words of the encoded operands.
    pub(crate) const WORDS: usize = 4 * WIDE_WORDS;

    /// Returns the 16 bytes that replace `old`, or `None` if a compared bit differs.
    #[inline]
    pub const fn applied_to(self, old: u128) -> Option<u128> {
        match (old ^ self.compare) & self.compare_mask {
            0 => Some(old & !self.swap_mask | self.swap & self.swap_mask),
            _ => None,
        }
    }

    /// Encodes the operands.
    pub(crate) const fn to_words(self) -> [u64; Self::WORDS] {
        let [a, b] = words_of(self.compare);
        let [c, d] = words_of(self.compare_mask);
        let [e, f] = words_of(self.swap);
        let [g, h] = words_of(self.swap_mask);
        [a, b, c, d, e, f, g, h]
    }

    /// Decodes operands from `words`.
    pub(crate) const fn of_words(words: [u64; Self::WORDS]) -> Self {
        let [a, b, c, d, e, f, g, h] = words;
        Self {
            compare: value_of([a, b]),
            compare_mask: value_of([c, d]),
            swap: value_of([e, f]),
            swap_mask: value_of([g, h]),
        }
    }
}

/// Returns the sum of a fetch-and-add of 16 bytes. A bit of `boundary` marks the highest bit of a
/// field, from which nothing is carried into the bit above.
///
/// ```
/// use lotus_fabric::wide::wide_sum;
///
/// // Two words: with a boundary between them the lower one wraps and leaves the upper one alone.
/// let (one, low) = (1 << 64 | 1, u64::MAX.into());
/// assert_eq!(wide_sum(low, one, 1 << 63), 1 << 64);
/// assert_eq!(wide_sum(low, one, 0), 2 << 64);
/// ```
#[inline]
pub const fn wide_sum(old: u128, addend: u128, boundary: u128) -> u128 {
    // With the highest bits cleared, no sum overflows its field.
    (old & !boundary).wrapping_add(addend & !boundary) ^ (old ^ addend) & boundary
}

/// Returns the value of two words of memory, low word first.
#[inline]
pub const fn value_of([low, high]: [u64; 2]) -> u128 {
    (high as u128) << u64::BITS | low as u128
}

/// Returns a value as two words of memory, low word first.
#[inline]
pub const fn words_of(value: u128) -> [u64; 2] {
    [value as u64, (value >> u64::BITS) as u64]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::masked::{MaskedSwap, masked_sum};
    use proptest::prelude::*;

    /// The definition, bit by bit.
    fn sum_by_bits(old: u128, addend: u128, boundary: u128) -> u128 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..u128::BITS {
            let ones = (old >> bit & 1) + (addend >> bit & 1) + carry;
            sum |= (ones & 1) << bit;
            carry = if boundary >> bit & 1 == 1 { 0 } else { ones >> 1 };
        }
        sum
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_definition(old: u128, addend: u128, boundary: u128) {
            prop_assert_eq!(wide_sum(old, addend, boundary), sum_by_bits(old, addend, boundary));
            prop_assert_eq!(wide_sum(old, addend, 0), old.wrapping_add(addend));
            prop_assert_eq!(wide_sum(old, addend, u128::MAX), old ^ addend);
        }

        #[test]
        fn a_boundary_between_the_words_makes_a_sum_of_each(
            old: [u64; 2], addend: [u64; 2], boundary: [u64; 2],
        ) {
            let split = value_of(boundary) | 1 << 63;
            let sum = wide_sum(value_of(old), value_of(addend), split);
            let each = [0, 1].map(|i| masked_sum(old[i], addend[i], boundary[i]));
            prop_assert_eq!(words_of(sum), each);
        }

        #[test]
        fn a_swap_changes_the_bits_of_its_mask_if_the_compared_ones_agree(
            old: u128, compare_mask: u128, swap: u128, swap_mask: u128, flipped: u128,
        ) {
            let operands = |compare| WideSwap { compare, compare_mask, swap, swap_mask };
            let new = operands(old ^ flipped & !compare_mask).applied_to(old);
            let new = new.expect("only bits that are not compared differ");
            prop_assert_eq!(new & swap_mask, swap & swap_mask);
            prop_assert_eq!(new & !swap_mask, old & !swap_mask);
            let differs = flipped & compare_mask != 0;
            prop_assert_eq!(operands(old ^ flipped).applied_to(old).is_none(), differs);
        }

        #[test]
        fn a_swap_of_one_word_is_that_of_a_word(
            old: [u64; 2], compare: u64, compare_mask: u64, swap: u64, swap_mask: u64,
        ) {
            let one = MaskedSwap { compare, compare_mask, swap, swap_mask };
            let shifted = |place: u32, word: u64| u128::from(word) << (64 * place);
            for place in [0, 1] {
                let wide = WideSwap {
                    compare: shifted(place, compare),
                    compare_mask: shifted(place, compare_mask),
                    swap: shifted(place, swap),
                    swap_mask: shifted(place, swap_mask),
                };
                let expected = one.applied_to(old[place as usize]).map(|new| {
                    let mut words = old;
                    words[place as usize] = new;
                    value_of(words)
                });
                prop_assert_eq!(wide.applied_to(value_of(old)), expected);
            }
        }

        #[test]
        fn words_are_bytes_in_ascending_order(value: u128, operands: [u128; 4]) {
            let bytes = words_of(value).map(u64::to_le_bytes).concat();
            prop_assert_eq!(&bytes[..], &value.to_le_bytes()[..]);
            prop_assert_eq!(value_of(words_of(value)), value);
            let [compare, compare_mask, swap, swap_mask] = operands;
            let same = WideSwap { compare, compare_mask, swap, swap_mask };
            prop_assert_eq!(WideSwap::of_words(same.to_words()), same);
            prop_assert_eq!(same.to_words()[..2].to_vec(), words_of(compare).to_vec());
        }
    }
}
