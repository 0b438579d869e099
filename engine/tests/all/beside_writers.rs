//! Everything that reads whole tables, beside writers at full speed: snapshot files, scans, audits'
//! reading, while memory nodes are filled and tables dropped.
//!
//! Snapshots of a cluster with an ordered table failed with "a snapshot is being taken already":
//! the reader met a node whose newest version is not the one to show, which happens only while the
//! node is written, and read it as a row of an application, which the engine refuses in an ordered
//! table. Nothing had ever been written beside a snapshot but rows of one kind of table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, ClusterBuilder, CoordinatorId, Inline, Isolation, MemoryStanding, PrimaryKey, Session,
    SnapshotError, SnapshotInfo, SnapshotVisitor, Submitted, TableId, TableSpec, Transaction,
    TxnError, read_snapshot,
};
use lotus_fabric::ids::NodeId;

/// Lease, long enough for a busy machine.
const LEASE: Duration = Duration::from_secs(1);
/// Limit of the waits for memory nodes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Accounts of each table, with so much in each.
const ACCOUNTS: u64 = 300;
const BALANCE: u64 = 100;
/// Accounts among which most transfers are: their versions leave the cells.
const HOT: u64 = 4;

/// Tables of every kind: records beside their cells; in slots of their own, with as few cells as
/// there can be; and in the leaves of trees with few and with many rows.
fn kinds() -> [TableSpec; 4] {
    let spec = |name| TableSpec::new(name).capacity(2 * ACCOUNTS).versions(2);
    [
        spec("beside cells").record_bytes(16),
        spec("apart").record_bytes(300).inline(Inline::Never),
        spec("ordered").record_bytes(40).ordered(),
        spec("ordered, of large rows").record_bytes(600).ordered(),
    ]
}

/// Value of an account, as long as the table's values are.
fn value(spec: &TableSpec, balance: u64) -> Vec<u8> {
    let mut value = vec![7; spec.record_bytes as usize];
    value[..8].copy_from_slice(&balance.to_le_bytes());
    value
}

fn balance(value: &[u8]) -> u64 {
    number(&value[..8])
}

fn made(builder: ClusterBuilder) -> (Running, Vec<(TableId, TableSpec)>) {
    let cluster = start(builder);
    let tables = kinds().map(|spec| {
        let table = cluster.create_table(spec.clone()).expect("there is room");
        let loaded = AtomicU64::new(0);
        let account = |row: u64, bytes: &mut Vec<u8>| {
            bytes.extend(value(&spec, BALANCE));
            PrimaryKey::from(row)
        };
        cluster.load(table, ACCOUNTS, &account, &loaded).expect("they fit");
        assert_eq!(loaded.load(Ordering::Relaxed), ACCOUNTS, "rows, and no nodes of trees");
        (table, spec)
    });
    (cluster, tables.to_vec())
}

/// Balance of an account in a transaction; `None` if there is no such account.
async fn read(txn: &mut Transaction, table: TableId, row: u64) -> Result<Option<u64>, TxnError> {
    match txn.ordered(table) {
        Ok(mut ordered) => Ok(ordered.get_for_update(&row.to_be_bytes()).await?.map(balance)),
        Err(_) => {
            let item = txn.add_rw(table, row)?;
            txn.execute().await?;
            Ok(txn.value(item).map(balance))
        }
    }
}

/// Sets the balance of an account; closes it with `None`.
async fn write(
    txn: &mut Transaction,
    (table, spec): &(TableId, TableSpec),
    row: u64,
    now: Option<u64>,
) -> Result<(), TxnError> {
    let bytes = now.map(|now| value(spec, now));
    if let Ok(mut ordered) = txn.ordered(*table) {
        return match bytes {
            Some(bytes) => ordered.put(&row.to_be_bytes(), &bytes).await,
            None => ordered.delete(&row.to_be_bytes()).await.map(drop),
        };
    }
    let item = txn.add_rw(*table, row)?;
    match bytes {
        Some(bytes) => txn.upsert(item, &bytes),
        None => txn.delete(item),
    }
}

/// Moves some of an account's balance to another one, which it opens if need be; one in eight moves
/// all, and closes the first.
async fn transfer(
    session: &mut Session,
    isolation: Isolation,
    of: &(TableId, TableSpec),
    random: u64,
) -> Result<(), TxnError> {
    let among = if random.is_multiple_of(3) { 2 * ACCOUNTS } else { HOT };
    let [from, to] = [(random >> 8) % among, (random >> 32) % among];
    let mut txn = session.begin(isolation).await?;
    let (Some(has), true) = (read(&mut txn, of.0, from).await?, from != to) else { return Ok(()) };
    let gets = read(&mut txn, of.0, to).await?;
    let amount = if random.is_multiple_of(8) { has } else { has.min(3) };
    let rest = (amount < has).then_some(has - amount);
    write(&mut txn, of, from, rest).await?;
    write(&mut txn, of, to, Some(gets.unwrap_or(0) + amount)).await?;
    txn.commit().await.map(drop)
}

/// Writers at all coordinators, which do not pause before they are told that it is over.
struct Writers {
    over: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    jobs: Vec<Submitted<()>>,
}

impl Writers {
    fn start(cluster: &Cluster, tables: &[(TableId, TableSpec)]) -> Self {
        let (over, committed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let at = |(stream, coordinator_id): (u64, CoordinatorId)| {
            let (over, committed) = (Arc::clone(&over), Arc::clone(&committed));
            let tables = tables.to_vec();
            cluster.submit(coordinator_id, move |mut session| async move {
                let (mut random, mut attempts) = (stream + 1, 0);
                while !over.load(Ordering::Relaxed) {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                    let isolation = ISOLATIONS[(random >> 60) as usize % 2];
                    let of = &tables[(random >> 50) as usize % tables.len()];
                    match transfer(&mut session, isolation, of, random >> 3).await {
                        Ok(()) => (attempts, _) = (0, committed.fetch_add(1, Ordering::Relaxed)),
                        Err(error) if error.is_retryable() => {
                            attempts += 1;
                            session.back_off(attempts).await;
                        }
                        // Its outcome is known to recovery.
                        Err(TxnError::Unknown(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            })
        };
        let jobs = (0..).zip(cluster.coordinators()).map(at).collect();
        Self { over, committed, jobs }
    }

    /// Waits until they have committed so many more transactions.
    #[track_caller]
    fn go_on(&self, more: u64) {
        let until = self.committed.load(Ordering::Relaxed) + more;
        let done = || self.committed.load(Ordering::Relaxed) >= until;
        assert!(eventually_within(PATIENCE, done), "the writers stand still");
    }

    fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.jobs.into_iter().for_each(done);
    }
}

/// Rows of the tables of a file.
#[derive(Default)]
struct Rows {
    specs: Vec<TableSpec>,
    counted: u64,
}

impl SnapshotVisitor for Rows {
    fn table(&mut self, spec: TableSpec) -> Result<(), SnapshotError> {
        self.specs.push(spec);
        Ok(())
    }

    fn row(&mut self, _: PrimaryKey, value: &[u8]) -> Result<(), SnapshotError> {
        self.counted += self.specs.last().expect("tables come first").rows_in(value);
        Ok(())
    }
}

/// Checks that a table has all that its transactions moved.
#[track_caller]
fn assert_whole(cluster: &Cluster, table: TableId) -> u64 {
    let (mut sum, mut rows) = (0, 0);
    for row in cluster.scan(table) {
        let (_, value) = row.expect("nothing stands in its way");
        (sum, rows) = (sum + balance(&value), rows + 1);
    }
    assert_eq!(sum, ACCOUNTS * BALANCE, "table {}", table.0);
    rows
}

/// Takes a snapshot, and checks all that is said of it.
#[track_caller]
fn snapshot(cluster: &Cluster) -> (Vec<u8>, SnapshotInfo) {
    let label = |_| {
        let taken = lotus_fabric::env::Env::real(0).now();
        Ok(lotus::SnapshotLabel { taken, ..Default::default() })
    };
    let taken = cluster.snapshot_with(|| Ok(Vec::new()), label, Vec::new);
    let (bytes, info) = taken.unwrap_or_else(|error| panic!("it cannot be taken: {error}"));
    let mut rows = Rows::default();
    assert_eq!(read_snapshot(&mut &bytes[..], &mut rows).expect("it is whole"), info);
    assert_eq!(info.rows, rows.counted, "rows, and no nodes of trees");
    (bytes, info)
}

/// Restores a file into another cluster, which must be consistent and work.
#[track_caller]
fn assert_restores(bytes: &[u8], info: &SnapshotInfo) {
    // Tests run side by side, in one process and in several.
    static FILES: AtomicU64 = AtomicU64::new(0);
    let (process, file) = (std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(format!("lotus-beside-{process}-{file}"));
    std::fs::write(&path, bytes).expect("there is room");
    let cluster = start(small().memory_nodes(1).replicas(1));
    let restored = cluster.restore(&path);
    let _ = std::fs::remove_file(&path);
    assert_eq!(restored.expect("it is sound"), *info);
    assert_clean(&cluster);
    let mut rows = 0;
    let mut tables = Vec::new();
    for spec in kinds() {
        let table = cluster.table(&spec.name).expect("it was there");
        rows += assert_whole(&cluster, table);
        tables.push((table, spec));
    }
    assert_eq!(rows, info.rows, "the rows that were said are there");
    let writers = Writers::start(&cluster, &tables);
    writers.go_on(50);
    writers.end();
    stop_clean(cluster);
}

fn await_standing(cluster: &Cluster, place: usize, standing: MemoryStanding) {
    let now = || cluster.memory_status().expect("the authority is in this process").nodes;
    assert!(eventually_within(PATIENCE, || now()[place] == standing), "{:?}", now());
}

/// Everything that reads, once.
#[track_caller]
fn read_all(cluster: &Cluster, tables: &[(TableId, TableSpec)]) -> (Vec<u8>, SnapshotInfo) {
    let taken = snapshot(cluster);
    for (table, _) in tables {
        assert_whole(cluster, *table);
        let mut seen = 0;
        cluster.audit_scan(*table, &mut |_, _, _| seen += 1).expect("memory answers");
        assert!(seen > 0);
    }
    // Beside writers its findings mean nothing, but it ends.
    cluster.audit().expect("memory answers");
    taken
}

/// Reads beside writers: in peace, while a memory node is away and filled, and while a table is
/// dropped.
fn all_is_read_beside_writers(builder: ClusterBuilder) {
    let (cluster, tables) = made(builder.lease(Some(LEASE)));
    let writers = Writers::start(&cluster, &tables);
    writers.go_on(200);
    let mut files = vec![read_all(&cluster, &tables)];
    let fabric = cluster.local_fabric();
    fabric.set_reachable(NodeId(1), false).expect("there is such a node");
    files.push(snapshot(&cluster));
    await_standing(&cluster, 1, MemoryStanding::Lost);
    files.push(read_all(&cluster, &tables));
    fabric.wipe(NodeId(1)).expect("there is such a node");
    fabric.set_reachable(NodeId(1), true).expect("there is such a node");
    files.push(snapshot(&cluster));
    await_standing(&cluster, 1, MemoryStanding::Serving);
    let further = TableSpec::new("further").record_bytes(16).capacity(10);
    for spec in [further.clone().ordered(), further] {
        // Not while another change is under way.
        assert!(eventually_within(PATIENCE, || cluster.create_table(spec.clone()).is_ok()));
        cluster.begin_to_drop("further", PATIENCE).expect("it is there");
        files.push(read_all(&cluster, &tables));
    }
    writers.go_on(200);
    writers.end();
    let last = snapshot(&cluster);
    stop_clean(cluster);
    for (bytes, info) in [&files[0], &files[1], files.last().expect("there are some"), &last] {
        assert_restores(bytes, info);
    }
}

/// Memory enough for the versions that writers displace while a snapshot is taken slowly.
fn busy() -> ClusterBuilder {
    small().compute_nodes(2).memory_limit(256 << 20)
}

#[test]
fn all_is_read_beside_writers_of_every_kind_of_table() {
    all_is_read_beside_writers(busy());
}

#[test]
fn all_is_read_beside_writers_without_version_tables_in_caches() {
    all_is_read_beside_writers(busy().version_table_cache(0));
}
