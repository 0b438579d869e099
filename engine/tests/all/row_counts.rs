//! Estimates of a table's rows from its index: exact for small tables, close for large ones, and
//! the same after a restart.

use std::time::Duration;

use crate::common::*;
use lotus::{Cluster, Isolation, PrimaryKey, TableId, TableSpec, Transaction};

/// Returns the estimate of compute node `node` for the only table.
#[track_caller]
fn count(cluster: &Cluster, node: usize, table: TableId) -> u64 {
    let counts = done(cluster.row_counts(node));
    assert_eq!((counts.len(), counts[0].table), (1, table));
    counts[0].rows
}

#[test]
fn rows_of_a_small_table_are_counted_exactly_wherever_they_are_inserted_and_deleted() {
    let lease = Duration::from_millis(400);
    let (cluster, table) = with_zeroes(small().compute_nodes(2).lease(Some(lease)), 700);
    assert_eq!([0, 1].map(|node| count(&cluster, node, table)), [700; 2]);
    done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        for key in 0..300 {
            let item = txn.add_rw(table, key)?;
            txn.delete(item)?;
        }
        Ok(())
    }));
    // Over tombstones, or in purged slots.
    done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        for key in 0..50 {
            txn.insert(table, key, &[7; 8])?;
        }
        Ok(())
    }));
    assert_eq!([0, 1].map(|node| count(&cluster, node, table)), [450; 2]);
    // A restarted node has kept no counts.
    let returned = || cluster.restart(0).expect("there is a lease, and memory answers");
    assert!(eventually_within(Duration::from_secs(60), returned));
    assert_eq!([0, 1].map(|node| count(&cluster, node, table)), [450; 2]);
    stop_clean(cluster);
}

#[test]
fn rows_of_a_large_table_are_counted_within_a_tenth() {
    const ROWS: u64 = 60_000;
    let cluster = start(small().memory_limit(128 << 20));
    let spec = TableSpec::new("many").record_bytes(8).capacity(2 * ROWS);
    let table = cluster.create_table(spec).expect("there is room");
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend(row.to_le_bytes());
        PrimaryKey::from(row)
    };
    cluster.load(table, ROWS, &row, &Default::default()).expect("they fit");
    // Four standard errors, if a bucket has two rows.
    for _ in 0..8 {
        let rows = count(&cluster, 0, table);
        assert!(rows.abs_diff(ROWS) < ROWS / 10, "{rows} of {ROWS}");
    }
    stop_clean(cluster);
}
