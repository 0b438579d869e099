//! Utilisation of all resources, which shows the bottleneck of a run.

use std::fmt;
use std::time::Duration;

use super::queue::{Picos, duration};
use super::state::State;
use crate::ids::NodeId;

/// A resource that can be the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Resource {
    /// The NIC's server for operations that its node issues.
    Outbound(NodeId),
    /// The NIC's server for operations of other nodes.
    Inbound(NodeId),
    /// The NIC's unit that carries out atomics one by one.
    AtomicUnit(NodeId),
    /// The link away from a node.
    Sending(NodeId),
    /// The link towards a node.
    Receiving(NodeId),
    /// A core.
    Core {
        /// Node of the core.
        node: NodeId,
        /// Index in the order in which the node's cores were added, over all its lives.
        index: u16,
    },
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outbound(node) => write!(f, "outbound requests of node {}", node.0),
            Self::Inbound(node) => write!(f, "inbound requests of node {}", node.0),
            Self::AtomicUnit(node) => write!(f, "atomic unit of node {}", node.0),
            Self::Sending(node) => write!(f, "link from node {}", node.0),
            Self::Receiving(node) => write!(f, "link to node {}", node.0),
            Self::Core { node, index } => write!(f, "core {index} of node {}", node.0),
        }
    }
}

/// Utilisation of one resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilisation {
    /// The resource.
    pub resource: Resource,
    /// Busy part of the time, from 0 to 1.
    pub busy: f64,
}

/// Utilisation of all resources over a span of virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Length of the span.
    pub elapsed: Duration,
    /// Every NIC's servers, node by node, then every core.
    pub resources: Vec<Utilisation>,
}

impl Report {
    /// The busiest resource, which bounds the throughput if anything does; the first of equals.
    /// `None` if nothing was used.
    pub fn bound(&self) -> Option<Utilisation> {
        let used = self.resources.iter().filter(|entry| entry.busy > 0.0);
        used.copied().reduce(|most, entry| if entry.busy > most.busy { entry } else { most })
    }

    /// Utilisation of a resource; 0 if it is not in the report.
    pub fn busy(&self, resource: Resource) -> f64 {
        let found = self.resources.iter().find(|entry| entry.resource == resource);
        found.map_or(0.0, |entry| entry.busy)
    }

    pub(super) fn start(state: &mut State) {
        state.measured_since = state.now;
        for node in &mut state.nodes {
            node.nic.servers().into_iter().for_each(|server| server.forget_busy());
        }
        state.cores.iter_mut().for_each(|core| core.busy = 0);
    }

    pub(super) fn of(state: &mut State) -> Self {
        let elapsed = state.now - state.measured_since;
        // Servers are booked ahead, so slightly more than the whole time is possible at the end.
        let part = |busy: Picos| (busy as f64 / elapsed.max(1) as f64).min(1.0);
        let mut resources = Vec::new();
        for (number, node) in state.nodes.iter_mut().enumerate() {
            let node_id = NodeId(number as u16);
            let names = [
                Resource::Outbound(node_id),
                Resource::Inbound(node_id),
                Resource::AtomicUnit(node_id),
                Resource::Sending(node_id),
                Resource::Receiving(node_id),
            ];
            let servers = node.nic.servers().map(|server| part(server.busy()));
            let entries = names.into_iter().zip(servers);
            resources.extend(entries.map(|(resource, busy)| Utilisation { resource, busy }));
        }
        let mut cores_of = vec![0; state.nodes.len()];
        for core in &state.cores {
            let index = &mut cores_of[usize::from(core.node.0)];
            let resource = Resource::Core { node: core.node, index: *index };
            *index += 1;
            resources.push(Utilisation { resource, busy: part(core.busy) });
        }
        Self { elapsed: duration(elapsed), resources }
    }
}
