//! The software targets of a process: what its worker threads share, and how they are started.
//!
//! All nodes that a process serves share its workers, so that a machine has as many of them as it
//! is given cores for, however many nodes it plays. The first worker listens, greets and answers
//! control; verbs of a lane belong to the worker that the lane's name picks, for all of its
//! connections. So "the lane's older connection is closed" is something that one thread does,
//! between two frames. A fence is carried out by every worker in the same way, between two frames,
//! and acknowledged by each: when the last has, nothing of the expelled node is still running (H2).

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

use super::handshake::Hello;
use super::limits::{Counting, Limits};
use super::serve::Regions;
use super::socket::Watch;
use super::stream::Stream;
use super::worker::Worker;
use super::{Config, Security, StartError, Waiting};
use crate::env::Env;
use crate::ids::{Endpoint, Epoch, LaneId, NodeId};
use crate::transport::Wake;

/// One node, as the workers share it.
pub(super) struct Shared {
    pub(super) node: NodeId,
    /// Its place among the nodes that the process serves.
    pub(super) place: usize,
    pub(super) regions: Regions,
    pub(super) security: Security,
    pub(super) limits: Limits,
    pub(super) counting: Counting,
    /// Admitted connections of all workers.
    pub(super) admitted: AtomicUsize,
    /// By expelled node: connections of older epochs are refused.
    fences: Box<[AtomicU32]>,
    lanes: Mutex<BTreeMap<LaneId, Door>>,
    mailboxes: Arc<[Mailbox]>,
}

/// Where messages for an open lane go in.
#[derive(Clone)]
struct Door {
    visitors: Sender<Visitor>,
    wake: Arc<dyn Wake>,
}

/// A connection that brings messages to a lane.
pub(super) struct Visitor {
    pub(super) from: Endpoint,
    pub(super) stream: Stream,
}

struct Mailbox {
    orders: Sender<Order>,
    watch: Arc<Watch>,
}

impl Mailbox {
    fn tell(&self, order: Order) {
        // A worker that has ended needs to be told nothing.
        if self.orders.send(order).is_ok() {
            self.watch.wake();
        }
    }
}

/// What one worker tells another.
pub(super) enum Order {
    /// Serve this lane on the node in that place.
    Serve(usize, Stream, Hello),
    /// Carry out a fence.
    Fence(Arc<FenceOrder>),
    /// All workers have carried it out.
    Fenced(Arc<FenceOrder>),
    /// End.
    Stop,
}

/// A fence that is being carried out.
pub(super) struct FenceOrder {
    /// The place of the node that is protected.
    pub(super) place: usize,
    pub(super) expelled: NodeId,
    pub(super) epoch: Epoch,
    /// Workers that have not yet done so.
    left: AtomicUsize,
    /// Names the control connection that asked to the first worker.
    pub(super) asker: u64,
}

impl Shared {
    fn new(node: NodeId, place: usize, config: &Config, mailboxes: Arc<[Mailbox]>) -> Self {
        Self {
            node,
            place,
            regions: Regions::new(config.limits.memory_bytes),
            security: config.security.clone(),
            limits: config.limits.clone(),
            counting: Counting::default(),
            admitted: AtomicUsize::new(0),
            fences: (0..config.nodes).map(|_| AtomicU32::new(0)).collect(),
            lanes: Mutex::default(),
            mailboxes,
        }
    }

    /// Whether the node knows a node of that number.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        usize::from(node.0) < self.fences.len()
    }

    /// Whether `epoch` of `node` has been fenced. Unknown nodes are.
    pub(super) fn is_fenced(&self, node: NodeId, epoch: Epoch) -> bool {
        let fence = self.fences.get(usize::from(node.0));
        fence.is_none_or(|fence| fence.load(Ordering::SeqCst) > epoch.0)
    }

    /// Which worker serves a lane.
    pub(super) fn worker_of(&self, lane: Endpoint) -> usize {
        (usize::from(lane.node.0) + usize::from(lane.lane.0)) % self.mailboxes.len()
    }

    pub(super) fn tell(&self, worker: usize, order: Order) {
        self.mailboxes[worker].tell(order);
    }

    /// Raises a fence and has every worker carry it out; the first is told when all have.
    pub(super) fn fence(&self, expelled: NodeId, epoch: Epoch, asker: u64) {
        // Before any worker is told: what one of them admits later sees the new epoch.
        self.fences[usize::from(expelled.0)].fetch_max(epoch.0, Ordering::SeqCst);
        let left = AtomicUsize::new(self.mailboxes.len());
        let order = Arc::new(FenceOrder { place: self.place, expelled, epoch, left, asker });
        (0..self.mailboxes.len())
            .for_each(|worker| self.tell(worker, Order::Fence(Arc::clone(&order))));
    }

    /// One worker has carried out a fence.
    pub(super) fn acknowledge(&self, order: Arc<FenceOrder>) {
        // Everything that any worker did before its own decrement comes before the answer.
        if order.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell(0, Order::Fenced(order));
        }
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneId, Door>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a lane to messages; `None` if it is open already.
    pub(super) fn open(&self, lane: LaneId, wake: Arc<dyn Wake>) -> Option<Receiver<Visitor>> {
        let mut lanes = self.lanes();
        if lanes.contains_key(&lane) {
            return None;
        }
        let (visitors, receiver) = crossbeam_channel::bounded(self.limits.guests);
        lanes.insert(lane, Door { visitors, wake });
        Some(receiver)
    }

    pub(super) fn close(&self, lane: LaneId) {
        self.lanes().remove(&lane);
    }

    /// Whether a lane is open.
    pub(super) fn is_open(&self, lane: LaneId) -> bool {
        self.lanes().contains_key(&lane)
    }

    /// Hands a connection over to a lane. It is closed if the lane has gone or takes no more.
    pub(super) fn visit(&self, lane: LaneId, visitor: Visitor) {
        let door = self.lanes().get(&lane).cloned();
        if let Some(door) = door {
            // Closed, then: the sender will try again when it has more to say.
            if door.visitors.try_send(visitor).is_ok() {
                door.wake.wake();
            }
        }
    }
}

/// The nodes that this process serves, and the threads that do it. Dropping it stops them and
/// closes all connections.
pub(super) struct Targets {
    nodes: BTreeMap<NodeId, (Arc<Shared>, SocketAddr)>,
    mailboxes: Arc<[Mailbox]>,
    threads: Vec<JoinHandle<()>>,
}

impl Targets {
    /// Listens at the addresses of all nodes that are to be served, and serves them.
    ///
    /// # Errors
    /// An address is missing or taken, or the system has no thread or file to give.
    pub(super) fn start(config: &Config, env: &Env) -> Result<Self, StartError> {
        let system = StartError::System;
        let mut mailboxes = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..config.workers.get() {
            let (orders, receiver) = crossbeam_channel::unbounded();
            let watch = Watch::new(Duration::ZERO).map_err(system)?;
            mailboxes.push(Mailbox { orders, watch: Arc::new(watch) });
            receivers.push(receiver);
        }
        let mailboxes = Arc::<[Mailbox]>::from(mailboxes);
        let mut nodes = BTreeMap::new();
        let mut posts = Vec::new();
        for (place, &node) in config.served.iter().enumerate() {
            let reached = *config.addresses.get(&node).ok_or(StartError::NoAddress(node))?;
            let address = config.listen.get(&node).copied().unwrap_or(reached);
            let (listener, address) =
                listen(address).map_err(|source| StartError::Listen { node, address, source })?;
            let shared = Arc::new(Shared::new(node, place, config, Arc::clone(&mailboxes)));
            nodes.insert(node, (Arc::clone(&shared), address));
            posts.push((shared, listener));
        }
        let shared: Arc<[_]> = posts.iter().map(|(shared, _)| Arc::clone(shared)).collect();
        let mut listeners: Vec<_> = posts.into_iter().map(|(_, listener)| listener).collect();
        let mut targets = Self { nodes, mailboxes, threads: Vec::new() };
        for (index, orders) in receivers.into_iter().enumerate() {
            let post = Post {
                index,
                nodes: Arc::clone(&shared),
                watch: Arc::clone(&targets.mailboxes[index].watch),
                // The first one listens.
                listeners: std::mem::take(&mut listeners),
                orders,
                waiting: config.waiting,
                limits: config.limits.clone(),
                env: env.clone(),
            };
            let worker = Worker::new(post).map_err(system)?;
            let name = format!("target {index}");
            targets.threads.push(env.spawn(&name, move || worker.run()).map_err(system)?);
        }
        Ok(targets)
    }

    /// A node that is served here.
    pub(super) fn node(&self, node: NodeId) -> Option<&Shared> {
        self.nodes.get(&node).map(|(shared, _)| &**shared)
    }

    /// Where the nodes that are served here listen.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (NodeId, SocketAddr)> {
        self.nodes.iter().map(|(node, (_, address))| (*node, *address))
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.tell(Order::Stop));
        for thread in self.threads.drain(..) {
            // A worker that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// What a worker needs to begin.
pub(super) struct Post {
    pub(super) index: usize,
    pub(super) nodes: Arc<[Arc<Shared>]>,
    pub(super) watch: Arc<Watch>,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) orders: Receiver<Order>,
    pub(super) waiting: Waiting,
    pub(super) limits: Limits,
    pub(super) env: Env,
}

fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
