//! A coroutine slot: one transaction at a time, and the driver that carries it out.
//!
//! # Who owns what
//! The slot's task polls two futures: the *body* (a job: somebody's transactions) and the
//! *driver*. A transaction hands its buffers to the driver, which executes or commits them, and
//! waits for the answer. So what has begun is finished whatever becomes of the body: dropped,
//! panicked or no longer interested (H21). An execution that nobody waits for any more ends with
//! the release of its locks. The slot's next transaction begins only when the driver is idle,
//! because it reuses the buffers and, after a commit, the slot's log entry (H16).
//!
//! It is also why a transaction is fast: the driver's future is a few layers deep, the body's as
//! deep as its author likes, and most completions concern the driver alone.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use async_channel::Receiver;
use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TxnId;
use lotus_sabotage::{Rule, broken};

use crate::commit;
use crate::coordinator::{Coordinator, Job};
use crate::error::TxnError;
use crate::filling;
use crate::grace::Entered;
use crate::purge;
use crate::session::Session;
use crate::trim;
use crate::txn::{Body, Mode, Receipt};

pub(crate) struct Slot {
    pub(crate) coordinator: Rc<Coordinator>,
    /// Its place among the coordinator's slots.
    pub(crate) index: usize,
    /// Its number on the compute node.
    pub(crate) number: u16,
    attempt: Cell<u64>,
    /// When it began.
    began: Cell<Nanos>,
    /// The attempt whose commit is under way, or 0.
    commits: Cell<u64>,
    /// Attempts up to this one do not commit: one of them has been asked to give up.
    yielded: Cell<u64>,
    /// The buffers of the next transaction, unless one is using them.
    spare: RefCell<Option<Box<Body>>>,
    errand: RefCell<Errand>,
    /// Nobody waits for the execution under way any more.
    abandoned: Cell<bool>,
    /// How the commit under way counts among those of the coordinator.
    entered: Cell<Entered>,
    /// Whether the verdict on the commit under way is known.
    decided: Cell<bool>,
    /// Commits whose verdict somebody waits for, and the verdicts that nobody has taken yet. More
    /// than one only if a commit's future is kept while the slot goes on.
    awaited: RefCell<Vec<TxnId>>,
    verdicts: RefCell<Vec<(TxnId, Result<Receipt, TxnError>)>>,
    /// Counts what the driver has waited for and got.
    steps: Cell<u64>,
}

/// What a transaction asks of the driver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Execute(Mode),
    Commit,
}

/// Where the driver is, and whose buffers it has.
enum Errand {
    Idle,
    /// Handed over, not yet begun.
    Asked(Request, Box<Body>),
    /// The driver is at work.
    Running(Request),
    /// An execution is over, and the transaction has not taken its buffers back.
    Executed(Result<Box<Body>, TxnError>),
}

impl Slot {
    pub(crate) fn new(coordinator: Rc<Coordinator>, index: usize, number: u16) -> Rc<Self> {
        let slot = Rc::new(Self {
            coordinator,
            index,
            number,
            attempt: Cell::new(0),
            began: Cell::new(Nanos(0)),
            commits: Cell::new(0),
            yielded: Cell::new(0),
            spare: RefCell::new(Some(Box::default())),
            errand: RefCell::new(Errand::Idle),
            abandoned: Cell::new(false),
            entered: Cell::default(),
            decided: Cell::new(false),
            awaited: RefCell::default(),
            verdicts: RefCell::default(),
            steps: Cell::new(0),
        });
        slot.coordinator.slots.borrow_mut().push(Rc::downgrade(&slot));
        slot
    }

    /// Runs jobs until the channel is closed.
    pub(crate) async fn serve(self: Rc<Self>, jobs: Receiver<Job>) {
        let mut driver = pin!(drive(Rc::clone(&self)));
        let slot = Rc::clone(&self);
        let mut body = pin!(async move {
            while let Ok(job) = jobs.recv().await {
                job(Session::new(Rc::clone(&slot))).await;
                slot.idle().await;
            }
        });
        std::future::poll_fn(|cx| {
            loop {
                let asked = self.request().is_some();
                if asked || self.is_running() {
                    let steps = self.steps.get();
                    // Never ready: the driver serves this slot for ever.
                    let _: Poll<()> = driver.as_mut().poll(cx);
                    if (asked || self.steps.get() != steps) && self.is_awaited() {
                        // The body has just been polled, or the wake was the driver's, and it
                        // has posted its next batch: there is another wake to come. If the body
                        // had one as well, it is polled then.
                        return Poll::Pending;
                    }
                }
                if body.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let Some(request) = self.request() else { return Poll::Pending };
                let executor = &self.coordinator.executor;
                if request != Request::Commit && executor.has_company() {
                    // What tells where rows and locks are was prefetched when the rows were
                    // added: let the others go on until it has come.
                    executor.wake(executor.current());
                    return Poll::Pending;
                }
            }
        })
        .await;
    }

    /// The id of the slot's next attempt.
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

    /// The buffers for a transaction; `None` while another transaction of the slot has them.
    pub(crate) fn take_body(&self) -> Option<Box<Body>> {
        if self.coordinator.node.counts.is_some() {
            // Not a recent time: on an idle coordinator that is when the one before had ended.
            self.began.set(self.coordinator.executor.now());
        }
        self.spare.borrow_mut().take()
    }

    pub(crate) fn give_back(&self, mut body: Box<Body>) {
        body.clear();
        if let Some(counts) = &self.coordinator.node.counts {
            let now = self.coordinator.executor.now();
            counts.count_transaction(now.0.saturating_sub(self.began.get().0));
        }
        self.coordinator.snapshots.borrow_mut().finish(self.index);
        *self.spare.borrow_mut() = Some(body);
    }

    /// Gives up an attempt: releases its locks and whatever it has reserved.
    pub(crate) fn release(&self, mut body: Box<Body>) {
        body.release(&self.coordinator);
        self.give_back(body);
    }

    /// Waits until the driver is idle, or works for a transaction that is still alive.
    pub(crate) async fn idle(&self) {
        std::future::poll_fn(|_| match *self.errand.borrow() {
            Errand::Asked(Request::Commit, _) | Errand::Running(Request::Commit) => Poll::Pending,
            Errand::Running(Request::Execute(_)) if self.abandoned.get() => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Hands an attempt over to be executed; [`Slot::executed`] brings it back.
    pub(crate) fn request_execution(&self, mode: Mode, body: Box<Body>) {
        self.ask(Request::Execute(mode), body);
    }

    /// The buffers of the transaction that was executed; they stay with the slot if that failed.
    pub(crate) fn executed(&self) -> impl Future<Output = Result<Box<Body>, TxnError>> {
        std::future::poll_fn(|_| {
            let mut errand = self.errand.borrow_mut();
            match std::mem::replace(&mut *errand, Errand::Idle) {
                Errand::Executed(outcome) => Poll::Ready(outcome),
                other => {
                    *errand = other;
                    Poll::Pending
                }
            }
        })
    }

    /// The transaction whose execution was asked for is gone.
    pub(crate) fn abandon(&self) {
        let errand = std::mem::replace(&mut *self.errand.borrow_mut(), Errand::Idle);
        match errand {
            Errand::Asked(_, body) | Errand::Executed(Ok(body)) => self.release(body),
            Errand::Executed(Err(_)) | Errand::Idle => {}
            Errand::Running(_) => {
                self.abandoned.set(!broken(Rule::AbandonedAttemptsEnd));
                *self.errand.borrow_mut() = errand;
            }
        }
    }

    /// Hands the write set of `txn` over. It is committed even if nobody waits for the verdict.
    pub(crate) fn request_commit(self: &Rc<Self>, txn: TxnId, body: Box<Body>) -> Verdict {
        self.decided.set(false);
        self.commits.set(txn.attempt());
        self.entered.set(self.coordinator.grace.enter());
        self.awaited.borrow_mut().push(txn);
        self.ask(Request::Commit, body);
        Verdict { slot: Rc::clone(self), txn }
    }

    fn ask(&self, request: Request, body: Box<Body>) {
        let before = self.errand.replace(Errand::Asked(request, body));
        debug_assert!(matches!(before, Errand::Idle), "a slot has one transaction at a time");
    }

    /// For the driver: what it is asked for next.
    async fn asked(&self) -> (Request, Box<Body>) {
        std::future::poll_fn(|_| {
            let mut errand = self.errand.borrow_mut();
            match std::mem::replace(&mut *errand, Errand::Idle) {
                Errand::Asked(request, body) => {
                    *errand = Errand::Running(request);
                    Poll::Ready((request, body))
                }
                other => {
                    *errand = other;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// An owner asks `txn` to give up its locks (H19). Whether they guard nothing any more: the
    /// attempt is over, or will not commit. If it is committing, they do.
    pub(crate) fn yields(&self, txn: TxnId) -> bool {
        if self.commits.get() == txn.attempt() && !broken(Rule::CommittersKeepTheirLocks) {
            return false;
        }
        self.yielded.set(self.yielded.get().max(txn.attempt()));
        true
    }

    /// Whether an attempt has been asked to give up.
    #[inline]
    pub(crate) fn has_yielded(&self, txn: TxnId) -> bool {
        txn.attempt() <= self.yielded.get() && !broken(Rule::YieldersDoNotCommit)
    }

    /// For the driver: an execution is over.
    fn end_execution(&self, body: Box<Body>, outcome: Result<(), TxnError>) {
        let next = match outcome {
            Ok(()) if !self.abandoned.get() && self.has_yielded(body.held.txn()) => {
                // What was read since may have been read without the locks.
                let error = body.given_up();
                self.release(body);
                Errand::Executed(Err(error))
            }
            Ok(()) if !self.abandoned.get() => Errand::Executed(Ok(body)),
            outcome => {
                self.release(body);
                match outcome {
                    Err(error) if !self.abandoned.get() => Errand::Executed(Err(error)),
                    _ => Errand::Idle,
                }
            }
        };
        self.abandoned.set(false);
        *self.errand.borrow_mut() = next;
    }

    /// Whether somebody waits for the verdict on `txn`.
    #[inline]
    pub(crate) fn awaits(&self, txn: TxnId) -> bool {
        self.awaited.borrow().contains(&txn)
    }

    /// For the driver: tells the verdict on `txn`. The first one counts.
    pub(crate) fn decide(&self, txn: TxnId, verdict: Result<Receipt, TxnError>) {
        if !self.decided.replace(true) && self.awaits(txn) {
            self.verdicts.borrow_mut().push((txn, verdict));
        }
    }

    /// For the driver: everything is visible and unlocked, and the log entry may be reused.
    pub(crate) fn finish(&self, body: Box<Body>) {
        self.coordinator.grace.leave(self.entered.get());
        self.commits.set(0);
        self.give_back(body);
        *self.errand.borrow_mut() = Errand::Idle;
    }

    /// For the driver: the node has been expelled in the middle of `txn`. Recovery decides what
    /// becomes of it, and this node begins nothing more.
    pub(crate) fn expelled(&self, txn: TxnId) {
        self.decide(txn, Err(TxnError::Unknown(txn)));
        self.coordinator.node.expel();
        *self.errand.borrow_mut() = Errand::Idle;
    }

    /// For the driver: something that it waited for has come.
    #[inline]
    pub(crate) fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    /// What the driver is asked for and has not begun.
    fn request(&self) -> Option<Request> {
        match *self.errand.borrow() {
            Errand::Asked(request, _) => Some(request),
            _ => None,
        }
    }

    fn is_running(&self) -> bool {
        matches!(*self.errand.borrow(), Errand::Running(_))
    }

    /// Whether the body has nothing to learn before the driver has got further.
    fn is_awaited(&self) -> bool {
        match *self.errand.borrow() {
            Errand::Asked(..) | Errand::Running(Request::Execute(_)) => true,
            Errand::Running(Request::Commit) => !self.decided.get(),
            Errand::Idle | Errand::Executed(_) => false,
        }
    }
}

/// The driver of a slot: carries out one request after the other, for ever.
async fn drive(slot: Rc<Slot>) {
    loop {
        let (request, mut body) = slot.asked().await;
        let at_work = &slot.coordinator.at_work;
        at_work.set(at_work.get() + 1);
        match request {
            Request::Execute(mode) => {
                let outcome = body.execute(&slot, mode).await;
                if outcome.is_err() {
                    // Whoever repeats it at once would never let go of this thread, and what is in
                    // the way may have to be done here.
                    slot.coordinator.executor.yield_now().await;
                }
                slot.end_execution(body, outcome);
            }
            Request::Commit if body.piece.is_some() => filling::carry_out(&slot, body).await,
            Request::Commit if body.purges => purge::carry_out(&slot, body).await,
            Request::Commit if body.trims => trim::carry_out(&slot, body).await,
            Request::Commit => commit::carry_out(&slot, body).await,
        }
        at_work.set(at_work.get() - 1);
    }
}

/// Waits for the verdict on one commit. Dropping it changes nothing about the commit.
pub(crate) struct Verdict {
    slot: Rc<Slot>,
    txn: TxnId,
}

impl Future for Verdict {
    type Output = Result<Receipt, TxnError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut verdicts = self.slot.verdicts.borrow_mut();
        match verdicts.iter().position(|(txn, _)| *txn == self.txn) {
            Some(index) => Poll::Ready(verdicts.swap_remove(index).1),
            None => Poll::Pending,
        }
    }
}

impl Drop for Verdict {
    fn drop(&mut self) {
        self.slot.awaited.borrow_mut().retain(|txn| *txn != self.txn);
        self.slot.verdicts.borrow_mut().retain(|(txn, _)| *txn != self.txn);
    }
}
