//! Transactions that wait for locks, of their own node and of another one.

use std::time::Duration;

use crate::common::*;
use lotus::{CoordinatorId, Isolation, LockWait, TxnError};

const SECOND: CoordinatorId = CoordinatorId { compute_node: 1, thread: 0 };

/// Writers of one row at two nodes, more than can be in a hurry at once: without a failed attempt
/// each gets its turn.
#[test]
fn writers_of_one_row_at_two_nodes_wait_for_one_another_and_none_is_refused() {
    let builder = small().compute_nodes(2).lock_wait(LockWait::Ordered);
    let (cluster, table) = with_numbers(builder.lock_timeout(Duration::from_secs(30)));
    let key = key_owned_by(&cluster, table, 0, 0);
    insert_all(&cluster, table, &[(key, 0)]);
    let add = |coordinator_id| {
        cluster.submit(coordinator_id, move |mut session| async move {
            for _ in 0..32 {
                let mut txn = session.begin(Isolation::Serializable).await?;
                let item = txn.add_rw(table, key)?;
                txn.execute().await?;
                let value = number_of(&txn, item).expect("the row exists");
                txn.put(item, &(value + 1).to_le_bytes())?;
                txn.commit().await?;
            }
            Ok(())
        })
    };
    let writers: Vec<_> = (0..4).flat_map(|_| [add(FIRST), add(SECOND)]).collect();
    writers.into_iter().for_each(done);
    let sum = done(cluster.submit(FIRST, move |mut s| async move { s.read(table, key).await }));
    assert_eq!(sum, Some(4 * 2 * 32));
    stop_clean(cluster);
}

/// H10, H21: the caller gives up while its transaction waits. The slot is free again at once, and
/// the lock is not granted to what is over.
#[test]
fn h10_a_transaction_that_is_dropped_while_it_waits_leaves_its_queue() {
    for coordinator_id in [FIRST, SECOND] {
        let builder = small().compute_nodes(2).lock_wait(LockWait::Ordered);
        let (cluster, table) = with_numbers(builder.lock_timeout(Duration::from_secs(30)));
        let key = key_owned_by(&cluster, table, 0, 0);
        let other = key_owned_by(&cluster, table, 0, key + 1);
        insert_all(&cluster, table, &[(key, 0), (other, 0)]);
        let (locked, is_locked) = async_channel::bounded(1);
        let (release, released) = async_channel::bounded::<()>(1);
        let holder = cluster.submit(FIRST, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.add_rw(table, key)?;
            txn.execute().await?;
            let _ = locked.send(()).await;
            let _ = released.recv().await;
            txn.abort();
            Ok::<_, TxnError>(())
        });
        is_locked.recv_blocking().expect("it holds the lock");
        done(cluster.submit(coordinator_id, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.add_rw(table, key)?;
            let view = session.view();
            let deadline = view.now().after(Duration::from_millis(20));
            let mut waiting = std::pin::pin!(txn.execute());
            let mut alarm = std::pin::pin!(view.sleep_until(deadline));
            std::future::poll_fn(|cx| {
                assert!(waiting.as_mut().poll(cx).is_pending(), "the lock is held");
                alarm.as_mut().poll(cx)
            })
            .await;
            Ok(())
        }));
        // The same slot, or another one: nothing is in the way but the row itself.
        done(
            cluster.submit(
                coordinator_id,
                move |mut s| async move { s.update(table, other, 1).await },
            ),
        );
        release.send_blocking(()).expect("it waits for that");
        done(holder);
        done(cluster.submit(SECOND, move |mut s| async move { s.update(table, key, 3).await }));
        stop_clean(cluster);
    }
}
