//! Waiting requests in the table: joining a queue, service, and leaving.
//!
//! The mutex of a stripe guards the queue as well as the holders. A release serves the queue before
//! leaving the stripe, so an awaited lock is never free in between; the recipients are notified
//! after leaving the stripe.

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TxnId;

use crate::lock_key::{LockKey, LockMode, LockRequest};
use crate::primitive::{MutexGuard, Ordering};
use crate::queue::{MAX_WAITING_PER_STRIPE, Parked, WaitOutcome, Waiter};
use crate::slot::{Grant, Refusal, Word};
use crate::stripe::Records;
use crate::table::{Found, LockTable, SlotPlace, find, slot_index, slot_number, store};

/// Answer to a request that may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOrWait {
    /// The transaction holds the lock now, or held it already.
    Granted(Grant),
    /// The request waits; its waiter will receive the outcome.
    Waits,
}

impl LockTable {
    /// Takes one lock, or joins its queue if another transaction holds the lock or waits before.
    /// `since` is the start of the transaction's first attempt, and determines the rank in the
    /// queue; `waiter` receives the outcome unless [`Self::stop_waiting`] comes first.
    ///
    /// The caller must check that the transaction [may wait](crate::may_wait), or transactions
    /// could deadlock. Repeating a waiting request adds a second request to the queue: call once.
    ///
    /// # Errors
    /// The reason of a refusal that waiting would not change: as [`Self::try_lock`]; `Conflict` for
    /// a conflicting upgrade, and if only other names hold the slot; `QueueFull`.
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
        // The request may be first in its queue and compatible with the holders, or never be
        // granted.
        match self.serve_one(records, slot, txn, &name) {
            None => Ok(LockOrWait::Waits),
            Some(WaitOutcome::Granted) => Ok(LockOrWait::Granted(Grant::Acquired)),
            Some(_) => Err(Refusal::Conflict),
        }
    }

    /// Ends the wait of `txn` for `name`. Returns whether `txn` waited; if not, `txn` may hold the
    /// lock.
    pub fn stop_waiting(&self, txn: TxnId, name: &LockKey) -> bool {
        let bucket = self.place(name).bucket;
        let mut records = self.stripe(bucket).enter();
        if !records.has_waiting() {
            return false;
        }
        let left = records.unpark(|one| one.txn == txn && one.request.name == *name);
        let Some(slot) = left.first().map(|one| one.slot) else { return false };
        // A later request in the queue may be compatible with the holders.
        self.serve(records, slot);
        true
    }

    /// Ends the waits selected by `which`, with `outcome`. Returns the number of ended waits.
    ///
    /// Complete if selected requests can no longer begin to wait: a transaction checks after
    /// joining a queue whether it may wait, as after taking a lock (H19).
    pub fn dismiss(&self, outcome: WaitOutcome, which: impl Fn(TxnId, &LockKey) -> bool) -> usize {
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
                // A later request in the queue may be compatible with the holders.
                let bucket = self.place(&one.request.name).bucket;
                self.serve(self.stripe(bucket).enter(), one.slot);
                one.waiter.settled(one.txn, one.request.name, outcome);
            }
        }
        dismissed
    }

    /// Number of waiting requests. Exact only without concurrent changes.
    pub fn waiting(&self) -> usize {
        self.stripes.iter().map(|stripe| stripe.enter().waiting().len()).sum()
    }

    /// Serves the queues of `slot`, and notifies the waiters whose wait ends, outside the stripe.
    #[cold]
    pub(super) fn serve(&self, records: MutexGuard<'_, Records>, slot: u32) {
        let mut settled = Vec::new();
        self.serve_queue(records, slot, &mut settled);
        for (one, outcome) in settled {
            one.waiter.settled(one.txn, one.request.name, outcome);
        }
    }

    /// As [`Self::serve`], but returns the outcome of one request instead of notifying its waiter.
    fn serve_one(
        &self,
        records: MutexGuard<'_, Records>,
        slot: u32,
        txn: TxnId,
        name: &LockKey,
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
        // The preceding release may have zeroed the slot.
        let fingerprint = self.place(&first.request.name).fingerprint;
        store(word, Word::new(fingerprint, counter));
        if settled.iter().any(|(one, _)| one.request.mode == LockMode::Write) {
            self.note_change(bucket, LockMode::Write);
        }
    }
}
