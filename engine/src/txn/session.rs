//! Interface of a coroutine slot to its user: where transactions begin.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Handle;
use lotus_fabric::ids::{ShardId, TableId};
use lotus_fabric::trace::Trace;
use lotus_mvcc::PrimaryKey;
use rand::Rng;

use crate::api::cache_counters::CacheCounters;
use crate::api::coordinator_id::CoordinatorId;
use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::api::moves::MoveCounters;
use crate::node::coordinator::{self, Coordinator};
use crate::node::threads::label::Label;
use crate::txn::body::Mode;
use crate::txn::retry::RefusedLocks;
use crate::txn::slot::Slot;
use crate::txn::transaction::Transaction;

/// Work for one coroutine slot.
pub(crate) type Job =
    Box<dyn FnOnce(Session) -> Pin<Box<dyn Future<Output = ()>>> + Send + 'static>;

/// Coroutine slot of a coordinator, lent to a job. A session stays on the coordinator's thread,
/// which serves other slots while the job awaits, as in [`Session::back_off`], between two
/// attempts.
pub struct Session {
    slot: Rc<Slot>,
}

impl Session {
    pub(crate) fn new(slot: Rc<Slot>) -> Self {
        slot.refused.forget();
        Self { slot }
    }

    /// Declares that the next transaction is not a retry of the last one. A job that runs several
    /// transactions calls this function when it gives up a transaction. Otherwise the attempt after
    /// a refused attempt counts as its retry, and takes the refused attempt's locks.
    pub fn new_transaction(&self) {
        self.slot.refused.forget();
    }

    /// Names the work of this job from now on, for the log and for errors about work that blocks a
    /// thread or does not end.
    pub fn name_work(&self, name: &Arc<str>) {
        self.slot.name_job(Some(Label::Named(Arc::clone(name))));
    }

    /// Returns the locks and age of the last attempt, for a retry in another job
    /// ([`Session::retries`]); `None` if the attempt was not refused a lock, or if requests do not
    /// wait for locks.
    pub fn refusal(&self) -> Option<RefusedLocks> {
        self.slot.refused.copy()
    }

    /// Declares that this job's first transaction retries a transaction that was refused a lock in
    /// another job on this compute node. The retry takes the refused transaction's locks, in order
    /// and in their strongest modes, before its first read.
    pub fn retries(&self, refusal: RefusedLocks) {
        self.slot.refused.take_over(refusal);
    }

    /// Whether the next attempt retries an attempt that met a conflict, and waits for its locks in
    /// queues ([`LockWait::Ordered`](crate::LockWait)). Such a retry needs no pause. True once per
    /// conflict: a retry that cannot begin is put off like any attempt.
    pub fn retries_in_order(&self) -> bool {
        self.slot.refused.queues()
    }

    /// Begins a read-write transaction under manual control: [`Transaction::commit`] commits it,
    /// and dropping the handle without a commit aborts it. The caller also handles retries.
    /// [`Cluster::run`] commits and retries automatically.
    ///
    /// Waits until the slot's previous commit has unlocked.
    ///
    /// [`Cluster::run`]: crate::Cluster::run
    ///
    /// # Errors
    /// `Misuse` if the slot's previous transaction is still alive, `Timeout` or `Fenced`.
    pub async fn begin(&mut self, isolation: Isolation) -> Result<Transaction, TxnError> {
        let mode = match isolation {
            Isolation::Serializable => Mode::Serializable,
            Isolation::Snapshot => Mode::Snapshot,
        };
        Transaction::begin(&self.slot, mode).await
    }

    /// Begins a transaction that reads one snapshot, without locks (LOTUS §5.1). The handle may be
    /// dropped after the reads.
    ///
    /// # Errors
    /// As [`Session::begin`].
    pub async fn begin_read_only(&mut self) -> Result<Transaction, TxnError> {
        Transaction::begin(&self.slot, Mode::ReadOnly).await
    }

    /// Returns a view of the coordinator, usable also while a transaction runs.
    pub fn view(&self) -> SessionView {
        SessionView { slot: Rc::clone(&self.slot) }
    }

    /// Waits a random time before a retry: up to 2 µs doubled for each of `attempts`, at most 1 ms.
    /// The time is random, so that two conflicting transactions do not stay in step (H7). A retry
    /// that waits in queues is not put off.
    pub async fn back_off(&self, attempts: u32) {
        if self.retries_in_order() {
            return self.coordinator().executor.yield_now().await;
        }
        let limit = Duration::from_micros(2 << attempts.min(9)).as_nanos() as u64;
        let pause = self.coordinator().rng.borrow_mut().random_range(0..limit);
        self.coordinator().executor.sleep(Duration::from_nanos(pause)).await;
    }

    /// Returns the time on this node's clock.
    pub fn now(&self) -> Nanos {
        self.coordinator().executor.now()
    }

    /// Returns the counts of verbs and messages of the whole coordinator so far.
    pub fn counters(&self) -> lotus_fabric::counters::VerbCounters {
        self.coordinator().lane.counters()
    }

    /// Returns the counts of the whole coordinator's look-ups in its node's caches so far.
    pub fn cache_counters(&self) -> CacheCounters {
        self.coordinator().caches.get()
    }

    /// Records the verbs of the whole coordinator's transactions from now on.
    pub fn start_recording(&self, max_verbs: usize) {
        self.coordinator().lane.start_recording(max_verbs);
    }

    /// Stops recording, and returns the recorded verbs; `None` if nothing was being recorded.
    pub fn take_trace(&self) -> Option<Trace> {
        self.coordinator().lane.take_trace()
    }

    /// Posts the verbs of one recorded transaction, without any protocol. Destroys data.
    ///
    /// # Errors
    /// `Timeout` if the fabric fails.
    pub async fn replay(&self, trace: &Trace, transaction: usize) -> Result<(), TxnError> {
        let replayed = trace.replay(&self.coordinator().lane, transaction).await;
        replayed.map_err(|_| TxnError::Timeout)
    }

    pub(crate) fn slot(&self) -> &Rc<Slot> {
        &self.slot
    }

    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.slot.coordinator
    }
}

/// View of a coordinator, its clock and its shard map, for code in one of its slots.
#[derive(Clone)]
pub struct SessionView {
    pub(crate) slot: Rc<Slot>,
}

impl SessionView {
    /// Returns the time on this node's clock.
    #[inline]
    pub fn now(&self) -> Nanos {
        self.slot.coordinator.executor.now()
    }

    /// Lets other coroutines run until `deadline`.
    pub async fn sleep_until(&self, deadline: Nanos) {
        self.slot.coordinator.executor.sleep_until(deadline).await;
    }

    /// Reports that the logic of a transaction begins, for clocks that charge for it.
    #[inline]
    pub fn transaction_begins(&self) {
        self.slot.coordinator.node.env.transaction_begins();
    }

    /// Returns the executor of the coordinator's coroutines, for tasks beside them, and sockets.
    pub fn executor(&self) -> &Handle {
        &self.slot.coordinator.executor
    }

    /// Returns the id of this coordinator.
    pub fn coordinator_id(&self) -> CoordinatorId {
        let coordinator = &self.slot.coordinator;
        CoordinatorId { compute_node: coordinator.node.index, thread: coordinator.thread }
    }

    /// Returns the look-ups in this coordinator's caches so far.
    pub fn cache_counters(&self) -> CacheCounters {
        self.slot.coordinator.caches.get()
    }

    /// Returns the hand-overs of this compute node's shards so far.
    pub fn move_counters(&self) -> MoveCounters {
        let moves = &self.slot.coordinator.node.moves;
        *moves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the place of the compute node that owns the locks of a row.
    ///
    /// # Errors
    /// `UnknownTable`.
    #[inline]
    pub fn owner_of(&self, table: TableId, key: &PrimaryKey) -> Result<usize, TxnError> {
        let coordinator = &self.slot.coordinator;
        let owner = coordinator.node.shards.owner(self.shard_of(table, key)?).node;
        coordinator.shared.index_of(owner).ok_or(TxnError::Fenced)
    }

    /// Returns the shard of a row.
    ///
    /// # Errors
    /// `UnknownTable`.
    #[inline]
    pub fn shard_of(&self, table: TableId, key: &PrimaryKey) -> Result<ShardId, TxnError> {
        let tables = self.slot.coordinator.tables(table);
        let known = coordinator::known(&tables, table)?;
        Ok(known.def.key(key).shard())
    }
}
