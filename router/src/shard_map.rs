//! Which compute node grants a shard's locks, and since which epoch.
//!
//! # What it is
//! One atomic word per shard, readable by every coordinator at the price of a load. It starts as
//! an even split, every compute node getting a shard in turn, and changes a shard at a time, by
//! compare-and-swap, so two movers of one shard cannot both succeed (H19).
//!
//! # Epochs
//! Every change of a shard's word raises that shard's epoch, also when the owner stays: a compute
//! node that restarts with an empty lock table owns its shards anew. Lock and unlock requests
//! carry the epoch under which the requester saw the owner; a receiver whose word differs refuses
//! them (H4, H19). An owner seen twice under one epoch has therefore held the shard in between.
//!
//! # What it is not
//! It does not wait for locks to drain and tells nobody: the engine orders hand-over around
//! [`ShardMap::transfer`].
//!
//! # Word
//! bits 0..16 owner, bits 16..48 epoch, bits 48..64 zero.

use std::sync::atomic::{AtomicU64, Ordering};

use lotus_fabric::ids::{NodeId, ShardId};

use crate::topology::{Role, TopologyError, check_nodes};

/// A version of one shard's ownership; only ever grows. Not the cluster's configuration epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardEpoch(pub u32);

impl ShardEpoch {
    /// The epoch of the initial split. Zero is never in use, so a zeroed request matches nothing.
    pub const FIRST: Self = Self(1);
}

/// Owns the shards whose owner was lost, until somebody adopts them: no node has this number, so
/// nobody grants their locks.
pub const NOBODY: NodeId = NodeId(u16::MAX);

/// Who grants a shard's locks, and since when.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// The compute node.
    pub node: NodeId,
    /// The epoch in which it became the owner.
    pub epoch: ShardEpoch,
}

impl Owner {
    const fn pack(self) -> u64 {
        (self.epoch.0 as u64) << 16 | self.node.0 as u64
    }

    const fn unpack(word: u64) -> Self {
        Self { node: NodeId(word as u16), epoch: ShardEpoch((word >> 16) as u32) }
    }
}

/// Why a shard was not transferred. It is where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// Somebody else moved the shard first; decide again from `current`.
    #[error("shard {} is owned by node {} in epoch {} now", shard.raw(), current.node.0,
        current.epoch.0)]
    Stale {
        /// The shard.
        shard: ShardId,
        /// Its owner now.
        current: Owner,
    },
    /// The shard has been moved 2³² times; it stays with its owner for the cluster's life.
    #[error("shard {} has used up its epochs", shard.raw())]
    EpochsExhausted {
        /// The shard.
        shard: ShardId,
    },
}

/// The owner of every shard. Shared by all coordinators of a compute node; 32 KiB.
#[derive(Debug)]
pub struct ShardMap {
    words: Box<[AtomicU64]>,
}

impl ShardMap {
    /// Deals the shards out, one to each of `compute_nodes` in turn: so tables whose critical
    /// field takes few values, and which therefore have only the first few shards, are spread
    /// evenly too.
    ///
    /// # Errors
    /// When the nodes are none, too many or named twice.
    pub fn even(compute_nodes: &[NodeId]) -> Result<Self, TopologyError> {
        check_nodes(Role::Compute, compute_nodes)?;
        let words = ShardId::all().map(|shard| {
            let index = usize::from(shard.raw()) % compute_nodes.len();
            let owner = Owner { node: compute_nodes[index], epoch: ShardEpoch::FIRST };
            AtomicU64::new(owner.pack())
        });
        Ok(Self { words: words.collect() })
    }

    /// The owner of `shard` now.
    #[inline]
    pub fn owner(&self, shard: ShardId) -> Owner {
        // Acquire pairs with the release in `transfer`: who sees the new owner also sees all that
        // the mover did before naming it. On x86-64 it is a plain load.
        Owner::unpack(self.word(shard).load(Ordering::Acquire))
    }

    /// Whether `claim` is still the owner of `shard`, in the same epoch.
    #[inline]
    pub fn is_current(&self, shard: ShardId, claim: Owner) -> bool {
        self.owner(shard) == claim
    }

    /// Gives `shard` to `to` under the next epoch, if `expected` still owns it; returns the new
    /// ownership. `to` may be the owner already, which only raises the epoch.
    ///
    /// # Errors
    /// [`TransferError::Stale`] when another transfer came first.
    pub fn transfer(
        &self,
        shard: ShardId,
        expected: Owner,
        to: NodeId,
    ) -> Result<Owner, TransferError> {
        let Some(epoch) = expected.epoch.0.checked_add(1) else {
            return Err(TransferError::EpochsExhausted { shard });
        };
        let next = Owner { node: to, epoch: ShardEpoch(epoch) };
        // Release publishes what the mover did before; acquire on either outcome shows what the
        // last mover did, since the caller acts on the answer.
        self.word(shard)
            .compare_exchange(expected.pack(), next.pack(), Ordering::AcqRel, Ordering::Acquire)
            .map(|_| next)
            .map_err(|word| TransferError::Stale { shard, current: Owner::unpack(word) })
    }

    #[inline]
    fn word(&self, shard: ShardId) -> &AtomicU64 {
        &self.words[usize::from(shard.raw())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: ShardId = ShardId::from_low_bits(7);

    fn map(compute_nodes: u16) -> ShardMap {
        let nodes: Vec<NodeId> = (0..compute_nodes).map(NodeId).collect();
        ShardMap::even(&nodes).unwrap()
    }

    #[test]
    fn ownership_survives_packing() {
        for (node, epoch) in [(0, 1), (u16::MAX, u32::MAX), (0x1234, 0x9ABC_DEF0)] {
            let owner = Owner { node: NodeId(node), epoch: ShardEpoch(epoch) };
            assert_eq!(Owner::unpack(owner.pack()), owner);
        }
    }

    #[test]
    fn the_first_split_is_even_also_among_the_first_few_shards() {
        for compute_nodes in 1..=64 {
            let map = map(compute_nodes);
            let mut sizes = vec![0; usize::from(compute_nodes)];
            for shard in ShardId::all() {
                sizes[usize::from(map.owner(shard).node.0)] += 1;
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn of_two_movers_that_saw_the_same_owner_one_succeeds() {
        let map = map(3);
        let seen = map.owner(SHARD);
        let first = map.transfer(SHARD, seen, NodeId(1)).unwrap();
        assert_eq!(
            map.transfer(SHARD, seen, NodeId(2)),
            Err(TransferError::Stale { shard: SHARD, current: first })
        );
        assert_eq!(map.owner(SHARD), Owner { node: NodeId(1), epoch: ShardEpoch(2) });
    }

    /// A shard that goes away and comes back must not honour requests from before (H19).
    #[test]
    fn a_shard_that_returns_is_owned_anew() {
        let map = map(2);
        let before = map.owner(SHARD);
        let away = map.transfer(SHARD, before, NodeId(1)).unwrap();
        let back = map.transfer(SHARD, away, before.node).unwrap();
        assert_eq!(back.node, before.node);
        assert!(!map.is_current(SHARD, before));
        assert!(map.is_current(SHARD, back));
    }

    #[test]
    fn epochs_do_not_wrap() {
        let last = Owner { node: NodeId(0), epoch: ShardEpoch(u32::MAX) };
        assert_eq!(
            map(1).transfer(SHARD, last, NodeId(0)),
            Err(TransferError::EpochsExhausted { shard: SHARD })
        );
    }
}
