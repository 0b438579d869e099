//! Memory nodes that do not answer a compute node.
//!
//! # What it is
//! A coordinator that reconnects to a memory node records success or failure here.
//!
//! # What it is not
//! A failure detector. The protocol does not rest on silence records, and no message is sent to
//! memory nodes while all of them answer.

use lotus_fabric::ids::NodeId;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set of silent memory nodes: a bit per node; nodes beyond 64 never count as silent.
#[derive(Debug, Default)]
pub(crate) struct Silent(AtomicU64);

impl Silent {
    /// Notes that a connection to `node` failed.
    pub(crate) fn is_silent(&self, node: NodeId) {
        // Relaxed: a hint, guarding no data.
        self.0.fetch_or(bit(node), Ordering::Relaxed);
    }

    /// Notes that a connection to `node` succeeded.
    pub(crate) fn answers(&self, node: NodeId) {
        self.0.fetch_and(!bit(node), Ordering::Relaxed);
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        let bits = self.0.load(Ordering::Relaxed);
        // Called for each application request: no loop while all nodes answer.
        (0..(u64::BITS - bits.leading_zeros()) as u16)
            .map(NodeId)
            .filter(move |node| bits & bit(*node) != 0)
    }
}

fn bit(node: NodeId) -> u64 {
    1_u64.checked_shl(node.0.into()).unwrap_or(0)
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
