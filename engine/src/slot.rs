//! A coroutine slot: one transaction at a time, and the commit that belongs to it.
//!
//! # Who owns what
//! The slot's task polls two futures: the *body* (a job: somebody's transactions) and the
//! *committer*. `commit` hands the write set over to the committer and waits for its verdict, so
//! a commit that has begun is finished whatever becomes of the body: dropped, panicked or no
//! longer interested (H21). The next transaction of the slot begins only when the committer is
//! idle, because it reuses the slot's log entry (H16).

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use async_channel::Receiver;
use lotus_fabric::ids::TxnId;

use crate::commit;
use crate::coordinator::{Coordinator, Job};
use crate::error::TxnError;
use crate::session::Session;
use crate::txn::{Body, Receipt};

pub(crate) struct Slot {
    pub(crate) coordinator: Rc<Coordinator>,
    /// Its number on the compute node.
    pub(crate) number: u16,
    attempt: Cell<u64>,
    /// The buffers of the next transaction, unless one is using them.
    spare: RefCell<Option<Box<Body>>>,
    commit: RefCell<Commit>,
    /// Whether the verdict on the commit under way is known.
    decided: Cell<bool>,
    /// Commits whose verdict somebody waits for, and the verdicts that nobody has taken yet. More
    /// than one only if a commit's future is kept while the slot goes on.
    awaited: RefCell<Vec<TxnId>>,
    verdicts: RefCell<Vec<(TxnId, Result<Receipt, TxnError>)>>,
    /// Counts what the committer has waited for and got.
    steps: Cell<u64>,
}

/// Where the slot's commit is.
enum Commit {
    Idle,
    /// Handed over, not yet begun.
    Requested(Box<Body>),
    /// The committer is at work.
    Running,
}

impl Slot {
    pub(crate) fn new(coordinator: Rc<Coordinator>, number: u16) -> Rc<Self> {
        Rc::new(Self {
            coordinator,
            number,
            attempt: Cell::new(0),
            spare: RefCell::new(Some(Box::default())),
            commit: RefCell::new(Commit::Idle),
            decided: Cell::new(false),
            awaited: RefCell::default(),
            verdicts: RefCell::default(),
            steps: Cell::new(0),
        })
    }

    /// Runs jobs until the channel is closed.
    pub(crate) async fn serve(self: Rc<Self>, jobs: Receiver<Job>) {
        let mut committer = pin!(commit::run(Rc::clone(&self)));
        let slot = Rc::clone(&self);
        let mut body = pin!(async move {
            while let Ok(job) = jobs.recv().await {
                job(Session::new(Rc::clone(&slot))).await;
                slot.idle().await;
            }
        });
        std::future::poll_fn(|cx| {
            loop {
                if self.is_committing() {
                    let steps = self.steps.get();
                    // Never ready: the committer serves this slot for ever.
                    let _: Poll<()> = committer.as_mut().poll(cx);
                    if self.steps.get() != steps && self.is_undecided() {
                        // The wake was the committer's, and it has posted its next batch, so
                        // there is another wake to come. If the body had one as well, it is
                        // polled then.
                        return Poll::Pending;
                    }
                }
                if body.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                if !matches!(*self.commit.borrow(), Commit::Requested(_)) {
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
        Ok(TxnId::new(self.coordinator.node.incarnation, self.number, attempt))
    }

    /// The buffers for a transaction; `None` while another transaction of the slot has them.
    pub(crate) fn take_body(&self) -> Option<Box<Body>> {
        self.spare.borrow_mut().take()
    }

    pub(crate) fn give_back(&self, mut body: Box<Body>) {
        body.clear();
        *self.spare.borrow_mut() = Some(body);
    }

    /// Waits until no commit of this slot is under way.
    pub(crate) async fn idle(&self) {
        std::future::poll_fn(|_| match *self.commit.borrow() {
            Commit::Idle => Poll::Ready(()),
            _ => Poll::Pending,
        })
        .await;
    }

    /// Hands the write set of `txn` over. It is committed even if nobody waits for the verdict.
    pub(crate) fn request_commit(self: &Rc<Self>, txn: TxnId, body: Box<Body>) -> Verdict {
        let before = std::mem::replace(&mut *self.commit.borrow_mut(), Commit::Requested(body));
        debug_assert!(matches!(before, Commit::Idle), "a slot commits one write set at a time");
        self.decided.set(false);
        self.awaited.borrow_mut().push(txn);
        Verdict { slot: Rc::clone(self), txn }
    }

    /// For the committer: the next write set.
    pub(crate) async fn requested(&self) -> Box<Body> {
        std::future::poll_fn(|_| {
            let mut commit = self.commit.borrow_mut();
            match std::mem::replace(&mut *commit, Commit::Running) {
                Commit::Requested(body) => Poll::Ready(body),
                other => {
                    *commit = other;
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// For the committer: tells the verdict on `txn`. The first one counts.
    pub(crate) fn decide(&self, txn: TxnId, verdict: Result<Receipt, TxnError>) {
        if !self.decided.replace(true) && self.awaited.borrow().contains(&txn) {
            self.verdicts.borrow_mut().push((txn, verdict));
        }
    }

    /// For the committer: everything is visible and unlocked, and the log entry may be reused.
    pub(crate) fn finish(&self, body: Box<Body>) {
        self.give_back(body);
        *self.commit.borrow_mut() = Commit::Idle;
    }

    /// For the committer: the node has been expelled in the middle of `txn`. Recovery decides what
    /// becomes of it, and this node begins nothing more.
    pub(crate) fn expelled(&self, txn: TxnId) {
        self.decide(txn, Err(TxnError::Unknown(txn)));
        self.coordinator.node.expel();
        *self.commit.borrow_mut() = Commit::Idle;
    }

    /// For the committer: something that it waited for has come.
    #[inline]
    pub(crate) fn step(&self) {
        self.steps.set(self.steps.get() + 1);
    }

    fn is_committing(&self) -> bool {
        !matches!(*self.commit.borrow(), Commit::Idle)
    }

    fn is_undecided(&self) -> bool {
        self.is_committing() && !self.decided.get()
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
