//! One coordinator: a thread of a compute node, its state, and its coroutine slots.
//!
//! Work reaches a coordinator as [`Job`]s: closures that run a future in one of its slots. One job
//! is a whole transaction (or a whole benchmark client), never a single operation.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::env::SmallRng;
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, ShardId, TableId};
use lotus_fabric::lane::{BatchError, Lane};
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::FabricError;
use lotus_fabric::verbs::VerbError;
use lotus_locktable::{
    CasLocks, HeldLocks, LockError, LockHost, LockName, LockRequest, LockRoutes, LockService,
    LotusLocks, Suspicion,
};
use lotus_mvcc::horizon::Snapshots;
use lotus_mvcc::retention::Retired;
use lotus_mvcc::slab::{Purpose, SlabAllocator};
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_router::{GroupId, Owner, ShardEpoch};
use lotus_sabotage::{Rule, broken};

use crate::balance;
use crate::cache_counters::CacheCounters;
use crate::config::LockKind;
use crate::configuration::Configuration;
use crate::error::TxnError;
use crate::grace::Grace;
use crate::hand_over;
use crate::horizon;
use crate::lending::{self, Asks};
use crate::members;
use crate::orders;
use crate::purge::{self, Tombstones};
use crate::session::Session;
use crate::shared::{ComputeNode, NodeTable, Shared};
use crate::slot::Slot;
use crate::timestamps::Timestamps;
use crate::trim::Trims;

/// Work for one coroutine slot.
pub(crate) type Job =
    Box<dyn FnOnce(Session) -> Pin<Box<dyn Future<Output = ()>>> + Send + 'static>;

/// Snapshot of a node's tables, shared by transactions without atomic reference counting.
pub(crate) type Tables = Rc<[Arc<NodeTable>]>;

/// State shared by the coroutines of one thread.
pub(crate) struct Coordinator {
    pub(crate) shared: Arc<Shared>,
    pub(crate) node: Arc<ComputeNode>,
    /// Number of this coordinator on its node.
    pub(crate) thread: usize,
    pub(crate) executor: Handle,
    pub(crate) lane: Lane,
    pub(crate) locks: Locks,
    pub(crate) timestamps: Timestamps,
    /// Free slots of this coordinator; the node's are in [`ComputeNode::slots`].
    pub(crate) slabs: RefCell<SlabAllocator>,
    /// Requests for other nodes' free slots.
    pub(crate) asks: Asks,
    /// Slots of displaced versions that snapshots may still need.
    pub(crate) retired: RefCell<Retired>,
    /// Snapshots that its slots read from.
    pub(crate) snapshots: RefCell<Snapshots>,
    /// Rows that its transactions have deleted, to be purged.
    pub(crate) tombstones: Tombstones,
    /// Rows that its transactions have updated in full groups, to be trimmed.
    pub(crate) trims: Trims,
    /// Number of attempts begun.
    pub(crate) begun: Cell<u64>,
    pub(crate) rng: RefCell<SmallRng>,
    /// Set by `settle`: nothing is purged until the next transaction begins.
    pub(crate) settled: Cell<bool>,
    /// Number of slot drivers at work, plus upkeep runs under way.
    pub(crate) at_work: Cell<usize>,
    pub(crate) caches: Cell<CacheCounters>,
    /// Commits under way, for grace periods.
    pub(crate) grace: Grace,
    pub(crate) configuration: Configuration,
    /// Purposes of slabs that were taken and wait for a memory node to enter them.
    pub(crate) stalled: RefCell<Vec<Purpose>>,
    /// Epoch covered by the current grace period.
    pub(crate) waits_for: Cell<Epoch>,
    /// Last epoch whose expelled nodes are refused locks.
    pub(crate) refused: Cell<Epoch>,
    /// Whether a recovery task is running.
    pub(crate) recovers: Cell<bool>,
    /// Whether a task is running that lets this node serve timestamps.
    pub(crate) ascends: Cell<bool>,
    /// Receiver of the shards that are being given away.
    pub(crate) gives: Cell<Option<NodeId>>,
    /// Whether a task is running that carries over words and adopts shards.
    pub(crate) tends: Cell<bool>,
    /// Whether this coordinator reads all rows, for a snapshot file.
    pub(crate) reads_all: Cell<bool>,
    /// Whether a task is running that looks for returned memory nodes.
    pub(crate) looks: Cell<bool>,
    pub(crate) rpc: Rpc,
    /// Slots that have begun to serve.
    pub(crate) slots: RefCell<Vec<Weak<Slot>>>,
    tables: RefCell<Tables>,
}

impl Coordinator {
    fn new(
        shared: Arc<Shared>,
        node: Arc<ComputeNode>,
        thread: usize,
        executor: &mut Executor,
    ) -> Result<Rc<Self>, FabricError> {
        let handle = executor.handle().clone();
        let at = Endpoint { node: node.id, lane: LaneId(thread as u16) };
        let transport = shared.fabric.open_lane(at, node.epoch, handle.waker())?;
        let lane = Lane::new(at, handle.clone(), transport);
        executor.add_driver(lane.driver());
        let rpc = Rpc::new(lane.clone());
        let locks = Locks::new(&shared, &node, &rpc);
        let timestamps = Timestamps::new(&shared, &node, &rpc);
        let groups = shared.placement.group_count() as u16;
        let stream = (node.index * shared.config.threads + thread) as u64;
        let coordinator = Self {
            thread,
            executor: handle,
            lane,
            locks,
            timestamps,
            slabs: RefCell::new(SlabAllocator::new(groups)),
            retired: RefCell::new(Retired::new(groups)),
            snapshots: RefCell::new(Snapshots::new(shared.config.coroutines + 2)),
            tombstones: Tombstones::default(),
            trims: Trims::default(),
            asks: Asks::default(),
            begun: Cell::new(0),
            rng: RefCell::new(node.env.rng(stream)),
            at_work: Cell::new(0),
            caches: Cell::default(),
            settled: Cell::new(false),
            grace: Grace::default(),
            waits_for: Cell::new(FIRST_EPOCH),
            refused: Cell::new(FIRST_EPOCH),
            recovers: Cell::new(false),
            ascends: Cell::new(false),
            gives: Cell::new(None),
            tends: Cell::new(false),
            reads_all: Cell::new(false),
            looks: Cell::new(false),
            configuration: Configuration::of(&node.configuration),
            stalled: RefCell::default(),
            rpc,
            slots: RefCell::default(),
            tables: RefCell::new(Rc::new([])),
            shared,
            node,
        };
        let coordinator = Rc::new(coordinator);
        hand_over::serve(&coordinator);
        orders::serve(&coordinator);
        lending::serve(&coordinator);
        Ok(coordinator)
    }

    /// The tables of this node, `wanted` among them if it exists.
    #[inline]
    pub(crate) fn tables(&self, wanted: TableId) -> Tables {
        if usize::from(wanted.0) >= self.tables.borrow().len() {
            let all = self.node.tables.read().unwrap_or_else(PoisonError::into_inner);
            *self.tables.borrow_mut() = all.iter().cloned().collect();
        }
        Rc::clone(&self.tables.borrow())
    }

    /// Whether a lock that `owner` granted under `shard_epoch` still stands (H4).
    #[inline]
    pub(crate) fn still_owned(&self, shard: ShardId, owner: NodeId, shard_epoch: u32) -> bool {
        let claim = Owner { node: owner, epoch: ShardEpoch(shard_epoch) };
        self.node.shards.is_current(shard, claim) || broken(Rule::LostLocksEndAttempts)
    }

    /// Error for a transaction that has written nothing yet and whose verbs failed. First closes
    /// and re-makes the broken connections, so that nothing of the batch can still take effect
    /// (H22) and the next transaction finds them working.
    #[cold]
    pub(crate) async fn after_failure(&self, error: BatchError) -> TxnError {
        for failure in error.failures() {
            if self.has_left(failure.node) {
                continue;
            }
            // A node that does not answer now is tried again by the next transaction.
            let reconnected = self.reconnect(failure.node).await;
            if failure.error == VerbError::Revoked || reconnected == Err(VerbError::Revoked) {
                return TxnError::Fenced;
            }
        }
        self.node.configuration.why_timeout()
    }

    /// Closes and re-makes a broken connection (H22); notes for the node whether the peer answers.
    #[cold]
    pub(crate) async fn reconnect(&self, node: NodeId) -> Result<(), VerbError> {
        let mut outcome = self.lane.reconnect(node).await;
        if outcome.is_ok() && !self.is_in_use(node).await {
            outcome = Err(VerbError::Unreachable);
        }
        match outcome {
            Ok(()) => self.node.silent.answers(node),
            Err(VerbError::Revoked) => {}
            Err(_) => self.node.silent.is_silent(node),
        }
        outcome
    }

    /// Waits for work under way for up to `patience`: commits to be visible on all replicas, ends
    /// of remote locks to be acknowledged.
    ///
    /// Nothing is purged before the next transaction begins. Does not wait for returning memory
    /// nodes to be filled: that may take long, and nothing reads a copy that is not whole.
    pub(crate) async fn settle(&self, patience: Duration) {
        self.settled.set(true);
        let deadline = self.executor.now().after(patience);
        while !self.is_settled().await && self.executor.now() < deadline {
            self.executor.sleep(Duration::from_micros(50)).await;
        }
    }

    async fn is_settled(&self) -> bool {
        let ended = match &self.locks {
            Locks::Lotus(locks) => locks.unacknowledged_ends() == 0 && locks.suspects() == 0,
            Locks::CasSpin(_) => true,
        };
        ended && self.at_work.get() == 0 && members::is_settled(&self.shared).await
    }

    /// Group that stores a shard.
    #[inline]
    pub(crate) fn group_of(&self, shard: ShardId) -> GroupId {
        self.shared.placement.group_of(shard)
    }
}

impl LockRoutes for ComputeNode {
    #[inline]
    fn this_node(&self) -> NodeId {
        self.id
    }

    #[inline]
    fn owner(&self, shard: ShardId) -> (NodeId, u32) {
        self.owner_known(shard)
    }

    fn learn(&self, shard: ShardId, owner: NodeId, shard_epoch: u32) {
        Self::learn(self, shard, Owner { node: owner, epoch: ShardEpoch(shard_epoch) });
    }

    fn suspect(&self, owner: NodeId, suspicion: Suspicion) {
        self.suspects.note(owner, suspicion);
    }
}

/// The locks that this cluster was configured with.
pub(crate) enum Locks {
    Lotus(LotusLocks<ComputeNode>),
    CasSpin(CasLocks),
}

impl Locks {
    fn new(shared: &Arc<Shared>, node: &Arc<ComputeNode>, rpc: &Rpc) -> Self {
        match shared.config.locks {
            LockKind::Lotus => {
                let (table, lease) = (Arc::clone(&node.locks), shared.config.lease);
                Self::Lotus(LotusLocks::new(table, Arc::clone(node), rpc.clone(), lease))
            }
            LockKind::CasSpin => {
                let shared = Arc::clone(shared);
                let word_of = move |name: &LockName, hash| shared.lock_word(name.shard(), hash);
                Self::CasSpin(CasLocks::new(rpc.lane().clone(), Rc::new(word_of)))
            }
        }
    }
}

impl LockService for Locks {
    #[inline]
    async fn acquire(
        &self,
        held: &mut HeldLocks,
        round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError> {
        match self {
            Self::Lotus(locks) => locks.acquire(held, round, wanted, timeout).await,
            Self::CasSpin(locks) => locks.acquire(held, round, wanted, timeout).await,
        }
    }

    #[inline]
    fn release(&self, held: &mut HeldLocks) {
        match self {
            Self::Lotus(locks) => locks.release(held),
            Self::CasSpin(locks) => locks.release(held),
        }
    }

    #[inline]
    fn prefetch(&self, name: &LockName) {
        match self {
            Self::Lotus(locks) => locks.prefetch(name),
            Self::CasSpin(locks) => locks.prefetch(name),
        }
    }
}

/// Starts a coordinator on its core's executor and reports through `ready` whether it has started.
/// The future takes jobs until their channel is closed, and is done when every slot is idle.
///
/// A panic here (not in a transaction's own code, which is caught where it runs) leaves locks and
/// writes in doubt, so it expels the whole node (H21). So does the loss of the core.
pub(crate) fn run(
    shared: Arc<Shared>,
    node: Arc<ComputeNode>,
    thread: usize,
    jobs: Receiver<Job>,
    ready: &Sender<Result<(), FabricError>>,
    executor: &mut Executor,
) -> impl Future<Output = ()> + use<> {
    let guard = ExpelOnLoss { node: Arc::clone(&node), jobs: jobs.clone(), armed: true };
    let (started, outcome) = match Coordinator::new(shared, node, thread, executor) {
        Ok(coordinator) => (Some(coordinator), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // The starter waits for this; if it has given up, the job channel is closed as well.
    let _ = ready.try_send(outcome);
    let running = started.map(|coordinator| (start_slots(&coordinator, &jobs), coordinator));
    async move {
        if let Some((all_idle, coordinator)) = running {
            // Nothing is ever sent: the channel closes when the last slot has ended.
            let ended = async {
                let _ = all_idle.recv().await;
                coordinator.settle(coordinator.shared.config.lock_timeout).await;
            };
            // Boxed, each by itself: one future of them all would fill the stack of a thread.
            let chores: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
                Box::pin(horizon::keep(&coordinator)),
                Box::pin(hand_over::keep(&coordinator)),
                Box::pin(orders::keep(&coordinator)),
                Box::pin(balance::keep(&coordinator)),
                Box::pin(members::keep(&coordinator)),
                Box::pin(purge::purge(Rc::clone(&coordinator))),
            ];
            let life = beside(all_of(chores), ended);
            if !unless_killed(&coordinator.node, life).await {
                return;
            }
        }
        guard.disarm();
    }
}

/// Runs `life`; true if it came to its own end, false if the node was killed, which stops
/// everything on its cores.
async fn unless_killed(node: &ComputeNode, life: impl Future<Output = ()>) -> bool {
    let (mut life, mut killed) = (pin!(life), pin!(node.killed()));
    poll_fn(|cx| match killed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(false),
        Poll::Pending => life.as_mut().poll(cx).map(|()| true),
    })
    .await
}

/// Runs `work` until `end` completes. If `work` ends first, keeps waiting for `end`.
pub(crate) async fn beside(work: impl Future<Output = ()>, end: impl Future<Output = ()>) {
    let (mut work, mut end) = (pin!(work), pin!(end));
    let mut over = false;
    poll_fn(|cx| {
        over = over || work.as_mut().poll(cx).is_ready();
        end.as_mut().poll(cx)
    })
    .await;
}

/// Runs futures side by side until all have ended.
async fn all_of(mut works: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|cx| {
        works.retain_mut(|work| work.as_mut().poll(cx).is_pending());
        if works.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn start_slots(coordinator: &Rc<Coordinator>, jobs: &Receiver<Job>) -> Receiver<()> {
    let (serving, all_idle) = async_channel::bounded(1);
    let coroutines = coordinator.shared.config.coroutines;
    for coroutine in 0..coroutines {
        let number = (coordinator.thread * coroutines + coroutine) as u16;
        let slot = Slot::new(Rc::clone(coordinator), coroutine, number);
        let (jobs, serving) = (jobs.clone(), serving.clone());
        coordinator.executor.spawn(async move {
            slot.serve(jobs).await;
            drop(serving);
        });
    }
    all_idle
}

struct ExpelOnLoss {
    node: Arc<ComputeNode>,
    jobs: Receiver<Job>,
    armed: bool,
}

impl ExpelOnLoss {
    /// Marks that the coordinator has ended in order.
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for ExpelOnLoss {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.node.expel();
        // Callers waiting for a job to be taken or answered must not wait for ever.
        self.jobs.close();
        while self.jobs.try_recv().is_ok() {}
        for orders in [&self.node.orders.1, &self.node.passed_on.1] {
            orders.close();
            while orders.try_recv().is_ok() {}
        }
    }
}
