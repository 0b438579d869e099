//! Settings of a cluster that all of its nodes share.

use std::ops::RangeInclusive;
use std::time::Duration;

use lotus::{Cluster, ClusterBuilder, LockKind, TimestampKind};

/// Permitted bytes of memory on a memory node: 1 MiB to 1 TiB.
const MEMORY_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Permitted bytes of a lock table: one bucket to 64 GiB.
const LOCK_TABLE_BYTES: RangeInclusive<u64> = 64..=64 << 30;

/// All lock systems that a cluster can have.
pub(super) const LOCKS: [LockKind; 5] =
    [LockKind::Lotus, LockKind::Cas, LockKind::Dslr, LockKind::ShiftLock, LockKind::Declock];

/// Name of a lock system in the file.
pub const fn lock_name(locks: LockKind) -> &'static str {
    match locks {
        LockKind::Lotus => "lotus",
        LockKind::Cas => "cas",
        LockKind::Dslr => "dslr",
        LockKind::ShiftLock => "shiftlock",
        LockKind::Declock => "declock",
        LockKind::IdealRdma => "ideal-rdma",
    }
}

/// Settings of the engine and of the nodes' memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Number of memory nodes.
    pub memory_nodes: usize,
    /// Number of compute nodes.
    pub compute_nodes: usize,
    /// Copies of each record.
    pub replicas: usize,
    /// Coordinators on each compute node.
    pub coordinators: usize,
    /// Coroutines on each coordinator.
    pub coroutines: usize,
    /// Bytes of the lock table of each compute node.
    pub lock_table_bytes: u64,
    /// Capacity of each compute node's version table cache, in rows; 0 for no cache.
    pub version_table_cache: usize,
    /// Interval of load comparisons between compute nodes; `None` for no balancing.
    pub balance: Option<Duration>,
    /// Maximum bytes lent by each memory node.
    pub memory_bytes: u64,
    /// Time for which a compute node may be silent; `None` for no lease.
    pub lease: Option<Duration>,
    /// The lock system: LOTUS's on compute nodes, or a lock system on memory nodes.
    pub locks: LockKind,
}

impl Settings {
    /// Builder of the engine with these settings. Processes share no clock, so a compute node
    /// serves timestamps to all nodes.
    pub fn builder(&self) -> ClusterBuilder {
        Cluster::embedded()
            .memory_nodes(self.memory_nodes)
            .compute_nodes(self.compute_nodes)
            .replicas(self.replicas)
            .threads(self.coordinators)
            .coroutines(self.coroutines)
            .lock_table_bytes(self.lock_table_bytes as usize)
            .version_table_cache(self.version_table_cache)
            .timestamps(TimestampKind::Oracle)
            .balance(self.balance)
            .memory_limit(self.memory_bytes)
            .lease(self.lease)
            .locks(self.locks)
    }
}

/// Parses the size of a memory node.
pub(super) fn memory_bytes(text: &str) -> Result<u64, String> {
    bytes(text, MEMORY_BYTES, "between 1 MiB and 1 TiB")
}

/// Parses the size of a lock table.
pub(super) fn lock_table_bytes(text: &str) -> Result<u64, String> {
    bytes(text, LOCK_TABLE_BYTES, "between 64 bytes and 64 GiB")
}

/// Parses a number of bytes with an optional unit: K, M or G, each 1,024 times the last.
fn bytes(text: &str, range: RangeInclusive<u64>, range_text: &str) -> Result<u64, String> {
    let bytes = parse_size::Config::new().with_binary().parse_size(text);
    let bytes =
        bytes.map_err(|_| "it is not a number of bytes such as 1048576, 1024K or 1M".to_owned())?;
    range.contains(&bytes).then_some(bytes).ok_or_else(|| format!("it is not {range_text}"))
}
