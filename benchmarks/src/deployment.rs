//! What the harness needs of a cluster under test, and nothing more.
//!
//! # What it is
//! [`Deployment`] is the seam between this crate and an engine with its cluster: make tables, load
//! them, run one task per coroutine, and afterwards look at every record. [`Host`] is what such a
//! task sees of the machine that it runs on. An adapter is meant to be thin.
//!
//! # Who owns what
//! The deployment owns threads, time and memory. The harness owns the clients, their randomness
//! and everything that is measured. Nothing here starts nodes: a deployment exists when it is
//! handed over.

use std::ops::Sub;
use std::time::Duration;

use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::{PrimaryKey, TableSpec};
use serde::{Deserialize, Serialize};

use crate::audit::Check;
use crate::engine::TxnEngine;

/// Where a task runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The compute node, from zero.
    pub cn: usize,
    /// The coordinator on that node, from zero.
    pub thread: usize,
    /// The task on that coordinator, from zero.
    pub task: usize,
}

/// What a task sees of its coordinator.
///
/// All tasks of one coordinator share its thread. Clocks of all coordinators are one clock.
#[allow(async_fn_in_trait, reason = "tasks stay on their coordinator's thread")]
pub trait Host {
    /// Runs the task's transactions.
    type Engine: TxnEngine;

    /// Takes one of the coordinator's coroutine slots.
    ///
    /// # Errors
    /// [`DeployError`] if none is left.
    fn engine(&self) -> Result<Self::Engine, DeployError>;

    /// The time, in nanoseconds. Never runs backwards.
    fn now_ns(&self) -> u64;

    /// Lets the coordinator's other tasks run until the clock has reached `ns`.
    async fn sleep_until(&self, ns: u64);

    /// Which compute node, from zero, owns the locks of a key.
    fn owner(&self, table: TableId, key: &PrimaryKey) -> usize;

    /// Orders that the locks of a key's shard go to compute node `to`, and does not wait for it.
    /// Nothing happens where locks have no owners.
    fn give(&self, _table: TableId, _key: &PrimaryKey, _to: usize) {}
}

/// Row number `n` of a table: writes the value into the empty buffer, returns the key.
pub type RowSource<'a> = dyn Fn(u64, &mut Vec<u8>) -> PrimaryKey + Sync + 'a;

/// Sees one record: key, newest committed value, who wrote it (`None` for a loaded row).
pub type RowVisitor<'a> = dyn FnMut(&PrimaryKey, &[u8], Option<TxnId>) + 'a;

/// A cluster under test.
pub trait Deployment {
    /// What its tasks see.
    type Host: Host + 'static;

    /// Makes a table.
    ///
    /// # Errors
    /// [`DeployError`] if the specification or the memory does not allow it.
    fn create_table(&mut self, spec: TableSpec) -> Result<TableId, DeployError>;

    /// Fills a table with rows `0..rows`. No transaction runs meanwhile.
    ///
    /// # Errors
    /// [`DeployError`] if they do not fit.
    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError>;

    /// Runs `tasks` tasks on every coordinator and waits until all have ended. Those whose compute
    /// node is lost meanwhile have no result, if the cluster goes on without it.
    ///
    /// # Errors
    /// [`DeployError`] if a thread cannot be had or a task panicked.
    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(Seat, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static;

    /// What all compute nodes have sent since they started.
    fn traffic(&self) -> Traffic;

    /// How often the caches of all compute nodes knew since they started, if they have any.
    fn caches(&self) -> Caches {
        Caches::default()
    }

    /// Where locks were taken, and how shards moved, since the start; nothing where locks have no
    /// owners.
    fn ownership(&self) -> Ownership {
        Ownership::default()
    }

    /// What the data takes.
    fn memory(&self) -> Memory;

    /// How busy NICs, links and cores were so far, where that is modelled.
    fn utilisation(&self) -> Option<lotus_fabric::sim::Report> {
        None
    }

    /// Shows every record of a table. No transaction runs meanwhile.
    ///
    /// # Errors
    /// [`DeployError`] if the memory cannot be read.
    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError>;

    /// Looks for what no workload may leave behind: unequal replicas, locks still held, INVISIBLE
    /// cells, unresolved log entries. No transaction runs meanwhile.
    ///
    /// # Errors
    /// [`DeployError`] if the memory cannot be read. What it finds there is no error but a failed
    /// check.
    fn audit(&mut self) -> Result<Vec<Check>, DeployError>;

    /// From now on keeps the verb list of every transaction, for [`Deployment::replay`].
    fn record_verbs(&mut self);

    /// Replays the recorded verb lists for `secs` seconds with the same coroutines and no protocol
    /// (DESIGN §10), and stops recording. Afterwards the data is worthless.
    ///
    /// # Errors
    /// [`DeployError`] if nothing was recorded.
    fn replay(&mut self, secs: f64) -> Result<Replay, DeployError>;
}

/// Why the cluster under test cannot do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// The configuration does not allow it. Change what the sentence names.
    #[error("{0}")]
    Refused(String),
    /// Something broke. Nothing measured so far counts.
    #[error("{0}")]
    Failed(String),
}

/// Counts of what compute nodes sent.
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

    /// What was sent between `earlier` and `self`.
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

/// Look-ups in one kind of cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Hits {
    /// How often it was asked.
    pub lookups: u64,
    /// How often it knew.
    pub hits: u64,
}

impl Sub for Hits {
    type Output = Self;

    /// What was asked between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self { lookups: self.lookups - earlier.lookups, hits: self.hits - earlier.hits }
    }
}

/// Look-ups in the caches of compute nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caches {
    /// For the version tables of rows whose locks are on the asking node (LOTUS §4.4).
    pub version_tables: Hits,
    /// For the addresses of version tables (LOTUS §5).
    pub addresses: Hits,
}

impl Sub for Caches {
    type Output = Self;

    /// What was asked between `earlier` and `self`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            version_tables: self.version_tables - earlier.version_tables,
            addresses: self.addresses - earlier.addresses,
        }
    }
}

/// Where locks were taken, and how shards moved from one compute node to another (LOTUS §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ownership {
    /// Locks that were taken; hits are those of the node that asked.
    pub locks: Hits,
    /// Times that one node gave shards to another.
    pub hand_overs: u64,
    /// Shards that it gave.
    pub shards: u64,
    /// Attempts that were asked to give up.
    pub stragglers: u64,
    /// For how long nobody granted locks of the shards under way, all together.
    pub interrupted: Duration,
    /// The longest of that.
    pub longest: Duration,
    /// A shard that takes most of its owner's time and would take as much elsewhere, if there is
    /// one.
    pub too_hot: Option<u16>,
}

impl Ownership {
    /// What happened between `earlier` and `self`. The longest interruption is not known to have
    /// been then, unless there was none.
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

/// What the data takes.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Memory {
    /// Bytes of one replica of one record, index included, averaged over all tables.
    pub bytes_per_record_and_replica: f64,
    /// Bytes that the memory nodes really occupy.
    pub resident_bytes: u64,
}

/// What memory nodes did that are processes of their own.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MemoryNodesUse {
    /// How many there are.
    pub processes: usize,
    /// The processor time that all of them used from the start of loading to the end of the
    /// audit, in seconds.
    pub processor_s: f64,
}

/// What the fabric did without a protocol.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Replay {
    /// Transactions' verb lists replayed a second.
    pub tps: f64,
    /// One-sided verbs a second.
    pub verbs_per_s: f64,
}
