//! Dropped tables: nothing of them is left, and their memory serves others (decision 0084).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use lotus::{
    Cluster, ClusterBuilder, ClusterError, Inline, Isolation, PrimaryKey, TableId, TableSpec,
    Transaction, TxnError,
};

const ROW_BYTES: usize = 4000;

/// Two compute nodes with two coordinators each, and little memory on two memory nodes.
fn cramped() -> ClusterBuilder {
    small().memory_limit(12 << 20).memory_nodes(2).replicas(2).compute_nodes(2).threads(2)
}

/// Large rows that lie in slabs of their own.
fn apart(name: String) -> TableSpec {
    TableSpec::named(name).record_bytes(ROW_BYTES as u32).capacity(500).inline(Inline::Never)
}

/// Inserts rows until memory is full. Returns the number of rows.
fn fill(cluster: &Cluster, table: TableId) -> u64 {
    let mut rows = 0_u64;
    loop {
        let body = async move |txn: &mut Transaction| -> Result<(), TxnError> {
            let byte = [table.0 as u8; ROW_BYTES];
            match txn.ordered(table) {
                Ok(mut ordered) => ordered.insert(&rows.to_be_bytes(), &byte).await,
                Err(_) => txn.insert(table, rows, &byte).map(drop),
            }
        };
        match outcome(cluster.run(Isolation::Serializable, body)) {
            Ok(_) => rows += 1,
            Err(TxnError::TableFull { .. }) => return rows,
            Err(error) => panic!("row {rows}: {error}"),
        }
    }
}

/// Number of a table's rows, each checked.
fn rows_of(cluster: &Cluster, table: TableId) -> u64 {
    let mut rows = 0;
    for row in cluster.scan(table) {
        let (_, value) = row.expect("it serves");
        assert!(value.iter().all(|byte| *byte == table.0 as u8), "a row of another table");
        rows += 1;
    }
    rows
}

fn allocated(cluster: &Cluster) -> u64 {
    let figures = done(cluster.memory_figures(0));
    figures.groups.iter().map(|group| group.allocated_bytes).sum()
}

/// Fills memory with one table after the other, each of which is dropped for the next.
fn all_memory_serves_each(builder: ClusterBuilder, spec: impl Fn(String) -> TableSpec) {
    let cluster = start(builder);
    let empty = allocated(&cluster);
    let mut least = None;
    for round in 0..4 {
        let name = format!("table {round}");
        let table = cluster.create_table(spec(name.clone())).expect("there is room");
        let rows = fill(&cluster, table);
        let least = *least.get_or_insert(rows);
        // Half-used slabs of other coordinators differ from round to round.
        assert!(rows > 100 && rows >= least * 8 / 10, "round {round}: {rows} rows, {least} before");
        assert_eq!(rows_of(&cluster, table), rows);
        assert_clean(&cluster);
        cluster.drop_table(&name).expect("all nodes answer");
        assert_eq!(allocated(&cluster), empty, "all of it is given back");
        assert_eq!(cluster.table(&name), None);
    }
    stop_clean(cluster);
}

#[test]
fn the_memory_of_a_dropped_table_serves_the_next() {
    all_memory_serves_each(cramped(), apart);
}

#[test]
fn the_memory_of_a_dropped_table_serves_the_next_where_nodes_are_watched() {
    all_memory_serves_each(cramped().lease(Some(lease())), apart);
}

#[test]
fn the_memory_of_a_dropped_ordered_table_serves_the_next() {
    all_memory_serves_each(cramped(), |name| apart(name).inline(Inline::Auto).ordered());
}

#[test]
fn indexes_get_the_memory_of_dropped_ones() {
    let cluster = start(cramped());
    let spec = |round| TableSpec::named(format!("t{round}")).record_bytes(16).capacity(30_000);
    for round in 0..5 {
        let table = cluster.create_table(spec(round)).expect("there is room for one");
        let insert = async move |txn: &mut Transaction| -> Result<(), TxnError> {
            (0..64_u64).try_for_each(|key| txn.insert(table, key, &[1; 16]).map(drop))
        };
        done(cluster.run(Isolation::Serializable, insert));
        assert_keys(&cluster, table, 0..64);
        let further = cluster.create_table(spec(100 + round).capacity(100_000));
        assert!(matches!(further, Err(ClusterError::OutOfMemory { .. })), "{further:?}");
        cluster.drop_table(&format!("t{round}")).expect("all nodes answer");
    }
    stop_clean(cluster);
}

#[test]
fn a_dropped_table_is_unknown_and_its_name_is_free() {
    let cluster = start(cramped());
    let first = cluster.create_table(NUMBERS).expect("there is room");
    let missing = cluster.drop_table("letters");
    assert!(matches!(missing, Err(ClusterError::NoSuchTable(name)) if name == "letters"));
    cluster.drop_table("numbers").expect("all nodes answer");
    let again = cluster.drop_table("numbers");
    assert!(matches!(again, Err(ClusterError::NoSuchTable(_))), "{again:?}");
    assert!(cluster.open_table("numbers").is_err() && cluster.tables().is_empty());

    let second = cluster.create_table(NUMBERS).expect("there is room");
    assert_ne!(first, second, "a number belongs to one table for ever");
    let insert = |table| {
        let body = async move |txn: &mut Transaction| txn.insert(table, 1, &[1; 8]).map(drop);
        outcome(cluster.run(Isolation::Serializable, body)).map(drop)
    };
    assert_eq!(insert(first), Err(TxnError::UnknownTable(first)));
    assert_eq!(insert(second), Ok(()));
    assert!(cluster.scan(first).next().is_some_and(|row| row.is_err()));
    let row = |_, _: &mut Vec<u8>| PrimaryKey::from(1);
    let loaded = cluster.load(first, 1, &row, &Default::default());
    assert!(matches!(loaded, Err(ClusterError::UnknownTable(_))), "{loaded:?}");
    stop_clean(cluster);
}

/// Sets a flag for other threads, also if this one panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Transfers within one table go on while others are filled and dropped: their sum stays, and no
/// row of a table is ever seen in another.
#[test]
fn transactions_on_other_tables_go_on() {
    const ROWS: u64 = 32;
    let (cluster, bank) = with_zeroes(cramped().lease(Some(lease())), ROWS);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_the_end = SetOnDrop(&over);
        let transfer = || {
            let mut done = 0_u64;
            while !over.load(Ordering::Relaxed) {
                let (from, to) = (done % ROWS, (done + 7) % ROWS);
                let body = async move |txn: &mut Transaction| -> Result<(), TxnError> {
                    let [from, to] = [txn.add_rw(bank, from)?, txn.add_rw(bank, to)?];
                    txn.execute().await?;
                    let [less, more] = [from, to].map(|item| number_of(txn, item));
                    txn.put(from, &less.expect("it is there").wrapping_sub(1).to_le_bytes())?;
                    txn.put(to, &more.expect("it is there").wrapping_add(1).to_le_bytes())
                };
                match outcome(cluster.run(Isolation::Serializable, body)) {
                    Ok(_) => done += 1,
                    // All transactions stop while a table is let go of.
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
            done
        };
        let clients = [(); 3].map(|()| scope.spawn(transfer));
        for round in 0..5 {
            let name = format!("table {round}");
            let table = cluster.create_table(apart(name.clone())).expect("there is room");
            let rows = fill(&cluster, table);
            assert_eq!(rows_of(&cluster, table), rows);
            // Somebody writes to it while it is dropped.
            let writer = scope.spawn({
                let cluster = &cluster;
                move || loop {
                    let body = async move |txn: &mut Transaction| -> Result<(), TxnError> {
                        let item = txn.add_rw(table, 3)?;
                        txn.execute().await?;
                        txn.put(item, &[table.0 as u8; ROW_BYTES])
                    };
                    match outcome(cluster.run(Isolation::Serializable, body)) {
                        Err(TxnError::UnknownTable(unknown)) if unknown == table => break,
                        Err(error) if !error.is_retryable() => panic!("{error}"),
                        _ => {}
                    }
                }
            });
            cluster.drop_table(&name).expect("all nodes answer");
            writer.join().expect("it ends with the table");
        }
        over.store(true, Ordering::Relaxed);
        let done = clients.map(|client| client.join().expect("no transfer fails for good"));
        assert!(done.iter().all(|transfers| *transfers > 0), "{done:?}");
    });
    let mut sum = 0_u64;
    for row in cluster.scan(bank) {
        sum = sum.wrapping_add(number(&row.expect("nothing runs").1));
    }
    assert_eq!(sum, 0);
    stop_clean(cluster);
}

#[test]
fn a_scan_of_a_table_that_is_dropped_ends_with_an_error() {
    let cluster = start(cramped());
    let table = cluster.create_table(apart("rows".into())).expect("there is room");
    let rows = fill(&cluster, table);
    let mut scan = cluster.scan(table);
    scan.next().expect("there are rows").expect("it serves");
    cluster.drop_table("rows").expect("all nodes answer");
    let other = cluster.create_table(apart("others".into())).expect("there is room");
    fill(&cluster, other);
    let mut seen = 1;
    let end = loop {
        match scan.next() {
            Some(Ok((_, value))) => {
                assert!(value.iter().all(|byte| *byte == table.0 as u8));
                seen += 1;
            }
            end => break end,
        }
    };
    assert!(matches!(end, Some(Err(_))) && seen < rows, "{end:?} after {seen} of {rows}");
    drop(scan);
    stop_clean(cluster);
}

/// A node dies with the log entries of a table that is dropped then, and of one that was before.
#[test]
fn nodes_that_die_and_return_leave_nothing_of_dropped_tables() {
    let cluster = start(cramped().compute_nodes(3).lease(Some(lease())));
    for round in 0..4 {
        let name = format!("table {round}");
        let table = cluster.create_table(apart(name.clone())).expect("there is room");
        fill(&cluster, table);
        if round % 2 == 0 {
            cluster.kill(1);
            cluster.drop_table(&name).expect("the others do it");
        } else {
            cluster.drop_table(&name).expect("all nodes answer");
            cluster.kill(1);
        }
        // Until its coordinators have ended it is given transactions, which end with it.
        eventually(|| !cluster.node_figures(1).serves);
        let next = cluster.create_table(apart(format!("next {round}"))).expect("there is room");
        let rows = fill(&cluster, next);
        eventually(|| cluster.restart(1).expect("there is a lease"));
        eventually(|| cluster.node_figures(1).serves);
        assert_eq!(rows_of(&cluster, next), rows);
        cluster.drop_table(&format!("next {round}")).expect("all nodes answer");
    }
    stop_clean(cluster);
}

/// Clients remember the numbers of tables, also of those that are dropped.
#[test]
fn tables_of_a_snapshot_keep_their_numbers() {
    let cluster = start(cramped());
    let tables: Vec<TableId> = (0..6)
        .map(|number| {
            let spec =
                TableSpec::named(format!("t{number}")).record_bytes(8).capacity(10).shards(8);
            let table = cluster.create_table(spec).expect("there is room");
            let insert = async move |txn: &mut Transaction| -> Result<(), TxnError> {
                txn.insert(table, 1, &[table.0 as u8; 8]).map(drop)
            };
            done(cluster.run(Isolation::Serializable, insert));
            table
        })
        .collect();
    for dropped in [0, 2, 3, 5] {
        cluster.drop_table(&format!("t{dropped}")).expect("all nodes answer");
    }
    let path = std::env::temp_dir().join(format!("lotus-drops-{}", std::process::id()));
    cluster.snapshot(&path).expect("nothing runs");
    stop_clean(cluster);

    let again = start(cramped());
    let restored = again.restore(&path);
    std::fs::remove_file(&path).expect("it was written");
    assert_eq!(restored.expect("it is sound").tables, 2);
    let known: Vec<TableId> = again.tables().into_iter().map(|(table, _)| table).collect();
    assert_eq!(known, [tables[1], tables[4]]);
    known.iter().for_each(|table| assert_eq!(rows_of(&again, *table), 1));
    let next = again.create_table(NUMBERS.shards(8)).expect("there is room");
    assert_eq!(next, TableId(6), "no number is used twice");
    stop_clean(again);
}
