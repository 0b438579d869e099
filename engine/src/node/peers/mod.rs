//! Compute nodes, from the view of one: membership, suspicions, owners of shards, loads.
//!
//! * `members`, `nodes`: membership, and compute nodes of this process; `suspects`: nodes that may
//!   be dead; `lock_peers`: membership for locks on memory nodes;
//! * `owners`, `moves`, `load_counts`: owners of shards, orders to move shards, and loads.

pub(crate) mod load_counts;
pub(crate) mod lock_peers;
pub(crate) mod members;
pub(crate) mod moves;
pub(crate) mod nodes;
pub(crate) mod owners;
pub(crate) mod suspects;
