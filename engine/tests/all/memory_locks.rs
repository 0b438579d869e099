//! Locks on memory nodes.

use std::time::Duration;

use crate::common::*;
use lotus::{Cluster, Isolation, LockKind, Seat, TableId, Transaction, TxnError};

/// The lock systems that a cluster may have on its memory nodes.
const KINDS: [LockKind; 4] =
    [LockKind::Cas, LockKind::Dslr, LockKind::ShiftLock, LockKind::Declock];

#[test]
fn an_audit_finds_a_lock_that_is_held() {
    for kind in KINDS {
        let (cluster, table) = with_numbers(small().locks(kind));
        insert_all(&cluster, table, &[(1, 1), (2, 2)]);
        let (locked, is_locked) = async_channel::bounded(1);
        let (release, released) = async_channel::bounded::<()>(1);
        let holder = cluster.submit(FIRST, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.add_rw(table, 1)?;
            txn.add_ro(table, 2)?;
            txn.execute().await?;
            let _ = locked.send(()).await;
            let _ = released.recv().await;
            txn.abort();
            Ok::<_, TxnError>(())
        });
        is_locked.recv_blocking().expect("it holds the locks");
        let finding = || {
            let findings = cluster.audit().expect("the memory nodes answer");
            findings.into_iter().find(|one| one.name == "every lock object is free")
        };
        let finding = finding().expect("the locks are on memory nodes");
        assert!(!finding.passed && finding.detail.contains(" 2 wrong"), "{kind:?}: {finding:?}");
        release.send_blocking(()).expect("it waits for that");
        done(holder);
        stop_clean(cluster);
    }
}

const ROWS: u64 = 24;
const LEASE: Duration = Duration::from_millis(500);

/// Adds one to each row, on some node that serves. Returns the number of transactions that have
/// committed.
fn increment_all(cluster: &Cluster, table: TableId) -> u64 {
    let increment = |row: u64| {
        let body = async move |txn: &mut Transaction| add_one(txn, table, row).await;
        loop {
            match cluster.run(Isolation::Serializable, body).wait() {
                Ok(_) => return 1,
                Err(TxnError::Unknown(_)) => return 0,
                Err(error) => assert!(error.is_retryable() || error == TxnError::Fenced, "{error}"),
            }
        }
    };
    (0..ROWS).map(increment).sum()
}

fn sum(cluster: &Cluster, table: TableId) -> u64 {
    let mut sum = 0;
    let visited = cluster.audit_scan(table, &mut |_, value, _| sum += number(value));
    visited.expect("the memory nodes answer");
    sum
}

/// H2, H4: a node is lost that holds locks, and one that waits for them. The others take them once
/// it is expelled, fenced and recovered; so does the node's next life.
#[test]
fn locks_of_a_lost_node_are_taken_by_the_others_and_by_its_next_life() {
    for kind in KINDS {
        let builder = small().compute_nodes(3).lease(Some(LEASE)).locks(kind);
        let (cluster, table) = with_zeroes(builder, ROWS);
        let holding = hold(&cluster, Seat { compute_node: 1, thread: 0 }, table, 8);
        let waiting =
            cluster.submit(Seat { compute_node: 1, thread: 0 }, move |mut session| async move {
                let mut txn = session.begin(Isolation::Serializable).await?;
                (4..12).try_for_each(|row| txn.add_rw(table, row).map(drop))?;
                txn.execute().await
            });
        cluster.kill(1);
        assert_eq!(holding.wait(), Err(TxnError::Fenced), "{kind:?}");
        let _ = waiting.wait();
        let mut counted = increment_all(&cluster, table);
        while !cluster.restart(1).expect("there is a lease") {
            std::thread::yield_now();
        }
        counted += increment_all(&cluster, table);
        cluster.settle().expect("the survivors do not fail");
        assert!(sum(&cluster, table) >= counted, "{kind:?}");
        assert_clean(&cluster);
        stop(cluster);
    }
}

/// A lost node's locks that nobody wants are found to be free all the same.
#[test]
fn locks_that_nobody_wants_of_a_lost_node_pass_an_audit() {
    for kind in KINDS {
        let builder = small().compute_nodes(2).lease(Some(LEASE)).locks(kind);
        let (cluster, table) = with_zeroes(builder, ROWS);
        let holding = hold(&cluster, Seat { compute_node: 1, thread: 0 }, table, 8);
        cluster.kill(1);
        assert_eq!(holding.wait(), Err(TxnError::Fenced), "{kind:?}");
        cluster.settle().expect("the survivor does not fail");
        assert_clean(&cluster);
        stop(cluster);
    }
}
