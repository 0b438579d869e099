//! One node's software target: what its worker threads share, and how they are started.
//!
//! The first worker listens, greets and answers control; verbs of a lane belong to the worker that
//! the lane's name picks, for all of its connections. So "the lane's older connection is closed" is
//! something that one thread does, between two frames. A fence is carried out by every worker in
//! the same way, between two frames, and acknowledged by each: when the last has, nothing of the
//! expelled node is still running (H2).

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use super::handshake::{Hello, Key};
use super::limits::{Counting, Limits, TargetCounters};
use super::serve::Regions;
use super::socket::Watch;
use super::worker::Worker;
use super::{Config, Waiting};
use crate::env::Env;
use crate::ids::{Endpoint, Epoch, LaneId, NodeId};
use crate::transport::Wake;

/// What the workers of one target share.
pub(super) struct Shared {
    pub(super) node: NodeId,
    pub(super) regions: Regions,
    pub(super) key: Option<Key>,
    pub(super) limits: Limits,
    pub(super) waiting: Waiting,
    pub(super) counting: Counting,
    /// Admitted connections of all workers.
    pub(super) admitted: AtomicUsize,
    /// By expelled node: connections of older epochs are refused.
    fences: Box<[AtomicU32]>,
    lanes: Mutex<BTreeMap<LaneId, Door>>,
    mailboxes: Vec<Mailbox>,
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
    pub(super) stream: TcpStream,
}

struct Mailbox {
    orders: Sender<Order>,
    watch: Arc<Watch>,
}

/// What one worker tells another.
pub(super) enum Order {
    /// Serve this lane.
    Serve(TcpStream, Hello),
    /// Carry out a fence.
    Fence(Arc<FenceOrder>),
    /// All workers have carried it out.
    Fenced(Arc<FenceOrder>),
    /// End.
    Stop,
}

/// A fence that is being carried out.
pub(super) struct FenceOrder {
    pub(super) expelled: NodeId,
    pub(super) epoch: Epoch,
    /// Workers that have not yet done so.
    left: AtomicUsize,
    /// Names the control connection that asked to the first worker.
    pub(super) asker: u64,
}

impl Shared {
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
        let mailbox = &self.mailboxes[worker];
        // A worker that has ended needs to be told nothing.
        if mailbox.orders.send(order).is_ok() {
            mailbox.watch.wake();
        }
    }

    /// Raises a fence and has every worker carry it out; the first is told when all have.
    pub(super) fn fence(&self, expelled: NodeId, epoch: Epoch, asker: u64) {
        // Before any worker is told: what one of them admits later sees the new epoch.
        self.fences[usize::from(expelled.0)].fetch_max(epoch.0, Ordering::SeqCst);
        let left = AtomicUsize::new(self.mailboxes.len());
        let order = Arc::new(FenceOrder { expelled, epoch, left, asker });
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

/// A running target. Dropping it stops its threads and closes all its connections.
pub(super) struct Target {
    pub(super) shared: Arc<Shared>,
    pub(super) address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Target {
    /// Listens at `address` and serves `node` there.
    ///
    /// # Errors
    /// The address is taken, or the system has no thread or file to give.
    pub(super) fn start(
        node: NodeId,
        address: SocketAddr,
        config: &Config,
        env: &Env,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let mut mailboxes = Vec::new();
        let mut receivers = Vec::new();
        for _ in 0..config.workers.get() {
            let (orders, receiver) = crossbeam_channel::unbounded();
            mailboxes.push(Mailbox { orders, watch: Arc::new(Watch::new()?) });
            receivers.push(receiver);
        }
        let shared = Arc::new(Shared {
            node,
            regions: Regions::new(config.limits.memory_bytes),
            key: config.security.key().cloned(),
            limits: config.limits.clone(),
            waiting: config.waiting,
            counting: Counting::default(),
            admitted: AtomicUsize::new(0),
            fences: (0..config.nodes).map(|_| AtomicU32::new(0)).collect(),
            lanes: Mutex::default(),
            mailboxes,
        });
        let mut target = Self { shared, address, threads: Vec::new() };
        let mut listener = Some(listener);
        for (index, orders) in receivers.into_iter().enumerate() {
            let watch = Arc::clone(&target.shared.mailboxes[index].watch);
            let shared = Arc::clone(&target.shared);
            let worker = Worker::new(index, shared, watch, listener.take(), orders, env.clone())?;
            let name = format!("target {}.{index}", node.0);
            target.threads.push(env.spawn(&name, move || worker.run())?);
        }
        Ok(target)
    }

    pub(super) fn counters(&self) -> TargetCounters {
        self.shared.counting.now()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        (0..self.shared.mailboxes.len()).for_each(|worker| self.shared.tell(worker, Order::Stop));
        for thread in self.threads.drain(..) {
            // A worker that has panicked has ended, too.
            let _ = thread.join();
        }
    }
}
