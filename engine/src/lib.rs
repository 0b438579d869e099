//! Lotus: ACID transactions over disaggregated memory.
//!
//! # What it is
//! The transaction protocol of LOTUS (§5) with the hazards it leaves open closed, the coordinators
//! that carry it out, and the public interface: a [`Cluster`] to start, tables to create and load,
//! and [`Transaction`]s to run.
//!
//! # What it is not
//! Verbs and messages are in `lotus_fabric`, bytes and visibility in `lotus_mvcc`, locks in
//! `lotus_locktable`, placement and routing in `lotus_router`, log entries in `lotus_recovery`.
//! This crate decides in which order they are used.
//!
//! # Where to look
//! * [`Cluster`], [`ClusterBuilder`]: starting, tables, submitting work.
//! * [`Session`], [`Transaction`]: the interface of a job on a coordinator.
//! * [`path`]: finding rows by something other than their primary key.
//! * `coordinator`, `slot`: threads and coroutines; `read`, `commit`: the two phases.
//! * `version_tables`: rows' version tables that a node may use without asking a memory node.
//! * [`audit`]: invariants that hold when nothing runs.

#![forbid(unsafe_code)]

mod absent;
pub mod audit;
mod balance;
mod builder;
mod cache_counters;
mod capacity;
mod catalogue;
mod cluster;
mod commit;
mod config;
mod configuration;
mod control;
mod coordinator;
mod council;
mod error;
mod figures;
mod filling;
#[doc(hidden)]
pub mod fuzzing;
mod grace;
mod hand_over;
mod horizon;
pub mod inspect;
mod lending;
mod load;
mod loaded;
#[cfg(feature = "may")]
pub mod may;
mod members;
mod memory;
mod nodes;
mod older;
mod once;
mod oracle;
mod orders;
mod ownership;
mod part;
pub mod path;
mod plan;
mod purge;
mod read;
mod recover;
mod rejoin;
mod reserve;
mod returning;
mod row_counts;
mod rows;
mod session;
mod shards;
mod shared;
mod silent;
mod slot;
mod slots;
mod snapshot;
mod submit;
mod suspects;
mod timestamps;
mod trim;
mod txn;
mod upkeep;
mod version_tables;
mod watch;

pub use builder::ClusterBuilder;
pub use cache_counters::{CacheCounters, Hits};
pub use capacity::{GroupMemory, MemoryFigures, NodeMemory, TableMemory};
pub use cluster::{Cluster, Seat};
pub use config::{
    Config, LockKind, ReadRule, Retention, RoutingPolicy, TimestampKind, VisibleOrder,
};
pub use error::{ClusterError, TxnError};
pub use figures::{CoordinatorFigures, NodeFigures, ShardOwner};
pub use hand_over::{MoveCounters, MoveError, Moved};
pub use load::RowSource;
pub use loaded::{Data, LoadWatch};
pub use lotus_fabric::counters::VerbCounters;
pub use lotus_fabric::env::Nanos;
pub use lotus_fabric::ids::{ShardId, TableId, TxnId};
pub use lotus_fabric::machines::{Machines, Threads};
pub use lotus_fabric::trace::Trace;
pub use lotus_mvcc::{CriticalField, PrimaryKey, TableSpec, Timestamp};
pub use lotus_router::{Authority, Intent, ShardEpoch};
pub use part::Wait;
pub use row_counts::TableRows;
pub use session::{Isolation, Session, SessionView};
pub use shards::{Balancing, Moving, ShardStatus};
pub use silent::{MemoryReturn, MemoryStanding, MemoryStatus};
pub use snapshot::{
    Copying, SnapshotError, SnapshotHead, SnapshotInfo, SnapshotLabel, SnapshotVisitor,
    read_snapshot, read_snapshot_head,
};
pub use submit::Submitted;
pub use txn::{Item, Receipt, Transaction};
