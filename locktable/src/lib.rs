//! Locks, kept by compute nodes so that memory nodes never see them (LOTUS §2.3, §4.1).
//!
//! # What it is
//! Every compute node owns the locks of some shards. It keeps them in one [`LockTable`], a
//! fixed-size hash table shared by its coordinators. Local transactions call the table directly;
//! remote ones send datagrams ([`wire`]) that the same-numbered coordinator of the owner answers
//! with its [`LockServer`]. The asking side keeps in an [`EndTracker`] the ends that the owner has
//! not acknowledged yet.
//!
//! A request that meets a conflict is refused, or waits in the owner's table in a queue if waiting
//! cannot end in a deadlock ([`LockWait`], `queue`). A full bucket or a stale message is an answer,
//! and the transaction decides how to react.
//!
//! # What it is not
//! It sends nothing, reads no clock and knows no records. It asks the [`LockHost`] for the owner of
//! a shard; deciding, moving and draining shards belong to the router and the engine.
//!
//! # Where to look
//! * [`LockName`], [`LockRequest`]: what can be locked, and how a name is hashed.
//! * `slot`: the pure rules of one 8-byte slot, as a table of cases.
//! * `queue`: the pure rules of waiting for a lock.
//! * [`LockTable`]: slots, holders, and the mutexes that keep the two together.
//! * [`wire`], [`LockServer`], [`EndTracker`]: the protocol, as bytes and two state machines.
//! * `suspicion`: the point at which waiting for an unresponsive owner stops.
//! * `primitive`: `std` or `loom` synchronisation, the latter under `--cfg lotus_loom`.

#![forbid(unsafe_code)]

mod ends;
mod lotus;
mod name;
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
pub use lotus::{LOCK_SERVICE, LotusLocks};
pub use name::{LockMode, LockName, LockRequest, LockSpace};
pub use queue::{MAX_WAITING_PER_STRIPE, WaitOrder, WaitOutcome, Waiter, may_wait};
pub use server::{Arrival, LockHost, LockServer};
pub use service::{
    HeldLocks, LockError, LockRoutes, LockService, LockWait, NO_OWNER, Suspicion, TakenLock,
};
pub use slot::{Grant, MAX_HOLDERS_PER_SLOT, Refusal};
pub use stripe::Holder;
pub use table::{LockOrWait, LockTable, LockTableConfig, LockTableError, Release, Watch};
