//! The mutex of the table: `std`'s, or `loom`'s under `--cfg lotus_loom`, so that the model checker
//! explores the code that runs.

#[cfg(lotus_loom)]
pub(super) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(lotus_loom))]
pub(super) use std::sync::{Mutex, MutexGuard};
