//! Scans: one snapshot each, whatever is written meanwhile; whole, resumable, and soon gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, CoordinatorId, Inline, Isolation, PrimaryKey, ScanCursor, ScanError, ScanPage,
    Session, TableId, TableSpec, TxnError,
};

/// Rows of which a page has a few dozen.
const ACCOUNTS: TableSpec = TableSpec::new("accounts").record_bytes(1_000).capacity(1_000);
const COUNT: u64 = 600;
const BALANCE: u64 = 1_000;

fn value(balance: u64) -> Vec<u8> {
    let mut value = vec![0; 1_000];
    value[..8].copy_from_slice(&balance.to_le_bytes());
    value
}

fn balance(value: &[u8]) -> u64 {
    number(&value[..8])
}

fn with_accounts(spec: TableSpec, compute_nodes: usize) -> (Running, TableId) {
    let (cluster, table) = with_table(small().compute_nodes(compute_nodes), spec);
    let account = |row: u64, bytes: &mut Vec<u8>| {
        bytes.extend(value(BALANCE));
        PrimaryKey::from(row)
    };
    cluster.load(table, COUNT, &account, &Default::default()).expect("they fit");
    (cluster, table)
}

fn row(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("the keys of these tests are numbers"))
}

/// Takes in the rows of a page, each of which is new.
#[track_caller]
fn take(rows: &mut BTreeMap<u64, u64>, page: &ScanPage) {
    for (key, value) in &page.rows {
        let before = rows.insert(row(key), balance(value));
        assert_eq!(before, None, "row {key:?} came twice");
    }
}

/// The rows of a whole scan, and its number of pages.
fn scanned(cluster: &Cluster, table: TableId) -> Result<(BTreeMap<u64, u64>, usize), ScanError> {
    let mut scan = cluster.scan(table);
    let (mut rows, mut pages) = (BTreeMap::new(), 0);
    while let Some(page) = scan.next_page()? {
        let bytes = page.rows.iter().map(|(key, value)| key.len() + value.len());
        assert!(bytes.sum::<usize>() <= ScanPage::MAX_BYTES);
        take(&mut rows, &page);
        pages += 1;
    }
    Ok((rows, pages))
}

/// The rows behind a cursor.
fn rest(cluster: &Cluster, cursor: &ScanCursor) -> Result<BTreeMap<u64, u64>, ScanError> {
    let mut rows = BTreeMap::new();
    let mut scan = cluster.resume_scan(cursor);
    while let Some(page) = scan.next_page()? {
        take(&mut rows, &page);
    }
    Ok(rows)
}

async fn transfer(
    session: &mut Session,
    table: TableId,
    from: u64,
    to: u64,
) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    let items = [txn.add_rw(table, from)?, txn.add_rw(table, to)?];
    txn.execute().await?;
    let [payer, payee] = items.map(|item| balance(txn.value(item).expect("it was loaded")));
    if payer > 0 {
        txn.put(items[0], &value(payer - 1))?;
        txn.put(items[1], &value(payee + 1))?;
    }
    txn.commit().await.map(drop)
}

/// Tries again for as long as that may help: locks of the last commit are released a little later
/// than it is reported.
async fn until_done(
    session: &mut Session,
    attempt: impl AsyncFn(&mut Session) -> Result<(), TxnError>,
) -> Result<(), TxnError> {
    loop {
        match attempt(session).await {
            Err(error) if error.is_retryable() => session.back_off(2).await,
            outcome => return outcome,
        }
    }
}

/// Transfers one between two accounts, in one committed transaction.
#[track_caller]
fn transferred(cluster: &Cluster, table: TableId, from: u64, to: u64) {
    done(cluster.submit(FIRST, move |mut session| async move {
        until_done(&mut session, async |session| transfer(session, table, from, to).await).await
    }));
}

/// Transfers between all accounts until it is `over`.
async fn transfers(
    mut session: Session,
    table: TableId,
    start: u64,
    over: Arc<AtomicBool>,
    made: Arc<AtomicU64>,
) -> Result<(), TxnError> {
    let mut step = start;
    while !over.load(Ordering::Relaxed) {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (from, to) = ((step >> 33) % COUNT, (step >> 13) % COUNT);
        if from == to {
            continue;
        }
        // Other tests run beside this one, and their time-outs are short.
        let view = session.view();
        view.sleep_until(view.now().after(Duration::from_micros(100))).await;
        match transfer(&mut session, table, from, to).await {
            Ok(()) => _ = made.fetch_add(1, Ordering::Relaxed),
            Err(error) if error.is_retryable() => session.back_off(2).await,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn every_sum_is_true(spec: TableSpec) {
    let (cluster, table) = with_accounts(spec, 2);
    let (over, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let coordinator_id = CoordinatorId { compute_node: writer % 2, thread: 0 };
            let (over, made) = (Arc::clone(&over), Arc::clone(&made));
            cluster.submit(coordinator_id, move |session| {
                transfers(session, table, writer as u64 + 1, over, made)
            })
        })
        .collect();
    let (mut whole, mut too_old) = (0, 0);
    while whole < 12 {
        match scanned(&cluster, table) {
            Ok((rows, pages)) => {
                assert_eq!((rows.len() as u64, rows.values().sum()), (COUNT, COUNT * BALANCE));
                assert!(pages > 5, "{pages}");
                whole += 1;
            }
            Err(ScanError::SnapshotTooOld) => too_old += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(too_old < 100, "scans are for tables that are written");
    }
    over.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(done);
    assert!(made.load(Ordering::Relaxed) > 100, "the writers were at work");
    stop_clean(cluster);
}

#[test]
fn every_scan_beside_transfers_shows_the_true_sum() {
    every_sum_is_true(ACCOUNTS);
}

#[test]
fn every_scan_of_rows_with_more_versions_shows_the_true_sum() {
    every_sum_is_true(ACCOUNTS.versions(4).inline(Inline::Never));
}

/// The audit's scan shows the newest versions: money that moves behind it and ahead of it is seen
/// twice. A scan in the same place shows it once.
#[test]
fn the_audits_scan_beside_writers_shows_sums_that_never_were() {
    let (cluster, table) = with_accounts(ACCOUNTS, 1);
    let mut order = Vec::new();
    let mut visit = |key: &PrimaryKey, _: &[u8], _| order.push(row(key.as_bytes()));
    cluster.audit_scan(table, &mut visit).expect("the memory nodes answer");
    let (first, last) = (order[0], order[order.len() - 1]);
    let (mut sum, mut seen) = (0, 0);
    let mut visit = |_: &PrimaryKey, value: &[u8], _| {
        if seen == 0 {
            transferred(&cluster, table, first, last);
        }
        (sum, seen) = (sum + balance(value), seen + 1);
    };
    cluster.audit_scan(table, &mut visit).expect("the memory nodes answer");
    assert_eq!((seen, sum), (COUNT, COUNT * BALANCE + 1), "nobody ever had the last one");

    let mut scan = cluster.scan(table);
    let page = scan.next_page().expect("nothing is too old").expect("there are rows");
    let mut rows = BTreeMap::new();
    take(&mut rows, &page);
    let ahead = (0..COUNT).find(|row| !rows.contains_key(row)).expect("a page is a part");
    transferred(&cluster, table, row(&page.rows[0].0), ahead);
    while let Some(page) = scan.next_page().expect("nothing is too old") {
        take(&mut rows, &page);
    }
    assert_eq!((rows.len() as u64, rows.values().sum()), (COUNT, COUNT * BALANCE));
    drop(scan);
    stop_clean(cluster);
}

#[test]
fn rows_that_come_and_go_meanwhile_change_nothing() {
    let (cluster, table) = with_accounts(ACCOUNTS, 2);
    let mut scan = cluster.scan(table);
    let mut rows = BTreeMap::new();
    take(&mut rows, &scan.next_page().expect("it is new").expect("there are rows"));
    done(cluster.submit(FIRST, move |mut session| async move {
        for key in 0..COUNT {
            let replace = async |session: &mut Session| {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let old = txn.add_rw(table, key)?;
                txn.insert(table, key + COUNT, &value(7))?;
                txn.execute().await?;
                txn.delete(old)?;
                txn.commit().await.map(drop)
            };
            until_done(&mut session, replace).await?;
        }
        Ok(())
    }));
    // Time enough for purges, which must not happen.
    std::thread::park_timeout(Duration::from_millis(100));
    while let Some(page) = scan.next_page().expect("its snapshot is held") {
        take(&mut rows, &page);
    }
    assert!(rows.keys().copied().eq(0..COUNT), "{} rows", rows.len());
    assert!(rows.values().all(|balance| *balance == BALANCE));
    drop(scan);
    let (after, _) = scanned(&cluster, table).expect("nothing is written");
    assert!(after.keys().copied().eq(COUNT..2 * COUNT), "{} rows", after.len());
    stop_clean(cluster);
}

#[test]
fn a_scan_goes_on_at_its_cursor_while_its_snapshot_is_readable() {
    let (cluster, table) = with_accounts(ACCOUNTS, 2);
    let mut scan = cluster.scan(table);
    let mut rows = BTreeMap::new();
    let page = scan.next_page().expect("it is new").expect("there are rows");
    take(&mut rows, &page);
    let cursor = page.next.expect("there are more");
    assert_eq!(ScanCursor::decode(&cursor.encode()), Some(cursor.clone()));
    assert_eq!(cursor.table(), table);
    drop(scan);
    // Nothing holds the snapshot now, and nothing that it needs is replaced.
    std::thread::park_timeout(Duration::from_millis(50));
    for _ in 0..2 {
        let mut all = rows.clone();
        all.extend(rest(&cluster, &cursor).expect("all that it shows is there"));
        assert_eq!((all.len() as u64, all.values().sum()), (COUNT, COUNT * BALANCE));
    }
    // A version that was displaced is found, or is missed.
    let behind = rest(&cluster, &cursor).expect("as before");
    let changed: Vec<u64> = behind.keys().copied().collect();
    let mut rounds = 0;
    eventually(|| {
        let changed = changed.clone();
        done(cluster.submit(FIRST, move |mut session| async move {
            for pair in changed.chunks_exact(2) {
                let [from, to] = [pair[0], pair[1]];
                let change = async |session: &mut Session| transfer(session, table, from, to).await;
                until_done(&mut session, change).await?;
            }
            Ok(())
        }));
        rounds += 1;
        match rest(&cluster, &cursor) {
            Ok(rows) => {
                assert_eq!(rows, behind, "a row of another time, after {rounds} rounds");
                false
            }
            Err(error) => {
                assert_eq!(error, ScanError::SnapshotTooOld);
                true
            }
        }
    });
    stop_clean(cluster);
}

/// Without a scan that holds the snapshot, deleted rows are purged, and their absence must not be
/// believed.
#[test]
fn a_cursor_whose_rows_were_purged_is_too_old() {
    let (cluster, table) = with_accounts(ACCOUNTS, 1);
    let page = cluster.scan(table).next_page().expect("it is new").expect("there are rows");
    let cursor = page.next.expect("there are more");
    let behind = rest(&cluster, &cursor).expect("all that it shows is there");
    let gone = *behind.keys().next_back().expect("there are some");
    done(cluster.submit(FIRST, move |mut session| async move {
        session.delete(table, gone).await.map(drop)
    }));
    eventually(|| match rest(&cluster, &cursor) {
        Ok(rows) => {
            assert_eq!(rows, behind);
            // Purges wait for something to do.
            let other = (gone + 1) % COUNT;
            transferred(&cluster, table, other, (other + 1) % COUNT);
            false
        }
        Err(error) => error == ScanError::SnapshotTooOld,
    });
    stop_clean(cluster);
}

/// Cursors of other clusters, and tables that do not exist.
#[test]
fn scans_that_cannot_be_are_refused() {
    let (cluster, table) = with_accounts(ACCOUNTS, 1);
    let (other, _) = with_accounts(ACCOUNTS, 1);
    let page = other.scan(table).next_page().expect("it is new").expect("there are rows");
    let foreign = page.next.expect("there are more");
    assert_eq!(rest(&cluster, &foreign), Err(ScanError::SnapshotTooOld));
    let mut unknown = cluster.scan(TableId(7));
    assert_eq!(unknown.next_page(), Err(ScanError::UnknownTable(TableId(7))));
    assert_eq!(unknown.next_page(), Ok(None), "an error is the end");
    drop(unknown);
    let mut fields = foreign.encode();
    fields[15] = 0x7f;
    let future = ScanCursor::decode(&fields).expect("63 bits");
    assert_eq!(rest(&other, &future), Err(ScanError::SnapshotTooOld), "it was never drawn");
    stop(other);
    stop_clean(cluster);
}

#[test]
fn scans_that_are_dropped_free_their_slots() {
    let (cluster, table) = with_accounts(ACCOUNTS, 1);
    for round in 0..40 {
        let mut scan = cluster.scan(table);
        match round % 3 {
            0 => drop(scan),
            1 => drop(scan.next_page().expect("it is new").expect("there are rows")),
            _ => assert_eq!(scan.by_ref().take(100).filter(Result::is_ok).count(), 100),
        }
    }
    let (rows, _) = scanned(&cluster, table).expect("nothing is written");
    assert_eq!(rows.len() as u64, COUNT);
    stop_clean(cluster);
}

/// The index was sized for a few rows: most are in long chains of overflow buckets, and pages end
/// within them.
#[test]
fn tables_with_many_more_rows_than_they_were_made_for_are_read_whole() {
    let spec = TableSpec::new("crowded").record_bytes(1_000).capacity(20).shards(2);
    let (cluster, table) = with_table(small(), spec);
    done(cluster.submit(FIRST, move |mut session| async move {
        for key in 0..1_000_u64 {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.insert(table, key, &value(key))?;
            txn.commit().await?;
        }
        Ok(())
    }));
    let (rows, pages) = scanned(&cluster, table).expect("nothing is written");
    assert!(rows.into_iter().eq((0..1_000).map(|key| (key, key))));
    assert!(pages > 10, "{pages}");
    // From every cursor, the rest and no more.
    let mut before = 0;
    let mut scan = cluster.scan(table);
    while let Some(page) = scan.next_page().expect("nothing is written") {
        before += page.rows.len();
        let Some(cursor) = page.next else { break };
        assert_eq!(before + rest(&cluster, &cursor).expect("as before").len(), 1_000);
    }
    assert_eq!(before, 1_000);
    drop(scan);
    stop_clean(cluster);
}

#[test]
fn a_large_table_without_rows_has_pages_all_the_same() {
    let spec = TableSpec::new("empty").record_bytes(8).capacity(160_000);
    let (cluster, table) = with_table(small(), spec);
    let (rows, pages) = scanned(&cluster, table).expect("nothing is written");
    assert!(rows.is_empty() && pages > 1, "{pages}");
    assert_eq!(cluster.scan(table).count(), 0);
    stop_clean(cluster);
}

#[test]
fn a_job_scans_in_its_own_slot() {
    let (cluster, table) = with_accounts(ACCOUNTS, 1);
    let job = move |mut session: Session| async move {
        let mut rows = BTreeMap::new();
        let mut scan = session.scan(table).await.expect("it exists");
        let start = scan.cursor().expect("it has begun");
        let first = scan.next_page().await.expect("it is new").expect("there are rows");
        take(&mut rows, &first);
        // The answer was lost, and the page is read again.
        scan.go_to(&start).expect("it is this scan's");
        assert_eq!(scan.next_page().await.expect("it is held"), Some(first));
        while let Some(page) = scan.next_page().await.expect("it is held") {
            take(&mut rows, &page);
        }
        assert_eq!(scan.cursor(), None);
        let snapshot = scan.snapshot();
        drop(scan);
        // The slot is free for transactions again.
        transfer(&mut session, table, 0, 1).await?;
        let mut later = session.scan(table).await.expect("it exists");
        assert!(later.snapshot() > snapshot);
        assert_eq!(later.go_to(&start), Err(ScanError::SnapshotTooOld));
        Ok(rows)
    };
    let rows = done(cluster.submit(FIRST, job));
    assert_eq!((rows.len() as u64, rows.values().sum()), (COUNT, COUNT * BALANCE));
    stop_clean(cluster);
}

#[test]
fn a_scan_ends_with_its_compute_node() {
    let builder = small().compute_nodes(2).lease(Some(lease()));
    let (cluster, table) = with_table(builder, ACCOUNTS);
    let account = |row: u64, bytes: &mut Vec<u8>| {
        bytes.extend(value(BALANCE));
        PrimaryKey::from(row)
    };
    cluster.load(table, COUNT, &account, &Default::default()).expect("they fit");
    let mut scans = [cluster.scan(table), cluster.scan(table)];
    for scan in &mut scans {
        scan.next_page().expect("it is new").expect("there are rows");
    }
    cluster.kill(0);
    let ends = scans.each_mut().map(|scan| {
        loop {
            match scan.next_page() {
                Ok(Some(_)) => {}
                end => break end,
            }
        }
    });
    let fenced = ends.iter().filter(|end| **end == Err(ScanError::Txn(TxnError::Fenced)));
    assert_eq!(fenced.count(), 1, "{ends:?}");
    assert!(ends.contains(&Ok(None)), "the other node's is whole: {ends:?}");
    drop(scans);
    let (rows, _) = scanned(&cluster, table).expect("the other node serves");
    assert_eq!(rows.len() as u64, COUNT);
    stop(cluster);
}
