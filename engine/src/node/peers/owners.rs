//! Owners of shards, from the view of a compute node (H4).

use crate::node::shared::{ComputeNode, Shared};
use lotus_fabric::ids::ShardId;
use lotus_recovery::Membership;
use lotus_router::Placement;
use lotus_router::{NOBODY, Owner};
use std::sync::Arc;

impl ComputeNode {
    /// Learns that `owner` has `shard`, unless a later epoch is known. An owner known to be
    /// expelled counts as none.
    pub(crate) fn learn(&self, shard: ShardId, owner: Owner) {
        if self.shards.owner(shard).epoch >= owner.epoch {
            return;
        }
        // Hold the list of expelled nodes, so that no expulsion is noted between check and update.
        self.members.with_expelled(|expelled| {
            let out = expelled.iter().any(|(node, _)| *node == owner.node);
            let node = if out { NOBODY } else { owner.node };
            self.shards.learn(shard, Owner { node, ..owner });
            self.routes.learn(shard, Owner { node, ..owner });
        });
        debug_assert!(
            self.shards.owner(shard).epoch >= owner.epoch,
            "I46: shard epochs never come back"
        );
    }

    /// Whether this node knows an owner of every shard.
    pub(crate) fn knows_all_owners(&self) -> bool {
        ShardId::all().all(|shard| self.shards.owner(shard).node != NOBODY)
    }
}

impl Shared {
    /// Returns this process's node that keeps the locks of a shard, whether still granting or not.
    /// Asks the nodes directly, possible only within the process.
    pub(crate) fn keeper_of(&self, shard: ShardId) -> Option<Arc<ComputeNode>> {
        let keeps =
            |node: &Arc<ComputeNode>| !node.has_failed() && node.shards.keeps(shard, node.id);
        self.nodes.iter().find(keeps)
    }
}

impl ComputeNode {
    /// Whether this life of the node is a member: another life may have the node's place.
    pub(crate) fn takes_part_in(&self, now: &Membership) -> bool {
        now.has_life(self.id, self.incarnation)
    }

    /// Learns the memory nodes in use, and whether this node is still a member. An expelled node
    /// uses no memory node that joined after the expulsion: the memory node may not have fenced it
    /// yet (H2).
    pub(crate) fn learn_placement(&self, now: &Membership, first: &Placement) -> bool {
        let takes_part = self.takes_part_in(now);
        match takes_part {
            true => self.configuration.learn(now, first),
            false => self.expel(),
        }
        takes_part
    }
}
