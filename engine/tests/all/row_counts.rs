//! Estimates of a table's rows from its index: exact for small tables, close for large ones, and
//! the same after a restart; and the memory that they take.

use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, Inline, Isolation, PrimaryKey, RowCounts, TableId, TableRows, TableSpec, Transaction,
    TxnError,
};

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

const SORTED: TableSpec =
    TableSpec::new("sorted").key_bytes(8).record_bytes(100).capacity(4_000).shards(64).ordered();

/// Puts or deletes rows of an ordered table, some in a transaction.
fn change(cluster: &Cluster, table: TableId, rows: impl Iterator<Item = u64>, puts: bool) {
    let rows: Vec<u64> = rows.collect();
    for some in rows.chunks(20) {
        let some = some.to_vec();
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            let mut sorted = txn.ordered(table)?;
            for row in &some {
                match puts {
                    true => sorted.put(&row.to_be_bytes(), &[*row as u8; 100]).await?,
                    false => assert!(sorted.delete(&row.to_be_bytes()).await?),
                }
            }
            Ok::<(), TxnError>(())
        }));
    }
}

#[test]
fn of_an_ordered_table_the_rows_are_counted_and_not_the_nodes() {
    let (cluster, table) = with_table(small().compute_nodes(2), SORTED);
    let counted = |rows| vec![TableRows { table, rows, is_estimate: false }];
    assert_eq!(done(cluster.row_counts(0)), counted(0));
    change(&cluster, table, 0..1, true);
    assert_eq!(done(cluster.row_counts(0)), counted(1), "the root is a leaf");
    change(&cluster, table, (0..1_500).rev(), true);
    assert_eq!(done(cluster.row_counts(1)), counted(1_500));
    change(&cluster, table, (0..1_500).filter(|row| row % 3 != 0), false);
    assert_eq!(done(cluster.row_counts(1)), counted(500));
    stop_clean(cluster);
}

#[test]
fn rows_of_a_large_ordered_table_are_counted_within_a_tenth() {
    const ROWS: u64 = 80_000;
    let cluster = start(small().memory_limit(160 << 20));
    let spec = SORTED.capacity(ROWS).shards(4096);
    let table = cluster.create_table(spec).expect("there is room");
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend([7; 100]);
        PrimaryKey::from(row)
    };
    cluster.load(table, ROWS, &row, &Default::default()).expect("they fit");
    for _ in 0..4 {
        let counts = done(cluster.row_counts(0));
        let TableRows { rows, is_estimate, .. } = counts[0];
        assert!(is_estimate && rows.abs_diff(ROWS) < ROWS / 10, "{rows} of {ROWS}");
    }
    stop_clean(cluster);
}

#[test]
fn a_recent_count_is_used_again_and_tells_its_age() {
    let (cluster, table) = with_zeroes(small(), 10);
    let recent = |limit| done(cluster.recent_row_counts(0, limit));
    let rows = |counts: &RowCounts| counts.tables[0].rows;
    let (none, hour) = (Duration::ZERO, Duration::from_secs(3600));
    let first = recent(hour);
    assert_eq!(rows(&first), 10);
    done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        txn.insert(table, 99, &[7; 8])?;
        Ok::<(), TxnError>(())
    }));
    let again = recent(hour);
    assert!(rows(&again) == 10 && again.age > first.age, "{again:?}");
    assert!(eventually_within(hour, || rows(&recent(none)) == 11));
    assert_eq!(rows(&recent(hour)), 11, "every count is kept");
    stop_clean(cluster);
}

#[test]
fn the_memory_of_a_table_is_told_by_its_use() {
    let cluster = start(small());
    let numbers = cluster.create_table(NUMBERS_APART).expect("there is room");
    let crowded = TableSpec::new("crowded").record_bytes(8).capacity(1).shards(1);
    let crowded = cluster.create_table(crowded.inline(Inline::Auto)).expect("there is room");
    let of = |table: TableId| {
        let figures = done(cluster.memory_figures(0));
        let sum: u64 = figures.tables.iter().map(|table| table.allocated_bytes).sum();
        let groups: u64 = figures.groups.iter().map(|group| group.allocated_bytes).sum();
        assert_eq!(sum, groups, "every slab is of a table");
        let free = |group: &lotus::GroupMemory| group.free_bytes() + group.allocated_bytes;
        assert!(figures.groups.iter().all(|group| free(group) == group.limit_bytes));
        let nodes: Vec<_> = figures.nodes.iter().flatten().collect();
        assert_eq!(nodes.len(), 3);
        assert!(nodes.iter().all(|node| node.free_bytes() == node.limit_bytes - sum), "{nodes:?}");
        let found = figures.tables.into_iter().find(|found| found.table == table);
        let found = found.expect("it is there");
        let parts = found.index_bytes + found.overflow_bytes + found.record_bytes;
        assert_eq!(parts, found.allocated_bytes);
        found
    };
    let (empty, crowded_before) = (of(numbers), of(crowded));
    assert!(empty.index_bytes > 0 && empty.overflow_bytes == 0 && empty.record_bytes == 0);
    for row in 0..200 {
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            txn.insert(numbers, row, &[7; 8])?;
            txn.insert(crowded, row, &[7; 8])?;
            Ok::<(), TxnError>(())
        }));
    }
    let (filled, grown) = (of(numbers), of(crowded));
    assert_eq!(filled.index_bytes, empty.index_bytes);
    assert!(filled.record_bytes > 0 && filled.free_here_bytes > 0, "{filled:?}");
    assert_eq!(grown.index_bytes, crowded_before.index_bytes);
    assert!(grown.overflow_bytes > 0 && grown.record_bytes == 0, "{grown:?}");
    stop_clean(cluster);
}
