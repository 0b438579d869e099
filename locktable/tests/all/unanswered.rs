//! Lock requests and ends that get no answers for a while: they are repeated within a part of the
//! lease, and an acquisition gives up within its time, however many owners it asks.
#![cfg(not(lotus_loom))]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{
    Endpoint, Epoch, Incarnation, Key, LaneId, NodeId, ShardId, TableId, TxnId,
};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::sim::{Config, Fault, Profile, Rates, SimFabric, World};
use lotus_fabric::transport::Fabric;
use lotus_locktable::{
    HeldLocks, LockError, LockHost, LockKey, LockMode, LockRequest, LockRoutes, LockService,
    LockTable, LockTableConfig, LockWait, LotusLocks,
};

const LEASE: Duration = Duration::from_millis(1);
/// Far more than any of these requests may take.
const TIMEOUT: Duration = Duration::from_millis(100);
const OWNER: NodeId = NodeId(0);
const ASKER: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);
const SHARD_EPOCH: u32 = 1;

/// A compute node of a cluster in which each node owns the shard of its number.
struct Host(NodeId);

impl LockHost for Host {
    fn owns(&self, shard: ShardId, shard_epoch: u32) -> bool {
        self.0 == NodeId(shard.raw()) && shard_epoch == SHARD_EPOCH
    }

    fn owner_known(&self, shard: ShardId) -> (NodeId, u32) {
        (NodeId(shard.raw()), SHARD_EPOCH)
    }

    fn configuration_epoch(&self) -> Epoch {
        Epoch(1)
    }
}

impl LockRoutes for Host {
    fn this_node(&self) -> NodeId {
        self.0
    }

    fn owner(&self, shard: ShardId) -> (NodeId, u32) {
        self.owner_known(shard)
    }

    fn learn(&self, _shard: ShardId, _owner: NodeId, _shard_epoch: u32) {}
}

fn table() -> Arc<LockTable> {
    Arc::new(LockTable::new(LockTableConfig::with_bytes(1 << 16)).expect("valid"))
}

fn txn(slot: u16, attempt: u64) -> TxnId {
    TxnId::new(Incarnation::new(1).expect("fits"), slot, attempt)
}

/// A row whose lock `owner` keeps.
fn row(key: u64, owner: NodeId) -> LockRequest {
    let name = LockKey::row(TableId(1), Key(key << 12 | u64::from(owner.0)));
    LockRequest { name, mode: LockMode::Write }
}

/// Loses this share of messages from now on.
fn lose(fabric: &SimFabric, share: f64) {
    let rates = Rates { message_loss: share, ..Rates::default() };
    fabric.inject(Fault::SetRates(rates)).expect("it names no node");
}

fn open(world: &World, node: NodeId) -> (Executor, Lane) {
    let at = Endpoint { node, lane: LaneId(0) };
    let mut executor = Executor::new(world.env(node));
    let opened = world.fabric().open_lane(at, Epoch(1), executor.handle().waker());
    let lane = Lane::new(at, executor.handle().clone(), opened.expect("the lane is free"));
    executor.add_driver(lane.driver());
    (executor, lane)
}

/// Runs `ask` with the locks of [`ASKER`], while [`OWNER`] serves its locks from `table`, and
/// [`OTHER`] too serves its locks.
fn run<F: Future<Output = ()> + 'static>(
    table: &Arc<LockTable>,
    ask: impl FnOnce(LotusLocks<Host>, Handle, SimFabric) -> F,
) {
    let mut world = World::new(Config::new(1, 3, Profile::ideal())).expect("valid");
    let locks = |node, table: &Arc<LockTable>, lane: Lane| {
        let host = Arc::new(Host(node));
        LotusLocks::new(Arc::clone(table), host, Rpc::new(lane), Some(LEASE), LockWait::Ordered)
    };
    let serving = [(OWNER, Arc::clone(table)), (OTHER, self::table())].map(|(node, table)| {
        let (core, lane) = open(&world, node);
        let serving = locks(node, &table, lane);
        world.add_core(node, core);
        serving
    });
    let (asker, lane) = open(&world, ASKER);
    let handle = asker.handle().clone();
    let asking = ask(locks(ASKER, &self::table(), lane), handle.clone(), world.fabric().clone());
    let asks = Rc::new(Cell::new(true));
    let ended = Rc::clone(&asks);
    handle.spawn(async move {
        asking.await;
        ended.set(false);
    });
    world.add_core(ASKER, asker);
    world.run_while(|| asks.get()).expect("it comes to its end");
    drop(serving);
}

#[test]
fn an_owner_whose_answers_were_lost_is_heard_again_in_a_part_of_the_lease() {
    run(&table(), |locks, executor, fabric| async move {
        let mut held = HeldLocks::default();
        held.begin(txn(0, 1));
        lose(&fabric, 1.0);
        let outcome = locks.acquire(&mut held, 0, &[row(1, OWNER)], TIMEOUT).await;
        assert!(matches!(outcome, Err(LockError::Suspected(_))), "{outcome:?}");
        locks.release(&mut held);
        executor.sleep(LEASE / 2).await;
        assert_eq!((locks.suspects(), locks.unacknowledged_ends()), (1, 1));
        lose(&fabric, 0.0);
        executor.sleep(LEASE / 4).await;
        assert_eq!((locks.suspects(), locks.unacknowledged_ends()), (0, 0));
    });
}

#[test]
fn an_end_that_is_lost_holds_up_others_for_a_part_of_the_lease() {
    let owned = table();
    let table = Arc::clone(&owned);
    run(&owned, |locks, executor, fabric| async move {
        let (mut one, mut other) = (HeldLocks::default(), HeldLocks::default());
        for (slot, held) in [(0, &mut one), (1, &mut other)] {
            held.begin(txn(slot, 1));
            let wanted = [row(u64::from(slot), OWNER)];
            let outcome = locks.acquire(held, 0, &wanted, TIMEOUT).await;
            assert_eq!(outcome, Ok(()));
        }
        lose(&fabric, 1.0);
        locks.release(&mut one);
        executor.sleep(LEASE / 100).await;
        assert_eq!(table.holders_of(txn(0, 1).incarnation()).len(), 2, "its end is lost");
        lose(&fabric, 0.0);
        locks.release(&mut other);
        executor.sleep(LEASE / 4).await;
        assert!(table.holders_of(txn(0, 1).incarnation()).is_empty());
    });
}

/// Regression: each owner in turn had the whole time, and what was left of it after a wait for a
/// lock of the own node was the whole time again.
#[test]
fn an_acquisition_that_waits_at_several_owners_gives_up_within_its_time() {
    for (first, in_order) in [(ASKER, false), (ASKER, true), (OWNER, true)] {
        run(&table(), move |locks, executor, _| async move {
            let locks = Rc::new(locks);
            let wanted = [row(1, first), row(2, OTHER)];
            let mut stays = HeldLocks::default();
            stays.begin(txn(0, 1));
            assert_eq!(locks.acquire(&mut stays, 0, &wanted[1..], TIMEOUT).await, Ok(()));
            let mut goes = HeldLocks::default();
            goes.begin(txn(1, 1));
            assert_eq!(locks.acquire(&mut goes, 0, &wanted[..1], TIMEOUT).await, Ok(()));
            let (releases, sleeps) = (Rc::clone(&locks), executor.clone());
            executor.spawn(async move {
                sleeps.sleep(TIMEOUT * 3 / 4).await;
                releases.release(&mut goes);
            });
            let mut held = HeldLocks::default();
            held.begin(txn(2, 1));
            let began = executor.now();
            if in_order {
                held.retry(began);
            }
            let outcome = locks.acquire(&mut held, 0, &wanted, TIMEOUT).await;
            let took = executor.now().since(began);
            assert_eq!(outcome, Err(LockError::WaitedTooLong(wanted[1].name)), "{first:?}");
            assert!(took >= TIMEOUT && took < TIMEOUT * 5 / 4, "{first:?}, {in_order}: {took:?}");
            locks.release(&mut held);
            locks.release(&mut stays);
        });
    }
}

/// Regression: with a limit below the time after which a message is sent again, whoever had asked
/// one owner had too little time left for the next, and no retry ever got its locks.
#[test]
fn a_short_limit_is_enough_for_several_owners_whose_locks_are_free() {
    for timeout in [TIMEOUT, LEASE * 10, LEASE] {
        run(&table(), move |locks, executor, _| async move {
            let mut held = HeldLocks::default();
            held.begin(txn(0, 1));
            held.retry(executor.now());
            let wanted = [row(1, OWNER), row(2, ASKER), row(3, OTHER)];
            assert_eq!(locks.acquire(&mut held, 0, &wanted, timeout).await, Ok(()), "{timeout:?}");
            locks.release(&mut held);
        });
    }
}
