//! A node of this process from its peers' side: registered regions, the far ends of peers'
//! connections, and fences.
//!
//! The far end of a connection issues nothing; the device answers verbs. Software only makes and
//! destroys far ends, under one lock with the fences, so a connection is either seen by a fence or
//! refused because of the fence (H2).

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::config::Config;
use super::device::Device;
use super::events::Events;
use super::ffi::{Agreement, CompletionQueue, MemoryRegion, QueuePair, Shape};
use super::wire::{Key, Mailbox, NodeRequest, QueuePairInfo, Reply};
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId};
use crate::contract::region::{Memory, Rights};
use crate::contract::transport::FabricError;
use crate::run::env::Env;

/// A node of this process.
pub(super) struct RdmaNode {
    pub id: NodeId,
    pub device: Device,
    pub events: Events,
    regions: RwLock<BTreeMap<RegionId, (Key, MemoryRegion)>>,
    far_ends: Mutex<FarEnds>,
    /// Completion queue of the far ends; always empty, because far ends issue nothing.
    silent: Arc<CompletionQueue>,
    /// Mailboxes of the open lanes; `None` while a lane is being opened.
    lanes: Mutex<BTreeMap<LaneId, Option<Mailbox>>>,
    reachable: AtomicBool,
}

#[derive(Default)]
struct FarEnds {
    /// By node: epoch below which connections are refused.
    fences: BTreeMap<NodeId, Epoch>,
    /// By initiating lane. Dropping destroys a queue pair: no later verb of the lane takes effect.
    open: BTreeMap<Endpoint, (Epoch, QueuePair)>,
}

impl RdmaNode {
    pub fn new(id: NodeId, device: Device, env: &Env) -> io::Result<Self> {
        Ok(Self {
            id,
            events: Events::start(&device.context, env)?,
            silent: Arc::new(CompletionQueue::new(&device.context, 1, None)?),
            device,
            regions: RwLock::default(),
            far_ends: Mutex::default(),
            lanes: Mutex::default(),
            reachable: AtomicBool::new(true),
        })
    }

    /// Answers a request; `None` if the node counts as unreachable.
    pub fn serve(&self, request: &NodeRequest) -> Option<Reply> {
        if !self.is_reachable() {
            return None;
        }
        if request.of() != self.id {
            return Some(Reply::Unknown);
        }
        Some(match request {
            NodeRequest::Greet { .. } => Reply::Yes,
            NodeRequest::Connect { from, epoch, card, .. } => {
                self.connect(*from, *epoch, card).unwrap_or(Reply::Failed)
            }
            NodeRequest::Find { lane } => self.find(lane.lane),
            NodeRequest::Fence { expelled, epoch, .. } => {
                self.fence(*expelled, *epoch);
                Reply::Yes
            }
        })
    }

    fn connect(&self, from: Endpoint, epoch: Epoch, card: &QueuePairInfo) -> io::Result<Reply> {
        let mut far_ends = self.far_ends.lock().unwrap_or_else(PoisonError::into_inner);
        if far_ends.fences.get(&from.node).is_some_and(|fence| *fence > epoch) {
            return Ok(Reply::Revoked);
        }
        // Before anything else: verbs posted on the old connection must not take effect any more
        // (H22).
        drop(far_ends.open.remove(&from));
        let device = &self.device;
        let shape = Shape { datagrams: false, send_queue: 1, receive_queue: 1, inline_bytes: 0 };
        let pair = QueuePair::new(&device.domain, &self.silent, &self.silent, shape)?;
        let (mtu, reads) = (card.mtu.min(device.mtu), card.reads.min(device.limits.served));
        pair.admit_verbs(device.port)?;
        let agreed = Agreement {
            mtu,
            peer_number: card.queue_pair,
            peer_first_packet: card.first_packet,
            served: reads,
        };
        pair.receive_from(&device.route_to(card.gid, card.lid), agreed)?;
        let card = QueuePairInfo {
            queue_pair: pair.number(),
            first_packet: 0,
            gid: device.gid,
            lid: device.lid,
            mtu,
            reads,
        };
        far_ends.open.insert(from, (epoch, pair));
        drop(far_ends);
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        Ok(Reply::Connected { card, keys: regions.values().map(|(key, _)| *key).collect() })
    }

    /// Refuses older epochs of `expelled`, and destroys the connections of older epochs.
    pub fn fence(&self, expelled: NodeId, epoch: Epoch) {
        let mut far_ends = self.far_ends.lock().unwrap_or_else(PoisonError::into_inner);
        let fence = far_ends.fences.entry(expelled).or_default();
        *fence = epoch.max(*fence);
        let fence = *fence;
        far_ends.open.retain(|from, (epoch, _)| from.node != expelled || *epoch >= fence);
    }

    /// Registers the first `bytes` of `memory`.
    pub fn register(
        &self,
        region: RegionId,
        memory: Memory,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        if regions.contains_key(&region) {
            return Err(FabricError::RegionTaken(self.id, region));
        }
        let registered = self.register_memory(Arc::new(memory), bytes, rights)?;
        let (address, key) = (registered.address(), registered.remote_key());
        regions.insert(region, (Key { region, rights, bytes, address, key }, registered));
        Ok(())
    }

    /// Registers memory for access by the device.
    pub fn register_memory(
        &self,
        memory: Arc<Memory>,
        bytes: u64,
        remote: Rights,
    ) -> Result<MemoryRegion, super::SetupError> {
        MemoryRegion::new(&self.device.domain, memory, bytes as usize, remote).map_err(|source| {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
            match (source.raw_os_error(), limit.current) {
                (Some(ENOMEM | EPERM), Some(limit_bytes)) => {
                    super::SetupError::MemoryLock { bytes, limit_bytes }
                }
                _ => self.device.error("register memory with", source),
            }
        })
    }

    /// Removes a region: the device refuses the region's key from now on.
    #[cfg(test)]
    pub fn deregister(&self, region: RegionId) {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&region);
    }

    /// Reserves the lane. Returns whether the lane was free.
    pub fn open_lane(&self, lane: LaneId) -> bool {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let free = !lanes.contains_key(&lane);
        lanes.entry(lane).or_default();
        free
    }

    pub fn receive_at(&self, lane: LaneId, mailbox: Mailbox) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).insert(lane, Some(mailbox));
    }

    pub fn close_lane(&self, lane: LaneId) {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner).remove(&lane);
    }

    fn find(&self, lane: LaneId) -> Reply {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.get(&lane).copied().flatten().map_or(Reply::Unknown, Reply::Found)
    }

    #[inline]
    pub fn is_reachable(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    /// Makes the node stop answering, as if dead, or answer again.
    pub fn set_reachable(&self, reachable: bool) {
        self.reachable.store(reachable, Ordering::SeqCst);
        if !reachable {
            self.far_ends.lock().unwrap_or_else(PoisonError::into_inner).open.clear();
        }
    }

    /// Returns the parameters of a lane's queue pairs on the node's device.
    pub fn connection_shape(&self, config: &Config) -> Shape {
        Shape {
            datagrams: false,
            send_queue: self.device.send_queue(config, config.nodes.len()),
            receive_queue: 1,
            inline_bytes: config.inline_bytes,
        }
    }
}

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
