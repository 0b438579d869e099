//! Code of applications that does not come to an end, or holds up its thread, and uses of a cluster
//! from within a transaction. They ended up in a cluster that stood still, and did not say why.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use async_channel::{Receiver, Sender};
use lotus::{
    Abort, Cluster, ClusterError, Committed, CoordinatorId, Isolation, Submitted, TableId,
    Transaction, TxnError, TxnOptions,
};
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;

const SHORT: Duration = Duration::from_millis(200);
const SECOND: CoordinatorId = CoordinatorId { compute_node: 1, thread: 0 };

/// Locks a row to write, and never ends.
async fn stuck(txn: &mut Transaction, table: TableId, row: u64) -> Result<(), TxnError> {
    txn.add_rw(table, row)?;
    txn.execute().await?;
    pending().await
}

fn is_late(ended: &Result<Committed<()>, TxnError>, name: &str) -> bool {
    matches!(ended, Err(TxnError::DeadlinePassed { what, .. }) if what.contains(name))
}

/// More bodies that never end than there are slots: each is dropped when its time is up, and its
/// slot and its locks are free.
#[test]
fn bodies_that_never_end_are_dropped_when_their_time_is_up() {
    let builder = small().coroutines(2).transaction_timeout(Some(SHORT));
    let (cluster, table) = with_zeroes(builder, 8);
    let stuck = |row| {
        let body = async move |txn: &mut Transaction| stuck(txn, table, row).await;
        cluster.run(Isolation::Serializable, body)
    };
    let all: Vec<_> = (0..6).map(stuck).collect();
    for submitted in all {
        let ended = submitted.wait();
        assert!(is_late(&ended, "never_ending.rs"), "{ended:?}");
        assert!(ended.is_err_and(|error| !error.is_retryable()));
    }
    for row in 0..6 {
        let add = async move |txn: &mut Transaction| add_one(txn, table, row).await;
        done(cluster.run(Isolation::Serializable, add));
    }
    // A read-only one too, and one that has not begun anything.
    let idle = cluster.run_read_only(async |_: &mut Transaction| pending::<Result<(), _>>().await);
    assert!(is_late(&idle.wait(), "never_ending.rs"));
    stop_clean(cluster);
}

#[test]
fn a_transaction_has_a_time_limit_and_a_name_of_its_own() {
    let (cluster, table) = with_zeroes(small(), 8);
    let options = || TxnOptions::new(Isolation::Serializable).name("transfer").at(table, 3);
    let body = async move |txn: &mut Transaction| stuck(txn, table, 3).await;
    let ended = cluster.run_with(options().timeout(SHORT), body).expect("the table is there");
    assert!(is_late(&ended.wait(), "\"transfer\""));
    let body = async move |txn: &mut Transaction| add_one(txn, table, 3).await.map(drop);
    done(cluster.run_with(options(), body).expect("the table is there"));
    let read = async move |txn: &mut Transaction| {
        let item = txn.add_ro(table, 3)?;
        txn.execute().await?;
        Ok::<_, TxnError>(number_of(txn, item))
    };
    let seen = cluster.run_with(TxnOptions::read_only(), read).expect("it names no table");
    assert_eq!(done(seen).value, Some(1));
    // A retryable error goes on until the time is up.
    let holding = hold(&cluster, FIRST, table, 4);
    let body = async move |txn: &mut Transaction| add_one(txn, table, 3).await.map(drop);
    let ended = cluster.run_with(options().timeout(SHORT), body).expect("the table is there");
    let error = ended.wait().expect_err("the row is locked");
    assert!(is_conflict(&error) || is_late(&Err(error.clone()), "transfer"), "{error}");
    drop(holding);
    drop(cluster);
}

/// H21: once the commit has begun, its outcome is what the memory nodes say.
#[test]
fn a_deadline_takes_back_no_commit() {
    let builder = small().commit_timeout(Duration::from_secs(1)).coroutines(1);
    let (cluster, table) = with_zeroes(builder.transaction_timeout(Some(SHORT)), 4);
    let fabric = cluster.local_fabric().clone();
    let body = async move |txn: &mut Transaction| {
        add_one(txn, table, 1).await?;
        fabric.set_reachable(NodeId(1), false).expect("there is such a node");
        Ok::<(), TxnError>(())
    };
    let ended = cluster.run(Isolation::Serializable, body).wait();
    assert!(matches!(ended, Err(TxnError::Unknown(_))), "{ended:?}");
    cluster.local_fabric().set_reachable(NodeId(1), true).expect("there is such a node");
    drop(cluster);
}

/// A body that awaits another transaction holds its slot and its locks meanwhile: as many of them
/// as there are slots would wait for ever.
#[test]
fn a_transaction_within_a_transaction_is_refused_at_once() {
    let cluster = Arc::new(small().coroutines(1).start().expect("it starts"));
    let table = cluster.create_table(NUMBERS).expect("there is room");
    insert_all(&cluster, table, &[(1, 0)]);
    let is_misuse = |ended: &Result<Committed<u64>, TxnError>| {
        assert!(matches!(ended, Err(TxnError::Misuse(_))), "{ended:?}");
    };
    for waits in [false, true] {
        let of = Arc::downgrade(&cluster);
        let body = async move |txn: &mut Transaction| {
            let cluster = of.upgrade().expect("it is running");
            let inner = cluster.run(Isolation::Serializable, async move |txn: &mut Transaction| {
                add_one(txn, table, 1).await
            });
            is_misuse(&if waits { inner.wait() } else { inner.await });
            add_one(txn, table, 1).await
        };
        done(cluster.run(Isolation::Serializable, body));
    }
    assert_eq!(read(&cluster, table, 1), Some(2), "what was refused has changed nothing");
    // What waits for coordinators is refused as well: it would wait for this one.
    let of = Arc::downgrade(&cluster);
    let body = async move |_: &mut Transaction| {
        let cluster = of.upgrade().expect("it is running");
        let refused = |error: Option<&dyn std::error::Error>| {
            let said = error.map(|error| format!("{error}")).unwrap_or_default();
            assert!(said.contains("a transaction's code cannot"), "{said}");
        };
        let scanned = cluster.scan(table).next().map(|row| row.map(drop).expect_err("it waits"));
        refused(scanned.as_ref().map(|error| error as _));
        let open = || Ok(Vec::new());
        let label = |_| Ok(lotus::SnapshotLabel::default());
        refused(cluster.snapshot_with(open, label, Vec::new).err().as_ref().map(|e| e as _));
        let shard = cluster.shard_of(table, 1).expect("it is there");
        refused(cluster.move_shards(&[shard], 0).err().as_ref().map(|error| error as _));
        Ok::<_, TxnError>(())
    };
    done(cluster.run(Isolation::Serializable, body));
    // A job may submit another one, and not wait for it.
    let of = Arc::downgrade(&cluster);
    let (ran, has_run) = async_channel::bounded(1);
    let waited = done(cluster.submit(FIRST, move |_| async move {
        let cluster = of.upgrade().expect("it is running");
        let submit = |ran: Sender<()>| {
            cluster.submit(FIRST, move |_| async move {
                let _ = ran.send(()).await;
                Ok(())
            })
        };
        let awaited = submit(ran.clone()).await;
        assert!(matches!(awaited, Err(TxnError::Misuse(_))));
        let waited: Result<(), TxnError> = submit(ran).wait();
        Ok(waited)
    }));
    assert!(matches!(waited, Err(TxnError::Misuse(_))));
    for _ in 0..2 {
        has_run.recv_blocking().expect("both have been submitted");
    }
    // Another cluster is another matter.
    let other = Arc::new(small().start().expect("it starts"));
    let of = Arc::clone(&other);
    let body = async move |_: &mut Transaction| {
        let inner = of.run(Isolation::Snapshot, async |_: &mut Transaction| Ok::<_, TxnError>(7));
        inner.await
    };
    assert_eq!(done(cluster.run(Isolation::Snapshot, body)).value.value, 7);
}

fn unended(stopped: Result<(), ClusterError>) -> String {
    match stopped {
        Err(ClusterError::Unended { what, .. }) => what.join("; "),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_stop_names_and_drops_what_does_not_end() {
    let builder = || small().stop_timeout(SHORT).transaction_timeout(None).coroutines(4);
    let cluster = builder().start().expect("it starts");
    let table = cluster.create_table(NUMBERS).expect("there is room");
    insert_all(&cluster, table, &[(1, 0)]);
    let (begun, has_begun) = async_channel::bounded(2);
    let told = begun.clone();
    let body = async move |txn: &mut Transaction| {
        add_one(txn, table, 1).await?;
        let _ = told.send(()).await;
        pending::<Result<(), TxnError>>().await
    };
    let options = TxnOptions::new(Isolation::Serializable).name("transfer");
    let transfer = cluster.run_with(options, body).expect("it names no table");
    let job: Submitted<()> = cluster.submit(FIRST, move |_| async move {
        let _ = begun.send(()).await;
        pending().await
    });
    for _ in 0..2 {
        has_begun.recv_blocking().expect("both are begun");
    }
    let what = unended(cluster.stop());
    assert!(what.contains("\"transfer\" was dropped"), "{what}");
    assert!(what.contains("never_ending.rs"), "{what}");
    assert_eq!(transfer.wait().map(drop), Err(TxnError::Fenced));
    assert_eq!(job.wait(), Err(TxnError::Fenced));
    // A cluster that is dropped ends too, and what had been submitted before is carried out.
    let cluster = builder().start().expect("it starts");
    let table = cluster.create_table(NUMBERS).expect("there is room");
    insert_all(&cluster, table, &[(1, 0)]);
    let stuck: Submitted<()> = cluster.submit(FIRST, |_| pending());
    let add = async move |txn: &mut Transaction| add_one(txn, table, 1).await;
    let added = cluster.run(Isolation::Serializable, add);
    drop(cluster);
    done(added);
    assert_eq!(stuck.wait(), Err(TxnError::Fenced));
}

/// Blocks its thread, as no transaction's code may, until `go_on` is closed.
async fn block(
    txn: &mut Transaction,
    table: TableId,
    (blocks, go_on): &(Sender<()>, Receiver<()>),
) -> Result<u64, Abort> {
    let added = add_one(txn, table, 1).await?;
    let _ = blocks.send(()).await;
    let _ = go_on.recv_blocking();
    Ok(added)
}

/// Submits a transaction that blocks the thread of a coordinator; returns once it does.
fn blocked(
    cluster: &Cluster,
    table: TableId,
    compute_node: usize,
) -> (Submitted<Committed<u64>, Abort>, Sender<()>) {
    let (blocks, is_blocked) = async_channel::bounded(1);
    let (release, go_on) = async_channel::bounded(1);
    let wires = (blocks, go_on);
    let body = async move |txn: &mut Transaction| block(txn, table, &wires).await;
    // The router sends it to the owner of that row.
    let row = (2..).find(|row| key_owned_by(cluster, table, compute_node, *row) == *row);
    let options = TxnOptions::new(Isolation::Serializable).name("blocks");
    let options = options.at(table, row.expect("there is one"));
    let submitted = cluster.run_with(options, body).expect("the table is there");
    is_blocked.recv_blocking().expect("it runs");
    (submitted, release)
}

#[test]
fn a_thread_that_is_blocked_is_named_and_outlasts_a_stop() {
    let cluster = small().stop_timeout(SHORT).start().expect("it starts");
    let table = cluster.create_table(NUMBERS).expect("there is room");
    insert_all(&cluster, table, &[(1, 0)]);
    let (submitted, release) = blocked(&cluster, table, 0);
    let is_named = || cluster.held_up().iter().any(|one| one.what == "\"blocks\"");
    eventually(is_named);
    assert_eq!(cluster.held_up()[0].coordinator_id, FIRST);
    drop(release);
    // It is slow, and that is all.
    done_at_last(submitted);
    assert_eq!(seen(&cluster, table), Some(1));
    eventually(|| cluster.held_up().is_empty());
    let (submitted, release) = blocked(&cluster, table, 0);
    let what = unended(cluster.stop());
    assert!(what.contains("\"blocks\" blocks a thread of compute node 0"), "{what}");
    drop(release);
    assert!(submitted.wait().is_err(), "its node has ended");
}

fn done_at_last(submitted: Submitted<Committed<u64>, Abort>) {
    submitted.wait().expect("it goes on and commits");
}

/// The number in row 1. Locks are released a little later than a commit is reported.
fn seen(cluster: &Cluster, table: TableId) -> Option<u64> {
    let read = async move |txn: &mut Transaction| {
        let item = txn.add_ro(table, 1)?;
        txn.execute().await?;
        Ok(number_of(txn, item))
    };
    done(cluster.run(Isolation::Serializable, read)).value
}

/// A transaction blocks the thread that beats for its node, for eight leases. The node stays a
/// member, and the transaction commits.
#[test]
fn a_node_whose_thread_is_blocked_beats_all_the_same() {
    let lease = lease();
    let builder = small().compute_nodes(2).lease(Some(lease)).block_limit(120 * lease);
    for compute_node in [0, 1] {
        let (cluster, table) = with_zeroes(builder.clone(), 64);
        let (submitted, release) = blocked(&cluster, table, compute_node);
        let held_for = || cluster.held_up().first().map(|one| one.since).unwrap_or_default();
        assert!(eventually_within(PATIENCE, || held_for() > 8 * lease));
        for node in [0, 1] {
            assert!(cluster.takes_part(node), "{node} of {compute_node}");
            assert_eq!(cluster.node_figures(node).expelled, 0);
        }
        drop(release);
        done_at_last(submitted);
        assert_eq!(seen(&cluster, table), Some(1));
        stop_clean(cluster);
    }
}

/// Lets others of this thread go on, once.
async fn let_others_go_on() {
    let mut has = false;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut has, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Transactions that compute by turns, each for a part of the lease and all together for several,
/// on the thread that beats for its node. Regression: no single one held the thread up, so nobody
/// beat.
#[test]
fn a_node_whose_thread_has_too_much_to_do_beats_all_the_same() {
    const BODIES: usize = 16;
    let lease = lease();
    let builder = small().compute_nodes(2).lease(Some(lease)).block_limit(120 * lease);
    let (cluster, table) = with_zeroes(builder.coroutines(BODIES), 64);
    let row = (2..).find(|row| key_owned_by(&cluster, table, 1, *row) == *row);
    let row = row.expect("there is one");
    let (rounds, has_gone_round) = async_channel::unbounded();
    let (release, is_over) = async_channel::bounded::<()>(1);
    let bodies: Vec<_> = (0..BODIES)
        .map(|body| {
            let (rounds, is_over, clock) = (rounds.clone(), is_over.clone(), Env::real(0));
            let computes = async move |txn: &mut Transaction| {
                while !is_over.is_closed() {
                    let since = clock.now();
                    while clock.now().since(since) < lease / 8 {
                        std::hint::spin_loop();
                    }
                    if body == 0 {
                        let _ = rounds.send(()).await;
                    }
                    let_others_go_on().await;
                }
                txn.add_ro(table, row)?;
                txn.execute().await
            };
            let options = TxnOptions::new(Isolation::Serializable).at(table, row);
            cluster.run_with(options, computes).expect("the table is there")
        })
        .collect();
    (0..4).for_each(|_| has_gone_round.recv_blocking().expect("it runs"));
    for node in [0, 1] {
        assert!(cluster.takes_part(node), "{node}");
        assert_eq!(cluster.node_figures(node).expelled, 0);
    }
    drop(release);
    bodies.into_iter().for_each(|body| done(body).value);
    stop_clean(cluster);
}

/// A node that is held up for too long gives itself up, and the other one takes its place: its
/// locks are free, and what it had not committed is undone.
#[test]
fn a_node_whose_thread_is_blocked_for_too_long_gives_itself_up() {
    let lease = lease();
    let builder = small().compute_nodes(2).lease(Some(lease)).block_limit(2 * lease);
    let (cluster, table) = with_zeroes(builder.stop_timeout(SHORT), 64);
    let (submitted, release) = blocked(&cluster, table, SECOND.compute_node);
    assert!(eventually_within(PATIENCE, || !cluster.takes_part(1)));
    let mut before = None;
    let is_added = || {
        let add = async move |txn: &mut Transaction| add_one(txn, table, 1).await;
        before = cluster.run(Isolation::Serializable, add).wait().ok().map(|added| added.value);
        before.is_some()
    };
    assert!(eventually_within(PATIENCE, is_added), "its lock is free");
    assert_eq!(before, Some(0), "what it had not committed is undone");
    drop(release);
    assert!(submitted.wait().is_err(), "its node is out");
    drop(cluster);
}
