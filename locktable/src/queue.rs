//! Rules of waiting for a lock: permission to wait, order of the queue, and service.
//!
//! # No deadlock
//! Locks have one total order, the same at every node: [`WaitOrder`]. A transaction waits only for
//! a lock above its highest held lock ([`may_wait`]), so in a cycle of waiting transactions the
//! highest held locks would ascend all the way round, which is impossible. A request that may not
//! wait is refused on a conflict.
//!
//! Several names with the same fingerprint share a slot, but the order is an order of names. So a
//! request waits only while its exact name is held, or is awaited by an earlier request; if only
//! other names hold the slot, the request is refused ([`WaitVerdict::Refuse`]).
//!
//! # Fairness
//! Requests for one name are served by age: the transaction that began first comes first, however
//! often it was refused since; requests of equal age are served in order of arrival. A request
//! never overtakes an earlier request for the same name, regardless of modes, so neither readers
//! nor writers starve. Only a transaction that already has a lock in the slot does not queue: it
//! upgrades, or repeats its request.
//!
//! # What it is not
//! The module has no mutex and wakes no tasks; `stripe` and `table::waiting` do.

use std::sync::Arc;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TxnId;
use lotus_sabotage::{Rule, broken};

use crate::lock_key::{LockKey, LockRequest, LockSpace};
use crate::slot::{Counter, Grant, OwnLocks, Refusal, decide};

/// Largest number of waiting requests in one stripe of a table; further requests are refused.
pub const MAX_WAITING_PER_STRIPE: usize = 4096;

/// Place of a lock in the order in which transactions may wait for locks.
///
/// Rows come before index buckets, which inserts lock late in a transaction. Tables come in reverse
/// order of creation: the few contended rows are mostly in the first tables, and the lock acquired
/// last is held for the shortest time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WaitOrder {
    space: LockSpace,
    /// Complement of the table's number.
    table: u16,
    key: u64,
}

impl WaitOrder {
    /// Returns the place of `name`.
    #[inline]
    pub const fn of(name: &LockKey) -> Self {
        Self { space: name.space, table: !name.table.0, key: name.key.0 }
    }
}

/// Whether a transaction whose highest lock is `highest` may wait for `wanted` (I251).
#[inline]
pub fn may_wait(highest: Option<WaitOrder>, wanted: WaitOrder) -> bool {
    highest.is_none_or(|highest| wanted > highest) || broken(Rule::WaitsGoUp)
}

/// Highest place among `names`.
#[inline]
pub(crate) fn highest<'a>(names: impl IntoIterator<Item = &'a LockKey>) -> Option<WaitOrder> {
    names.into_iter().map(WaitOrder::of).max()
}

/// End of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitOutcome {
    /// The transaction holds the lock.
    Granted,
    /// Only other names with the same fingerprint hold the slot: abort and retry.
    Refused,
    /// The lock's shard is being handed over to another node (H19): abort and ask the new owner.
    Moved,
    /// The table's node has left the cluster, or is stopping its transactions.
    Closed,
}

/// Recipient of the outcomes of waiting requests.
pub trait Waiter: Send + Sync + std::fmt::Debug {
    /// Receives the outcome of the wait of `txn` for `name`, once, on the thread that ended the
    /// wait. Called with no mutex of the table held; must not block.
    fn settled(&self, txn: TxnId, name: LockKey, outcome: WaitOutcome);
}

/// A waiting request, and the slot of its name.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) slot: u32,
    pub(crate) txn: TxnId,
    pub(crate) request: LockRequest,
    /// Start of the transaction's first attempt, on the clock of the table's node.
    pub(crate) since: Nanos,
    pub(crate) waiter: Arc<dyn Waiter>,
}

/// Waiting requests of one stripe; requests for the same name are in order of service.
pub(crate) type ParkedQueue = Vec<Parked>;

/// Index at which a request of this age joins a queue: behind requests of equal age (I252).
pub(crate) fn place_in_queue(ages: impl Iterator<Item = Nanos>, since: Nanos) -> usize {
    if broken(Rule::QueuesGoByAge) {
        return 0;
    }
    ages.take_while(|age| *age <= since).count()
}

/// Decision about one waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitVerdict {
    /// Grant the lock; contains the slot's new counter.
    Grant(Grant, Counter),
    /// Keep the request waiting.
    Wait,
    /// Refuse the request: it conflicts although no other transaction holds its name (I251).
    Refuse,
}

/// Decides about a waiting request, given the slot's counter, the transaction's own locks in the
/// slot, whether another transaction holds the name, and whether an earlier request for the name
/// waits.
pub(crate) fn judge(
    counter: Counter,
    mine: OwnLocks,
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
