//! Transactions of the largest size, and one row more; and reads of a transaction's own changes, in
//! any order of the changes.
//!
//! A refused operation leaves nothing behind: no lock, no row, and no memory that stays reserved.

use crate::common::*;
use lotus::{Cluster, Isolation, PrimaryKey, Session, TableId, TableSpec, Transaction, TxnError};

/// Largest number of rows that a transaction of these clusters writes.
const MOST_WRITES: u64 = 512;
const READS: u64 = 2_000;

/// Loads rows `0..rows` of eight bytes, each with its own number.
fn loaded(nodes: usize, rows: u64) -> (Running, TableId) {
    let cluster = start(small().compute_nodes(nodes));
    let spec = TableSpec::new("many").record_bytes(8).capacity(2 * rows);
    let table = cluster.create_table(spec).expect("there is room");
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend(row.to_le_bytes());
        PrimaryKey::from(row)
    };
    cluster.load(table, rows, &row, &Default::default()).expect("they fit");
    (cluster, table)
}

#[test]
fn a_transaction_reads_two_thousand_rows_and_writes_as_many_as_the_log_takes() {
    for (nodes, isolation) in [(1, Isolation::Serializable), (3, Isolation::Serializable)]
        .into_iter()
        .chain([(3, Isolation::Snapshot)])
    {
        let (cluster, table) = loaded(nodes, READS);
        done(cluster.run(isolation, async move |txn: &mut Transaction| {
            let read: Result<Vec<_>, _> = (0..READS).map(|key| txn.add_ro(table, key)).collect();
            txn.execute().await?;
            for (key, item) in (0..).zip(read?) {
                assert_eq!(number_of(txn, item), Some(key));
            }
            // Change one third, delete one, insert one.
            for key in 0..MOST_WRITES {
                match key % 3 {
                    0 => {
                        let item = txn.add_rw(table, key)?;
                        txn.put(item, &(key + 1).to_le_bytes())?;
                    }
                    1 => {
                        let item = txn.add_rw(table, key)?;
                        txn.execute().await?;
                        txn.delete(item)?;
                    }
                    _ => _ = txn.insert(table, READS + key, &key.to_le_bytes())?,
                }
            }
            Ok(())
        }));
        let deleted = |key: &u64| *key < MOST_WRITES && key % 3 == 1;
        let inserted = (0..MOST_WRITES).filter(|key| key % 3 == 2).map(|key| READS + key);
        assert_keys(&cluster, table, (0..READS).filter(|key| !deleted(key)).chain(inserted));
        let last = *cluster.coordinators().collect::<Vec<_>>().last().expect("there is one");
        done(cluster.submit(last, move |mut session| async move {
            for key in 0..MOST_WRITES {
                let expected = [Some(key + 1), None, Some(key)][key as usize % 3];
                assert_eq!(session.read(table, key).await?, expected, "row {key}");
            }
            Ok(())
        }));
        stop_clean(cluster);
    }
}

#[test]
fn values_of_many_megabytes_fit_in_one_transaction() {
    const ROWS: u64 = 400;
    let cluster = start(small().compute_nodes(2));
    let spec = TableSpec::new("blobs").record_bytes(8192).capacity(ROWS).shards(8);
    let table = cluster.create_table(spec).expect("there is room");
    let value = |key: u64, round: u64| vec![(key * 31 + round) as u8; 8192 - key as usize];
    for round in 0..3 {
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            for key in 0..ROWS {
                if round == 0 {
                    txn.insert(table, key, &value(key, round))?;
                } else {
                    let item = txn.add_rw(table, key)?;
                    txn.put(item, &value(key, round))?;
                }
            }
            Ok(())
        }));
        done(cluster.run_read_only(async move |txn: &mut Transaction| {
            let items: Result<Vec<_>, _> = (0..ROWS).map(|key| txn.add_ro(table, key)).collect();
            txn.execute().await?;
            for (key, item) in (0..).zip(items?) {
                assert_eq!(txn.value(item), Some(&value(key, round)[..]), "row {key}");
            }
            Ok(())
        }));
    }
    stop_clean(cluster);
}

#[test]
fn own_changes_are_seen_in_every_later_round() {
    for nodes in [1, 2] {
        let (cluster, table) = loaded(nodes, 40);
        done(cluster.submit(FIRST, move |mut session| async move {
            for isolation in ISOLATIONS {
                let mut txn = session.begin(isolation).await?;
                let mut items = Vec::new();
                for round in 0..10 {
                    let put = txn.add_rw(table, 4 * round)?;
                    let deleted = txn.add_rw(table, 4 * round + 1)?;
                    let read = txn.add_ro(table, 4 * round + 2)?;
                    let inserted = txn.insert(table, 100 + round, &round.to_le_bytes())?;
                    txn.execute().await?;
                    txn.put(put, &(1_000 + round).to_le_bytes())?;
                    txn.delete(deleted)?;
                    items.push((round, put, deleted, read, inserted));
                    for &(round, put, deleted, read, inserted) in &items {
                        let own = [Some(1_000 + round), None, Some(4 * round + 2), Some(round)];
                        let seen = [put, deleted, read, inserted].map(|it| number_of(&txn, it));
                        assert_eq!(seen, own, "round {round}");
                    }
                    // Adding a row again, for any access, changes nothing.
                    assert_eq!(txn.add_ro(table, 4 * round)?, put);
                    assert_eq!(txn.add_rw(table, 100 + round)?, inserted);
                    assert_eq!(txn.add_rw(table, 4 * round + 1)?, deleted);
                }
                txn.abort();
            }
            Ok(())
        }));
        assert_keys(&cluster, table, 0..40);
        stop_clean(cluster);
    }
}

#[test]
fn a_row_that_was_absent_when_it_was_read_can_be_inserted() {
    for nodes in [1, 2] {
        let (cluster, table) = loaded(nodes, 1);
        done(cluster.submit(FIRST, move |mut session| async move {
            for (at, isolation) in (0..).zip(ISOLATIONS) {
                for key in (100 * at + 10)..(100 * at + 30) {
                    let mut txn = session.begin(isolation).await?;
                    let item = match key % 2 {
                        0 => txn.add_ro(table, key)?,
                        _ => txn.add_rw(table, key)?,
                    };
                    txn.execute().await?;
                    assert_eq!(txn.value(item), None);
                    let absent = TxnError::NotFound { table, key: key.into() };
                    if key % 2 == 1 {
                        assert_eq!(txn.put(item, b"x"), Err(absent.clone()));
                        assert_eq!(txn.delete(item), Err(absent));
                    }
                    assert_eq!(txn.insert(table, key, &key.to_le_bytes())?, item);
                    assert_eq!(number_of(&txn, item), Some(key));
                    if key % 4 < 2 {
                        txn.execute().await?;
                        assert_eq!(number_of(&txn, item), Some(key));
                    }
                    txn.commit().await?;
                    assert_eq!(session.read(table, key).await?, Some(key));
                }
            }
            Ok(())
        }));
        assert_keys(&cluster, table, (0..1).chain(10..30).chain(110..130));
        stop_clean(cluster);
    }
}

/// An insert of a row that the transaction itself had deleted failed with `AlreadyExists`, although
/// the transaction saw that the row was gone.
#[test]
fn a_row_that_the_transaction_deleted_can_be_inserted_by_it() {
    for nodes in [1, 2] {
        let (cluster, table) = loaded(nodes, 4);
        done(cluster.submit(FIRST, move |mut session| async move {
            for (key, isolation) in [1, 2].into_iter().zip(ISOLATIONS) {
                let mut txn = session.begin(isolation).await?;
                let item = txn.add_rw(table, key)?;
                txn.execute().await?;
                txn.delete(item)?;
                assert_eq!(txn.value(item), None);
                assert_eq!(txn.insert(table, key, &77u64.to_le_bytes())?, item);
                txn.execute().await?;
                assert_eq!(number_of(&txn, item), Some(77));
                // And once more.
                txn.delete(item)?;
                txn.insert(table, key, &78u64.to_le_bytes())?;
                txn.commit().await?;
                assert_eq!(session.read(table, key).await?, Some(78));
            }
            // A row that does not exist cannot be deleted first.
            let mut txn = session.begin(Isolation::Serializable).await?;
            let item = txn.add_rw(table, 9)?;
            txn.delete(item)?;
            txn.insert(table, 9, &9u64.to_le_bytes())?;
            let absent = TxnError::NotFound { table, key: 9.into() };
            assert_eq!(txn.commit().await, Err(absent));
            Ok(())
        }));
        assert_keys(&cluster, table, 0..4);
        stop_clean(cluster);
    }
}

/// An insert with a value refused as too large left its row behind, to be locked as an insert: if
/// the row existed the execution failed, although the caller had been told that nothing was
/// changed.
#[test]
fn an_insert_that_was_refused_is_as_if_nobody_had_tried() {
    let (cluster, table) = loaded(1, 4);
    done(cluster.submit(FIRST, move |mut session| async move {
        for isolation in ISOLATIONS {
            let mut txn = session.begin(isolation).await?;
            let read = txn.add_ro(table, 1)?;
            let deleted = txn.add_rw(table, 2)?;
            txn.execute().await?;
            txn.delete(deleted)?;
            for key in [1, 2, 3, 100] {
                let refused = txn.insert(table, key, &[0; 9]);
                assert!(matches!(refused, Err(TxnError::TooLarge(_))), "{refused:?}");
            }
            txn.execute().await?;
            assert_eq!((number_of(&txn, read), number_of(&txn, deleted)), (Some(1), None));
            txn.insert(table, 2, &2u64.to_le_bytes())?;
            txn.commit().await?;
        }
        Ok(())
    }));
    assert_keys(&cluster, table, 0..4);
    stop_clean(cluster);
}

#[test]
fn of_many_who_insert_one_row_one_succeeds_and_the_others_are_told() {
    for nodes in [1, 2] {
        let (cluster, table) = loaded(nodes, 1);
        let cluster = &cluster;
        for isolation in ISOLATIONS {
            let key = 50 + isolation as u64;
            let insert = async move |txn: &mut Transaction| {
                txn.insert(table, key, &key.to_le_bytes())?;
                Ok(())
            };
            let all: Vec<_> = (0..12).map(|_| cluster.run(isolation, insert)).collect();
            let (mut inserted, mut told) = (0, 0);
            for outcome in all.into_iter().map(outcome) {
                match outcome {
                    Ok(_) => inserted += 1,
                    Err(error) => {
                        assert_eq!(error, TxnError::AlreadyExists { table, key: key.into() });
                        told += 1;
                    }
                }
            }
            assert_eq!((inserted, told), (1, 11));
        }
        assert_keys(cluster, table, [0, 50, 51]);
        assert_clean(cluster);
    }
}

/// Inserts 8 KiB rows one by one from key 0 until the table is full. Returns their number.
async fn fill(session: &mut Session, table: TableId) -> Result<u64, TxnError> {
    for key in 0.. {
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.insert(table, key, &[key as u8; 8192])?;
        match txn.commit().await {
            Ok(_) => {}
            Err(TxnError::TableFull { .. }) => return Ok(key),
            Err(error) => return Err(error),
        }
    }
    unreachable!("keys outnumber what fits")
}

/// Memory that a refused transaction had reserved is reused: as many rows fit after any number of
/// refusals as without.
#[test]
fn refused_transactions_take_no_memory() {
    let fitting = |refusals: usize| {
        let cluster = start(small().memory_limit(5 << 20).coroutines(1));
        let spec = TableSpec::new("blobs").record_bytes(8192).capacity(5_000).shards(8);
        let table = cluster.create_table(spec).expect("there is room");
        let fitted = done(cluster.submit(FIRST, move |mut session| async move {
            for refusal in 0..refusals {
                let mut txn = session.begin(Isolation::Serializable).await?;
                // More than the memory holds, or more than a log entry names.
                let rows = if refusal % 2 == 0 { 450 } else { 600 };
                for key in 10_000..10_000 + rows {
                    txn.insert(table, key, &[1; 8192])?;
                }
                let refused = txn.commit().await.expect_err("it is too large");
                let expected = match rows {
                    450 => matches!(refused, TxnError::TableFull { .. }),
                    _ => refused == TxnError::TooManyWrites { limit: 512 },
                };
                assert!(expected, "{rows} rows: {refused}");
            }
            fill(&mut session, table).await
        }));
        assert_keys(&cluster, table, 0..fitted);
        stop_clean(cluster);
        fitted
    };
    let without = fitting(0);
    assert!((100..450).contains(&without), "{without}");
    for refusals in [1, 2, 12] {
        assert_eq!(fitting(refusals), without, "after {refusals} refusals");
    }
}

/// Inserts into full chains take buckets; those of refused transactions are used again.
#[test]
fn refused_inserts_into_full_chains_take_no_memory() {
    let cluster = start(small());
    let spec = TableSpec::new("crowded").record_bytes(8).capacity(10).shards(1);
    let table = cluster.create_table(spec).expect("there is room");
    let refuse = |cluster: &Cluster| {
        let refused = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            for key in 0..MOST_WRITES + 1 {
                txn.insert(table, key, b"x")?;
            }
            Ok(())
        });
        assert_eq!(outcome(refused), Err(TxnError::TooManyWrites { limit: 512 }));
        cluster.memory_use().expect("all nodes can be reached")
    };
    // Every coordinator keeps its slabs; after this it has one for each purpose.
    let once = refuse(&cluster);
    for _ in 0..20 {
        assert_eq!(refuse(&cluster), once);
    }
    assert_keys(&cluster, table, []);
    stop_clean(cluster);
}

/// Several transactions meet a table that becomes full while they run: each commits or is refused
/// as a whole, and earlier rows stay usable.
#[test]
fn a_table_that_fills_up_takes_transactions_whole_or_not_at_all() {
    const AT_ONCE: u64 = 7;
    let cluster = start(small().memory_limit(9 << 20).compute_nodes(2));
    let spec = TableSpec::new("blobs").record_bytes(8192).capacity(600).shards(8);
    let table = cluster.create_table(spec).expect("there is room");
    let fill = |number: u64| {
        cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            for key in number * AT_ONCE..(number + 1) * AT_ONCE {
                txn.insert(table, key, &[key as u8; 8192])?;
            }
            Ok(())
        })
    };
    let submitted: Vec<_> = (0..200).map(|number| (number, fill(number))).collect();
    let mut expected = Vec::new();
    for (number, submitted) in submitted {
        match outcome(submitted) {
            Ok(_) => expected.extend(number * AT_ONCE..(number + 1) * AT_ONCE),
            Err(error) => assert_eq!(error, TxnError::TableFull { table }),
        }
    }
    let committed = expected.len() as u64 / AT_ONCE;
    assert!((10..200).contains(&committed), "{committed} committed");
    assert_keys(&cluster, table, expected);
    stop_clean(cluster);
}
