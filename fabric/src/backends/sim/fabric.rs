//! The simulated back end from the engine's side: [`Fabric`] and its lanes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::SimError;
use super::connection::{Connection, Ends};
use super::faults::Fault;
use super::memory::Region;
use super::messages::recycle;
use super::profile::Atomics;
use super::queue::{TraceHash, duration, picos};
use super::state::{Inbox, Lane, NONE, State};
use super::world::{Config, schedule_now, waits_for_the_world};
use crate::contract::ids::{Endpoint, Epoch, NodeId, RegionId};
use crate::contract::region::{Memory, Rights};
use crate::contract::transport::{Fabric, FabricError, Sink, Token, Transport, Wake};
use crate::contract::verbs::{Capabilities, Work};
use crate::run::env::Env;

/// The fabric of a world. Clones share the fabric; code that runs in the world may hold a clone.
#[derive(Clone)]
pub struct SimFabric {
    shared: Arc<SimShared>,
}

struct SimShared {
    seed: u64,
    state: Mutex<State>,
}

impl SimFabric {
    pub(super) fn new(config: Config) -> Self {
        let (seed, state) = (config.seed, Mutex::new(State::new(config)));
        Self { shared: Arc::new(SimShared { seed, state }) }
    }

    #[inline]
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, and checks that the node exists.
    pub(super) fn known(&self, node: NodeId) -> Result<MutexGuard<'_, State>, SimError> {
        let state = self.state();
        if state.has_node(node) { Ok(state) } else { Err(SimError::UnknownNode(node)) }
    }

    /// Returns the clock and randomness of a node.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn env(&self, node: NodeId) -> Env {
        let mut seed = TraceHash::new(self.shared.seed);
        seed.add(u64::from(node.0));
        let clock = Arc::clone(&self.state().node(node).clock);
        Env::with_clock(clock, seed.value())
    }

    /// Returns a clock and randomness outside of the nodes, for clients and for recording
    /// histories. The clock orders events across nodes, and no fault affects the clock.
    pub fn outside(&self) -> Env {
        Env::with_clock(self.state().outside(), self.shared.seed)
    }

    /// Number of nodes.
    pub fn node_count(&self) -> u16 {
        self.state().nodes.len() as u16
    }

    /// Returns the open lanes.
    pub fn open_lanes(&self) -> Vec<Endpoint> {
        self.state().lanes.iter().filter(|lane| lane.open).map(|lane| lane.at).collect()
    }

    /// Returns the virtual time since the world began, which orders events across nodes
    /// independently of the nodes' clocks.
    pub fn now(&self) -> Duration {
        self.state().time()
    }

    /// Injects a fault now; crashes and restarts happen after the current turn.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn inject(&self, fault: Fault) -> Result<(), SimError> {
        let mut state = self.state();
        if let Some(node) = fault.nodes().find(|node| !state.has_node(*node)) {
            return Err(SimError::UnknownNode(node));
        }
        if waits_for_the_world(&fault) {
            schedule_now(&mut state, fault);
        } else {
            let _nothing_for_the_world = state.inject(&fault);
        }
        Ok(())
    }

    /// Charges CPU time to the core of the current turn, in addition to the costs of verbs and
    /// messages.
    pub fn charge(&self, cpu: Duration) {
        self.state().charge(picos(cpu));
    }
}

impl Fabric for SimFabric {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        let mut state = self.state();
        if !state.has_node(node) {
            return Err(FabricError::UnknownNode(node));
        }
        if !state.is_reachable(node) {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(FabricError::Unreachable { node, source });
        }
        if state.node(node).regions.has(region) {
            return Err(FabricError::RegionTaken(node, region));
        }
        let out_of_memory = |source| FabricError::OutOfMemory { bytes, source };
        if state.bytes.saturating_add(bytes) > state.limits.bytes {
            let limit = state.limits.bytes;
            let cause = std::io::Error::other(format!("this world is limited to {limit} bytes"));
            return Err(out_of_memory(cause));
        }
        let memory = Memory::anonymous(bytes as usize).map_err(out_of_memory)?;
        state.bytes += bytes;
        state.node(node).regions.add(region, Region { memory, bytes, rights });
        Ok(())
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        _wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        let mut state = self.state();
        if !state.has_node(at.node) {
            return Err(FabricError::UnknownNode(at.node));
        }
        let index = state.lanes.len() as u32;
        let lanes = &mut state.node(at.node).lanes;
        let number = usize::from(at.lane.0);
        if lanes.len() <= number {
            lanes.resize(number + 1, NONE);
        }
        if lanes[number] != NONE {
            return Err(FabricError::LaneTaken(at));
        }
        lanes[number] = index;
        let (inbox, life) = (Inbox::default(), state.node(at.node).life);
        state.lanes.push(Lane { at, epoch, life, core: NONE, open: true, inbox });
        let State { nodes, connections, .. } = &mut *state;
        connections.extend((0..).zip(nodes).map(|(target, node)| {
            let ends = Ends { lane: index, initiator: at.node, target: NodeId(target) };
            Connection::new(ends, node.life)
        }));
        let stable_reads = !state.reads_may_tear;
        let Atomics { masked: masked_atomics, wide, .. } = state.costs.atomics;
        let capabilities = Capabilities {
            stable_reads,
            masked_atomics,
            wide_atomics: wide.is_some(),
            ..Capabilities::default()
        };
        drop(state);
        Ok(Box::new(SimLane { fabric: self.clone(), at, index, capabilities }))
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        let mut state = self.state();
        let unknown = [target, expelled].into_iter().find(|node| !state.has_node(*node));
        if let Some(node) = unknown {
            return Err(FabricError::UnknownNode(node));
        }
        if !state.is_reachable(target) {
            let source = std::io::ErrorKind::TimedOut.into();
            return Err(FabricError::Unreachable { node: target, source });
        }
        state.fence(target, expelled, epoch);
        Ok(())
    }

    fn unreached(&self, at: NodeId, patience: Duration) -> Vec<(NodeId, Duration)> {
        let state = self.state();
        let Some(node) = state.nodes.get(usize::from(at.0)) else { return Vec::new() };
        let broken = node.paths.iter().enumerate().filter_map(|(node, path)| {
            let (_, last) = path.broken.filter(|(since, last)| last - since >= picos(patience))?;
            Some((NodeId(node as u16), duration(state.now - last)))
        });
        broken.collect()
    }

    fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        let state = self.state();
        let is_known = state.has_node(from) && state.has_node(to);
        is_known && !state.is_cut(from, to) && !state.is_cut(to, from)
    }

    fn refused_below(&self, target: NodeId, initiator: NodeId) -> Option<Epoch> {
        let state = self.state();
        let target = state.nodes.get(usize::from(target.0))?;
        target.fences.get(usize::from(initiator.0)).copied()
    }
}

/// The data path of one simulated lane.
struct SimLane {
    fabric: SimFabric,
    at: Endpoint,
    index: u32,
    capabilities: Capabilities,
}

impl Transport for SimLane {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn post(&mut self, token: Token, work: Box<Work>) {
        self.fabric.state().post(self.index, token, work);
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        self.fabric.state().reconnect(self.index, token, node);
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        self.fabric.state().send(self.at, to, bytes);
    }

    fn poll(&mut self, sink: &mut dyn Sink) {
        self.fabric.state().hand_over(self.index, sink);
    }

    fn has_input(&self) -> bool {
        !self.fabric.state().lanes[self.index as usize].inbox.is_empty()
    }
}

impl State {
    /// Passes a lane's completions and messages to `sink`, and charges the CPU time for them.
    #[inline]
    fn hand_over(&mut self, lane: u32, sink: &mut dyn Sink) {
        let Self { lanes, turn, costs, spare, .. } = self;
        let lane = &mut lanes[lane as usize];
        lane.core = turn.core.unwrap_or(lane.core);
        let Inbox { completed, reconnected, messages } = &mut lane.inbox;
        turn.charge(completed.len() as u64 * costs.cpu.completion);
        turn.charge(messages.len() as u64 * costs.cpu.receive);
        for (token, work) in completed.drain(..) {
            sink.completed(token, work);
        }
        for (token, result) in reconnected.drain(..) {
            sink.reconnected(token, result);
        }
        for (from, bytes) in messages.drain(..) {
            sink.message(from, &bytes);
            recycle(spare, bytes);
        }
    }
}

impl Drop for SimLane {
    /// Closes the lane. Verbs in flight still complete, but are no longer reported.
    fn drop(&mut self) {
        let mut state = self.fabric.state();
        state.node(self.at.node).lanes[usize::from(self.at.lane.0)] = NONE;
        let lane = &mut state.lanes[self.index as usize];
        lane.open = false;
        let inbox = std::mem::take(&mut lane.inbox);
        drop(state);
        drop(inbox);
    }
}
