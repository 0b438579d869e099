//! Parts of a cluster that share one process and its fabric, and otherwise know of each other only
//! what separate processes would. Here a node can be ended at a chosen moment, and both parts
//! asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus::{
    Authority, Cluster, ClusterBuilder, ClusterError, CoordinatorId, Isolation, ShardId, TableId,
    Threads, TimestampKind, Transaction, TxnError,
};
use lotus_authority::EmbeddedAuthority;
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::local::LocalFabric;
use lotus_recovery::membership;

use super::{ACCOUNTS, BALANCE, LEASE, PATIENCE, ROWS, load, owner_of, sound_total, transfer};
use super::{row_of, wait_until};

pub const MEMORY_NODES: u16 = 2;
pub const COMPUTE_NODES: u16 = 3;

pub fn builder(lease: Option<Duration>) -> ClusterBuilder {
    Cluster::embedded()
        .memory_nodes(MEMORY_NODES.into())
        .compute_nodes(COMPUTE_NODES.into())
        .replicas(2)
        .threads(2)
        .coroutines(4)
        .memory_limit(64 << 20)
        .lock_table_bytes(1 << 20)
        .timestamps(TimestampKind::Oracle)
        .lease(lease)
}

/// Starts a part with compute nodes 0 and 2, and one with compute node 1.
fn parts(lease: Option<Duration>) -> (Cluster, Cluster, Arc<EmbeddedAuthority>) {
    parts_of(&builder(lease))
}

fn parts_of(builder: &ClusterBuilder) -> (Cluster, Cluster, Arc<EmbeddedAuthority>) {
    let fabric = LocalFabric::new(MEMORY_NODES + COMPUTE_NODES);
    let authority = Arc::new(EmbeddedAuthority::new());
    let start = |nodes: &[usize]| {
        let machines = Threads::over(fabric.clone(), Env::real(0));
        let shared = Arc::clone(&authority) as Arc<dyn Authority>;
        let part = builder.clone().part(nodes.iter().copied(), shared, PATIENCE);
        part.start_on(machines).expect("the settings are sound")
    };
    (start(&[0, 2]), start(&[1]), authority)
}

#[test]
fn a_part_has_its_own_coordinators_and_reaches_every_row() {
    let (most, one, _) = parts(None);
    let nodes = |cluster: &Cluster| -> Vec<usize> {
        cluster.coordinators().map(|coordinator_id| coordinator_id.compute_node).collect()
    };
    assert_eq!((nodes(&most), nodes(&one)), (vec![0, 0, 2, 2], vec![1, 1]));
    let table = load(&most);
    assert_eq!(one.open_table(&ACCOUNTS.name).expect("it was made"), table);
    for key in 0..ROWS {
        assert_eq!(owner_of(&most, table, key), owner_of(&one, table, key));
        transfer(&most, table, key, (key + 1) % ROWS).expect("it ends well");
        transfer(&one, table, key, (key + 5) % ROWS).expect("it ends well");
        // Runs at the owner if it is in this part, at another node of the part otherwise.
        let read =
            one.run_at(table, key, Isolation::Serializable, async move |txn: &mut Transaction| {
                let item = txn.add_rw(table, key)?;
                txn.execute().await?;
                let value = txn.value(item).expect("loaded").to_vec();
                txn.put(item, &value)?;
                Ok::<(), TxnError>(())
            });
        read.expect("the table is known").wait().expect("it ends well");
    }
    assert_eq!(sound_total(&one, table), ROWS * BALANCE);
    assert_eq!(sound_total(&most, table), ROWS * BALANCE);
}

/// Shards move from part to part, on the order of either, while both run transactions.
#[test]
fn either_part_moves_shards_of_both() {
    let (most, one, _) = parts(None);
    let table = load(&most);
    assert_eq!(one.open_table(&ACCOUNTS.name).expect("it was made"), table);
    std::thread::scope(|scope| {
        let run = |cluster: &Cluster, step: u64| {
            (0..ROWS).for_each(|row| {
                transfer(cluster, table, row, (row + step) % ROWS).expect("it ends well");
            });
        };
        let (most, one) = (&most, &one);
        let clients = [scope.spawn(move || run(most, 1)), scope.spawn(move || run(one, 3))];
        for round in 0..8 {
            for (part, key) in [(most, round), (one, ROWS - 1 - round)] {
                let shard = part.shard_of(table, key).expect("it is known");
                let owners = || part.shards().expect("the memory nodes answer");
                let from = owners()[usize::from(shard.raw())].owner.expect("nobody dies");
                let to = (from + 1) % usize::from(COMPUTE_NODES);
                part.move_shards(&[shard], to).expect("its owner hands it over");
                assert_eq!(owners()[usize::from(shard.raw())].owner, Some(to));
            }
        }
        clients.into_iter().for_each(|client| client.join().expect("it does not panic"));
    });
    assert_eq!(sound_total(&one, table), ROWS * BALANCE);
    assert_eq!(sound_total(&most, table), ROWS * BALANCE);
    assert_eq!(most.move_counters().shards + one.move_counters().shards, 16);
}

/// Sets a flag when dropped.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Only one node has work; the others, one of them in another part, are given some of its shards.
#[test]
fn who_has_most_to_do_gives_shards_to_the_other_part() {
    let interval = Some(Duration::from_millis(20));
    let (most, one, _) = parts_of(&builder(None).balance(interval));
    let table = load(&most);
    assert_eq!(one.open_table(&ACCOUNTS.name).expect("it was made"), table);
    let hot: Vec<u64> = (0..ROWS).filter(|key| owner_of(&most, table, *key) == 0).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let coordinator_id = CoordinatorId { compute_node: 0, thread: 0 };
            for key in hot.iter().copied().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                let written = most.submit(coordinator_id, move |mut session| async move {
                    let mut txn = session.begin(Isolation::Serializable).await?;
                    let item = txn.add_rw(table, key)?;
                    txn.execute().await?;
                    let value = txn.value(item).expect("loaded").to_vec();
                    txn.put(item, &value)?;
                    txn.commit().await.map(drop)
                });
                if let Err(error) = written.wait() {
                    assert!(error.is_retryable(), "its shard may be on its way, but {error}");
                }
            }
        });
        // Ends the thread also if the wait fails.
        let _end = AtEnd(&over);
        wait_until("the other part has some of its shards", || {
            let figures = one.node_figures(1);
            figures.shards_owned > usize::from(ShardId::COUNT) / usize::from(COMPUTE_NODES) + 1
        });
    });
    assert!(most.node_figures(0).moves.shards > 0);
    assert_eq!(sound_total(&one, table), ROWS * BALANCE);
    assert_eq!(sound_total(&most, table), ROWS * BALANCE);
}

/// The node that dies is the last one of its process, and the only one that knows of a table.
#[test]
fn another_part_recovers_what_it_has_never_heard_of() {
    let (most, one, authority) = parts(Some(LEASE));
    let table = load(&one);
    let key = row_of(&one, table, 0);
    transfer(&one, table, key, (key + 1) % ROWS).expect("it ends well");
    one.kill(1);
    let dead = NodeId(MEMORY_NODES + 1);
    wait_until("the dead node is resolved", || {
        membership::read(&*authority).is_ok_and(|now| now.is_resolved(dead))
    });
    assert!(most.is_serving());
    assert_eq!(most.table(&ACCOUNTS.name), Some(table), "recovery has learnt of it");
    for key in 0..ROWS {
        wait_until("its rows can be used", || {
            transfer(&most, table, key, (key + 1) % ROWS).is_ok()
        });
    }
    assert_eq!(sound_total(&most, table), ROWS * BALANCE);
}

/// Parts end and are started again, the founder's with two nodes and the oracle among them: each
/// waits until the other has settled what it has left, finds the tables, and works.
#[test]
fn a_part_that_has_ended_returns() {
    let fabric = LocalFabric::new(MEMORY_NODES + COMPUTE_NODES);
    let authority = Arc::new(EmbeddedAuthority::new());
    let start = |nodes: &[usize]| {
        let machines = Threads::over(fabric.clone(), Env::real(0));
        let shared = Arc::clone(&authority) as Arc<dyn Authority>;
        let builder = builder(Some(LEASE)).part(nodes.iter().copied(), shared, PATIENCE);
        builder.start_on(machines).expect("it takes part, sooner or later")
    };
    let (mut most, mut one) = (start(&[0, 2]), start(&[1]));
    assert!(most.has_founded() && !one.has_founded() && !one.has_returned());
    let table = load(&most);
    let naming = most.naming();
    assert!(naming.is_some(), "the founder has made a table");
    for _ in 0..2 {
        one.kill(1);
        drop(one);
        one = start(&[1]);
        assert!(one.has_returned() && one.takes_part(1));
        [0, 2].into_iter().for_each(|node| most.kill(node));
        drop(most);
        most = start(&[0, 2]);
        assert!(most.has_returned() && !most.has_founded());
        for (part, step) in [(&one, 1), (&most, 5)] {
            assert_eq!(part.open_table(&ACCOUNTS.name).expect("it was made"), table);
            assert_eq!(part.naming(), naming, "each process and each life draws another secret");
            for row in 0..ROWS {
                transfer_at_last(part, table, row, (row + step) % ROWS);
            }
        }
    }
    for part in [&one, &most] {
        part.settle().expect("nobody fails");
        assert_eq!(sound_total(part, table), ROWS * BALANCE);
    }
    let now = membership::read(&*authority).expect("it answers");
    let lives: Vec<u16> = now.members().iter().map(|one| one.incarnation.raw()).collect();
    assert_eq!(lives, [8, 7, 9], "each life is another incarnation");
}

/// Transfers as soon as all nodes know the members and the shard owners.
fn transfer_at_last(part: &Cluster, table: TableId, from: u64, to: u64) {
    while let Err(error) = transfer(part, table, from, to) {
        assert!(error.is_retryable(), "{error}");
    }
}

/// Two processes start for one node at the same moment: one takes part. One that starts while the
/// node runs is refused.
#[test]
fn of_two_processes_for_one_node_one_takes_part() {
    let (most, one, authority) = parts(Some(LEASE));
    one.kill(1);
    drop(one);
    let shared = || Arc::clone(&authority) as Arc<dyn Authority>;
    let start = |patience: Duration| {
        // Each has its own handle of the fabric: only the authority tells them apart.
        let fabric = most.local_fabric().clone();
        let builder = builder(Some(LEASE)).part([1], shared(), patience);
        builder.start_on(Threads::over(fabric, Env::real(0)))
    };
    let started = std::thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| start(LEASE * 4))).collect();
        let both = both.into_iter().map(|one| one.join().expect("it does not panic"));
        both.collect::<Vec<_>>()
    });
    let (taken, refused): (Vec<_>, Vec<_>) = started.into_iter().partition(Result::is_ok);
    assert_eq!((taken.len(), refused.len()), (1, 1));
    let refused = refused.into_iter().next().and_then(Result::err).expect("it was refused");
    assert!(matches!(refused, ClusterError::JoinedBefore { node: 1 }), "{refused}");
    let beside = start(Duration::ZERO).err().expect("the node takes part");
    assert!(matches!(beside, ClusterError::JoinedBefore { node: 1 }), "{beside}");
}
