//! Status of a cluster's nodes, for servers, which report it to clients, and for monitoring.
//!
//! A process reports on its own compute nodes only; about others it reports what those know. None
//! of this is on the path of a transaction. Coordinators count on their own, and a job asks them
//! for their counts ([`Cluster::coordinator_figures`]).

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lotus_fabric::counters::VerbCounters;
use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::machines::Machines;
use lotus_mvcc::TableSpec;

use crate::api::cache_counters::CacheCounters;
use crate::api::moves::MoveCounters;
use crate::api::seat::Seat;
use crate::cluster::handle::Cluster;
use crate::cluster::shards::Balancing;
use crate::node::load_counts::NodeCounts;
use crate::node::shared::ComputeNode;
use crate::txn::submit::Submitted;

/// Compute node that grants a shard's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardOwner {
    /// Place of the owner among the compute nodes; `None` while the shard has no owner.
    pub compute_node: Option<usize>,
    /// Shard epoch in which it became the owner.
    pub epoch: u32,
}

/// Counts of one coordinator since its start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CoordinatorFigures {
    /// Verbs and messages.
    pub verbs: VerbCounters,
    /// Look-ups in its node's caches.
    pub caches: CacheCounters,
    /// Attempts begun, those of its own upkeep included.
    pub begun: u64,
}

/// Status of one compute node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeFigures {
    /// Whether it takes part in the cluster; false once it has panicked or been fenced.
    pub takes_part: bool,
    /// Whether it may begin transactions; false while its lease has run out.
    pub serves: bool,
    /// Whether its transactions may begin as far as the other nodes are concerned; false while
    /// nodes wait for each other, as when a memory node is lost or a dropped table is cleared.
    pub is_open: bool,
    /// Rest of its lease since its last beat that landed, zero once the lease has run out; `None`
    /// without a lease or a beat.
    pub lease_left: Option<Duration>,
    /// Number of shards that it owns.
    pub shards_owned: usize,
    /// Number of locks in its table, each counted once for every holder.
    pub locks_held: usize,
    /// Number of slots of its lock table.
    pub lock_slots: usize,
    /// Last configuration epoch that it has seen.
    pub epoch: u32,
    /// Number of expelled nodes that it knows of.
    pub expelled: usize,
    /// Number of compute nodes that its messages have not reached for a lease.
    pub unreached: usize,
    /// Hand-overs of its shards to other nodes.
    pub moves: MoveCounters,
    /// Shard that takes most of its time and would take as much on any other node; `None` without
    /// [load balancing](crate::ClusterBuilder::balance).
    pub too_hot: Option<ShardId>,
    /// Whether load balancing gives its shards away.
    pub balancing: Balancing,
}

/// Bytes of a lock table's slot (LOTUS §4.1).
const LOCK_SLOT_BYTES: usize = 8;

impl<M: Machines> Cluster<M> {
    /// All tables in use, by their numbers.
    pub fn tables(&self) -> Vec<(TableId, TableSpec)> {
        let known = self.shared.known_tables();
        known.serving().map(|table| (table.id(), table.spec().clone())).collect()
    }

    /// A table that was dropped and has memory still, as far as this process knows.
    pub fn dropped_table(&self) -> Option<TableId> {
        self.shared.dropped_table()
    }

    /// Number of dropped tables whose memory has been given back, as far as this process knows.
    pub fn tables_cleared(&self) -> u64 {
        let cleared = self.shared.nodes.iter().map(|node| node.slots.cleared());
        u64::from(cleared.max().unwrap_or(0))
    }

    /// Owner of a shard's locks now, as compute node `asked` knows it.
    ///
    /// # Panics
    /// If there is no such compute node in this process.
    pub fn shard_owner(&self, asked: usize, shard: ShardId) -> ShardOwner {
        let owner = self.hosted(asked).shards.owner(shard);
        ShardOwner { compute_node: self.shared.index_of(owner.node), epoch: owner.epoch.0 }
    }

    /// Whether a compute node takes part in the cluster, as far as it knows itself.
    ///
    /// # Panics
    /// If there is no such compute node in this process.
    pub fn takes_part(&self, compute_node: usize) -> bool {
        !self.hosted(compute_node).has_failed()
    }

    /// Compute nodes that take part, with the numbers of their lives, as compute node `asked` knows
    /// them. No two lives of one cluster have the same number.
    ///
    /// # Panics
    /// If there is no such compute node in this process.
    pub fn live_nodes(&self, asked: usize) -> Vec<(usize, u16)> {
        let live = self.hosted(asked).members.live().into_iter();
        live.filter_map(|(node, life)| Some((self.shared.index_of(node)?, life.raw()))).collect()
    }

    /// Status of a compute node. Scans its whole lock table.
    ///
    /// # Panics
    /// If there is no such compute node in this process.
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

    /// Places of the compute nodes that messages of a compute node have not reached for a lease;
    /// empty without a lease.
    ///
    /// # Panics
    /// If there is no such compute node in this process.
    pub fn unreached(&self, compute_node: usize) -> Vec<usize> {
        let node = self.hosted(compute_node);
        let Some(lease) = self.shared.config.lease else { return Vec::new() };
        let unreached = self.shared.fabric.unreached(node.id, lease);
        unreached.into_iter().filter_map(|(peer, _)| self.shared.index_of(peer)).collect()
    }

    fn hosted(&self, compute_node: usize) -> Arc<ComputeNode> {
        self.shared.hosted(compute_node).expect("a compute node of this process")
    }

    /// Counts of a coordinator, which answers between transactions.
    ///
    /// # Panics
    /// If there is no such coordinator in this process.
    pub fn coordinator_figures(&self, seat: Seat) -> Submitted<CoordinatorFigures> {
        self.submit(seat, |session| async move {
            let coordinator = session.coordinator();
            Ok(CoordinatorFigures {
                verbs: coordinator.lane.counters(),
                caches: coordinator.caches.get(),
                begun: coordinator.begun.get(),
            })
        })
    }
}
