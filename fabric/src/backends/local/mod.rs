//! The `local` back end: memory nodes and compute nodes in one process.
//!
//! Memory-node memory is an anonymous mapping, verbs are copies (`copies`), messages go through
//! channels. Set-up lives here ([`LocalFabric`]), the data path in `lane`.
//!
//! Each lane publishes its rounds of copies in its `Gate`. The fencer first raises the epoch, then
//! waits until every gate of the expelled node was seen open or has moved on (H2).

mod lane;
mod prefault;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crossbeam_channel::Sender;

use self::prefault::Prefaulter;
use crate::backends::copies::{Mapping, REGIONS_PER_NODE, Region, Round};
use crate::contract::ids::{Endpoint, Epoch, NodeId, RegionId, RemoteAddr};
use crate::contract::region::{Memory, Rights, WORD_BYTES};
use crate::contract::transport::{Fabric, FabricError, Transport, Wake};

/// Messages that may wait at one lane. Further messages are dropped, as by a full receive queue.
const MAILBOX_MESSAGES: usize = 4096;

/// Control path of the back end. Clones share one fabric.
#[derive(Clone)]
pub struct LocalFabric {
    shared: Arc<LocalState>,
}

struct LocalState {
    nodes: Vec<LocalNode>,
    /// Mailboxes of the open lanes.
    mailboxes: RwLock<BTreeMap<Endpoint, Mailbox>>,
    gates: Mutex<Vec<Arc<Gate>>>,
    prefaulter: Prefaulter,
}

struct LocalNode {
    regions: Box<[OnceLock<Arc<Region>>]>,
    /// By initiating node: epoch below which its verbs are refused.
    fences: Box<[AtomicU32]>,
    reachable: AtomicBool,
}

struct Message {
    from: Endpoint,
    bytes: Vec<u8>,
}

#[derive(Clone)]
struct Mailbox {
    sender: Sender<Message>,
    wake: Arc<dyn Wake>,
}

/// Shows a fencer whether a lane is copying now.
#[repr(align(64))]
struct Gate {
    node: NodeId,
    /// Odd while the lane is inside a round.
    round: AtomicU64,
    closed: AtomicBool,
}

impl LocalFabric {
    /// A fabric of `nodes` nodes, numbered from zero.
    pub fn new(nodes: u16) -> Self {
        let node = || LocalNode {
            regions: (0..REGIONS_PER_NODE).map(|_| OnceLock::new()).collect(),
            fences: (0..nodes).map(|_| AtomicU32::new(0)).collect(),
            reachable: AtomicBool::new(true),
        };
        let shared = LocalState {
            nodes: (0..nodes).map(|_| node()).collect(),
            mailboxes: RwLock::default(),
            gates: Mutex::default(),
            prefaulter: Prefaulter::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Makes verbs and messages to `node` fail, or work again. For tests: nodes of this back end
    /// share the process and cannot fail alone.
    ///
    /// # Errors
    /// Unknown node.
    pub fn set_reachable(&self, node: NodeId, reachable: bool) -> Result<(), FabricError> {
        self.shared.node(node)?.reachable.store(reachable, Ordering::SeqCst);
        Ok(())
    }
}

impl LocalFabric {
    /// Zeroes the memory of an unreachable node and lifts its fences, as if its process had been
    /// restarted with regions of the same sizes. For tests, as [`Self::set_reachable`].
    ///
    /// # Errors
    /// Unknown node.
    pub fn wipe(&self, node: NodeId) -> Result<(), FabricError> {
        let gates = self.shared.gates.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for gate in gates {
            Round::wait(|| gate.round.load(Ordering::SeqCst), || false);
        }
        let wiped = self.shared.node(node)?;
        wiped.fences.iter().for_each(|fence| fence.store(0, Ordering::SeqCst));
        for region in wiped.regions.iter().filter_map(OnceLock::get) {
            let Mapping::Writable(memory) = &region.mapping else { continue };
            (0..region.bytes as usize / WORD_BYTES).for_each(|word| memory.write(word, &[0]));
        }
        Ok(())
    }
}

impl LocalState {
    fn node(&self, node: NodeId) -> Result<&LocalNode, FabricError> {
        self.nodes.get(usize::from(node.0)).ok_or(FabricError::UnknownNode(node))
    }
}

impl Fabric for LocalFabric {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        let slot = &self.shared.node(node)?.regions[usize::from(region.0)];
        let memory = Memory::anonymous(bytes as usize)
            .map_err(|source| FabricError::OutOfMemory { bytes, source })?;
        let mapping = Mapping::Writable(memory);
        slot.set(Arc::new(Region::new(mapping, bytes, rights)))
            .map_err(|_| FabricError::RegionTaken(node, region))
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        self.shared.node(at.node)?;
        let (sender, inbox) = crossbeam_channel::bounded(MAILBOX_MESSAGES);
        let mut mailboxes = self.shared.mailboxes.write().unwrap_or_else(PoisonError::into_inner);
        if mailboxes.contains_key(&at) {
            return Err(FabricError::LaneTaken(at));
        }
        mailboxes.insert(at, Mailbox { sender, wake });
        drop(mailboxes);
        let gate = Gate { node: at.node, round: AtomicU64::new(0), closed: AtomicBool::new(false) };
        let gate = Arc::new(gate);
        let mut gates = self.shared.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.retain(|gate| !gate.closed.load(Ordering::Acquire));
        gates.push(Arc::clone(&gate));
        drop(gates);
        Ok(Box::new(lane::LocalLane::new(Arc::clone(&self.shared), at, epoch, inbox, gate)))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        self.shared.node(expelled)?;
        let fence = &self.shared.node(target)?.fences[usize::from(expelled.0)];
        // Before looking at the gates: a lane that enters a round later sees the new epoch.
        fence.fetch_max(epoch.0, Ordering::SeqCst);
        let gates = self.shared.gates.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for gate in gates.iter().filter(|gate| gate.node == expelled) {
            Round::wait(|| gate.round.load(Ordering::SeqCst), || false);
        }
        Ok(())
    }

    fn refused_below(&self, target: NodeId, initiator: NodeId) -> Option<Epoch> {
        let fence = self.shared.node(target).ok()?.fences.get(usize::from(initiator.0))?;
        Some(Epoch(fence.load(Ordering::SeqCst)))
    }

    fn prefault(&self, at: RemoteAddr, bytes: u64) {
        self.shared.prefaulter.hint(Arc::downgrade(&self.shared), at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, Harness};

    struct Local(LocalFabric);

    impl Harness for Local {
        fn fabric(&self) -> Arc<dyn Fabric> {
            Arc::new(self.0.clone())
        }
        fn node_count(&self) -> u16 {
            self.0.shared.nodes.len() as u16
        }
        fn set_reachable(&self, node: NodeId, reachable: bool) {
            self.0.set_reachable(node, reachable).expect("the node exists");
        }
    }

    #[test]
    fn passes_the_conformance_suite() {
        conformance::run(|| Local(LocalFabric::new(conformance::NODES + 1)));
    }
}
