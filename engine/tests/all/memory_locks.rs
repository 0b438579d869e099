//! Locks on memory nodes.

use std::ops::Range;
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, CoordinatorId, Isolation, LockKind, MemoryStanding, TableId, Transaction, TxnError,
};
use lotus_fabric::ids::NodeId;

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

/// Adds one to each of these rows, on some node that serves. Returns the number of transactions
/// that have committed.
fn increment_all(cluster: &Cluster, table: TableId, rows: Range<u64>) -> u64 {
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
    rows.map(increment).sum()
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
        let builder = small().compute_nodes(3).lease(Some(lease())).locks(kind);
        let (cluster, table) = with_zeroes(builder, ROWS);
        let holding = hold(&cluster, CoordinatorId { compute_node: 1, thread: 0 }, table, 8);
        let waiting = cluster.submit(
            CoordinatorId { compute_node: 1, thread: 0 },
            move |mut session| async move {
                let mut txn = session.begin(Isolation::Serializable).await?;
                (4..12).try_for_each(|row| txn.add_rw(table, row).map(drop))?;
                txn.execute().await
            },
        );
        cluster.kill(1);
        assert_eq!(holding.wait(), Err(TxnError::Fenced), "{kind:?}");
        let _ = waiting.wait();
        let mut counted = increment_all(&cluster, table, 0..ROWS);
        while !cluster.restart(1).expect("there is a lease") {
            std::thread::yield_now();
        }
        counted += increment_all(&cluster, table, 0..ROWS);
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
        let builder = small().compute_nodes(2).lease(Some(lease())).locks(kind);
        let (cluster, table) = with_zeroes(builder, ROWS);
        let holding = hold(&cluster, CoordinatorId { compute_node: 1, thread: 0 }, table, 8);
        cluster.kill(1);
        assert_eq!(holding.wait(), Err(TxnError::Fenced), "{kind:?}");
        cluster.settle().expect("the survivor does not fail");
        assert_clean(&cluster);
        stop(cluster);
    }
}

/// One memory node after the other is lost, while locks on it are held and wanted, and comes back
/// with empty memory. Locks lie on the primary in use: no increment is lost, and the attempt that
/// held locks all the while does not commit.
#[test]
fn locks_move_with_the_primaries_of_lost_memory_nodes() {
    for kind in KINDS {
        let builder = small().compute_nodes(2).replicas(3).lease(Some(lease())).locks(kind);
        let patience = Duration::from_millis(200);
        let (cluster, table) = with_zeroes(builder.lock_timeout(patience), ROWS);
        let standing = |memory_node: usize, expected: &[MemoryStanding]| {
            let now = || cluster.memory_status().expect("it is in this process").nodes;
            let stands = || expected.contains(&now()[memory_node]);
            assert!(eventually_within(PATIENCE, stands), "{kind:?}: {:?}", now());
        };
        let fabric = cluster.local_fabric();
        let (mut counted, mut unknown) = (0, 0);
        let lost: &[u16] = if kind == LockKind::Declock { &[1, 0, 2] } else { &[0] };
        for memory_node in lost.iter().copied() {
            let id = NodeId(memory_node);
            let (lost, is_lost) = async_channel::bounded::<()>(1);
            let late = loop {
                let (locked, is_locked) = async_channel::bounded(1);
                let is_lost = is_lost.clone();
                let late = cluster.submit(FIRST, move |mut session| async move {
                    let mut txn = session.begin(Isolation::Serializable).await?;
                    let item = txn.add_rw(table, 0)?;
                    txn.execute().await?;
                    locked.send(()).await.expect("it is awaited");
                    is_lost.recv().await.expect("it is said");
                    txn.put(item, &u64::MAX.to_le_bytes())?;
                    txn.commit().await
                });
                if is_locked.recv_blocking().is_ok() {
                    break late;
                }
                // The node has not taken note of the last return yet.
                let refused = late.wait();
                assert!(refused.as_ref().is_err_and(TxnError::is_retryable), "{refused:?}");
            };
            fabric.set_reachable(id, false).expect("there is such a node");
            standing(usize::from(memory_node), &[MemoryStanding::Lost]);
            let committed = increment_all(&cluster, table, 1..ROWS);
            (counted, unknown) = (counted + committed, unknown + ROWS - 1 - committed);
            fabric.wipe(id).expect("there is such a node");
            fabric.set_reachable(id, true).expect("there is such a node");
            // It is not filled as long as rows are locked.
            let is_back = [MemoryStanding::Joining, MemoryStanding::Serving];
            standing(usize::from(memory_node), &is_back);
            lost.send_blocking(()).expect("it waits for that");
            let late = late.wait();
            assert!(late.as_ref().is_err_and(TxnError::is_retryable), "{kind:?}: {late:?}");
            standing(usize::from(memory_node), &[MemoryStanding::Serving]);
            counted += increment_all(&cluster, table, 0..ROWS);
        }
        cluster.settle().expect("no compute node fails");
        let sum = sum(&cluster, table);
        assert!((counted..=counted + unknown).contains(&sum), "{kind:?}: {sum}, not {counted}");
        assert_clean(&cluster);
        stop(cluster);
    }
}
