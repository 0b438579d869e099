//! Running: time, randomness and threads, the executor of a coordinator, and machines as a trait.
//!
//! Imports from `contract` only. It posts no verbs: an executor polls drivers, of which a lane is
//! one. Machines that exist are among the `backends`.

pub mod env;
pub mod exec;
pub mod machines;
pub mod utilisation;
