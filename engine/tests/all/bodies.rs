//! The contract of a transaction's body: it commits by returning `Ok`, aborts by returning `Err`,
//! and may have any error type.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::common::*;
use lotus::{Abort, Cluster, Isolation, Receipt, Submitted, TableId, Transaction, TxnError};

/// An application's own error, which forgets what the engine said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Opaque;

impl From<TxnError> for Opaque {
    fn from(_: TxnError) -> Self {
        Self
    }
}

/// Refusal by an application's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TooPoor {
    has: u64,
}

/// A cluster with row 1, which holds 10, and row 2, which holds 20.
fn two_rows() -> (Running, TableId) {
    let (cluster, table) = with_numbers(small());
    insert_all(&cluster, table, &[(1, 10), (2, 20)]);
    assert_clean(&cluster);
    (cluster, table)
}

async fn withdraw(txn: &mut Transaction, table: TableId, sum: u64) -> Result<u64, Abort<TooPoor>> {
    let item = txn.add_rw(table, 1)?;
    txn.execute().await?;
    let has = number_of(txn, item).expect("it was inserted");
    let left = has.saturating_sub(sum);
    // Before the check: the abort takes it back.
    txn.put(item, &left.to_le_bytes())?;
    if has < sum { Err(Abort::Application(TooPoor { has })) } else { Ok(left) }
}

/// Write-locks row 1 until `free` is set.
fn locked(cluster: &Cluster, table: TableId, free: &Arc<AtomicBool>) -> Submitted<()> {
    let is_locked = Arc::new(AtomicBool::new(false));
    let (locks, free) = (Arc::clone(&is_locked), Arc::clone(free));
    let holding = cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.add_rw(table, 1)?;
        txn.execute().await?;
        locks.store(true, Ordering::SeqCst);
        until(&session.view(), || free.load(Ordering::SeqCst)).await;
        Ok(())
    });
    eventually(|| is_locked.load(Ordering::SeqCst));
    holding
}

/// Counts an attempt. Frees row 1 in the fourth, so that it or a later one succeeds.
fn count(attempts: &AtomicU32, free: &AtomicBool) {
    if attempts.fetch_add(1, Ordering::SeqCst) == 3 {
        free.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_body_that_returns_ok_commits_all_it_has_done() {
    let (cluster, table) = two_rows();
    for isolation in ISOLATIONS {
        let key = 10 + isolation as u64;
        let body = async move |txn: &mut Transaction| {
            let item = txn.add_rw(table, 1)?;
            // Kept while it waits: its future stays on one thread.
            let one = Rc::new(1);
            txn.execute().await?;
            txn.put(item, &(number_of(txn, item).expect("inserted") + *one).to_le_bytes())?;
            // Not executed by the body.
            let blind = txn.add_rw(table, 2)?;
            txn.put(blind, &key.to_le_bytes())?;
            txn.insert(table, key, &key.to_le_bytes())?;
            Ok(key)
        };
        assert_eq!(done(cluster.run(isolation, body)).value, key);
        assert_eq!(read(&cluster, table, 2), Some(key));
        assert_eq!(read(&cluster, table, key), Some(key));
    }
    assert_eq!(read(&cluster, table, 1), Some(12));
    stop_clean(cluster);
}

#[test]
fn a_body_that_returns_an_error_of_its_own_changes_nothing() {
    let (cluster, table) = two_rows();
    let attempts = Arc::new(AtomicU32::new(0));
    for (sum, expected) in [(11, Err(TooPoor { has: 10 })), (4, Ok(6))] {
        let counted = Arc::clone(&attempts);
        let body = async move |txn: &mut Transaction| {
            counted.fetch_add(1, Ordering::SeqCst);
            withdraw(txn, table, sum).await
        };
        let ended = cluster.run_at(table, 1, Isolation::Serializable, body);
        let ended = block_on(ended.expect("the table exists"));
        assert_eq!(ended.map(|done| done.value), expected.map_err(Abort::Application));
        assert_eq!(read(&cluster, table, 1), Some(expected.unwrap_or(10)));
    }
    assert_eq!(attempts.load(Ordering::SeqCst), 2, "an error of the application is final");
    stop_clean(cluster);
}

#[test]
fn a_conflict_is_retried_whatever_the_body_has_made_of_it() {
    /// What the body does with the error.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Made {
        Converted,
        /// The row is executed by the commit.
        NotSeen,
        /// The body goes on with the transaction that has ended.
        PassedOver,
    }
    let (cluster, table) = two_rows();
    for (round, made) in (0..).zip([Made::Converted, Made::NotSeen, Made::PassedOver]) {
        let (free, attempts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let holding = locked(&cluster, table, &free);
        let counted = Arc::clone(&attempts);
        let body = async move |txn: &mut Transaction| {
            count(&counted, &free);
            let item = txn.add_rw(table, 1)?;
            match made {
                Made::Converted => txn.execute().await.map_err(|_| Opaque)?,
                Made::NotSeen => {}
                Made::PassedOver => _ = txn.execute().await,
            }
            txn.put(item, &u64::to_le_bytes(round))?;
            Ok::<(), Opaque>(())
        };
        let ended = block_on(cluster.run(Isolation::Serializable, body));
        assert!(ended.is_ok(), "{made:?}");
        assert!(attempts.load(Ordering::SeqCst) >= 4, "{made:?}: the first three met the lock");
        done(holding);
        assert_eq!(read(&cluster, table, 1), Some(round));
    }
    stop_clean(cluster);
}

/// Before, the caller took `Ok` for a commit although the attempt had ended.
#[test]
fn a_body_that_swallows_a_conflict_is_not_committed() {
    let (cluster, table) = two_rows();
    let (free, attempts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let holding = locked(&cluster, table, &free);
    let counted = Arc::clone(&attempts);
    let ended = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        count(&counted, &free);
        let item = txn.add_rw(table, 1)?;
        if txn.execute().await.is_err() {
            return Ok(None);
        }
        Ok(number_of(txn, item))
    });
    assert_eq!(done(ended).value, Some(10), "the value of an attempt that has read the row");
    assert!(attempts.load(Ordering::SeqCst) >= 4, "the first three met the lock");
    done(holding);
    stop_clean(cluster);
}

#[test]
fn an_error_that_no_retry_can_cure_is_returned_at_once() {
    let (cluster, table) = two_rows();
    let exists = TxnError::AlreadyExists { table, key: 1.into() };
    let absent = TxnError::NotFound { table, key: 9.into() };
    // Swallowed: the caller gets the engine's error, and row 3 is not there.
    let swallowed = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        txn.insert(table, 3, b"x")?;
        txn.insert(table, 1, b"x")?;
        let _ = txn.execute().await;
        Ok(())
    });
    assert_eq!(outcome(swallowed).err(), Some(exists));
    // Converted: the caller gets the application's.
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let converted = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        counted.fetch_add(1, Ordering::SeqCst);
        txn.insert(table, 1, b"x")?;
        txn.execute().await.map_err(|_| Abort::Application(Opaque))
    });
    assert_eq!(block_on(converted).err(), Some(Abort::Application(Opaque)));
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    // Of the commit itself.
    let by_commit = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, 9)?;
        txn.put(item, b"x")?;
        Ok::<(), Abort<Opaque>>(())
    });
    assert_eq!(block_on(by_commit).err(), Some(Abort::Engine(absent)));
    assert_eq!(read(&cluster, table, 3), None);
    stop_clean(cluster);
}

/// The engine has not said it, so it is the application's, whatever its type.
#[test]
fn an_error_that_ended_no_attempt_is_the_applications() {
    let (cluster, _) = two_rows();
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let made_up = cluster.run(Isolation::Serializable, async move |_: &mut Transaction| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err::<(), _>(TxnError::LockTableFull)
    });
    assert_eq!(outcome(made_up).err(), Some(TxnError::LockTableFull));
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    stop_clean(cluster);
}

#[test]
fn when_retries_do_not_help_the_caller_gets_the_last_error_of_the_engine() {
    let (cluster, table) = two_rows();
    let free = Arc::new(AtomicBool::new(false));
    let holding = locked(&cluster, table, &free);
    let ended = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        txn.add_rw(table, 1)?;
        txn.execute().await.map_err(|_| Abort::Application(Opaque))
    });
    let conflict = TxnError::Conflict { table, key: 1.into() };
    assert_eq!(block_on(ended).err(), Some(Abort::Engine(conflict)));
    free.store(true, Ordering::SeqCst);
    done(holding);
    stop_clean(cluster);
}

#[test]
fn panics_and_lost_nodes_are_reported_as_errors_of_the_application_s_type() {
    let (cluster, table) = two_rows();
    let body = async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, 1)?;
        txn.execute().await?;
        txn.put(item, b"changed")?;
        assert_eq!(txn.id().attempt(), 0, "so it panics");
        Ok::<(), Abort<Opaque>>(())
    };
    let panicked = block_on(cluster.run(Isolation::Serializable, body));
    assert_eq!(panicked.err(), Some(Abort::Engine(TxnError::Panicked)));
    assert_eq!(read(&cluster, table, 1), Some(10));
    cluster.kill(0);
    // A coordinator that is about to notice may still have begun a transaction.
    eventually(|| {
        let looking =
            cluster.run_read_only(async |_: &mut Transaction| Ok::<(), Abort<Opaque>>(()));
        block_on(looking) == Err(Abort::Engine(TxnError::Fenced))
    });
    stop(cluster);
}

#[test]
fn a_committed_transaction_has_a_receipt() {
    let (cluster, table) = two_rows();
    let write = async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, 1)?;
        txn.put(item, &11u64.to_le_bytes())?;
        Ok(())
    };
    let first = done(cluster.run(Isolation::Serializable, write)).receipt;
    let second = done(cluster.run(Isolation::Snapshot, write)).receipt;
    assert!(first.commit_ts.is_some() && first.commit_ts < second.commit_ts);
    assert!(second.snapshot >= first.commit_ts, "{second:?}");
    let look = async move |txn: &mut Transaction| {
        let item = txn.add_ro(table, 1)?;
        txn.execute().await?;
        Ok(number_of(txn, item))
    };
    let seen = done(cluster.run_read_only(look));
    assert_eq!((seen.value, seen.receipt.commit_ts), (Some(11), None));
    assert!(seen.receipt.snapshot >= second.commit_ts, "{seen:?}");
    let nothing = done(cluster.run(Isolation::Serializable, look)).receipt;
    assert_eq!(nothing, Receipt::default());
    stop_clean(cluster);
}

#[test]
fn a_body_that_does_not_wait_for_its_execution_is_not_committed() {
    let (cluster, table) = two_rows();
    let ended = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
        let item = txn.add_rw(table, 1)?;
        txn.put(item, b"changed")?;
        let mut executing = pin!(txn.execute());
        std::future::poll_fn(|cx| {
            assert!(executing.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        Ok(())
    });
    let refused = outcome(ended);
    assert!(matches!(refused, Err(TxnError::Misuse(_))), "{refused:?}");
    assert_eq!(read(&cluster, table, 1), Some(10));
    stop_clean(cluster);
}

/// A job that drives a transaction by hand can ask what has ended it.
#[test]
fn a_transaction_remembers_what_has_ended_it() {
    let (cluster, table) = two_rows();
    done(cluster.submit(FIRST, move |mut session| async move {
        let exists = TxnError::AlreadyExists { table, key: 1.into() };
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.insert(table, 1, b"x")?;
        assert_eq!(txn.ended_by(), None);
        assert_eq!(txn.execute().await, Err(exists.clone()));
        // What follows is only a consequence.
        assert!(matches!(txn.execute().await, Err(TxnError::Misuse(_))));
        assert_eq!(txn.ended_by(), Some(exists));
        let mut next = session.begin(Isolation::Serializable).await?;
        assert_eq!(next.ended_by(), None, "another attempt of the same slot");
        next.add_rw(table, 1)?;
        next.execute().await?;
        assert_eq!(next.ended_by(), None);
        Ok(())
    }));
    stop_clean(cluster);
}
