//! Loss, return and filling of memory nodes (H23); and reclamation of the memory of dropped tables.
//!
//! Imports from [`crate::shards`] and below. [`crate::membership`] decides which nodes are lost.

pub(crate) mod changes;
pub(crate) mod clearing;
pub(crate) mod fence;
pub(crate) mod filling;
pub(crate) mod returning;
