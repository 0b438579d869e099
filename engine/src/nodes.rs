//! The compute nodes of this process, one life of each.
//!
//! Which they are is settled at the start; a life that is over makes room for the next
//! ([`crate::rejoin`]). Whoever has one keeps it, whatever becomes of its place.

use std::sync::{Arc, PoisonError, RwLock};

use crate::shared::ComputeNode;

/// See the module's essay.
pub(crate) struct Nodes(RwLock<Vec<Arc<ComputeNode>>>);

impl Nodes {
    /// In the order of their places.
    pub(crate) fn new(nodes: Vec<Arc<ComputeNode>>) -> Self {
        Self(RwLock::new(nodes))
    }

    /// Those that have their places now.
    pub(crate) fn iter(&self) -> std::vec::IntoIter<Arc<ComputeNode>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone().into_iter()
    }

    /// The first of them; every process has one.
    pub(crate) fn first(&self) -> Arc<ComputeNode> {
        self.iter().next().expect("a process has a compute node")
    }

    /// Lets the next life of a node take its place.
    pub(crate) fn replace(&self, next: &Arc<ComputeNode>) {
        let mut nodes = self.0.write().unwrap_or_else(PoisonError::into_inner);
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
