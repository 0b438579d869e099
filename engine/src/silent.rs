//! Memory nodes that do not answer, or are lost.
//!
//! # What it is
//! Who makes a broken connection anew, in vain or not, says so here. Whoever serves applications
//! looks here before it lets somebody write: every replica takes part in a commit, so what is
//! written while one is silent ends with an unknown outcome at best, unless it is lost soon and the
//! others have copies ([`Cluster::needed_memory`]). Nobody writes then, so nobody
//! would find out that the node is back: [`Cluster::look_for_memory`] does. Who wants to know what
//! the cluster has agreed on asks for [`Cluster::memory_status`].
//!
//! # What it is not
//! A failure detector. Nothing in the protocol rests on it, and while all is well nobody asks a
//! memory node anything for its sake.

use std::sync::atomic::{AtomicU64, Ordering};

use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::Machines;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_recovery::membership::returns::{Return, Stage, shards_on};
use lotus_recovery::membership::{self, Membership};
use lotus_router::{Placement, ReplicaSet};

use crate::cluster::Cluster;
use crate::error::ClusterError;

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

/// Whether a memory node is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryStanding {
    /// It is.
    Serving,
    /// Half of the compute nodes get no answer from it, and it has the last copies of some rows:
    /// these are lost, unless it comes back.
    OutOfReach,
    /// It is lost. Others have copies of all it had.
    Lost,
    /// It was lost and is back: it gets every write, and is given what it missed.
    Joining,
}

/// What there is of the memory pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryStatus {
    /// Each memory node, by its place.
    pub nodes: Vec<MemoryStanding>,
    /// How many copies each replica group has, on memory nodes that are in use.
    pub copies: Vec<usize>,
}

impl MemoryStatus {
    /// With one placement at first and another one left, of which these do not answer.
    pub fn new(first: &Placement, left: &Placement, out_of_reach: &[NodeId]) -> Self {
        let (kept, used_at_all) = (left.of_whole().nodes(), left.nodes());
        let standing = |node: NodeId| match node {
            node if out_of_reach.contains(&node) => MemoryStanding::OutOfReach,
            node if kept.contains(&node) => MemoryStanding::Serving,
            node if used_at_all.contains(&node) => MemoryStanding::Joining,
            _ => MemoryStanding::Lost,
        };
        let used = |set: &ReplicaSet| {
            let members = set.whole().iter();
            members.filter(|member| !out_of_reach.contains(&member.node)).count()
        };
        Self {
            nodes: first.primaries().map(standing).collect(),
            copies: left.groups().map(|(_, set)| used(set)).collect(),
        }
    }
}

/// How far a memory node has come that is back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryReturn {
    /// Its place among the memory nodes.
    pub memory_node: usize,
    /// The shards that it has been given.
    pub shards: usize,
    /// The shards that it is to have.
    pub of: usize,
}

impl MemoryReturn {
    /// Those that are being filled, with `first` as the placement of the beginning.
    pub fn of(now: &Membership, first: &Placement) -> Vec<Self> {
        let one = |one: &Return| {
            let Stage::Joining(copied) = &one.stage else { return None };
            let memory_node = first.primaries().position(|node| node == one.node)?;
            let of = shards_on(one.node, first).count();
            Some(Self { memory_node, shards: copied.count(), of })
        };
        now.returns().iter().filter_map(one).collect()
    }
}

impl<M: Machines> Cluster<M> {
    /// How far memory nodes have come that are back and not whole yet.
    ///
    /// # Errors
    /// The authority does not answer.
    pub fn memory_returns(&self) -> Result<Vec<MemoryReturn>, ClusterError> {
        let read = membership::read(self.shared.council.authority());
        let now = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        Ok(MemoryReturn::of(&now, &self.shared.placement))
    }

    /// What the cluster has agreed on about its memory nodes. Without a lease nobody notices the
    /// loss of any.
    ///
    /// # Errors
    /// The authority does not answer.
    pub fn memory_status(&self) -> Result<MemoryStatus, ClusterError> {
        let read = membership::read(self.shared.council.authority());
        let now = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        let first = &self.shared.placement;
        Ok(MemoryStatus::new(first, &now.surviving(first), &now.out_of_reach(first)))
    }

    /// The places of the memory nodes that do not answer a compute node, as far as it has noticed;
    /// those that are lost are not among them, because nobody asks them any more.
    ///
    /// # Panics
    /// If there is no such compute node in this process.
    pub fn silent_memory(&self, compute_node: usize) -> Vec<usize> {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        let left = node.configuration.placement().nodes();
        let silent = node.silent.nodes().filter(|node| left.contains(node));
        silent.map(|node| usize::from(node.0)).collect()
    }

    /// Those of them without which nothing goes on: without a lease nobody gives a memory node up,
    /// and with one nobody gives last copies up.
    ///
    /// # Panics
    /// As [`Self::silent_memory`].
    pub fn needed_memory(&self, compute_node: usize) -> Vec<usize> {
        let silent = self.silent_memory(compute_node);
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        let last = node.configuration.out_of_reach();
        let given_up = |place: &usize| {
            let is_last = last.iter().any(|node| usize::from(node.0) == *place);
            self.shared.config.lease.is_some() && !is_last
        };
        silent.into_iter().filter(|place| !given_up(place)).collect()
    }

    /// What a compute node knows of what the cluster has agreed on about its memory nodes.
    ///
    /// # Panics
    /// As [`Self::silent_memory`].
    pub fn memory_known(&self, compute_node: usize) -> MemoryStatus {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        let (placement, last) = (node.configuration.placement(), node.configuration.out_of_reach());
        MemoryStatus::new(&self.shared.placement, &placement, &last)
    }

    /// Asks memory nodes that did not answer whether they do again.
    pub fn look_for_memory(&self) {
        for node in &self.shared.nodes {
            for silent in node.silent.nodes() {
                let placement = node.configuration.placement();
                let mut replicas = placement.groups().flat_map(|(_, replicas)| replicas.members());
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
