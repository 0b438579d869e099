//! Rows of the greatest length: written, read at old snapshots, scanned, filled into a memory node
//! that is back, and restored from a snapshot file.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, Isolation, MAX_RECORD_BYTES, MemoryStanding, PrimaryKey, TableId, TableSpec,
    Transaction, TxnError, max_ordered_record_bytes,
};
use lotus_fabric::ids::NodeId;

const LONGEST: usize = MAX_RECORD_BYTES as usize;
const BLOBS: TableSpec = TableSpec::new("blobs")
    .record_bytes(MAX_RECORD_BYTES)
    .key_bytes(PrimaryKey::MAX_BYTES as u32)
    .capacity(200)
    .shards(8);
const PAGES: TableSpec = TableSpec::new("pages")
    .record_bytes(max_ordered_record_bytes(255))
    .key_bytes(255)
    .capacity(200)
    .shards(8)
    .ordered();

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Key of the greatest length of its table.
fn key(number: u64, bytes: usize) -> Vec<u8> {
    let mut key = vec![b'k'; bytes - 8];
    key.extend(number.to_be_bytes());
    key
}

/// Bytes in which every word differs from its neighbours and from those of other rounds.
fn value(number: u64, round: u64, bytes: usize) -> Vec<u8> {
    let words = 0..bytes.div_ceil(8) as u64;
    let word = |at: u64| (at ^ number << 20 ^ round << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut value: Vec<u8> = words.flat_map(|at| word(at).to_le_bytes()).collect();
    value.truncate(bytes);
    value
}

fn blob(number: u64) -> PrimaryKey {
    PrimaryKey::try_from(&key(number, PrimaryKey::MAX_BYTES)[..]).expect("it is short enough")
}

/// Writes a row of the greatest length, whether it exists or not.
fn write(cluster: &Cluster, table: TableId, number: u64, round: u64) -> Result<(), TxnError> {
    let body = async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, blob(number))?;
        txn.execute().await?;
        txn.upsert(item, &value(number, round, LONGEST))?;
        Ok::<(), TxnError>(())
    };
    outcome(cluster.run(Isolation::Serializable, body)).map(drop)
}

fn rows(cluster: &Cluster, table: TableId) -> Map {
    let mut scan = cluster.scan(table);
    let mut rows = Map::new();
    while let Some(page) = scan.next_page().expect("the snapshot is readable") {
        for (key, value) in page.rows.iter() {
            assert_eq!(rows.insert(key.to_vec(), value.to_vec()), None, "each row comes once");
        }
    }
    rows
}

fn expected(numbers: impl IntoIterator<Item = u64>, round: u64) -> Map {
    let row = |number| (blob(number).as_bytes().to_vec(), value(number, round, LONGEST));
    numbers.into_iter().map(row).collect()
}

#[test]
fn the_longest_rows_are_written_read_scanned_and_deleted() {
    let cluster = start(small().compute_nodes(2));
    let table = cluster.create_table(BLOBS).expect("there is room");
    for round in 0..4 {
        for number in 0..60 {
            write(&cluster, table, number, round).expect("there is room");
        }
        assert_eq!(rows(&cluster, table), expected(0..60, round));
    }
    let body = async move |txn: &mut Transaction| {
        for number in (0..60).step_by(2) {
            let item = txn.add_rw(table, blob(number))?;
            txn.execute().await?;
            assert_eq!(txn.value(item), Some(&value(number, 3, LONGEST)[..]));
            txn.delete(item)?;
        }
        let item = txn.add_rw(table, blob(1))?;
        txn.execute().await?;
        let refused = txn.put(item, &vec![0; LONGEST + 1]).expect_err("a byte too long");
        let said = format!("a value of table {} has at most 15360 bytes, not 15361", table.0);
        assert_eq!(refused.to_string(), said);
        Ok::<(), TxnError>(())
    };
    done(cluster.run(Isolation::Serializable, body));
    assert_eq!(rows(&cluster, table), expected((1..60).step_by(2), 3));
    stop_clean(cluster);
}

/// H14, I5: two writers keep changing few long rows, and readers of either kind see each whole.
#[test]
fn h14_no_reader_sees_a_part_of_a_long_row() {
    let cluster = start(small().compute_nodes(2));
    let table = cluster.create_table(BLOBS).expect("there is room");
    for number in 0..4 {
        write(&cluster, table, number, 0).expect("there is room");
    }
    let (over, round) = (AtomicBool::new(false), AtomicU64::new(1));
    let cluster_ref = &*cluster;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let round = round.fetch_add(1, Ordering::Relaxed);
                    write(cluster_ref, table, round % 4, round).expect("it is retried");
                }
            });
        }
        let mut reads = 0;
        while reads < 400 || round.load(Ordering::Relaxed) < 400 {
            let seen = done(cluster_ref.run_read_only(async move |txn: &mut Transaction| {
                let item = txn.add_ro(table, blob(reads % 4))?;
                txn.execute().await?;
                Ok::<_, TxnError>(txn.value(item).expect("it exists").to_vec())
            }));
            let seen = seen.value;
            let known = (0..=round.load(Ordering::Relaxed))
                .filter(|round| *round == 0 || round % 4 == reads % 4);
            let first = |round| value(reads % 4, round, 8);
            let of = known.into_iter().find(|round| seen[..8] == first(*round)[..]);
            let of = of.expect("a round has written it");
            assert!(seen == value(reads % 4, of, LONGEST), "all of it is of round {of}");
            reads += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
    stop_clean(cluster);
}

#[test]
fn a_memory_node_that_is_back_gets_the_longest_rows() {
    const PATIENCE: Duration = Duration::from_secs(30);
    let lease = Some(Duration::from_millis(300));
    let cluster = start(small().compute_nodes(2).replicas(2).lease(lease));
    let table = cluster.create_table(BLOBS).expect("there is room");
    for number in 0..100 {
        write(&cluster, table, number, number % 3).expect("there is room");
    }
    let before = rows(&cluster, table);
    let (fabric, lost) = (cluster.local_fabric(), NodeId(1));
    let standing = || cluster.memory_status().expect("it answers").nodes[1];
    fabric.set_reachable(lost, false).expect("there is such a node");
    assert!(eventually_within(PATIENCE, || standing() == MemoryStanding::Lost));
    fabric.wipe(lost).expect("there is such a node");
    fabric.set_reachable(lost, true).expect("there is such a node");
    assert!(eventually_within(PATIENCE, || standing() == MemoryStanding::Serving));
    assert_clean(&cluster);
    // Its copies serve: another node, with the others of some rows, is lost.
    fabric.set_reachable(NodeId(0), false).expect("there is such a node");
    assert!(eventually_within(PATIENCE, || {
        cluster.memory_status().expect("it answers").nodes[0] == MemoryStanding::Lost
    }));
    cluster.settle().expect("no compute node fails");
    assert_eq!(rows(&cluster, table), before);
    stop(cluster);
}

/// Puts the rows of an ordered table in an order in which nodes split everywhere.
fn put_pages(cluster: &Cluster, table: TableId, count: u64) -> Map {
    let bytes = PAGES.record_bytes as usize;
    let mut model = Map::new();
    for step in 0..count {
        // Every third row is short: nodes hold two of the longest, or more.
        let number = step * 37 % count;
        let length = if number.is_multiple_of(3) { 100 } else { bytes };
        let (key, value) = (key(number, 255), value(number, 0, length));
        model.insert(key.clone(), value.clone());
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            txn.ordered(table)?.put(&key, &value).await
        }));
    }
    model
}

#[test]
fn an_ordered_table_takes_rows_of_half_a_node() {
    let cluster = start(small().compute_nodes(2));
    let table = cluster.create_table(PAGES).expect("there is room");
    let mut model = put_pages(&cluster, table, 120);
    assert_eq!(rows(&cluster, table), model);
    // Short values become long ones, and every fifth row goes.
    for number in 0..120 {
        let (key, long) = (key(number, 255), value(number, 1, PAGES.record_bytes as usize));
        let goes = number % 5 == 0;
        match goes {
            true => model.remove(&key),
            false => model.insert(key.clone(), long.clone()),
        };
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            let mut pages = txn.ordered(table)?;
            if goes {
                assert!(pages.delete(&key).await?);
            } else {
                pages.put(&key, &long).await?;
            }
            Ok::<(), TxnError>(())
        }));
    }
    assert_eq!(rows(&cluster, table), model);
    let refused =
        outcome(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            txn.ordered(table)?.put(b"k", &vec![0; PAGES.record_bytes as usize + 1]).await
        }));
    let said = refused.expect_err("a byte too long").to_string();
    assert!(said.ends_with("has at most 7164 bytes, not 7165"), "{said}");
    stop_clean(cluster);
}

#[test]
fn the_longest_rows_are_restored_from_a_snapshot() {
    let cluster = start(small().compute_nodes(2));
    let blobs = cluster.create_table(BLOBS).expect("there is room");
    let pages = cluster.create_table(PAGES).expect("there is room");
    for number in 0..60 {
        write(&cluster, blobs, number, 1).expect("there is room");
    }
    let model = put_pages(&cluster, pages, 60);
    let folder = std::env::temp_dir().join(format!("lotus-{}-longest", std::process::id()));
    std::fs::create_dir_all(&folder).expect("there is room");
    let file = folder.join("snapshot");
    let taken = cluster.snapshot(&file).expect("the memory nodes answer");
    stop_clean(cluster);

    let restored = start(small().compute_nodes(1));
    assert_eq!(restored.restore(&file).expect("the file is sound"), taken);
    std::fs::remove_dir_all(&folder).expect("it was made here");
    let [blobs, pages] = ["blobs", "pages"].map(|name| restored.table(name).expect("it is back"));
    assert_eq!(rows(&restored, blobs), expected(0..60, 1));
    assert_eq!(rows(&restored, pages), model);
    stop_clean(restored);
}
