//! Tests that need the inside of a cluster: the horizon, and timestamps after a restore.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::{Env, Nanos};
use lotus_mvcc::{TableSpec, Timestamp};
use lotus_recovery::membership;

use super::format::{Writer, push_row};
use super::*;
use crate::api::config::TimestampKind;
use crate::api::error::TxnError;
use crate::api::isolation::Isolation;
use crate::cluster::rejoin;
use crate::node::shared::ComputeNode;
use crate::txn::transaction::Transaction;

const SPEC: TableSpec = TableSpec::new("numbers").record_bytes(8).capacity(1000);
const FIRST: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };
const PATIENCE: Duration = Duration::from_secs(20);

fn started(timestamps: TimestampKind) -> Cluster {
    let builder = Cluster::embedded().memory_limit(24 << 20).lock_table_bytes(1 << 20);
    let builder = builder.compute_nodes(2).coroutines(4).timestamps(timestamps);
    builder.lease(Some(Duration::from_millis(500))).start().expect("the settings are sound")
}

/// Starts a cluster with more rows than one piece holds, so that the reader has to wait.
fn filled() -> Cluster {
    let cluster = started(TimestampKind::Clock);
    let table = cluster.create_table(SPEC).unwrap();
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend([0; 8]);
        row.into()
    };
    cluster.load(table, 500, &row, &Default::default()).unwrap();
    cluster
}

/// File that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("lotus-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const LIFE: SnapshotLife = SnapshotLife { number: 1, cluster: 2, id: 3 };
const LABEL: SnapshotLabel = SnapshotLabel { life: LIFE, sequence: 3, taken: Nanos(1) };

fn write(copying: Copying, cluster: &Cluster) -> Result<SnapshotInfo, SnapshotError> {
    copying.write(cluster, &mut Vec::new(), &|_| Ok(LABEL), &Vec::new)
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
fn later(cluster: &Cluster, coordinator_id: CoordinatorId) -> Timestamp {
    let drawn = cluster.submit(coordinator_id, |session| async move {
        session.coordinator().timestamps.commit().await
    });
    drawn.wait().expect("somebody issues timestamps")
}

/// Returns the second compute node.
fn second(cluster: &Cluster) -> Arc<ComputeNode> {
    cluster.shared.nodes.iter().nth(1).expect("there are two")
}

fn horizon(cluster: &Cluster) -> Timestamp {
    second(cluster).horizon.get()
}

/// A returning process was killed between announcing itself and being admitted: its floor of zero
/// stayed where it was, and nothing was trimmed or purged until it came back.
#[test]
fn the_horizon_goes_on_without_a_process_that_ends_when_it_has_announced_itself() {
    let cluster = filled();
    let shared = &cluster.shared;
    let (out, authority) = (shared.peers[0], shared.async_authority.authority());
    cluster.kill(out.index);
    eventually(|| membership::read(authority).unwrap().may_rejoin(out.id));
    let other = CoordinatorId { compute_node: 1, ..FIRST };
    let recovered = later(&cluster, other);
    eventually(|| horizon(&cluster) >= recovered);
    // Twice: verbs of a killed process may land late.
    for _ in 0..2 {
        let now = membership::read(authority).unwrap();
        let place = [(out.id, out.index)];
        eventually(|| {
            let begun = rejoin::announce_at(&place, &shared.placement, &shared.control, &now);
            begun.unwrap().is_some()
        });
        let later = later(&cluster, other);
        eventually(|| horizon(&cluster) >= later);
    }
    drop(cluster);
}

#[test]
fn the_horizon_waits_for_a_snapshot_and_goes_on_behind_it() {
    let cluster = filled();
    // The pieces are not taken, and only one may wait.
    let copying = cluster.start_snapshot(FIRST, 1);
    let Some(Piece::Begin(snapshot)) = cluster.machines().wait(&copying.pieces) else {
        panic!("it begins with a snapshot");
    };
    eventually(|| horizon(&cluster) == snapshot);
    for _ in 0..100 {
        later(&cluster, FIRST);
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert_eq!(horizon(&cluster), snapshot, "it is in use");
    assert!(second(&cluster).horizon.is_patient());
    // The writer gives up.
    drop(copying);
    let later = later(&cluster, FIRST);
    eventually(|| horizon(&cluster) >= later);
    eventually(|| !second(&cluster).horizon.is_patient());
    cluster.stop().unwrap();
}

#[test]
fn the_horizon_goes_on_without_a_node_that_dies_while_it_reads() {
    let cluster = filled();
    let copying = cluster.start_snapshot(FIRST, 1);
    let Some(Piece::Begin(snapshot)) = cluster.machines().wait(&copying.pieces) else {
        panic!("it begins with a snapshot");
    };
    eventually(|| horizon(&cluster) == snapshot);
    cluster.kill(0);
    let other = CoordinatorId { compute_node: 1, ..FIRST };
    let later = later(&cluster, other);
    assert!(later > snapshot);
    eventually(|| horizon(&cluster) >= later);
    eventually(|| !second(&cluster).horizon.is_patient());
    let written = write(copying, &cluster);
    assert!(matches!(written, Err(SnapshotError::Read(TxnError::Fenced))), "{written:?}");
    // The other node can still take one.
    let info = write(cluster.start_snapshot(other, PIECES), &cluster);
    assert!(info.unwrap().head.timestamp > snapshot);
    drop(cluster);
}

#[test]
fn a_coordinator_takes_one_at_a_time() {
    let cluster = filled();
    let first = cluster.start_snapshot(FIRST, 1);
    let second = write(cluster.start_snapshot(FIRST, 1), &cluster);
    assert!(matches!(second, Err(SnapshotError::Busy)), "{second:?}");
    write(first, &cluster).unwrap();
    cluster.stop().unwrap();
}

/// The clocks of the hosts were set back by an hour after the snapshot was taken, more than an
/// oracle's bound is ahead. As in earlier formats, there is no secret: each cluster has its own.
#[test]
fn timestamps_go_on_behind_a_snapshot_of_the_future() {
    let mut namings = Vec::new();
    for timestamps in [TimestampKind::Clock, TimestampKind::Oracle] {
        let file = Scratch::new(&format!("future-{timestamps:?}"));
        let future = Env::real(0).now().after(Duration::from_secs(3600)).0;
        let future = Timestamp::new(future).unwrap();
        let mut bytes = Vec::new();
        let mut writer =
            Writer::begin(&mut bytes, &SnapshotHead { timestamp: future, label: LABEL }).unwrap();
        writer.table(&SPEC).unwrap();
        let mut payload = Vec::new();
        push_row(&mut payload, &7.into(), &[1; 8]);
        writer.rows(&payload, 1).unwrap();
        let written = writer.end(Vec::new()).unwrap();
        std::fs::write(&file.0, bytes).unwrap();
        let cluster = started(timestamps);
        assert_eq!(cluster.restore(&file.0).unwrap(), written);
        let table = cluster.table("numbers").unwrap();
        let commit = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            let item = txn.add_rw(table, 7)?;
            txn.execute().await?;
            assert_eq!(txn.value(item), Some(&[1; 8][..]));
            txn.put(item, &[2; 8])?;
            Ok::<(), TxnError>(())
        });
        assert!(commit.wait().unwrap().receipt.commit_ts > Some(future));
        namings.push(cluster.naming().unwrap());
        cluster.stop().unwrap();
    }
    assert_ne!(namings[0], namings[1]);
}

/// The snapshot's timestamp is drawn while another one, of a later time, is entered for its
/// directory.
#[test]
fn a_snapshot_that_is_overtaken_is_begun_anew() {
    let cluster = filled();
    let (asked, opened) = (Cell::new(0), Cell::new(0));
    let open = || {
        opened.set(opened.get() + 1);
        Ok(Vec::new())
    };
    let label = |_| {
        asked.set(asked.get() + 1);
        if asked.get() < 3 { Err(SnapshotError::Overtaken) } else { Ok(LABEL) }
    };
    let (bytes, info) = cluster.snapshot_with(open, label, Vec::new).unwrap();
    assert_eq!((asked.get(), opened.get()), (3, 3));
    assert_eq!(read_snapshot(&mut &bytes[..], &mut ()).unwrap(), info);
    assert_eq!(info.head.label, LABEL);
    let never = |_| Err(SnapshotError::Io(io::ErrorKind::TimedOut.into()));
    let refused = cluster.snapshot_with(|| Ok(Vec::new()), never, Vec::new);
    assert!(matches!(refused, Err(SnapshotError::Io(_))), "{refused:?}");
    cluster.stop().unwrap();
}
