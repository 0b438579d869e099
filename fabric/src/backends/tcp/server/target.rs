//! State of a served node, which worker threads share, and the orders between them.
//!
//! Verbs of a lane belong to one worker, chosen by the lane's name, for all of its connections. So
//! closing a lane's older connection is done by one thread, between two frames. A fence is carried
//! out by every worker in the same way, between two frames, and acknowledged by each: when the last
//! has, no verb of the expelled node is still running (H2).

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};

use crate::backends::tcp::config::{Config, Waiting};
use crate::backends::tcp::handshake::Hello;
use crate::backends::tcp::limits::{Counting, Limits};
use crate::backends::tcp::server::serve::Regions;
use crate::backends::tcp::socket::SocketWatch;
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId};
use crate::contract::transport::Wake;
use crate::run::env::Env;
use lotus_security::Security;
use lotus_security::Stream;

/// State of one node, shared by the workers.
pub(in crate::backends::tcp) struct TargetNode {
    pub(in crate::backends::tcp) node: NodeId,
    /// Its index among the nodes of the process.
    pub(in crate::backends::tcp) place: usize,
    pub(in crate::backends::tcp) regions: Regions,
    pub(in crate::backends::tcp) security: Security,
    pub(in crate::backends::tcp) limits: Limits,
    pub(in crate::backends::tcp) counting: Counting,
    /// Number of admitted connections, of all workers.
    pub(in crate::backends::tcp) admitted: AtomicUsize,
    /// By expelled node: epoch below which its connections are refused.
    fences: Box<[AtomicU32]>,
    lanes: Mutex<BTreeMap<LaneId, Door>>,
    mailboxes: Arc<[Mailbox]>,
}

/// Receiver of message connections for an open lane.
#[derive(Clone)]
struct Door {
    visitors: Sender<Visitor>,
    wake: Arc<dyn Wake>,
}

/// A connection that carries messages to a lane.
pub(in crate::backends::tcp) struct Visitor {
    pub(in crate::backends::tcp) from: Endpoint,
    pub(in crate::backends::tcp) stream: Stream,
}

/// A worker's orders, and what wakes it.
pub(in crate::backends::tcp) struct Mailbox {
    pub(in crate::backends::tcp) orders: Sender<Order>,
    pub(in crate::backends::tcp) watch: Arc<SocketWatch>,
}

impl Mailbox {
    pub(in crate::backends::tcp) fn tell(&self, order: Order) {
        // Fails only if the worker has ended, which needs no order.
        if self.orders.send(order).is_ok() {
            self.watch.wake();
        }
    }
}

/// Message from one worker to another.
pub(in crate::backends::tcp) enum Order {
    /// Serve this lane, on the node at that index.
    Serve(usize, Stream, Hello),
    /// Carry out a fence.
    Fence(Arc<FenceOrder>),
    /// All workers have carried out the fence.
    Fenced(Arc<FenceOrder>),
    /// Stop.
    Stop,
}

/// A fence that is being carried out.
pub(in crate::backends::tcp) struct FenceOrder {
    /// Index of the protected node.
    pub(in crate::backends::tcp) place: usize,
    pub(in crate::backends::tcp) expelled: NodeId,
    pub(in crate::backends::tcp) epoch: Epoch,
    /// Number of workers that have not yet carried it out.
    left: AtomicUsize,
    /// Control connection that asked, as the first worker's name for it.
    pub(in crate::backends::tcp) asker: u64,
}

impl TargetNode {
    pub(in crate::backends::tcp) fn new(
        node: NodeId,
        place: usize,
        config: &Config,
        mailboxes: Arc<[Mailbox]>,
    ) -> Self {
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

    /// Whether the node is part of the fabric.
    pub(in crate::backends::tcp) fn knows(&self, node: NodeId) -> bool {
        usize::from(node.0) < self.fences.len()
    }

    /// Whether `epoch` of `node` has been fenced. Unknown nodes count as fenced.
    pub(in crate::backends::tcp) fn is_fenced(&self, node: NodeId, epoch: Epoch) -> bool {
        let fence = self.fences.get(usize::from(node.0));
        fence.is_none_or(|fence| fence.load(Ordering::SeqCst) > epoch.0)
    }

    /// Index of the worker that serves a lane.
    pub(in crate::backends::tcp) fn worker_of(&self, lane: Endpoint) -> usize {
        (usize::from(lane.node.0) + usize::from(lane.lane.0)) % self.mailboxes.len()
    }

    pub(in crate::backends::tcp) fn tell(&self, worker: usize, order: Order) {
        self.mailboxes[worker].tell(order);
    }

    /// Raises a fence and orders every worker to carry it out; the first worker gets `Fenced` when
    /// all have.
    pub(in crate::backends::tcp) fn fence(&self, expelled: NodeId, epoch: Epoch, asker: u64) {
        // Before the orders: a connection that a worker admits later sees the new epoch.
        self.fences[usize::from(expelled.0)].fetch_max(epoch.0, Ordering::SeqCst);
        let left = AtomicUsize::new(self.mailboxes.len());
        let order = Arc::new(FenceOrder { place: self.place, expelled, epoch, left, asker });
        (0..self.mailboxes.len())
            .for_each(|worker| self.tell(worker, Order::Fence(Arc::clone(&order))));
    }

    /// Records that one worker has carried out a fence.
    pub(in crate::backends::tcp) fn acknowledge(&self, order: Arc<FenceOrder>) {
        // Everything that any worker did before its own decrement happens before the answer.
        if order.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell(0, Order::Fenced(order));
        }
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneId, Door>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a lane to messages; `None` if it is open already.
    pub(in crate::backends::tcp) fn open(
        &self,
        lane: LaneId,
        wake: Arc<dyn Wake>,
    ) -> Option<Receiver<Visitor>> {
        let mut lanes = self.lanes();
        if lanes.contains_key(&lane) {
            return None;
        }
        let (visitors, receiver) = crossbeam_channel::bounded(self.limits.guests);
        lanes.insert(lane, Door { visitors, wake });
        Some(receiver)
    }

    pub(in crate::backends::tcp) fn close(&self, lane: LaneId) {
        self.lanes().remove(&lane);
    }

    /// Whether a lane is open.
    pub(in crate::backends::tcp) fn is_open(&self, lane: LaneId) -> bool {
        self.lanes().contains_key(&lane)
    }

    /// Passes a connection to a lane, or closes it if the lane is gone or its queue is full.
    pub(in crate::backends::tcp) fn visit(&self, lane: LaneId, visitor: Visitor) {
        let door = self.lanes().get(&lane).cloned();
        if let Some(door) = door {
            // On failure the connection closes; the sender dials again with its next message.
            if door.visitors.try_send(visitor).is_ok() {
                door.wake.wake();
            }
        }
    }
}

/// Everything that a worker needs to start.
pub(in crate::backends::tcp) struct Post {
    pub(in crate::backends::tcp) index: usize,
    pub(in crate::backends::tcp) nodes: Arc<[Arc<TargetNode>]>,
    pub(in crate::backends::tcp) watch: Arc<SocketWatch>,
    pub(in crate::backends::tcp) listeners: Vec<TcpListener>,
    pub(in crate::backends::tcp) orders: Receiver<Order>,
    pub(in crate::backends::tcp) waiting: Waiting,
    pub(in crate::backends::tcp) limits: Limits,
    pub(in crate::backends::tcp) env: Env,
}
