//! Memory nodes that are lost, return, and are filled (H23); and memory of dropped tables, which is
//! given back.
//!
//! Imports from [`crate::shards`] and below. Which nodes are lost is decided in
//! [`crate::membership`].

pub(crate) mod changes;
pub(crate) mod clearing;
pub(crate) mod fence;
pub(crate) mod filling;
pub(crate) mod returning;
