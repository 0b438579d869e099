//! Choice of the compute node that runs a transaction: hybrid routing (LOTUS §4.3).
//!
//! A read-write transaction goes to the owner of its first record's shard, where most locks are
//! local and conflicting transactions meet early. A read-only transaction takes no locks, so any
//! compute node will do, and a uniformly random choice balances the load.
//!
//! Routing is advice: a transaction is correct on any compute node, and a stale answer only costs a
//! few remote locks. The random number comes from the caller, because only `fabric::env` owns
//! randomness.

use std::sync::Arc;

use lotus_fabric::ids::{NodeId, ShardId};

use crate::shard_map::{NOBODY, ShardMap};
use crate::topology::{Role, TopologyError, check_nodes};

/// Properties of a transaction that routing depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// The transaction may write.
    ReadWrite {
        /// Shard of the transaction's first record.
        first: ShardId,
    },
    /// The transaction only reads.
    ReadOnly,
}

/// Rule by which transactions are sent to compute nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Read-write transactions to the owner of the first record, read-only transactions to any node
    /// (LOTUS §4.3).
    #[default]
    Hybrid,
    /// All transactions to any node: the paper's ablation.
    Random,
}

/// Sends transactions to compute nodes. Cheap to clone: every client has a router.
#[derive(Clone, Debug)]
pub struct Router {
    shards: Arc<ShardMap>,
    compute_nodes: Arc<[NodeId]>,
    policy: Policy,
}

impl Router {
    /// A router over `compute_nodes` that follows `shards`.
    ///
    /// # Errors
    /// If `compute_nodes` is empty or too long, or names a node twice.
    pub fn new(
        shards: Arc<ShardMap>,
        compute_nodes: &[NodeId],
        policy: Policy,
    ) -> Result<Self, TopologyError> {
        check_nodes(Role::Compute, compute_nodes)?;
        Ok(Self { shards, compute_nodes: compute_nodes.into(), policy })
    }

    /// The compute node for a transaction with this `intent`. `random` is uniform over 64 bits; it
    /// is ignored where the intent alone decides.
    #[inline]
    pub fn route(&self, intent: Intent, random: u64) -> NodeId {
        match (self.policy, intent) {
            (Policy::Hybrid, Intent::ReadWrite { first }) => match self.shards.owner(first).node {
                // No node can lock the row now. Any node will say so.
                NOBODY => self.anywhere(random),
                owner => owner,
            },
            (Policy::Hybrid, Intent::ReadOnly) | (Policy::Random, _) => self.anywhere(random),
        }
    }

    #[inline]
    fn anywhere(&self, random: u64) -> NodeId {
        // Multiply-shift: uniform to within 2⁻⁵⁸ for 64 nodes, and no division.
        let scaled = u128::from(random) * self.compute_nodes.len() as u128;
        self.compute_nodes[(scaled >> 64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [NodeId; 3] = [NodeId(10), NodeId(11), NodeId(12)];

    fn router(policy: Policy) -> (Arc<ShardMap>, Router) {
        let shards = Arc::new(ShardMap::even(&NODES).unwrap());
        (Arc::clone(&shards), Router::new(shards, &NODES, policy).unwrap())
    }

    #[test]
    fn read_write_follows_the_first_shard_also_after_it_moved() {
        let (shards, router) = router(Policy::Hybrid);
        let first = ShardId::from_low_bits(4001);
        assert_eq!(router.route(Intent::ReadWrite { first }, 0), NodeId(12));
        shards.learn(first, shards.owner(first).next(NodeId(10)).unwrap());
        assert_eq!(router.route(Intent::ReadWrite { first }, u64::MAX), NodeId(10));
    }

    #[test]
    fn read_write_goes_anywhere_while_nobody_owns_the_shard() {
        let (shards, router) = router(Policy::Hybrid);
        let first = ShardId::from_low_bits(4001);
        shards.learn(first, shards.owner(first).next(NOBODY).unwrap());
        assert_eq!(router.route(Intent::ReadWrite { first }, u64::MAX), NodeId(12));
        assert_eq!(router.route(Intent::ReadWrite { first }, 0), NodeId(10));
    }

    #[test]
    fn random_numbers_map_to_nodes_in_equal_parts() {
        let (_, router) = router(Policy::Random);
        let first = ShardId::from_low_bits(0);
        let third = u64::MAX / 3;
        for intent in [Intent::ReadOnly, Intent::ReadWrite { first }] {
            let routed = [0, third, third + 1, 2 * third, 2 * third + 1, u64::MAX]
                .map(|random| router.route(intent, random).0);
            assert_eq!(routed, [10, 10, 11, 11, 12, 12]);
        }
    }

    #[test]
    fn read_only_is_random_under_the_hybrid_policy_too() {
        let (_, router) = router(Policy::Hybrid);
        assert_eq!(router.route(Intent::ReadOnly, 0), NodeId(10));
        assert_eq!(router.route(Intent::ReadOnly, u64::MAX), NodeId(12));
    }
}
