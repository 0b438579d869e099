//! Outcomes, counters and errors of moving shards between compute nodes (LOTUS §4.3).

use lotus_fabric::ids::ShardId;
use std::time::Duration;

/// Result of a completed hand-over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Moved {
    /// Time without an owner that grants locks of the shards: from the stop to the receiver's
    /// answer, by the giver's clock.
    pub interruption: Duration,
    /// Number of attempts asked to give up.
    pub stragglers: usize,
}

/// Hand-overs since the start, of one compute node or of several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MoveCounters {
    /// Completed hand-overs.
    pub hand_overs: u64,
    /// Shards given away by completed hand-overs.
    pub shards: u64,
    /// Attempts asked to give up.
    pub stragglers: u64,
    /// Sum of all [interruptions](Moved::interruption).
    pub interrupted: Duration,
    /// Longest interruption.
    pub longest: Duration,
}

impl MoveCounters {
    pub(crate) fn count(&mut self, shards: usize, moved: Moved) {
        *self += Self {
            hand_overs: 1,
            shards: shards as u64,
            stragglers: moved.stragglers as u64,
            interrupted: moved.interruption,
            longest: moved.interruption,
        };
    }
}

impl std::ops::AddAssign for MoveCounters {
    fn add_assign(&mut self, other: Self) {
        self.hand_overs += other.hand_overs;
        self.shards += other.shards;
        self.stragglers += other.stragglers;
        self.interrupted += other.interrupted;
        self.longest = self.longest.max(other.longest);
    }
}

/// Error of a move of shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The compute node does not exist; name a different one.
    #[error("there is no compute node {0}")]
    NoSuchNode(usize),
    /// Locks on memory nodes have no owners; configure LOTUS's locks.
    #[error("only LOTUS's locks belong to compute nodes")]
    NoOwners,
    /// The shard has a new owner by now. Ask again.
    #[error("shard {} is not this node's to give", .0.raw())]
    NotOwner(ShardId),
    /// The receiver does not answer. Nothing has changed; name a different receiver, or try later.
    #[error("the receiver does not answer")]
    Unreachable,
    /// A lock was not released in time: its holder is dead, or its commit does not end. The owner
    /// grants locks again; try later.
    #[error("a lock of the shards is not released")]
    Held,
    /// The owner has failed; its shards find heirs.
    #[error("the owner of the shards has failed")]
    Failed,
    /// A shard has been moved 2³² times and stays where it is.
    #[error("a shard has used up its epochs")]
    Exhausted,
    /// The owner is in another process and does not answer, or this node has failed. The shards may
    /// have moved, or may move later: look up their owners.
    #[error("the owner of the shards does not answer")]
    NoAnswer,
    /// The call was made in a transaction's code, and a coordinator's thread cannot wait for a
    /// move. Nothing was begun.
    #[error("{0}")]
    Misuse(&'static str),
}
