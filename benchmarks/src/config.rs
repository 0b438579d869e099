//! What a benchmark run is asked to do, as plain values.
//!
//! [`ClusterConfig`] describes the machines and the engine, [`LoadConfig`] what the clients do to
//! them. Both go into the report word for word, so that a figure can be repeated. Nothing here is
//! checked: the command line refuses nonsense before it gets this far.

use serde::{Deserialize, Serialize};

use crate::engine::Isolation;

/// How the nodes reach each other (DESIGN §3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// One process, memory nodes as mapped memory.
    Local,
    /// Processes on one host, over shared memory.
    Shm,
    /// Any network, a software target on each memory node.
    Tcp,
    /// Network cards that read and write remote memory by themselves.
    Rdma,
    /// Virtual time and a model of the network card.
    Sim,
}

impl Fabric {
    /// The name that flags and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::Sim => "sim",
        }
    }
}

/// Which version a serializable read-write transaction reads (DESIGN §6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadRule {
    /// The newest one, under the lock.
    Latest,
    /// The newest one not after the start; abort if there is a newer one (LOTUS §5.1).
    Snapshot,
}

/// Where a key's shard number comes from (LOTUS §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// From the field that the workload's transactions share.
    App,
    /// From a hash of the key.
    Hash,
}

/// Which compute node gets a transaction (LOTUS §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Routing {
    /// Read-write ones go to the owner of their first record, read-only ones to anyone.
    Hybrid,
    /// All go to anyone.
    Random,
}

/// Which locks guard the records (DESIGN §5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Locks {
    /// Lock tables on the compute nodes (LOTUS §4.1).
    Lotus,
    /// Spin locks on words of the memory nodes, taken by compare-and-swap.
    Cas,
}

/// Where timestamps come from (DESIGN §6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timestamps {
    /// A clock that all coordinators of the process share.
    Clock,
    /// One compute node that serves them to all.
    Oracle,
}

/// In which order a commit becomes visible on the replicas (DESIGN §7, H3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visible {
    /// On all backups, then on the primary.
    BackupsFirst,
    /// Everywhere at once, as in the paper.
    AllAtOnce,
}

/// What becomes of a displaced version that a snapshot may still need (DESIGN §7, H13).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retention {
    /// It is kept, within bounds.
    On,
    /// It is overwritten, as in the paper.
    Off,
}

/// The cluster under test.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClusterConfig {
    /// How the nodes reach each other.
    #[serde(skip)]
    pub fabric: Fabric,
    /// The simulated cluster's NICs, links and cores; `None` on any other fabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Compute nodes.
    pub cns: usize,
    /// Coordinators on each compute node.
    pub threads: usize,
    /// Coroutines on each coordinator.
    pub coroutines: usize,
    /// Memory nodes.
    pub mns: usize,
    /// Copies of each record.
    pub replicas: usize,
    /// Versions of each record.
    pub versions: u32,
    /// What serializable read-write transactions read.
    pub read_rule: ReadRule,
    /// Bytes of the lock table of each compute node.
    pub lock_table_bytes: u64,
    /// Rows whose version tables each compute node caches; 0 for none.
    pub vt_cache: usize,
    /// Where shard numbers come from.
    pub sharding: Sharding,
    /// Which locks guard the records.
    pub locks: Locks,
    /// Where timestamps come from.
    pub timestamps: Timestamps,
    /// In which order a commit becomes visible.
    pub visible: Visible,
    /// What becomes of displaced versions.
    pub retain_versions: Retention,
    /// How often the compute nodes exchange what they still read, in microseconds.
    #[serde(skip)]
    pub horizon_us: u64,
    /// How often the compute nodes compare their loads and give shards away, in microseconds;
    /// `None` for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance_us: Option<u64>,
    /// How long a node may be silent before the others go on without it, in microseconds; `None`
    /// for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_us: Option<u64>,
    /// The most bytes that a memory node may take; `None` for as many as are needed.
    pub memory_limit_bytes: Option<u64>,
}

impl Default for ClusterConfig {
    /// What the command line says unless it is told otherwise (DESIGN §10).
    fn default() -> Self {
        Self {
            fabric: Fabric::Local,
            profile: None,
            cns: 2,
            threads: 1,
            coroutines: 16,
            mns: 3,
            replicas: 3,
            versions: 2,
            read_rule: ReadRule::Latest,
            lock_table_bytes: 32 << 20,
            vt_cache: 64 << 10,
            sharding: Sharding::App,
            locks: Locks::Lotus,
            timestamps: Timestamps::Clock,
            visible: Visible::BackupsFirst,
            retain_versions: Retention::On,
            horizon_us: 1_000,
            balance_us: None,
            lease_us: None,
            memory_limit_bytes: None,
        }
    }
}

/// What the clients do.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LoadConfig {
    /// The isolation level of read-write transactions.
    pub isolation: Isolation,
    /// The share of attempts that take the other level instead.
    pub other_isolation: f64,
    /// Which compute node gets a transaction.
    pub routing: Routing,
    /// How long clients issue transactions that count, in seconds.
    pub secs: f64,
    /// How long they issue transactions before that, in seconds.
    pub warmup_secs: f64,
    /// Transactions a second, over all clients; `None` for a closed loop.
    pub rate_tps: Option<f64>,
    /// Where all randomness starts.
    pub seed: u64,
    /// Requests that applications outside of the compute nodes keep in flight; `None` if the load
    /// is generated inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<usize>,
    /// How often somebody gives the shard of a request to the next compute node, in microseconds;
    /// `None` for never. Hot shards move most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub move_us: Option<u64>,
    /// Steps in which commits are counted, in microseconds; `None` for one count of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline_us: Option<u64>,
}

impl LoadConfig {
    /// Tasks of each coordinator beside its workers: whoever paces an open loop, and whoever moves
    /// shards.
    pub fn helpers(&self) -> usize {
        usize::from(self.rate_tps.is_some()) + usize::from(self.move_us.is_some())
    }
}
