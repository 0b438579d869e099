//! A coroutine slot: one transaction at a time, and the driver that carries it out.
//!
//! # Ownership
//! The slot's task polls two futures: the *body* (a job, which runs transactions) and the *driver*.
//! A transaction hands its buffers to the driver, which executes or commits them, and waits for the
//! answer. An operation that has begun is therefore finished even if the body is dropped, panics or
//! loses interest (H21). An abandoned execution ends with the release of its locks. The slot's next
//! transaction begins only when the driver is idle, because the transaction reuses the buffers and,
//! after a commit, the slot's log entry (H16).
//!
//! The split also makes transactions fast: the driver's future is a few layers deep, the body's as
//! deep as its author likes, and most completions concern only the driver.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_channel::Receiver;
use lotus_fabric::env::Nanos;
use lotus_fabric::exec::TaskId;
use lotus_fabric::ids::TxnId;
use lotus_sabotage::{Rule, broken};

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::node::threads::attempts::Attempts;
use crate::node::threads::label::Label;
use crate::node::time::grace::Entered;
use crate::txn::body::{Body, Mode, Receipt};
use crate::txn::commit::{self, copy, purge, trim};
use crate::txn::retry::Refused;
use crate::txn::session::{Job, Session};

/// Interval between checks of a deadline: deadlines are far away, and transactions are frequent.
const TICK: Duration = Duration::from_millis(100);

pub(crate) struct Slot {
    pub(crate) coordinator: Rc<Coordinator>,
    /// Index among the coordinator's slots.
    pub(crate) index: usize,
    /// Number on the compute node.
    pub(crate) number: u16,
    attempt: Cell<u64>,
    /// Start time of the attempt.
    began: Cell<Nanos>,
    /// Time of the next deadline check.
    alarm: Cell<Nanos>,
    /// Attempt that is committing, and attempts that were asked to give up their locks.
    pub(crate) attempts: Rc<Attempts>,
    /// Buffers for the next transaction; `None` while a transaction uses them.
    spare: RefCell<Option<Box<Body>>>,
    driver_state: Cell<DriverState>,
    /// Buffers on their way to the driver ([`DriverState::Asked`]) or back
    /// ([`DriverState::Executed`]).
    handed: Cell<Option<Box<Body>>>,
    /// The last failed execution: transaction and error.
    failed: RefCell<Option<(TxnId, TxnError)>>,
    /// Whether the caller of the execution under way is gone, which ends a wait for locks.
    abandoned: Rc<Cell<bool>>,
    /// The slot's task, once the slot serves.
    task: Cell<Option<TaskId>>,
    /// Locks and age of a transaction that was refused a lock.
    pub(crate) refused: Refused,
    /// Grace period in which the coordinator counts the commit under way.
    entered: Cell<Entered>,
    /// Whether the verdict on the commit under way is known.
    decided: Cell<bool>,
    /// Commits with a live [`PendingCommit`] future, and the verdicts not taken yet. More than one
    /// only if a commit's future is kept while the slot goes on.
    awaited: RefCell<Vec<TxnId>>,
    verdicts: RefCell<Vec<(TxnId, Result<Receipt, TxnError>)>>,
    /// Number of completions that the driver has waited for and received.
    steps: Cell<u64>,
}

/// Operation that a transaction requests of the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Execute(Mode),
    Commit,
}

/// State of the driver. Every poll of the slot's task reads the state, so it is a few bytes, and
/// the buffers are elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DriverState {
    Idle,
    /// Requested, not yet begun.
    Asked(Operation),
    /// Begun, not finished.
    Running(Operation),
    /// Executed; the transaction has not taken its buffers or the error yet.
    Executed,
}

impl Slot {
    pub(crate) fn new(coordinator: Rc<Coordinator>, index: usize, number: u16) -> Rc<Self> {
        let spare = Box::<Body>::default();
        let abandoned = spare.held.abandonment();
        let slot = Rc::new(Self {
            coordinator,
            index,
            number,
            attempt: Cell::new(0),
            began: Cell::new(Nanos(0)),
            alarm: Cell::new(Nanos(0)),
            attempts: Rc::new(Attempts::new(number)),
            spare: RefCell::new(Some(spare)),
            driver_state: Cell::new(DriverState::Idle),
            handed: Cell::default(),
            failed: RefCell::default(),
            abandoned,
            task: Cell::new(None),
            refused: Refused::default(),
            entered: Cell::default(),
            decided: Cell::new(false),
            awaited: RefCell::default(),
            verdicts: RefCell::default(),
            steps: Cell::new(0),
        });
        slot.coordinator.attempts.borrow_mut().push(Rc::downgrade(&slot.attempts));
        slot
    }

    /// Runs jobs until the channel is closed.
    pub(crate) async fn serve(self: Rc<Self>, jobs: Receiver<Job>) {
        self.task.set(Some(self.coordinator.executor.current()));
        let mut driver = pin!(drive(Rc::clone(&self)));
        let slot = Rc::clone(&self);
        let mut body = pin!(Some(async move {
            while let Ok(job) = jobs.recv().await {
                job(Session::new(Rc::clone(&slot))).await;
                slot.name_job(None);
                slot.idle().await;
            }
        }));
        std::future::poll_fn(|cx| {
            loop {
                let asked = self.request().is_some();
                if asked || self.is_running() {
                    let steps = self.steps.get();
                    // Never ready: the driver serves this slot for ever.
                    let _: Poll<()> = driver.as_mut().poll(cx);
                    if (asked || self.steps.get() != steps) && self.is_awaited() {
                        // Either the body has just been polled, or the wake was the driver's. The
                        // driver has posted its next batch, so another wake will come. If the body
                        // also had a wake, it is polled then.
                        return Poll::Pending;
                    }
                }
                if self.coordinator.cancelled.get() {
                    // The transaction ends as if dropped. A panic during the drop ends here as
                    // well.
                    let _ = catch_unwind(AssertUnwindSafe(|| body.set(None)));
                }
                let Some(body) = body.as_mut().as_pin_mut() else {
                    debug_assert!(self.coordinator.cancelled.get(), "I331: only a stop drops jobs");
                    match self.driver_state.get() {
                        DriverState::Idle | DriverState::Executed => return Poll::Ready(()),
                        DriverState::Asked(_) => continue,
                        DriverState::Running(_) => return Poll::Pending,
                    }
                };
                let polled = {
                    let _inside = self.coordinator.poll_tracker.enter(self.index);
                    body.poll(cx)
                };
                if polled.is_ready() {
                    return Poll::Ready(());
                }
                let Some(request) = self.request() else { return Poll::Pending };
                let executor = &self.coordinator.executor;
                if request != Operation::Commit && executor.has_company() {
                    // The row addresses and locks have been prefetched since the rows were added:
                    // let other slots run until the prefetches complete.
                    executor.wake(executor.current());
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// Names the job in this slot, for errors and the log.
    pub(crate) fn name_job(&self, name: Option<Label>) {
        self.coordinator.poll_tracker.current_poll.name(self.index, name);
    }

    /// Whether `deadline` has passed. If not, the slot's task is polled again when it may have. A
    /// slot has one timer for deadlines, shared by all waits of its transactions.
    #[inline]
    pub(crate) fn is_late(&self, deadline: Nanos) -> bool {
        if broken(Rule::DeadlinesEndAttempts) {
            return false;
        }
        let executor = &self.coordinator.executor;
        let due = self.alarm.get();
        if due <= deadline && executor.recent() < due {
            return false;
        }
        let now = executor.now();
        if now >= deadline {
            return true;
        }
        let due = now.after(TICK).min(deadline);
        debug_assert!(now < due, "I329: a deadline that has not passed is looked at again");
        self.alarm.set(due);
        executor.wake_at(due, executor.current());
        false
    }

    /// Whether the commit of the slot's latest attempt has begun, and its verdict is awaited.
    pub(crate) fn awaits_verdict(&self) -> bool {
        self.awaited.borrow().iter().any(|txn| txn.attempt() == self.attempt.get())
    }

    /// Returns the id of the slot's next attempt.
    pub(crate) fn next_attempt(&self) -> Result<TxnId, TxnError> {
        let attempt = self.attempt.get() + 1;
        if attempt > TxnId::MAX_ATTEMPT {
            return Err(TxnError::Fenced);
        }
        self.attempt.set(attempt);
        self.coordinator.begun.set(self.coordinator.begun.get() + 1);
        if self.index < self.coordinator.shared.config.coroutines {
            self.coordinator.settled.set(false);
        }
        Ok(TxnId::new(self.coordinator.node.incarnation, self.number, attempt))
    }

    /// Takes the buffers for a transaction; `None` while another transaction of the slot has them.
    pub(crate) fn take_body(&self) -> Option<Box<Body>> {
        if self.coordinator.node.counts.is_some() {
            // Not the executor's recent time: on an idle coordinator, that is the end of its last
            // transaction.
            self.began.set(self.coordinator.executor.now());
        }
        self.spare.borrow_mut().take()
    }

    pub(crate) fn give_back(&self, mut body: Box<Body>) {
        debug_assert!(
            body.rows.iter().all(|row| row.reserved.is_none()),
            "I202: an attempt that ends keeps no slot"
        );
        debug_assert!(body.grown.is_empty(), "I202: an attempt that ends keeps no bucket");
        body.clear();
        self.refused.ended();
        if let Some(counts) = &self.coordinator.node.counts {
            let now = self.coordinator.executor.now();
            counts.count_transaction(now.0.saturating_sub(self.began.get().0));
        }
        self.coordinator.snapshots.borrow_mut().finish(self.index);
        let before = self.spare.replace(Some(body));
        debug_assert!(before.is_none(), "I16: the slot has one transaction's buffers");
    }

    /// Ends an attempt: releases its locks and reservations.
    pub(crate) fn release(&self, mut body: Box<Body>) {
        body.release(&self.coordinator);
        self.give_back(body);
    }

    /// Ends an attempt by an error that the transaction itself has found, as by an execution error.
    pub(crate) fn end_by(&self, txn: TxnId, body: Box<Body>, error: TxnError) {
        debug_assert_eq!(body.held.txn(), txn, "I39: locks name the attempt that ends");
        self.failed.replace(Some((txn, error)));
        self.release(body);
    }

    /// Waits until the driver is idle, or works for a transaction that is still alive. The next
    /// attempt of the slot begins afterwards: all writes of earlier attempts are visible (I42).
    pub(crate) async fn idle(&self) {
        std::future::poll_fn(|_| match self.driver_state.get() {
            DriverState::Asked(Operation::Commit) | DriverState::Running(Operation::Commit) => {
                Poll::Pending
            }
            DriverState::Running(Operation::Execute(_)) if self.abandoned.get() => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Hands an attempt over for execution; [`Slot::executed`] returns it.
    pub(crate) fn request_execution(&self, mode: Mode, body: Box<Body>) {
        self.ask(Operation::Execute(mode), body);
    }

    /// Waits for the buffers of the executed transaction; the slot keeps them if the execution
    /// failed.
    pub(crate) fn executed(&self) -> impl Future<Output = Result<Box<Body>, TxnError>> {
        std::future::poll_fn(|_| {
            if self.driver_state.get() != DriverState::Executed {
                return Poll::Pending;
            }
            self.driver_state.set(DriverState::Idle);
            let failure = || {
                let failed = self.failed.borrow();
                let (_, error) =
                    failed.as_ref().expect("what was executed has buffers or an error");
                error.clone()
            };
            Poll::Ready(self.handed.take().ok_or_else(failure))
        })
    }

    /// Returns the error of the execution that has ended `txn`, if there was one. The slot keeps
    /// only its last failure.
    #[cold]
    pub(crate) fn ended_by(&self, txn: TxnId) -> Option<TxnError> {
        let failed = self.failed.borrow();
        failed.as_ref().filter(|(of, _)| *of == txn).map(|(_, error)| error.clone())
    }

    /// Ends a requested execution after its transaction was dropped.
    pub(crate) fn abandon(&self) {
        match self.driver_state.get() {
            DriverState::Asked(_) | DriverState::Executed => {
                self.driver_state.set(DriverState::Idle);
                self.handed.take().into_iter().for_each(|body| self.release(body));
            }
            DriverState::Idle => {}
            DriverState::Running(_) => {
                self.abandoned.set(!broken(Rule::AbandonedAttemptsEnd));
                // The execution may be waiting for a lock.
                self.task.get().into_iter().for_each(|task| self.coordinator.executor.wake(task));
            }
        }
    }

    /// Hands the write set of `txn` to the driver. The commit goes on even if the future is
    /// dropped.
    pub(crate) fn request_commit(self: &Rc<Self>, txn: TxnId, body: Box<Body>) -> PendingCommit {
        debug_assert_eq!(self.attempts.commits.get(), 0, "I16: a slot has one commit at a time");
        debug_assert_eq!(body.held.txn(), txn, "I39: locks name the attempt that commits");
        self.decided.set(false);
        self.attempts.commits.set(txn.attempt());
        self.entered.set(self.coordinator.grace.enter());
        self.awaited.borrow_mut().push(txn);
        self.ask(Operation::Commit, body);
        PendingCommit { slot: Rc::clone(self), txn }
    }

    fn ask(&self, request: Operation, body: Box<Body>) {
        let before = self.driver_state.replace(DriverState::Asked(request));
        debug_assert!(before == DriverState::Idle, "I16: a slot has one transaction at a time");
        self.handed.set(Some(body));
    }

    /// Driver only: waits for the next request.
    async fn asked(&self) -> (Operation, Box<Body>) {
        std::future::poll_fn(|_| {
            let Some(request) = self.request() else { return Poll::Pending };
            self.driver_state.set(DriverState::Running(request));
            Poll::Ready((request, self.handed.take().expect("a request comes with its buffers")))
        })
        .await
    }

    /// Driver only: ends an execution.
    fn end_execution(&self, body: Box<Body>, outcome: Result<(), TxnError>) {
        debug_assert!(
            matches!(self.driver_state.get(), DriverState::Running(Operation::Execute(_))),
            "I16: what ends is the execution that was asked for"
        );
        let failed = match outcome {
            // Rows read after the attempt gave up its locks may have been read without them.
            Ok(()) if self.attempts.has_yielded(body.held.txn()) => Some(body.given_up()),
            outcome => outcome.err(),
        };
        let failed = failed.map(|error| body.explained(error));
        let (abandoned, txn) = (self.abandoned.replace(false), body.held.txn());
        if abandoned || failed.is_some() {
            self.release(body);
        } else {
            self.handed.set(Some(body));
        }
        if let Some(error) = failed.filter(|_| !abandoned) {
            self.failed.replace(Some((txn, error)));
        }
        self.driver_state.set(if abandoned { DriverState::Idle } else { DriverState::Executed });
    }

    /// Whether the verdict on `txn` is awaited.
    #[inline]
    pub(crate) fn awaits(&self, txn: TxnId) -> bool {
        self.awaited.borrow().contains(&txn)
    }

    /// Whether the commit under way has a verdict.
    #[inline]
    pub(crate) fn is_decided(&self) -> bool {
        self.decided.get()
    }

    /// Driver only: delivers the verdict on `txn`. The first verdict counts.
    pub(crate) fn decide(&self, txn: TxnId, verdict: Result<Receipt, TxnError>) {
        if !self.decided.replace(true) && self.awaits(txn) {
            self.verdicts.borrow_mut().push((txn, verdict));
        }
    }

    /// Driver only: ends a commit, with all writes visible and unlocked. The log entry may be
    /// reused.
    pub(crate) fn finish(&self, body: Box<Body>) {
        debug_assert!(
            self.is_decided() || broken(Rule::CommitsOutliveCallers),
            "I15: a commit that has ended has a verdict"
        );
        self.coordinator.grace.leave(self.entered.get());
        debug_assert!(self.attempts.commits.get() != 0, "I16: a commit that ends has begun");
        self.attempts.commits.set(0);
        self.give_back(body);
        self.driver_state.set(DriverState::Idle);
    }

    /// Driver only: ends `txn` after the node was expelled. Recovery decides the outcome, which is
    /// unknown here (I23), and this node begins nothing more.
    pub(crate) fn expelled(&self, txn: TxnId) {
        self.decide(txn, Err(TxnError::Unknown(txn)));
        self.coordinator.node.expel();
        self.driver_state.set(DriverState::Idle);
    }

    /// Driver only: counts a completion that the driver waited for.
    #[inline]
    pub(crate) fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// Returns the operation that was requested but not begun.
    fn request(&self) -> Option<Operation> {
        match self.driver_state.get() {
            DriverState::Asked(request) => Some(request),
            _ => None,
        }
    }

    fn is_running(&self) -> bool {
        matches!(self.driver_state.get(), DriverState::Running(_))
    }

    /// Whether the body has nothing to do before the driver makes progress.
    fn is_awaited(&self) -> bool {
        match self.driver_state.get() {
            DriverState::Asked(_) | DriverState::Running(Operation::Execute(_)) => true,
            DriverState::Running(Operation::Commit) => !self.decided.get(),
            DriverState::Idle | DriverState::Executed => false,
        }
    }
}

/// Driver of a slot: runs one request after the other, for ever.
async fn drive(slot: Rc<Slot>) {
    loop {
        let (request, mut body) = slot.asked().await;
        let at_work = &slot.coordinator.at_work;
        at_work.set(at_work.get() + 1);
        match request {
            Operation::Execute(mode) => {
                let outcome = body.execute(&slot, mode).await;
                if outcome.is_err() {
                    // A caller that retries at once would occupy this thread, which may be needed
                    // to clear the conflict.
                    slot.coordinator.executor.yield_now().await;
                }
                slot.end_execution(body, outcome);
            }
            Operation::Commit if body.piece.is_some() => copy::carry_out(&slot, body).await,
            Operation::Commit if body.purges => purge::carry_out(&slot, body).await,
            Operation::Commit if body.trims => trim::carry_out(&slot, body).await,
            Operation::Commit => commit::carry_out(&slot, body).await,
        }
        debug_assert!(at_work.get() > 0, "I15: each piece of work ends once");
        at_work.set(at_work.get() - 1);
    }
}

/// Future of the verdict on one commit. Dropping it does not affect the commit.
pub(crate) struct PendingCommit {
    slot: Rc<Slot>,
    txn: TxnId,
}

impl Future for PendingCommit {
    type Output = Result<Receipt, TxnError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut verdicts = self.slot.verdicts.borrow_mut();
        match verdicts.iter().position(|(txn, _)| *txn == self.txn) {
            Some(index) => Poll::Ready(verdicts.swap_remove(index).1),
            None => Poll::Pending,
        }
    }
}

impl Drop for PendingCommit {
    fn drop(&mut self) {
        self.slot.awaited.borrow_mut().retain(|txn| *txn != self.txn);
        self.slot.verdicts.borrow_mut().retain(|(txn, _)| *txn != self.txn);
    }
}
