//! Configuration of a fabric, and the reasons why a fabric cannot start.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::time::Duration;

use super::limits::Limits;
use crate::contract::ids::NodeId;
use lotus_security::Security;

/// Largest number of nodes in a fabric.
pub const MAX_NODES: u16 = 128;

/// Behaviour of idle threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Workers poll continuously, lanes for a short time before sleeping: the shortest latency, if
    /// each thread has its own core.
    Busy,
    /// Threads poll for a time, then sleep until input arrives.
    Blocking {
        /// Time spent polling; zero where nodes share cores.
        spin: Duration,
    },
}

/// Configuration of a fabric.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of nodes, numbered from zero.
    pub nodes: u16,
    /// Addresses at which peers reach nodes. Nodes served by this process may have port 0, for any
    /// free port.
    pub addresses: BTreeMap<NodeId, SocketAddr>,
    /// Listening addresses of nodes served by this process, where different from `addresses`.
    pub listen: BTreeMap<NodeId, SocketAddr>,
    /// Nodes that this process serves.
    pub served: Vec<NodeId>,
    /// Admission and protection of connections.
    pub security: Security,
    /// Worker threads, shared by all served nodes.
    pub workers: NonZero<usize>,
    /// Behaviour of idle workers and lanes.
    pub waiting: Waiting,
    /// Bounds and time-outs.
    pub limits: Limits,
}

impl Waiting {
    /// Time for which an idle lane polls before it sleeps.
    pub(super) fn lane_spin(self) -> Duration {
        const BUSY: Duration = Duration::from_micros(20);
        match self {
            Self::Busy => BUSY,
            Self::Blocking { spin } => spin,
        }
    }
}

impl Config {
    /// Configures `nodes` nodes, served by this process on free loopback ports.
    pub fn loopback(nodes: u16) -> Self {
        let free = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            nodes,
            addresses: (0..nodes).map(|node| (NodeId(node), free)).collect(),
            listen: BTreeMap::new(),
            served: (0..nodes).map(NodeId).collect(),
            security: Security::default(),
            workers: NonZero::<usize>::MIN,
            waiting: Waiting::Blocking { spin: Duration::ZERO },
            limits: Limits::default(),
        }
    }
}

/// Reason why a fabric cannot start. Correct the item named in the message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A fabric has 1 to [`MAX_NODES`] nodes.
    #[error("a fabric over TCP has 1 to {MAX_NODES} nodes, not {0}")]
    NodeCount(u16),
    /// The node's number is too large for the fabric.
    #[error("there is no node {}", .0.0)]
    UnknownNode(NodeId),
    /// A node served by this process needs an address to listen at.
    #[error("node {} has no address", .0.0)]
    NoAddress(NodeId),
    /// Beyond loopback, any process that reaches a port would be admitted.
    #[error("node {} is at {}, beyond loopback, and needs a shared key or TLS", .0.0, .1)]
    NeedsKey(NodeId, SocketAddr),
    /// The port is taken, or the address is not this machine's.
    #[error("node {} cannot listen at {address}: {source}", .node.0)]
    Listen {
        /// The node.
        node: NodeId,
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system has no more files or threads.
    #[error("the operating system refuses: {0}")]
    System(#[source] io::Error),
}
