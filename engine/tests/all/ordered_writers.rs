//! Writers of one leaf: where locks are waited for none is refused, and where they are not one of
//! them has its way.
//!
//! Each attempt is a job of its own, as those of interactive clients are: it does not know what
//! an attempt before it was refused, and so cannot take the locks of that one first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{
    ClusterBuilder, CoordinatorId, Isolation, LockKind, LockWait, PrimaryKey, Session, TableId,
    TableSpec, Transaction, TxnError,
};

/// Some dozens of rows fit a leaf.
const SPEC: TableSpec =
    TableSpec::new("few").key_bytes(16).record_bytes(8).capacity(2_000).ordered();

/// Operation by which an attempt writes the row of its number.
#[derive(Clone, Copy, Debug)]
enum Way {
    Put,
    Insert,
    ReadFirst,
    Range,
    Delete,
}

const WAYS: [Way; 5] = [Way::Put, Way::Insert, Way::ReadFirst, Way::Range, Way::Delete];

fn key(number: u64) -> Vec<u8> {
    format!("key {number:04}").into_bytes()
}

/// Locks are waited for as long as it takes: a busy machine is no reason to be refused.
fn patient(nodes: usize) -> ClusterBuilder {
    let patient = small().compute_nodes(nodes).lock_timeout(Duration::from_secs(15));
    patient.lock_wait(LockWait::Ordered)
}

/// One attempt, without a retry.
async fn attempt(
    session: &mut Session,
    table: TableId,
    way: Way,
    number: u64,
) -> Result<(), TxnError> {
    let (key, value) = (key(number), number.to_le_bytes());
    let mut txn = session.begin(Isolation::Serializable).await?;
    let mut rows = txn.ordered(table)?;
    match way {
        Way::Put => rows.put(&key, &value).await?,
        Way::Insert => rows.insert(&key, &value).await?,
        Way::ReadFirst => {
            let _before = rows.get_for_update(&key).await?;
            rows.put(&key, &value).await?;
        }
        Way::Range => {
            let _before = rows.range(..).for_update().rows().await?;
            rows.put(&key, &value).await?;
        }
        Way::Delete => _ = rows.delete(&key).await?,
    }
    txn.commit().await.map(drop)
}

/// Submits attempts at all nodes at once; returns the errors of those that were refused.
fn all_at_once(cluster: &Running, nodes: usize, table: TableId, way: Way) -> Vec<TxnError> {
    let submitted: Vec<_> = (0..8 * nodes)
        .map(|number| {
            let coordinator_id = CoordinatorId { compute_node: number % nodes, thread: 0 };
            cluster.submit(coordinator_id, async move |mut session: Session| {
                attempt(&mut session, table, way, number as u64).await
            })
        })
        .collect();
    submitted.into_iter().filter_map(|attempt| outcome(attempt).err()).collect()
}

/// Regression: each attempt read the root first, which all could; then each wanted to write it, and
/// none could: 7 of 5,120 attempts of 128 clients committed.
#[test]
fn all_who_write_to_a_table_of_one_leaf_succeed_at_once() {
    for nodes in [1, 2] {
        for way in WAYS {
            let (cluster, table) = with_table(patient(nodes), SPEC);
            for round in 0..3 {
                let refused = all_at_once(&cluster, nodes, table, way);
                let again = matches!(way, Way::Insert) && round > 0;
                if !again {
                    assert_eq!(refused, [], "{way:?} at {nodes} nodes, round {round}");
                }
            }
            stop_clean(cluster);
        }
    }
}

/// By default a request for a lock that is held is refused. Of attempts that want it all at once
/// one has it, as long as none of them has locked it to read before.
#[test]
fn some_who_write_to_a_table_of_one_leaf_succeed_where_no_lock_is_waited_for() {
    for nodes in [1, 2] {
        for way in [Way::Put, Way::ReadFirst, Way::Range, Way::Delete] {
            let (cluster, table) = with_table(small().compute_nodes(nodes), SPEC);
            for round in 0..10 {
                let refused = all_at_once(&cluster, nodes, table, way);
                assert!(refused.iter().all(TxnError::is_retryable), "{way:?}: {refused:?}");
                assert!(refused.len() < 8 * nodes, "{way:?} at {nodes} nodes, round {round}");
            }
            stop_clean(cluster);
        }
    }
}

/// The same of a leaf below a root, where no inner node is remembered yet: the leaf is not read
/// before it is written, either.
#[test]
fn all_who_write_to_a_leaf_below_the_root_succeed_at_once() {
    let (cluster, table) = with_table(patient(2), SPEC);
    let row = |number: u64, value: &mut Vec<u8>| {
        value.extend(number.to_le_bytes());
        PrimaryKey::try_from(&*key(number)).expect("short")
    };
    cluster.load(table, 800, &row, &Default::default()).expect("they fit");
    assert_eq!(all_at_once(&cluster, 2, table, Way::Put), []);
    assert_eq!(all_at_once(&cluster, 2, table, Way::ReadFirst), []);
    stop_clean(cluster);
}

/// Regression: an attempt takes the locks that the one before was refused, before it has added any
/// row. An error about them named the first row of none, and the panic took the node with it.
#[test]
fn an_attempt_without_rows_that_is_refused_the_locks_of_the_one_before_is_repeated() {
    let waits = |kind| small().locks(kind).lock_timeout(Duration::from_millis(50));
    let kinds = [
        waits(LockKind::Lotus).lock_wait(LockWait::Ordered),
        waits(LockKind::Cas),
        waits(LockKind::Dslr),
        waits(LockKind::ShiftLock),
        waits(LockKind::Declock),
    ];
    for builder in kinds {
        let (cluster, table) = with_table(builder, SPEC);
        let (locked, is_locked) = async_channel::bounded(1);
        let (release, released) = async_channel::bounded::<()>(1);
        let holder = cluster.submit(FIRST, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let _absent = txn.ordered(table)?.get_for_update(&key(1)).await?;
            let _ = locked.send(()).await;
            let _ = released.recv().await;
            txn.abort();
            Ok::<_, TxnError>(())
        });
        is_locked.recv_blocking().expect("it holds the leaf");
        let attempts = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&attempts);
        let body = async move |txn: &mut Transaction| {
            if count.fetch_add(1, Ordering::Relaxed) == 4 {
                let _ = release.try_send(());
            }
            txn.execute().await?;
            txn.ordered(table)?.put(&key(1), &[0; 8]).await
        };
        let kind = cluster.config().locks;
        let written: Result<_, TxnError> = cluster.run(Isolation::Serializable, body).wait();
        assert!(written.is_ok(), "{kind:?}: {written:?}");
        assert!(cluster.is_serving() && attempts.load(Ordering::Relaxed) > 4, "{kind:?}");
        done(holder);
        stop_clean(cluster);
    }
}
