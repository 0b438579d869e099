//! Unusual ends of transactions: panics, drops, forgotten replies.
//!
//! In every case a job's locks are released, its slot serves the next job, and a commit that has
//! begun is completed (H21).

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use crate::common::*;
use lotus::{
    Cluster, Committed, CoordinatorId, Isolation, Session, TableId, Transaction, TxnError,
};

/// Polls a future once.
async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(move |cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Starts a cluster with one coroutine a coordinator, so that every job reuses the previous one's
/// slot.
fn one_slot(compute_nodes: usize) -> (Running, TableId) {
    // The rows' inserts have taken memory for later records, so that no commit waits for any.
    let builder = small().compute_nodes(compute_nodes).coroutines(1);
    let (cluster, table) = with_table(builder, NUMBERS_APART);
    insert_all(&cluster, table, &[(1, 10), (2, 20)]);
    // Let all unlocks finish before a test begins.
    assert_clean(&cluster);
    (cluster, table)
}

/// Returns a transaction that has write-locked rows 1 and 2, wherever their locks are, and changed
/// them.
async fn holding(session: &mut Session, table: TableId) -> Result<Transaction, TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    for key in [1, 2] {
        let item = txn.add_rw(table, key)?;
        txn.execute().await?;
        txn.put(item, &99u64.to_le_bytes())?;
    }
    Ok(txn)
}

/// Changes rows 1 and 2 from every coordinator, which works only if they are not locked.
fn assert_usable(cluster: &Cluster, table: TableId) {
    for coordinator_id in cluster.coordinators().collect::<Vec<_>>() {
        done(cluster.submit(coordinator_id, move |mut session| async move {
            for (attempt, key) in (0..).flat_map(|attempt| [(attempt, 1), (attempt, 2)]) {
                // Remote unlocks are under way.
                match session.update(table, key, key * 10).await {
                    Err(error) if error.is_retryable() && attempt < 1_000 => {}
                    Ok(_) if key == 2 => break,
                    updated => drop(updated?),
                }
                session.back_off(attempt).await;
            }
            Ok(())
        }));
    }
    assert_eq!((read(cluster, table, 1), read(cluster, table, 2)), (Some(10), Some(20)));
}

/// H21: a panic in a transaction's own code ends that job, is reported as such, and releases its
/// locks; the coordinator and its slot live on.
#[test]
fn h21_a_panic_in_a_transaction_releases_its_locks() {
    for nodes in [1, 2] {
        let (cluster, table) = one_slot(nodes);
        let last = CoordinatorId { compute_node: nodes - 1, thread: 0 };
        let before_anything = cluster.submit(last, |_| -> std::future::Ready<Result<(), _>> {
            panic!("before there is a future")
        });
        assert_eq!(outcome(before_anything), Err(TxnError::Panicked));
        let holding_locks = cluster.submit(last, move |mut session| async move {
            let txn = holding(&mut session, table).await?;
            assert_eq!(txn.id().attempt(), 0, "so it panics");
            Ok(())
        });
        assert_eq!(outcome(holding_locks), Err(TxnError::Panicked));
        let in_run = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            txn.add_rw(table, 1)?;
            txn.execute().await?;
            panic!("in a closure that may run again")
        });
        assert_eq!(outcome::<Committed<()>>(in_run), Err(TxnError::Panicked));
        assert_usable(&cluster, table);
        stop_clean(cluster);
    }
}

#[test]
fn dropping_a_transaction_releases_its_locks_and_changes_nothing() {
    for nodes in [1, 2] {
        let (cluster, table) = one_slot(nodes);
        let last = CoordinatorId { compute_node: nodes - 1, thread: 0 };
        done(cluster.submit(last, move |mut session| async move {
            drop(holding(&mut session, table).await?);
            holding(&mut session, table).await?.abort();
            // An early return with an error drops it like this.
            let txn = holding(&mut session, table).await?;
            let again = session.begin(Isolation::Serializable).await;
            assert!(matches!(again.err(), Some(TxnError::Misuse(_))));
            drop(txn);
            Ok(())
        }));
        assert_usable(&cluster, table);
        stop_clean(cluster);
    }
}

/// A transaction may be dropped while its locks are being requested or its rows read: locks that it
/// has, or still gets, are released.
#[test]
fn h10_an_execution_that_nobody_waits_for_leaves_no_lock() {
    for nodes in [1, 2] {
        let (cluster, table) = one_slot(nodes);
        let last = CoordinatorId { compute_node: nodes - 1, thread: 0 };
        done(cluster.submit(last, move |mut session| async move {
            for polls in 0..6 {
                let mut txn = session.begin(Isolation::Serializable).await?;
                txn.add_rw(table, 1)?;
                txn.add_rw(table, 2)?;
                txn.insert(table, 3, b"")?;
                let mut executing = Box::pin(txn.execute());
                for _ in 0..polls {
                    if poll_once(executing.as_mut()).await.is_ready() {
                        break;
                    }
                    let view = session.view();
                    view.sleep_until(view.now()).await;
                }
                drop(executing);
                drop(txn);
            }
            // The same slot continues.
            for attempt in 0..1_000 {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let item = txn.insert(table, 3, b"")?;
                let _ = poll_once(pin!(txn.execute())).await;
                match txn.execute().await {
                    Err(error) if error.is_retryable() => session.back_off(attempt).await,
                    executed => {
                        executed?;
                        txn.put(item, &30u64.to_le_bytes())?;
                        return txn.commit().await.map(drop);
                    }
                }
            }
            Err(TxnError::Timeout)
        }));
        assert_eq!(read(&cluster, table, 3), Some(30));
        assert_usable(&cluster, table);
        stop_clean(cluster);
    }
}

/// While an execution is under way its transaction can do nothing else, and its slot is taken.
#[test]
fn an_execution_under_way_is_waited_for() {
    let (cluster, table) = one_slot(1);
    done(cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let item = txn.add_rw(table, 1)?;
        assert!(poll_once(pin!(txn.execute())).await.is_pending());
        let busy = |error: Option<TxnError>| assert!(matches!(error, Some(TxnError::Misuse(_))));
        busy(txn.add_ro(table, 2).err());
        busy(txn.put(item, b"early").err());
        busy(session.begin(Isolation::Serializable).await.err());
        assert_eq!(txn.value(item), None);
        txn.execute().await?;
        assert_eq!(txn.value(item), Some(&10u64.to_le_bytes()[..]));
        assert!(poll_once(pin!(txn.execute())).await.is_pending());
        busy(txn.commit().await.err());
        Ok(())
    }));
    assert_usable(&cluster, table);
    stop_clean(cluster);
}

/// H21: a commit belongs to the coordinator from its first verb on. Its future is polled once,
/// which hands the write set over, and dropped; the commit takes place all the same, once, and the
/// slot's next transaction waits for it.
#[test]
fn h21_a_commit_that_nobody_waits_for_is_carried_through() {
    for nodes in [1, 2] {
        let (cluster, table) = one_slot(nodes);
        done(cluster.submit(FIRST, move |mut session| async move {
            for round in 1..50 {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let items = [txn.add_rw(table, 1)?, txn.add_rw(table, 2)?];
                if txn.execute().await.is_err() {
                    // The unlock of the previous round is under way.
                    session.back_off(3).await;
                    continue;
                }
                for item in items {
                    txn.put(item, &u64::to_le_bytes(round))?;
                }
                {
                    let mut commit = Box::pin(txn.commit());
                    assert!(poll_once(commit.as_mut()).await.is_pending());
                }
                // The slot's next transaction sees it: its snapshot is drawn after the commit
                // ended.
                let seen = (session.read(table, 1).await?, session.read(table, 2).await?);
                assert_eq!(seen, (Some(round), Some(round)));
            }
            // A job may also end in the middle of a commit.
            for attempt in 0..1_000 {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let item = txn.add_rw(table, 1)?;
                if txn.execute().await.is_ok() {
                    txn.put(item, &777u64.to_le_bytes())?;
                    let mut commit = Box::pin(txn.commit());
                    assert!(poll_once(commit.as_mut()).await.is_pending());
                    return Ok(());
                }
                session.back_off(attempt).await;
            }
            Err(TxnError::Timeout)
        }));
        assert_eq!(read(&cluster, table, 1), Some(777));
        assert_usable(&cluster, table);
        stop_clean(cluster);
    }
}

/// The slot kept one verdict. A commit that was begun and not awaited left its future waiting for
/// it; the next transaction of the slot put its own verdict there, the old future took it, and the
/// new one waited for ever.
#[test]
fn h21_a_verdict_goes_to_the_commit_that_it_is_about() {
    let (cluster, table) = one_slot(1);
    done(cluster.submit(FIRST, move |mut session| async move {
        let mut begun = Vec::new();
        for key in [1, 2] {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let item = txn.add_rw(table, key)?;
            txn.execute().await?;
            txn.put(item, &(key * 100).to_le_bytes())?;
            let mut commit = Box::pin(txn.commit());
            assert!(poll_once(commit.as_mut()).await.is_pending());
            begun.push(commit);
        }
        let mut receipts = Vec::new();
        for commit in begun {
            receipts.push(commit.await?.commit_ts.expect("it wrote"));
        }
        assert!(receipts[0] < receipts[1], "{receipts:?}");
        Ok(())
    }));
    assert_usable(&cluster, table);
    stop_clean(cluster);
}

/// A submitted job runs even if its handle is dropped.
#[test]
fn dropping_what_was_submitted_changes_nothing() {
    let (cluster, table) = one_slot(2);
    for key in 100..150u64 {
        drop(cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
            txn.insert(table, key, &key.to_le_bytes())?;
            Ok::<(), TxnError>(())
        }));
    }
    for key in 100..150 {
        eventually(|| read(&cluster, table, key) == Some(key));
    }
    stop_clean(cluster);
}

/// Stopping waits for jobs submitted before.
#[test]
fn a_cluster_stops_when_its_jobs_have_ended() {
    let (cluster, table) = one_slot(1);
    let ran = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&ran);
    let first = cluster.submit(FIRST, move |session| async move {
        let view = session.view();
        view.sleep_until(view.now().after(std::time::Duration::from_millis(20))).await;
        Ok(())
    });
    let second = cluster.submit(FIRST, move |mut session| async move {
        let updated = session.update(table, 1, 11).await;
        ended.store(true, Ordering::SeqCst);
        updated
    });
    stop(cluster);
    assert!(ran.load(Ordering::SeqCst));
    done(first);
    done(second);
}

/// The last handle of a cluster may be held by one of its jobs: when that ends, the cluster does
/// too.
#[test]
fn a_job_may_be_the_last_to_hold_the_cluster() {
    let (last_kept, alone) = async_channel::bounded::<()>(1);
    let cluster = Arc::new(small().compute_nodes(2).start().expect("the settings are sound"));
    let held = Arc::clone(&cluster);
    let ended = cluster.submit(FIRST, move |_| async move {
        let _ = alone.recv().await;
        assert_eq!(Arc::strong_count(&held), 1);
        drop(held);
        Ok(())
    });
    drop(cluster);
    drop(last_kept);
    done(ended);
}
