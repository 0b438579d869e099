//! Location of data and locks: key → shard → owner compute node and replica memory nodes.
//!
//! # What it is
//! Five small, independent pieces:
//!
//! * [`placement`]: which memory nodes hold a shard's replicas, primary first. Fixed.
//! * [`shard_map`]: which compute node grants a shard's locks, and since which epoch: one node's
//!   copy of words in the memory pool.
//! * [`routing`]: on which compute node a transaction runs. Follows the shard map.
//! * [`balance`]: which shards an overloaded node gives away.
//! * [`authority`]: the cluster's agreed configuration, as small versioned values; in this process,
//!   with the feature `remote` in another one, or with `etcd` in an etcd cluster. [`conformance`]
//!   checks any other implementation.
//!
//! The first three are consulted for every key of every transaction, so they are plain tables in
//! memory: no lock, no allocation, no I/O. The authority is the control path.
//!
//! # What it is not
//! It moves nothing. Draining a shard's locks, aborting transactions and copying records are
//! sequences of steps that the engine runs; this crate only says what is where.

#![forbid(unsafe_code)]

pub mod authority;
pub mod balance;
pub mod conformance;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "etcd", test))]
mod lineage;
pub mod placement;
#[cfg(feature = "remote")]
pub mod remote;
pub mod routing;
pub mod shard_map;
#[doc(hidden)]
pub mod testing;
mod topology;

pub use authority::{Authority, AuthorityError, EmbeddedAuthority, allocate_incarnation};
pub use placement::{GroupId, Placement, Replica, ReplicaSet};
pub use routing::{Intent, Policy, Router};
pub use shard_map::{NOBODY, Owner, ShardEpoch, ShardMap};
pub use topology::{MAX_COMPUTE_NODES, MAX_MEMORY_NODES, MAX_REPLICAS, Role, TopologyError};
