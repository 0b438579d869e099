//! What memory shows when a commit has just been reported, and what once the cluster has settled.
//!
//! In simulation, where an audit takes no time: it sees the memory at one moment.

use std::time::Duration;

use crate::common::*;
use lotus::audit::Finding;
use lotus::{Cluster, Isolation, TableId, TableSpec};
use lotus_fabric::sim::{Config, Profile, SimMachines, World};

/// Rows of an ordered table; a leaf holds about seventy of them.
const ROWS: u64 = 240;
/// Rows that a transaction inserts or deletes.
const AT_ONCE: usize = 40;
const STEP: Duration = Duration::from_micros(1);
/// Steps within which a purge begins and ends: many times the interval of the horizon.
const STEPS: usize = 1_000;

const VISIBLE: &str = "no cell is left INVISIBLE or torn";
const UNLOCKED: &str = "no lock is left held";

/// A cluster with a table, on machines that stand still between two steps.
fn simulated() -> (Cluster, TableId) {
    let builder = small().memory_nodes(2).replicas(2).horizon_interval(STEP * 10);
    let nodes = builder.node_count().expect("the settings are sound");
    let profile = Profile::named("cx3-56g").expect("it is built in");
    let world = World::new(Config::new(7, nodes, profile)).expect("a valid configuration");
    let cluster = builder.start_on(SimMachines::new(world)).expect("the machines work");
    let spec = TableSpec::new("sorted").record_bytes(100).capacity(ROWS).shards(4).ordered();
    let table = cluster.create_table(spec).expect("there is room");
    (cluster, table)
}

/// Inserts or deletes all rows, some in each transaction; calls `reported` after each.
fn change(cluster: &Cluster, table: TableId, deletes: bool, mut reported: impl FnMut(u64)) {
    let rows: Vec<u64> = (0..ROWS).collect();
    for some in rows.chunks(AT_ONCE) {
        let (first, rows) = (some[0], some.to_vec());
        let done = cluster.submit(FIRST, async move |mut session| {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let mut sorted = txn.ordered(table)?;
            for row in rows {
                match deletes {
                    true => assert!(sorted.delete(&row.to_be_bytes()).await?),
                    false => sorted.insert(&row.to_be_bytes(), &[7; 100]).await?,
                }
            }
            txn.commit().await.map(drop)
        });
        cluster.wait(done).expect("it is alone");
        reported(first);
    }
}

/// What an audit finds wrong at this moment.
fn wrong(cluster: &Cluster) -> Vec<Finding> {
    let findings = cluster.audit().expect("the memory nodes answer");
    findings.into_iter().filter(|finding| !finding.passed).collect()
}

/// Runs the machines, a few steps at a time, until an audit finds `name` wrong.
fn until_wrong(cluster: &Cluster, name: &str, at_once: u32) -> Finding {
    for _ in 0..STEPS {
        SimMachines::of(cluster.machines()).run_for(STEP * at_once).expect("the world goes on");
        if let Some(found) = wrong(cluster).into_iter().find(|finding| finding.name == name) {
            return found;
        }
    }
    panic!("no audit has found it: {name}");
}

/// H3: at the moment of the report, not later.
#[test]
fn a_reported_commit_shows_on_every_copy() {
    let (cluster, table) = simulated();
    for deletes in [false, true] {
        change(&cluster, table, deletes, |row| {
            let found = wrong(&cluster);
            let mut of_memory = found.iter().filter(|finding| finding.name != UNLOCKED);
            assert_eq!(of_memory.next(), None, "row {row}, deletes: {deletes}");
        });
    }
}

/// A purge begins when all deletions are reported and no client waits; in the middle of it the rows
/// look as if their writer had stopped. An audit that did not wait for it called that a violation.
#[test]
fn settling_waits_for_a_purge_that_is_under_way() {
    let (cluster, table) = simulated();
    for deletes in [false, true] {
        change(&cluster, table, deletes, |_| {});
    }
    until_wrong(&cluster, UNLOCKED, 4);
    let found = until_wrong(&cluster, VISIBLE, 1);
    assert!(found.detail.contains("upkeep of a coordinator"), "{found:?}");
    cluster.settle().expect("nothing has failed");
    assert_eq!(wrong(&cluster), []);
}

/// The deletions wait to be purged, and the horizon passes them: an audit may take its time.
#[test]
fn a_settled_cluster_purges_nothing_before_the_next_transaction() {
    let (cluster, table) = simulated();
    for deletes in [false, true] {
        change(&cluster, table, deletes, |_| {});
    }
    cluster.settle().expect("nothing has failed");
    for _ in 0..STEPS / 5 {
        assert_eq!(wrong(&cluster), []);
        SimMachines::of(cluster.machines()).run_for(STEP * 4).expect("the world goes on");
    }
    let read = cluster.submit(FIRST, async move |mut session| {
        let mut txn = session.begin_read_only().await?;
        Ok(txn.ordered(table)?.range(..).rows().await?.len())
    });
    assert_eq!(cluster.wait(read), Ok(0));
    until_wrong(&cluster, UNLOCKED, 4);
}
