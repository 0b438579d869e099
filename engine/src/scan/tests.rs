//! Tests that need the inside of a cluster: the horizon waits for a scan, and goes on behind it.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_mvcc::TableSpec;

use super::*;
use crate::api::coordinator_id::CoordinatorId;

const SPEC: TableSpec = TableSpec::new("rows").record_bytes(1_000).capacity(1_000);
const FIRST: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };
const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a cluster with more rows than a few pages hold, so that a scan has to wait.
fn filled() -> (Cluster, TableId) {
    let builder = Cluster::embedded().memory_limit(24 << 20).lock_table_bytes(1 << 20);
    let cluster = builder.compute_nodes(2).coroutines(4).start().expect("the settings are sound");
    let table = cluster.create_table(SPEC).unwrap();
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend([0; 1_000]);
        row.into()
    };
    cluster.load(table, 1_000, &row, &Default::default()).unwrap();
    (cluster, table)
}

fn eventually(mut happened: impl FnMut() -> bool) {
    let env = Env::real(0);
    let deadline = env.now().after(PATIENCE);
    while !happened() {
        assert!(env.now() < deadline, "it did not happen in {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Draws a new timestamp.
fn later(cluster: &Cluster) -> Timestamp {
    let drawn = cluster
        .submit(FIRST, |session| async move { session.coordinator().timestamps.commit().await });
    drawn.wait().expect("there is a clock")
}

/// The horizon as the second compute node knows it, and whether it keeps more for readers.
fn horizon(cluster: &Cluster) -> (Timestamp, bool) {
    let second = cluster.shared.nodes.iter().nth(1).expect("there are two");
    (second.horizon.get(), second.horizon.is_patient())
}

#[test]
fn the_horizon_waits_for_a_scan_and_goes_on_behind_it() {
    let (cluster, table) = filled();
    let mut scans = [cluster.scan(table), cluster.scan(table)];
    let snapshots = scans.each_mut().map(|scan| {
        let page = scan.next_page().unwrap().unwrap();
        page.next.expect("there are more").snapshot()
    });
    let [first, second] = scans;
    let oldest = snapshots[0].min(snapshots[1]);
    eventually(|| horizon(&cluster) == (oldest, true));
    for _ in 0..100 {
        later(&cluster);
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert_eq!(horizon(&cluster), (oldest, true), "it is in use");
    drop(first);
    eventually(|| horizon(&cluster).0 >= snapshots[1]);
    assert!(horizon(&cluster).1, "the second one is in use");
    drop(second);
    let later = later(&cluster);
    eventually(|| horizon(&cluster).0 >= later && !horizon(&cluster).1);
    cluster.stop().unwrap();
}

/// A scan that goes on while another one has held its snapshot all the time holds it as well.
#[test]
fn a_scan_that_goes_on_holds_its_snapshot_again_where_nothing_was_lost() {
    let (cluster, table) = filled();
    let job = move |mut session: Session| async move {
        let scan = session.scan(table).await.expect("it exists");
        let cursor = scan.cursor().expect("it has begun");
        let slot = std::rc::Rc::clone(scan.session.slot());
        let coordinator = &slot.coordinator;
        let floor = || coordinator.node.horizon.floor(coordinator.thread);
        while floor() < cursor.snapshot {
            later_in(&scan).await;
        }
        drop(scan);
        // No turn of the executor has passed: the floor still is the snapshot.
        let again = Held::again(&slot, cursor.snapshot).await?.expect("it was drawn");
        let issued = coordinator.timestamps.issued();
        let held = coordinator.snapshots.borrow().floor(issued);
        drop(again);
        coordinator.timestamps.commit().await?;
        while floor() <= cursor.snapshot {
            coordinator.executor.sleep(coordinator.notice()).await;
        }
        let unheld = Held::again(&slot, cursor.snapshot).await?.expect("it was drawn");
        let floor = coordinator.snapshots.borrow().floor(coordinator.timestamps.issued());
        drop(unheld);
        Ok((held == cursor.snapshot, floor > cursor.snapshot))
    };
    assert_eq!(cluster.submit(FIRST, job).wait().unwrap(), (true, true));
    cluster.stop().unwrap();
}

/// Lets the coordinator publish its floor.
async fn later_in(scan: &SessionScan<'_>) {
    let coordinator = scan.session.coordinator();
    coordinator.executor.sleep(coordinator.shared.config.horizon_interval).await;
}
