//! Decision about a page that could not be read.
//!
//! # What it is
//! A page depends on its place and the snapshot alone, so a reader continues at its place after the
//! whole cluster's transactions have stood still: while a table was dropped, or a node lost or
//! taken in. A page is retried for as long as a commit may take; while transactions stand still the
//! reader waits longer, since the stop ends by itself or by an operator.

use std::time::Duration;

use lotus_fabric::env::Nanos;

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::scan::held::Held;
use crate::scan::reader::{ReadError, row_patience};
use crate::txn::session::Session;

/// Longest time that transactions may stand still before a reader gives up.
pub(crate) const LONGEST_STOP: Duration = Duration::from_secs(60);

/// Next step of a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Read the page again.
    Again,
    /// The table was dropped.
    Dropped,
    /// The snapshot is not readable any more.
    TooOld,
    /// Report the error.
    GiveUp,
}

/// Times since the last page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waited {
    /// Time since the reader began to wait.
    all: Duration,
    /// Time since transactions last stood still, or else since the reader began to wait.
    moving: Duration,
}

/// Decides about a page that failed with `error`.
fn decide(error: &ReadError, waited: Waited, patience: Duration) -> Next {
    match error {
        ReadError::TooOld | ReadError::Txn(TxnError::SnapshotTooOld { .. }) => Next::TooOld,
        ReadError::Txn(TxnError::UnknownTable(_)) => Next::Dropped,
        ReadError::Txn(error) if !error.is_retryable() => Next::GiveUp,
        _ if waited.moving >= patience || waited.all >= patience + LONGEST_STOP => Next::GiveUp,
        _ => Next::Again,
    }
}

/// A wait for one page.
pub(crate) struct RetryBudget {
    begun: Nanos,
    stood_still: Nanos,
}

impl RetryBudget {
    /// Begins to wait.
    pub(crate) fn begin(coordinator: &Coordinator) -> Self {
        let begun = coordinator.executor.now();
        Self { begun, stood_still: begun }
    }

    /// Time since the wait began.
    pub(crate) fn waited(&self, coordinator: &Coordinator) -> Duration {
        coordinator.executor.now().since(self.begun)
    }

    /// Decides about an attempt that failed with `error`.
    pub(crate) fn next(&mut self, coordinator: &Coordinator, error: &ReadError) -> Next {
        let now = coordinator.executor.now();
        if !coordinator.configuration.is_open() || coordinator.node.check_standing().is_err() {
            self.stood_still = now;
        }
        let waited = Waited { all: now.since(self.begun), moving: now.since(self.stood_still) };
        debug_assert!(waited.moving <= waited.all, "I318: a stop lengthens a wait");
        decide(error, waited, row_patience(coordinator))
    }
}

/// Draws a snapshot, and retries while nodes do not answer. An error comes with the time spent on
/// retries.
pub(crate) async fn draw(session: &Session) -> Result<Held, (ReadError, Duration)> {
    let coordinator = session.coordinator();
    let (mut patience, mut attempts) = (RetryBudget::begin(coordinator), 0);
    loop {
        let error = match Held::draw(session.slot()).await {
            Ok(held) => return Ok(held),
            Err(error) => ReadError::Txn(error),
        };
        if patience.next(coordinator, &error) != Next::Again {
            return Err((error, patience.waited(coordinator)));
        }
        session.back_off(attempts).await;
        attempts += 1;
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::TableId;
    use lotus_mvcc::PrimaryKey;

    use super::*;
    use crate::api::row_name::RowName;

    const PATIENCE: Duration = Duration::from_secs(6);
    const TABLE: TableId = TableId(3);

    fn decided(error: TxnError, all: u64, moving: u64) -> Next {
        let waited = Waited { all: Duration::from_secs(all), moving: Duration::from_secs(moving) };
        decide(&ReadError::Txn(error), waited, PATIENCE)
    }

    #[test]
    fn a_page_waits_for_a_commit_and_longer_where_all_stands_still() {
        let cases = [
            (0, 0, Next::Again),
            (5, 5, Next::Again),
            (6, 6, Next::GiveUp),
            (30, 0, Next::Again),
            (30, 5, Next::Again),
            (65, 0, Next::Again),
            (66, 0, Next::GiveUp),
        ];
        for (all, moving, next) in cases {
            assert_eq!(decided(TxnError::Timeout, all, moving), next, "{all} {moving}");
        }
    }

    #[test]
    fn each_error_has_its_own_consequence_however_long_the_wait_is() {
        let key = RowName::from(PrimaryKey::from(1));
        let cases = [
            (TxnError::Conflict { table: TABLE, key: key.clone() }, Next::Again),
            (TxnError::InDoubt { table: TABLE, key: key.clone() }, Next::Again),
            (TxnError::UnknownTable(TABLE), Next::Dropped),
            (TxnError::SnapshotTooOld { table: TABLE, key }, Next::TooOld),
            (TxnError::Fenced, Next::GiveUp),
            (TxnError::DataLost { memory_node: 1 }, Next::GiveUp),
            (TxnError::Damaged { table: TABLE }, Next::GiveUp),
            (TxnError::Misuse("a defect of the reader"), Next::GiveUp),
        ];
        for (error, next) in cases {
            assert_eq!(decided(error.clone(), 0, 0), next, "{error}");
        }
        let waited = Waited { all: Duration::ZERO, moving: Duration::ZERO };
        assert_eq!(decide(&ReadError::TooOld, waited, PATIENCE), Next::TooOld);
    }
}
