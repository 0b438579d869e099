//! Verbs on locks of 16 bytes.

use lotus_fabric::wide::WideSwap;

/// A verb that changes both words of a lock in one step ([`super::LockSystem::WIDE`]). Of both
/// together, the first word has the low bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WideVerb {
    /// Fetch-and-add, field by field.
    Add {
        /// What is added.
        addend: u128,
        /// The highest bit of each field, from which nothing is carried.
        boundary: u128,
    },
    /// Compare-and-swap of some bits.
    Swap(WideSwap),
}
