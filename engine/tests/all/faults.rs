//! Nodes that stop answering, come back, or are expelled while transactions run.
//!
//! The embedded cluster shares one process, so nodes are made to fail through its fabric: a node
//! that is unreachable refuses verbs and loses messages; all others refuse a fenced one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use lotus::{
    Cluster, CoordinatorId, Isolation, LockKind, PrimaryKey, Session, TableId, TimestampKind,
    Transaction, TxnError, VisibleOrder,
};
use lotus_fabric::env::Env;
use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::local::LocalFabric;
use lotus_fabric::transport::Fabric;

const MEMORY_NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
const COMPUTE_NODES: [NodeId; 2] = [NodeId(3), NodeId(4)];
/// The first coordinator of the second compute node.
const SECOND: CoordinatorId = CoordinatorId { compute_node: 1, thread: 0 };

fn set_reachable(fabric: &LocalFabric, nodes: &[NodeId], reachable: bool) {
    for node in nodes {
        fabric.set_reachable(*node, reachable).expect("the node exists");
    }
}

/// Expels a compute node: no memory node takes its verbs any more.
fn fence(fabric: &LocalFabric, expelled: NodeId) {
    for node in MEMORY_NODES {
        fabric.fence(node, expelled, Epoch(2)).expect("the nodes exist");
    }
}

/// Returns a transaction that holds row `key` and is about to change it.
async fn holding(
    session: &mut Session,
    table: TableId,
    key: u64,
    value: u64,
) -> Result<Transaction, TxnError> {
    for attempt in 0.. {
        let mut txn = session.begin(Isolation::Serializable).await?;
        let item = txn.add_rw(table, key)?;
        match txn.execute().await {
            // An earlier holder's unlock is under way.
            Err(error) if is_conflict(&error) && attempt < 1_000 => {}
            executed => {
                executed?;
                txn.put(item, &value.to_le_bytes())?;
                return Ok(txn);
            }
        }
        drop(txn);
        session.back_off(attempt).await;
    }
    unreachable!("the last attempt returns")
}

/// Increments rows `0..rows` in turn until `enough`, at least once. Returns the number of
/// acknowledged increments.
async fn increment(
    session: &mut Session,
    table: TableId,
    rows: u64,
    enough: &AtomicBool,
) -> Result<u64, TxnError> {
    let mut made = 0;
    for attempt in 0.. {
        // However few turns this coordinator got until then, it makes one.
        if made > 0 && enough.load(Ordering::SeqCst) {
            break;
        }
        let mut txn = session.begin(Isolation::Serializable).await?;
        let item = txn.add_rw(table, attempt % rows)?;
        let committed = match txn.execute().await {
            Err(error) => Err(error),
            Ok(()) => {
                let count = number_of(&txn, item).expect("it exists");
                txn.put(item, &(count + 1).to_le_bytes())?;
                txn.commit().await
            }
        };
        match committed {
            Ok(_) => made += 1,
            Err(error) if error.is_retryable() => session.back_off(attempt as u32 % 6).await,
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

/// Makes each of `nodes` in turn unreachable for a moment, `times` over.
fn flap(fabric: &LocalFabric, nodes: &[NodeId], times: usize) {
    for turn in 0..times {
        let node = &nodes[turn % nodes.len()..][..1];
        set_reachable(fabric, node, false);
        std::thread::park_timeout(Duration::from_micros(500));
        set_reachable(fabric, node, true);
        std::thread::park_timeout(Duration::from_micros(500));
    }
}

/// Returns the numbers in all rows of a table, read from the primaries.
fn numbers(cluster: &Cluster, table: TableId) -> Vec<(PrimaryKey, u64)> {
    let mut rows = Vec::new();
    let mut visit = |key: &PrimaryKey, value: &[u8], _| rows.push((*key, number(value)));
    cluster.audit_scan(table, &mut visit).expect("all nodes can be reached");
    rows.sort();
    rows
}

/// A READ failed, and the connection was not made anew: a memory node that had not answered once
/// was out of the coordinator's reach for ever.
#[test]
fn a_memory_node_that_was_away_while_rows_were_read_is_used_again() {
    let (cluster, table) = with_numbers(small().compute_nodes(2).coroutines(1));
    let rows: Vec<_> = (0..6).map(|key| (key, key)).collect();
    insert_all(&cluster, table, &rows);
    let fabric = cluster.local_fabric().clone();
    for coordinator_id in [FIRST, SECOND] {
        for node in MEMORY_NODES {
            let fabric = fabric.clone();
            done(cluster.submit(coordinator_id, move |mut session| async move {
                for read_only in [true, false] {
                    set_reachable(&fabric, &[node], false);
                    let mut txn = match read_only {
                        true => session.begin_read_only().await?,
                        false => session.begin(Isolation::Serializable).await?,
                    };
                    for key in 0..6 {
                        txn.add_ro(table, key)?;
                    }
                    assert_eq!(txn.execute().await, Err(TxnError::Timeout));
                    set_reachable(&fabric, &[node], true);
                    let clock = Env::real(0);
                    let since = clock.now();
                    while session.read(table, 0).await.is_err() {
                        assert!(clock.now().since(since) < PATIENCE, "{node:?} is not used again");
                    }
                }
                for key in 0..6 {
                    assert_eq!(session.read(table, key).await, Ok(Some(key)), "{node:?}");
                }
                Ok(())
            }));
        }
    }
    // The first coordinator's exchange of floors may have met an absence of its memory node. The
    // next exchange makes the connection anew, or a transaction that comes before it and fails.
    let mut failed = 0;
    for (key, value) in rows {
        while let Err(error) = update(&cluster, table, key, value + 1) {
            assert_eq!(error, TxnError::Timeout, "the row of {key} is held");
            failed += 1;
            assert_eq!(failed, 1, "the connection is not made anew");
        }
    }
    stop_clean(cluster);
}

/// Memory nodes come and go in the middle of executions and commits. An execution ends with
/// `Timeout` and no effect, a commit waits; in the end exactly the acknowledged increments are
/// there, on all replicas.
#[test]
fn h22_commits_outlast_memory_nodes_that_come_and_go() {
    const ROWS: u64 = 12;
    for order in [VisibleOrder::BackupsFirst, VisibleOrder::AllAtOnce] {
        let builder = small().compute_nodes(2).visible_order(order);
        let (cluster, table) = with_numbers(builder);
        insert_all(&cluster, table, &(0..ROWS).map(|key| (key, 0)).collect::<Vec<_>>());
        let enough = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = [FIRST, SECOND, FIRST, SECOND]
            .map(|coordinator_id| {
                let enough = Arc::clone(&enough);
                cluster.submit(coordinator_id, move |mut session| async move {
                    increment(&mut session, table, ROWS, &enough).await
                })
            })
            .into();
        flap(cluster.local_fabric(), &MEMORY_NODES, 150);
        enough.store(true, Ordering::SeqCst);
        let made: u64 = workers.into_iter().map(done).sum();
        assert!(made > 0);
        assert_clean(&cluster);
        let counted: u64 = numbers(&cluster, table).iter().map(|(_, count)| count).sum();
        assert_eq!(counted, made);
        stop(cluster);
    }
}

/// H3: the caller is told once every copy shows the commit. The memory nodes go away at the very
/// moment of the reply, and the coordinator ends: nothing is left to be done.
#[test]
fn h3_whoever_is_told_of_a_commit_finds_it_on_every_copy() {
    let (cluster, table) = with_numbers(small().compute_nodes(2));
    let key = key_owned_by(&cluster, table, 1, 0);
    insert(&cluster, table, key, 1);
    let fabric = cluster.local_fabric().clone();
    done(cluster.submit(FIRST, move |mut session| async move {
        let txn = holding(&mut session, table, key, 2).await?;
        let committed = txn.commit().await;
        set_reachable(&fabric, &MEMORY_NODES, false);
        committed
    }));
    cluster.kill(0);
    set_reachable(cluster.local_fabric(), &MEMORY_NODES, true);
    let read = move |mut session: Session| async move { session.read(table, key).await };
    assert_eq!(done(cluster.submit(SECOND, read)), Some(2));
    let findings = cluster.audit().expect("the memory nodes answer");
    for name in ["every replica is byte for byte the same", "no cell is left INVISIBLE or torn"] {
        let finding =
            findings.iter().find(|finding| finding.name == name).expect("it is looked at");
        assert!(finding.passed, "{finding:?}");
    }
}

/// H21: past its deadline a commit reports `Unknown` and goes on: its row stays locked until the
/// commit has ended, and then it has taken place.
#[test]
fn h21_an_unknown_commit_ends_by_itself() {
    for away in MEMORY_NODES {
        let builder = small().compute_nodes(2).commit_timeout(Duration::from_millis(30));
        let (cluster, table) = with_numbers(builder);
        let key = key_owned_by(&cluster, table, 1, 0);
        insert(&cluster, table, key, 1);
        let fabric = cluster.local_fabric().clone();
        let (attempt, id) = {
            let fabric = fabric.clone();
            done(cluster.submit(FIRST, move |mut session| async move {
                let txn = holding(&mut session, table, key, 2).await?;
                let id = txn.id();
                set_reachable(&fabric, &[away], false);
                Ok((txn.commit().await, id))
            }))
        };
        assert_eq!(attempt, Err(TxnError::Unknown(id)));
        assert!(!TxnError::Unknown(id).is_retryable());
        let other = update_at(&cluster, SECOND, table, key, 3);
        assert!(other.as_ref().is_err_and(is_conflict), "{other:?}");
        set_reachable(&fabric, &[away], true);
        eventually(|| read(&cluster, table, key) == Some(2));
        eventually(|| update_at(&cluster, SECOND, table, key, 3).is_ok());
        stop_clean(cluster);
    }
}

fn update_at(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    key: u64,
    value: u64,
) -> Result<(), TxnError> {
    outcome(cluster.submit(coordinator_id, move |mut session| async move {
        session.update(table, key, value).await.map(drop)
    }))
}

/// The timestamp oracle does not answer in the middle of a commit: the request is repeated for as
/// long as it takes.
#[test]
fn a_commit_outlasts_an_oracle_that_comes_and_goes() {
    let builder = small().compute_nodes(2).timestamps(TimestampKind::Oracle);
    let (cluster, table) = with_numbers(builder.commit_timeout(Duration::from_millis(10)));
    let key = key_owned_by(&cluster, table, 1, 0);
    insert(&cluster, table, key, 1);
    let fabric = cluster.local_fabric().clone();
    let unknown = {
        let fabric = fabric.clone();
        done(cluster.submit(SECOND, move |mut session| async move {
            let txn = holding(&mut session, table, key, 2).await?;
            set_reachable(&fabric, &COMPUTE_NODES[..1], false);
            Ok(txn.commit().await)
        }))
    };
    assert!(matches!(unknown, Err(TxnError::Unknown(_))), "{unknown:?}");
    set_reachable(&fabric, &COMPUTE_NODES[..1], true);
    eventually(|| update_at(&cluster, SECOND, table, key, 3).is_ok());
    stop_clean(cluster);
}

/// H10: an owner of locks does not answer. The transaction has no effect, and every lock granted to
/// it, now or by a request still under way, is released in the end.
#[test]
fn h10_locks_of_an_owner_that_was_away_are_released() {
    let builder = small().compute_nodes(2).lock_timeout(Duration::from_millis(50));
    let (cluster, table) = with_numbers(builder);
    let remote = key_owned_by(&cluster, table, 1, 0);
    let local = key_owned_by(&cluster, table, 0, 0);
    insert_all(&cluster, table, &[(remote, 1), (local, 1)]);
    let fabric = cluster.local_fabric().clone();
    done(cluster.submit(FIRST, move |mut session| async move {
        let held = holding(&mut session, table, remote, 2).await?;
        set_reachable(&fabric, &COMPUTE_NODES[1..], false);
        // Its end message is lost, and so are the requests of the next transaction.
        drop(held);
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.add_rw(table, local)?;
        txn.add_rw(table, remote)?;
        assert_eq!(txn.execute().await, Err(TxnError::Timeout));
        // Meanwhile other rows can be used.
        session.update(table, local, 2).await?;
        set_reachable(&fabric, &COMPUTE_NODES[1..], true);
        Ok(())
    }));
    eventually(|| update_at(&cluster, SECOND, table, remote, 3).is_ok());
    assert_clean(&cluster);
    update_at(&cluster, SECOND, table, local, 3).expect("nothing is held");
    stop_clean(cluster);
}

/// H9, H10: messages between compute nodes get lost at every point of requesting and releasing
/// locks. No increment is lost or made twice, and no lock is left.
#[test]
fn h10_lost_lock_messages_lose_no_locks() {
    const ROWS: u64 = 8;
    let builder = small().compute_nodes(2).lock_timeout(Duration::from_millis(100));
    let (cluster, table) = with_numbers(builder);
    insert_all(&cluster, table, &(0..ROWS).map(|key| (key, 0)).collect::<Vec<_>>());
    let enough = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = [FIRST, SECOND, FIRST, SECOND]
        .map(|coordinator_id| {
            let enough = Arc::clone(&enough);
            cluster.submit(coordinator_id, move |mut session| async move {
                increment(&mut session, table, ROWS, &enough).await
            })
        })
        .into();
    flap(cluster.local_fabric(), &COMPUTE_NODES, 150);
    enough.store(true, Ordering::SeqCst);
    let made: u64 = workers.into_iter().map(done).sum();
    assert!(made > 0);
    assert_clean(&cluster);
    assert_eq!(numbers(&cluster, table).iter().map(|(_, count)| count).sum::<u64>(), made);
    stop(cluster);
}

/// H2: an expelled node learns of it. Its commit is unknown, its next transactions are refused for
/// good, none of its verbs takes effect any more, and it can still be stopped.
#[test]
fn h2_nothing_that_an_expelled_node_does_takes_effect() {
    let (cluster, table) = with_numbers(small().compute_nodes(2));
    let key = key_owned_by(&cluster, table, 0, 0);
    insert(&cluster, table, key, 1);
    let fabric = cluster.local_fabric().clone();
    let (attempt, later) = done(cluster.submit(SECOND, move |mut session| async move {
        let txn = holding(&mut session, table, key, 2).await?;
        fence(&fabric, COMPUTE_NODES[1]);
        let attempt = txn.commit().await;
        Ok((attempt, session.view().coordinator_id()))
    }));
    assert!(matches!(attempt, Err(TxnError::Unknown(_) | TxnError::Fenced)), "{attempt:?}");
    assert_eq!(later, SECOND);
    for read_only in [true, false] {
        let refused = cluster.submit(SECOND, move |mut session| async move {
            let mut txn = match read_only {
                true => session.begin_read_only().await?,
                false => session.begin(Isolation::Serializable).await?,
            };
            txn.add_ro(table, key + 1)?;
            txn.execute().await
        });
        assert_eq!(outcome(refused), Err(TxnError::Fenced), "read-only: {read_only}");
    }
    assert_eq!(read(&cluster, table, key), Some(1));
    stop(cluster);
}

/// H2, as above, in the middle of many commits: when the fence has returned, each of the node's
/// verbs has either taken effect or never will.
#[test]
fn h2_after_the_fence_memory_stands_still() {
    const ROWS: u64 = 4;
    for _ in 0..5 {
        let (cluster, table) = with_numbers(small().compute_nodes(2));
        insert_all(&cluster, table, &(0..ROWS).map(|key| (key, 0)).collect::<Vec<_>>());
        let enough = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let enough = Arc::clone(&enough);
                cluster.submit(SECOND, move |mut session| async move {
                    increment(&mut session, table, ROWS, &enough).await
                })
            })
            .collect();
        let env = Env::real(0);
        let begun = env.now();
        eventually(|| env.now().since(begun) > Duration::from_millis(5));
        fence(cluster.local_fabric(), COMPUTE_NODES[1]);
        let fenced = numbers(&cluster, table);
        let ends: Vec<_> = workers.into_iter().map(outcome).collect();
        for end in ends {
            assert!(matches!(end, Err(TxnError::Unknown(_) | TxnError::Fenced)), "{end:?}");
        }
        enough.store(true, Ordering::SeqCst);
        assert_eq!(numbers(&cluster, table), fenced);
        stop(cluster);
    }
}

/// A verb releases a spin lock, and its result was ignored: a memory node that was away at that
/// moment kept the lock for ever.
#[test]
fn spin_locks_on_a_memory_node_that_was_away_are_released() {
    const ROWS: u64 = 6;
    let (cluster, table) = with_numbers(small().locks(LockKind::Cas));
    insert_all(&cluster, table, &(0..ROWS).map(|key| (key, 1)).collect::<Vec<_>>());
    let fabric = cluster.local_fabric().clone();
    done(cluster.submit(FIRST, move |mut session| async move {
        let mut txn = session.begin(Isolation::Serializable).await?;
        for key in 0..ROWS {
            txn.add_rw(table, key)?;
        }
        txn.execute().await?;
        set_reachable(&fabric, &MEMORY_NODES, false);
        drop(txn);
        let mut txn = session.begin(Isolation::Serializable).await?;
        txn.add_rw(table, 0)?;
        assert!(txn.execute().await.is_err());
        set_reachable(&fabric, &MEMORY_NODES, true);
        Ok(())
    }));
    for key in 0..ROWS {
        let released = || update(&cluster, table, key, 2).is_ok();
        assert!(eventually_within(Duration::from_secs(2), released), "row {key} stays locked");
    }
    stop_clean(cluster);
}
