//! What a dead coordinator leaves behind, and what its survivors make of it.
//!
//! # What it is
//! * [`log`]: the bytes of a write-log entry and where each coroutine slot keeps its own.
//! * [`resolve`]: the pure decision about one in-doubt transaction: forward, back, or nothing to
//!   do, and what that means for every cell it names.
//!
//! # What it is not
//! It reads and writes no remote memory. The engine fences, reads logs and cells, asks
//! [`resolve`], and carries the answer out (LOTUS §6, DESIGN §8).

#![forbid(unsafe_code)]

pub mod log;
pub mod resolve;

pub use log::{
    DecisionWord, GeometryError, LogEntry, LogError, LogGeometry, LoggedWrite, WriteKind,
};
pub use resolve::{CellSeen, Contradiction, Decision, Repair, decide, repair, unresolved};
