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

/// Verbs of other nodes that a node's NIC has served, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps, masked ones among them.
    pub compare_and_swaps: u64,
    /// Fetch-and-adds, masked ones among them.
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

/// How busy one node's NIC was, in parts of the time from 0 to 1, and the verbs it has served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeUse {
    /// The node.
    pub node: NodeId,
    /// Busy part of its inbound server.
    pub inbound: f64,
    /// Busy part of its atomic unit.
    pub atomic_unit: f64,
    /// Busy part of the link away from it, with what it asks of others.
    pub sending: f64,
    /// Busy part of the link towards it, with what others answer it.
    pub receiving: f64,
    /// The verbs that it has served.
    pub served: Served,
}

/// Utilisation of all resources over a span of virtual time.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Length of the span.
    pub elapsed: Duration,
    /// Every NIC's servers, node by node, then every core.
    pub resources: Vec<Utilisation>,
    /// By node number: the verbs that its NIC has served.
    pub served: Vec<Served>,
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

    /// What each node's NIC has done for others, in the order of their numbers.
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
