//! Waiting for locks: the asking side, and the delivery of outcomes to other nodes.
//!
//! # Local locks
//! The missing locks of a round are taken in ascending order. If a lock is held by another
//! transaction, the round's locks above that lock are released, and the task waits; the thread that
//! releases the lock wakes the task through the table.
//!
//! # Locks of another owner
//! A request that may wait is answered at once. If the answer is *waiting*, the outcome comes later
//! in a message of [`OUTCOME_SERVICE`]. The message may be lost, so the request is repeated from
//! time to time like an ordinary request, which also detects a dead owner.
//!
//! # Retries
//! A retry knows its locks from earlier attempts. It takes them in ascending order, owner by owner,
//! and may wait for each lock.
//!
//! # Deadlines
//! One task per coordinator wakes the tasks whose wait is due, with one timer for the earliest
//! deadline.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::{Endpoint, TxnId};
use lotus_fabric::rpc::{RetryPolicy, Service};
use lotus_points::point;
use lotus_sabotage::{Rule, broken};

use super::{Core, LOCKS_PER_DATAGRAM, LotusLocks, RemoteRequest, refused};
use crate::lock_key::{LockKey, LockRequest};
use crate::queue::{WaitOrder, WaitOutcome, Waiter, highest, may_wait};
use crate::server::LockHost;
use crate::service::{HeldLocks, LockError, LockRoutes, NO_OWNER, TakenLock};
use crate::slot::Refusal;
use crate::table::{LockOrWait, LockTable};
use crate::wire::{self, LockAnswer, ONE_REPLY_BYTES, Question, Reply, ReplyWriter};

/// RPC service that receives the outcomes of waiting requests.
const OUTCOME_SERVICE: Service = Service(6);

/// Waits of one coordinator: own requests, and peers' requests at this node.
#[derive(Default)]
pub(super) struct Waits {
    /// Questions for which an outcome message may come, and their waiting tasks.
    expected: RefCell<Vec<Expected>>,
    /// Waiting tasks, with their wake-up times.
    alarms: RefCell<Vec<(TaskId, Nanos)>>,
    /// Task that wakes the waiting tasks, and its next wake-up time.
    bell: Cell<Option<TaskId>>,
    next_ring: Cell<Option<Nanos>>,
    outcomes: Arc<Outcomes>,
}

impl Waits {
    /// Recipient of the outcomes of peers' requests.
    pub(super) fn outcomes(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.outcomes) as Arc<dyn Waiter>
    }
}

/// A question of this coordinator that may wait at the locks' owner.
struct Expected {
    question: Question,
    task: TaskId,
    told: Option<LockAnswer>,
}

/// A completed wait: transaction, lock and outcome.
type Settled = (TxnId, LockKey, WaitOutcome);

/// Outcomes of peers' requests, to be passed on.
#[derive(Debug, Default)]
struct Outcomes {
    state: Mutex<(Vec<Settled>, Option<Waker>)>,
}

impl Waiter for Outcomes {
    fn settled(&self, txn: TxnId, name: LockKey, outcome: WaitOutcome) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.push((txn, name, outcome));
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Outcomes {
    /// Waits for outcomes, and returns them.
    async fn take(&self) -> Vec<Settled> {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0.is_empty() {
                state.1 = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(std::mem::take(&mut state.0))
        })
        .await
    }
}

/// Outcome of the wait of a task of this node.
#[derive(Debug)]
struct LocalWait {
    outcome: Mutex<Option<WaitOutcome>>,
    waker: Waker,
}

impl Waiter for LocalWait {
    fn settled(&self, _txn: TxnId, _name: LockKey, outcome: WaitOutcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.waker.wake_by_ref();
    }
}

impl LocalWait {
    fn outcome(&self) -> Option<WaitOutcome> {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Place in a queue of the local table. Dropping it leaves the queue, and releases the lock if
/// granted meanwhile (I253).
struct QueuePlace<'a> {
    table: &'a LockTable,
    txn: TxnId,
    name: LockKey,
    kept: bool,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        if !self.kept && !self.table.stop_waiting(self.txn, &self.name) {
            self.table.unlock(self.txn, &self.name);
        }
    }
}

/// State of a question that may wait at its owner.
#[derive(Debug)]
pub(crate) struct RemoteWait {
    deadline: Nanos,
    /// Time at which to repeat the request, if the owner has answered *waiting*.
    again: Option<Nanos>,
    /// Whether the wait has begun, and the task has not noticed yet.
    begins: bool,
}

/// Whether a question has just begun to wait.
pub(super) fn begins(wait: &mut Option<RemoteWait>) -> bool {
    wait.as_mut().is_some_and(|wait| std::mem::take(&mut wait.begins))
}

/// Part of an acquisition's time that has to be left for a further question: one that ends sooner
/// would tell of a lost message where there was a wait.
const LEAST_PART_LEFT: u32 = 50;

/// One round of questions.
pub(super) struct Asking {
    pub(super) round: u16,
    /// Number of the next fragment.
    pub(super) fragment: u16,
    pub(super) timeout: Duration,
    /// Whether the questions may wait.
    pub(super) waits: bool,
}

impl Asking {
    pub(super) fn new(round: u16, timeout: Duration) -> Self {
        Self { round, fragment: 0, timeout, waits: false }
    }
}

/// Microseconds since the first attempt of a transaction began, for a request sent `now`.
pub(super) fn age_us(since: Option<Nanos>, now: Nanos) -> u32 {
    let age_ns = since.map_or(0, |since| now.0.saturating_sub(since.0));
    (age_ns / 1_000).min(u32::MAX.into()) as u32
}

/// Starts receiving outcomes, and passing on the outcomes of peers' requests, if the coordinator
/// waits.
pub(super) fn serve<H: LockHost + LockRoutes + 'static>(core: &Rc<Core<H>>) {
    let Some(waits) = &core.waits else { return };
    let receiver = Rc::downgrade(core);
    let tell = move |_, message: &[u8]| {
        if let Some(core) = receiver.upgrade() {
            core.hear_outcomes(message);
        }
    };
    core.rpc.serve(OUTCOME_SERVICE, Box::new(tell));
    let outcomes = Arc::clone(&waits.outcomes);
    core.rpc.lane().executor().spawn(pass_on(Rc::downgrade(core), outcomes));
}

/// Passes on the outcomes of peers' requests, for as long as the coordinator lives.
async fn pass_on<H: LockHost + LockRoutes + 'static>(core: Weak<Core<H>>, outcomes: Arc<Outcomes>) {
    loop {
        let settled = outcomes.take().await;
        let Some(core) = core.upgrade() else { return };
        for (txn, name, outcome) in settled {
            let answered = core.server.borrow_mut().settle(txn, &name, outcome);
            if let Some((to, reply)) = answered {
                point!(core.host.this_node().0, WaitEnded, with to.node.0);
                core.tell_outcome(to, reply);
            }
        }
    }
}

impl<H: LockHost + LockRoutes + 'static> LotusLocks<H> {
    /// Continues an acquisition after a conflict on a lock of this node: takes this node's locks in
    /// order, and lists the remote locks with their owners. The first `before` locks are from
    /// earlier rounds. Returns what is left of the time.
    pub(super) async fn wait_for_local(
        &self,
        held: &mut HeldLocks,
        before: usize,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<Duration, LockError> {
        let host = &*self.core.host;
        let mut local = Vec::new();
        held.remote.clear();
        for request in wanted {
            if held.taken[before..].iter().any(|taken| taken.request == *request) {
                continue;
            }
            let (owner, shard_epoch) = host.owner(request.name.shard());
            let lock = TakenLock { request: *request, owner, shard_epoch };
            match owner {
                NO_OWNER => return Err(LockError::Unowned(request.name)),
                _ if owner == host.this_node() => local.push(lock),
                _ => held.remote.push(lock),
            }
        }
        let deadline = self.core.rpc.lane().executor().now().after(timeout);
        self.take_upwards(held, before, local, deadline).await?;
        match held.remote.first() {
            Some(lock) => self.time_left(deadline, timeout, lock),
            None => Ok(Duration::ZERO),
        }
    }

    /// Time until `deadline`, of `timeout` in all, in which to ask for `lock`.
    ///
    /// # Errors
    /// [`LockError::WaitedTooLong`] if less is left than an answer may take.
    fn time_left(
        &self,
        deadline: Nanos,
        timeout: Duration,
        lock: &TakenLock,
    ) -> Result<Duration, LockError> {
        let left = deadline.since(self.core.rpc.lane().executor().now());
        if left <= super::RETRY_AFTER.min(timeout / LEAST_PART_LEFT) {
            return Err(LockError::WaitedTooLong(lock.request.name));
        }
        Ok(left)
    }

    /// Takes all of `wanted` in order, waiting where needed. A retry knows its locks, so it asks
    /// the owners in sequence.
    pub(super) async fn acquire_in_order(
        &self,
        held: &mut HeldLocks,
        round: u16,
        wanted: &[LockRequest],
        timeout: Duration,
    ) -> Result<(), LockError> {
        held.in_order = false;
        let host = &*self.core.host;
        let deadline = self.core.rpc.lane().executor().now().after(timeout);
        let mut locks = Vec::with_capacity(wanted.len());
        for request in wanted {
            let (owner, shard_epoch) = host.owner(request.name.shard());
            if owner == NO_OWNER {
                return Err(LockError::Unowned(request.name));
            }
            locks.push(TakenLock { request: *request, owner, shard_epoch });
        }
        locks.sort_unstable_by_key(order);
        let (before, mut remote) = (held.taken.len(), Vec::new());
        let mut asking = Asking { waits: true, ..Asking::new(round, timeout) };
        for run in locks.chunk_by(|one, other| one.owner == other.owner) {
            if run[0].owner == host.this_node() {
                self.take_upwards(held, before, run.to_vec(), deadline).await?;
                continue;
            }
            for part in run.chunks(LOCKS_PER_DATAGRAM) {
                if self.is_suspected(part[0].owner) {
                    return Err(LockError::Suspected(part[0].request.name));
                }
                held.asked.clear();
                held.remote.clear();
                held.remote.extend_from_slice(part);
                asking.timeout = self.time_left(deadline, timeout, &part[0])?;
                self.ask(held, &asking, part);
                asking.fragment += 1;
                point!(host.this_node().0, LocksRequested);
                self.answers(held).await?;
                remote.extend_from_slice(part);
            }
        }
        held.remote = remote;
        Ok(())
    }

    /// Takes this node's locks in `todo` in order, and waits for locks held by other transactions.
    /// During a wait the round holds only lower locks.
    async fn take_upwards(
        &self,
        held: &mut HeldLocks,
        before: usize,
        mut todo: Vec<TakenLock>,
        deadline: Nanos,
    ) -> Result<(), LockError> {
        let (host, table, txn) = (&*self.core.host, &*self.core.table, held.txn());
        let earlier = highest(held.taken[..before].iter().map(|lock| &lock.request.name));
        // The lowest lock last, to be taken first.
        let lowest_last = |todo: &mut Vec<TakenLock>| {
            if !broken(Rule::WaitsGoUp) {
                todo.sort_unstable_by_key(|lock| std::cmp::Reverse(order(lock)));
            }
        };
        lowest_last(&mut todo);
        while let Some(lock) = todo.pop() {
            let TakenLock { request, shard_epoch, .. } = lock;
            match table.try_lock(txn, request) {
                Ok(_) => held.taken.push(lock),
                Err(Refusal::Conflict) if may_wait(earlier, WaitOrder::of(&request.name)) => {
                    if !broken(Rule::WaitsGoUp) {
                        self.release_above(held, before, &lock, &mut todo);
                        lowest_last(&mut todo);
                    }
                    self.wait_for(held, lock, deadline).await?;
                }
                Err(refusal) => return Err(refused(request.name, refusal)),
            }
            // After taking the lock: either the hand-over's scan sees the lock, or this check sees
            // the hand-over.
            if !host.owns(request.name.shard(), shard_epoch)
                && !broken(Rule::HandOversAnswerTheParked)
            {
                return Err(LockError::Moved(request.name));
            }
        }
        Ok(())
    }

    /// Releases the round's locks of this node above `lock`, and adds them to `todo`.
    fn release_above(
        &self,
        held: &mut HeldLocks,
        before: usize,
        lock: &TakenLock,
        todo: &mut Vec<TakenLock>,
    ) {
        let this_node = self.core.host.this_node();
        let mut index = before;
        while let Some(taken) = held.taken.get(index).copied() {
            if taken.owner == this_node && order(&taken) > order(lock) {
                self.core.table.unlock(held.txn(), &taken.request.name);
                held.taken.swap_remove(index);
                todo.push(taken);
            } else {
                index += 1;
            }
        }
    }

    /// Waits for one lock of this node, until `deadline`.
    async fn wait_for(
        &self,
        held: &mut HeldLocks,
        lock: TakenLock,
        deadline: Nanos,
    ) -> Result<(), LockError> {
        let core = &self.core;
        let (table, executor) = (&*core.table, core.rpc.lane().executor());
        let (txn, name) = (held.txn(), lock.request.name);
        let waker = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let wait = Arc::new(LocalWait { outcome: Mutex::new(None), waker });
        let since = held.since.unwrap_or_else(|| executor.recent());
        let waiter = Arc::clone(&wait) as Arc<dyn Waiter>;
        match table.lock_or_wait(txn, lock.request, since, &waiter) {
            Ok(LockOrWait::Granted(_)) => {
                held.taken.push(lock);
                return Ok(());
            }
            Ok(LockOrWait::Waits) => {}
            Err(refusal) => return Err(refused(name, refusal)),
        }
        let mut place = QueuePlace { table, txn, name, kept: false };
        // After joining the queue: either the thread that ends the waits sees this request, or
        // these checks see the reason for ending them.
        if !core.host.owns(name.shard(), lock.shard_epoch)
            && !broken(Rule::HandOversAnswerTheParked)
        {
            return Err(LockError::Moved(name));
        }
        if core.host.is_out() {
            return Err(LockError::Expelled);
        }
        core.look_again_at(deadline);
        point!(core.host.this_node().0, LockAwaited);
        let outcome = std::future::poll_fn(|_| match wait.outcome() {
            Some(outcome) => Poll::Ready(Ok(outcome)),
            None if held.is_abandoned() => Poll::Ready(Err(LockError::TimedOut)),
            None if executor.now() >= deadline => Poll::Ready(Err(LockError::WaitedTooLong(name))),
            None => Poll::Pending,
        });
        let outcome = outcome.await;
        core.look_no_more();
        match outcome? {
            WaitOutcome::Granted => {}
            ended => {
                place.kept = true;
                return Err(match ended {
                    WaitOutcome::Moved => LockError::Moved(name),
                    WaitOutcome::Closed if core.host.is_out() => LockError::Expelled,
                    _ => LockError::Conflict(name),
                });
            }
        }
        place.kept = true;
        held.taken.push(lock);
        Ok(())
    }

    /// Whether a request for `remote` may wait: it has one owner, fits in one datagram, and is
    /// above all locks of the attempt.
    pub(super) fn may_wait_for_all(&self, held: &HeldLocks, remote: &[TakenLock]) -> bool {
        let [lowest, .., last] = remote else {
            let [only] = remote else { return false };
            return may_wait(self.highest_held(held), order(only));
        };
        lowest.owner == last.owner
            && remote.len() <= LOCKS_PER_DATAGRAM
            && may_wait(self.highest_held(held), order(lowest))
    }

    fn highest_held(&self, held: &HeldLocks) -> Option<WaitOrder> {
        highest(held.taken.iter().map(|lock| &lock.request.name))
    }

    /// Drives a question that may wait: repeats the request when due. Returns a result that does
    /// not need the answer to the call under way: an outcome message, a suspicion, or the end of
    /// the wait.
    pub(super) fn poll_wait(
        &self,
        asked: &mut RemoteRequest,
        locks: &[TakenLock],
        since: Option<Nanos>,
        abandoned: bool,
    ) -> Option<Result<LockAnswer, LockError>> {
        let (core, name) = (&self.core, locks[0].request.name);
        if let Some(answer) = core.told(asked.question) {
            return Some(Ok(answer));
        }
        let RemoteWait { deadline, again, .. } = asked.wait.as_mut()?;
        let due = again.as_mut()?;
        let now = core.rpc.lane().executor().now();
        if abandoned {
            return Some(Err(LockError::TimedOut));
        }
        if self.is_suspected(locks[0].owner) || self.peer(locks[0].owner).lost.get() {
            return Some(Err(LockError::Suspected(name)));
        }
        if now >= *deadline {
            return Some(Err(LockError::WaitedTooLong(name)));
        }
        if now >= *due && asked.call.is_none() {
            let Question { round, fragment, .. } = asked.question;
            let timeout = deadline.since(now);
            *again = None;
            let asking = Asking { round, fragment, timeout, waits: true };
            let (call, sent) = self.send(asked.question, since, &asking, locks);
            (asked.call, asked.sent) = (Some(call), sent);
        }
        None
    }
}

fn order(lock: &TakenLock) -> WaitOrder {
    WaitOrder::of(&lock.request.name)
}

impl<H: LockHost + LockRoutes + 'static> Core<H> {
    /// Registers a question for which an outcome message may come, for the current task.
    pub(super) fn expect_outcome(
        &self,
        question: Question,
        timeout: Duration,
    ) -> Option<RemoteWait> {
        let executor = self.rpc.lane().executor();
        let expected = Expected { question, task: executor.current(), told: None };
        self.waits.as_ref()?.expected.borrow_mut().push(expected);
        Some(RemoteWait { deadline: executor.now().after(timeout), again: None, begins: false })
    }

    /// Forgets the questions of an attempt that has ended.
    pub(super) fn expect_no_more(&self, txn: TxnId) {
        let Some(waits) = &self.waits else { return };
        waits.expected.borrow_mut().retain(|expected| expected.question.txn != txn);
    }

    /// Returns the outcome of a question, if received.
    fn told(&self, question: Question) -> Option<LockAnswer> {
        let expected = self.waits.as_ref()?.expected.borrow();
        expected.iter().find(|expected| expected.question == question)?.told
    }

    /// Records the answer *waiting* to a question: the request is repeated after a while, in case
    /// the outcome is lost.
    pub(super) fn ask_again_later(self: &Rc<Self>, asked: &mut RemoteRequest) {
        let Some(wait) = &mut asked.wait else { return };
        let again = self.rpc.lane().executor().now().after(self.ends_patience.retry_after);
        (wait.again, wait.begins) = (Some(again), true);
        self.look_again_at(again.min(wait.deadline));
    }

    fn hear_outcomes(&self, message: &[u8]) {
        let Some(waits) = &self.waits else { return };
        for reply in wire::replies(message).map_while(Result::ok) {
            let Reply::Lock { question, answer } = reply else { continue };
            let mut expected = waits.expected.borrow_mut();
            let found = expected.iter_mut().find(|expected| expected.question == question);
            if let Some(expected) = found.filter(|_| answer != LockAnswer::Waiting) {
                expected.told = Some(answer);
                self.rpc.lane().executor().wake(expected.task);
            }
        }
    }

    /// Sends an outcome to the waiting coordinator. If the message is lost, the coordinator repeats
    /// its request.
    fn tell_outcome(&self, to: Endpoint, reply: Reply) {
        let mut message = [0; ONE_REPLY_BYTES];
        let mut writer = ReplyWriter::new(&mut message);
        writer.push(reply).expect("there is room for one reply");
        let bytes = writer.finish(self.host.configuration_epoch());
        let once = RetryPolicy::constant(Duration::from_millis(1), 1);
        drop(self.rpc.call(to, OUTCOME_SERVICE, &message[..bytes], once));
    }

    /// Wakes the waiting tasks, which then check whether to continue waiting.
    pub(super) fn wake_waits(&self) {
        let Some(waits) = &self.waits else { return };
        let executor = self.rpc.lane().executor();
        waits.expected.borrow().iter().for_each(|expected| executor.wake(expected.task));
    }

    /// Wakes the running task at `due`, unless [`Self::look_no_more`] comes first.
    fn look_again_at(self: &Rc<Self>, due: Nanos) {
        let Some(waits) = &self.waits else { return };
        let executor = self.rpc.lane().executor();
        let task = executor.current();
        let mut alarms = waits.alarms.borrow_mut();
        match alarms.iter_mut().find(|(known, _)| *known == task) {
            Some((_, set)) => *set = due,
            None => alarms.push((task, due)),
        }
        if waits.next_ring.get().is_some_and(|next| next <= due) {
            return;
        }
        waits.next_ring.set(Some(due));
        let started = || executor.spawn(ring(Rc::downgrade(self)));
        let bell = waits.bell.get().unwrap_or_else(started);
        waits.bell.set(Some(bell));
        executor.wake_at(due, bell);
    }

    fn look_no_more(&self) {
        let Some(waits) = &self.waits else { return };
        let task = self.rpc.lane().executor().current();
        waits.alarms.borrow_mut().retain(|(known, _)| *known != task);
    }
}

/// Wakes the tasks whose waits are due, for as long as the service exists.
async fn ring<H: LockHost + LockRoutes + 'static>(core: Weak<Core<H>>) {
    loop {
        let Some(core) = core.upgrade() else { return };
        let Some(waits) = &core.waits else { return };
        let executor = core.rpc.lane().executor().clone();
        let now = executor.now();
        if waits.next_ring.get().is_some_and(|next| now >= next) {
            let mut alarms = waits.alarms.borrow_mut();
            alarms.iter().filter(|(_, due)| *due <= now).for_each(|(task, _)| executor.wake(*task));
            alarms.retain(|(_, due)| *due > now);
            let next = alarms.iter().map(|(_, due)| *due).min();
            waits.next_ring.set(next);
            if let Some(due) = next {
                executor.wake_at(due, executor.current());
            }
        }
        drop(core);
        executor.suspend().await;
    }
}
