//! Synchronisation primitives of the table: `std`'s, or `loom`'s under `--cfg lotus_loom`.
//!
//! The rest of the crate uses only these names, so the model checker explores the production code.

#[cfg(lotus_loom)]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(lotus_loom))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

/// The table's words: a page-aligned mapping, populated on use and backed by huge pages if
/// available (otherwise a random access to a large table costs more for address translation than
/// for memory).
#[cfg(not(lotus_loom))]
pub(crate) type Words = lotus_fabric::region::Memory;
#[cfg(lotus_loom)]
pub(crate) type Words = Vec<AtomicU64>;

/// Allocates at least `count` words of zero; `None` if the machine does not have the memory.
#[cfg(not(lotus_loom))]
pub(crate) fn zeroed_words(count: usize) -> Option<Words> {
    Words::anonymous(count * size_of::<u64>()).ok()
}

/// Allocates `count` words of zero.
#[cfg(lotus_loom)]
pub(crate) fn zeroed_words(count: usize) -> Option<Words> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}
