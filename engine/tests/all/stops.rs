//! Long work beside changes for which all transactions of a cluster stop: memory nodes that are
//! lost and filled, and tables that are dropped.
//!
//! A snapshot file failed when the cluster stopped for longer than five attempts took, a few
//! milliseconds: an application that drops tables often had no backups. A load held up each of
//! these changes until its last row.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, ClusterError, Inline, Isolation, MemoryStanding, Nanos, PrimaryKey, ScanError,
    SnapshotError, SnapshotInfo, SnapshotLabel, SnapshotVisitor, TableId, TableSpec, Transaction,
    read_snapshot,
};
use lotus_fabric::ids::NodeId;

/// Lease, long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(1);
/// Limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: u64 = 2_000;

/// Rows of which a snapshot file or a scan has many pages.
fn wide(name: &'static str) -> TableSpec {
    TableSpec::new(name).record_bytes(1_000).capacity(ROWS).inline(Inline::Never)
}

fn with_rows(spec: TableSpec) -> (Running, TableId) {
    let (cluster, table) =
        with_table(small().compute_nodes(2).replicas(2).lease(Some(LEASE)), spec);
    load(&cluster, table);
    (cluster, table)
}

fn row(number: u64, value: &mut Vec<u8>) -> PrimaryKey {
    value.extend([number as u8; 1_000]);
    number.into()
}

fn load(cluster: &Cluster, table: TableId) {
    cluster.load(table, ROWS, &row, &AtomicU64::new(0)).expect("they fit");
}

fn await_standing(cluster: &Cluster, place: usize, standing: MemoryStanding) {
    let now = || cluster.memory_status().expect("the authority is in this process").nodes;
    assert!(eventually_within(PATIENCE, || now()[place] == standing), "{:?}", now());
}

/// Loses a memory node; with `returns`, has it filled again.
fn lose(cluster: &Cluster, place: u16, returns: bool) {
    let fabric = cluster.local_fabric();
    fabric.set_reachable(NodeId(place), false).expect("there is such a node");
    await_standing(cluster, place.into(), MemoryStanding::Lost);
    if returns {
        fabric.wipe(NodeId(place)).expect("there is such a node");
        fabric.set_reachable(NodeId(place), true).expect("there is such a node");
        await_standing(cluster, place.into(), MemoryStanding::Serving);
    }
}

/// Makes tables and drops them, until it is told to stop. Returns how many.
fn drop_tables(cluster: &Cluster, over: &AtomicBool) -> u64 {
    let mut dropped = 0;
    while !over.load(Ordering::Relaxed) {
        let spec = TableSpec::new("further").record_bytes(16).capacity(10).ordered();
        // Not while another change is under way.
        if cluster.create_table(spec).is_ok() {
            cluster.drop_table("further").expect("it is there");
            dropped += 1;
        }
    }
    dropped
}

/// Sink of a snapshot that has something done while it is written, once.
struct During<F: FnMut()>(Vec<u8>, Option<F>);

impl<F: FnMut()> std::io::Write for During<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() > 100 << 10
            && let Some(mut change) = self.1.take()
        {
            change();
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Tables and rows of a file, by the tables' names.
#[derive(Default)]
struct Tables(Vec<(String, u64)>);

impl SnapshotVisitor for Tables {
    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        self.0.push((spec.name.into_owned(), 0));
        Ok(())
    }

    fn row(&mut self, _: PrimaryKey, _: &[u8]) -> Result<(), SnapshotError> {
        self.0.last_mut().expect("tables come first").1 += 1;
        Ok(())
    }
}

/// Takes a snapshot, and has something done each time that a part of it is written, at most `most`
/// times. Returns the tables of the file, and how often it was begun.
fn snapshot_during(
    cluster: &Cluster,
    most: u64,
    change: impl Fn(),
) -> Result<(Tables, SnapshotInfo, u64), SnapshotError> {
    let begun = AtomicU64::new(0);
    let open = || {
        let changes = begun.fetch_add(1, Ordering::Relaxed) < most;
        Ok(During(Vec::new(), changes.then_some(&change)))
    };
    let label = |_| Ok(SnapshotLabel { taken: Nanos(1), ..SnapshotLabel::default() });
    let (During(bytes, _), info) = cluster.snapshot_with(open, label, Vec::new)?;
    let mut tables = Tables::default();
    assert_eq!(read_snapshot(&mut &bytes[..], &mut tables).expect("it is whole"), info);
    Ok((tables, info, begun.into_inner()))
}

/// Takes a snapshot in one attempt, and has something done when a part of it is written. Returns
/// the tables of the file, and whether it was done.
fn copied_during(cluster: &Cluster, change: impl FnMut()) -> Result<(Tables, bool), SnapshotError> {
    let mut sink = During(Vec::new(), Some(change));
    let label = |_| Ok(SnapshotLabel { taken: Nanos(1), ..SnapshotLabel::default() });
    let info = cluster.start_snapshot(FIRST, 1).write(cluster, &mut sink, &label, &Vec::new)?;
    let During(bytes, left) = sink;
    let mut tables = Tables::default();
    assert_eq!(read_snapshot(&mut &bytes[..], &mut tables).expect("it is whole"), info);
    Ok((tables, left.is_none()))
}

#[test]
fn a_snapshot_goes_on_behind_every_stop_of_the_cluster() {
    let (cluster, _) = with_rows(wide("rows"));
    for change in [0, 1, 2] {
        let stop = || match change {
            0 => {
                let further = TableSpec::new("further").record_bytes(16).capacity(10);
                cluster.create_table(further).expect("there is room");
                cluster.drop_table("further").expect("it is there");
            }
            1 => lose(&cluster, 2, true),
            _ => lose(&cluster, 1, false),
        };
        // In a slot of one compute node: another one cannot hide an error by beginning anew.
        let (tables, begun) = copied_during(&cluster, stop).expect("it goes on");
        assert_eq!((tables.0, begun), (vec![("rows".to_owned(), ROWS)], true), "change {change}");
    }
    stop_clean(cluster);
}

#[test]
fn snapshots_are_taken_while_tables_are_dropped_all_the_time() {
    let (cluster, _) = with_rows(wide("rows"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let dropper = scope.spawn(|| drop_tables(&cluster, &over));
        for _ in 0..5 {
            let (tables, ..) = snapshot_during(&cluster, 0, || {}).expect("it goes on");
            assert!(tables.0.contains(&("rows".to_owned(), ROWS)), "{:?}", tables.0);
        }
        over.store(true, Ordering::Relaxed);
        assert!(dropper.join().expect("it does not panic") > 0);
    });
    stop_clean(cluster);
}

/// A table that is dropped in the middle of its rows: the file begins anew, without it.
#[test]
fn a_table_that_is_dropped_while_it_is_copied_is_left_out() {
    let (cluster, _) = with_rows(wide("first"));
    let second = cluster.create_table(wide("second")).expect("there is room");
    load(&cluster, second);
    let drop_first = || cluster.drop_table("first").expect("it is there");
    let (tables, info, begun) = snapshot_during(&cluster, 1, drop_first).expect("it goes on");
    assert_eq!((tables.0, begun), (vec![("second".to_owned(), ROWS)], 2));
    assert_eq!((info.tables, info.rows), (1, ROWS));
    stop_clean(cluster);
}

/// The compute node that reads is killed: another one of this process begins anew.
#[test]
fn a_snapshot_is_begun_anew_at_another_compute_node() {
    let (cluster, _) = with_rows(wide("rows"));
    // It is not known which one reads: the first may be the other one.
    let alive = AtomicU64::new(2);
    let kill = || {
        if alive.fetch_sub(1, Ordering::Relaxed) == 2 {
            cluster.kill(0);
        }
    };
    for _ in 0..2 {
        let (tables, ..) = snapshot_during(&cluster, 1, kill).expect("the other one serves");
        assert_eq!(tables.0, [("rows".to_owned(), ROWS)]);
    }
    drop(cluster);
}

/// A scan tells that its table was dropped, and goes on behind other stops.
#[test]
fn scans_go_on_behind_stops_and_know_of_dropped_tables() {
    let (cluster, table) = with_rows(wide("rows"));
    let mut scan = cluster.scan(table);
    let mut rows = scan.next_page().expect("it begins").expect("there are rows").rows.len();
    lose(&cluster, 2, true);
    while let Some(page) = scan.next_page().expect("it goes on") {
        rows += page.rows.len();
    }
    assert_eq!(rows as u64, ROWS);
    let mut scan = cluster.scan(table);
    scan.next_page().expect("it begins").expect("there are rows");
    cluster.drop_table("rows").expect("it is there");
    let error = loop {
        match scan.next_page() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("there are more pages than may wait"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, ScanError::UnknownTable(table));
    stop_clean(cluster);
}

/// Loads a table while something else is done to the cluster, which must not wait for the load:
/// once the first rows have landed the others come slowly, until it is done.
fn load_beside(
    cluster: &Cluster,
    spec: TableSpec,
    change: impl FnOnce() + Send,
) -> Result<TableId, ClusterError> {
    let table = cluster.create_table(spec).expect("there is room");
    let (hurries, loaded) = (AtomicBool::new(false), AtomicU64::new(0));
    let source = |number: u64, value: &mut Vec<u8>| {
        if loaded.load(Ordering::Relaxed) > 0 && !hurries.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        row(number, value)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let begun = eventually_within(PATIENCE, || loaded.load(Ordering::Relaxed) > 0);
            change();
            let so_far = loaded.load(Ordering::Relaxed);
            hurries.store(true, Ordering::Relaxed);
            (begun, so_far)
        });
        let done = cluster.load(table, ROWS, &source, &loaded);
        let (begun, so_far) = other.join().expect("it does not panic");
        assert!(begun && so_far < ROWS, "the change waited for the load");
        done.map(|()| table)
    })
}

fn assert_loaded(cluster: &Cluster, table: TableId) {
    let mut rows = 0;
    for found in cluster.scan(table) {
        let (key, value) = found.expect("it serves");
        let number = u64::from_be_bytes(key.try_into().expect("keys are numbers"));
        let mut expected = Vec::new();
        row(number, &mut expected);
        assert_eq!(value, expected);
        rows += 1;
    }
    assert_eq!(rows, ROWS);
}

#[test]
fn tables_are_dropped_and_memory_nodes_filled_while_a_table_is_loaded() {
    let builder = small().compute_nodes(2).replicas(2).lease(Some(LEASE));
    let (cluster, _) = with_table(builder, NUMBERS);
    let drop_other = || cluster.drop_table("numbers").expect("it is there");
    let table = load_beside(&cluster, wide("beside a drop"), drop_other).expect("it goes on");
    assert_loaded(&cluster, table);
    let loses = || lose(&cluster, 2, true);
    let few = wide("beside a return").shards(8);
    let table = load_beside(&cluster, few, loses).expect("it goes on");
    assert_loaded(&cluster, table);
    let ordered = TableSpec::new("ordered").record_bytes(1_000).capacity(ROWS).ordered();
    let table = load_beside(&cluster, ordered, || lose(&cluster, 1, false)).expect("it goes on");
    assert_loaded(&cluster, table);
    assert_clean(&cluster);
    // Those tables work like any other.
    done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        txn.ordered(table)?.put(&7_u64.to_be_bytes(), &[1; 9]).await
    }));
    stop_clean(cluster);
}

/// The table that is being loaded is dropped: the load ends with an error that says so.
#[test]
fn a_load_into_a_table_that_is_dropped_ends() {
    let builder = small().compute_nodes(2).replicas(2).lease(Some(LEASE));
    let (cluster, _) = with_table(builder, NUMBERS);
    let drop_it = || cluster.drop_table("rows").expect("it is there");
    let failed = load_beside(&cluster, wide("rows"), drop_it);
    assert!(matches!(failed, Err(ClusterError::UnknownTable(_))), "{failed:?}");
    let table = cluster.create_table(wide("rows")).expect("its name is free");
    load(&cluster, table);
    assert_loaded(&cluster, table);
    stop_clean(cluster);
}
