//! Many runs: generated and named scenarios, campaigns of seeds, shrinking, broken rules, the crash
//! matrix.
//!
//! Imports from [`crate::drive`] and below.

pub mod campaign;
#[cfg(feature = "fault-points")]
pub mod matrix;
pub mod named;
#[cfg(feature = "sabotage")]
pub mod sabotage;
pub mod shrink;
pub mod swarm;
