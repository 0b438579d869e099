//! Rows that share a name: one lock and one chain of buckets, and nothing else in common.
//!
//! Names of a few bits make nearly all rows twins, so that each step of the protocol meets them:
//! searches, caches, claims of inserts, deletions, purges, scans.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, ClusterBuilder, Inline, Isolation, LockKind, LockWait, PrimaryKey, Session, TableId,
    TableSpec, Transaction, TxnError,
};

const ROWS: TableSpec = TableSpec::new("rows").record_bytes(8).key_bytes(16).capacity(64);

/// Keys of eight bytes, and of others.
fn key(number: u64) -> PrimaryKey {
    match number % 3 {
        0 => (number, number).into(),
        _ => number.into(),
    }
}

/// Clusters in which nearly all rows share a name with others.
fn clusters() -> Vec<ClusterBuilder> {
    let few = || small().name_bits(2).horizon_interval(Duration::from_micros(200));
    let locks = [LockKind::Cas, LockKind::Dslr, LockKind::ShiftLock, LockKind::Declock];
    let on_memory = locks.map(|locks| few().compute_nodes(2).locks(locks));
    let lotus = [
        few().name_bits(0),
        few().compute_nodes(3).threads(2),
        few().compute_nodes(2).lock_wait(LockWait::Ordered),
        few().compute_nodes(2).version_table_cache(8),
    ];
    lotus.into_iter().chain(on_memory).collect()
}

/// The rows of a scan, each of which comes once.
fn scanned(cluster: &Cluster, table: TableId) -> BTreeMap<Vec<u8>, u64> {
    let mut rows = BTreeMap::new();
    for row in cluster.scan(table) {
        let (key, value) = row.expect("it serves");
        assert_eq!(rows.insert(key.clone(), number(&value)), None, "{key:?} came twice");
    }
    rows
}

/// Regression: more than 224 rows of one name made a chain with places that a scan could not say,
/// and the scan's coordinator panicked.
#[test]
fn rows_of_one_name_beyond_the_longest_chain_are_refused_and_the_others_are_there() {
    let (cluster, table) = with_table(small().name_bits(0), ROWS.capacity(64).shards(1));
    let (mut there, mut refused) = (0_u64, None);
    while refused.is_none() {
        let row = there;
        let inserted = cluster.submit(FIRST, move |mut session| async move {
            tried(&mut session, async |session| session.insert(table, key(row), row).await).await
        });
        match outcome(inserted) {
            Ok(_) => there += 1,
            Err(error) => refused = Some(error),
        }
    }
    let error = TxnError::KeyCollision { table, key: key(there).into() };
    assert_eq!(refused, Some(error));
    assert_eq!(there, 7 * 32);
    assert_eq!(scanned(&cluster, table).len() as u64, there);
    stop_clean(cluster);
}

#[test]
fn each_of_two_rows_of_one_name_is_read_written_and_deleted_for_itself() {
    for builder in clusters() {
        for inline in [Inline::Auto, Inline::Never] {
            let (cluster, table) = with_table(builder.clone(), ROWS.inline(inline));
            done(cluster.submit(FIRST, move |session| single_rows(session, table)));
            stop_clean(cluster);
        }
    }
}

/// Makes attempts until one is not refused: a lock is released a moment after its commit, and a
/// purge takes locks too.
async fn tried<T>(
    session: &mut Session,
    mut attempt: impl AsyncFnMut(&mut Session) -> Result<T, TxnError>,
) -> Result<T, TxnError> {
    loop {
        match attempt(session).await {
            Err(error) if error.is_retryable() => {
                let view = session.view();
                view.sleep_until(view.now().after(Duration::from_micros(100))).await;
            }
            outcome => return outcome,
        }
    }
}

async fn single_rows(mut session: Session, table: TableId) -> Result<(), TxnError> {
    let session = &mut session;
    let insert = async |session: &mut Session, key, value| {
        tried(session, async |session| session.insert(table, key, value).await).await.map(drop)
    };
    let update = async |session: &mut Session, key, value| {
        tried(session, async |session| session.update(table, key, value).await).await.map(drop)
    };
    let delete = async |session: &mut Session, key| {
        tried(session, async |session| session.delete(table, key).await).await.map(drop)
    };
    let keys: Vec<PrimaryKey> = (0..12).map(key).collect();
    for (place, key) in (0..).zip(&keys) {
        assert_eq!(session.read(table, *key).await, Ok(None));
        let missing = Err(TxnError::NotFound { table, key: (*key).into() });
        assert_eq!(update(session, *key, 9).await, missing);
        assert_eq!(delete(session, *key).await, missing);
        insert(session, *key, place).await?;
        let taken = Err(TxnError::AlreadyExists { table, key: (*key).into() });
        assert_eq!(insert(session, *key, 9).await, taken);
    }
    for (place, key) in (0..).zip(&keys) {
        assert_eq!(session.read(table, *key).await, Ok(Some(place)));
        update(session, *key, 100 + place).await?;
        assert_eq!(session.read(table, *key).await, Ok(Some(100 + place)));
    }
    for key in keys.iter().step_by(2) {
        delete(session, *key).await?;
        assert_eq!(session.read(table, *key).await, Ok(None), "{key:?}");
    }
    for (place, key) in (0..).zip(&keys) {
        let left = (place % 2 == 1).then_some(100 + place);
        assert_eq!(session.read(table, *key).await, Ok(left));
    }
    for key in keys.iter().step_by(2) {
        insert(session, *key, 7).await?;
        assert_eq!(session.read(table, *key).await, Ok(Some(7)));
    }
    Ok(())
}

/// One lock serves several rows of one transaction: read, written, inserted and deleted ones, at
/// once or one after the other.
#[test]
fn rows_of_one_name_meet_in_one_transaction() {
    for builder in clusters() {
        for isolation in ISOLATIONS {
            for inline in [Inline::Auto, Inline::Never] {
                let (cluster, table) = with_table(builder.clone(), ROWS.inline(inline));
                meet(&cluster, table, isolation);
                let rows = scanned(&cluster, table);
                let expected = (0..8).filter(|row| *row != 2);
                let expected: BTreeMap<Vec<u8>, u64> =
                    expected.map(|row| (key(row).as_bytes().to_vec(), 10 + row)).collect();
                assert_eq!(rows, expected);
                stop_clean(cluster);
            }
        }
    }
}

fn meet(cluster: &Cluster, table: TableId, isolation: Isolation) {
    // All are inserted at once, and all but one of them changed.
    done(cluster.run(isolation, async move |txn: &mut Transaction| {
        for row in 0..7 {
            txn.insert(table, key(row), &[0; 8])?;
        }
        Ok(())
    }));
    done(cluster.run(isolation, async move |txn: &mut Transaction| {
        let read = txn.add_ro(table, key(0))?;
        let written = (1..7).map(|row| txn.add_rw(table, key(row)));
        let written = written.collect::<Result<Vec<_>, _>>()?;
        txn.execute().await?;
        assert_eq!(number_of(txn, read), Some(0));
        for (item, row) in written.into_iter().zip(1_u64..) {
            assert_eq!(number_of(txn, item), Some(0), "row {row}");
            txn.put(item, &(10 + row).to_le_bytes())?;
        }
        Ok(())
    }));
    // A row is deleted, and another one of its name comes.
    done(cluster.run(isolation, async move |txn: &mut Transaction| {
        let old = txn.add_rw(table, key(2))?;
        txn.insert(table, key(7), &17_u64.to_le_bytes())?;
        txn.execute().await?;
        txn.delete(old)
    }));
    // The lock is held to write, and wanted to read.
    done(cluster.run(isolation, async move |txn: &mut Transaction| {
        let first = txn.add_rw(table, key(0))?;
        txn.execute().await?;
        let others = (1..8).map(|row| txn.add_ro(table, key(row)));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        txn.execute().await?;
        let seen: Vec<_> = others.into_iter().map(|item| number_of(txn, item)).collect();
        let expected = (1..8).map(|row| (row != 2).then_some(10 + row));
        assert_eq!(seen, expected.collect::<Vec<_>>());
        txn.put(first, &10_u64.to_le_bytes())
    }));
    // The lock is held to read, and wanted to write.
    done(cluster.run(isolation, async move |txn: &mut Transaction| {
        let read = txn.add_ro(table, key(0))?;
        txn.execute().await?;
        assert_eq!(number_of(txn, read), Some(10));
        let written = txn.add_rw(table, key(1))?;
        txn.execute().await?;
        assert_eq!(number_of(txn, written), Some(11));
        txn.put(written, &11_u64.to_le_bytes())
    }));
}

/// What random transactions leave is what a map has, with purges beside them that free the places
/// of deleted rows for others of their name.
#[test]
fn random_transactions_over_rows_of_few_names_are_as_over_a_map() {
    for (place, builder) in clusters().into_iter().enumerate() {
        let spec = if place % 2 == 0 { ROWS } else { ROWS.inline(Inline::Never) };
        let (cluster, table) = with_table(builder, spec);
        let seed = 7 + place as u64;
        let rows = done(cluster.submit(FIRST, move |session| random(session, table, seed)));
        let rows: BTreeMap<Vec<u8>, u64> =
            rows.into_iter().map(|(row, value)| (key(row).as_bytes().to_vec(), value)).collect();
        assert_eq!(scanned(&cluster, table), rows);
        let mut seen = BTreeSet::new();
        let mut visit = |key: &PrimaryKey, _: &[u8], _| assert!(seen.insert(*key), "{key:?} twice");
        cluster.audit_scan(table, &mut visit).expect("all nodes can be reached");
        assert_eq!(seen.len(), rows.len());
        stop_clean(cluster);
    }
}

async fn random(
    mut session: Session,
    table: TableId,
    seed: u64,
) -> Result<BTreeMap<u64, u64>, TxnError> {
    const KEYS: u64 = 24;
    let mut model = BTreeMap::new();
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut steps = 0;
    while steps < 120 {
        let rows: BTreeSet<u64> = (0..1 + draw(4)).map(|_| draw(KEYS)).collect();
        let mut changed = model.clone();
        let mut txn = session.begin(Isolation::Serializable).await?;
        let items = rows.iter().map(|row| txn.add_rw(table, key(*row)));
        let items = items.collect::<Result<Vec<_>, _>>()?;
        match txn.execute().await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => continue,
            Err(error) => return Err(error),
        }
        for (row, item) in rows.iter().zip(items) {
            assert_eq!(number_of(&txn, item), model.get(row).copied(), "row {row}");
            match draw(3) {
                0 if model.contains_key(row) => {
                    txn.delete(item)?;
                    changed.remove(row);
                }
                1 => {}
                _ => {
                    let value = draw(1 << 30);
                    txn.upsert(item, &value.to_le_bytes())?;
                    changed.insert(*row, value);
                }
            }
        }
        match txn.commit().await {
            Ok(_) => (model, steps) = (changed, steps + 1),
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
        let row = draw(KEYS);
        assert_eq!(session.read(table, key(row)).await?, model.get(&row).copied(), "row {row}");
    }
    Ok(model)
}

/// Loaded rows, and those that a cached address of another leads to.
#[test]
fn rows_of_one_name_are_loaded_and_found_by_cold_and_warm_caches() {
    for addresses in [lotus::Addresses::Cold, lotus::Addresses::Warm] {
        for inline in [Inline::Auto, Inline::Never] {
            let builder = small().name_bits(4).compute_nodes(2).addresses(addresses);
            let (cluster, table) = with_table(builder, ROWS.inline(inline));
            let source = |row: u64, value: &mut Vec<u8>| {
                value.extend(row.to_le_bytes());
                key(row)
            };
            cluster.load(table, 200, &source, &Default::default()).expect("they fit");
            for _ in 0..2 {
                done(cluster.submit(FIRST, move |mut session| async move {
                    for row in 0..210 {
                        let found = session.read(table, key(row)).await?;
                        assert_eq!(found, (row < 200).then_some(row));
                    }
                    Ok(())
                }));
            }
            assert_eq!(scanned(&cluster, table).len(), 200);
            stop_clean(cluster);
        }
    }
}

/// Keys of 16 bytes that had one name while names were xxh3 hashes. By choosing such keys an
/// application could lock the rows of another out.
#[test]
fn keys_that_were_made_to_collide_are_as_others() {
    let (cluster, table) = with_table(small(), ROWS);
    let keys = [
        (0xB939_42EA_7B73_8267_u64, 0xD754_6379_A4BA_4790_u64),
        (0x550E_8400_E29B_41D4, 0xA716_4466_5544_0000),
    ];
    done(cluster.submit(FIRST, move |mut session| async move {
        for (key, value) in keys.into_iter().zip(1..) {
            session.insert(table, key, value).await?;
        }
        let [first, second] = keys;
        assert_eq!(session.read(table, first).await, Ok(Some(1)));
        session.update(table, second, 3).await?;
        session.delete(table, first).await?;
        assert_eq!(session.read(table, second).await, Ok(Some(3)));
        Ok(())
    }));
    stop_clean(cluster);
}
