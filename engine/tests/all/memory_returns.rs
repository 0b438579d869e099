//! Memory nodes that come back with empty memory, and are filled while transactions run.
//!
//! The simulator tests what may go wrong at which instant (`proof/sim/scenarios/`). Here threads
//! really run beside the filling, and nothing depends on when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{Cluster, Isolation, MemoryStanding, PrimaryKey, TableId, Transaction, TxnError};
use lotus_fabric::ids::NodeId;
use lotus_fabric::transport::Fabric;

const ROWS: u64 = 400;

fn loaded(replicas: usize) -> (Running, TableId) {
    with_zeroes(small().compute_nodes(2).replicas(replicas).lease(Some(lease())), ROWS)
}

fn lose(cluster: &Cluster, memory_node: u16) {
    let fabric = cluster.local_fabric();
    fabric.set_reachable(NodeId(memory_node), false).expect("there is such a node");
    await_standing(cluster, memory_node, MemoryStanding::Lost);
}

/// Makes a memory node reachable again, with empty memory.
fn give_back(cluster: &Cluster, memory_node: u16) {
    let fabric = cluster.local_fabric();
    fabric.wipe(NodeId(memory_node)).expect("there is such a node");
    fabric.set_reachable(NodeId(memory_node), true).expect("there is such a node");
}

fn await_standing(cluster: &Cluster, memory_node: u16, standing: MemoryStanding) {
    let now = || cluster.memory_status().expect("the authority is in this process").nodes;
    let place = usize::from(memory_node);
    assert!(eventually_within(PATIENCE, || now()[place] == standing), "{:?}", now());
}

/// Adds one to a row, at least once. Returns the previous number.
fn increment(cluster: &Cluster, table: TableId, row: u64) -> Result<u64, TxnError> {
    let body = async move |txn: &mut Transaction| add_one(txn, table, row).await;
    cluster.run(Isolation::Serializable, body).wait().map(|committed| committed.value)
}

/// Inserts a row, and deletes it again if `keep` is false.
fn insert(cluster: &Cluster, table: TableId, row: u64, keep: bool) -> Result<(), TxnError> {
    let inserted = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        txn.insert(table, row, &row.to_le_bytes())?;
        Ok::<(), TxnError>(())
    });
    inserted.wait()?;
    if keep {
        return Ok(());
    }
    let deleted = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, row)?;
        txn.execute().await?;
        txn.delete(item)?;
        Ok(())
    });
    deleted.wait().map(drop)
}

fn rows(cluster: &Cluster, table: TableId) -> Vec<(PrimaryKey, u64)> {
    let mut rows = Vec::new();
    let mut visit = |key: &PrimaryKey, value: &[u8], _| rows.push((*key, number(value)));
    cluster.audit_scan(table, &mut visit).expect("the memory nodes answer");
    rows.sort_unstable();
    rows
}

/// Sets the flag when it is dropped, also when a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// I133 to I138: while transactions write, insert and delete, one memory node after the other is
/// lost and comes back empty. In the end the copies are alike, although none of them is an
/// original, and no reported write is missing.
#[test]
fn every_memory_node_in_turn_is_made_anew_while_transactions_run() {
    let (cluster, table) = loaded(3);
    let stop = AtomicBool::new(false);
    let [counted, inserted] = [const { AtomicU64::new(0) }; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut row, mut fresh) = (0, ROWS);
            while !stop.load(Ordering::Relaxed) {
                row = (row + 7) % ROWS;
                let is_counted = increment(&cluster, table, row).is_ok();
                counted.fetch_add(u64::from(is_counted), Ordering::Relaxed);
                if fresh < 2 * ROWS {
                    let is_inserted = insert(&cluster, table, fresh, row % 2 == 0).is_ok();
                    inserted.fetch_add(u64::from(is_inserted), Ordering::Relaxed);
                    // An insert that failed may have taken effect.
                    fresh += 1;
                }
            }
        });
        let _stop = Stop(&stop);
        // However few turns the writer gets, it has written between two losses.
        let await_more = |count: &AtomicU64| {
            let before = count.load(Ordering::Relaxed);
            assert!(eventually_within(PATIENCE, || count.load(Ordering::Relaxed) > before));
        };
        await_more(&inserted);
        for memory_node in [1, 0, 2] {
            lose(&cluster, memory_node);
            give_back(&cluster, memory_node);
            await_standing(&cluster, memory_node, MemoryStanding::Serving);
            await_more(&counted);
        }
    });
    let counted = counted.into_inner();
    cluster.settle().expect("no compute node fails");
    assert_eq!(cluster.memory_status().expect("it answers").copies, [3, 3, 3]);
    assert_clean(&cluster);
    let before = rows(&cluster, table);
    let first = PrimaryKey::from(ROWS);
    let sum: u64 = before.iter().filter(|(key, _)| *key < first).map(|(_, value)| value).sum();
    assert!(sum >= counted, "{counted} were reported, and {sum} are there");

    // Filled copies serve reads: the other memory nodes are lost.
    lose(&cluster, 1);
    lose(&cluster, 0);
    cluster.settle().expect("no compute node fails");
    assert_eq!(rows(&cluster, table), before);
    for row in 0..ROWS {
        increment(&cluster, table, row).expect("nothing stands in its way");
    }
    cluster.settle().expect("no compute node fails");
    assert_clean(&cluster);
    stop_clean(cluster);
}

/// I180: the new process of a memory node starts without fences, so nodes are fenced there however
/// long ago they were expelled.
#[test]
fn whoever_is_out_is_fenced_at_a_memory_node_that_returns() {
    let (cluster, _) = with_zeroes(small().compute_nodes(3).replicas(2).lease(Some(lease())), ROWS);
    cluster.kill(2);
    let fence = |memory_node: u16| {
        let refused = cluster.local_fabric().refused_below(NodeId(memory_node), NodeId(3 + 2));
        refused.expect("this fabric tells").0
    };
    assert!(eventually_within(PATIENCE, || fence(1) > 1), "it is recovered");
    lose(&cluster, 1);
    give_back(&cluster, 1);
    await_standing(&cluster, 1, MemoryStanding::Serving);
    assert!(fence(0) > 1 && fence(1) > 1, "{} {}", fence(0), fence(1));
    stop_clean(cluster);
}

/// I134: old memory is not taken for new, however often it is looked at; a new process's is.
#[test]
fn who_comes_back_as_it_was_is_not_used_before_it_is_made_anew() {
    let (cluster, table) = loaded(2);
    lose(&cluster, 1);
    cluster.settle().expect("no compute node fails");
    (0..ROWS).for_each(|row| _ = increment(&cluster, table, row).expect("it commits"));
    let fabric = cluster.local_fabric();
    fabric.set_reachable(NodeId(1), true).expect("there is such a node");
    let standing = || cluster.memory_status().expect("it answers").nodes[1];
    assert!(
        !eventually_within(Duration::from_secs(1), || standing() != MemoryStanding::Lost),
        "{:?}",
        standing()
    );

    fabric.set_reachable(NodeId(1), false).expect("there is such a node");
    give_back(&cluster, 1);
    await_standing(&cluster, 1, MemoryStanding::Serving);
    lose(&cluster, 2);
    cluster.settle().expect("no compute node fails");
    (0..ROWS).for_each(|row| assert_eq!(increment(&cluster, table, row), Ok(1), "row {row}"));
    stop_clean(cluster);
}
