//! State of a served node, shared by worker threads, and the workers' orders.
//!
//! Verbs of a lane belong to one worker, chosen by the lane's name, for all of the lane's
//! connections. So a single thread closes a lane's older connection, between two frames. Every
//! worker carries out and acknowledges a fence in the same way, between two frames: after the last
//! acknowledgement no verb of the expelled node is still running (H2).

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
pub(crate) struct TargetNode {
    pub(crate) node: NodeId,
    /// Index of the node among the nodes of the process.
    pub(crate) place: usize,
    pub(crate) regions: Regions,
    pub(crate) security: Security,
    pub(crate) limits: Limits,
    pub(crate) counting: Counting,
    /// Number of admitted connections of all workers.
    pub(crate) admitted: AtomicUsize,
    /// By expelled node: epoch below which connections are refused.
    fences: Box<[AtomicU32]>,
    lanes: Mutex<BTreeMap<LaneId, LaneReceiver>>,
    mailboxes: Arc<[Mailbox]>,
}

/// Receiver of message connections for an open lane.
#[derive(Clone)]
struct LaneReceiver {
    visitors: Sender<MessageConnection>,
    wake: Arc<dyn Wake>,
}

/// A connection that carries messages to a lane.
pub(crate) struct MessageConnection {
    pub(crate) from: Endpoint,
    pub(crate) stream: Stream,
}

/// A worker's queue of orders, and the watch that wakes the worker.
pub(crate) struct Mailbox {
    pub(crate) orders: Sender<Order>,
    pub(crate) watch: Arc<SocketWatch>,
}

impl Mailbox {
    pub(crate) fn tell(&self, order: Order) {
        // Fails only if the worker has ended and needs no order.
        if self.orders.send(order).is_ok() {
            self.watch.wake();
        }
    }
}

/// Message between workers.
pub(crate) enum Order {
    /// Serve this lane, on the node with this index.
    Serve(usize, Stream, Hello),
    /// Carry out a fence.
    Fence(Arc<FenceOrder>),
    /// All workers have carried out the fence.
    Fenced(Arc<FenceOrder>),
    /// Stop.
    Stop,
}

/// A fence in progress.
pub(crate) struct FenceOrder {
    /// Index of the protected node.
    pub(crate) place: usize,
    pub(crate) expelled: NodeId,
    pub(crate) epoch: Epoch,
    /// Number of workers that have not yet carried out the fence.
    left: AtomicUsize,
    /// The first worker's name of the asking control connection.
    pub(crate) asker: u64,
}

impl TargetNode {
    pub(crate) fn new(
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
    pub(crate) fn knows(&self, node: NodeId) -> bool {
        usize::from(node.0) < self.fences.len()
    }

    /// Whether `epoch` of `node` has been fenced. Unknown nodes count as fenced.
    pub(crate) fn is_fenced(&self, node: NodeId, epoch: Epoch) -> bool {
        let fence = self.fences.get(usize::from(node.0));
        fence.is_none_or(|fence| fence.load(Ordering::SeqCst) > epoch.0)
    }

    /// Index of the worker that serves a lane.
    pub(crate) fn worker_of(&self, lane: Endpoint) -> usize {
        (usize::from(lane.node.0) + usize::from(lane.lane.0)) % self.mailboxes.len()
    }

    pub(crate) fn tell(&self, worker: usize, order: Order) {
        self.mailboxes[worker].tell(order);
    }

    /// Raises a fence and orders every worker to carry the fence out; the first worker gets
    /// `Fenced` after the last acknowledgement.
    pub(crate) fn fence(&self, expelled: NodeId, epoch: Epoch, asker: u64) {
        // Raised before the orders: a connection that a worker admits later sees the new epoch.
        self.fences[usize::from(expelled.0)].fetch_max(epoch.0, Ordering::SeqCst);
        let left = AtomicUsize::new(self.mailboxes.len());
        let order = Arc::new(FenceOrder { place: self.place, expelled, epoch, left, asker });
        (0..self.mailboxes.len())
            .for_each(|worker| self.tell(worker, Order::Fence(Arc::clone(&order))));
    }

    /// Records that one worker has carried out a fence.
    pub(crate) fn acknowledge(&self, order: Arc<FenceOrder>) {
        // Everything that a worker did before its decrement happens before the answer.
        if order.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell(0, Order::Fenced(order));
        }
    }

    fn lanes(&self) -> MutexGuard<'_, BTreeMap<LaneId, LaneReceiver>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a lane to messages; `None` if the lane is open already.
    pub(crate) fn open(
        &self,
        lane: LaneId,
        wake: Arc<dyn Wake>,
    ) -> Option<Receiver<MessageConnection>> {
        let mut lanes = self.lanes();
        if lanes.contains_key(&lane) {
            return None;
        }
        let (visitors, receiver) = crossbeam_channel::bounded(self.limits.guests);
        lanes.insert(lane, LaneReceiver { visitors, wake });
        Some(receiver)
    }

    pub(crate) fn close(&self, lane: LaneId) {
        self.lanes().remove(&lane);
    }

    /// Whether a lane is open.
    pub(crate) fn is_open(&self, lane: LaneId) -> bool {
        self.lanes().contains_key(&lane)
    }

    /// Passes a connection to a lane; closes the connection if the lane is gone or the queue is
    /// full.
    pub(crate) fn visit(&self, lane: LaneId, visitor: MessageConnection) {
        let receiver = self.lanes().get(&lane).cloned();
        if let Some(receiver) = receiver {
            // On failure the connection closes; the sender dials again with the next message.
            if receiver.visitors.try_send(visitor).is_ok() {
                receiver.wake.wake();
            }
        }
    }
}

/// Everything that a worker needs to start.
pub(crate) struct Post {
    pub(crate) index: usize,
    pub(crate) nodes: Arc<[Arc<TargetNode>]>,
    pub(crate) watch: Arc<SocketWatch>,
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) orders: Receiver<Order>,
    pub(crate) waiting: Waiting,
    pub(crate) limits: Limits,
    pub(crate) env: Env,
}
