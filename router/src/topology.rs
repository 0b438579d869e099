//! Limits and checks on the nodes of a cluster.
//!
//! All limits are defined in this module: the sizes that depend on the number of nodes (region
//! numbers, log slots, the width of a group number on the wire) derive from the limits.

use lotus_fabric::ids::{NodeId, NodeSet};

/// Largest number of memory nodes in one cluster.
pub const MAX_MEMORY_NODES: usize = 64;
/// Largest number of compute nodes in one cluster.
pub const MAX_COMPUTE_NODES: usize = 64;
/// Largest number of replicas of one shard, the primary included.
pub const MAX_REPLICAS: usize = 8;

/// Function of a node in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Holds records.
    Memory,
    /// Runs transactions and holds locks.
    Compute,
}

impl Role {
    const fn limit(self) -> usize {
        match self {
            Self::Memory => MAX_MEMORY_NODES,
            Self::Compute => MAX_COMPUTE_NODES,
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
        })
    }
}

/// Reason why nodes cannot form a cluster. Nothing has been set up; correct the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// A cluster needs a node of this role; name at least one.
    #[error("a cluster needs at least one {0} node")]
    NoNodes(Role),
    /// More nodes than the formats have room for; leave some out.
    #[error("{count} {role} nodes are more than the limit of {limit}", limit = role.limit())]
    TooManyNodes {
        /// Role of the nodes.
        role: Role,
        /// Number of nodes given.
        count: usize,
    },
    /// A node is named twice for one role; name it once.
    #[error("{role} node {} is named twice", node.0)]
    DuplicateNode {
        /// Role of the node.
        role: Role,
        /// Node that is named twice.
        node: NodeId,
    },
    /// A node's number is too large for a set of nodes; number the nodes from zero.
    #[error("node number {} is not below the limit of {}", .0.0, NodeSet::LIMIT)]
    NodeNumberTooLarge(NodeId),
    /// Zero replicas were asked for, which would store no data; ask for at least one.
    #[error("a shard needs at least one replica")]
    NoReplicas,
    /// Each replica needs a separate memory node; add nodes or ask for fewer replicas.
    #[error("{replicas} replicas need as many memory nodes, and there are {memory_nodes}")]
    MoreReplicasThanNodes {
        /// Number of replicas asked for.
        replicas: usize,
        /// Number of memory nodes.
        memory_nodes: usize,
    },
    /// More replicas than the formats have room for; ask for fewer.
    #[error("{replicas} replicas are more than the limit of {MAX_REPLICAS}")]
    TooManyReplicas {
        /// Number of replicas asked for.
        replicas: usize,
    },
}

/// Checks that `nodes` is neither empty nor too long, names no node twice, and has no node with too
/// large a number.
pub(crate) fn check_nodes(role: Role, nodes: &[NodeId]) -> Result<(), TopologyError> {
    if nodes.is_empty() {
        return Err(TopologyError::NoNodes(role));
    }
    if nodes.len() > role.limit() {
        return Err(TopologyError::TooManyNodes { role, count: nodes.len() });
    }
    for (index, &node) in nodes.iter().enumerate() {
        if node.0 >= NodeSet::LIMIT {
            return Err(TopologyError::NodeNumberTooLarge(node));
        }
        if nodes[..index].contains(&node) {
            return Err(TopologyError::DuplicateNode { role, node });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_is_wrong_in_one_sentence() {
        let nodes: Vec<NodeId> = (0..=64).map(NodeId).collect();
        let refusal = |nodes: &[NodeId]| check_nodes(Role::Compute, nodes).unwrap_err().to_string();
        assert_eq!(refusal(&[]), "a cluster needs at least one compute node");
        assert_eq!(refusal(&nodes), "65 compute nodes are more than the limit of 64");
        assert_eq!(refusal(&[NodeId(128)]), "node number 128 is not below the limit of 128");
        assert_eq!(refusal(&[NodeId(3), NodeId(3)]), "compute node 3 is named twice");
        assert_eq!(check_nodes(Role::Memory, &nodes[..64]), Ok(()));
    }
}
