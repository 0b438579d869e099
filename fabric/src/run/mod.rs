//! Running: time, randomness and threads, the executor of a coordinator, and machines as a trait.
//!
//! Imports from `contract` only, and posts no verbs: an executor polls drivers, and a lane is a
//! driver. Implementations of machines are in `backends`.

pub mod env;
pub mod exec;
pub mod machines;
pub mod utilisation;
