//! Locks, kept by compute nodes so that memory nodes never see them (LOTUS §2.3, §4.1).
//!
//! # What it is
//! Every compute node owns the locks of some shards. It keeps them in one [`LockTable`], a
//! fixed-size hash table shared by its coordinators. Local transactions call the table directly;
//! remote ones send datagrams ([`wire`]) that the same-numbered coordinator of the owner answers
//! with its [`LockServer`]. The asking side keeps in an [`EndTracker`] the ends that the owner has
//! not acknowledged yet.
//!
//! Nothing here waits: a conflict, a full bucket or a stale message is an answer, and the
//! transaction decides how to react.
//!
//! # What it is not
//! It sends nothing, reads no clock and knows no records. It asks the [`LockHost`] for the owner of
//! a shard; deciding, moving and draining shards belong to the router and the engine.
//!
//! # Where to look
//! * [`LockName`], [`LockRequest`]: what can be locked, and how a name is hashed.
//! * `slot`: the pure rules of one 8-byte slot, as a table of cases.
//! * [`LockTable`]: slots, holders, and the mutexes that keep the two together.
//! * [`wire`], [`LockServer`], [`EndTracker`]: the protocol, as bytes and two state machines.
//! * `suspicion`: the point at which waiting for an unresponsive owner stops.
//! * `primitive`: `std` or `loom` synchronisation, the latter under `--cfg lotus_loom`.

#![forbid(unsafe_code)]

mod cas;
mod ends;
mod lotus;
mod name;
mod primitive;
mod server;
mod service;
mod slot;
mod stripe;
mod suspicion;
mod table;
pub mod wire;

pub use cas::{CasLocks, WordOf};
pub use ends::EndTracker;
pub use lotus::{LOCK_SERVICE, LotusLocks};
pub use name::{LockMode, LockName, LockRequest, LockSpace};
pub use server::{LockHost, LockServer};
pub use service::{HeldLocks, LockError, LockRoutes, LockService, NO_OWNER, Suspicion, TakenLock};
pub use slot::{Grant, MAX_HOLDERS_PER_SLOT, Refusal};
pub use stripe::Holder;
pub use table::{LockTable, LockTableConfig, LockTableError, Release, Watch};
