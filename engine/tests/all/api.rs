//! Single transactions without failures or concurrency.
//!
//! Each test runs on one compute node and on two: in the second shape half of the locks are
//! remote.

use crate::common::*;
use lotus::{Isolation, PrimaryKey, TableId, TableSpec, Transaction, TxnError};
use lotus_fabric::env::Env;

/// Clusters of one and of two compute nodes, each with an empty table.
fn shapes() -> impl Iterator<Item = (Running, TableId)> {
    [1, 2].into_iter().map(|nodes| with_numbers(small().compute_nodes(nodes)))
}

fn row(table: TableId, key: u64) -> (TableId, PrimaryKey) {
    (table, PrimaryKey::from(key))
}

fn not_found((table, key): (TableId, PrimaryKey)) -> TxnError {
    TxnError::NotFound { table, key: key.into() }
}

fn already_exists((table, key): (TableId, PrimaryKey)) -> TxnError {
    TxnError::AlreadyExists { table, key: key.into() }
}

/// Retries an attempt that conflicts with a purge of rows deleted before, or of their neighbours.
async fn patient<T>(mut attempt: impl AsyncFnMut() -> Result<T, TxnError>) -> Result<T, TxnError> {
    loop {
        match attempt().await {
            Err(TxnError::Conflict { .. }) => {}
            done => return done,
        }
    }
}

#[test]
fn rows_go_through_their_whole_life() {
    for (cluster, table) in shapes() {
        for coordinator_id in cluster.coordinators().collect::<Vec<_>>() {
            let life = cluster.submit(coordinator_id, move |mut session| async move {
                let session = &mut session;
                for key in 0..32 {
                    assert_eq!(patient(async || session.read(table, key).await).await?, None);
                    let insert = async || session.insert(table, key, key).await;
                    let inserted = patient(insert).await?;
                    assert_eq!(patient(async || session.read(table, key).await).await?, Some(key));
                    let update = async || session.update(table, key, key + 1).await;
                    let updated = patient(update).await?;
                    let read = async || session.read(table, key).await;
                    assert_eq!(patient(read).await?, Some(key + 1));
                    let deleted = patient(async || session.delete(table, key).await).await?;
                    assert_eq!(patient(async || session.read(table, key).await).await?, None);
                    assert!(inserted.commit_ts < updated.commit_ts);
                    assert!(updated.commit_ts < deleted.commit_ts);
                }
                Ok(())
            });
            done(life);
        }
        stop_clean(cluster);
    }
}

#[test]
fn an_absent_row_is_neither_changed_nor_deleted_and_a_present_one_not_inserted() {
    for (cluster, table) in shapes() {
        done(cluster.submit(FIRST, move |mut session| async move {
            for key in 0..16 {
                let absent = Err(not_found(row(table, key)));
                assert_eq!(session.update(table, key, 0).await, absent);
                assert_eq!(session.delete(table, key).await, absent);
                session.insert(table, key, 1).await?;
                let present = Err(already_exists(row(table, key)));
                assert_eq!(session.insert(table, key, 2).await, present);
                assert_eq!(session.read(table, key).await?, Some(1));
            }
            Ok(())
        }));
        stop_clean(cluster);
    }
}

/// A transaction may put or delete before it executes. Such a write to a row that turned out to be
/// absent had no target: alone it left the commit with an empty log entry, and an assertion about
/// that took the whole compute node down; beside other writes it was silently dropped and the
/// commit succeeded. A deleted row was brought back to life.
#[test]
fn a_blind_write_to_an_absent_row_is_refused() {
    for (cluster, table) in shapes() {
        insert_all(&cluster, table, &[(1, 10), (2, 20)]);
        done(cluster.submit(FIRST, move |mut session| async move {
            session.delete(table, 2).await?;
            for absent in [2, 3] {
                for company in [false, true] {
                    let mut txn = session.begin(Isolation::Serializable).await?;
                    if company {
                        let item = txn.add_rw(table, 1)?;
                        txn.put(item, &11u64.to_le_bytes())?;
                    }
                    let item = txn.add_rw(table, absent)?;
                    txn.put(item, &30u64.to_le_bytes())?;
                    assert_eq!(txn.commit().await, Err(not_found(row(table, absent))));
                    let mut txn = session.begin(Isolation::Snapshot).await?;
                    let item = txn.add_rw(table, absent)?;
                    txn.delete(item)?;
                    assert_eq!(txn.commit().await, Err(not_found(row(table, absent))));
                    assert_eq!(session.read(table, absent).await?, None);
                    assert_eq!(session.read(table, 1).await?, Some(10));
                }
            }
            Ok(())
        }));
        stop_clean(cluster);
    }
}

#[test]
fn a_blind_write_to_a_row_that_exists_needs_no_execution() {
    for (cluster, table) in shapes() {
        insert_all(&cluster, table, &[(1, 10), (2, 20)]);
        done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            let one = txn.add_rw(table, 1)?;
            txn.put(one, &11u64.to_le_bytes())?;
            let two = txn.add_rw(table, 2)?;
            txn.delete(two)?;
            Ok(())
        }));
        assert_eq!(read(&cluster, table, 1), Some(11));
        assert_eq!(read(&cluster, table, 2), None);
        stop_clean(cluster);
    }
}

/// Retries an attempt that may conflict with a purge of the row.
macro_rules! despite_purges {
    ($session:ident, $attempt:expr) => {
        loop {
            match $attempt.await {
                Err(error) if is_conflict(&error) => $session.back_off(1).await,
                outcome => break outcome,
            }
        }
    };
}

/// H20: the tombstone and its record slot are taken over, again and again, or purged in between; a
/// cached address of the deleted row must not lead to any other row.
#[test]
fn h20_a_deleted_row_can_be_inserted_again() {
    for (cluster, table) in shapes() {
        done(cluster.submit(FIRST, move |mut session| async move {
            for life in 0..12 {
                despite_purges!(session, session.insert(table, 7, life))?;
                assert_eq!(session.read(table, 7).await?, Some(life));
                despite_purges!(session, session.delete(table, 7))?;
                let again = despite_purges!(session, session.delete(table, 7));
                assert_eq!(again, Err(not_found(row(table, 7))));
            }
            despite_purges!(session, session.insert(table, 7, 99))
        }));
        for coordinator_id in cluster.coordinators().collect::<Vec<_>>() {
            let seen =
                cluster.submit(coordinator_id, move |mut s| async move { s.read(table, 7).await });
            assert_eq!(done(seen), Some(99));
        }
        stop_clean(cluster);
    }
}

#[test]
fn absent_rows_read_as_nothing_in_every_kind_of_transaction() {
    let (cluster, table) = with_numbers(small());
    done(cluster.submit(FIRST, move |mut session| async move {
        for isolation in ISOLATIONS {
            let mut txn = session.begin(isolation).await?;
            let (ro, rw) = (txn.add_ro(table, 1)?, txn.add_rw(table, 2)?);
            txn.execute().await?;
            assert_eq!((txn.value(ro), txn.value(rw)), (None, None));
            assert_eq!(txn.commit().await?.commit_ts, None);
        }
        assert_eq!(session.read(table, 1).await?, None);
        Ok(())
    }));
    stop_clean(cluster);
}

#[test]
fn a_transaction_reads_its_own_writes() {
    let (cluster, table) = with_numbers(small());
    insert(&cluster, table, 1, 10);
    done(cluster.submit(FIRST, move |mut session| async move {
        for isolation in ISOLATIONS {
            let mut txn = session.begin(isolation).await?;
            let old = txn.add_rw(table, 1)?;
            assert_eq!(txn.value(old), None, "not executed yet");
            txn.execute().await?;
            assert_eq!(number_of(&txn, old), Some(10));
            // Shorter, longer and as long as before.
            for value in [&b"a"[..], b"abcdefghijklmnop", b"ABCDEFGHIJKLMNOP", b""] {
                txn.put(old, value)?;
                assert_eq!(txn.value(old), Some(value));
            }
            let new = txn.insert(table, 2, b"new")?;
            assert_eq!(txn.value(new), Some(&b"new"[..]));
            txn.execute().await?;
            assert_eq!(txn.value(new), Some(&b"new"[..]));
            assert_eq!(txn.value(old), Some(&b""[..]));
            txn.delete(old)?;
            assert_eq!(txn.value(old), None);
            txn.abort();
            assert_eq!(session.read(table, 1).await?, Some(10));
        }
        Ok(())
    }));
    assert_eq!(read(&cluster, table, 2), None);
    stop_clean(cluster);
}

#[test]
fn values_of_every_length_come_back() {
    let cluster = start(small().compute_nodes(2));
    let spec = TableSpec::new("blobs").record_bytes(8192).capacity(100).shards(8);
    let table = cluster.create_table(spec).expect("there is room");
    let lengths = [0usize, 1, 7, 8, 9, 55, 56, 57, 63, 64, 65, 127, 128, 4095, 4096, 8192];
    let value = |length: usize| (0..length).map(|byte| byte as u8).collect::<Vec<_>>();
    done(cluster.submit(FIRST, move |mut session| async move {
        for (key, length) in lengths.into_iter().enumerate() {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.insert(table, key as u64, &value(length))?;
            txn.commit().await?;
        }
        let mut txn = session.begin_read_only().await?;
        let items: Result<Vec<_>, _> =
            (0..lengths.len()).map(|key| txn.add_ro(table, key as u64)).collect();
        txn.execute().await?;
        for (item, length) in items?.into_iter().zip(lengths) {
            assert_eq!(txn.value(item), Some(&value(length)[..]), "{length} bytes");
        }
        Ok(())
    }));
    stop_clean(cluster);
}

#[test]
fn rows_can_be_added_after_each_execution() {
    for (cluster, table) in shapes() {
        insert_all(&cluster, table, &[(1, 2), (2, 3), (3, 40)]);
        let total = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            // Each row names the next.
            let mut key = 1;
            for _ in 0..2 {
                let item = txn.add_ro(table, key)?;
                txn.execute().await?;
                key = number_of(txn, item).expect("it was inserted");
            }
            let last = txn.add_rw(table, key)?;
            txn.execute().await?;
            txn.execute().await?;
            let value = number_of(txn, last).expect("it was inserted");
            txn.put(last, &(value + 2).to_le_bytes())?;
            Ok(value)
        });
        assert_eq!(done(total).value, 40);
        assert_eq!(read(&cluster, table, 3), Some(42));
        stop_clean(cluster);
    }
}

/// H7: the read lock is upgraded to a write lock, not answered with "already held".
#[test]
fn h7_a_row_that_was_read_can_be_written_after_a_later_execution() {
    for (cluster, table) in shapes() {
        for owner in 0..cluster.config().compute_nodes {
            let key = key_owned_by(&cluster, table, owner, 0);
            insert(&cluster, table, key, 1);
            done(cluster.submit(FIRST, move |mut session| async move {
                for isolation in ISOLATIONS {
                    let mut txn = session.begin(isolation).await?;
                    let item = txn.add_ro(table, key)?;
                    txn.execute().await?;
                    assert!(matches!(txn.put(item, b"no"), Err(TxnError::Misuse(_))));
                    assert_eq!(txn.add_rw(table, key)?, item);
                    txn.execute().await?;
                    let value = number_of(&txn, item).expect("it was inserted");
                    txn.put(item, &(value + 1).to_le_bytes())?;
                    txn.commit().await?;
                }
                Ok(())
            }));
            assert_eq!(read(&cluster, table, key), Some(3));
        }
        stop_clean(cluster);
    }
}

#[test]
fn a_row_added_twice_is_one_item() {
    let (cluster, table) = with_numbers(small());
    insert(&cluster, table, 1, 10);
    done(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, 1)?;
        assert_eq!((txn.add_rw(table, 1)?, txn.add_ro(table, 1)?), (item, item));
        let other = txn.insert(table, 2, &1u64.to_le_bytes())?;
        assert_eq!(txn.insert(table, 2, &2u64.to_le_bytes())?, other);
        assert_eq!(txn.add_rw(table, 2)?, other);
        assert_ne!(item, other);
        txn.execute().await?;
        txn.put(item, &11u64.to_le_bytes())?;
        Ok(())
    }));
    assert_eq!((read(&cluster, table, 1), read(&cluster, table, 2)), (Some(11), Some(2)));
    stop_clean(cluster);
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let (cluster, table) = with_numbers(small());
    insert(&cluster, table, 1, 10);
    let misuse = |error: TxnError| assert!(matches!(error, TxnError::Misuse(_)), "{error}");
    done(cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        misuse(session.begin(Isolation::Serializable).await.err().expect("one is alive"));
        misuse(session.begin_read_only().await.err().expect("one is alive"));
        let item = txn.add_rw(table, 1)?;
        misuse(txn.put(lotus::Item::from_index(9), b"x").unwrap_err());
        misuse(txn.delete(lotus::Item::from_index(9)).unwrap_err());
        let fresh = txn.insert(table, 2, b"x")?;
        misuse(txn.delete(fresh).unwrap_err());
        let unknown = TableId(77);
        assert_eq!(txn.add_ro(unknown, 1), Err(TxnError::UnknownTable(unknown)));
        assert_eq!(txn.value(lotus::Item::from_index(9)), None);
        // No misuse has ended the transaction.
        txn.put(item, &11u64.to_le_bytes())?;
        txn.commit().await?;

        let mut txn = session.begin_read_only().await?;
        misuse(txn.add_rw(table, 1).unwrap_err());
        misuse(txn.insert(table, 3, b"x").unwrap_err());
        let item = txn.add_ro(table, 1)?;
        misuse(txn.put(item, b"x").unwrap_err());
        misuse(txn.delete(item).unwrap_err());
        txn.execute().await?;
        assert_eq!(number_of(&txn, item), Some(11));
        Ok(())
    }));
    stop_clean(cluster);
}

#[test]
fn nothing_can_be_done_with_a_transaction_whose_execution_failed() {
    let (cluster, table) = with_numbers(small());
    insert(&cluster, table, 1, 10);
    done(cluster.submit(FIRST, move |mut session| async move {
        let over = |error: TxnError| assert!(matches!(error, TxnError::Misuse(_)), "{error}");
        let mut txn = session.begin(Isolation::Serializable).await?;
        let item = txn.insert(table, 1, b"x")?;
        assert_eq!(txn.execute().await, Err(already_exists(row(table, 1))));
        assert_eq!(txn.value(item), None);
        over(txn.add_ro(table, 2).unwrap_err());
        over(txn.put(item, b"x").unwrap_err());
        over(txn.delete(item).unwrap_err());
        over(txn.execute().await.unwrap_err());
        // The failed transaction is still alive but holds nothing: the slot is free for the next.
        session.update(table, 1, 11).await?;
        over(txn.commit().await.unwrap_err());
        Ok(())
    }));
    assert_eq!(read(&cluster, table, 1), Some(11));
    stop_clean(cluster);
}

#[test]
fn a_version_names_its_writer_and_no_attempt_is_like_another() {
    let (cluster, table) = with_numbers(small());
    done(cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let (writer, item) = (txn.id(), txn.insert(table, 1, b"x")?);
        assert_eq!(txn.writer(item), None);
        txn.commit().await?;
        let mut txn = session.begin_read_only().await?;
        let item = txn.add_ro(table, 1)?;
        txn.execute().await?;
        assert_eq!(txn.writer(item), Some(writer));
        assert!(txn.id().attempt() > writer.attempt());
        Ok(())
    }));
    stop_clean(cluster);
}

#[test]
fn transactions_go_to_the_owner_of_a_row() {
    let (cluster, table) = with_numbers(small().compute_nodes(2));
    for key in 0..20u64 {
        let insert = cluster.run_at(
            table,
            key,
            Isolation::Serializable,
            async move |txn: &mut Transaction| {
                txn.insert(table, key, &key.to_le_bytes())?;
                Ok(())
            },
        );
        done(insert.expect("the table exists"));
        assert_eq!(read(&cluster, table, key), Some(key));
    }
    let unknown = TableId(9);
    let body = async |_: &mut Transaction| Ok::<(), TxnError>(());
    let refused = cluster.run_at(unknown, 0, Isolation::Serializable, body);
    assert_eq!(refused.err(), Some(TxnError::UnknownTable(unknown)));
    stop_clean(cluster);
}

/// Threads without a runtime wait, futures are awaited; both from many threads at once.
#[test]
fn any_thread_can_submit_and_wait_either_way() {
    let (cluster, table) = with_numbers(small().compute_nodes(2).threads(2));
    Env::real(0).in_parallel(8, |thread| {
        for step in 0..8 {
            let key = (thread * 100 + step) as u64;
            let inserted =
                cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
                    txn.insert(table, key, &key.to_le_bytes())?;
                    Ok::<(), TxnError>(())
                });
            let inserted = if step % 2 == 0 { inserted.wait() } else { block_on(inserted) };
            inserted.expect("nobody else inserts this key");
            let seen = cluster.run_read_only(async move |txn: &mut Transaction| {
                let item = txn.add_ro(table, key)?;
                txn.execute().await?;
                Ok::<_, TxnError>(number_of(txn, item))
            });
            let seen = block_on(async move { seen.await });
            assert_eq!(seen.map(|seen| seen.value), Ok(Some(key)));
        }
    });
    assert_eq!(keys_of(&cluster, table).len(), 64);
    stop_clean(cluster);
}
