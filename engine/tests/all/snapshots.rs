//! Snapshot files: consistent beside any load, whole or refused, and restored as they were.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::*;
use lotus::{
    Cluster, ClusterBuilder, CoordinatorId, Isolation, Nanos, PrimaryKey, Session, SnapshotError,
    SnapshotInfo, SnapshotLabel, SnapshotVisitor, TableId, TableSpec, Timestamp, TimestampKind,
    TxnError, read_snapshot, read_snapshot_head,
};

const ACCOUNTS: TableSpec = TableSpec::new("accounts").record_bytes(8).capacity(3_000);
/// Tables of numbers, each of which is in one of the two and moves between them.
const LEFT: TableSpec = TableSpec::new("left").record_bytes(16).capacity(64);
const RIGHT: TableSpec = TableSpec::new("right").record_bytes(8).capacity(64);

const ACCOUNT_COUNT: u64 = 3_000;
const BALANCE: u64 = 1_000;
const MOVERS: u64 = 32;

/// Directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lotus-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("there is room");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it is there");
        let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("it is text");
        let mut names: Vec<String> = entries.map(|entry| name(entry.expect("it is"))).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

type Rows = Vec<(PrimaryKey, Vec<u8>)>;

/// Contents of a snapshot, by table.
#[derive(Default, PartialEq, Eq, Debug)]
struct Contents(Vec<(TableSpec, Rows)>);

impl SnapshotVisitor for Contents {
    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        self.0.push((spec, Vec::new()));
        Ok(())
    }

    fn row(&mut self, key: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError> {
        self.0.last_mut().expect("tables come first").1.push((key, value.to_vec()));
        Ok(())
    }
}

impl Contents {
    fn of(path: &Path) -> Self {
        let mut contents = Self::default();
        let mut file = fs::File::open(path).expect("it is there");
        read_snapshot(&mut file, &mut contents).expect("it is sound");
        contents.0.iter_mut().for_each(|(_, rows)| rows.sort());
        contents
    }

    fn rows(&self, table: &str) -> &[(PrimaryKey, Vec<u8>)] {
        let found = self.0.iter().find(|(spec, _)| spec.name == table);
        &found.expect("the snapshot has the table").1
    }

    /// Checks the invariants that every transaction keeps.
    #[track_caller]
    fn assert_consistent(&self) {
        let accounts = self.rows("accounts");
        assert_eq!(accounts.len() as u64, ACCOUNT_COUNT);
        let sum: u64 = accounts.iter().map(|(_, value)| number(value)).sum();
        assert_eq!(sum, ACCOUNT_COUNT * BALANCE);
        let sides = ["left", "right"].map(|side| self.rows(side));
        let mut movers: Vec<PrimaryKey> = sides.concat().into_iter().map(|(key, _)| key).collect();
        movers.sort();
        assert_eq!(movers, (0..MOVERS).map(PrimaryKey::from).collect::<Vec<_>>());
    }
}

fn made(builder: ClusterBuilder) -> (Running, [TableId; 3]) {
    let cluster = start(builder);
    let tables = [ACCOUNTS, LEFT, RIGHT].map(|spec| cluster.create_table(spec).expect("it fits"));
    let account = |row: u64, value: &mut Vec<u8>| {
        value.extend(BALANCE.to_le_bytes());
        PrimaryKey::from(row)
    };
    let mover = |row: u64, value: &mut Vec<u8>| {
        value.extend([7; 16]);
        PrimaryKey::from(row)
    };
    let loaded = AtomicU64::new(0);
    cluster.load(tables[0], ACCOUNT_COUNT, &account, &loaded).expect("it fits");
    cluster.load(tables[1], MOVERS, &mover, &loaded).expect("it fits");
    (cluster, tables)
}

async fn transfer(
    session: &mut Session,
    table: TableId,
    [from, to]: [u64; 2],
) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    let items = [txn.add_rw(table, from)?, txn.add_rw(table, to)?];
    txn.execute().await?;
    let [left, right] = items.map(|item| number_of(&txn, item).expect("it exists"));
    let amount = left.min(3);
    txn.put(items[0], &(left - amount).to_le_bytes())?;
    txn.put(items[1], &(right + amount).to_le_bytes())?;
    txn.commit().await.map(drop)
}

/// Moves a number to the other table.
async fn change_sides(
    session: &mut Session,
    sides: [TableId; 2],
    key: u64,
) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    let items = [txn.add_rw(sides[0], key)?, txn.add_rw(sides[1], key)?];
    txn.execute().await?;
    let from = usize::from(txn.value(items[0]).is_none());
    txn.delete(items[from])?;
    txn.upsert(items[1 - from], &[9; 8])?;
    txn.commit().await.map(drop)
}

/// Keeps a coordinator busy until `over`. Half of the transfers are among few accounts.
fn drive(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    tables: [TableId; 3],
    over: &Arc<AtomicBool>,
) -> impl FnOnce() {
    let over = Arc::clone(over);
    let stream = (coordinator_id.compute_node * 2 + coordinator_id.thread) as u64;
    let driven = cluster.submit(coordinator_id, move |mut session| async move {
        let [accounts, left, right] = tables;
        let mut random = stream + 1;
        let mut attempts = 0_u64;
        while !over.load(Ordering::Relaxed) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let (one, other) = (random >> 20, random >> 40);
            let among = if attempts.is_multiple_of(2) { 8 } else { ACCOUNT_COUNT };
            let [from, to] = [one % among, other % among];
            let done = match attempts % 8 {
                0 => change_sides(&mut session, [left, right], one % MOVERS).await,
                _ if from == to => Ok(()),
                _ => transfer(&mut session, accounts, [from, to]).await,
            };
            match done {
                Err(error) if !error.is_retryable() => return Err(error),
                _ => attempts += 1,
            }
        }
        Ok(())
    });
    move || done(driven)
}

fn busy() -> ClusterBuilder {
    small().compute_nodes(2).threads(2)
}

#[test]
fn snapshots_of_a_busy_cluster_are_consistent_and_come_back() {
    let scratch = Scratch::new("busy");
    for timestamps in [TimestampKind::Clock, TimestampKind::Oracle] {
        let (cluster, tables) = made(busy().timestamps(timestamps));
        let over = Arc::new(AtomicBool::new(false));
        let coordinator_ids: Vec<CoordinatorId> = cluster.coordinators().collect();
        let drivers: Vec<_> = coordinator_ids
            .into_iter()
            .map(|coordinator_id| drive(&cluster, coordinator_id, tables, &over))
            .collect();
        let mut taken: Vec<SnapshotInfo> = Vec::new();
        for number in 0..4 {
            let path = scratch.file(&format!("{number}"));
            taken.push(cluster.snapshot(&path).expect("nothing stands in its way"));
        }
        over.store(true, Ordering::Relaxed);
        drivers.into_iter().for_each(|driver| driver());
        stop_clean(cluster);
        assert!(
            taken.windows(2).all(|two| two[0].head.timestamp < two[1].head.timestamp),
            "{taken:?}"
        );
        let contents: Vec<Contents> =
            (0..4).map(|number| Contents::of(&scratch.file(&format!("{number}")))).collect();
        contents.iter().for_each(Contents::assert_consistent);
        assert!(contents[0] != contents[3], "transactions went on meanwhile");

        // Restore into a cluster of another shape.
        let cluster = start(small().memory_nodes(2).replicas(2).timestamps(timestamps));
        let restored = cluster.restore(&scratch.file("3")).expect("it is sound");
        assert_eq!(restored, taken[3]);
        assert_clean(&cluster);
        let again = scratch.file("again");
        cluster.snapshot(&again).expect("nothing stands in its way");
        assert_eq!(Contents::of(&again), contents[3]);
        // The restored cluster works like any other.
        let over = Arc::new(AtomicBool::new(false));
        let tables = ["accounts", "left", "right"].map(|name| cluster.table(name).expect("made"));
        let driver = drive(&cluster, FIRST, tables, &over);
        cluster.snapshot(&again).expect("nothing stands in its way");
        over.store(true, Ordering::Relaxed);
        driver();
        Contents::of(&again).assert_consistent();
        stop_clean(cluster);
    }
}

#[test]
fn what_is_not_a_whole_snapshot_is_refused_and_changes_nothing() {
    let scratch = Scratch::new("damaged");
    let (cluster, _) = made(small());
    let path = scratch.file("whole");
    let info = cluster.snapshot(&path).expect("nothing stands in its way");
    assert!(matches!(cluster.restore(&path), Err(SnapshotError::NotEmpty)));
    stop_clean(cluster);
    let bytes = fs::read(&path).expect("it is there");
    assert_eq!(bytes.len() as u64, info.bytes);
    let cluster = start(small());
    let refuse = |bytes: &[u8]| {
        let path = scratch.file("other");
        fs::write(&path, bytes).expect("there is room");
        cluster.restore(&path).expect_err("it is not what was written")
    };
    let middle = bytes.len() / 2;
    assert!(matches!(refuse(&bytes[..middle]), SnapshotError::Cut));
    assert!(matches!(refuse(b"an essay"), SnapshotError::Cut | SnapshotError::Foreign));
    let mut flipped = bytes.clone();
    flipped[middle] ^= 16;
    assert!(matches!(refuse(&flipped), SnapshotError::Damaged));
    assert!(matches!(refuse(&[&bytes[..], b"more"].concat()), SnapshotError::Damaged));
    let missing = cluster.restore(&scratch.file("nowhere"));
    assert!(matches!(missing, Err(SnapshotError::Io(_))), "{missing:?}");
    assert!(cluster.tables().is_empty(), "nothing was made");
    cluster.restore(&path).expect("this one is whole");
    stop_clean(cluster);
}

#[test]
fn a_snapshot_that_fails_leaves_the_one_before() {
    let scratch = Scratch::new("fails");
    let (cluster, _) = made(small());
    let path = scratch.file("name");
    cluster.snapshot(&path).expect("nothing stands in its way");
    let before = fs::read(&path).expect("it is there");
    assert_eq!(scratch.names(), ["name"]);
    let nowhere = cluster.snapshot(&scratch.file("no/such/directory"));
    assert!(matches!(nowhere, Err(SnapshotError::Io(_))), "{nowhere:?}");
    // The part file is whole, but cannot get its name.
    fs::create_dir(scratch.file("taken")).expect("there is room");
    let taken = cluster.snapshot(&scratch.file("taken"));
    assert!(matches!(taken, Err(SnapshotError::Io(_))), "{taken:?}");
    assert_eq!(scratch.names(), ["name", "taken"], "nothing is left of it");
    assert_eq!(fs::read(&path).expect("it is there"), before);
    // The remains of a killed process are no obstacle, and no snapshot.
    let left = scratch.file(".name.lotus-a1B2c3.part");
    fs::write(left, &before[..before.len() / 2]).expect("there is room");
    cluster.snapshot(&path).expect("nothing stands in its way");
    assert_eq!(scratch.names(), ["name", "taken"]);
    assert_eq!(Contents::of(&path).rows("accounts").len() as u64, ACCOUNT_COUNT);
    stop_clean(cluster);
}

#[test]
fn a_snapshot_has_the_label_and_the_notes_of_its_taker() {
    let (cluster, _) = made(small());
    let label = SnapshotLabel { sequence: 7, taken: Nanos(9), ..SnapshotLabel::default() };
    let taken = cluster.snapshot_with(
        || Ok(Vec::new()),
        |timestamp| {
            assert!(timestamp > Timestamp::ZERO);
            Ok(label)
        },
        || b"of ours".to_vec(),
    );
    let (bytes, info) = taken.expect("nothing stands in its way");
    assert_eq!((info.head.label, &info.notes[..]), (label, &b"of ours"[..]));
    assert_eq!(read_snapshot(&mut &bytes[..], &mut ()).expect("it is sound"), info);
    assert_eq!(read_snapshot_head(&mut &bytes[..]).expect("it is sound"), info.head);
    stop_clean(cluster);
}

#[test]
fn only_its_owner_reads_a_snapshot() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("owner");
    let (cluster, _) = made(small());
    let path = scratch.file("name");
    cluster.snapshot(&path).expect("nothing stands in its way");
    let mode = fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    stop(cluster);
}
