//! The synchronisation that the table is built on: `std`'s, or `loom`'s under `--cfg lotus_loom`.
//!
//! Nothing else in the crate names either, so what the model checker explores is what runs.

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

/// The table's words: a mapping that begins a page, backed by huge pages where there are any (a
/// random access to a large table costs more in address translation than in memory otherwise) and
/// only as it is used.
#[cfg(not(lotus_loom))]
pub(crate) type Words = lotus_fabric::region::Memory;
#[cfg(lotus_loom)]
pub(crate) type Words = Vec<AtomicU64>;

/// At least `count` words of zero, or `None` if the machine does not have the memory.
#[cfg(not(lotus_loom))]
pub(crate) fn zeroed_words(count: usize) -> Option<Words> {
    Words::anonymous(count * size_of::<u64>()).ok()
}

/// `count` words of zero.
#[cfg(lotus_loom)]
pub(crate) fn zeroed_words(count: usize) -> Option<Words> {
    Some((0..count).map(|_| AtomicU64::new(0)).collect())
}
