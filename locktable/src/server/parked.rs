//! Waiting requests of remote nodes: taking locks one by one.
//!
//! # The steps
//! The request's locks are in ascending order. [`Session::wait`] takes them in order. At a conflict
//! the request waits in the table, holding the lower locks, and [`Session::settle`] continues when
//! the wait has ended. At the end the request holds all its locks, or has released every lock that
//! it took.
//!
//! # Owners that change
//! A request checks whether this node still owns the shards after beginning to wait, and again
//! after taking its last lock. A hand-over stops owning first, ends the waits second, and reads the
//! list of holders last; so the hand-over sees the request, or the request sees the hand-over
//! (H19).

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Endpoint, TxnId};
use lotus_sabotage::{Rule, broken};

use crate::lock_key::{LockKey, LockMode, LockRequest};
use crate::queue::{WaitOrder, WaitOutcome, Waiter, highest, may_wait};
use crate::server::{Arrival, LockHost, Session};
use crate::slot::{Grant, Refusal};
use crate::table::{LockOrWait, LockTable};
use crate::wire::{LockAnswer, Question, RemoteLock};

/// A waiting request, and the number of its locks taken so far.
#[derive(Debug)]
pub(super) struct ParkedRequest {
    pub(super) question: Question,
    from: Endpoint,
    /// Start of the transaction's first attempt, on this node's clock.
    since: Nanos,
    locks: Vec<RemoteLock>,
    /// Index of the awaited lock.
    next: usize,
    /// Number of locks that the session held before the request.
    held_before: usize,
}

impl ParkedRequest {
    pub(super) fn new(
        question: Question,
        Arrival { from, at }: Arrival,
        age_us: u32,
        locks: impl Iterator<Item = RemoteLock>,
    ) -> Self {
        let since = Nanos(at.0.saturating_sub(u64::from(age_us) * 1_000));
        Self { question, from, since, locks: locks.collect(), next: 0, held_before: 0 }
    }
}

impl Session {
    /// Takes the locks of a request that may wait, as far as they are free, and waits for the next
    /// lock.
    pub(super) fn wait(
        &mut self,
        txn: TxnId,
        mut parked: ParkedRequest,
        host: &impl LockHost,
        table: &LockTable,
        waiter: &Arc<dyn Waiter>,
    ) -> LockAnswer {
        let names = || parked.locks.iter().map(|lock| lock.request.name);
        let goes_up = names().is_sorted_by_key(|name| WaitOrder::of(&name));
        let held = highest(self.held.iter().map(|held| &held.name));
        let lowest = names().map(|name| WaitOrder::of(&name)).min();
        let may = goes_up && lowest.is_some_and(|lowest| may_wait(held, lowest));
        if !may && !broken(Rule::WaitsGoUp) {
            // A correct asker never sends such a request.
            return LockAnswer::Refused { index: 0, refusal: Refusal::Conflict };
        }
        parked.held_before = self.held.len();
        self.parked = Some(parked);
        self.advance(txn, host, table, waiter)
    }

    /// Continues after the end of a wait. Returns recipient, question and answer, unless the
    /// request waits again or its attempt has ended.
    pub(super) fn settle(
        &mut self,
        txn: TxnId,
        name: &LockKey,
        outcome: WaitOutcome,
        host: &impl LockHost,
        table: &LockTable,
        waiter: &Arc<dyn Waiter>,
    ) -> Option<(Endpoint, Question, LockAnswer)> {
        let parked = self.parked.as_mut().filter(|parked| parked.question.txn == txn)?;
        let lock = parked.locks[parked.next];
        if lock.request.name != *name {
            return None;
        }
        let (from, question, index) = (parked.from, parked.question, parked.next);
        let answer = match outcome {
            WaitOutcome::Granted => {
                parked.next += 1;
                self.note_one(lock.request, host);
                self.advance(txn, host, table, waiter)
            }
            WaitOutcome::Moved => {
                self.give_back(txn, table);
                wrong_owner(index, &lock, host)
            }
            WaitOutcome::Refused | WaitOutcome::Closed => {
                self.give_back(txn, table);
                LockAnswer::Refused { index: index as u16, refusal: Refusal::Conflict }
            }
        };
        (answer != LockAnswer::Waiting).then_some((from, question, answer))
    }

    /// Ends the wait of the session's request; releases the awaited lock if granted meanwhile
    /// (I253).
    pub(super) fn stop_waiting(&mut self, table: &LockTable) {
        let Some(parked) = self.parked.take() else { return };
        let (txn, name) = (parked.question.txn, parked.locks[parked.next].request.name);
        if !table.stop_waiting(txn, &name) && !self.held.iter().any(|held| held.name == name) {
            table.unlock(txn, &name);
        }
    }

    fn advance(
        &mut self,
        txn: TxnId,
        host: &impl LockHost,
        table: &LockTable,
        waiter: &Arc<dyn Waiter>,
    ) -> LockAnswer {
        loop {
            let parked = self.parked.as_mut().expect("a request goes on");
            let Some(lock) = parked.locks.get(parked.next).copied() else {
                return self.complete(txn, host, table);
            };
            let (index, since) = (parked.next, parked.since);
            match table.lock_or_wait(txn, lock.request, since, waiter) {
                Ok(LockOrWait::Granted(grant)) => {
                    parked.next += 1;
                    match grant {
                        Grant::Acquired => self.note_one(lock.request, host),
                        Grant::Upgraded => self.note_upgrade(&lock.request, host),
                        Grant::AlreadyHeld => {}
                    }
                }
                // Checked after joining the queue: either the hand-over finds the request in the
                // queue, or this check sees the changed owner.
                Ok(LockOrWait::Waits) if is_owned(host, &lock) => return LockAnswer::Waiting,
                Ok(LockOrWait::Waits) => {
                    if !table.stop_waiting(txn, &lock.request.name) {
                        table.unlock(txn, &lock.request.name);
                    }
                    self.give_back(txn, table);
                    return wrong_owner(index, &lock, host);
                }
                Err(refusal) => {
                    self.give_back(txn, table);
                    return LockAnswer::Refused { index: index as u16, refusal };
                }
            }
        }
    }

    /// Completes a request whose locks are all taken.
    fn complete(&mut self, txn: TxnId, host: &impl LockHost, table: &LockTable) -> LockAnswer {
        let parked = self.parked.as_ref().expect("a request goes on");
        // Checked last, for the reason given at `LockHost::owns`.
        let wrong = parked.locks.iter().enumerate().find(|(_, lock)| !is_owned(host, lock));
        match wrong.map(|(index, lock)| (index, *lock)) {
            None => {
                self.parked = None;
                LockAnswer::Granted
            }
            Some((index, lock)) => {
                self.give_back(txn, table);
                wrong_owner(index, &lock, host)
            }
        }
    }

    /// Ends the request and releases the locks that it took.
    fn give_back(&mut self, txn: TxnId, table: &LockTable) {
        let before = self.parked.take().map_or(0, |parked| parked.held_before);
        for request in self.held.drain(before.min(self.held.len())..) {
            table.unlock(txn, &request.name);
        }
    }

    fn note_one(&mut self, request: LockRequest, host: &impl LockHost) {
        self.held.push(request);
        if request.mode == LockMode::Write {
            host.write_granted(&request.name);
        }
    }

    /// Records an upgrade to a write lock. If the request is refused later, the upgrade stays: the
    /// attempt then ends.
    fn note_upgrade(&mut self, request: &LockRequest, host: &impl LockHost) {
        let upgraded = self.held.iter_mut().filter(|held| held.name == request.name);
        upgraded.for_each(|held| held.mode = LockMode::Write);
        host.write_granted(&request.name);
    }
}

fn is_owned(host: &impl LockHost, lock: &RemoteLock) -> bool {
    host.owns(lock.request.name.shard(), lock.shard_epoch) || broken(Rule::HandOversAnswerTheParked)
}

fn wrong_owner(index: usize, lock: &RemoteLock, host: &impl LockHost) -> LockAnswer {
    let (owner, shard_epoch) = host.owner_known(lock.request.name.shard());
    LockAnswer::WrongOwner { index: index as u16, owner, shard_epoch }
}
