//! Rules of waiting for a lock: which requests may wait, in what order, and which are served next.
//!
//! # No deadlock
//! Locks have one total order, the same at every node: [`WaitOrder`]. A transaction waits only for
//! a lock above the highest that it holds ([`may_wait`]), so in a circle of transactions that wait
//! for one another each would hold a lock above the one before it, all the way round. Any other
//! request that meets a conflict is refused.
//!
//! A slot belongs to every name with its fingerprint, and the order is one of names. So a request
//! waits only while its very name is held, or is waited for by an earlier one; if the slot is
//! held by other names alone it is refused ([`WaitVerdict::Refuse`]).
//!
//! # Fairness
//! Requests for one name are served by age: first the one whose transaction began first, however
//! often that was refused since; those of one age in order of arrival. No request overtakes an
//! earlier one for the same name, whatever the modes, so neither readers nor writers starve.
//!
//! # What it is not
//! It keeps no mutex and wakes no task; `stripe` and `table::waiting` do that.

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TxnId;
use lotus_sabotage::{Rule, broken};

use crate::name::{LockName, LockRequest, LockSpace};
use crate::slot::{Counter, Grant, Mine, Refusal, decide};

/// Limit of the requests that wait in one stripe of a table; the next one is refused.
pub const MAX_WAITING_PER_STRIPE: usize = 4096;

/// Place of a lock in the order in which transactions may wait for locks.
///
/// Rows come before index buckets, which are locked by inserts and so late in a transaction. Tables
/// come in reverse order of their making: the few rows that many transactions change are mostly in
/// the first tables, and the lock that is waited for last is held for the shortest time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WaitOrder {
    space: LockSpace,
    /// Complement of the table's number.
    table: u16,
    key: u64,
}

impl WaitOrder {
    /// Place of `name`.
    #[inline]
    pub const fn of(name: &LockName) -> Self {
        Self { space: name.space, table: !name.table.0, key: name.key.0 }
    }
}

/// Whether a transaction whose highest lock is `highest` may wait for `wanted`.
#[inline]
pub fn may_wait(highest: Option<WaitOrder>, wanted: WaitOrder) -> bool {
    highest.is_none_or(|highest| wanted > highest) || broken(Rule::WaitsGoUp)
}

/// Highest place among `names`.
#[inline]
pub(crate) fn highest<'a>(names: impl IntoIterator<Item = &'a LockName>) -> Option<WaitOrder> {
    names.into_iter().map(WaitOrder::of).max()
}

/// End of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    /// The transaction holds the lock.
    Granted,
    /// The slot is held by other names that look the same: abort and retry.
    Refused,
    /// The lock's shard is being given to another node (H19): abort and ask that one.
    Moved,
    /// The table's node does not take part any more, or is stopping its transactions.
    Closed,
}

/// Recipient of the outcomes of waiting requests.
pub trait Waiter: Send + Sync + std::fmt::Debug {
    /// Receives the outcome of the wait of `txn` for `name`, once, on the thread that caused it.
    /// Called without a mutex of the table held; must not block.
    fn settled(&self, txn: TxnId, name: LockName, outcome: WaitOutcome);
}

/// A request that waits, and the slot of its name.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) slot: u32,
    pub(crate) txn: TxnId,
    pub(crate) request: LockRequest,
    /// Begin of the transaction's first attempt, on the clock of the table's node.
    pub(crate) since: Nanos,
    pub(crate) waiter: Arc<dyn Waiter>,
}

/// Requests that wait in one stripe, those of one name in the order in which they are served.
pub(crate) type ParkedQueue = Vec<Parked>;

/// Index at which a request of that age joins a queue: behind all that are as old.
pub(crate) fn place_in_queue(ages: impl Iterator<Item = Nanos>, since: Nanos) -> usize {
    if broken(Rule::QueuesGoByAge) {
        return 0;
    }
    ages.take_while(|age| *age <= since).count()
}

/// Decision about one waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitVerdict {
    /// Grant the lock; the slot's counter becomes this.
    Grant(Grant, Counter),
    /// Keep it waiting.
    Wait,
    /// Refuse it: its name is held by no other transaction, and still it conflicts.
    Refuse,
}

/// Decides about a waiting request, given the slot's counter, the locks that its transaction holds
/// there, whether another transaction holds its name, and whether an earlier request for the name
/// waits.
pub(crate) fn judge(
    counter: Counter,
    mine: Mine,
    request: LockRequest,
    name_is_held: bool,
    overtakes: bool,
) -> WaitVerdict {
    match decide(counter, mine, request.mode) {
        _ if overtakes => WaitVerdict::Wait,
        Ok((grant, counter)) => WaitVerdict::Grant(grant, counter),
        Err(Refusal::Conflict) if !name_is_held => WaitVerdict::Refuse,
        Err(_) => WaitVerdict::Wait,
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests;
