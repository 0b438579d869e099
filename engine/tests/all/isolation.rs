//! Visibility between concurrent transactions.
//!
//! Every test runs under each combination of locks, timestamps, read rule and visible order that it
//! concerns, on two compute nodes of two coordinators each: half of the locks are remote, and there
//! are more coordinators than cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::common::*;
use lotus::{
    ClusterBuilder, Isolation, LockKind, ReadRule, Receipt, Retention, Session, TableId,
    TimestampKind, TxnError, VisibleOrder,
};

/// Returns every combination of settings that must not affect the results of transactions.
fn variants() -> impl Iterator<Item = ClusterBuilder> {
    (0..32u8).map(|bits| {
        let bit = |place: u8| bits >> place & 1 == 1;
        let locks = match (bits >> 3, bit(0)) {
            (0 | 1, false) => LockKind::Lotus,
            (0 | 1, true) => LockKind::Cas,
            (2, _) => LockKind::Dslr,
            (_, false) => LockKind::ShiftLock,
            (_, true) => LockKind::Declock,
        };
        let timestamps = if bit(1) { TimestampKind::Oracle } else { TimestampKind::Clock };
        let rule = if bit(2) { ReadRule::Snapshot } else { ReadRule::Latest };
        let order = if bit(3) { VisibleOrder::AllAtOnce } else { VisibleOrder::BackupsFirst };
        let shape = small().memory_limit(16 << 20).compute_nodes(2).threads(2).coroutines(4);
        shape.locks(locks).timestamps(timestamps).read_rule(rule).visible_order(order)
    })
}

/// Retries `attempt` until it ends with anything but a retryable error. The pauses grow, so that
/// one of many conflicting transactions succeeds.
macro_rules! retrying {
    ($session:ident, $attempt:expr) => {{
        let mut attempts = 0;
        loop {
            match $attempt {
                Err(error) if error.is_retryable() && attempts < 10_000 => {
                    $session.back_off(attempts).await;
                    attempts += 1;
                }
                outcome => break outcome,
            }
        }
    }};
}

/// Moves `amount` from one row to another, if the first has that much; one attempt.
async fn transfer(
    session: &mut Session,
    isolation: Isolation,
    table: TableId,
    [from, to]: [u64; 2],
    amount: u64,
) -> Result<Receipt, TxnError> {
    let mut txn = session.begin(isolation).await?;
    let (from, to) = (txn.add_rw(table, from)?, txn.add_rw(table, to)?);
    txn.execute().await?;
    let balance = |item| number_of(&txn, item).expect("the accounts exist");
    let (left, right) = (balance(from), balance(to));
    let amount = amount.min(left);
    txn.put(from, &(left - amount).to_le_bytes())?;
    txn.put(to, &(right + amount).to_le_bytes())?;
    txn.commit().await
}

/// Reads rows `0..rows` in one snapshot; one attempt.
async fn snapshot(session: &mut Session, table: TableId, rows: u64) -> Result<Vec<u64>, TxnError> {
    let mut txn = session.begin_read_only().await?;
    let items: Result<Vec<_>, _> = (0..rows).map(|key| txn.add_ro(table, key)).collect();
    txn.execute().await?;
    Ok(items?.into_iter().map(|item| number_of(&txn, item).expect("it exists")).collect())
}

/// No increment is lost, on any node and for any number of clients.
#[test]
fn no_update_is_lost() {
    const COUNTERS: u64 = 3;
    const INCREMENTS: u64 = 12;
    for builder in variants() {
        let (cluster, table) = with_numbers(builder);
        insert_all(&cluster, table, &[(0, 0), (1, 0), (2, 0)]);
        let mut workers = Vec::new();
        for (worker, coordinator_id) in
            cluster.coordinators().flat_map(|coordinator_id| [coordinator_id; 3]).enumerate()
        {
            workers.push(cluster.submit(coordinator_id, move |mut session| async move {
                let isolation = ISOLATIONS[worker % 2];
                for step in 0..INCREMENTS {
                    let key = (worker as u64 + step) % COUNTERS;
                    retrying!(session, {
                        let mut txn = session.begin(isolation).await?;
                        let item = txn.add_rw(table, key)?;
                        match txn.execute().await {
                            Err(error) => Err(error),
                            Ok(()) => {
                                let count = number_of(&txn, item).expect("it exists");
                                txn.put(item, &(count + 1).to_le_bytes())?;
                                txn.commit().await
                            }
                        }
                    })?;
                }
                Ok(())
            }));
        }
        let made = workers.len() as u64 * INCREMENTS;
        workers.into_iter().for_each(done);
        let counts: Vec<_> = (0..COUNTERS).map(|key| read(&cluster, table, key)).collect();
        assert_eq!(counts.into_iter().flatten().sum::<u64>(), made, "{:?}", cluster.config());
        stop_clean(cluster);
    }
}

/// H1: money is neither made nor lost at any moment that a reader can see, be it read-only or
/// read-write. (A snapshot that showed one account new and the other INVISIBLE, and took the
/// older version for it, would lose the amount.)
#[test]
fn h1_every_total_of_a_bank_is_the_same() {
    const ACCOUNTS: u64 = 6;
    const EACH: u64 = 100;
    for builder in variants() {
        let (cluster, table) = with_numbers(builder);
        let opening: Vec<_> = (0..ACCOUNTS).map(|account| (account, EACH)).collect();
        insert_all(&cluster, table, &opening);
        let mut workers = Vec::new();
        for (worker, coordinator_id) in
            cluster.coordinators().flat_map(|coordinator_id| [coordinator_id; 3]).enumerate()
        {
            workers.push(cluster.submit(coordinator_id, move |mut session| async move {
                let isolation = ISOLATIONS[worker % 2];
                for step in 0..15 {
                    let number = worker as u64 * 31 + step * 7;
                    if worker % 3 == 0 {
                        let balances =
                            retrying!(session, snapshot(&mut session, table, ACCOUNTS).await)?;
                        assert_eq!(balances.iter().sum::<u64>(), ACCOUNTS * EACH, "{balances:?}");
                        continue;
                    }
                    let from = number % ACCOUNTS;
                    let pair = [from, (from + 1 + step % (ACCOUNTS - 1)) % ACCOUNTS];
                    retrying!(
                        session,
                        transfer(&mut session, isolation, table, pair, number % 40).await
                    )?;
                }
                Ok(())
            }));
        }
        workers.into_iter().for_each(done);
        let total: u64 = (0..ACCOUNTS).filter_map(|key| read(&cluster, table, key)).sum();
        assert_eq!(total, ACCOUNTS * EACH);
        stop_clean(cluster);
    }
}

/// H1, H18: rows that are always written together are always seen together, and no later reader
/// sees less than an earlier one did, wherever the two run.
#[test]
fn h18_no_reader_sees_less_than_an_earlier_reader() {
    const ROWS: u64 = 5;
    for builder in variants() {
        let (cluster, table) = with_numbers(builder);
        insert_all(&cluster, table, &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]);
        let enough = Arc::new(AtomicBool::new(false));
        let stop_writing = Arc::clone(&enough);
        let coordinator_ids: Vec<_> = cluster.coordinators().collect();
        let writer = cluster.submit(coordinator_ids[3], move |mut session| async move {
            for value in 1u64.. {
                retrying!(session, {
                    let mut txn = session.begin(Isolation::Serializable).await?;
                    for key in 0..ROWS {
                        let item = txn.add_rw(table, key)?;
                        txn.put(item, &value.to_le_bytes())?;
                    }
                    txn.commit().await
                })?;
                if stop_writing.load(Ordering::Relaxed) {
                    return Ok(value);
                }
            }
            unreachable!("the numbers do not run out")
        });
        let mut latest = 0;
        for round in 0..40 {
            let seen =
                done(cluster.submit(coordinator_ids[round % 4], move |mut session| async move {
                    retrying!(session, snapshot(&mut session, table, ROWS).await)
                }));
            assert!(seen.iter().all(|value| *value == seen[0]), "{seen:?}");
            assert!(seen[0] >= latest, "{} after {latest}: {:?}", seen[0], cluster.config());
            latest = seen[0];
        }
        enough.store(true, Ordering::Relaxed);
        let written = done(writer);
        assert_eq!(read(&cluster, table, 0), Some(written));
        stop_clean(cluster);
    }
}

/// H18: a reader that begins after a commit was reported sees it.
#[test]
fn h18_what_was_committed_is_seen_by_all_who_come_later() {
    for builder in variants() {
        let (cluster, table) = with_numbers(builder);
        insert(&cluster, table, 1, 0);
        let coordinator_ids: Vec<_> = cluster.coordinators().collect();
        let mut last = None;
        for value in 1..40u64 {
            let [writer, reader] =
                [value as usize, value as usize / 4].map(|n| coordinator_ids[n % 4]);
            let receipt = done(cluster.submit(writer, move |mut session| async move {
                retrying!(session, session.update(table, 1, value).await)
            }));
            assert!(receipt.commit_ts > last, "{receipt:?} after {last:?}");
            last = receipt.commit_ts;
            let seen = cluster.submit(reader, move |mut session| async move {
                retrying!(session, {
                    let mut txn = session.begin_read_only().await?;
                    let item = txn.add_ro(table, 1)?;
                    match txn.execute().await {
                        Err(error) => Err(error),
                        Ok(()) => Ok((number_of(&txn, item), txn.commit().await?.snapshot)),
                    }
                })
            });
            let (seen, snapshot) = done(seen);
            assert_eq!(seen, Some(value), "{:?}", cluster.config());
            assert!(snapshot >= last);
        }
        stop_clean(cluster);
    }
}

/// Runs two transactions that meet after both have read and before either writes: each reads both
/// rows and changes one of them.
fn skewed(builder: ClusterBuilder, isolation: Isolation, rows: [u64; 2], present: bool) -> usize {
    let (cluster, table) = with_numbers(builder);
    if present {
        insert_all(&cluster, table, &rows.map(|key| (key, 1)));
        // Let all unlocks finish before the two begin.
        assert_clean(&cluster);
    }
    let arrived = Arc::new(AtomicUsize::new(0));
    let coordinator_ids: Vec<_> = cluster.coordinators().collect();
    let both: Vec<_> = [0, 1]
        .map(|side| {
            let arrived = Arc::clone(&arrived);
            cluster.submit(coordinator_ids[side * 2], move |mut session| async move {
                let view = session.view();
                let mut txn = session.begin(isolation).await?;
                let other = txn.add_ro(table, rows[1 - side])?;
                let mine = match present {
                    true => txn.add_rw(table, rows[side])?,
                    false => txn.insert(table, rows[side], &9u64.to_le_bytes())?,
                };
                let executed = txn.execute().await;
                arrived.fetch_add(1, Ordering::SeqCst);
                until(&view, || arrived.load(Ordering::SeqCst) == 2).await;
                executed?;
                assert_eq!(number_of(&txn, other), present.then_some(1));
                txn.put(mine, &0u64.to_le_bytes())?;
                txn.commit().await
            })
        })
        .into_iter()
        .map(outcome)
        .collect();
    for outcome in &both {
        assert!(outcome.as_ref().err().is_none_or(is_conflict), "{outcome:?}");
    }
    stop_clean(cluster);
    both.iter().filter(|outcome| outcome.is_ok()).count()
}

/// Write skew: serializable transactions refuse one of the two, snapshot isolation takes both.
#[test]
fn write_skew_is_prevented_exactly_where_it_must_be() {
    for builder in variants() {
        let serializable = skewed(builder.clone(), Isolation::Serializable, [1, 2], true);
        assert!(serializable <= 1, "both committed: {builder:?}");
        assert_eq!(skewed(builder, Isolation::Snapshot, [1, 2], true), 2);
    }
}

/// H20: absent rows are locked as well, so that of two transactions which each insert a row that
/// the other has found missing one is refused.
#[test]
fn h20_absent_rows_take_part_in_serializability() {
    for builder in variants() {
        let serializable = skewed(builder.clone(), Isolation::Serializable, [1, 2], false);
        assert!(serializable <= 1, "both committed: {builder:?}");
        assert_eq!(skewed(builder, Isolation::Snapshot, [1, 2], false), 2);
    }
}

/// A snapshot stays the same for as long as its transaction lives, whatever is written meanwhile:
/// the versions that it may need are kept, and found, unless too much has been written since (H13).
#[test]
fn h13_a_snapshot_keeps_its_versions() {
    for builder in variants() {
        for writes in [1, 3, 7] {
            assert_eq!(read_late(builder.clone(), writes), Some((Some(0), Some(0))), "{writes}");
        }
        assert_eq!(read_late(builder, 12), None);
    }
}

/// A snapshot fails with an error once a version that it needs has been overwritten (H13).
#[test]
fn h13_a_snapshot_is_kept_or_given_up_and_never_mixed() {
    for builder in variants().map(|builder| builder.retention(Retention::None)) {
        assert_eq!(read_late(builder.clone(), 1), Some((Some(0), Some(0))));
        assert_eq!(read_late(builder, 3), None);
    }
}

/// Reads one row, waits until both rows have been written `writes` times, and reads the other in
/// the same snapshot. Returns both values; `None` if the snapshot was too old.
fn read_late(builder: ClusterBuilder, writes: u64) -> Option<(Option<u64>, Option<u64>)> {
    let (cluster, table) = with_numbers(builder);
    insert_all(&cluster, table, &[(1, 0), (2, 0)]);
    let stage = Arc::new(AtomicU64::new(0));
    let (reading, writing) = (Arc::clone(&stage), Arc::clone(&stage));
    let coordinator_ids: Vec<_> = cluster.coordinators().collect();
    let reader = cluster.submit(coordinator_ids[0], move |mut session| async move {
        let view = session.view();
        let mut txn = session.begin_read_only().await?;
        let first = txn.add_ro(table, 1)?;
        txn.execute().await?;
        reading.store(1, Ordering::SeqCst);
        until(&view, || reading.load(Ordering::SeqCst) == 2).await;
        let second = txn.add_ro(table, 2)?;
        let executed = txn.execute().await;
        Ok(executed.map(|()| (number_of(&txn, first), number_of(&txn, second))))
    });
    done(cluster.submit(coordinator_ids[2], move |mut session| async move {
        until(&session.view(), || writing.load(Ordering::SeqCst) == 1).await;
        for value in 1..=writes {
            retrying!(session, {
                let mut txn = session.begin(Isolation::Serializable).await?;
                for key in [1, 2] {
                    let item = txn.add_rw(table, key)?;
                    txn.put(item, &u64::to_le_bytes(value))?;
                }
                txn.commit().await
            })?;
        }
        // The last commit is reported before its primaries are visible.
        session.read(table, 2).await?;
        writing.store(2, Ordering::SeqCst);
        Ok(())
    }));
    let seen = match done(reader) {
        Ok(pair) => Some(pair),
        Err(TxnError::SnapshotTooOld { .. }) => None,
        Err(other) => panic!("{writes} writes later: {other}"),
    };
    stop_clean(cluster);
    seen
}

/// Snapshot isolation: the first to commit wins. A row that was written since the snapshot is not
/// written again, not even blindly, nor is a row inserted over a deletion that the snapshot lacks.
#[test]
fn the_first_committer_wins_under_snapshot_isolation() {
    let (cluster, table) = with_numbers(small().coroutines(2));
    insert_all(&cluster, table, &[(1, 0), (2, 0), (3, 0)]);
    let stage = Arc::new(AtomicU64::new(0));
    let (early, late) = (Arc::clone(&stage), Arc::clone(&stage));
    let loser = cluster.submit(FIRST, move |mut session| async move {
        let view = session.view();
        for (row, kind) in [(1, "update"), (2, "blind"), (3, "insert"), (4, "insert")] {
            let mut txn = session.begin(Isolation::Snapshot).await?;
            early.store(row * 2 - 1, Ordering::SeqCst);
            until(&view, || early.load(Ordering::SeqCst) == row * 2).await;
            let executed = match kind {
                "update" => txn.add_rw(table, row).map(drop),
                "blind" => {
                    let item = txn.add_rw(table, row)?;
                    txn.put(item, b"blind")
                }
                _ => txn.insert(table, row, b"insert").map(drop),
            };
            executed?;
            let lost = txn.execute().await.expect_err("somebody else was first");
            assert!(is_conflict(&lost), "{kind}: {lost:?}");
        }
        Ok(())
    });
    done(cluster.submit(FIRST, move |mut session| async move {
        for row in 1..=4 {
            until(&session.view(), || late.load(Ordering::SeqCst) == row * 2 - 1).await;
            match row {
                1 | 2 => drop(session.update(table, row, 10).await?),
                3 => drop(session.delete(table, row).await?),
                _ => {
                    session.insert(table, row, 10).await?;
                    session.delete(table, row).await?;
                }
            }
            // The locks are gone when the slot begins the next transaction.
            session.read(table, row).await?;
            late.store(row * 2, Ordering::SeqCst);
        }
        Ok(())
    }));
    done(loser);
    stop_clean(cluster);
}
