//! Caches of a compute node: the rules of the version table cache, and inner nodes of trees.
//!
//! * `version_tables`: cached CVTs; `inner_nodes`: inner nodes of ordered tables.

pub(crate) mod inner_nodes;
pub(crate) mod version_tables;
