//! Memory nodes that are lost while transactions run.
//!
//! The simulator tests what may go wrong at which instant (`proof/sim/scenarios/`). Here threads
//! really wait for answers that never come, and nothing depends on when.

use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, ClusterError, Isolation, MemoryStanding, PrimaryKey, TableId, TableSpec, Transaction,
    TxnError,
};
use lotus_fabric::ids::NodeId;

const ROWS: u64 = 64;

/// Starts three memory nodes with three copies of everything, and rows of zeroes.
fn loaded() -> (Running, TableId) {
    with_zeroes(small().compute_nodes(2).replicas(3).lease(Some(lease())), ROWS)
}

fn lose(cluster: &Cluster, memory_node: u16) {
    let fabric = cluster.local_fabric();
    fabric.set_reachable(NodeId(memory_node), false).expect("there is such a node");
}

/// Adds one to a row, at least once. Returns the previous number.
fn increment(cluster: &Cluster, table: TableId, row: u64) -> Result<u64, TxnError> {
    let body = async move |txn: &mut Transaction| add_one(txn, table, row).await;
    cluster.run(Isolation::Serializable, body).wait().map(|committed| committed.value)
}

/// Inserts a row that no other insert uses.
fn insert(cluster: &Cluster, table: TableId, row: u64) -> Result<(), TxnError> {
    cluster
        .run(Isolation::Serializable, async move |txn: &mut Transaction| {
            txn.insert(table, row, &row.to_le_bytes())?;
            Ok(())
        })
        .wait()
        .map(drop)
}

fn standing(cluster: &Cluster) -> Vec<MemoryStanding> {
    cluster.memory_status().expect("the authority is in this process").nodes
}

/// H3, H15, H23: with each memory node that is lost transactions go on, earlier rows stay, new ones
/// fit beside them, and the audit passes. The last copies are not given up: their loss is reported
/// as such, and is over when their memory node comes back.
#[test]
fn transactions_go_on_with_every_copy_that_is_left() {
    use MemoryStanding::{Lost, OutOfReach, Serving};
    let (cluster, table) = loaded();
    let mut counted = 0;
    let mut inserted = 0;
    let mut left = vec![Serving; 3];
    for lost in [0, 2] {
        lose(&cluster, lost);
        left[usize::from(lost)] = Lost;
        for row in 0..ROWS {
            // At the moment of the loss a commit may take longer than its caller waits.
            counted += u64::from(increment(&cluster, table, row).is_ok());
        }
        let settled = eventually_within(PATIENCE, || standing(&cluster) == left);
        assert!(settled, "{:?}", standing(&cluster));
        cluster.settle().expect("no compute node fails");
        for row in 0..ROWS {
            increment(&cluster, table, row).expect("nothing stands in its way");
            insert(&cluster, table, ROWS + inserted).expect("there is room");
            inserted += 1;
        }
        counted += ROWS;
        assert_clean(&cluster);
    }
    let mut sum = 0;
    let mut rows = 0;
    let mut visit = |key: &PrimaryKey, value: &[u8], _| {
        rows += 1;
        sum += if *key < PrimaryKey::from(ROWS) { number(value) } else { 0 };
    };
    cluster.audit_scan(table, &mut visit).expect("the last memory node answers");
    assert!(sum >= counted, "{counted} were reported, and {sum} are there");
    assert_eq!(rows, ROWS + inserted);
    assert_eq!(cluster.memory_status().expect("it answers").copies, [1, 1, 1]);

    lose(&cluster, 1);
    left[1] = OutOfReach;
    let noticed = eventually_within(PATIENCE, || standing(&cluster) == left);
    assert!(noticed, "{:?}", standing(&cluster));
    let read = |row: u64| {
        let reading = cluster.run_read_only(async move |txn: &mut Transaction| {
            let item = txn.add_ro(table, row)?;
            txn.execute().await?;
            Ok(number_of(txn, item))
        });
        reading.wait().map(|committed| committed.value)
    };
    let told = eventually_within(PATIENCE, || match read(3) {
        Err(TxnError::DataLost { memory_node: 1 }) => true,
        Err(TxnError::Timeout) => false,
        other => panic!("it is no answer that {other:?}"),
    });
    assert!(told, "its loss is not reported");
    assert!(matches!(cluster.audit(), Err(ClusterError::Unreachable(_))));
    assert_eq!(cluster.memory_status().expect("it answers").copies, [0, 0, 0]);

    cluster.local_fabric().set_reachable(NodeId(1), true).expect("there is such a node");
    let back = eventually_within(PATIENCE, || increment(&cluster, table, 3).is_ok());
    assert!(back, "{:?}", standing(&cluster));
    stop_clean(cluster);
}

/// A memory node that comes back after it was given up is not used.
#[test]
fn who_was_lost_and_comes_back_is_not_asked_again() {
    let (cluster, table) = loaded();
    lose(&cluster, 1);
    let left = [MemoryStanding::Serving, MemoryStanding::Lost, MemoryStanding::Serving];
    let lost = eventually_within(PATIENCE, || standing(&cluster) == left);
    assert!(lost, "{:?}", standing(&cluster));
    cluster.settle().expect("no compute node fails");
    (0..ROWS).for_each(|row| _ = increment(&cluster, table, row).expect("it commits"));
    cluster.local_fabric().set_reachable(NodeId(1), true).expect("there is such a node");
    (0..ROWS).for_each(|row| assert_eq!(increment(&cluster, table, row), Ok(1), "row {row}"));
    assert_eq!(standing(&cluster), left);
    stop_clean(cluster);
}

/// Regression: a restore was cut short if a memory node was lost between two of its tables. Loading
/// waited for the loss to be over, and creating did not.
#[test]
fn a_table_that_is_created_while_a_memory_node_is_lost_waits() {
    let (cluster, _) = loaded();
    let taken = || cluster.create_table(TableSpec::new("taken").record_bytes(8).capacity(10));
    taken().expect("there is room");
    let left = [MemoryStanding::Serving, MemoryStanding::Lost, MemoryStanding::Serving];
    lose(&cluster, 1);
    let lost = eventually_within(PATIENCE, || {
        // It is looked up after the wait.
        let refused = taken().expect_err("there is one of that name");
        assert!(matches!(refused, ClusterError::TableExists(_)), "{refused}");
        standing(&cluster) == left
    });
    assert!(lost, "{:?}", standing(&cluster));
    stop_clean(cluster);
}

/// A slab that cannot be entered on every replica is kept and entered later. Each attempt that
/// failed over that, and was retried, had taken another one meanwhile: a memory node that was away
/// for a second cost hundreds of slabs.
#[test]
fn who_waits_for_a_slab_takes_no_other() {
    let small = small().memory_nodes(2).replicas(2).coroutines(1).memory_limit(256 << 20);
    let cluster = start(small.commit_timeout(Duration::from_millis(50)));
    // One group has all of it; each row takes a slab of its own.
    let spec = TableSpec::new("large").record_bytes(4000).capacity(1000).shards(1);
    let table = cluster.create_table(spec).expect("there is room");
    let before = cluster.memory_use().expect("both answer").replica_bytes;
    lose(&cluster, 1);
    let attempt = |row: u64| {
        outcome(cluster.submit(FIRST, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.insert(table, row, &[7; 4000])?;
            txn.commit().await
        }))
    };
    for row in 0..20 {
        assert_eq!(attempt(row), Err(TxnError::Timeout), "row {row}");
    }
    cluster.local_fabric().set_reachable(NodeId(1), true).expect("there is such a node");
    assert!(eventually_within(PATIENCE, || attempt(20).is_ok()));
    let taken = cluster.memory_use().expect("both answer").replica_bytes - before;
    assert_eq!(taken, 256 << 10, "one slab");
    stop_clean(cluster);
}
