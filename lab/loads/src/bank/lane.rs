//! Clients of a bank, on each lane.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::rpc::Rpc;
use lotus_locksystems::local::Access;
use lotus_locksystems::{Locker, Words};
use rand::Rng;

use super::plan::Plan;
use super::server::{Ask, BankClient, Customer};
use super::{BankTally, Shared};
use crate::lanes::{LaneClient, LaneLocks, Load, Mark, Work, nanos};
use crate::two_phase::{Failed, PAUSES, Phases};

/// A lane that runs a bank's transactions.
pub(super) struct Serving<A, L> {
    context: LaneClient<A>,
    shared: Arc<Shared>,
    locks: L,
    bank_client: Rc<BankClient>,
}

/// Reason why a client ends early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("{0}")]
    Locks(lotus_locks::NotHeld),
    #[error("{0}")]
    Bank(String),
}

impl Load for Arc<Shared> {
    type Tally = BankTally;
    type Work<A: Access> = Serving<A, Words<A>>;

    fn work<A: Access>(&self, context: LaneClient<A>) -> Serving<A, Words<A>> {
        let locks = Words::over(context.client().clone(), Arc::clone(&self.spaces));
        let rpc = context.client().client().rpc().clone();
        Serving::new(context, Self::clone(self), locks, rpc)
    }
}

impl<A: LaneLocks, L: Locker> Work for Serving<A, L> {
    type Access = A;
    type Tally = BankTally;
    type Failed = Ended;

    fn context(&self) -> &LaneClient<A> {
        &self.context
    }

    /// Runs one transaction until the transaction has ended or the time is over.
    async fn operate(&self, rng: &mut SmallRng, tally: &RefCell<BankTally>) -> Result<(), Ended> {
        let mut plan = self.shared.bank.draw(rng);
        let began = self.context.executor().now();
        let mut order = plan.accounts.clone();
        order.sort_unstable_by_key(|want| want.lock);
        let phases = Phases {
            locker: &self.locks,
            executor: self.context.executor(),
            holders: self.shared.holders.as_ref(),
            patience: self.shared.load.patience,
        };
        loop {
            let took = |ns| {
                if self.counts() {
                    tally.borrow_mut().acquire_ns.saturating_record(ns);
                }
            };
            match phases.grow(&order, took).await {
                Ok(held) => {
                    self.transact(&mut plan).await.map_err(Ended::Bank)?;
                    let lost = match phases.shrink(held).await {
                        Ok(()) => false,
                        Err(Failed::Aborted) => true,
                        Err(Failed::Ended(why)) => return Err(Ended::Locks(why)),
                    };
                    self.tally(&plan, began, lost, tally);
                    return Ok(());
                }
                Err(Failed::Ended(why)) => return Err(Ended::Locks(why)),
                Err(Failed::Aborted) => {
                    tally.borrow_mut().aborts += u64::from(self.counts());
                }
            }
            if self.context.executor().now() >= self.context.times().ends {
                return Ok(());
            }
            let most = self.shared.load.patience.as_nanos() as u64 / PAUSES;
            let pause = Duration::from_nanos(rng.random_range(0..=most));
            self.context.executor().sleep(pause).await;
        }
    }

    fn mark(self: &Rc<Self>, mark: Mark, _: &mut BankTally) {
        let load = &self.shared.load;
        let lost = load.lost_node().zip(load.loses);
        let expelled = lost.filter(|_| mark == Mark::Begin && self.context.is_first());
        if let Some((lost, after)) = expelled {
            let (lane, time) = (Rc::clone(self), self.context.times().begins.after(after));
            self.context.executor().spawn(async move {
                lane.context.executor().sleep_until(time).await;
                // No other client gets the lost node's locks before the server refuses the node's
                // requests.
                lane.shared.store.fence();
                lane.context.run_context().roster().settle(lost);
            });
        }
    }
}

impl<A, L: Locker> Serving<A, L> {
    /// Creates the part of a lane that has these locks and messages.
    pub(super) fn new(context: LaneClient<A>, shared: Arc<Shared>, locks: L, rpc: Rpc) -> Self {
        let bank_client = BankClient::new(rpc, shared.load.server());
        Self { context, shared, locks, bank_client }
    }

    /// Returns whether an operation that ends now lies in the measured time.
    fn counts(&self) -> bool {
        let (now, times) = (self.context.executor().now(), self.context.times());
        times.counts_from <= now && now < times.ends
    }

    fn tally(&self, plan: &Plan, began: Nanos, lost: bool, tally: &RefCell<BankTally>) {
        let ended = self.context.executor().now();
        self.context.tick(began, ended);
        if self.counts() {
            let (tally, ns) = (&mut *tally.borrow_mut(), nanos(began, ended));
            tally.transactions += 1;
            tally.lost += u64::from(lost);
            tally.transaction_ns.saturating_record(ns);
            tally.of_kind(plan.kind).saturating_record(ns);
        }
    }

    /// Gets the balances of all accounts of the plan, and puts the balances that change.
    async fn transact(&self, plan: &mut Plan) -> Result<(), String> {
        let mut customer: Customer = self.bank_client.customer();
        let mut balances = Vec::with_capacity(plan.accounts.len());
        for want in &plan.accounts {
            balances.push(customer.ask(want.lock, Ask::Get).await?);
        }
        let changes = plan.changes(&balances);
        if changes.is_empty() {
            return Ok(());
        }
        let (client, first) = customer.next();
        self.shared.books.begin(client, first, &changes);
        for change in &changes {
            customer.ask(change.account, Ask::Put(change.after)).await?;
        }
        self.shared.books.end(client);
        Ok(())
    }
}
