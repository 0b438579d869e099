//! Counters of a node's load, for balancing ([`crate::shards::balance`]).

use lotus_fabric::ids::ShardId;
use lotus_router::balance::NodeLoad;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Counters of one node's work since the last interval.
pub(crate) struct NodeCounts {
    requests: Box<[AtomicU32]>,
    transactions: AtomicU64,
    busy_ns: AtomicU64,
    /// Shard that moving cannot help, for status queries; see [`STUCK`].
    pub(crate) stuck: AtomicU32,
    /// Whether the node only publishes its load and gives no shard away.
    paused: AtomicBool,
}

/// Bit of [`NodeCounts::stuck`] that is set if a stuck shard exists.
pub(crate) const STUCK: u32 = 1 << 31;

/// Load of a node that has published and was idle.
const IDLE: NodeLoad = NodeLoad { latency_ns: 1, transactions: 0 };

impl NodeCounts {
    pub(crate) fn new() -> Self {
        Self {
            requests: ShardId::all().map(|_| AtomicU32::new(0)).collect(),
            transactions: AtomicU64::new(0),
            busy_ns: AtomicU64::new(0),
            stuck: AtomicU32::new(0),
            paused: AtomicBool::new(false),
        }
    }

    /// Counts a lock request.
    #[inline]
    pub(crate) fn count_request(&self, shard: ShardId) {
        // Relaxed: a statistic, guarding no memory.
        self.requests[usize::from(shard.raw())].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a transaction that has ended.
    #[inline]
    pub(crate) fn count_transaction(&self, took_ns: u64) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.busy_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Shard that takes most of the node's time and would take as much on a different node.
    pub(crate) fn stuck(&self) -> Option<ShardId> {
        let stuck = self.stuck.load(Ordering::Relaxed);
        (stuck & STUCK != 0).then(|| ShardId::from_low_bits(u64::from(stuck & !STUCK)))
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Returns the counts and resets them.
    pub(crate) fn take(&self) -> (NodeLoad, Vec<u32>) {
        let transactions = self.transactions.swap(0, Ordering::Relaxed);
        let busy_ns = self.busy_ns.swap(0, Ordering::Relaxed);
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let load = match busy_ns.checked_div(transactions) {
            Some(mean) => {
                NodeLoad { latency_ns: narrow(mean.max(1)), transactions: narrow(transactions) }
            }
            None => IDLE,
        };
        (load, self.requests.iter().map(|count| count.swap(0, Ordering::Relaxed)).collect())
    }
}
