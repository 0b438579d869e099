//! Clients of a lane, which run a trace.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_locks::NotHeld;
use lotus_locksystems::local::Access;
use lotus_locksystems::{Locker, Words};
use rand::Rng;

use super::strict::{Failed, PAUSES, Phases};
use super::{Shared, TraceTally};
use crate::lanes::{LaneClient, LaneLocks, Load, Mark, Work, nanos};
use crate::traces::{Origin, Transaction};

/// A lane that runs the transactions of a trace.
pub(super) struct Transacting<A, L> {
    context: LaneClient<A>,
    shared: Arc<Shared>,
    locks: L,
    /// Number of transactions that the lane has begun.
    begun: Cell<u64>,
    /// End of the lane's last execution, if the lane executes one transaction at a time.
    executed: Cell<Nanos>,
}

impl Load for Arc<Shared> {
    type Tally = TraceTally;
    type Work<A: Access> = Transacting<A, Words<A>>;

    fn work<A: Access>(&self, context: LaneClient<A>) -> Transacting<A, Words<A>> {
        let locks = Words::over(context.client().clone(), Arc::clone(&self.spaces));
        Transacting::new(context, Self::clone(self), locks)
    }
}

impl<A: LaneLocks, L: Locker> Work for Transacting<A, L> {
    type Access = A;
    type Tally = TraceTally;
    type Failed = NotHeld;

    fn context(&self) -> &LaneClient<A> {
        &self.context
    }

    /// Runs one transaction until the transaction has ended or the time is over.
    async fn operate(
        &self,
        rng: &mut SmallRng,
        tally: &RefCell<TraceTally>,
    ) -> Result<(), NotHeld> {
        let transaction = self.draw(rng);
        let began = self.context.executor().now();
        loop {
            match self.attempt(&transaction, began, tally).await {
                Ok(()) => return Ok(()),
                Err(Failed::Ended(why)) => return Err(why),
                Err(Failed::Aborted)
                    if self.context.executor().now() >= self.context.times().ends =>
                {
                    return Ok(());
                }
                Err(Failed::Aborted) => {
                    let most = self.shared.load.patience.as_nanos() as u64 / PAUSES;
                    let pause = Duration::from_nanos(rng.random_range(0..=most));
                    self.context.executor().sleep(pause).await;
                }
            }
        }
    }

    fn mark(self: &Rc<Self>, _: Mark, _: &mut TraceTally) {}
}

impl<A, L: Locker> Transacting<A, L> {
    pub(super) fn new(context: LaneClient<A>, shared: Arc<Shared>, locks: L) -> Self {
        Self { context, shared, locks, begun: Cell::new(0), executed: Cell::new(Nanos(0)) }
    }

    /// The next transaction.
    fn draw(&self, rng: &mut SmallRng) -> Transaction {
        let load = &self.shared.load;
        let node = u64::from(self.context.lane().at().node.0 - 1);
        let (cns, threads) = (u64::from(load.clients.cns), u64::from(load.clients.threads));
        let turn = self.begun.get() * cns * threads + self.context.index() as u64;
        self.begun.set(self.begun.get() + 1);
        let transaction = load.trace.draw(rng, Origin { node, nodes: cns }, turn);
        if load.sorted { transaction.sorted() } else { transaction }
    }

    /// Makes one attempt of a transaction, which began at time `began`.
    async fn attempt(
        &self,
        transaction: &Transaction,
        began: Nanos,
        tally: &RefCell<TraceTally>,
    ) -> Result<(), Failed> {
        let (load, executor) = (&self.shared.load, self.context.executor());
        let phases = Phases {
            locker: &self.locks,
            executor,
            holders: self.shared.holders.as_ref(),
            patience: load.patience,
        };
        let took = |ns| {
            if self.counts() {
                tally.borrow_mut().acquire_ns.saturating_record(ns);
            }
        };
        let held = phases.grow(&transaction.wants, took).await;
        let held = held.inspect_err(|_| tally.borrow_mut().aborts += u64::from(self.counts()))?;
        let grown = executor.now();
        self.execute(transaction.kind).await;
        let is_valid = phases.is_valid(&held);
        let executed = executor.now();
        let released = phases.shrink(held).await;
        let released = if is_valid { released } else { Err(Failed::Aborted) };
        let counts = self.counts();
        released.inspect_err(|_| tally.borrow_mut().lost += u64::from(counts))?;
        self.context.tick(began, executed);
        if counts {
            let tally = &mut *tally.borrow_mut();
            let ns = nanos(began, executed);
            tally.transactions += 1;
            tally.locks += transaction.wants.len() as u64;
            tally.growing_ns.saturating_record(nanos(began, grown));
            tally.transaction_ns.saturating_record(ns);
            tally.of_kind(transaction.kind).saturating_record(ns);
        }
        Ok(())
    }

    /// Returns whether an operation that ends now lies in the measured time.
    fn counts(&self) -> bool {
        let (now, times) = (self.context.executor().now(), self.context.times());
        times.counts_from <= now && now < times.ends
    }

    /// Executes a transaction of this type.
    async fn execute(&self, kind: usize) {
        let (load, executor) = (&self.shared.load, self.context.executor());
        let execution = load.trace.execution(kind).unwrap_or(load.execution);
        if execution.is_zero() {
            return;
        }
        let now = executor.now();
        let begins = if load.busy { self.executed.get().max(now) } else { now };
        let ends = begins.after(execution);
        self.executed.set(ends);
        executor.sleep_until(ends).await;
    }
}
