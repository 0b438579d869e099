//! States of memory nodes (serving, lost, about to return), for operators and servers.
//!
//! A server asks this module before it lets an application write: every replica takes part in a
//! commit, so a write while a memory node is silent ends with an unknown outcome at best, unless
//! the memory node is lost soon and other nodes have copies ([`Cluster::needed_memory`]). Without
//! writes no coordinator would notice the return of a silent memory node:
//! [`Cluster::look_for_memory`] does. [`Cluster::memory_status`] returns the agreed state.

use lotus_fabric::ids::NodeId;
use lotus_mvcc::layout::WORD_BYTES;
use lotus_recovery::membership::returns::{Return, Stage, shards_on};
use lotus_recovery::membership::{self, Membership};
use lotus_router::{Placement, ReplicaSet};

use crate::api::error::ClusterError;
use crate::cluster::handle::Cluster;

/// State of a memory node in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryStanding {
    /// In use, with whole copies.
    Serving,
    /// Half of the compute nodes get no answer from the memory node, and it has the last copies of
    /// some rows: these rows are lost, unless the memory node comes back.
    OutOfReach,
    /// Lost. Copies of all its data are on other memory nodes.
    Lost,
    /// Back after a loss: receives every write, and is being filled with the data it missed.
    Joining,
}

/// State of the memory pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryStatus {
    /// States of the memory nodes, by place.
    pub nodes: Vec<MemoryStanding>,
    /// Number of copies of each replica group, on memory nodes in use.
    pub copies: Vec<usize>,
}

impl MemoryStatus {
    /// Derives the state from the initial placement, the placement that is left, and the memory
    /// nodes out of reach.
    pub fn new(first: &Placement, left: &Placement, out_of_reach: &[NodeId]) -> Self {
        let (kept, used_at_all) = (left.of_whole().nodes(), left.nodes());
        let standing = |node: NodeId| match node {
            node if out_of_reach.contains(&node) => MemoryStanding::OutOfReach,
            node if kept.contains(node) => MemoryStanding::Serving,
            node if used_at_all.contains(node) => MemoryStanding::Joining,
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

/// Progress of filling a returned memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryReturn {
    /// Place of the node among the memory nodes.
    pub memory_node: usize,
    /// Number of shards filled so far.
    pub shards: usize,
    /// Number of shards to be filled in total.
    pub of: usize,
}

impl MemoryReturn {
    /// Lists the memory nodes being filled; `first` is the initial placement.
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

impl Cluster {
    /// Returns the progress of memory nodes that have returned and are not whole yet.
    ///
    /// # Errors
    /// The authority does not answer.
    pub fn memory_returns(&self) -> Result<Vec<MemoryReturn>, ClusterError> {
        let read = membership::read(self.shared.async_authority.authority());
        let now = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        Ok(MemoryReturn::of(&now, &self.shared.placement))
    }

    /// Returns the agreed state of the memory nodes. Without a lease no loss is ever noticed.
    ///
    /// # Errors
    /// The authority does not answer.
    pub fn memory_status(&self) -> Result<MemoryStatus, ClusterError> {
        let read = membership::read(self.shared.async_authority.authority());
        let now = read.map_err(|error| ClusterError::Unreachable(error.to_string()))?;
        let first = &self.shared.placement;
        Ok(MemoryStatus::new(first, &now.surviving(first), &now.out_of_reach(first)))
    }

    /// Returns the places of memory nodes that do not answer a compute node, as far as the compute
    /// node has noticed. Lost memory nodes are not included: they are not in use any more.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn silent_memory(&self, compute_node: usize) -> Vec<usize> {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        let left = node.configuration.placement().nodes();
        let silent = node.silent.nodes().filter(|node| left.contains(*node));
        silent.map(|node| usize::from(node.0)).collect()
    }

    /// Returns the places of [`Self::silent_memory`] that writes need: without a lease no memory
    /// node is ever given up, and with a lease no memory node with last copies.
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

    /// Returns the agreed state of the memory nodes, as far as a compute node knows it.
    ///
    /// # Panics
    /// As [`Self::silent_memory`].
    pub fn memory_known(&self, compute_node: usize) -> MemoryStatus {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        let (placement, last) = (node.configuration.placement(), node.configuration.out_of_reach());
        MemoryStatus::new(&self.shared.placement, &placement, &last)
    }

    /// Whether the other nodes let transactions begin at a compute node: false while nodes wait for
    /// one another, for example when a memory node is lost.
    ///
    /// # Panics
    /// As [`Self::silent_memory`].
    pub fn is_open(&self, compute_node: usize) -> bool {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        node.configuration.is_open()
    }

    /// Checks whether silent memory nodes answer again.
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
                // A failed connection counts as no answer.
                if answered.unwrap_or(false) {
                    node.silent.answers(silent);
                }
            }
        }
    }
}
