//! Checks of invariants: the audit of a cluster at rest, and inspection while transactions run.
//!
//! Imports from [`crate::cluster`] and below. Changes no data; after the loss of a node, the audit
//! takes and releases locks on memory nodes, so that locks of the lost node are reset.

pub mod audit;
pub mod inspect;
mod locks;
pub(crate) mod trees;
