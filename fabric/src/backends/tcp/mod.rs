//! The `tcp` back end: verbs over sockets, for any network and no special NIC.
//!
//! Every node runs a software target: threads that receive frames of verbs from sockets, carry the
//! verbs out on the node's regions and answer. A lane has a separate connection to each node, so a
//! stream gives the order of verbs. Messages travel over connections from lane to lane, in the same
//! framing.
//!
//! * `initiator`: lanes and their connections; imports `server` and the files below;
//! * `server`: a node's target and its threads;
//! * shared: `inner` (state of a fabric), `config`, `wire` (frames), `handshake` (authentication),
//!   `socket` (non-blocking sockets), `paths` (unreached nodes), `limits`. Keys, TLS and streams
//!   come from `lotus_security`.
//!
//! No async runtime: a thread owns sockets, and carries frames out on the receiving thread
//! (docs/decisions/0018-own-event-loop-for-tcp.md). The threat model is in docs/security.md.

mod config;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod handshake;
mod initiator;
mod inner;
mod limits;
mod paths;
mod server;
mod socket;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use config::{Config, MAX_NODES, StartError, Waiting};
pub use handshake::{Refusal, VERSION};
pub use limits::{Limits, TargetCounters};

use initiator::lane::TcpLane;
use inner::Inner;
use paths::Paths;
use server::control::{ControlRequest, Failure};
use server::targets::Targets;

use crate::contract::counters::LentResources;
use crate::contract::ids::{Endpoint, Epoch, NodeId, RegionId};
use crate::contract::region::Rights;
use crate::contract::transport::{Fabric, FabricError, Transport, Wake};
use crate::run::env::Env;

/// Control path of the back end. Clones share one fabric; the fabric's targets stop when the last
/// clone and the last lane are gone.
#[derive(Clone)]
pub struct TcpFabric {
    inner: Arc<Inner>,
}

impl TcpFabric {
    /// Starts the targets of the nodes that this process serves.
    ///
    /// # Errors
    /// [`StartError`]: an invalid configuration, or an unavailable port.
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
            paths: Paths::new(config.nodes),
            cut: (0..config.nodes).map(|_| AtomicBool::new(false)).collect(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the address at which peers reach a node.
    pub fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.inner.address(node)
    }

    /// Event counters of a target of this process.
    pub fn counters(&self, node: NodeId) -> Option<TargetCounters> {
        self.inner.targets.node(node).map(|node| node.counting.now())
    }

    /// Memory and connections that a target of this process provides.
    pub fn lent(&self, node: NodeId) -> Option<LentResources> {
        self.inner.targets.node(node).map(|node| LentResources {
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
        match self.inner.call(node, ControlRequest::Register { region, bytes, rights })? {
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
        let watch = socket::SocketWatch::new(self.inner.waiting.lane_spin()).map_err(system)?;
        let [session, ..] = lotus_security::nonce().map_err(system)?;
        let inbox = target.open(at.lane, wake).ok_or(FabricError::LaneTaken(at))?;
        Ok(Box::new(TcpLane::new(Arc::clone(&self.inner), at, epoch, session, inbox, watch)))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        self.inner.check(target)?;
        self.inner.check(expelled)?;
        match self.inner.call(target, ControlRequest::Fence { expelled, epoch })? {
            Ok(()) => Ok(()),
            Err(_) => Err(FabricError::UnknownNode(expelled)),
        }
    }

    fn unreached(&self, _at: NodeId, patience: Duration) -> Vec<(NodeId, Duration)> {
        self.inner.paths.unreached(patience, self.inner.env.now())
    }

    /// Requests a fence without effect (epoch 0): an answer proves the whole path.
    fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        let nothing = ControlRequest::Fence { expelled: from, epoch: Epoch(0) };
        let answer = self.inner.call_within(self.inner.limits.handshake, to, nothing);
        !matches!(answer, Err(FabricError::Unreachable { .. }))
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
