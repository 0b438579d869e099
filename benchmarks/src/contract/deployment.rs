//! The interface to a cluster under test that the harness is written against.
//!
//! # What it is
//! [`Deployment`] separates this crate from an engine with its cluster: it creates tables, loads
//! them, runs one task per coroutine, and scans every record afterwards. [`Host`] is a task's view
//! of its coordinator. An adapter is meant to be thin.
//!
//! # Ownership
//! The deployment owns threads, time and memory. The harness owns the clients, their randomness and
//! all measurements. No function of this module starts nodes: the caller hands over a running
//! deployment.

use std::ops::Sub;
use std::time::Duration;

use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::{PrimaryKey, TableSpec};
use serde::{Deserialize, Serialize};

use crate::contract::audit::Check;
use crate::contract::engine::TxnEngine;

/// Place where a task runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskPlace {
    /// The compute node, from zero.
    pub cn: usize,
    /// The coordinator on that node, from zero.
    pub thread: usize,
    /// The task on that coordinator, from zero.
    pub task: usize,
}

/// A task's view of its coordinator.
///
/// The tasks of a coordinator share its thread. Coordinators share one clock.
#[allow(async_fn_in_trait, reason = "tasks stay on their coordinator's thread")]
pub trait Host {
    /// Engine that runs the task's transactions.
    type Engine: TxnEngine;

    /// Takes one of the coordinator's coroutine slots.
    ///
    /// # Errors
    /// [`DeployError`] if no slot is left.
    fn engine(&self) -> Result<Self::Engine, DeployError>;

    /// The time, in nanoseconds; monotonic.
    fn now_ns(&self) -> u64;

    /// Waits until the clock has reached `ns`; the coordinator's other tasks run meanwhile.
    async fn sleep_until(&self, ns: u64);

    /// Returns the number, from zero, of the compute node that owns the locks of a key.
    fn owner(&self, table: TableId, key: &PrimaryKey) -> usize;

    /// Counts of the coordinator and of its compute node so far; zero for engines without counts.
    fn activity(&self) -> Activity {
        Activity::default()
    }

    /// Orders that ownership of a key's shard moves to compute node `to`, without waiting for the
    /// move. Does nothing where locks have no owners.
    fn give(&self, _table: TableId, _key: &PrimaryKey, _to: usize) {}
}

/// Row number `n` of a table: writes the value into the empty buffer, returns the key.
pub type RowSource<'a> = dyn Fn(u64, &mut Vec<u8>) -> PrimaryKey + Sync + 'a;

/// Receives one record: key, newest committed value, writer (`None` for a loaded row).
pub type RowVisitor<'a> = dyn FnMut(&PrimaryKey, &[u8], Option<TxnId>) + 'a;

/// A cluster under test.
pub trait Deployment {
    /// A task's view of the machine.
    type Host: Host + 'static;

    /// Creates a table.
    ///
    /// # Errors
    /// [`DeployError`] if the specification or the memory does not allow it.
    fn create_table(&mut self, spec: TableSpec) -> Result<TableId, DeployError>;

    /// Fills a table with rows `0..rows`. No transaction may run meanwhile.
    ///
    /// # Errors
    /// [`DeployError`] if the rows do not fit.
    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError>;

    /// Runs `tasks` tasks on every coordinator and waits until all have ended. Tasks whose compute
    /// node is lost meanwhile have no result, if the cluster recovers from the loss.
    ///
    /// # Errors
    /// [`DeployError`] if a thread cannot be started or a task panicked.
    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static;

    /// Verbs and messages sent by all compute nodes since they started.
    fn traffic(&self) -> Traffic;

    /// Cache look-ups and hits of all compute nodes since they started; zero without caches.
    fn caches(&self) -> Caches {
        Caches::default()
    }

    /// Counts of locks taken and shards moved since the start; zero where locks have no owners.
    fn ownership(&self) -> Ownership {
        Ownership::default()
    }

    /// Memory that the data takes. [`Memory::loaded_bytes_per_node`] and [`Memory::transactions`]
    /// are for the harness to fill in.
    fn memory(&self) -> Memory;

    /// Bytes in use on each memory node after loading, before the first transaction; empty if
    /// unknown.
    fn memory_loaded(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Utilisation of NICs, links and cores so far; `None` unless the cluster is simulated.
    fn utilisation(&self) -> Option<lotus_fabric::sim::Report> {
        None
    }

    /// Passes every record of a table to `visit`. No transaction may run meanwhile.
    ///
    /// # Errors
    /// [`DeployError`] if the memory cannot be read.
    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError>;

    /// Passes every row of an ordered table to `visit`, in order. No transaction may run meanwhile.
    /// The default is for engines without ordered tables.
    ///
    /// # Errors
    /// [`DeployError`] if the memory cannot be read.
    fn scan_ordered(
        &mut self,
        _table: TableId,
        _visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DeployError> {
        Err(DeployError::Refused("this engine has no ordered tables".to_owned()))
    }

    /// Checks for leftovers that no workload may leave: unequal replicas, locks still held,
    /// INVISIBLE cells, unresolved log entries. No transaction may run meanwhile.
    ///
    /// # Errors
    /// [`DeployError`] if the memory cannot be read. A leftover is a failed check, not an error.
    fn audit(&mut self) -> Result<Vec<Check>, DeployError>;

    /// Starts recording the verb list of every transaction, for [`Deployment::replay`].
    fn record_verbs(&mut self);

    /// Replays the recorded verb lists for `secs` seconds with the same coroutines and no protocol,
    /// and stops recording. The data is worthless afterwards.
    ///
    /// # Errors
    /// [`DeployError`] if nothing was recorded.
    fn replay(&mut self, secs: f64) -> Result<Replay, DeployError>;
}

/// Error of an operation on the cluster under test.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// The configuration does not allow the operation. Change the setting that the message names.
    #[error("{0}")]
    Refused(String),
    /// The cluster broke. Discard the measurements so far.
    #[error("{0}")]
    Failed(String),
    /// A row in memory holds a value that no transaction can have written. The measurements stand,
    /// and the audit has failed.
    #[error("{0}")]
    Damaged(String),
}

/// Counts of the verbs and messages that compute nodes sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// READ verbs.
    pub reads: u64,
    /// WRITE verbs.
    pub writes: u64,
    /// Compare-and-swap verbs.
    pub compare_and_swaps: u64,
    /// Fetch-and-add verbs.
    pub fetch_and_adds: u64,
    /// Doorbells: postings of a batch on one connection.
    pub doorbells: u64,
    /// Messages, requests and replies alike.
    pub messages: u64,
}

impl Traffic {
    /// All one-sided verbs.
    pub const fn verbs(&self) -> u64 {
        self.reads + self.writes + self.compare_and_swaps + self.fetch_and_adds
    }
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, more| Self {
            reads: sum.reads + more.reads,
            writes: sum.writes + more.writes,
            compare_and_swaps: sum.compare_and_swaps + more.compare_and_swaps,
            fetch_and_adds: sum.fetch_and_adds + more.fetch_and_adds,
            doorbells: sum.doorbells + more.doorbells,
            messages: sum.messages + more.messages,
        })
    }
}

impl Sub for Traffic {
    type Output = Self;

    /// Traffic between the earlier counts `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            compare_and_swaps: self.compare_and_swaps - earlier.compare_and_swaps,
            fetch_and_adds: self.fetch_and_adds - earlier.fetch_and_adds,
            doorbells: self.doorbells - earlier.doorbells,
            messages: self.messages - earlier.messages,
        }
    }
}

/// Look-ups and hits of one kind of cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Hits {
    /// Number of look-ups.
    pub lookups: u64,
    /// Number of look-ups that found an entry.
    pub hits: u64,
}

impl Sub for Hits {
    type Output = Self;

    /// Look-ups between the earlier counts `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self { lookups: self.lookups - earlier.lookups, hits: self.hits - earlier.hits }
    }
}

/// Look-ups in the caches of compute nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caches {
    /// Version table caches, for rows of shards that the asking node owns (LOTUS §4.4).
    pub version_tables: Hits,
    /// Address caches, for the places of version tables (LOTUS §5).
    pub addresses: Hits,
}

/// Counts of one coordinator since its start, for an observer of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activity {
    /// Look-ups in the coordinator's caches.
    pub caches: Caches,
    /// Locks taken by the coordinator's transactions; hits are locks owned by its node.
    pub locks: Hits,
    /// Shards given away by the node; zero except on the first coordinator of a node.
    pub shards: u64,
}

impl Sub for Caches {
    type Output = Self;

    /// Look-ups between the earlier counts `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            version_tables: self.version_tables - earlier.version_tables,
            addresses: self.addresses - earlier.addresses,
        }
    }
}

/// Locks taken, and shards moved from one compute node to another (LOTUS §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ownership {
    /// Locks taken; hits are locks owned by the transaction's node.
    pub locks: Hits,
    /// Hand-overs, which move a batch of shards from one node to another.
    pub hand_overs: u64,
    /// Shards moved by hand-overs.
    pub shards: u64,
    /// Attempts asked by a hand-over to give up their locks.
    pub stragglers: u64,
    /// Sum over all hand-overs of the time in which no owner grants the moving shards' locks.
    pub interrupted: Duration,
    /// Longest such interruption by a single hand-over.
    pub longest: Duration,
    /// A shard that takes most of its owner's time and would take as much on any other node, if
    /// such a shard exists.
    pub too_hot: Option<u16>,
}

impl Ownership {
    /// Activity between the earlier counts `earlier` and `self`. `longest` covers the whole time,
    /// as a maximum cannot be split, or is zero if there were no hand-overs.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        let hand_overs = self.hand_overs - earlier.hand_overs;
        Self {
            locks: self.locks - earlier.locks,
            hand_overs,
            shards: self.shards - earlier.shards,
            stragglers: self.stragglers - earlier.stragglers,
            interrupted: self.interrupted - earlier.interrupted,
            longest: if hand_overs == 0 { Duration::ZERO } else { self.longest },
            too_hot: self.too_hot,
        }
    }
}

impl std::ops::AddAssign for Ownership {
    fn add_assign(&mut self, other: Self) {
        self.locks.lookups += other.locks.lookups;
        self.locks.hits += other.locks.hits;
        self.hand_overs += other.hand_overs;
        self.shards += other.shards;
        self.stragglers += other.stragglers;
        self.interrupted += other.interrupted;
        self.longest = self.longest.max(other.longest);
        self.too_hot = self.too_hot.or(other.too_hot);
    }
}

/// Memory that the data takes.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Memory {
    /// Bytes of a record on one replica, index included, averaged over all tables.
    pub bytes_per_record_and_replica: f64,
    /// Resident bytes of the process that embeds the cluster; 0 if unknown.
    pub resident_bytes: u64,
    /// Bytes in use on each memory node when the last transaction has ended: index, records, older
    /// versions and logs. Empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bytes_per_node: Vec<u64>,
    /// Bytes in use on each memory node before the first transaction. Empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loaded_bytes_per_node: Vec<u64>,
    /// Transactions that have committed in between, warm-up included.
    pub transactions: u64,
}

/// Processor use of memory nodes that are processes of their own.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MemoryNodesUse {
    /// Number of processes.
    pub processes: usize,
    /// Processor time of all processes from the start of loading to the end of the audit, in
    /// seconds.
    pub processor_s: f64,
}

/// Rates of a replay: the fabric's verbs without a protocol.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Replay {
    /// Transactions replayed a second.
    pub tps: f64,
    /// One-sided verbs a second.
    pub verbs_per_s: f64,
}
