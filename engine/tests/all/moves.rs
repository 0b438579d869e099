//! Shards that move to another compute node while transactions run.
//!
//! The simulator tests what may go wrong at which instant (`proof/sim/scenarios/`). Here threads
//! really run side by side, and nothing depends on how fast.

use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, Isolation, MoveError, Moved, Moving, ShardId, TableId, Transaction, TxnError,
};
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::NodeId;

const ROWS: u64 = 64;

/// Adds one to a row, on the node that the router names.
fn increment(cluster: &Cluster, table: TableId, row: u64) -> Result<(), TxnError> {
    let body = async move |txn: &mut Transaction| add_one(txn, table, row).await;
    cluster.run_at(table, row, Isolation::Serializable, body)?.wait().map(drop)
}

fn owner_of(cluster: &Cluster, shard: ShardId) -> Option<usize> {
    let shards = cluster.shards().expect("the memory nodes answer");
    shards[usize::from(shard.raw())].owner
}

/// H19: every increment counts once, wherever the shards are meanwhile.
#[test]
fn shards_move_there_and_back_while_their_rows_are_written() {
    let (cluster, table) = with_zeroes(small().compute_nodes(3), ROWS);
    let shards: Vec<_> = ShardId::all().collect();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let cluster = &cluster;
                scope.spawn(move || {
                    (0..ROWS).for_each(|row| increment(cluster, table, row).expect("it commits"));
                })
            })
            .collect();
        for round in 0..6 {
            for some in shards[..120].chunks(40) {
                let from = owner_of(&cluster, some[0]).expect("nobody dies");
                let mine = |shard: &&ShardId| owner_of(&cluster, **shard) == Some(from);
                let mine: Vec<_> = some.iter().filter(mine).copied().collect();
                let to = (from + 1 + round % 2) % 3;
                cluster.move_shards(&mine, to).expect("nobody else moves them");
                assert!(mine.iter().all(|shard| owner_of(&cluster, *shard) == Some(to)));
            }
        }
        clients.into_iter().for_each(|client| client.join().expect("it does not panic"));
    });
    cluster.settle().expect("nobody fails");
    let mut sum = 0;
    cluster
        .audit_scan(table, &mut |_, value, _| sum += number(value))
        .expect("the memory nodes answer");
    assert_eq!(sum, 3 * ROWS);
    for finding in cluster.audit().expect("the memory nodes answer") {
        assert!(finding.passed, "{finding:?}");
    }
}

/// H19: a transaction that holds a lock and does nothing is asked to give it up, and does.
#[test]
fn whoever_dawdles_with_a_lock_gives_it_up() {
    let patience = Duration::from_millis(1);
    let (cluster, table) = with_zeroes(small().compute_nodes(2).drain_patience(patience), ROWS);
    let row = key_owned_by(&cluster, table, 0, 0);
    let shard = cluster.shard_of(table, row).expect("the table exists");
    for dawdler in 0..2 {
        let coordinator_id = lotus::CoordinatorId { compute_node: dawdler, thread: 0 };
        let (begun, has_begun) = async_channel::bounded(1);
        let (moved, has_moved) = async_channel::bounded::<()>(1);
        let dawdles = cluster.submit(coordinator_id, move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            let item = txn.add_rw(table, row)?;
            txn.execute().await?;
            let _ = begun.try_send(());
            let _ = has_moved.recv().await;
            txn.put(item, &7_u64.to_le_bytes())?;
            txn.commit().await.map(drop)
        });
        has_begun.recv_blocking().expect("it gets the lock");
        let from = owner_of(&cluster, shard).expect("nobody dies");
        let outcome = cluster.move_shards(&[shard], 1 - from).expect("the lock is given up");
        assert_eq!(outcome.stragglers, 1);
        drop(moved);
        let error = dawdles.wait().expect_err("it has given up");
        assert!(matches!(error, TxnError::Conflict { .. }), "{error}");
        increment(&cluster, table, row).expect("its new owner grants the lock");
    }
}

#[test]
fn what_cannot_be_moved_stays() {
    let (cluster, _) = with_zeroes(small().compute_nodes(2), ROWS);
    let shard = ShardId::from_low_bits(0);
    let other = ShardId::from_low_bits(1);
    assert_eq!(cluster.move_shards(&[shard], 2), Err(MoveError::NoSuchNode(2)));
    assert_eq!(cluster.move_shards(&[shard, other], 1), Err(MoveError::NotOwner(other)));
    assert_eq!((owner_of(&cluster, shard), owner_of(&cluster, other)), (Some(0), Some(1)));
    cluster.move_shards(&[shard], 0).expect("it is there already");
    let (memory_locks, _) = with_zeroes(small().compute_nodes(2).locks(lotus::LockKind::Cas), ROWS);
    assert_eq!(memory_locks.move_shards(&[shard], 1), Err(MoveError::NoOwners));
}

fn shard(number: u64) -> ShardId {
    ShardId::from_low_bits(number)
}

/// Any node can be asked to move any shard; it asks the owner by message.
#[test]
fn any_node_passes_orders_on_to_the_owner() {
    let (cluster, _) = with_zeroes(small().compute_nodes(3), ROWS);
    for asked in 0..3 {
        for number in 0..6 {
            let from = owner_of(&cluster, shard(number)).expect("nobody dies");
            let to = (from + 1) % 3;
            let moving = cluster.start_move_by(asked, &[shard(number)], to).expect("they exist");
            outcome_of(&moving).expect("the owner hands it over");
            assert_eq!(owner_of(&cluster, shard(number)), Some(to));
        }
    }
    assert_eq!(cluster.move_counters().shards, 18);
    // One order cannot name shards of several owners.
    let owners = [0, 1].map(|number| owner_of(&cluster, shard(number)));
    assert_ne!(owners[0], owners[1]);
    let asked = 3 - owners.iter().flatten().sum::<usize>();
    let moving = cluster.start_move_by(asked, &[shard(0), shard(1)], asked).expect("it exists");
    assert_eq!(outcome_of(&moving), Err(MoveError::NotOwner(shard(1))));
    assert!(matches!(cluster.start_move_by(3, &[shard(0)], 0), Err(MoveError::NoSuchNode(3))));
}

/// The owner has begun when its asker becomes unreachable; it publishes the move and dies without
/// an answer. The asker takes the outcome from the memory pool.
#[test]
fn an_order_that_nobody_answers_is_looked_up() {
    let timeout = Duration::from_secs(3);
    let builder = small().compute_nodes(3).lock_timeout(timeout).drain_patience(timeout);
    let (cluster, table) = with_zeroes(builder, ROWS);
    let (asker, giver, receiver) = (2, 0, 1);
    let row = key_owned_by(&cluster, table, giver, 0);
    let its = cluster.shard_of(table, row).expect("the table exists");
    let epoch = || cluster.shards().expect("they answer")[usize::from(its.raw())].epoch.0;
    let first = epoch();

    let (begun, has_begun) = async_channel::bounded(1);
    let (release, released) = async_channel::bounded::<()>(1);
    let holds = cluster.submit(lotus::CoordinatorId { compute_node: giver, thread: 0 }, {
        move |mut session| async move {
            let mut txn = session.begin(Isolation::Serializable).await?;
            txn.add_rw(table, row)?;
            txn.execute().await?;
            let _ = begun.try_send(());
            let _ = released.recv().await;
            Ok(())
        }
    });
    has_begun.recv_blocking().expect("it gets the lock");
    let moving = cluster.start_move_by(asker, &[its], receiver).expect("they exist");
    let keeper = || cluster.shard_owner(giver, its).compute_node;
    wait_until("the owner has stopped", || keeper() != Some(giver));
    let node = NodeId((cluster.config().memory_nodes + asker) as u16);
    cluster.local_fabric().set_reachable(node, false).expect("it exists");
    drop(release);
    holds.wait().expect("it ends");
    wait_until("the shard has moved", || owner_of(&cluster, its) == Some(receiver));
    cluster.kill(giver);
    let moved = outcome_of(&moving).expect("it was moved");
    assert_eq!(moved.interruption, Duration::ZERO, "nobody has said how long it took");
    assert_eq!(epoch(), first + 1, "it was moved once");

    // Now no owner is left that could move anything.
    cluster.local_fabric().set_reachable(node, true).expect("it exists");
    let mut shards = ShardId::all();
    let left = shards.find(|shard| owner_of(&cluster, *shard) == Some(giver)).expect("it had many");
    let moving = cluster.start_move_by(asker, &[left], receiver).expect("they exist");
    assert_eq!(outcome_of(&moving), Err(MoveError::NoAnswer));
    assert_eq!(owner_of(&cluster, left), Some(giver));
}

#[test]
fn a_receiver_out_of_reach_gets_nothing() {
    let builder = small().compute_nodes(3).lock_timeout(Duration::from_millis(100));
    let (cluster, table) = with_zeroes(builder, ROWS);
    let (asker, giver, receiver) = (2, 0, 1);
    let node = NodeId((cluster.config().memory_nodes + receiver) as u16);
    cluster.local_fabric().set_reachable(node, false).expect("it exists");
    let row = key_owned_by(&cluster, table, giver, 0);
    let its = cluster.shard_of(table, row).expect("the table exists");
    for asked in [asker, giver] {
        let moving = cluster.start_move_by(asked, &[its], receiver).expect("they exist");
        assert_eq!(outcome_of(&moving), Err(MoveError::Unreachable));
        assert_eq!(owner_of(&cluster, its), Some(giver));
    }
    increment(&cluster, table, row).expect("its owner grants its locks");
}

fn outcome_of(moving: &Moving) -> Result<Moved, MoveError> {
    let mut outcome = None;
    wait_until("the move is over", || {
        outcome = moving.outcome();
        outcome.is_some()
    });
    outcome.expect("that was waited for")
}

/// Polls until `holds`, for a limited time.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let patience = Duration::from_secs(30);
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    executor.run(async move {
        let deadline = handle.now().after(patience);
        while !holds() {
            assert!(handle.now() < deadline, "not within {patience:?}: {what}");
            handle.sleep(Duration::from_millis(1)).await;
        }
    });
}
