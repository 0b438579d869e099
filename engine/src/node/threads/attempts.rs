//! Progress of a slot's attempts, for queries by other coordinators.

use std::cell::Cell;

use lotus_fabric::ids::TxnId;
use lotus_sabotage::{Rule, broken};

/// Attempts of one slot: the committing attempt, and the attempts asked to give up their locks.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// Number of the slot on the compute node.
    pub(crate) slot: u16,
    /// Attempt with a commit under way, or 0.
    pub(crate) commits: Cell<u64>,
    /// Last attempt asked to give up its locks; attempts up to it do not commit.
    yielded: Cell<u64>,
}

impl Attempts {
    pub(crate) fn new(slot: u16) -> Self {
        Self { slot, commits: Cell::new(0), yielded: Cell::new(0) }
    }

    /// Handles an owner's request that `txn` give up its locks (H19). Returns whether the locks
    /// have become useless: the attempt is over, or will not commit. False while `txn` is
    /// committing.
    pub(crate) fn yields(&self, txn: TxnId) -> bool {
        debug_assert_eq!(txn.slot(), self.slot, "I77: a slot answers for its own attempts");
        if self.commits.get() == txn.attempt() && !broken(Rule::CommittersKeepTheirLocks) {
            return false;
        }
        self.yielded.set(self.yielded.get().max(txn.attempt()));
        true
    }

    /// Whether an attempt has been asked to give up its locks.
    #[inline]
    pub(crate) fn has_yielded(&self, txn: TxnId) -> bool {
        txn.attempt() <= self.yielded.get() && !broken(Rule::YieldersDoNotCommit)
    }
}
