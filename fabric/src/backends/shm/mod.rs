//! The `shm` back end: processes on one host, over shared memory.
//!
//! # What it is
//! Every node has a [`Host`]: a thread in the node's own process that shares the node's memory with
//! other processes. A process has a [`ShmFabric`], which *attaches* to nodes through their sockets
//! in one directory, maps the nodes' memory, and from then on carries out verbs like `local`. So a
//! memory node uses no processor while transactions run. Messages go through rings in shared memory
//! as well.
//!
//! # What it is not
//! Protection from processes of the same user: an attached process can change the memory at will,
//! within the region's rights. An attached process cannot make other processes panic or access
//! memory outside of their mappings; see `mailbox` and `region`.
//!
//! # Where to look
//! * `host` and `service`: the node's side; `attachment`: the attaching process's side; `wire` and
//!   `socket`: the protocol between them.
//! * `lane`: the data path; `helper`: work that the data path must not wait for.
//! * `mailbox`: rings of messages; `gates`: the words of fences; `memfd`, `process`, `bell`:
//!   wrappers of the operating system.
//!
//! # Fence
//! As in `local`, with gates and epochs in shared memory (`gates`), at the target's host. A lane
//! that does not leave its round of copies in time belongs to a process that is stopped or has
//! died; the host kills the process, and observes the process's end, before the fence returns.
//! After the end no store of the process is outstanding: a store of a word has happened or never
//! will. A verb interrupted while copying is torn between words, as the contract allows (H2, H14).
//!
//! # Death
//! When a host ends, for any reason, the kernel closes the host's sockets. The helpers of other
//! processes notice, and verbs become `Unreachable`. Verbs between the end and the notice reach
//! memory that is never read again, as if they had preceded the end. A restarted node has fresh
//! memory; lanes map the new memory when they reconnect.

mod attachment;
mod bell;
mod error;
mod gates;
mod helper;
mod host;
mod lane;
mod mailbox;
mod memfd;
mod process;
mod service;
mod socket;
mod wire;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Sender;

pub use error::ShmError;
pub use gates::MAX_LANES;
pub use host::Host;
pub use socket::remove_sockets;

use crate::contract::ids::{Endpoint, Epoch, NodeId, RegionId};
use crate::contract::region::Rights;
use crate::contract::transport::{Fabric, FabricError, Transport, Wake};
use crate::run::env::Env;
use crate::run::exec::EpollSleeper;
use attachment::Attachment;
use gates::Gates;
use helper::{Job, LaneWaker, WatchedDescriptors};
use lane::{Connections, Parts, ShmLane};

/// A process's access to a fabric of processes on one host. Clones share the access.
#[derive(Clone)]
pub struct ShmFabric {
    shared: Arc<ShmState>,
    /// Not in `shared`, because lanes hold `shared` too, and a node ends with the last clone of the
    /// fabric.
    hosts: Arc<Mutex<Vec<Host>>>,
}

struct ShmState {
    env: Env,
    directory: PathBuf,
    nodes: Box<[ShmNode]>,
    gates: Arc<Gates>,
    bell: Arc<OwnedFd>,
    watch: Arc<WatchedDescriptors>,
    jobs: Sender<Job>,
    /// Lanes open in this process.
    lanes: Mutex<Vec<LaneWaker>>,
}

/// A node of the fabric, from this process's side.
#[derive(Default)]
struct ShmNode {
    attachment: Mutex<Option<Arc<Attachment>>>,
    /// Whether an attempt to attach was made; opening a lane then makes no further attempt.
    tried: AtomicBool,
    /// Whether a test has made the node unreachable.
    cut: Arc<AtomicBool>,
}

impl ShmFabric {
    /// Joins the fabric of `nodes` nodes, numbered from zero, with sockets in `directory`. The
    /// process attaches to nodes when first needed, so nodes may start later.
    ///
    /// # Errors
    /// The operating system's error for lack of memory, descriptors or threads.
    pub fn join(directory: impl Into<PathBuf>, nodes: u16, env: &Env) -> Result<Self, ShmError> {
        let bell = Arc::new(bell::new()?);
        let watch = Arc::new(WatchedDescriptors::new(&bell)?);
        let (jobs, queued) = crossbeam_channel::unbounded();
        let shared = Arc::new(ShmState {
            env: env.clone(),
            directory: directory.into(),
            nodes: (0..nodes).map(|_| ShmNode::default()).collect(),
            gates: Gates::new()?,
            bell: Arc::clone(&bell),
            watch: Arc::clone(&watch),
            jobs,
            lanes: Mutex::default(),
        });
        let weak = Arc::downgrade(&shared);
        env.spawn("lotus-shm", move || helper::attend(&weak, &watch, &bell, &queued))?;
        Ok(Self { shared, hosts: Arc::default() })
    }

    /// Hosts `node` in this process, until the fabric is dropped.
    ///
    /// # Errors
    /// See [`Host::start`].
    pub fn host(&self, node: NodeId) -> Result<(), ShmError> {
        let ShmState { directory, nodes, env, .. } = &*self.shared;
        let host = Host::start(directory, node, nodes.len() as u16, env)?;
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).push(host);
        Ok(())
    }

    /// Attaches to `node` now, so that the caller gets the error.
    ///
    /// # Errors
    /// [`ShmError`], and [`ShmError::OtherCluster`] for a node that is not part of this fabric.
    pub fn attach(&self, node: NodeId) -> Result<(), ShmError> {
        if usize::from(node.0) >= self.shared.nodes.len() {
            return Err(ShmError::OtherCluster);
        }
        self.shared.attach(node).map(drop)
    }

    /// Makes verbs and messages of this process to `node` fail, or work again. For tests.
    ///
    /// # Errors
    /// Unknown node.
    pub fn set_reachable(&self, node: NodeId, reachable: bool) -> Result<(), FabricError> {
        self.shared.node(node)?.cut.store(!reachable, Ordering::SeqCst);
        Ok(())
    }
}

impl ShmState {
    fn node(&self, node: NodeId) -> Result<&ShmNode, FabricError> {
        self.nodes.get(usize::from(node.0)).ok_or(FabricError::UnknownNode(node))
    }

    /// Returns the current attachment to `node`, possibly lost.
    fn attached(&self, node: NodeId) -> Option<Arc<Attachment>> {
        let node = self.nodes.get(usize::from(node.0))?;
        node.attachment.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns an attachment to `node` that is not lost; attaches if necessary.
    fn attach(&self, id: NodeId) -> Result<Arc<Attachment>, ShmError> {
        let node = self.nodes.get(usize::from(id.0)).ok_or(ShmError::OtherCluster)?;
        node.tried.store(true, Ordering::Relaxed);
        let mut slot = node.attachment.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attachment) = slot.as_ref().filter(|known| !known.is_lost()) {
            return Ok(Arc::clone(attachment));
        }
        let (nodes, cut) = (self.nodes.len() as u16, Arc::clone(&node.cut));
        let attachment =
            Arc::new(Attachment::new(&self.directory, id, nodes, self.gates.file(), cut)?);
        *slot = Some(Arc::clone(&attachment));
        drop(slot);
        attachment.with_descriptor(|socket| self.watch.add(id, socket))?;
        Ok(attachment)
    }

    /// Returns the attachment to a node for a control request, or the control path's error.
    fn needed(&self, node: NodeId) -> Result<Arc<Attachment>, FabricError> {
        self.node(node)?;
        self.attach(node).map_err(|error| error.at(node))
    }

    /// Returns connections to all attachable nodes, with their current regions.
    fn connections(&self) -> Connections {
        let connect = |(index, node): (usize, &ShmNode)| {
            let id = NodeId(index as u16);
            let attachment = self.attached(id);
            let known = attachment.filter(|attachment| attachment.refresh().is_ok());
            // Verbs to a missing node report the node as unreachable.
            let try_it = known.is_none() && !node.tried.load(Ordering::Relaxed);
            if try_it { self.attach(id).ok() } else { known }
        };
        Connections(self.nodes.iter().enumerate().map(connect).collect())
    }

    /// Passes a job to the helper.
    fn send_out(&self, job: Job) {
        // Cannot fail: the helper lives as long as this state.
        let _ = self.jobs.send(job);
        bell::ring(&self.bell);
    }

    /// Removes a lane of this process.
    fn close(&self, at: Endpoint) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).retain(|lane| lane.at != at);
    }
}

impl Drop for ShmState {
    fn drop(&mut self) {
        // Wakes the helper, so that the helper sees the dropped fabric and ends.
        bell::ring(&self.bell);
    }
}

impl Fabric for ShmFabric {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        let host = self.shared.needed(node)?;
        match host.register(region, bytes, rights) {
            Ok(Some(())) => Ok(()),
            Ok(None) => Err(FabricError::RegionTaken(node, region)),
            Err(ShmError::System(source)) => Err(FabricError::OutOfMemory { bytes, source }),
            Err(error) => Err(error.at(node)),
        }
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        let shared = &self.shared;
        let host = shared.needed(at.node)?;
        let sleeper =
            Arc::new(EpollSleeper::new().map_err(|error| ShmError::System(error).at(at.node))?);
        let mailbox = host.open_lane(at.lane, sleeper.bell()).map_err(|error| error.at(at.node))?;
        let mailbox = Arc::new(mailbox.ok_or(FabricError::LaneTaken(at))?);
        let Some(gate) = shared.gates.open(at.node) else {
            let _ = host.close_lane(at);
            return Err(ShmError::TooManyLanes(at).at(at.node));
        };
        let waker = LaneWaker { at, wake: Arc::clone(&wake) };
        shared.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(waker);
        let connections = shared.connections();
        let parts = Parts { at, epoch, connections, gate, mailbox, wake, sleeper };
        Ok(Box::new(ShmLane::new(Arc::clone(shared), parts)))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        self.shared.node(expelled)?;
        let host = self.shared.needed(target)?;
        host.fence_out(expelled, epoch).map_err(|error| error.at(target))
    }
}
