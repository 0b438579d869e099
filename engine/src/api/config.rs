//! Settings of a cluster, with defaults and units.

use std::time::Duration;

use lotus_fabric::ids::TxnId;
use lotus_fabric::region::WORD_BYTES;
use lotus_fabric::verbs::MAX_VERB_BYTES;
use lotus_locks::Waiter;
use lotus_locks::systems::{Declock, ServiceLocks};
use lotus_locks::word::DeclockFields;
use lotus_mvcc::Secret;
use lotus_recovery::log::{DEFAULT_MAX_WRITES, entry_words};

use crate::api::error::ClusterError;

/// Limit of a version table cache, in rows: 72 GiB.
const MAX_VERSION_TABLES: usize = 1 << 30;

/// Minimum and maximum number of entries in a queue of `declock`.
const ENTRIES: (usize, usize) =
    (Declock::PUBLISHED_ENTRIES as usize, DeclockFields::MAX_CAPACITY as usize);

/// Shortest lease: beats take round trips.
const MIN_LEASE: Duration = Duration::from_micros(100);

/// Version that a serializable read-write transaction reads under its lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReadRule {
    /// The newest: the lock keeps the version current, so no abort is needed.
    #[default]
    Latest,
    /// The newest up to T_start; aborts if a newer version exists (LOTUS §5.1, phase 1).
    Snapshot,
}

/// Order in which a commit makes its versions visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum VisibleOrder {
    /// Backups first, then, after a wait, the primaries: a version that was read survives its
    /// coordinator (H3).
    #[default]
    BackupsFirst,
    /// Backups and primaries at once, as in LOTUS §5.1. For comparison: a crash can take back a
    /// version that was read.
    AllAtOnce,
}

/// Kind of the cluster's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LockKind {
    /// Lock tables on compute nodes (LOTUS §4.1).
    #[default]
    Lotus,
    /// Compare-and-swap spin locks on memory nodes: the baseline that LOTUS argues against.
    Cas,
    /// Tickets on memory nodes (DSLR §4): readers share, and writers take turns in order.
    Dslr,
    /// Queues of writers on memory nodes, handed on by messages (ShiftLock §3); readers share.
    ShiftLock,
    /// Queues of all requests on memory nodes, handed on by messages (DecLock §4); readers share.
    /// Each queue has an entry for every coroutine slot of the cluster.
    Declock,
    /// The idealized lock on memory nodes (LOTUS §8.4): a bound for comparison, not a lock. Without
    /// mutual exclusion, updates are lost. Needs a build with the feature `sabotage`, and no lease.
    IdealRdma,
}

/// Treatment of a request for a lock that another transaction holds.
pub use lotus_locktable::LockWait;

/// Source of timestamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TimestampKind {
    /// One atomic clock shared by the process.
    #[default]
    Clock,
    /// The first compute node serves timestamps to all others by RPC.
    Oracle,
}

/// Treatment of a version that a writer displaces while a snapshot may still need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retention {
    /// The version stays in place until no snapshot needs it, within bounds (H13).
    #[default]
    UntilUnneeded,
    /// The version is overwritten, as in LOTUS §7.1. For comparison: readers of frequently written
    /// rows must start again.
    None,
}

/// Contents of the compute nodes' address caches when the first transaction begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Addresses {
    /// Empty: the first search for a row learns the row's place.
    #[default]
    Cold,
    /// The places of all loaded rows, on all compute nodes of the process that has loaded the rows.
    /// For comparison: makes a short run like a long one.
    Warm,
}

/// Policy that chooses the compute node for a transaction that names a row.
pub use lotus_router::Policy as RoutingPolicy;

/// All settings of an embedded cluster.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Number of memory nodes; default 3.
    pub memory_nodes: usize,
    /// Number of compute nodes; default 1.
    pub compute_nodes: usize,
    /// Copies of every record, the primary included; default 3.
    pub replicas: usize,
    /// Coordinators (threads) on each compute node; default 1.
    pub threads: usize,
    /// Transactions that each coordinator interleaves; default 16.
    pub coroutines: usize,
    /// Bytes of each compute node's lock table; default 32 MiB (LOTUS §8.1).
    pub lock_table_bytes: usize,
    /// CVTs of its own shards that a compute node caches; default 64 K, 0 for no cache (LOTUS
    /// §8.1). A CVT takes 72 bytes, more if tables have more than two versions of a row. Needs
    /// [`LockKind::Lotus`].
    pub version_table_cache: usize,
    /// Limit of one memory node's memory, in bytes; default 16 GiB. Backed only as used.
    pub memory_limit: u64,
    /// Limit of the rows written by one transaction; default 512.
    pub max_writes: u16,
    /// Time for which a commit retries before it reports `Unknown`; default 5 s.
    pub commit_timeout: Duration,
    /// Time for which an execution of a transaction waits for locks: for answers of the owners, and
    /// with [`LockWait::Ordered`] for the holders. Default 1 s.
    pub lock_timeout: Duration,
    /// Time within which a transaction of [`Cluster::run`](crate::Cluster::run) must begin its
    /// commit, all attempts together, counted from its start at a coordinator; `None` for ever.
    /// After this time the body is dropped, and slot and locks are free again, even if the body
    /// waits for ever. Default 60 s; [`TxnOptions::timeout`](crate::TxnOptions::timeout) overrides
    /// the limit for one transaction.
    pub transaction_timeout: Option<Duration>,
    /// Time within which transactions and jobs must end by themselves when the cluster is stopped
    /// or dropped; default 10 s. See [`Cluster::stop`](crate::Cluster::stop).
    pub stop_timeout: Duration,
    /// Time for which code of a transaction may block a coordinator's thread before the compute
    /// node gives itself up, if there is a lease and another compute node to take over; default
    /// 10 s. Until then the node goes on beating.
    pub block_limit: Duration,
    /// Seed of all randomness; default 0.
    pub seed: u64,
    /// Bits of the names of rows; default 64, the full name. With fewer bits, many rows share a
    /// name, and so a lock and a chain of buckets: for tests of shared names. Equal in all
    /// processes.
    pub name_bits: u32,
    /// Secret of the names of rows, in a cluster that begins without a snapshot; `None`, the
    /// default, to draw a secret, in simulation from the seed. Set the secret only to repeat a run
    /// on real machines: knowledge of the secret suffices to find keys that share a name.
    pub name_secret: Option<Secret>,
    /// See [`ReadRule`].
    pub read_rule: ReadRule,
    /// See [`VisibleOrder`].
    pub visible_order: VisibleOrder,
    /// See [`LockKind`].
    pub locks: LockKind,
    /// See [`LockWait`]; no effect on locks on memory nodes, which wait in order.
    pub lock_wait: LockWait,
    /// See [`TimestampKind`].
    pub timestamps: TimestampKind,
    /// See [`RoutingPolicy`].
    pub routing: RoutingPolicy,
    /// See [`Retention`].
    pub retention: Retention,
    /// See [`Addresses`].
    pub addresses: Addresses,
    /// Interval at which a compute node publishes the oldest snapshot that it may read; default
    /// 1 ms.
    pub horizon_interval: Duration,
    /// Time for which a compute node may be silent before the other nodes expel it and recover its
    /// transactions; `None`, the default, for ever. 20 ms suffice if every thread has its own core;
    /// otherwise use at least 500 ms.
    pub lease: Option<Duration>,
    /// Time for which an owner that gives a shard away waits for transactions that hold the shard's
    /// locks, before it asks the transactions that are not committing to give up; default 10 ms
    /// (LOTUS §4.3).
    pub drain_patience: Duration,
    /// Interval at which compute nodes compare their loads, so that an overloaded node gives shards
    /// away (LOTUS §4.3); `None`, the default, for never. The paper has 100 ms. Needs
    /// [`LockKind::Lotus`].
    pub balance: Option<Duration>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory_nodes: 3,
            compute_nodes: 1,
            replicas: 3,
            threads: 1,
            coroutines: 16,
            lock_table_bytes: 32 << 20,
            version_table_cache: 64 << 10,
            memory_limit: 16 << 30,
            max_writes: DEFAULT_MAX_WRITES,
            commit_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(1),
            transaction_timeout: Some(Duration::from_secs(60)),
            stop_timeout: Duration::from_secs(10),
            block_limit: Duration::from_secs(10),
            seed: 0,
            name_bits: u64::BITS,
            name_secret: None,
            read_rule: ReadRule::default(),
            visible_order: VisibleOrder::default(),
            locks: LockKind::default(),
            lock_wait: LockWait::default(),
            timestamps: TimestampKind::default(),
            routing: RoutingPolicy::default(),
            retention: Retention::default(),
            addresses: Addresses::default(),
            horizon_interval: Duration::from_millis(1),
            lease: None,
            drain_patience: Duration::from_millis(10),
            balance: None,
        }
    }
}

fn setting(ok: bool, sentence: &str) -> Result<(), ClusterError> {
    if ok { Ok(()) } else { Err(ClusterError::Setting(sentence.to_owned())) }
}

impl Config {
    /// Number of coroutine slots on a compute node: first the slots for applications, then one
    /// upkeep slot for each coordinator.
    pub(crate) fn slots(&self) -> usize {
        self.threads.saturating_mul(self.coroutines.saturating_add(1))
    }

    /// Whether slot number `slot` is a coordinator's own, for upkeep: purges, trims and filling,
    /// which no client waits for.
    pub(crate) fn is_upkeep(&self, slot: u16) -> bool {
        usize::from(slot) >= self.threads.saturating_mul(self.coroutines)
    }

    /// Number of coroutine slots on all compute nodes together.
    fn all_slots(&self) -> usize {
        self.compute_nodes.saturating_mul(self.slots())
    }

    /// The lock system of the memory nodes; `None` with LOTUS's locks. The words of the idealized
    /// lock are like the words of `cas`: eight bytes, and zero while not in use.
    pub(crate) fn memory_locks(&self) -> Option<ServiceLocks> {
        match self.locks {
            LockKind::Lotus => None,
            LockKind::Cas | LockKind::IdealRdma => Some(ServiceLocks::Cas),
            LockKind::Dslr => Some(ServiceLocks::Dslr),
            LockKind::ShiftLock => Some(ServiceLocks::ShiftLock),
            LockKind::Declock => {
                // An entry for each slot, and one more: a header counts less than twice as many
                // requests as the queue has entries.
                let entries = self.all_slots().saturating_add(1).clamp(ENTRIES.0, ENTRIES.1);
                Some(ServiceLocks::Declock { entries: entries.next_power_of_two() as u32 })
            }
        }
    }

    /// Checks the requirements of the idealized lock, if configured.
    fn check_ideal(&self) -> Result<(), ClusterError> {
        let is_used = self.locks == LockKind::IdealRdma;
        setting(
            !is_used || cfg!(feature = "sabotage"),
            "ideal-rdma takes a build with the feature sabotage",
        )?;
        setting(
            !is_used || self.lease.is_none(),
            "ideal-rdma is a bound, not a lock, so it recovers nothing and takes no lease",
        )
    }

    /// Checks the settings that no other constructor checks.
    pub(crate) fn check(&self) -> Result<(), ClusterError> {
        setting(self.threads > 0, "a compute node needs at least one coordinator")?;
        setting(self.coroutines > 0, "a coordinator needs at least one coroutine")?;
        setting(
            self.version_table_cache <= MAX_VERSION_TABLES,
            &format!("a version table cache of more than {MAX_VERSION_TABLES} rows"),
        )?;
        setting(!self.horizon_interval.is_zero(), "the horizon's interval must not be zero")?;
        setting(
            self.lease.is_none_or(|lease| lease >= MIN_LEASE),
            &format!("a lease must be at least {MIN_LEASE:?}"),
        )?;
        setting(
            self.balance.is_none_or(|interval| !interval.is_zero()),
            "the interval of load balancing must not be zero",
        )?;
        setting(
            self.balance.is_none() || self.locks == LockKind::Lotus,
            "load balancing needs LOTUS's locks: those on memory nodes have no owners",
        )?;
        self.check_ideal()?;
        let limit = usize::from(TxnId::MAX_SLOT) + 1;
        setting(
            self.slots() <= limit,
            &format!("threads × (coroutines + 1) is {}, but at most {limit} fit", self.slots()),
        )?;
        let lanes = usize::from(Waiter::LANES);
        setting(
            self.locks == LockKind::Lotus || self.threads <= lanes,
            &format!("with locks on memory nodes a compute node has at most {lanes} coordinators"),
        )?;
        // A slot may leave a ghost request behind, and request the lock again.
        let requests = self.all_slots().saturating_mul(2);
        let counted = self.memory_locks().and_then(ServiceLocks::capacity);
        let counted = counted.map_or(usize::MAX, |counted| counted as usize);
        setting(
            requests <= counted,
            &format!("{requests} requests may meet at a lock, which counts at most {counted}"),
        )?;
        let entry_bytes = entry_words(usize::from(self.max_writes)) * WORD_BYTES;
        setting(
            entry_bytes <= MAX_VERB_BYTES,
            &format!("a log entry for {} writes does not fit in one WRITE", self.max_writes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_an_entry_for_every_slot_and_its_header_counts_twice_as_many() {
        for (compute_nodes, coroutines, entries) in
            [(1, 1, 8), (2, 16, 64), (2, 15, 64), (7, 8, 64)]
        {
            let config = Config { compute_nodes, coroutines, ..Config::default() };
            let locks = Config { locks: LockKind::Declock, ..config.clone() }.memory_locks();
            let locks = locks.expect("they are on memory nodes");
            assert_eq!(locks, ServiceLocks::Declock { entries });
            let slots = config.compute_nodes * config.slots();
            assert!(slots < entries as usize && locks.capacity() >= Some(2 * slots as u32));
            assert_eq!(locks.object_bytes(), 16 + 8 * u64::from(entries));
            assert!(config.memory_locks().is_none(), "LOTUS's locks are not");
        }
    }
}
