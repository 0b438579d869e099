//! Utilisation of the resources of [`Machines`](super::machines::Machines), which shows the
//! bottleneck of a run.
//!
//! Plain values: a simulator counts how long each resource was busy.

use std::fmt;
use std::time::Duration;

use crate::contract::ids::NodeId;
use crate::contract::verbs::VerbKind;

/// A resource that can be the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Resource {
    /// The NIC's server for operations issued by its node.
    Outbound(NodeId),
    /// The NIC's server for operations issued by other nodes.
    Inbound(NodeId),
    /// The NIC's unit for atomics, which carries them out one by one.
    AtomicUnit(NodeId),
    /// The word with the longest waits of atomics for each other, if the model has such waits.
    HottestWord(NodeId),
    /// The link from a node.
    Sending(NodeId),
    /// The link to a node.
    Receiving(NodeId),
    /// A core.
    Core {
        /// Node of the core.
        node: NodeId,
        /// Index in the order in which the node's cores were added, across the node's lives.
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

/// Verbs of other nodes served by a node's NIC, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps, masked or not.
    pub compare_and_swaps: u64,
    /// Fetch-and-adds, masked or not.
    pub fetch_and_adds: u64,
}

impl Served {
    #[inline]
    pub(crate) fn count(&mut self, kind: VerbKind) {
        let count = match kind {
            VerbKind::Read => &mut self.reads,
            VerbKind::Write => &mut self.writes,
            VerbKind::CompareAndSwap => &mut self.compare_and_swaps,
            VerbKind::FetchAndAdd => &mut self.fetch_and_adds,
        };
        *count += 1;
    }
}

/// Utilisation of one node's NIC, as busy parts of the time from 0 to 1, and the verbs served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeUse {
    /// The node.
    pub node: NodeId,
    /// Busy part of the inbound server.
    pub inbound: f64,
    /// Busy part of the atomic unit.
    pub atomic_unit: f64,
    /// Busy part of the link from the node, which also carries the node's own requests.
    pub sending: f64,
    /// Busy part of the link to the node, which also carries the answers to the node's requests.
    pub receiving: f64,
    /// The verbs served.
    pub served: Served,
}

/// Utilisation of the resources over a span of virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Length of the span.
    pub elapsed: Duration,
    /// The servers of the NICs, node by node, then the cores.
    pub resources: Vec<Utilisation>,
    /// The verbs served by a node's NIC, by node number.
    pub served: Vec<Served>,
}

impl Report {
    /// The busiest resource, which bounds the throughput if any resource does; the first among
    /// equals. `None` if no resource was used.
    pub fn bound(&self) -> Option<Utilisation> {
        let used = self.resources.iter().filter(|entry| entry.busy > 0.0);
        used.copied().reduce(|most, entry| if entry.busy > most.busy { entry } else { most })
    }

    /// Utilisation of a resource; 0 for a resource not in the report.
    pub fn busy(&self, resource: Resource) -> f64 {
        let found = self.resources.iter().find(|entry| entry.resource == resource);
        found.map_or(0.0, |entry| entry.busy)
    }

    /// Utilisation and served verbs of every node's NIC, in the order of node numbers.
    pub fn nodes(&self) -> impl Iterator<Item = NodeUse> {
        (0..).map(NodeId).zip(&self.served).map(|(node, served)| NodeUse {
            node,
            inbound: self.busy(Resource::Inbound(node)),
            atomic_unit: self.busy(Resource::AtomicUnit(node)),
            sending: self.busy(Resource::Sending(node)),
            receiving: self.busy(Resource::Receiving(node)),
            served: *served,
        })
    }
}
