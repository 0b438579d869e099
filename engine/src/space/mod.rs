//! Free memory of the pool: slabs, slots within them, slots lent between nodes (H12), and memory of
//! dropped tables.
//!
//! Imports from [`crate::node`] and below. Which write needs a slot is decided in [`crate::txn`].

pub(crate) mod clearing;
pub(crate) mod lending;
pub(crate) mod slabs;
pub(crate) mod slots;
