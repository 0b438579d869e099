//! Compute nodes suspected of being dead by a compute node, long before certainty is possible.
//!
//! # What it is
//! Each coordinator suspects owners of locks independently, by the answers it misses
//! ([`LotusLocks`](lotus_locktable::LotusLocks)), and counts the suspicion here, for views of the
//! node as a whole: [`Cluster::suspects`](crate::Cluster::suspects), and the
//! [audit](crate::Cluster::audit), a check that no suspicion outlasts its reason.
//!
//! # What it is not
//! The membership, or a part of membership changes ([`crate::membership::members`]). The only
//! effect of a suspicion is that transactions that need the node fail at once.

use lotus_fabric::ids::NodeId;
use lotus_locktable::Suspicion;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of local coordinators that suspect a compute node, by compute node.
#[derive(Debug)]
pub(crate) struct Suspects(Box<[(NodeId, AtomicU32)]>);

impl Suspects {
    /// Creates a set of `nodes`, without suspicions.
    pub(crate) fn none_of(nodes: impl Iterator<Item = NodeId>) -> Self {
        Self(nodes.map(|node| (node, AtomicU32::new(0))).collect())
    }

    /// Counts the begin or end of a coordinator's suspicion.
    pub(crate) fn note(&self, node: NodeId, suspicion: Suspicion) {
        // Relaxed, here and below: a hint, guarding no data.
        for (_, count) in self.0.iter().filter(|(known, _)| *known == node) {
            match suspicion {
                Suspicion::Begins => count.fetch_add(1, Ordering::Relaxed),
                Suspicion::Ends => {
                    let before = count.fetch_sub(1, Ordering::Relaxed);
                    debug_assert!(before > 0, "I161: a suspicion ends once");
                    before
                }
            };
        }
    }

    /// Returns the nodes suspected by at least one coordinator.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let suspected = self.0.iter().filter(|(_, count)| count.load(Ordering::Relaxed) > 0);
        suspected.map(|(node, _)| *node)
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
