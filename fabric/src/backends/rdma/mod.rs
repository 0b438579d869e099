//! The `rdma` back end: the devices (NICs) of memory and compute nodes carry out verbs.
//!
//! # What it is
//! The fabric's contract on `libibverbs`: reliable connections from lanes to nodes for verbs,
//! unreliable datagrams for messages. The target's processor takes no part in a verb. Target
//! software only makes connections on request, over TCP, and destroys connections to fence a node.
//!
//! # What it is not
//! The back end is no daemon and knows no cluster beyond its [`Config`]: the nodes of this process,
//! and the addresses of remote nodes. Nothing is encrypted; any process that can reach the
//! handshake's port or forge packets on the network is trusted, as is usual with RDMA.
//!
//! # Where to look
//! * Set-up: `config`, `device` (choosing), `node` (a node from its peers' side), `handshake` and
//!   `wire` (requests to remote nodes), `events` (waking sleeping lanes), `error`.
//! * Data path: `lane`, `connection` (verbs), `datagrams` (messages), `chain` (work requests),
//!   `rules` (order and errors).
//! * `ffi`: the library's calls, wrapped once.
//!
//! # Ownership
//! A lane's thread owns the lane's ends of connections and the lane's queues. The far ends belong
//! to the target's [`Fabric`] and are made and destroyed under one lock with the fences. A
//! registration keeps the registered memory alive.
//!
//! # Failed verbs
//! The device reports the target's refusals precisely. When the target stops answering, the outcome
//! of verbs in flight is unknown, even if a fence was the cause: only the next handshake returns
//! `Revoked` (H24).

mod chain;
mod config;
mod connection;
mod datagrams;
mod device;
mod error;
mod events;
mod ffi;
mod handshake;
mod lane;
mod node;
mod rules;
mod wire;

#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

pub use config::{Config, Place};
pub use error::SetupError;

use device::Device;
use handshake::{Service, ask};
use node::RdmaNode;
use wire::{NodeRequest, Reply};

use crate::contract::ids::{Endpoint, Epoch, NodeId, RegionId};
use crate::contract::region::{Memory, Rights};
use crate::contract::transport::{Fabric, FabricError, Transport, Wake};
use crate::run::env::Env;

/// Control path of the back end. Clones share one fabric.
#[derive(Clone)]
pub struct RdmaFabric {
    shared: Arc<RdmaState>,
}

struct RdmaState {
    config: Config,
    env: Env,
    nodes: Vec<PeerNode>,
}

/// A node of the fabric, from this process's side.
struct PeerNode {
    at: SocketAddr,
    here: Option<Here>,
}

/// A node of this process. The service is dropped before the node.
struct Here {
    _service: Service,
    node: Arc<RdmaNode>,
}

impl RdmaFabric {
    /// Opens the devices of this process's nodes, and listens for peers.
    ///
    /// # Errors
    /// [`SetupError`]: an error in the configuration or of the machine.
    pub fn new(config: Config, env: Env) -> Result<Self, SetupError> {
        config.check()?;
        let nodes = (0..).map(NodeId).zip(&config.nodes);
        let nodes = nodes.map(|(id, place)| PeerNode::new(id, place, &config, &env));
        let nodes = nodes.collect::<Result<_, _>>()?;
        Ok(Self { shared: Arc::new(RdmaState { config, env, nodes }) })
    }

    /// Returns the address at which a node listens for peers; `None` for an unknown node.
    pub fn listens_at(&self, node: NodeId) -> Option<SocketAddr> {
        self.shared.nodes.get(usize::from(node.0)).map(|peer| peer.at)
    }

    /// Checks that a node answers and speaks this version.
    ///
    /// # Errors
    /// Unknown node, or the reason for a missing or improper answer.
    pub fn greet(&self, node: NodeId) -> Result<(), FabricError> {
        let at = self.shared.peer(node)?.at;
        match self.shared.ask(node, &NodeRequest::Greet { of: node })? {
            Reply::Yes => Ok(()),
            _ => Err(SetupError::PeerStrange { node, at }.into()),
        }
    }

    /// Makes a node of this process stop answering, as if it had died, or answer again. For tests:
    /// the node shares the process and cannot fail alone.
    ///
    /// # Errors
    /// The node is not in this process.
    pub fn set_reachable(&self, node: NodeId, reachable: bool) -> Result<(), FabricError> {
        self.shared.here(node)?.set_reachable(reachable);
        Ok(())
    }
}

impl PeerNode {
    fn new(id: NodeId, place: &Place, config: &Config, env: &Env) -> Result<Self, SetupError> {
        let (device, port, listen) = match place {
            Place::There { at } => return Ok(Self { at: *at, here: None }),
            Place::Here { device, port, listen } => (device.as_deref(), *port, *listen),
        };
        let device = Device::open(device, port, config)?;
        let name = device.name.clone();
        let failed = |source| SetupError::Verbs { what: "use", device: name, source };
        let node = Arc::new(RdmaNode::new(id, device, env).map_err(failed)?);
        let occupied = |source| SetupError::Listen { at: listen, source };
        let listener = TcpListener::bind(listen).map_err(occupied)?;
        let service = Service::start(Arc::clone(&node), listener, config.handshake, env);
        let service = service.map_err(|source| SetupError::Listen { at: listen, source })?;
        Ok(Self { at: service.at(), here: Some(Here { _service: service, node }) })
    }
}

impl RdmaState {
    fn peer(&self, node: NodeId) -> Result<&PeerNode, FabricError> {
        self.nodes.get(usize::from(node.0)).ok_or(FabricError::UnknownNode(node))
    }

    fn here(&self, node: NodeId) -> Result<&Arc<RdmaNode>, FabricError> {
        let here = self.peer(node)?.here.as_ref();
        Ok(&here.ok_or(SetupError::Elsewhere(node))?.node)
    }

    fn ask(&self, node: NodeId, request: &NodeRequest) -> Result<Reply, FabricError> {
        Ok(ask(self.peer(node)?.at, request, self.config.handshake)?)
    }
}

impl Fabric for RdmaFabric {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        let here = self.shared.here(node)?;
        let memory = Memory::anonymous(bytes as usize)
            .map_err(|source| FabricError::OutOfMemory { bytes, source })?;
        here.register(region, memory, bytes, rights)
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        let node = Arc::clone(self.shared.here(at.node)?);
        if !node.open_lane(at.lane) {
            return Err(FabricError::LaneTaken(at));
        }
        let lane = lane::RdmaLane::open(Arc::clone(&self.shared), &node, at, epoch, wake);
        Ok(Box::new(lane.inspect_err(|_| node.close_lane(at.lane))?))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        self.shared.peer(expelled)?;
        let peer = self.shared.peer(target)?;
        match &peer.here {
            Some(here) => here.node.fence(expelled, epoch),
            None => {
                match self
                    .shared
                    .ask(target, &NodeRequest::Fence { of: target, expelled, epoch })?
                {
                    Reply::Yes => {}
                    _ => return Err(SetupError::PeerStrange { node: target, at: peer.at }.into()),
                }
            }
        }
        Ok(())
    }
}
