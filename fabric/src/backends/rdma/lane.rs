//! The data path of a lane: batches to connections, completions back, messages in both directions.
//!
//! A lane's completions arrive in one queue. An id identifies the connection and the verb, or a
//! buffer for datagrams. Slow work (requesting a connection from a remote node, or looking up a
//! lane's mailbox) is a background task: a thread that reports its result. So polling never blocks,
//! and a silent node delays only verbs and messages to the silent node.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};

use super::chain::{Chain, Local};
use super::connection::{Connection, Flights, Link, Tools, node_of, word_of};
use super::datagrams::{Datagrams, RECEIVED};
use super::ffi::{
    Agreement, CompletionQueue, Completions, MemoryRegion, ProtectionDomain, QueuePair,
    RetryParameters,
};
use super::node::RdmaNode;
use super::rules::Ordering;
use super::wire::{Mailbox, NodeRequest, QueuePairInfo, Reply};
use super::{RdmaState, SetupError};
use crate::contract::ids::{Endpoint, Epoch, NodeId};
use crate::contract::region::Rights;
use crate::contract::transport::{FabricError, Sink, Token, Transport, Wake};
use crate::contract::verbs::{Capabilities, VerbError, Work, WorkRequest};

/// The data path of a lane. Queue pairs come first, so that they are destroyed before the buffers
/// to which they give the device access.
pub(super) struct RdmaLane {
    pub(super) connections: Vec<Connection>,
    datagrams: Datagrams,
    results: Receiver<TaskResult>,
    background_tasks: BackgroundTasks,
    flights: Flights,
    arena: Arena,
    chain: Chain,
    queue: Arc<CompletionQueue>,
    /// Completions found by the poll before going to sleep, and whether the poll found any.
    early: RefCell<Completions>,
    has_early: Cell<bool>,
    completions: Completions,
    reconnected: Vec<(Token, Result<(), VerbError>)>,
    /// By node: whether the batch being posted already has verbs to the node.
    addressed: Vec<bool>,
}

/// Result of a background task.
enum TaskResult {
    Connected(NodeId, Result<Link, VerbError>),
    Found(Endpoint, Option<Mailbox>),
}

/// Registrations of the buffers of the lane's batches.
pub(super) struct Arena {
    pub domain: Arc<ProtectionDomain>,
    pub slabs: Vec<MemoryRegion>,
}

impl Arena {
    /// Returns the address and key of a request's local side. Registers new memory: the lane's pool
    /// grows by slabs, rarely.
    #[inline]
    pub fn local(&mut self, work: &Work, request: &WorkRequest) -> Result<Local, VerbError> {
        if let Some(word) = word_of(request) {
            return Ok(word);
        }
        let (memory, address) = work.place(request.local);
        let known = self.slabs.iter().find(|slab| Arc::ptr_eq(slab.memory(), memory));
        let key = match known {
            Some(slab) => slab.local_key(),
            None => self.grow(memory)?,
        };
        Ok(Local { address: address as u64, bytes: request.local.bytes() as u32, key })
    }

    #[cold]
    fn grow(&mut self, memory: &Arc<crate::contract::region::Memory>) -> Result<u32, VerbError> {
        let nobody = Rights { read: false, write: false, atomic: false };
        let slab = MemoryRegion::new(&self.domain, Arc::clone(memory), memory.bytes(), nobody);
        // An unposted verb has no effect; a reconnect tries again.
        let slab = slab.map_err(|_| VerbError::Broken)?;
        self.slabs.push(slab);
        Ok(self.slabs[self.slabs.len() - 1].local_key())
    }
}

/// Context for background tasks, cloned into their threads.
#[derive(Clone)]
struct BackgroundTasks {
    shared: Arc<RdmaState>,
    node: Arc<RdmaNode>,
    at: Endpoint,
    epoch: Epoch,
    queue: Arc<CompletionQueue>,
    wake: Arc<dyn Wake>,
    report: Sender<TaskResult>,
}

impl BackgroundTasks {
    /// Runs a task on a separate thread. If no thread can be started, reports `failed`.
    fn run(&self, failed: TaskResult, task: impl FnOnce(&Self) -> TaskResult + Send + 'static) {
        let own = self.clone();
        let started = self.shared.env.spawn("rdma-ask", move || {
            let result = task(&own);
            // Fails if the lane is gone.
            let _ = own.report.send(result);
            own.wake.wake();
        });
        if started.is_err() {
            let _ = self.report.send(failed);
        }
    }

    fn connect(&self, node: NodeId) {
        let failed = TaskResult::Connected(node, Err(VerbError::Unreachable));
        self.run(failed, move |own| {
            let link = own.make_link(node);
            let in_terms = |error| match error {
                ConnectFailure::Revoked => VerbError::Revoked,
                ConnectFailure::Failed => VerbError::Unreachable,
            };
            TaskResult::Connected(node, link.map_err(in_terms))
        });
    }

    fn find(&self, lane: Endpoint) {
        self.run(TaskResult::Found(lane, None), move |own| {
            let reply = own.shared.ask(lane.node, &NodeRequest::Find { lane });
            let mailbox = match reply {
                Ok(Reply::Found(mailbox)) => Some(mailbox),
                _ => None,
            };
            TaskResult::Found(lane, mailbox)
        });
    }

    /// Makes the near end of a connection, requests the far end, and joins the ends.
    fn make_link(&self, to: NodeId) -> Result<Link, ConnectFailure> {
        let (config, device) = (&self.shared.config, &self.node.device);
        let shape = self.node.connection_shape(config);
        let pair = QueuePair::new(&device.domain, &self.queue, &self.queue, shape)?;
        pair.admit_verbs(device.port)?;
        // Any number will do; changing the number rejects stray packets of an earlier life.
        let first_packet = self.shared.env.now().0 as u32 & 0xFF_FFFF;
        let card = QueuePairInfo {
            queue_pair: pair.number(),
            first_packet,
            gid: device.gid,
            lid: device.lid,
            mtu: device.mtu,
            reads: device.limits.initiated,
        };
        let request = NodeRequest::Connect { of: to, from: self.at, epoch: self.epoch, card };
        let (theirs, keys) = match self.shared.ask(to, &request)? {
            Reply::Connected { card, keys } => (card, keys),
            Reply::Revoked => return Err(ConnectFailure::Revoked),
            _ => return Err(ConnectFailure::Failed),
        };
        let agreed = Agreement {
            mtu: theirs.mtu,
            peer_number: theirs.queue_pair,
            peer_first_packet: theirs.first_packet,
            // The far end issues no verbs.
            served: 1,
        };
        pair.receive_from(&device.route_to(theirs.gid, theirs.lid), agreed)?;
        let patience = RetryParameters { timeout: config.timeout, retries: config.retries };
        pair.send(first_packet, theirs.reads, patience)?;
        Ok(Link::new(pair, &keys))
    }
}

/// Reason why a connection could not be made.
enum ConnectFailure {
    Revoked,
    Failed,
}

impl From<std::io::Error> for ConnectFailure {
    fn from(_: std::io::Error) -> Self {
        Self::Failed
    }
}

impl From<FabricError> for ConnectFailure {
    fn from(_: FabricError) -> Self {
        Self::Failed
    }
}

impl RdmaLane {
    /// Makes the lane's queues. Connections are made at first use.
    pub fn open(
        shared: Arc<RdmaState>,
        node: &Arc<RdmaNode>,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Self, SetupError> {
        let (config, device) = (&shared.config, &node.device);
        let nodes = config.nodes.len();
        let failed = |source| device.error("open a queue on", source);
        let cookie = usize::from(at.lane.0);
        let capacity = device.completions(config, nodes);
        let events = Some((node.events.channel(), cookie));
        let queue = CompletionQueue::new(&device.context, capacity, events).map_err(failed)?;
        let queue = Arc::new(queue);
        let datagrams = Datagrams::open(node, config, at, &queue, shared.env.now().0)?;
        let shape = node.connection_shape(config);
        let ordering = Ordering::of_vendor(device.limits.vendor);
        let connect =
            |id| Connection::new(NodeId(id), shape.send_queue, config.unsignalled, ordering);
        let connections = (0..nodes as u16).map(connect).collect();
        node.events.add(cookie, Arc::clone(&wake));
        node.receive_at(at.lane, datagrams.mailbox());
        let (report, results) = crossbeam_channel::unbounded();
        let (shared, node) = (shared, Arc::clone(node));
        Ok(Self {
            arena: Arena { domain: Arc::clone(&node.device.domain), slabs: Vec::new() },
            background_tasks: BackgroundTasks {
                shared,
                node,
                at,
                epoch,
                queue: Arc::clone(&queue),
                wake,
                report,
            },
            results,
            flights: Flights::default(),
            chain: Chain::with_capacity(shape.send_queue as usize),
            connections,
            datagrams,
            queue,
            early: RefCell::default(),
            has_early: Cell::new(false),
            completions: Completions::default(),
            reconnected: Vec::new(),
            addressed: vec![false; nodes],
        })
    }

    #[inline]
    fn pump(&mut self, index: usize) {
        let Self { flights, arena, chain, .. } = self;
        let connection = &mut self.connections[index];
        if connection.pump(&mut Tools { flights, arena, chain }) {
            self.background_tasks.connect(NodeId(index as u16));
        }
    }

    fn take_results(&mut self) {
        while let Ok(result) = self.results.try_recv() {
            match result {
                TaskResult::Connected(node, link) => {
                    let index = usize::from(node.0);
                    let reconnected = &mut self.reconnected;
                    self.connections[index]
                        .connected(link, |token, result| reconnected.push((token, result)));
                    self.pump(index);
                }
                TaskResult::Found(lane, mailbox) => self.datagrams.found(lane, mailbox),
            }
        }
    }

    /// Processes the results of a poll. Returns whether more completions may wait.
    #[inline]
    fn take_completions(&mut self, completions: &Completions, sink: &mut dyn Sink) -> bool {
        for completion in completions.found() {
            let (id, status) = (completion.wr_id(), status_of(completion));
            if id & RECEIVED == RECEIVED {
                let reachable = self.background_tasks.node.is_reachable();
                self.datagrams.received(id, completion, |from, bytes| {
                    if reachable {
                        sink.message(from, bytes);
                    }
                });
                continue;
            }
            let index = usize::from(node_of(id).0);
            self.connections[index].completed(&mut self.flights, id, status);
            self.pump(index);
        }
        completions.found().len() == Completions::MOST
    }

    fn is_reachable(&self, node: NodeId) -> bool {
        let peer = self.background_tasks.shared.nodes.get(usize::from(node.0));
        peer.is_some_and(|peer| peer.here.as_ref().is_none_or(|here| here.node.is_reachable()))
    }
}

#[inline]
fn status_of(completion: &super::ffi::ibv_wc) -> super::ffi::ibv_wc_status::Type {
    completion.error().map_or(super::ffi::ibv_wc_status::IBV_WC_SUCCESS, |(status, _)| status)
}

impl Transport for RdmaLane {
    /// Claims neither masked nor 16-byte atomics: some devices (mlx5) have them, but only through
    /// interfaces that the back end does not use.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    #[inline]
    fn post(&mut self, token: Token, mut work: Box<Work>) {
        let nodes = self.connections.len();
        let mut parts = 0;
        for index in 0..work.requests().len() {
            let node = work.requests()[index].addr.node();
            match self.addressed.get_mut(usize::from(node.0)) {
                Some(addressed) => parts += u32::from(!std::mem::replace(addressed, true)),
                None if work.has_failed(node) => {}
                None => work.fail(index, VerbError::Unreachable),
            }
        }
        // One extra part keeps the batch in place while parts are queued.
        let flight = self.flights.add(token, work, parts + 1);
        for index in 0..nodes {
            if std::mem::take(&mut self.addressed[index]) {
                self.connections[index].push(flight, 0);
                self.pump(index);
            }
        }
        self.flights.end_part(flight);
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        let index = usize::from(node.0);
        match self.connections.get_mut(index) {
            Some(connection) => {
                connection.push_reconnect(token);
                self.pump(index);
            }
            None => self.reconnected.push((token, Err(VerbError::Unreachable))),
        }
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        if !self.is_reachable(to.node) || !self.background_tasks.node.is_reachable() {
            return;
        }
        if self.datagrams.send(to, bytes) {
            self.background_tasks.find(to);
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) {
        self.take_results();
        if self.has_early.take() {
            let early = self.early.take();
            self.take_completions(&early, sink);
            self.early.replace(early);
        }
        let mut completions = std::mem::take(&mut self.completions);
        loop {
            self.queue.poll(&mut completions);
            if !self.take_completions(&completions, sink) {
                break;
            }
        }
        self.completions = completions;
        while let Some(flight) = self.flights.landed.pop() {
            let (token, work) = self.flights.take(flight);
            sink.completed(token, work);
        }
        for (token, result) in self.reconnected.drain(..) {
            sink.reconnected(token, result);
        }
    }

    /// Also requests an event, because the lane may go to sleep now; the following poll finds
    /// completions from before the request.
    fn has_input(&self) -> bool {
        let ready = !self.flights.landed.is_empty()
            || !self.reconnected.is_empty()
            || !self.results.is_empty()
            || self.has_early.get();
        if !ready {
            self.queue.request_event();
            let mut early = self.early.borrow_mut();
            self.queue.poll(&mut early);
            self.has_early.set(!early.found().is_empty());
        }
        ready || self.has_early.get()
    }
}

impl Drop for RdmaLane {
    fn drop(&mut self) {
        let BackgroundTasks { node, at, .. } = &self.background_tasks;
        node.close_lane(at.lane);
        node.events.remove(usize::from(at.lane.0));
    }
}
