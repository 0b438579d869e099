//! Configuration of a benchmark run, as plain values.
//!
//! [`ClusterConfig`] describes the machines and the engine, [`LoadConfig`] the load of the clients.
//! Both go into the report unchanged, so that a figure can be repeated. The command line has
//! already validated the values.

use serde::{Deserialize, Serialize};

use crate::contract::engine::Isolation;

/// Network between the nodes (`docs/verbs.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// One process, memory nodes as mapped memory.
    Local,
    /// Processes on one host, over shared memory.
    Shm,
    /// Any network, a software target on each memory node.
    Tcp,
    /// RDMA network cards, which access remote memory without a processor.
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

/// Version that a serializable read-write transaction reads (`docs/protocol.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadRule {
    /// The newest version, under the lock.
    Latest,
    /// The newest version at or before the start; abort if there is a newer version (LOTUS §5.1).
    Snapshot,
}

/// Source of a key's shard number (LOTUS §4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharding {
    /// The field that the workload's transactions share.
    App,
    /// A hash of the key.
    Hash,
}

/// Choice of the compute node for a transaction (LOTUS §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Routing {
    /// Read-write transactions go to the owner of their first record, read-only ones to a random
    /// node.
    Hybrid,
    /// All transactions go to a random node.
    Random,
}

/// Engine under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Lotus, the engine of this project.
    Lotus,
    /// Motor (LOTUS §8).
    Motor,
    /// FORD (LOTUS §8).
    Ford,
}

impl Engine {
    /// The name that flags and reports use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lotus => "lotus",
            Self::Motor => "motor",
            Self::Ford => "ford",
        }
    }
}

/// Selects the primary of a row, in engines other than Lotus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Primaries {
    /// The row's table decides, as in Motor and FORD.
    #[default]
    Table,
    /// The row's place in the table's index decides.
    Shard,
}

/// How Motor stores the values of a row's versions (LOTUS §7.1, Figure 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordStore {
    /// The newest value in full, and deltas for the other versions.
    #[default]
    Deltas,
    /// A full record for each version.
    Full,
}

/// How a transaction of Motor commits (LOTUS §5.1, Figure 14).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommitSteps {
    /// No step is awaited.
    #[default]
    AtOnce,
    /// A log entry and INVISIBLE versions, then the timestamp; each step is awaited.
    LogAndVisible,
}

/// Settings of engines other than Lotus.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BaselineConfig {
    /// Selects the primary of a row.
    pub primaries: Primaries,
    /// Whether the engine keeps the faults of its publication.
    pub as_published: bool,
    /// Whether locks are left out, so that updates are lost.
    pub unlocked: bool,
    /// Whether rows of Motor are loaded with room for their deltas.
    pub loaded_deltas: bool,
    /// How Motor stores the values of versions.
    pub record_store: RecordStore,
    /// How a transaction of Motor commits.
    pub commit: CommitSteps,
    /// Least bytes of an item of FORD.
    pub item_bytes: usize,
    /// Whether commits of FORD read back their writes to backups.
    pub flush: bool,
}

/// Locks that guard the records (`docs/protocol.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Locks {
    /// Lock tables on the compute nodes (LOTUS §4.1).
    Lotus,
    /// Spin locks on words of the memory nodes, taken by compare-and-swap.
    Cas,
    /// Tickets in words of the memory nodes (DSLR §4).
    Dslr,
    /// Queues of writers in words of the memory nodes (ShiftLock §3).
    ShiftLock,
    /// Queues in words of the memory nodes (DecLock §4).
    Declock,
    /// The traffic of an idealized lock on the memory nodes, which excludes no holder (LOTUS §8.4).
    #[serde(rename = "ideal-rdma")]
    IdealRdma,
}

impl Locks {
    /// Returns the reason why data written under these locks cannot be judged, if there is a
    /// reason.
    pub const fn why_not_judged(self) -> Option<&'static str> {
        match self {
            Self::Lotus | Self::Cas | Self::Dslr | Self::ShiftLock | Self::Declock => None,
            Self::IdealRdma => Some("ideal-rdma is a bound, not a lock: it excludes nothing"),
        }
    }
}

/// What a lock request does when another transaction holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockWait {
    /// The request waits where waiting cannot end in a deadlock; retries take their locks in order.
    Ordered,
    /// The request is refused, as in the paper (LOTUS §4.1).
    None,
}

/// Source of timestamps (`docs/protocol.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timestamps {
    /// A clock shared by all coordinators of the process.
    Clock,
    /// A compute node that serves timestamps to the whole cluster.
    Oracle,
}

/// Order in which a commit becomes visible on the replicas (`docs/protocol.md`, H3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visible {
    /// Backups first, then the primary.
    BackupsFirst,
    /// All replicas at once, as in the paper.
    AllAtOnce,
}

/// Fate of a displaced version that a snapshot may still need (`docs/protocol.md`, H13).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retention {
    /// Kept, within bounds.
    On,
    /// Overwritten, as in the paper.
    Off,
}

/// Rows whose addresses are in the address caches at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AddressCache {
    /// All loaded rows, on every compute node.
    Warm,
    /// No rows; compute nodes learn addresses.
    Cold,
    /// No rows; coordinators learn addresses individually.
    PerThread,
}

/// Place of small records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inline {
    /// Beside their cells, if key and value have at most 64 bytes.
    Auto,
    /// Always in slots of their own, as in the paper.
    Never,
}

impl From<Inline> for lotus_mvcc::Inline {
    fn from(inline: Inline) -> Self {
        match inline {
            Inline::Auto => Self::Auto,
            Inline::Never => Self::Never,
        }
    }
}

/// The cluster under test.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClusterConfig {
    /// Engine under test.
    pub engine: Engine,
    /// Settings of engines other than Lotus; `None` for Lotus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<BaselineConfig>,
    /// Network between the nodes.
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
    /// Place of small records.
    pub inline: Inline,
    /// Version that serializable read-write transactions read.
    pub read_rule: ReadRule,
    /// Bytes of the lock table of each compute node.
    pub lock_table_bytes: u64,
    /// Capacity of each compute node's version table cache, in rows; 0 for no cache.
    pub vt_cache: usize,
    /// Contents of the address caches at the start.
    pub address_cache: AddressCache,
    /// Source of shard numbers.
    pub sharding: Sharding,
    /// Locks that guard the records.
    pub locks: Locks,
    /// Behaviour of requests for held locks.
    pub lock_wait: LockWait,
    /// Source of timestamps.
    pub timestamps: Timestamps,
    /// Order in which a commit becomes visible on the replicas.
    pub visible: Visible,
    /// Fate of displaced versions.
    pub retain_versions: Retention,
    /// Bits of the names of rows: with fewer than 64, many rows share a name.
    #[serde(skip)]
    pub name_bits: u32,
    /// Seed of the secret in the names of rows, so that a run can be repeated; 0 for no secret.
    #[serde(skip)]
    pub name_seed: u64,
    /// Interval at which compute nodes exchange the oldest snapshots in use, in microseconds.
    #[serde(skip)]
    pub horizon_us: u64,
    /// Interval at which compute nodes compare their loads and give shards away, in microseconds;
    /// `None` for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance_us: Option<u64>,
    /// Time for which a node may be silent before it is expelled, in microseconds; `None` if no
    /// node is expelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_us: Option<u64>,
    /// Memory limit of each memory node in bytes; `None` for no limit.
    pub memory_limit_bytes: Option<u64>,
}

impl ClusterConfig {
    /// Whether transactions may leave rows that no serial execution leaves: under locks that
    /// exclude no holder, and in an engine with its published faults or without its locks.
    pub fn may_break_data(&self) -> bool {
        let by_engine = self.baseline.is_some_and(|one| one.as_published || one.unlocked);
        by_engine || self.locks.why_not_judged().is_some()
    }
}

impl Default for ClusterConfig {
    /// Defaults of the command line.
    fn default() -> Self {
        Self {
            engine: Engine::Lotus,
            baseline: None,
            fabric: Fabric::Local,
            profile: None,
            cns: 2,
            threads: 1,
            coroutines: 16,
            mns: 3,
            replicas: 3,
            versions: 2,
            inline: Inline::Auto,
            read_rule: ReadRule::Latest,
            lock_table_bytes: 32 << 20,
            vt_cache: 64 << 10,
            address_cache: AddressCache::Cold,
            sharding: Sharding::App,
            locks: Locks::Lotus,
            lock_wait: LockWait::None,
            timestamps: Timestamps::Clock,
            visible: Visible::BackupsFirst,
            retain_versions: Retention::On,
            name_bits: u64::BITS,
            name_seed: 0,
            horizon_us: 1_000,
            balance_us: None,
            lease_us: None,
            memory_limit_bytes: None,
        }
    }
}

/// What a client does after an aborted attempt that could be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aborted {
    /// The client repeats the transaction until it commits, after a random wait.
    #[default]
    Retry,
    /// The client goes on with its next transaction at once, as the programs of Motor and FORD do.
    /// The mixture of committed transactions leans to transactions without conflicts.
    Drop,
}

/// The load of the clients.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LoadConfig {
    /// The isolation level of read-write transactions.
    pub isolation: Isolation,
    /// Share of attempts that run at the other isolation level, in 0..=1.
    pub other_isolation: f64,
    /// Choice of the compute node for a transaction.
    pub routing: Routing,
    /// What a client does after an aborted attempt.
    pub aborted: Aborted,
    /// Duration of the measurement, in seconds.
    pub secs: f64,
    /// Committed transactions at which the run ends early; `None` for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txns: Option<u64>,
    /// Duration of the warm-up before the measurement, in seconds.
    pub warmup_secs: f64,
    /// Rate of an open loop over all clients, in transactions a second; `None` for a closed loop.
    pub rate_tps: Option<f64>,
    /// Seed of all randomness.
    pub seed: u64,
    /// Requests that applications outside the compute nodes keep in flight; `None` if the load is
    /// generated inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<usize>,
    /// Interval at which the shard of a request is given to the next compute node, in microseconds;
    /// `None` for never. Hot shards move most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub move_us: Option<u64>,
    /// Step of the timeline of commits, in microseconds; `None` for no timeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline_us: Option<u64>,
}

impl LoadConfig {
    /// Tasks of a coordinator besides the workers: the pacer of an open loop, and the mover of
    /// shards.
    pub fn helpers(&self) -> usize {
        usize::from(self.rate_tps.is_some()) + usize::from(self.move_us.is_some())
    }
}
