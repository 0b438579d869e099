//! What a cluster says about itself: to servers, which tell it to clients, and to whoever watches.
//!
//! A process answers for its own compute nodes only; what it says of the others is what those know.
//! Nothing here is asked on the way of a transaction. What coordinators count is theirs alone and
//! asked of them by a job ([`Cluster::coordinator_figures`]).

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lotus_fabric::counters::VerbCounters;
use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::machines::Machines;
use lotus_mvcc::TableSpec;

use crate::balance::NodeCounts;
use crate::cache_counters::CacheCounters;
use crate::cluster::{Cluster, Seat};
use crate::hand_over::MoveCounters;
use crate::shards::Balancing;
use crate::shared::ComputeNode;
use crate::submit::Submitted;

/// Who grants a shard's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardOwner {
    /// Its place among the compute nodes; `None` while nobody does.
    pub compute_node: Option<usize>,
    /// Since which epoch of the shard.
    pub epoch: u32,
}

/// What one coordinator has counted since it was started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CoordinatorFigures {
    /// Verbs and messages.
    pub verbs: VerbCounters,
    /// Look-ups in its node's caches.
    pub caches: CacheCounters,
    /// Attempts of transactions that have begun, its own errands included.
    pub begun: u64,
}

/// How one compute node is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeFigures {
    /// It takes part in the cluster; a node that has panicked or was fenced does not.
    pub takes_part: bool,
    /// It may begin transactions; not while its lease has run out.
    pub serves: bool,
    /// How much of its lease is left since the last beat that has landed, if it has beaten; zero
    /// once it has run out.
    pub lease_left: Option<Duration>,
    /// How many shards' locks it grants.
    pub shards_owned: usize,
    /// How many locks its table holds, each as often as it has holders.
    pub locks_held: usize,
    /// How many slots its table has.
    pub lock_slots: usize,
    /// The configuration epoch that it has seen.
    pub epoch: u32,
    /// How many nodes it knows to have been expelled.
    pub expelled: usize,
    /// What it has given to others.
    pub moves: MoveCounters,
    /// With [load balancing](crate::ClusterBuilder::balance), a shard that takes most of its time
    /// and would take as much elsewhere.
    pub too_hot: Option<ShardId>,
    /// Whether it gives shards away by itself.
    pub balancing: Balancing,
}

/// A slot of a lock table, in bytes (LOTUS §4.1).
const LOCK_SLOT_BYTES: usize = 8;

impl<M: Machines> Cluster<M> {
    /// All tables, by their numbers.
    pub fn tables(&self) -> Vec<(TableId, TableSpec)> {
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.iter().map(|table| (table.id(), table.spec().clone())).collect()
    }

    /// Who grants the locks of a shard now, as compute node `asked` sees it.
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

    /// How a compute node is doing. Looks at its whole lock table.
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
            moves: *node.moves.lock().unwrap_or_else(PoisonError::into_inner),
            too_hot: node.counts.as_ref().and_then(NodeCounts::stuck),
            balancing: match &node.counts {
                None => Balancing::Never,
                Some(counts) if counts.is_paused() => Balancing::Paused,
                Some(_) => Balancing::On,
            },
        }
    }

    fn hosted(&self, compute_node: usize) -> Arc<ComputeNode> {
        self.shared.hosted(compute_node).expect("a compute node of this process")
    }

    /// What a coordinator has counted. It answers between transactions.
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
