//! Shards that are given to another compute node while transactions run.
//!
//! What may go wrong at which instant is the simulator's business (`sim/scenarios/`). Here threads
//! really run side by side, and nothing depends on how fast.

mod common;

use std::time::Duration;

use common::*;
use lotus::{Cluster, Isolation, MoveError, PrimaryKey, ShardId, TableId, Transaction, TxnError};

const ROWS: u64 = 64;

fn loaded(builder: lotus::ClusterBuilder) -> (Running, TableId) {
    let (cluster, table) = with_numbers(builder);
    let row = |row: u64, value: &mut Vec<u8>| {
        value.extend(0_u64.to_le_bytes());
        PrimaryKey::from(row)
    };
    cluster.load(table, ROWS, &row, &Default::default()).expect("they fit");
    (cluster, table)
}

/// Adds one to a row, on whichever node the router names.
fn increment(cluster: &Cluster, table: TableId, row: u64) -> Result<(), TxnError> {
    let body = move |mut txn: Transaction| async move {
        let item = txn.add_rw(table, row)?;
        txn.execute().await?;
        let before = number_of(&txn, item).expect("it was loaded");
        txn.put(item, &(before + 1).to_le_bytes())?;
        txn.commit().await.map(drop)
    };
    cluster.run_at(table, row, Isolation::Serializable, body)?.wait()
}

fn owner_of(cluster: &Cluster, shard: ShardId) -> Option<usize> {
    let shards = cluster.shards().expect("the memory nodes answer");
    shards[usize::from(shard.raw())].owner
}

/// H19: every increment counts once, wherever the shards are meanwhile.
#[test]
fn shards_move_there_and_back_while_their_rows_are_written() {
    let (cluster, table) = loaded(small().compute_nodes(3));
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
    cluster.scan(table, &mut |_, value, _| sum += number(value)).expect("the memory nodes answer");
    assert_eq!(sum, 3 * ROWS);
    for finding in cluster.audit().expect("the memory nodes answer") {
        assert!(finding.passed, "{finding:?}");
    }
}

/// H19: a transaction that holds a lock and does nothing is asked to give up, and does.
#[test]
fn whoever_dawdles_with_a_lock_gives_it_up() {
    let patience = Duration::from_millis(1);
    let (cluster, table) = loaded(small().compute_nodes(2).drain_patience(patience));
    let row = key_owned_by(&cluster, table, 0, 0);
    let shard = cluster.shard_of(table, row).expect("the table exists");
    for dawdler in 0..2 {
        let seat = lotus::Seat { compute_node: dawdler, thread: 0 };
        let (begun, has_begun) = async_channel::bounded(1);
        let (moved, has_moved) = async_channel::bounded::<()>(1);
        let dawdles = cluster.submit(seat, move |mut session| async move {
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
    let (cluster, _) = loaded(small().compute_nodes(2));
    let shard = ShardId::from_low_bits(0);
    let other = ShardId::from_low_bits(1);
    assert_eq!(cluster.move_shards(&[shard], 2), Err(MoveError::NoSuchNode(2)));
    assert_eq!(cluster.move_shards(&[shard, other], 1), Err(MoveError::NotOwner(other)));
    assert_eq!((owner_of(&cluster, shard), owner_of(&cluster, other)), (Some(0), Some(1)));
    cluster.move_shards(&[shard], 0).expect("it is there already");
    let (memory_locks, _) = loaded(small().compute_nodes(2).locks(lotus::LockKind::CasSpin));
    assert_eq!(memory_locks.move_shards(&[shard], 1), Err(MoveError::NoOwners));
}
