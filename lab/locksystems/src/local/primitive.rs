//! The table's mutex: `std`'s, or `loom`'s under `--cfg lotus_loom`, so that the model checker
//! explores the production code.

#[cfg(lotus_loom)]
pub(super) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(lotus_loom))]
pub(super) use std::sync::{Mutex, MutexGuard};
