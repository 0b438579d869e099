//! The `tcp` back end: verbs over sockets, for any network and no special NIC.
//!
//! Every node runs a software target: threads that receive frames of verbs from sockets, carry them
//! out on the node's regions and answer. A lane has a connection of its own to each node that it
//! reaches, so one stream is one order of verbs. Messages travel over connections from lane to
//! lane, in the same framing.
//!
//! * initiator: `lane` (the data path), `link` (one connection to a node), `batches`, `mail`
//!   (messages), `dial` (making connections);
//! * target: `target` (threads and shared state), `worker` (one thread), `serve` (verbs on memory),
//!   `control` (registering and fencing);
//! * both: `wire` (frames), `handshake` (authentication), `socket` (non-blocking sockets), `stream`
//!   and `tls` (plain or encrypted bytes), `limits`.
//!
//! No async runtime: a thread owns its sockets, and carries frames out where they were received
//! (docs/decisions/0018-own-event-loop-for-tcp.md). The threat model is in docs/security.md.

mod batches;
mod control;
mod dial;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod handshake;
mod lane;
mod limits;
mod link;
mod mail;
mod serve;
mod socket;
mod stream;
mod target;
#[cfg(feature = "tls")]
mod tls;
mod wire;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use handshake::{Key, MIN_KEY_BYTES, Refusal, VERSION, WeakKey, Words4, nonce, nonce_bytes};
pub use limits::{Limits, TargetCounters};
pub use stream::{Caller, NO_TLS, Stream};
#[cfg(feature = "tls")]
pub use tls::{APPLICATIONS, Sealed, Tls, TlsError};

use control::{CallError, Failure, Request};
use handshake::{Hello, Purpose};
use lane::TcpLane;
use target::{Shared, Targets};

use crate::counters::Lent;
use crate::env::Env;
use crate::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId};
use crate::region::Rights;
use crate::transport::{Fabric, FabricError, Transport, Wake};

/// Largest number of nodes in a fabric.
pub const MAX_NODES: u16 = 128;

/// Peers that are admitted, and protection of the connections.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Any peer, and therefore on loopback addresses only.
    #[default]
    PlainOnLoopback,
    /// Any peer, on any address. Any process that reaches a port can read and change all data.
    PlainAnywhere,
    /// Peers with the same key. The bytes on the wire are neither encrypted nor authenticated.
    SharedKey(Key),
    /// Peers with a certificate of the same authority for the same cluster. Encrypted.
    #[cfg(feature = "tls")]
    Tls(Tls),
}

impl Security {
    /// The shared key, if there is one.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::SharedKey(key) => Some(key),
            _ => None,
        }
    }

    /// Whether the bytes on the wire are encrypted and authenticated.
    pub const fn seals(&self) -> bool {
        match self {
            Self::PlainOnLoopback | Self::PlainAnywhere | Self::SharedKey(_) => false,
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
        }
    }

    /// Whether a node may have this address.
    pub fn allows(&self, address: IpAddr) -> bool {
        !matches!(self, Self::PlainOnLoopback) || address.to_canonical().is_loopback()
    }
}

/// Behaviour of idle threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Workers poll continuously, and lanes until they sleep: the shortest latency, if each thread
    /// has a core of its own.
    Busy,
    /// Threads sleep until there is input, after polling for a time.
    Blocking {
        /// Time spent polling; zero where nodes share cores.
        spin: Duration,
    },
}

/// Configuration of a fabric.
#[derive(Clone, Debug)]
pub struct Config {
    /// Number of nodes; they are numbered from zero.
    pub nodes: u16,
    /// Addresses at which nodes are reached. Nodes served by this process may have port 0, for any
    /// free port.
    pub addresses: BTreeMap<NodeId, SocketAddr>,
    /// Addresses at which nodes served by this process listen, where they differ from `addresses`.
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
    fn lane_spin(self) -> Duration {
        const BUSY: Duration = Duration::from_micros(20);
        match self {
            Self::Busy => BUSY,
            Self::Blocking { spin } => spin,
        }
    }
}

impl Config {
    /// All of `nodes` nodes served by this process, on free loopback ports.
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

/// Reason why a fabric cannot start. Correct what the message names.
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

/// Control path of the back end. Clones share one fabric; its targets stop when the last clone and
/// the last lane are gone.
#[derive(Clone)]
pub struct TcpFabric {
    inner: Arc<Inner>,
}

pub(in crate::tcp) struct Inner {
    nodes: u16,
    addresses: BTreeMap<NodeId, SocketAddr>,
    targets: Targets,
    security: Security,
    limits: Limits,
    waiting: Waiting,
    env: Env,
    /// Nodes that a test has made unreachable.
    cut: Box<[AtomicBool]>,
}

impl Inner {
    /// Address at which a node is reached.
    fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.addresses.get(&node).copied()
    }

    /// The target of a node that this process serves.
    fn target(&self, node: NodeId) -> Option<&Shared> {
        self.targets.node(node)
    }

    #[inline]
    fn is_cut(&self, node: NodeId) -> bool {
        self.cut.get(usize::from(node.0)).is_some_and(|cut| cut.load(Ordering::Relaxed))
    }

    fn check(&self, node: NodeId) -> Result<(), FabricError> {
        if node.0 < self.nodes { Ok(()) } else { Err(FabricError::UnknownNode(node)) }
    }

    /// Sends a control request to `node` and waits for the answer.
    fn call(&self, node: NodeId, request: Request) -> Result<control::Done, FabricError> {
        self.check(node)?;
        let unreachable = |source| FabricError::Unreachable { node, source };
        let cut_off = || unreachable(io::ErrorKind::HostUnreachable.into());
        let address = self.address(node).ok_or_else(cut_off)?;
        if self.is_cut(node) {
            return Err(cut_off());
        }
        // Control belongs to no lane.
        let at = |node| Endpoint { node, lane: LaneId(0) };
        let hello = Hello {
            purpose: Purpose::Control,
            from: at(node),
            to: at(node),
            epoch: Epoch(0),
            session: 0,
            number: 0,
        };
        let done = control::call(address, hello, &self.security, &self.limits, request);
        done.map_err(|error| match error {
            CallError::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
                unreachable(source)
            }
            other => FabricError::Refused { node, reason: other.to_string() },
        })
    }
}

impl TcpFabric {
    /// Starts the targets of all nodes that this process serves.
    ///
    /// # Errors
    /// [`StartError`]: the configuration makes no sense, or a port cannot be had.
    pub fn start(config: Config, env: Env) -> Result<Self, StartError> {
        if !(1..=MAX_NODES).contains(&config.nodes) {
            return Err(StartError::NodeCount(config.nodes));
        }
        for (node, address) in config.addresses.iter().chain(&config.listen) {
            if node.0 >= config.nodes {
                return Err(StartError::UnknownNode(*node));
            }
            if !config.security.allows(address.ip()) {
                return Err(StartError::NeedsKey(*node, *address));
            }
        }
        let targets = Targets::start(&config, &env)?;
        let mut addresses = config.addresses;
        let there = targets.addresses().filter(|(node, _)| !config.listen.contains_key(node));
        addresses.extend(there);
        let inner = Inner {
            nodes: config.nodes,
            addresses,
            targets,
            security: config.security,
            limits: config.limits,
            waiting: config.waiting,
            env,
            cut: (0..config.nodes).map(|_| AtomicBool::new(false)).collect(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Address at which a node is reached.
    pub fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.inner.address(node)
    }

    /// Event counters of a target of this process.
    pub fn counters(&self, node: NodeId) -> Option<TargetCounters> {
        self.inner.targets.node(node).map(|node| node.counting.now())
    }

    /// Memory and connections that a target of this process provides.
    pub fn lent(&self, node: NodeId) -> Option<Lent> {
        self.inner.targets.node(node).map(|node| Lent {
            registered_bytes: node.regions.bytes(),
            used_bytes: None,
            connections: node.admitted.load(Ordering::Relaxed),
        })
    }

    /// Makes lanes of this process treat `node` as unreachable, or reachable again. For tests.
    ///
    /// # Errors
    /// Unknown node.
    pub fn set_reachable(&self, node: NodeId, reachable: bool) -> Result<(), FabricError> {
        self.inner.check(node)?;
        self.inner.cut[usize::from(node.0)].store(!reachable, Ordering::SeqCst);
        Ok(())
    }
}

impl Fabric for TcpFabric {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        match self.inner.call(node, Request::Register { region, bytes, rights })? {
            Ok(()) => Ok(()),
            Err(Failure::Taken) => Err(FabricError::RegionTaken(node, region)),
            Err(Failure::Memory(code)) => {
                let source = io::Error::from_raw_os_error(code);
                Err(FabricError::OutOfMemory { bytes, source })
            }
            Err(Failure::UnknownNode) => Err(FabricError::UnknownNode(node)),
        }
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        self.inner.check(at.node)?;
        let target = self.inner.target(at.node).ok_or(FabricError::Elsewhere(at.node))?;
        let system = FabricError::System;
        let watch = socket::Watch::new(self.inner.waiting.lane_spin()).map_err(system)?;
        let [session, ..] = nonce().map_err(system)?;
        let inbox = target.open(at.lane, wake).ok_or(FabricError::LaneTaken(at))?;
        Ok(Box::new(TcpLane::new(Arc::clone(&self.inner), at, epoch, session, inbox, watch)))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        self.inner.check(target)?;
        self.inner.check(expelled)?;
        match self.inner.call(target, Request::Fence { expelled, epoch })? {
            Ok(()) => Ok(()),
            Err(_) => Err(FabricError::UnknownNode(expelled)),
        }
    }
}

#[cfg(test)]
mod handshake_tests;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "tls"))]
mod tls_tests;
#[cfg(test)]
mod wire_tests;
