//! Data that outlives a life: of the whole cluster, by a snapshot, or of a compute node.
//!
//! Much begins again with a life: seeds, incarnations, counters. What is stored does not, so no
//! number in it may depend on what begins again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, ClusterBuilder, CoordinatorId, Isolation, Session, TableId, TableSpec, TxnError,
};

/// Four rows fill a node, so almost each fourth one needs a new node.
const LOG: TableSpec =
    TableSpec::new("log").key_bytes(24).record_bytes(900).capacity(2_000).ordered();
const EACH: u64 = 160;
/// Long: a busy machine is no reason to be expelled.
const LEASE: Duration = Duration::from_secs(2);

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(life: u64, number: u64) -> Vec<u8> {
    // Those of all lives lie between each other.
    format!("{:06}-{life}", (number * 7_919) % 100_003).into_bytes()
}

fn value(key: &[u8]) -> Vec<u8> {
    key.iter().copied().cycle().take(900).collect()
}

/// Puts rows at a compute node, one or some in a transaction; each error that no retry cures fails
/// the test.
async fn grow(
    session: &mut Session,
    table: TableId,
    life: u64,
    numbers: std::ops::Range<u64>,
    at_once: u64,
) -> Result<(), TxnError> {
    for first in numbers.clone().step_by(at_once as usize) {
        for attempts in 0.. {
            let put = async {
                let mut txn = session.begin(Isolation::Serializable).await?;
                for number in first..(first + at_once).min(numbers.end) {
                    let key = key(life, number);
                    txn.ordered(table)?.put(&key, &value(&key)).await?;
                }
                txn.commit().await
            };
            match put.await {
                Ok(_) => break,
                Err(error) if error.is_retryable() => session.back_off(attempts).await,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Grows the table at all compute nodes at once.
fn grow_everywhere(cluster: &Cluster, nodes: usize, table: TableId, life: u64, rows: &mut Rows) {
    let share = EACH / nodes as u64;
    let growing: Vec<_> = (0..nodes)
        .map(|compute_node| {
            let first = compute_node as u64 * share;
            let at_once = 1 + 2 * compute_node as u64;
            cluster.submit(CoordinatorId { compute_node, thread: 0 }, async move |mut session| {
                grow(&mut session, table, life, first..first + share, at_once).await
            })
        })
        .collect();
    for (place, growth) in growing.into_iter().enumerate() {
        assert_eq!(outcome(growth), Ok(()), "life {life}, node {place}");
    }
    rows.extend((0..share * nodes as u64).map(|number| {
        let key = key(life, number);
        let value = value(&key);
        (key, value)
    }));
}

fn stored(cluster: &Cluster, table: TableId) -> Rows {
    let mut rows = Rows::new();
    let see = &mut |key: &[u8], value: &[u8]| _ = rows.insert(key.to_vec(), value.to_vec());
    cluster.settle().expect("the nodes are well");
    cluster.audit_ordered(table, see).expect("the memory nodes answer");
    rows
}

#[track_caller]
fn assert_whole(cluster: &Cluster, table: TableId, rows: &Rows, life: u64) {
    let found = stored(cluster, table);
    assert_eq!(found.len(), rows.len(), "life {life}");
    assert!(found == *rows, "life {life}");
    for finding in cluster.audit().expect("the memory nodes answer") {
        assert!(finding.passed, "life {life}: {finding:?}");
    }
}

fn builder(nodes: usize) -> ClusterBuilder {
    small().compute_nodes(nodes)
}

/// File that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lotus-lives-{}-{name}", std::process::id()));
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Regression: the numbers of new nodes were drawn from a generator that each life seeds alike: a
/// restored table had rows with just those numbers, and of the rows of a second life a tenth were
/// refused, finally, with an `AlreadyExists` that named a node.
#[test]
fn an_ordered_table_goes_on_growing_in_each_life_of_a_cluster() {
    let file = Scratch::new("embedded");
    let mut rows = Rows::new();
    for life in 0..4 {
        let nodes = [2, 2, 1, 2][life as usize];
        let cluster = start(builder(nodes));
        let table = match life {
            0 => cluster.create_table(LOG).expect("there is room"),
            _ => {
                cluster.restore(&file.0).expect("it is whole");
                cluster.table("log").expect("it is back")
            }
        };
        assert_whole(&cluster, table, &rows, life);
        grow_everywhere(&cluster, nodes, table, life, &mut rows);
        assert_whole(&cluster, table, &rows, life);
        cluster.snapshot(&file.0).expect("the memory nodes answer");
        stop_clean(cluster);
    }
}

/// The same of a compute node that is killed and returns to a cluster that goes on.
#[test]
fn an_ordered_table_goes_on_growing_after_a_compute_node_returns() {
    let (cluster, table) = with_table(builder(2).lease(Some(LEASE)), LOG);
    let mut rows = Rows::new();
    for life in 0..3 {
        grow_everywhere(&cluster, 2, table, life, &mut rows);
        if life < 2 {
            while !cluster.restart(life as usize).expect("there is a lease, and memory answers") {
                std::thread::yield_now();
            }
        }
    }
    assert_whole(&cluster, table, &rows, 3);
    stop_clean(cluster);
}

/// A table that was loaded has nodes with the lowest numbers, in each life.
#[test]
fn a_loaded_table_goes_on_growing_in_each_life() {
    let file = Scratch::new("loaded");
    let mut rows = Rows::new();
    for life in 0..3 {
        let cluster = start(builder(1));
        let table = if life == 0 {
            let table = cluster.create_table(LOG).expect("there is room");
            let row = |number: u64, into: &mut Vec<u8>| {
                let key = key(9, number);
                into.extend(value(&key));
                lotus::PrimaryKey::try_from(&*key).expect("short")
            };
            cluster.load(table, EACH, &row, &Default::default()).expect("they fit");
            for number in 0..EACH {
                rows.insert(key(9, number), value(&key(9, number)));
            }
            table
        } else {
            cluster.restore(&file.0).expect("it is whole");
            cluster.table("log").expect("it is back")
        };
        grow_everywhere(&cluster, 1, table, life, &mut rows);
        assert_whole(&cluster, table, &rows, life);
        cluster.snapshot(&file.0).expect("the memory nodes answer");
        stop_clean(cluster);
    }
}
