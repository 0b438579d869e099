//! Compute nodes that return as new incarnations.
//!
//! The simulator tests what may go wrong at which instant (`proof/sim/scenarios/`). Here threads
//! really end and begin, in one process, and nothing depends on when.

use crate::common::*;
use lotus::{Cluster, ClusterError, CoordinatorId, Isolation, TableId, TimestampKind, TxnError};

const ROWS: u64 = 32;

/// Adds one to a row by a coordinator of this node, as soon as it serves.
fn increment_at(cluster: &Cluster, compute_node: usize, table: TableId, row: u64) {
    let coordinator_id = CoordinatorId { compute_node, thread: 0 };
    loop {
        let attempt = cluster.submit(coordinator_id, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            add_one(&mut txn, table, row).await?;
            txn.commit().await
        });
        match attempt.wait() {
            Ok(_) => return,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Kills a node and starts it again as soon as that is possible.
fn restart(cluster: &Cluster, compute_node: usize) {
    while !cluster.restart(compute_node).expect("there is a lease, and memory answers") {
        std::thread::yield_now();
    }
}

fn sum(cluster: &Cluster, table: TableId) -> u64 {
    let mut sum = 0;
    cluster
        .audit_scan(table, &mut |_, value, _| sum += number(value))
        .expect("the memory nodes answer");
    sum
}

fn check(cluster: &Cluster, table: TableId, expected: u64) {
    cluster.settle().expect("nobody fails");
    assert_eq!(sum(cluster, table), expected);
    for finding in cluster.audit().expect("the memory nodes answer") {
        assert!(finding.passed, "{finding:?}");
    }
}

/// Every node in turn, twice, the oracle first: each works afterwards, is given a shard and serves
/// its locks to others.
#[test]
fn nodes_return_and_work_like_before() {
    let builder = small().compute_nodes(3).lease(Some(lease())).timestamps(TimestampKind::Oracle);
    let (cluster, table) = with_zeroes(builder, ROWS);
    let mut expected = 0;
    for node in [0, 1, 0, 2] {
        restart(&cluster, node);
        assert!(cluster.takes_part(node));
        for row in 0..ROWS {
            increment_at(&cluster, node, table, row);
            expected += 1;
        }
        let figures = cluster.node_figures(node);
        assert_eq!((figures.shards_owned, figures.locks_held), (0, 0), "it begins with nothing");
        let shard = cluster.shard_of(table, node as u64).expect("there is such a table");
        // Other nodes may not know of it yet; one that has just begun a transaction does.
        while cluster.move_shards(&[shard], node).is_err() {}
        assert_eq!(cluster.shard_owner(node, shard).compute_node, Some(node));
        for other in 0..3 {
            increment_at(&cluster, other, table, node as u64);
            expected += 1;
        }
    }
    check(&cluster, table, expected);
}

/// Locks of the previous life are free, and requests to that life do not reach the new one.
#[test]
fn what_the_life_before_had_locked_is_free() {
    let (cluster, table) = with_zeroes(small().compute_nodes(3).lease(Some(lease())), ROWS);
    let doomed = CoordinatorId { compute_node: 1, thread: 0 };
    let holding = hold(&cluster, doomed, table, 8);
    restart(&cluster, 1);
    assert_eq!(holding.wait(), Err(TxnError::Fenced));
    for row in 0..8 {
        increment_at(&cluster, (row % 3) as usize, table, row);
    }
    check(&cluster, table, 8);
}

#[test]
fn without_a_lease_nobody_returns() {
    let (cluster, _) = with_zeroes(small().compute_nodes(2), ROWS);
    let refused = cluster.restart(1).expect_err("nobody would settle what it has left");
    assert!(matches!(refused, ClusterError::Setting(_)), "{refused}");
    assert!(cluster.takes_part(1), "it was not ended for nothing");
}
