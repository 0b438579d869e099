//! Compute nodes that are killed while transactions run.
//!
//! The simulator tests what may go wrong at which instant (`proof/sim/scenarios/`). Here threads
//! really end, and nothing depends on when: a node that is suspected too early, because the machine
//! is busy, is recovered as well, and a survivor is always left.

use std::time::Duration;

use crate::common::*;
use lotus::{Cluster, CoordinatorId, Isolation, TableId, Transaction, TxnError};

const ROWS: u64 = 64;

/// Adds one to a row on some node that still serves, at least once. Returns the previous number.
fn increment(cluster: &Cluster, table: TableId, row: u64) -> Result<u64, TxnError> {
    let body = async move |txn: &mut Transaction| add_one(txn, table, row).await;
    loop {
        match cluster.run(Isolation::Serializable, body).wait() {
            Err(error) if error.is_retryable() || error == TxnError::Fenced => {}
            outcome => return outcome.map(|committed| committed.value),
        }
    }
}

/// H2, H4, H8: a node dies that keeps locks, holds locks of others, and has rows in doubt. The
/// others serve all rows afterwards, and its reported commits are there.
#[test]
fn a_killed_node_s_rows_are_served_by_the_others() {
    let (cluster, table) = with_zeroes(small().compute_nodes(3).lease(Some(lease())), ROWS);
    let doomed = CoordinatorId { compute_node: 1, thread: 0 };
    // Hold a lock of every owner, and never release them.
    let holding = hold(&cluster, doomed, table, 8);
    let mut counted = 0;
    for row in 8..ROWS {
        counted += u64::from(increment(&cluster, table, row).is_ok());
    }
    cluster.kill(1);
    assert_eq!(holding.wait(), Err(TxnError::Fenced));
    for row in 0..ROWS {
        match increment(&cluster, table, row) {
            Ok(_) => counted += 1,
            Err(error) => assert!(matches!(error, TxnError::Unknown(_)), "{error}"),
        }
    }
    cluster.settle().expect("the survivors do not fail");
    let mut sum = 0;
    cluster
        .audit_scan(table, &mut |_, value, _| sum += number(value))
        .expect("the memory nodes answer");
    assert!(sum >= counted, "{counted} were reported, and {sum} are there");
    for finding in cluster.audit().expect("the memory nodes answer") {
        assert!(finding.passed, "{finding:?}");
    }
}

/// Without a lease no node is ever suspected, and the rows of a dead node stay locked.
#[test]
fn without_a_lease_a_killed_node_s_rows_stay_locked() {
    let patience = Duration::from_millis(50);
    let (cluster, table) = with_zeroes(small().compute_nodes(2).lock_timeout(patience), ROWS);
    cluster.kill(1);
    let one_try = |row: u64| {
        let attempt = cluster.submit(FIRST, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.add_rw(table, row)?;
            txn.execute().await
        });
        attempt.wait()
    };
    let outcomes: Vec<_> = (0..ROWS).map(one_try).collect();
    assert!(outcomes.contains(&Ok(())), "the survivor serves its own");
    assert!(outcomes.contains(&Err(TxnError::Timeout)), "nobody serves the others");
    let only = outcomes.iter().all(|one| matches!(one, Ok(()) | Err(TxnError::Timeout)));
    assert!(only, "{outcomes:?}");
}
