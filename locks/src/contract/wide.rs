//! Verbs on locks of 16 bytes.

use lotus_fabric::wide::WideSwap;

/// A verb that changes both words of a lock in one step ([`super::LockSystem::WIDE`]). The first
/// word has the low bits of the 128-bit value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WideVerb {
    /// Fetch-and-add, field by field.
    Add {
        /// The added value.
        addend: u128,
        /// The highest bit of each field, from which nothing is carried.
        boundary: u128,
    },
    /// Compare-and-swap of some bits.
    Swap(WideSwap),
}
