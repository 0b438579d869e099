//! Shards as an operator sees them: who owns which, and moving them by hand.

use async_channel::Receiver;
use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::machines::Machines;
use lotus_mvcc::PrimaryKey;
use lotus_router::ShardEpoch;

use crate::cluster::Cluster;
use crate::config::LockKind;
use crate::error::TxnError;
use crate::hand_over::{MOST_AT_ONCE, MoveError, Moved, Order};
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
    /// Who owns which shard, as the routing layer knows it.
    pub fn shards(&self) -> Vec<ShardStatus> {
        let shared = &self.shared;
        let status = |shard| {
            let owner = shared.shards.owner(shard);
            ShardStatus { shard, owner: shared.index_of(owner.node), epoch: owner.epoch }
        };
        ShardId::all().map(status).collect()
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
    /// What can be said at once.
    ///
    /// # Panics
    /// If the shards are none, or more than 128.
    pub fn start_move(&self, shards: &[ShardId], to: usize) -> Result<Moving, MoveError> {
        let shared = &self.shared;
        assert!((1..=MOST_AT_ONCE).contains(&shards.len()), "from 1 to {MOST_AT_ONCE} shards");
        if shared.config.locks != LockKind::Lotus {
            return Err(MoveError::NoOwners);
        }
        let to = shared.nodes.get(to).ok_or(MoveError::NoSuchNode(to))?.id;
        let owner = shared.keeper_of(shards[0]).ok_or(MoveError::NotOwner(shards[0]))?;
        let (reply, outcome) = async_channel::bounded(1);
        // The node takes orders as long as there is a cluster.
        let _ = owner.orders.0.try_send(Order { shards: shards.to_vec(), to, reply });
        Ok(Moving { outcome })
    }
}

impl Shared {
    /// The node that keeps the locks of a shard, whether it grants more or not. This process knows
    /// better than any node of it, and asks each what it knows of itself.
    pub(crate) fn keeper_of(&self, shard: ShardId) -> Option<&ComputeNode> {
        let keeps = |node: &&ComputeNode| !node.has_failed() && node.shards.keeps(shard, node.id);
        self.nodes.iter().map(|node| &**node).find(keeps)
    }
}
