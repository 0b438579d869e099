//! Requests that wait in the table: how they join a queue, are served, and leave it.
//!
//! A request waits under the mutex of its stripe, like a holder. A release serves the queue before
//! it leaves the stripe, so a lock that is waited for is never free in between, and the recipients
//! are told after it.

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TxnId;

use crate::name::{LockMode, LockName, LockRequest};
use crate::primitive::{MutexGuard, Ordering};
use crate::queue::{MAX_WAITING_PER_STRIPE, Parked, WaitOutcome, Waiter};
use crate::slot::{Grant, Refusal, Word};
use crate::stripe::Records;
use crate::table::{Found, LockTable, SlotPlace, find, slot_index, slot_number, store};

/// Answer to a request that may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOrWait {
    /// The lock is held now, or was already.
    Granted(Grant),
    /// The request waits; its waiter will receive the outcome.
    Waits,
}

impl LockTable {
    /// Takes one lock, or waits in its queue if another transaction holds it or waits before.
    /// `since` is the begin of the transaction's first attempt, and ranks the queue; `waiter`
    /// receives the outcome unless [`Self::stop_waiting`] comes first.
    ///
    /// The caller has to know that it [may wait](crate::may_wait), or transactions could wait for
    /// one another. A repeated request of one that waits is a second one: ask once.
    ///
    /// # Errors
    /// The reason of a refusal that waiting would not change: as [`Self::try_lock`]; `Conflict`
    /// also for an upgrade, and where only other names hold the slot; `QueueFull`.
    pub fn lock_or_wait(
        &self,
        txn: TxnId,
        request: LockRequest,
        since: Nanos,
        waiter: &Arc<dyn Waiter>,
    ) -> Result<LockOrWait, Refusal> {
        let LockRequest { name, .. } = request;
        let SlotPlace { bucket, fingerprint } = self.place(&name);
        let mut records = self.stripe(bucket).enter();
        let place = SlotPlace { bucket, fingerprint };
        match self.lock_in(&mut records, place, txn, request) {
            Err(Refusal::Conflict) => {}
            outcome => return outcome.map(LockOrWait::Granted),
        }
        let Found::Taken { index, .. } = find(self.slots(bucket), fingerprint) else {
            return Err(Refusal::Conflict);
        };
        let slot = slot_number(bucket, index);
        if records.of(slot, txn, &name).name.is_some() {
            return Err(Refusal::Conflict);
        }
        if records.waiting().len() >= MAX_WAITING_PER_STRIPE {
            return Err(Refusal::QueueFull);
        }
        records.park(Parked { slot, txn, request, since, waiter: Arc::clone(waiter) });
        // It may be first in its queue and compatible with the holders, or never be granted.
        match self.serve_one(records, slot, txn, &name) {
            None => Ok(LockOrWait::Waits),
            Some(WaitOutcome::Granted) => Ok(LockOrWait::Granted(Grant::Acquired)),
            Some(_) => Err(Refusal::Conflict),
        }
    }

    /// Ends the wait of `txn` for `name`. Returns whether it waited; if not, it may hold the lock.
    pub fn stop_waiting(&self, txn: TxnId, name: &LockName) -> bool {
        let bucket = self.place(name).bucket;
        let mut records = self.stripe(bucket).enter();
        if !records.has_waiting() {
            return false;
        }
        let left = records.unpark(|one| one.txn == txn && one.request.name == *name);
        let Some(slot) = left.first().map(|one| one.slot) else { return false };
        // A request behind it may be compatible with the holders.
        self.serve(records, slot);
        true
    }

    /// Ends the waits that `which` selects, with `outcome`. Returns their number.
    ///
    /// Complete if what it selects does not begin to wait any more: who waits checks afterwards
    /// whether it may, as who takes a lock does (H19).
    pub fn dismiss(&self, outcome: WaitOutcome, which: impl Fn(TxnId, &LockName) -> bool) -> usize {
        let mut dismissed = 0;
        for stripe in &self.stripes {
            let mut records = stripe.enter();
            if !records.has_waiting() {
                continue;
            }
            let left = records.unpark(|one| which(one.txn, &one.request.name));
            drop(records);
            dismissed += left.len();
            for one in left {
                // A request behind it may be compatible with the holders.
                let bucket = self.place(&one.request.name).bucket;
                self.serve(self.stripe(bucket).enter(), one.slot);
                one.waiter.settled(one.txn, one.request.name, outcome);
            }
        }
        dismissed
    }

    /// Number of requests that wait. Exact only while nothing changes.
    pub fn waiting(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.enter().waiting().len()).sum()
    }

    /// Serves the queues of `slot`, and tells those whose wait ends, outside the stripe.
    #[cold]
    pub(super) fn serve(&self, records: MutexGuard<'_, Records>, slot: u32) {
        let mut settled = Vec::new();
        self.serve_queue(records, slot, &mut settled);
        for (one, outcome) in settled {
            one.waiter.settled(one.txn, one.request.name, outcome);
        }
    }

    /// As [`Self::serve`], but returns the outcome of one request instead of telling it.
    fn serve_one(
        &self,
        records: MutexGuard<'_, Records>,
        slot: u32,
        txn: TxnId,
        name: &LockName,
    ) -> Option<WaitOutcome> {
        let (mut settled, mut wanted) = (Vec::new(), None);
        self.serve_queue(records, slot, &mut settled);
        for (one, outcome) in settled {
            if one.txn == txn && one.request.name == *name {
                wanted = Some(outcome);
            } else {
                one.waiter.settled(one.txn, one.request.name, outcome);
            }
        }
        wanted
    }

    fn serve_queue(
        &self,
        mut records: MutexGuard<'_, Records>,
        slot: u32,
        settled: &mut Vec<(Parked, WaitOutcome)>,
    ) {
        let bucket = slot as usize / super::SLOTS_PER_BUCKET;
        let word = &self.slots(bucket)[slot_index(slot)];
        let seen = Word(word.load(Ordering::Relaxed));
        let counter = records.serve(slot, seen.counter(), settled);
        let Some((first, _)) = settled.iter().find(|(_, end)| *end == WaitOutcome::Granted) else {
            return;
        };
        // The slot may have been zeroed by the release that is served.
        let fingerprint = self.place(&first.request.name).fingerprint;
        store(word, Word::new(fingerprint, counter));
        if settled.iter().any(|(one, _)| one.request.mode == LockMode::Write) {
            self.note_change(bucket, LockMode::Write);
        }
    }
}
