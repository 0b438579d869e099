//! Lotus: ACID transactions over disaggregated memory.
//!
//! # What it is
//! The transaction protocol of LOTUS (§5), with the hazards closed that the paper leaves open; the
//! coordinators that carry out the protocol; and the public interface: a [`Cluster`] to start,
//! tables to create and load, and [`Transaction`]s to run.
//!
//! # What it is not
//! Verbs and messages are in `lotus_fabric`, bytes and visibility in `lotus_mvcc`, locks in
//! `lotus_locktable`, placement and routing in `lotus_router`, log entries in `lotus_recovery`.
//! This crate decides the order in which the other crates are used.
//!
//! # Where to look
//! * [`Cluster`], [`ClusterBuilder`]: starting, tables, submitting work.
//! * [`Cluster::run`]: the contract of a transaction's body; [`Abort`]: an error type for bodies.
//! * [`Session`], [`Transaction`]: the interface of a job on a coordinator, which drives
//!   transactions by hand.
//! * [`ordered`]: tables that keep their keys in order, and ranges.
//! * [`path`]: secondary access paths: finding rows without their primary key.
//! * [`Cluster::scan`], [`Session::scan`]: all rows of a table at one snapshot.
//! * [`audit`]: invariants of a cluster at rest.
//!
//! # Floors
//! Each folder imports only from folders below:
//!
//! | folder | holds |
//! |---|---|
//! | `snapshot` | snapshot files: writing, format, restoring |
//! | `scan` | scans of tables at a snapshot |
//! | `checks` | the audit, and inspection while transactions run |
//! | `cluster` | starting processes and coordinators, the catalogue, loading, figures |
//! | `upkeep` | purges of deleted rows, trims of old versions |
//! | `membership` | leases, expulsion, recovery, the oracle's succession |
//! | `memory_nodes` | loss and return of memory nodes, filling; memory of dropped tables |
//! | `shards` | owners' words, hand-over, balancing |
//! | `txn` | a transaction: its data, execution and commit |
//! | `space` | slabs and slots, and lending them between nodes |
//! | `node` | a compute node and its coordinators: their state, verbs that are repeated |
//! | `api` | configuration, errors, public data types |

#![forbid(unsafe_code)]

mod api;
mod checks;
mod cluster;
#[doc(hidden)]
pub mod fuzzing;
mod membership;
mod memory_nodes;
mod node;
mod scan;
mod shards;
mod snapshot;
mod space;
mod txn;
mod upkeep;

pub use api::abort::{Abort, Never};
pub use api::cache_counters::{CacheCounters, Hits};
pub use api::config::{
    Addresses, Config, LockKind, LockWait, ReadRule, Retention, RoutingPolicy, TimestampKind,
    VisibleOrder,
};
pub use api::coordinator_id::{CoordinatorId, HeldUp};
pub use api::error::{ClusterError, TxnError};
pub use api::isolation::Isolation;
pub use api::moves::{MoveCounters, MoveError, Moved};
pub use api::options::TxnOptions;
pub use api::row_name::RowName;
pub use checks::{audit, inspect};
pub use cluster::builder::ClusterBuilder;
pub use cluster::capacity::{GroupMemory, MemoryFigures, NodeMemory, TableMemory};
pub use cluster::figures::{CoordinatorFigures, NodeFigures, ShardOwner};
pub use cluster::handle::Cluster;
pub use cluster::load::RowSource;
pub use cluster::loaded::{Data, LoadWatch};
pub use cluster::memory_status::{MemoryReturn, MemoryStanding, MemoryStatus};
pub use cluster::part::Wait;
pub use cluster::shards::{Balancing, Moving, ShardStatus};
pub use lotus_authority::Authority;
pub use lotus_fabric::counters::VerbCounters;
pub use lotus_fabric::env::Nanos;
pub use lotus_fabric::ids::{ShardId, TableId, TxnId};
pub use lotus_fabric::machines::{Machines, MachinesExt, Threads};
pub use lotus_fabric::trace::Trace;
pub use lotus_mvcc::table::{MAX_RECORD_BYTES, SpecError, max_ordered_record_bytes};
pub use lotus_mvcc::{
    CriticalField, Inline, KeyRange, Naming, PrimaryKey, Secret, TableSpec, Timestamp,
};
pub use lotus_router::{Intent, ShardEpoch};
pub use lotus_rows::path;
pub use node::agreed::counted::{RowCounts, TableRows};
pub use scan::{Scan, ScanCursor, ScanError, ScanPage, ScanRow, SessionScan};
pub use snapshot::{
    Copying, SnapshotError, SnapshotHead, SnapshotInfo, SnapshotLabel, SnapshotLife, SnapshotTable,
    SnapshotVisitor, read_snapshot, read_snapshot_head, snapshot_tables,
};
pub use txn::body::{Item, Receipt};
#[cfg(feature = "may")]
pub use txn::may;
pub use txn::ordered;
pub use txn::retry::RefusedLocks;
pub use txn::session::{Session, SessionView};
pub use txn::submit::{Committed, Submitted};
pub use txn::transaction::Transaction;
