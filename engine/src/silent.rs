//! Memory nodes that do not answer.
//!
//! # What it is
//! Who makes a broken connection anew, in vain or not, says so here. Whoever serves applications
//! looks here before it lets somebody write: every replica takes part in a commit, so what is
//! written while one is silent ends with an unknown outcome at best. Nobody writes then, so nobody
//! would find out that the node is back: [`Cluster::look_for_memory`] does.
//!
//! # What it is not
//! A failure detector. Nothing in the protocol rests on it, and while all is well nobody asks a
//! memory node anything for its sake.

use std::sync::atomic::{AtomicU64, Ordering};

use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::Machines;
use lotus_mvcc::layout::WORD_BYTES;

use crate::cluster::Cluster;

/// A bit for each memory node; those above are never silent.
#[derive(Debug, Default)]
pub(crate) struct Silent(AtomicU64);

impl Silent {
    /// It did not let itself be connected.
    pub(crate) fn is_silent(&self, node: NodeId) {
        // Relaxed: a hint, and nothing is read by it.
        self.0.fetch_or(bit(node), Ordering::Relaxed);
    }

    /// It did.
    pub(crate) fn answers(&self, node: NodeId) {
        self.0.fetch_and(!bit(node), Ordering::Relaxed);
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        let bits = self.0.load(Ordering::Relaxed);
        // Each call of an application asks: nothing is looked through while all answer.
        (0..(u64::BITS - bits.leading_zeros()) as u16)
            .map(NodeId)
            .filter(move |node| bits & bit(*node) != 0)
    }
}

fn bit(node: NodeId) -> u64 {
    1_u64.checked_shl(node.0.into()).unwrap_or(0)
}

impl<M: Machines> Cluster<M> {
    /// The places of the memory nodes that do not answer a compute node, as far as it has noticed.
    ///
    /// # Panics
    /// If there is no such compute node in this process.
    pub fn silent_memory(&self, compute_node: usize) -> Vec<usize> {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        node.silent.nodes().map(|node| usize::from(node.0)).collect()
    }

    /// Asks memory nodes that did not answer whether they do again.
    pub fn look_for_memory(&self) {
        for node in &self.shared.nodes {
            for silent in node.silent.nodes() {
                let groups = self.shared.placement.groups();
                let mut replicas = groups.flat_map(|(_, replicas)| replicas.members());
                let Some(replica) = replicas.find(|replica| replica.node == silent) else {
                    continue;
                };
                let answered = self.shared.control.with_lane(|lane| async move {
                    let mut batch = lane.batch();
                    batch.read(replica.at(0), WORD_BYTES);
                    batch.post().await.is_ok()
                });
                // Without a connection nobody has answered either.
                if answered.unwrap_or(false) {
                    node.silent.answers(silent);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_is_known_until_it_answers() {
        let silent = Silent::default();
        for node in [0, 3, 63, 64, 400] {
            silent.is_silent(NodeId(node));
        }
        assert!(silent.nodes().eq([0, 3, 63].map(NodeId)));
        silent.answers(NodeId(3));
        assert!(silent.nodes().eq([0, 63].map(NodeId)));
    }
}
