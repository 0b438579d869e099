//! Memory of a refused attempt, for the retry of its transaction in the same slot.
//!
//! An attempt learns its locks round by round, and may need a lock below the locks that it holds;
//! ordered waiting forbids waiting for such a lock. The retry knows the locks: it takes them before
//! its first read, in order, and may wait for every lock. The retry keeps the transaction's age,
//! which orders the queues, so it comes nearer to the front each time.
//!
//! A slot treats the next attempt as a retry until an attempt ends without a refusal, or until the
//! caller announces another transaction
//! ([`Session::new_transaction`](crate::Session::new_transaction)). If the caller omits this, an
//! attempt holds some locks that it does not need.
//!
//! If each attempt is a separate job, as for a remote client, the next attempt may be in another
//! slot. The caller then passes the [`RefusedLocks`] from slot to slot.

use std::cell::{Cell, RefCell};

use lotus_fabric::env::Nanos;
use lotus_locktable::{HeldLocks, LockError, LockMode, LockRequest};

/// Locks and age of a transaction that was refused a lock.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    /// Locks that the attempts held or wanted, in their strongest modes; empty if there is no
    /// retry.
    locks: RefCell<Vec<LockRequest>>,
    /// Time of the first refusal.
    since: Cell<Nanos>,
    /// Whether the attempt under way has been refused, and the slot does not know of its end yet.
    now: Cell<bool>,
    /// Whether a queue will order the retry, which then needs no pause.
    queues: Cell<bool>,
}

/// Locks and age of a transaction that was refused a lock, for its next attempt in any slot of the
/// same compute node: [`Session::refusal`](crate::Session::refusal).
#[derive(Clone, Debug)]
pub struct RefusedLocks {
    locks: Vec<LockRequest>,
    since: Nanos,
}

impl RefusedLocks {
    /// Returns the number of locks that the attempts held or wanted.
    pub fn lock_count(&self) -> usize {
        self.locks.len()
    }
}

impl Refused {
    /// A copy for another slot; `None` unless the last attempt was refused a lock.
    pub(crate) fn copy(&self) -> Option<RefusedLocks> {
        let locks = self.locks.borrow();
        let refusal = || RefusedLocks { locks: locks.clone(), since: self.since.get() };
        (!locks.is_empty()).then(refusal)
    }

    /// Takes over the refused locks and age of an attempt in another slot.
    pub(crate) fn take_over(&self, refusal: RefusedLocks) {
        debug_assert!(self.locks.borrow().is_empty(), "I328: a job retries one transaction");
        self.locks.replace(refusal.locks);
        self.since.set(refusal.since);
    }

    /// Whether the next attempt is a retry that waits in queues. True once per refusal: an attempt
    /// that cannot even begin, because its node has no place at the moment, waits in no queue, and
    /// must be put off.
    #[inline]
    pub(crate) fn queues(&self) -> bool {
        self.queues.replace(false)
    }

    /// Forgets the transaction.
    #[inline]
    pub(crate) fn forget(&self) {
        self.locks.borrow_mut().clear();
        self.now.set(false);
        self.queues.set(false);
    }

    /// Records that an acquisition of `wanted` has failed, if other transactions were in the way.
    /// An unresponsive owner should not be asked again by the next attempt.
    pub(crate) fn note(
        &self,
        held: &HeldLocks,
        wanted: &[LockRequest],
        error: &LockError,
        at: Nanos,
    ) {
        let queues = matches!(error, LockError::Conflict(_) | LockError::WaitedTooLong(_));
        if !queues && !matches!(error, LockError::Moved(_)) {
            return;
        }
        let mut locks = self.locks.borrow_mut();
        let first = locks.is_empty();
        if first {
            self.since.set(at);
        }
        locks.extend(held.taken().iter().map(|lock| lock.request));
        locks.extend_from_slice(wanted);
        strongest(&mut locks);
        self.now.set(true);
        // A retry that is refused again has met an obstacle that queues do not order.
        self.queues.set(queues && first);
    }

    /// Records that an attempt has ended. Unless the attempt was refused, there is nothing to
    /// retry.
    #[inline]
    pub(crate) fn ended(&self) {
        if !self.now.replace(false) {
            self.forget();
        }
    }

    /// Adds the remembered locks of the transaction to the first locks that an attempt wants.
    #[inline]
    pub(crate) fn recall(&self, held: &mut HeldLocks, wanted: &mut Vec<LockRequest>) {
        let locks = self.locks.borrow();
        if !locks.is_empty() {
            held.retry(self.since.get());
            wanted.extend_from_slice(&locks);
            strongest(wanted);
        }
    }

    /// Removes the locks that a retry already holds from `wanted`.
    #[inline]
    pub(crate) fn pass_over(&self, held: &HeldLocks, wanted: &mut Vec<LockRequest>) {
        if !self.locks.borrow().is_empty() {
            drop_held(held, wanted);
        }
    }
}

/// Merges the requests of rows that share a name, and drops requests for locks already held in the
/// requested mode. Such rows share one lock, and a request for a weaker mode than the held mode is
/// an error.
#[cold]
pub(crate) fn merge(held: &HeldLocks, wanted: &mut Vec<LockRequest>) {
    strongest(wanted);
    drop_held(held, wanted);
    debug_assert!(
        wanted.is_sorted_by(|one, other| one.name < other.name),
        "I323: a lock is asked for once, however many rows share it"
    );
}

/// Removes requests for locks that are held in the requested mode or a stronger one.
fn drop_held(held: &HeldLocks, wanted: &mut Vec<LockRequest>) {
    let has = |mode: LockMode, wanted: &LockRequest| mode >= wanted.mode;
    wanted.retain(|one| {
        let mut of_name = held.taken().iter().filter(|held| held.request.name == one.name);
        !of_name.any(|held| has(held.request.mode, one))
    });
}

/// Keeps every name once, in its strongest mode.
fn strongest(locks: &mut Vec<LockRequest>) {
    locks.sort_unstable_by(|one, other| one.name.cmp(&other.name).then(other.mode.cmp(&one.mode)));
    locks.dedup_by_key(|lock| lock.name);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::{Incarnation, Key, TableId, TxnId};
    use lotus_locktable::LockKey;

    const ERROR: LockError = LockError::Conflict(row(1));

    const fn row(key: u64) -> LockKey {
        LockKey::row(TableId(1), Key(key))
    }

    fn held(attempt: u64) -> HeldLocks {
        let mut held = HeldLocks::default();
        held.begin(TxnId::new(Incarnation::new(1).expect("fits"), 0, attempt));
        held
    }

    #[test]
    fn a_retry_wants_each_lock_once_in_its_strongest_mode() {
        let refused = Refused::default();
        let wanted = [LockRequest::read(row(2)), LockRequest::read(row(1))];
        refused.note(&held(1), &wanted, &ERROR, Nanos(7));
        refused.ended();
        assert!(refused.queues());
        assert!(!refused.queues(), "a retry that could not begin is put off");
        refused.note(&held(2), &[LockRequest::write(row(2))], &ERROR, Nanos(9));
        refused.ended();
        assert!(!refused.queues(), "a retry that is refused as well is put off");
        let mut again = vec![LockRequest::read(row(3)), LockRequest::read(row(2))];
        refused.recall(&mut held(3), &mut again);
        let expected =
            [LockRequest::read(row(1)), LockRequest::write(row(2)), LockRequest::read(row(3))];
        assert_eq!(again, expected);
        assert_eq!(refused.since.get(), Nanos(7), "its age counts from the first refusal");
    }

    #[test]
    fn names_that_rows_share_are_asked_for_once() {
        let [read, write] = [LockRequest::read, LockRequest::write];
        let mut wanted = vec![read(row(2)), write(row(1)), write(row(2)), read(row(1))];
        merge(&held(1), &mut wanted);
        assert_eq!(wanted, [write(row(1)), write(row(2))]);
    }

    #[test]
    fn an_attempt_that_was_not_refused_leaves_nothing_to_retry() {
        let refused = Refused::default();
        refused.note(&held(1), &[LockRequest::write(row(1))], &ERROR, Nanos(7));
        refused.ended();
        assert!(refused.queues(), "the next attempt is its retry");
        refused.ended();
        assert!(!refused.queues());
        let mut wanted = vec![LockRequest::read(row(9))];
        refused.recall(&mut held(3), &mut wanted);
        assert_eq!(wanted, [LockRequest::read(row(9))]);
    }

    #[test]
    fn a_retry_in_another_slot_wants_the_same_locks_and_has_the_same_age() {
        let (one, other) = (Refused::default(), Refused::default());
        assert!(one.copy().is_none());
        one.note(&held(1), &[LockRequest::write(row(1))], &ERROR, Nanos(7));
        one.ended();
        let refusal = one.copy().expect("it was refused");
        assert_eq!(refusal.lock_count(), 1);
        other.take_over(refusal);
        let mut wanted = vec![LockRequest::read(row(1)), LockRequest::read(row(2))];
        other.recall(&mut held(2), &mut wanted);
        assert_eq!(wanted, [LockRequest::write(row(1)), LockRequest::read(row(2))]);
        other.note(&held(2), &wanted, &ERROR, Nanos(9));
        assert_eq!(other.since.get(), Nanos(7), "its age counts from the first refusal");
        other.ended();
        other.ended();
        assert!(other.copy().is_none(), "an attempt that was not refused leaves nothing");
    }

    #[test]
    fn conflicts_are_retried_at_once_and_silent_owners_are_not_asked_again() {
        // (error, whether the locks are remembered, whether the retry is not put off)
        let cases = [
            (LockError::Conflict(row(1)), true, true),
            (LockError::WaitedTooLong(row(1)), true, true),
            (LockError::Moved(row(1)), true, false),
            (LockError::Full(row(1)), false, false),
            (LockError::Suspected(row(1)), false, false),
            (LockError::TimedOut, false, false),
        ];
        for (error, remembered, queues) in cases {
            let refused = Refused::default();
            refused.note(&held(1), &[LockRequest::write(row(1))], &error, Nanos(7));
            assert_eq!(refused.queues(), queues, "{error}");
            let mut wanted = Vec::new();
            refused.recall(&mut held(2), &mut wanted);
            assert_eq!(wanted.len(), usize::from(remembered), "{error}");
        }
    }
}
