//! Compute nodes that a compute node suspects of being dead, long before it can know.
//!
//! # What it is
//! Each coordinator suspects owners of locks for itself, by the answers that it misses
//! ([`LotusLocks`](lotus_locktable::LotusLocks)), and counts the suspicion here, for views of the
//! node as a whole: [`Cluster::suspects`], and the [audit](Cluster::audit), which checks that no
//! suspicion outlasts its reason.
//!
//! # What it is not
//! The membership, nor a part of how it changes ([`crate::members`]). The only effect of a
//! suspicion is that transactions which need the node fail at once.

use std::sync::atomic::{AtomicU32, Ordering};

use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::Machines;
use lotus_locktable::Suspicion;
use lotus_recovery::membership;

use crate::audit::{Finding, Tally};
use crate::cluster::Cluster;
use crate::error::ClusterError;

/// Number of this node's coordinators that suspect each compute node.
#[derive(Debug)]
pub(crate) struct Suspects(Box<[(NodeId, AtomicU32)]>);

impl Suspects {
    /// Creates a set of these nodes, with none suspected.
    pub(crate) fn none_of(nodes: impl Iterator<Item = NodeId>) -> Self {
        Self(nodes.map(|node| (node, AtomicU32::new(0))).collect())
    }

    /// Counts the begin or end of a coordinator's suspicion.
    pub(crate) fn note(&self, node: NodeId, suspicion: Suspicion) {
        // Relaxed, here and below: a hint, which guards no other data.
        for (_, count) in self.0.iter().filter(|(known, _)| *known == node) {
            match suspicion {
                Suspicion::Begins => count.fetch_add(1, Ordering::Relaxed),
                Suspicion::Ends => count.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    /// Returns the nodes that some coordinator suspects.
    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let suspected = self.0.iter().filter(|(_, count)| count.load(Ordering::Relaxed) > 0);
        suspected.map(|(node, _)| *node)
    }
}

impl<M: Machines> Cluster<M> {
    /// Returns the places of the compute nodes that some coordinator of this one suspects of being
    /// dead.
    ///
    /// # Panics
    /// If this process has no such compute node.
    pub fn suspects(&self, compute_node: usize) -> Vec<usize> {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        node.suspects.nodes().filter_map(|suspect| self.shared.index_of(suspect)).collect()
    }

    /// Audit: no live member is suspected once all requests are answered.
    pub(crate) fn suspicions_left(&self) -> Result<Finding, ClusterError> {
        let mut left = Tally::new("nobody who takes part is suspected of being dead");
        let read = membership::read(self.shared.council.authority());
        let now = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        for node in self.shared.nodes.iter().filter(|node| !node.has_failed()) {
            left.seen += 1;
            for suspect in node.suspects.nodes().filter(|suspect| now.is_live(*suspect)) {
                left.complain(|| format!("compute node {} suspects {suspect:?}", node.index));
            }
        }
        Ok(left.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_suspected_while_some_coordinator_suspects_it() {
        let suspects = Suspects::none_of([3, 4, 5].map(NodeId).into_iter());
        for suspicion in [Suspicion::Begins, Suspicion::Begins, Suspicion::Ends] {
            suspects.note(NodeId(4), suspicion);
            assert!(suspects.nodes().eq([NodeId(4)]));
        }
        suspects.note(NodeId(4), Suspicion::Ends);
        suspects.note(NodeId(9), Suspicion::Begins);
        assert_eq!(suspects.nodes().count(), 0, "nobody knows the other one");
    }
}
