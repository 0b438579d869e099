//! Status of a cluster's nodes, for servers, which report it to clients, and for monitoring.
//!
//! A process reports on its own compute nodes only; about nodes of other processes it reports the
//! knowledge of its own nodes. Nothing in this module is on the path of a transaction. Coordinators
//! keep their counts, and a job reads the counts ([`Cluster::coordinator_figures`]).

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lotus_fabric::counters::VerbCounters;
use lotus_fabric::ids::{ShardId, TableId};
use lotus_mvcc::TableSpec;

use crate::api::cache_counters::CacheCounters;
use crate::api::coordinator_id::CoordinatorId;
use crate::api::moves::MoveCounters;
use crate::cluster::handle::Cluster;
use crate::cluster::shards::Balancing;
use crate::node::peers::load_counts::NodeCounts;
use crate::node::shared::ComputeNode;
use crate::txn::submit::Submitted;

/// Compute node that grants a shard's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardOwner {
    /// Place of the owner among the compute nodes; `None` while the shard has no owner.
    pub compute_node: Option<usize>,
    /// Shard epoch of the owner's take-over.
    pub epoch: u32,
}

/// Counts of one coordinator since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CoordinatorFigures {
    /// Verbs and messages.
    pub verbs: VerbCounters,
    /// Look-ups in the node's caches.
    pub caches: CacheCounters,
    /// Attempts begun, including the coordinator's own upkeep.
    pub begun: u64,
}

/// Status of one compute node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeFigures {
    /// Whether the node takes part in the cluster; false after a panic or a fence.
    pub takes_part: bool,
    /// Whether the node may begin transactions; false while its lease has run out.
    pub serves: bool,
    /// Whether the other nodes let the node's transactions begin; false while nodes wait for one
    /// another, for example when a memory node is lost or a dropped table is cleared.
    pub is_open: bool,
    /// Rest of the node's lease since the last beat that landed, zero once the lease has run out;
    /// `None` without a lease or a beat.
    pub lease_left: Option<Duration>,
    /// Number of shards that the node owns.
    pub shards_owned: usize,
    /// Number of locks in the node's lock table, counted once per holder.
    pub locks_held: usize,
    /// Number of slots of the node's lock table.
    pub lock_slots: usize,
    /// Last configuration epoch seen by the node.
    pub epoch: u32,
    /// Number of expelled nodes known to the node.
    pub expelled: usize,
    /// Number of compute nodes that the node's messages have not reached for a lease.
    pub unreached: usize,
    /// Hand-overs of the node's shards to other nodes.
    pub moves: MoveCounters,
    /// Shard that takes most of the node's time and would take as much on any other node; `None`
    /// without [load balancing](crate::ClusterBuilder::balance).
    pub too_hot: Option<ShardId>,
    /// Whether load balancing gives the node's shards away.
    pub balancing: Balancing,
}

/// Bytes of a lock table's slot (LOTUS §4.1).
const LOCK_SLOT_BYTES: usize = 8;

impl Cluster {
    /// Returns all tables in use, in the order of their numbers.
    pub fn tables(&self) -> Vec<(TableId, TableSpec)> {
        let known = self.shared.known_tables();
        known.serving().map(|table| (table.id(), table.spec().clone())).collect()
    }

    /// Returns the dropped table whose memory is not given back yet, as far as this process knows.
    pub fn dropped_table(&self) -> Option<TableId> {
        self.shared.dropped_table()
    }

    /// Returns the number of dropped tables whose memory has been given back, as far as this
    /// process knows.
    pub fn tables_cleared(&self) -> u64 {
        let cleared = self.shared.nodes.iter().map(|node| node.slots.cleared());
        u64::from(cleared.max().unwrap_or(0))
    }

    /// Returns the present owner of a shard, as known to compute node `asked`.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn shard_owner(&self, asked: usize, shard: ShardId) -> ShardOwner {
        let owner = self.hosted(asked).shards.owner(shard);
        ShardOwner { compute_node: self.shared.index_of(owner.node), epoch: owner.epoch.0 }
    }

    /// Whether a compute node takes part in the cluster, as far as the node itself knows.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn takes_part(&self, compute_node: usize) -> bool {
        !self.hosted(compute_node).has_failed()
    }

    /// Returns the compute nodes that take part, with the numbers of their lives, as known to
    /// compute node `asked`. No two lives of a cluster have the same number.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn live_nodes(&self, asked: usize) -> Vec<(usize, u16)> {
        let live = self.hosted(asked).members.live().into_iter();
        live.filter_map(|(node, life)| Some((self.shared.index_of(node)?, life.raw()))).collect()
    }

    /// Returns the status of a compute node. Scans the node's whole lock table.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn node_figures(&self, compute_node: usize) -> NodeFigures {
        let node = self.hosted(compute_node);
        let owned = ShardId::all().filter(|shard| node.shards.owner(*shard).node == node.id);
        let (epoch, expelled) = node.members.losses();
        NodeFigures {
            takes_part: !node.has_failed(),
            serves: node.check_standing().is_ok(),
            is_open: node.configuration.is_open(),
            lease_left: self
                .shared
                .config
                .lease
                .zip(node.members.last_beat())
                .map(|(lease, beat)| lease.saturating_sub(node.env.now().since(beat))),
            shards_owned: owned.count(),
            locks_held: node.locks.held(),
            lock_slots: self.shared.config.lock_table_bytes / LOCK_SLOT_BYTES,
            epoch: epoch.0,
            expelled,
            unreached: self.unreached(compute_node).len(),
            moves: *node.moves.lock().unwrap_or_else(PoisonError::into_inner),
            too_hot: node.counts.as_ref().and_then(NodeCounts::stuck),
            balancing: match &node.counts {
                None => Balancing::Never,
                Some(counts) if counts.is_paused() => Balancing::Paused,
                Some(_) => Balancing::On,
            },
        }
    }

    /// Returns the places of the compute nodes that messages of a compute node have not reached for
    /// a lease; empty without a lease.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn unreached(&self, compute_node: usize) -> Vec<usize> {
        let node = self.hosted(compute_node);
        let Some(lease) = self.shared.config.lease else { return Vec::new() };
        let unreached = self.shared.fabric.unreached(node.id, lease);
        unreached.into_iter().filter_map(|(peer, _)| self.shared.index_of(peer)).collect()
    }

    fn hosted(&self, compute_node: usize) -> Arc<ComputeNode> {
        self.shared.hosted(compute_node).expect("a compute node of this process")
    }

    /// Returns the counts of a coordinator, which answers between transactions.
    ///
    /// # Panics
    /// If the coordinator is not in this process.
    pub fn coordinator_figures(
        &self,
        coordinator_id: CoordinatorId,
    ) -> Submitted<CoordinatorFigures> {
        self.submit(coordinator_id, |session| async move {
            let coordinator = session.coordinator();
            Ok(CoordinatorFigures {
                verbs: coordinator.lane.counters(),
                caches: coordinator.caches.get(),
                begun: coordinator.begun.get(),
            })
        })
    }
}
