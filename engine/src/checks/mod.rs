//! Checks of invariants: the audit of a cluster at rest, and inspection while transactions run.
//!
//! Imports from [`crate::cluster`] and below. Changes nothing.

pub mod audit;
pub mod inspect;
mod locks;
pub(crate) mod trees;
