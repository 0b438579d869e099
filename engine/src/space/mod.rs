//! Free memory of the pool: slabs, slots within them, and slots lent between nodes (H12).
//!
//! Imports from [`crate::node`] and below. [`crate::txn`] decides which writes need a slot.

pub(crate) mod lending;
pub(crate) mod slabs;
pub(crate) mod slots;
