//! Locks, kept by compute nodes; memory nodes are not involved (LOTUS §2.3, §4.1).
//!
//! # What it is
//! Every compute node owns the locks of certain shards, in a [`LockTable`]: a fixed-size hash table
//! shared by the node's coordinators. Local transactions call the table directly; remote
//! transactions send datagrams ([`wire`]), which the [`LockServer`] of the same-numbered
//! coordinator of the owner answers. The asking side keeps unacknowledged ends in an
//! [`EndTracker`].
//!
//! A request that meets a conflict is refused, or waits in a queue of the owner's table if waiting
//! cannot lead to a deadlock ([`LockWait`], `queue`). A full bucket or a stale message is reported
//! as an answer, and the transaction decides how to react.
//!
//! # What it is not
//! The lock table and the server send no messages, read no clock and know no records. The
//! [`LockHost`] knows the owner of a shard; assigning, moving and draining shards belong to the
//! router and the engine.
//!
//! # Where to look
//! * [`LockKey`], [`LockRequest`]: lock names and their hash.
//! * `slot`: the pure rules of one 8-byte slot, as a table of cases.
//! * `queue`: the pure rules of waiting for a lock.
//! * [`LockTable`]: slots, holders, and the mutexes that keep them consistent.
//! * [`wire`], [`LockServer`], [`EndTracker`]: the protocol, as bytes and two state machines.
//! * `suspicion`: the point at which waiting for an unresponsive owner stops.
//! * `primitive`: `std` or `loom` synchronisation, the latter under `--cfg lotus_loom`.

#![forbid(unsafe_code)]

mod ends;
mod lock_key;
mod lotus;
mod primitive;
mod queue;
mod server;
mod service;
mod slot;
mod stripe;
mod suspicion;
mod table;
pub mod wire;

pub use ends::EndTracker;
pub use lock_key::{LockKey, LockMode, LockRequest, LockSpace};
pub use lotus::{LOCK_SERVICE, LotusLocks};
pub use queue::{MAX_WAITING_PER_STRIPE, WaitOrder, WaitOutcome, Waiter, may_wait};
pub use server::{Arrival, LockHost, LockServer};
pub use service::{
    HeldLocks, LockError, LockRoutes, LockService, LockWait, NO_OWNER, Suspicion, TakenLock,
};
pub use slot::{Grant, MAX_HOLDERS_PER_SLOT, Refusal};
pub use stripe::Holder;
pub use table::{LockOrWait, LockTable, LockTableConfig, LockTableError, Release, Watch};
