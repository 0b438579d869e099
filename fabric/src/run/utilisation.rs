//! Utilisation of the resources of [`Machines`](super::machines::Machines), which shows the
//! bottleneck of a run.
//!
//! Plain values: a simulator counts how long each resource was busy.

use std::fmt;
use std::time::Duration;

use crate::contract::ids::NodeId;

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
    /// The word on which atomics have waited for one another for longest, where they do.
    HottestWord(NodeId),
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
            Self::HottestWord(node) => write!(f, "hottest word of node {}", node.0),
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
}
