//! Operator interface to shards: owners, and moves by hand.

use std::sync::{Arc, PoisonError};

use async_channel::Receiver;
use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::lane::BatchError;
use lotus_fabric::machines::MachinesExt;
use lotus_mvcc::PrimaryKey;
use lotus_router::ShardEpoch;

use crate::api::config::LockKind;
use crate::api::error::{ClusterError, TxnError};
use crate::api::moves::{MoveCounters, MoveError, Moved};
use crate::cluster::handle::Cluster;
use crate::node::peers::load_counts::NodeCounts;
use crate::node::peers::moves::Order;
use crate::node::shared::{ComputeNode, Shared};
use crate::node::threads::home::INSIDE;
use crate::shards::hand_over::MOST_AT_ONCE;
use crate::shards::{balance, ownership};
use crate::txn::session::SessionView;

/// Ownership and load of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// Place of the owner among the compute nodes; `None` while the shard has no owner, or is
    /// changing owners.
    pub owner: Option<usize>,
    /// Shard epoch in which the owner took over.
    pub epoch: ShardEpoch,
    /// Number of lock requests in the last interval of [load
    /// balancing](crate::ClusterBuilder::balance); 0 without load balancing.
    pub requests: u64,
}

/// State of load balancing: whether overloaded compute nodes give shards away (LOTUS §4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Balancing {
    /// Enabled.
    On,
    /// Paused for now.
    Paused,
    /// Not configured when the cluster was made.
    Never,
}

/// A move under way. Dropping the handle does not affect the move.
#[derive(Debug)]
#[must_use = "wait for it to learn the outcome"]
pub struct Moving {
    outcome: Receiver<Result<Moved, MoveError>>,
}

impl Moving {
    /// Returns the outcome; `None` while the move is under way.
    pub fn outcome(&self) -> Option<Result<Moved, MoveError>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(async_channel::TryRecvError::Empty) => None,
            Err(async_channel::TryRecvError::Closed) => Some(Err(MoveError::Failed)),
        }
    }
}

impl Cluster {
    /// Returns the owner and the published load of each shard, by the words in the memory pool; a
    /// node known to this process as expelled owns nothing.
    ///
    /// # Errors
    /// `Unreachable`, if the memory node with the words cannot be read.
    pub fn shards(&self) -> Result<Vec<ShardStatus>, ClusterError> {
        let shared = &self.shared;
        let read = shared.control.with_lane(|lane| async move {
            let placement = shared.surviving();
            let rates = balance::read_rates(&lane, &placement).await?;
            Ok::<_, BatchError>((rates, ownership::read_owners(&lane, &placement).await?))
        })?;
        let (rates, owners) = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        if let Some(node) = self.shared.serving_node() {
            ShardId::all().zip(owners).for_each(|(shard, owner)| node.learn(shard, owner));
        }
        let status = |(shard, requests)| {
            let owner = shared.shards.owner(shard);
            let (owner, epoch) = (shared.index_of(owner.node), owner.epoch);
            ShardStatus { shard, owner, epoch, requests }
        };
        Ok(ShardId::all().zip(rates).map(status).collect())
    }

    /// Returns the hand-over counts of all compute nodes of this process so far.
    pub fn move_counters(&self) -> MoveCounters {
        let mut all = MoveCounters::default();
        for node in &self.shared.nodes {
            all += *node.moves.lock().unwrap_or_else(PoisonError::into_inner);
        }
        all
    }

    /// Sets whether compute nodes of this process give shards away by themselves; loads are
    /// published in any case. No effect without [load balancing](crate::ClusterBuilder::balance).
    pub fn set_balancing(&self, balancing: Balancing) {
        for node in &self.shared.nodes {
            let counts = node.counts.iter();
            counts.for_each(|counts| counts.set_paused(balancing == Balancing::Paused));
        }
    }

    /// Returns the shards that take most of their owner's time, and would take as much on any other
    /// node: load balancing cannot help, only spreading the rows over more shards.
    pub fn too_hot(&self) -> Vec<ShardId> {
        let nodes = self.shared.nodes.iter();
        nodes.filter_map(|node| node.counts.as_ref().and_then(NodeCounts::stuck)).collect()
    }

    /// Returns the shard of a row.
    ///
    /// # Errors
    /// `UnknownTable`.
    pub fn shard_of(
        &self,
        table: TableId,
        key: impl Into<PrimaryKey>,
    ) -> Result<ShardId, TxnError> {
        let def = self.shared.table(table).ok_or(TxnError::UnknownTable(table))?;
        Ok(def.key(&key.into()).shard())
    }

    /// Gives shards of one owner to the compute node at place `to`, all or none, while transactions
    /// run (LOTUS §4.3); waits for the end of the move.
    ///
    /// # Errors
    /// [`MoveError`]. After `Failed` and `NoAnswer` the shards may have moved; after every other
    /// error they have not.
    pub fn move_shards(&self, shards: &[ShardId], to: usize) -> Result<Moved, MoveError> {
        if self.name().coordinator_here().is_some() {
            return Err(MoveError::Misuse(INSIDE));
        }
        let moving = self.start_move(shards, to)?;
        self.machines().wait(&moving.outcome).unwrap_or(Err(MoveError::Failed))
    }

    /// Starts a move like [`Cluster::move_shards`], without waiting. If the owner is in another
    /// process, a node of this process asks the owner by message.
    ///
    /// # Errors
    /// Errors known at once.
    ///
    /// # Panics
    /// If `shards` is empty, or has more than 128.
    pub fn start_move(&self, shards: &[ShardId], to: usize) -> Result<Moving, MoveError> {
        self.shared.start_move(shards, to)
    }

    /// Starts a move like [`Cluster::start_move`], from the compute node at place `asked`, which
    /// asks the owner if another node owns the shards.
    ///
    /// # Errors
    /// Errors known at once; `NoSuchNode` also if node `asked` is not in this process.
    ///
    /// # Panics
    /// As [`Cluster::start_move`].
    pub fn start_move_by(
        &self,
        asked: usize,
        shards: &[ShardId],
        to: usize,
    ) -> Result<Moving, MoveError> {
        let shared = &self.shared;
        shared.order(&*shared.hosted(asked).ok_or(MoveError::NoSuchNode(asked))?, shards, to)
    }
}

impl Shared {
    /// See [`Cluster::start_move`].
    pub(crate) fn start_move(&self, shards: &[ShardId], to: usize) -> Result<Moving, MoveError> {
        let keeper = shards.first().and_then(|shard| self.keeper_of(*shard));
        let node = keeper.or_else(|| self.serving_node());
        let node = node.ok_or(MoveError::Failed)?;
        self.order(&node, shards, to)
    }

    fn order(
        &self,
        node: &ComputeNode,
        shards: &[ShardId],
        to: usize,
    ) -> Result<Moving, MoveError> {
        assert!((1..=MOST_AT_ONCE).contains(&shards.len()), "from 1 to {MOST_AT_ONCE} shards");
        if self.config.locks != LockKind::Lotus {
            return Err(MoveError::NoOwners);
        }
        let to = self.peers.get(to).ok_or(MoveError::NoSuchNode(to))?.id;
        let (reply, outcome) = async_channel::bounded(1);
        let order = Order { shards: shards.to_vec(), since: Vec::new(), to, reply };
        // A failed node takes no order, and so drops the reply.
        let _ = node.orders.0.try_send(order);
        Ok(Moving { outcome })
    }

    fn serving_node(&self) -> Option<Arc<ComputeNode>> {
        self.nodes.iter().find(|node| !node.has_failed())
    }
}

impl SessionView {
    /// Gives shards away as [`Cluster::start_move`](crate::Cluster::start_move) does.
    ///
    /// # Errors
    /// As [`Cluster::start_move`](crate::Cluster::start_move).
    ///
    /// # Panics
    /// As [`Cluster::start_move`](crate::Cluster::start_move).
    pub fn start_move(&self, shards: &[ShardId], to: usize) -> Result<Moving, MoveError> {
        self.slot.coordinator.shared.start_move(shards, to)
    }
}
