//! Shards as an operator sees them: who owns which, and moving them by hand.

use std::sync::PoisonError;

use async_channel::Receiver;
use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::machines::Machines;
use lotus_mvcc::PrimaryKey;
use lotus_router::ShardEpoch;

use crate::balance::{self, NodeCounts};
use crate::cluster::Cluster;
use crate::config::LockKind;
use crate::error::{ClusterError, TxnError};
use crate::hand_over::{MOST_AT_ONCE, MoveCounters, MoveError, Moved, Order};
use crate::shared::{ComputeNode, Shared};

/// Who grants a shard's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// The place, among the compute nodes, of its owner; `None` while it has none, or changes it.
    pub owner: Option<usize>,
    /// Since which epoch of the shard.
    pub epoch: ShardEpoch,
    /// How many of its locks were asked for in the last interval of [load
    /// balancing](crate::ClusterBuilder::balance); 0 without that.
    pub requests: u64,
}

/// A move under way. Dropping it changes nothing about the move.
#[derive(Debug)]
#[must_use = "wait for it to learn the outcome"]
pub struct Moving {
    outcome: Receiver<Result<Moved, MoveError>>,
}

impl Moving {
    /// The outcome, once it is known.
    pub fn outcome(&self) -> Option<Result<Moved, MoveError>> {
        match self.outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(async_channel::TryRecvError::Empty) => None,
            Err(async_channel::TryRecvError::Closed) => Some(Err(MoveError::Failed)),
        }
    }
}

impl<M: Machines> Cluster<M> {
    /// Who owns which shard, as the routing layer knows it, and what the owners have published.
    ///
    /// # Errors
    /// `Unreachable`, if the memory node that has what was published cannot be read.
    pub fn shards(&self) -> Result<Vec<ShardStatus>, ClusterError> {
        let shared = &self.shared;
        let read = shared
            .control
            .with_lane(|lane| async move { balance::read_rates(&lane, &shared.placement).await })?;
        let rates = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        let status = |(shard, requests)| {
            let owner = shared.shards.owner(shard);
            let (owner, epoch) = (shared.index_of(owner.node), owner.epoch);
            ShardStatus { shard, owner, epoch, requests }
        };
        Ok(ShardId::all().zip(rates).map(status).collect())
    }

    /// Hand-overs of all compute nodes of this process so far.
    pub fn move_counters(&self) -> MoveCounters {
        let mut all = MoveCounters::default();
        for node in &self.shared.nodes {
            all += *node.moves.lock().unwrap_or_else(PoisonError::into_inner);
        }
        all
    }

    /// Shards that take most of their owner's time, and would take as much elsewhere: load
    /// balancing cannot help, only whoever spreads their rows over more shards.
    pub fn too_hot(&self) -> Vec<ShardId> {
        let counts = self.shared.nodes.iter().filter_map(|node| node.counts.as_ref());
        counts.filter_map(NodeCounts::stuck).collect()
    }

    /// The shard of a row.
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

    /// Gives shards of one owner to the compute node at place `to`, all of them or none, while
    /// transactions run (LOTUS §4.3); waits until that is done.
    ///
    /// # Errors
    /// [`MoveError`]; the shards are where they were, unless it is `Failed`.
    pub fn move_shards(&self, shards: &[ShardId], to: usize) -> Result<Moved, MoveError> {
        let moving = self.start_move(shards, to)?;
        self.machines().wait(&moving.outcome).unwrap_or(Err(MoveError::Failed))
    }

    /// As [`Cluster::move_shards`], without waiting.
    ///
    /// # Errors
    /// What can be said at once; `NotOwner` as well if the owner is in another process.
    ///
    /// # Panics
    /// If the shards are none, or more than 128.
    pub fn start_move(&self, shards: &[ShardId], to: usize) -> Result<Moving, MoveError> {
        self.shared.start_move(shards, to)
    }
}

impl Shared {
    /// See [`Cluster::start_move`].
    pub(crate) fn start_move(&self, shards: &[ShardId], to: usize) -> Result<Moving, MoveError> {
        assert!((1..=MOST_AT_ONCE).contains(&shards.len()), "from 1 to {MOST_AT_ONCE} shards");
        if self.config.locks != LockKind::Lotus {
            return Err(MoveError::NoOwners);
        }
        let to = self.peers.get(to).ok_or(MoveError::NoSuchNode(to))?.id;
        let owner = self.keeper_of(shards[0]).ok_or(MoveError::NotOwner(shards[0]))?;
        let (reply, outcome) = async_channel::bounded(1);
        // The node takes orders as long as there is a cluster.
        let _ = owner.orders.0.try_send(Order { shards: shards.to_vec(), to, reply });
        Ok(Moving { outcome })
    }

    /// The node that keeps the locks of a shard, whether it grants more or not. This process knows
    /// better than any node of it, and asks each what it knows of itself.
    pub(crate) fn keeper_of(&self, shard: ShardId) -> Option<&ComputeNode> {
        let keeps = |node: &&ComputeNode| !node.has_failed() && node.shards.keeps(shard, node.id);
        self.nodes.iter().map(|node| &**node).find(keeps)
    }
}
