//! One coordinator: a thread of a compute node, its state, and its coroutine slots.
//!
//! Work reaches a coordinator as [`Job`](crate::txn::session::Job)s: closures that run a future in
//! a slot of the coordinator. A job is a whole transaction (or a whole benchmark client), never a
//! single operation.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lotus_fabric::env::SmallRng;
use lotus_fabric::exec::{Executor, Handle, TaskId};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, ShardId, TableId};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::transport::FabricError;
use lotus_locktable::{LockHost, LockRoutes, LockWait, Suspicion};
use lotus_mvcc::horizon::Snapshots;
use lotus_mvcc::retention::Retired;
use lotus_mvcc::slab::{Purpose, SlabAllocator};
use lotus_recovery::membership::FIRST_EPOCH;
use lotus_router::{GroupId, Owner, ShardEpoch};
use lotus_sabotage::{Rule, broken};

use crate::api::cache_counters::CacheCounters;
use crate::api::error::TxnError;
use crate::node::agreed::node_numbers::NodeNumbers;
use crate::node::caches::inner_nodes::InnerNodes;
use crate::node::locks::Locks;
use crate::node::memory::configuration::Configuration;
use crate::node::memory::slot_requests::SlotRequests;
use crate::node::memory::tombstones::Tombstones;
use crate::node::memory::trims::Trims;
use crate::node::shared::{ComputeNode, NodeTable, Shared};
use crate::node::threads::attempts::Attempts;
use crate::node::threads::poll_tracker::PollTracker;
use crate::node::time::grace::Grace;
use crate::node::time::horizon::MAX_INTERVALS;
use crate::node::time::timestamps::Timestamps;

/// Snapshot of a node's tables, shared by transactions without atomic reference counting.
pub(crate) type Tables = Rc<[Arc<NodeTable>]>;

/// The table with this number among `tables`.
///
/// # Errors
/// `UnknownTable`; also if the table was dropped.
#[inline]
pub(crate) fn known(tables: &Tables, table: TableId) -> Result<&Arc<NodeTable>, TxnError> {
    let known = tables.get(usize::from(table.0)).filter(|known| !known.is_dropped());
    known.ok_or(TxnError::UnknownTable(table))
}

/// State shared by the coroutines of one thread.
pub(crate) struct Coordinator {
    pub(crate) shared: Arc<Shared>,
    pub(crate) node: Arc<ComputeNode>,
    /// Number of this coordinator on the node.
    pub(crate) thread: usize,
    pub(crate) executor: Handle,
    pub(crate) lane: Lane,
    pub(crate) locks: Locks,
    pub(crate) timestamps: Timestamps,
    /// Free slots of this coordinator; the node's are in [`ComputeNode::slots`].
    pub(crate) slabs: RefCell<SlabAllocator>,
    /// Requests for other nodes' free slots.
    pub(crate) slot_requests: SlotRequests,
    /// Slots of displaced versions that snapshots may still need.
    pub(crate) retired: RefCell<Retired>,
    /// Snapshots read by the slots' transactions, followed by the snapshots held by the slots'
    /// jobs.
    pub(crate) snapshots: RefCell<Snapshots>,
    /// Rows deleted by its transactions, to be purged.
    pub(crate) tombstones: Tombstones,
    /// Rows updated by its transactions in full groups, to be trimmed.
    pub(crate) trims: Trims,
    /// Number of attempts begun.
    pub(crate) begun: Cell<u64>,
    pub(crate) rng: RefCell<SmallRng>,
    /// Set by `settle`: nothing is purged until the next transaction begins.
    pub(crate) settled: Cell<bool>,
    /// Number of slot drivers at work, plus upkeep runs under way.
    pub(crate) at_work: Cell<usize>,
    pub(crate) caches: Cell<CacheCounters>,
    /// Inner nodes of ordered tables, from the last read.
    pub(crate) inner_nodes: InnerNodes,
    /// Numbers for nodes added to ordered tables.
    pub(crate) node_numbers: NodeNumbers,
    /// Commits under way, for grace periods.
    pub(crate) grace: Grace,
    pub(crate) configuration: Configuration,
    /// Purposes of taken slabs whose directory entries wait for a memory node.
    pub(crate) stalled: RefCell<Vec<Purpose>>,
    /// Epoch covered by the current grace period.
    pub(crate) waits_for: Cell<Epoch>,
    /// Last epoch whose expelled nodes are refused locks.
    pub(crate) refused: Cell<Epoch>,
    /// Whether a recovery task is running.
    pub(crate) recovers: Cell<bool>,
    /// Whether a task is running that lets this node serve timestamps.
    pub(crate) takeover_running: Cell<bool>,
    /// Receiver of the shards being given away.
    pub(crate) handover_target: Cell<Option<NodeId>>,
    /// Whether a task is running that carries over words and adopts shards.
    pub(crate) adoption_running: Cell<bool>,
    /// Whether a task is running that clears a dropped table.
    pub(crate) clears: Cell<bool>,
    /// Mark of the job whose code the thread is running.
    pub(crate) poll_tracker: PollTracker,
    /// Whether the jobs in the slots are to be dropped.
    pub(crate) cancelled: Cell<bool>,
    /// Tasks of the slots.
    pub(crate) slot_tasks: RefCell<Vec<TaskId>>,
    /// Whether this coordinator reads all rows, for a snapshot file.
    pub(crate) reads_all: Cell<bool>,
    /// Whether a task is running that looks for returned memory nodes.
    pub(crate) looks: Cell<bool>,
    pub(crate) rpc: Rpc,
    /// Attempts of the slots already serving.
    pub(crate) attempts: RefCell<Vec<Weak<Attempts>>>,
    tables: RefCell<Tables>,
}

impl Coordinator {
    pub(crate) fn new(
        shared: Arc<Shared>,
        node: Arc<ComputeNode>,
        thread: usize,
        executor: &mut Executor,
    ) -> Result<Rc<Self>, FabricError> {
        debug_assert!(
            thread < shared.config.threads,
            "I53: each coordinator has log slots of its own"
        );
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
            snapshots: RefCell::new(Snapshots::new(2 * shared.config.coroutines + 1)),
            tombstones: Tombstones::default(),
            trims: Trims::default(),
            slot_requests: SlotRequests::default(),
            begun: Cell::new(0),
            rng: RefCell::new(node.env.rng(stream)),
            at_work: Cell::new(0),
            caches: Cell::default(),
            inner_nodes: InnerNodes::default(),
            node_numbers: NodeNumbers::new(node.incarnation, thread),
            settled: Cell::new(false),
            grace: Grace::default(),
            waits_for: Cell::new(FIRST_EPOCH),
            refused: Cell::new(FIRST_EPOCH),
            recovers: Cell::new(false),
            takeover_running: Cell::new(false),
            handover_target: Cell::new(None),
            adoption_running: Cell::new(false),
            clears: Cell::new(false),
            poll_tracker: PollTracker::new(&node.current_polls[thread]),
            cancelled: Cell::new(false),
            slot_tasks: RefCell::default(),
            reads_all: Cell::new(false),
            looks: Cell::new(false),
            configuration: Configuration::of(&node.configuration),
            stalled: RefCell::default(),
            rpc,
            attempts: RefCell::default(),
            tables: RefCell::new(Rc::new([])),
            shared,
            node,
        };
        coordinator.locks.follow(&coordinator.configuration, &coordinator.executor);
        Ok(Rc::new(coordinator))
    }

    /// The tables of this node, including `wanted` if it exists.
    #[inline]
    pub(crate) fn tables(&self, wanted: TableId) -> Tables {
        if usize::from(wanted.0) >= self.tables.borrow().len() {
            let all = self.node.tables.read().unwrap_or_else(PoisonError::into_inner);
            *self.tables.borrow_mut() = all.iter().cloned().collect();
        }
        Rc::clone(&self.tables.borrow())
    }

    /// Reloads the node's tables before the next transaction.
    pub(crate) fn forget_tables(&self) {
        *self.tables.borrow_mut() = Rc::new([]);
    }

    /// Whether a table is known here, and in use.
    pub(crate) fn serves_table(&self, table: TableId) -> bool {
        known(&self.tables(table), table).is_ok()
    }

    /// Whether a lock granted by `owner` under `shard_epoch` is still valid (H4).
    #[inline]
    pub(crate) fn still_owned(&self, shard: ShardId, owner: NodeId, shard_epoch: u32) -> bool {
        let claim = Owner { node: owner, epoch: ShardEpoch(shard_epoch) };
        self.node.shards.is_current(shard, claim) || broken(Rule::LostLocksEndAttempts)
    }

    /// Drops the jobs in the slots; commits already begun are completed. Returns the jobs' names.
    pub(crate) fn cancel(&self) -> Vec<String> {
        self.cancelled.set(true);
        self.slot_tasks.borrow().iter().for_each(|task| self.executor.wake(*task));
        let jobs = (0..self.shared.config.coroutines)
            .filter_map(|slot| self.poll_tracker.current_poll.label_of(slot));
        jobs.collect()
    }

    /// Whether lock requests wait: a retry should then take all its locks in order.
    pub(crate) fn waits_for_locks(&self) -> bool {
        match self.locks {
            Locks::Lotus(_) => self.shared.config.lock_wait == LockWait::Ordered,
            Locks::OnMemory(_) => true,
        }
    }

    /// Index in [`Self::snapshots`] of the snapshot held by the job in a slot: after the snapshots
    /// of the slots' transactions and of the coordinator itself.
    pub(crate) fn place_of_held(&self, slot: usize) -> usize {
        let coroutines = self.shared.config.coroutines;
        debug_assert!(slot < coroutines, "I151: what a job holds has a place of its own");
        coroutines + 1 + slot
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

    fn is_out(&self) -> bool {
        self.has_failed()
    }
}

impl Coordinator {
    /// Time after which every undelayed node knows the values published by this node.
    pub(crate) fn notice(&self) -> Duration {
        // Two delays: until this node's turn, and until the peers' turns.
        self.shared.config.horizon_interval * (2 * MAX_INTERVALS)
    }
}
