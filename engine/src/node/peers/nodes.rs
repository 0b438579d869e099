//! Compute nodes of this process, each in its current life.
//!
//! The set of nodes is fixed at the start; when a life ends, the next life takes its place
//! ([`crate::cluster::rejoin`]). An [`Arc`] of an earlier life stays valid.

use lotus_sabotage::{Rule, broken};
use std::sync::{Arc, PoisonError, RwLock};

use crate::node::shared::ComputeNode;

/// Current lives of the compute nodes; see the module's documentation.
pub(crate) struct Nodes(RwLock<Vec<Arc<ComputeNode>>>);

impl Nodes {
    /// Takes the nodes in the order of their places.
    pub(crate) fn new(nodes: Vec<Arc<ComputeNode>>) -> Self {
        Self(RwLock::new(nodes))
    }

    /// Iterates over the current lives.
    pub(crate) fn iter(&self) -> std::vec::IntoIter<Arc<ComputeNode>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone().into_iter()
    }

    /// Returns the first node; every process has one.
    pub(crate) fn first(&self) -> Arc<ComputeNode> {
        self.iter().next().expect("a process has a compute node")
    }

    /// Replaces a node's life by `next`.
    pub(crate) fn replace(&self, next: &Arc<ComputeNode>) {
        let mut nodes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_next = |node: &Arc<ComputeNode>| {
            let is_later = node.incarnation < next.incarnation || broken(Rule::LivesDiffer);
            node.index == next.index && is_later
        };
        debug_assert!(
            nodes.iter().any(is_next),
            "I144: a node's next life has a later incarnation"
        );
        nodes.iter_mut().filter(|node| node.index == next.index).for_each(|node| {
            *node = Arc::clone(next);
        });
    }
}

impl IntoIterator for &Nodes {
    type Item = Arc<ComputeNode>;
    type IntoIter = std::vec::IntoIter<Arc<ComputeNode>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
