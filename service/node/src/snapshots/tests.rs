//! Directories of snapshots through faults of files, clocks that run ahead, and damage.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use lotus::{Nanos, TableSpec};
use lotus_authority::EmbeddedAuthority;
use lotus_authority::testing::TestAuthority;
use lotus_files::Disk;
use lotus_files::faults::{Fault, Faulty, Names, Op};
use tempfile::TempDir;

use super::holding::Holding;
use super::initial_data::{Evidence, decide};
use super::*;
use crate::application::NoNotes;
use crate::config::name::NodeName;

const SPEC: TableSpec = TableSpec::new("numbers").record_bytes(100).capacity(5_000);
/// Number of rows: more than fit the buffer of a file, so that it takes several writes.
const ROWS: u64 = 4_000;

/// Temporary directory, in memory if possible: syncing takes no time there, and faults are
/// simulated.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("there is room")
}

fn empty() -> Cluster {
    let builder = Cluster::embedded().memory_limit(24 << 20).lock_table_bytes(1 << 20);
    let builder = builder.memory_nodes(1).replicas(1).compute_nodes(1).coroutines(4);
    builder.start().expect("the settings are sound")
}

fn filled() -> Cluster {
    let cluster = empty();
    let table = cluster.create_table(SPEC).expect("it fits");
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend([7; 100]);
        row.into()
    };
    cluster.load(table, ROWS, &row, &AtomicU64::new(0)).expect("it fits");
    cluster
}

fn snapshots(directory: &Path) -> Snapshots {
    Snapshots { directory: directory.to_owned(), keep: 2, if_damaged: IfDamaged::Stop }
}

/// Begins a cluster with what there is on this host.
fn restore(
    snapshots: &Snapshots,
    cluster: &Cluster,
    authority: &dyn Authority,
) -> Result<Option<Snapshot>, String> {
    let directory = &snapshots.directory;
    let own = Holding::look(NodeName::compute(0), directory, directory)?;
    let beginning = decide(&Evidence {
        own: &own,
        others: &[],
        silent: &[],
        shared: &[],
        directory,
        choice: snapshots.if_damaged,
        drawn: (7, 8),
    })?;
    snapshots.restore(cluster, authority, &NoNotes, &beginning)
}

/// Writes a snapshot with a number and a date of the test's choice.
fn write_labelled(cluster: &Cluster, directory: &Path, name: &str, label: SnapshotLabel) {
    let open = || Part::create(&Disk, directory, UNFINISHED, Readers::Owner);
    let (part, _) = cluster.snapshot_with(open, |_| Ok(label), Vec::new).expect("no fault");
    part.publish(name, Existing::Replaced).expect("no fault");
}

fn is_whole(path: &Path) -> bool {
    let mut file = fs::File::open(path).expect("it is there");
    lotus::read_snapshot(&mut file, &mut ()).is_ok()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("text");
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("readable"))).collect();
    names.sort();
    names
}

fn cut(path: &Path) {
    let bytes = fs::read(path).expect("it is there");
    fs::write(path, &bytes[..bytes.len() / 2]).expect("it is ours");
}

/// A lost answer cut the load short, and the cluster had to be started again.
#[test]
fn a_restore_outlasts_answers_that_are_lost() {
    let (directory, authority) = (scratch(), TestAuthority::lossy());
    let snapshots = snapshots(directory.path());
    snapshots.take(&filled(), authority.values(), &NoNotes).expect("no fault");
    let restored = restore(&snapshots, &empty(), &authority).expect("it answers, sooner or later");
    assert_eq!(restored.as_ref().map(|restored| restored.rows), Some(ROWS));
    assert_eq!(Snapshot::restored(authority.values()), Ok(restored));
    assert!(authority.lost() > 3);
}

/// Takes a snapshot beside two older ones with a fault at one operation, and judges what is left.
#[track_caller]
fn strike(files: &Faulty, cluster: &Cluster, older: &Path, case: &str) {
    let directory = scratch();
    for name in names(older) {
        fs::copy(older.join(&name), directory.path().join(name)).expect("there is room");
    }
    let former = snapshot_files::all(directory.path()).expect("readable")[0].clone();
    let (snapshots, authority) = (snapshots(directory.path()), EmbeddedAuthority::new());
    let taken = snapshots.take_through(files, cluster, &authority, &NoNotes);
    if taken.is_ok() {
        files.lose_power(Names::Lost);
    }
    let all = snapshot_files::all(directory.path()).expect("readable");
    assert!(all.iter().all(|path| is_whole(path)), "{case}: a name of a damaged file in {all:?}");
    assert!(all.len() >= snapshots.keep, "{case}: too few are left: {all:?}");
    match &taken {
        Ok(taken) => assert_eq!(all[0], taken.path, "{case}: reported, and not the newest"),
        Err(_) => assert!(all.contains(&former), "{case}: {former:?} is not in {all:?}"),
    }
    // The next snapshot, taken by another process, finds nothing in its way.
    let next = snapshots.take(cluster, &authority, &NoNotes).expect("nothing fails any more");
    let all = snapshot_files::all(directory.path()).expect("readable");
    assert_eq!((all.len(), &all[0]), (snapshots.keep, &next.path), "{case}");
    assert_eq!(names(directory.path()).len(), all.len(), "{case}: parts are left");
}

#[test]
fn whatever_fails_the_newest_whole_snapshot_is_there_and_no_damaged_one() {
    let cluster = filled();
    let older = scratch();
    let authority = EmbeddedAuthority::new();
    for _ in 0..2 {
        snapshots(older.path()).take(&cluster, &authority, &NoNotes).expect("no fault");
    }
    let sound = Faulty::sound();
    strike(&sound, &cluster, older.path(), "no fault");
    let done = sound.done();
    assert!(Op::ALL.iter().all(|op| done.contains(op)), "a step has no run: {done:?}");
    assert!(done.iter().filter(|op| **op == Op::Write).count() > 2, "{done:?}");
    for (at, op) in done.iter().enumerate() {
        for fault in Fault::ALL {
            let case = format!("{fault:?} at {at}, {op:?}");
            strike(&Faulty::at(at, fault), &cluster, older.path(), &case);
        }
    }
    cluster.stop().expect("it ends");
}

/// The directory of the first snapshot was created and not synced: a reported snapshot was lost
/// with it when the machine lost power.
#[test]
fn a_snapshot_in_a_directory_that_was_made_for_it_outlasts_a_loss_of_power() {
    let (cluster, scratch, files) = (filled(), scratch(), Faulty::sound());
    let snapshots = snapshots(&scratch.path().join("orders/kept"));
    let taken = snapshots.take_through(&files, &cluster, &EmbeddedAuthority::new(), &NoNotes);
    let taken = taken.expect("no fault");
    files.lose_power(Names::Lost);
    assert!(is_whole(&taken.path), "{taken:?}");
    cluster.stop().expect("it ends");
}

/// The compute nodes of a host wrote one file until it got its name: a node that woke late wrote
/// its buffer into the finished snapshot of another.
#[test]
fn two_nodes_of_a_host_write_files_of_their_own() {
    let cluster = filled();
    let directory = scratch();
    let (snapshots, authority) = (snapshots(directory.path()), EmbeddedAuthority::new());
    // A snapshot that is paused with all of it in its buffer.
    let open = || Part::create(&Disk, directory.path(), UNFINISHED, Readers::Owner);
    let env = Env::real(0);
    let label = |timestamp| snapshots.label(&authority, &env, timestamp);
    let (late, info) = cluster.snapshot_with(open, label, Vec::new).expect("no fault");
    let taken = snapshots.take(&cluster, &authority, &NoNotes).expect("no fault");
    assert!(is_whole(&taken.path) && taken.sequence > info.head.label.sequence, "{taken:?}");
    late.publish(snapshot_files::name(info.head.label), Existing::Kept).expect("a name of its own");
    assert!(is_whole(&taken.path));
    assert_eq!(snapshot_files::all(directory.path()).expect("readable")[0], taken.path);
    cluster.stop().expect("it ends");
}

/// Timestamps of the life before ran ten minutes ahead, and its files shadowed those of a life that
/// had begun without them.
#[test]
fn the_newest_is_what_was_taken_last_whatever_clocks_say() {
    let cluster = filled();
    let directory = scratch();
    let (snapshots, authority) = (snapshots(directory.path()), EmbeddedAuthority::new());
    // Its name and its date are in the far future.
    let ahead = SnapshotLabel {
        sequence: 4,
        taken: Nanos(3_000_000_000_000_000_000),
        ..SnapshotLabel::default()
    };
    write_labelled(&cluster, directory.path(), "03000000000000000000.snapshot", ahead);
    let now = Env::real(0).now();
    let taken = snapshots.take(&cluster, &authority, &NoNotes).expect("no fault");
    assert_eq!(taken.sequence, 5, "one more than the largest that there is");
    assert_eq!(snapshot_files::all(directory.path()).expect("readable")[0], taken.path);
    let dates = [now, Env::real(0).now()].map(|time| date(time.0));
    assert!(dates[0] <= taken.time && taken.time <= dates[1], "{taken:?}");
    // A file of an older timestamp and a higher number is newer.
    let label = SnapshotLabel { sequence: 9, taken: Nanos(1), ..SnapshotLabel::default() };
    write_labelled(&cluster, directory.path(), "0000000001-x.snapshot", label);
    let later = snapshots.take(&cluster, &authority, &NoNotes).expect("no fault");
    assert_eq!(later.sequence, 10);
    cluster.stop().expect("it ends");

    // The next life counts on, although its directory is another.
    let (cluster, authority) = (empty(), EmbeddedAuthority::new());
    let restored = restore(&snapshots, &cluster, &authority).expect("it is whole");
    assert_eq!(restored.map(|snapshot| snapshot.path), Some(later.path.clone()));
    let elsewhere = scratch();
    let next = super::Snapshots { directory: elsewhere.path().to_owned(), ..snapshots };
    let next = next.take(&cluster, &authority, &NoNotes).expect("no fault");
    assert!(next.sequence == 11 && next.timestamp >= later.timestamp, "{next:?} after {later:?}");
    cluster.stop().expect("it ends");
}

#[test]
fn one_of_an_earlier_time_is_not_entered_behind_a_later_one() {
    let last = Last { sequence: 5, timestamp: 100 };
    assert_eq!(last.next(3, 101), Some(Last { sequence: 6, timestamp: 101 }));
    assert_eq!(last.next(3, 100), Some(Last { sequence: 6, timestamp: 100 }));
    assert_eq!(last.next(8, 101), Some(Last { sequence: 9, timestamp: 101 }));
    assert_eq!((last.next(3, 99), last.next(u64::MAX, 101)), (None, None));
    assert_eq!(Last::default().next(0, 1), Some(Last { sequence: 1, timestamp: 1 }));
}

#[test]
fn damaged_files_do_not_count_and_the_newest_whole_ones_stay() {
    let cluster = filled();
    let directory = scratch();
    let (snapshots, authority) = (snapshots(directory.path()), EmbeddedAuthority::new());
    let paths = [1, 2, 3, 4, 5, 6].map(|sequence| {
        let label = SnapshotLabel { sequence, taken: Nanos(sequence), ..SnapshotLabel::default() };
        write_labelled(&cluster, directory.path(), &snapshot_files::name(label), label);
        directory.path().join(snapshot_files::name(label))
    });
    let other = directory.path().join("notes.txt");
    fs::write(&other, "of others").expect("there is room");
    [3, 4, 5].iter().for_each(|at: &usize| cut(&paths[*at]));
    fs::write(&paths[5], "").expect("it is ours");
    snapshot_files::prune(&Disk, directory.path(), snapshots.keep).expect("readable");
    let left: Vec<bool> = paths.iter().map(|path| path.exists()).collect();
    assert_eq!(left, [false, true, true, true, true, true], "2 and 3 are whole");
    assert!(other.exists());
    let taken = snapshots.take(&cluster, &authority, &NoNotes).expect("no fault");
    assert_eq!(taken.sequence, 7, "the name of an empty file counts");
    assert!(!paths[1].exists() && paths[2].exists(), "7 and 3 are whole");
    let now = lotus_fabric::env::Env::real(0).now();
    let age = snapshots.newest_age(now).expect("there are some");
    assert!(age < Duration::from_secs(600), "{age:?}");
    cluster.stop().expect("it ends");
    assert_eq!(
        snapshot_files::all(&directory.path().join("nowhere")).expect("as good as empty").len(),
        0
    );
}

#[test]
fn a_damaged_newest_snapshot_stops_the_cluster_unless_an_older_one_will_do() {
    let cluster = filled();
    let directory = scratch();
    let (stops, authority) = (snapshots(directory.path()), EmbeddedAuthority::new());
    let older = stops.take(&cluster, &authority, &NoNotes).expect("no fault");
    let newer = stops.take(&cluster, &authority, &NoNotes).expect("no fault");
    cluster.stop().expect("it ends");
    cut(&newer.path);

    let cluster = empty();
    let refused = restore(&stops, &cluster, &authority).expect_err("the newest is damaged");
    let (is, with) = (newer.path.display().to_string(), older.path.display().to_string());
    let parts = [&is, "is no whole snapshot (it was cut off)", "--older-snapshot", &with];
    assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    assert!(cluster.tables().is_empty(), "nothing was changed");
    let uses_older = Snapshots { if_damaged: IfDamaged::UseOlder, ..stops.clone() };
    let restored = restore(&uses_older, &cluster, &authority).expect("the older one is whole");
    let restored = restored.expect("there are some");
    assert_eq!((&restored.path, restored.rows), (&older.path, ROWS));
    assert_eq!(restored.left_out, [format!("{is}: it was cut off")]);
    assert_eq!(Snapshot::restored(&authority).expect("it answers"), Some(restored));
    let next = stops.take(&cluster, &authority, &NoNotes).expect("no fault");
    assert_eq!(next.sequence, newer.sequence + 1, "above the damaged one");
    cluster.stop().expect("it ends");

    // An unreadable file may be the newest.
    let unknown = directory.path().join("copy.snapshot");
    fs::write(&unknown, "half a head").expect("there is room");
    let cluster = empty();
    let refused = restore(&stops, &cluster, &authority).expect_err("it may be the newest");
    assert!(refused.contains("copy.snapshot is no whole snapshot"), "{refused}");
    [&next.path, &older.path].into_iter().for_each(|path| cut(path));
    let refused = restore(&stops, &cluster, &authority).expect_err("none is whole");
    assert!(refused.contains("and there is no other"), "{refused}");
    let refused = restore(&uses_older, &cluster, &authority).expect_err("none is whole");
    assert!(refused.contains("no snapshot is whole"), "{refused}");
    fs::remove_dir_all(directory.path()).expect("it is ours");
    assert_eq!(restore(&stops, &cluster, &authority), Ok(None), "there are none");
    cluster.stop().expect("it ends");
}

#[test]
fn dates_are_those_of_the_clock() {
    assert_eq!(date(1_782_130_424_999_999_999), "2026-06-22T12:13:44Z");
    assert_eq!(date(0), "1970-01-01T00:00:00Z");
}

#[test]
fn a_byte_of_a_file_that_has_changed_is_told_from_a_file_that_is_whole() {
    let (cluster, scratch) = (filled(), scratch());
    let kept = snapshots(scratch.path());
    for (sequence, name) in [(1, "0000000001-a.snapshot"), (2, "0000000002-b.snapshot")] {
        let label = SnapshotLabel { sequence, taken: Nanos(sequence), ..SnapshotLabel::default() };
        write_labelled(&cluster, scratch.path(), name, label);
    }
    let read = || -> Vec<(u64, bool)> {
        let found = kept.read_all().expect("it is there");
        found
            .iter()
            .map(|(path, snapshot)| match snapshot {
                Ok(snapshot) => (snapshot.rows, snapshot.path == *path),
                Err(_) => (0, false),
            })
            .collect()
    };
    assert_eq!(read(), [(ROWS, true), (ROWS, true)]);
    let newest = kept.paths().expect("it is there")[0].clone();
    let before = Digest::of(&newest).expect("it is whole");
    assert_eq!(before.rows(), ROWS);
    assert_eq!(before, Digest::of(&kept.paths().expect("it is there")[1]).expect("it is whole"));
    let mut bytes = fs::read(&newest).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&newest, bytes).expect("it is ours");
    assert_eq!(read(), [(0, false), (ROWS, true)], "the newest comes first");
    assert!(Digest::of(&newest).is_err());
}
