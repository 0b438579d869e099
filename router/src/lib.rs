//! Location of data and locks: key → shard → owner compute node and replica memory nodes.
//!
//! # What it is
//! Four small, independent pieces:
//!
//! * [`placement`]: which memory nodes hold a shard's replicas, primary first. Fixed.
//! * [`shard_map`]: the compute node that grants a shard's locks, and the epoch of ownership: a
//!   node's copy of words in the memory pool.
//! * [`routing`]: on which compute node a transaction runs. Follows the shard map.
//! * [`balance`]: which shards an overloaded node gives away.
//!
//! The first three are consulted for every key of every transaction, and are therefore plain tables
//! in memory: no lock, no allocation, no I/O.
//!
//! # What it is not
//! This crate moves nothing. Draining a shard's locks, aborting transactions and copying records
//! are sequences of steps that the engine runs; the crate only knows where data and locks are.

#![forbid(unsafe_code)]

pub mod balance;
pub mod placement;
pub mod routing;
pub mod shard_map;
mod topology;

pub use placement::{GroupId, Placement, Replica, ReplicaSet};
pub use routing::{Intent, Policy, Router};
pub use shard_map::{NOBODY, Owner, ShardEpoch, ShardMap};
pub use topology::{MAX_COMPUTE_NODES, MAX_MEMORY_NODES, MAX_REPLICAS, Role, TopologyError};
