//! Lock requests and ends that get no answers for a while: they are repeated within a part of the
//! lease.
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
    HeldLocks, LockError, LockHost, LockMode, LockName, LockRequest, LockRoutes, LockService,
    LockTable, LockTableConfig, LockWait, LotusLocks,
};

const LEASE: Duration = Duration::from_millis(1);
/// Far more than any of these requests may take.
const TIMEOUT: Duration = Duration::from_millis(100);
const OWNER: NodeId = NodeId(0);
const ASKER: NodeId = NodeId(1);
const SHARD_EPOCH: u32 = 1;

/// A compute node of a cluster in which [`OWNER`] owns all shards.
struct Host(NodeId);

impl LockHost for Host {
    fn owns(&self, _shard: ShardId, shard_epoch: u32) -> bool {
        self.0 == OWNER && shard_epoch == SHARD_EPOCH
    }

    fn owner_known(&self, _shard: ShardId) -> (NodeId, u32) {
        (OWNER, SHARD_EPOCH)
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

fn row(key: u64) -> LockRequest {
    LockRequest { name: LockName::row(TableId(1), Key(key << 12)), mode: LockMode::Write }
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

/// Runs `ask` with the locks of [`ASKER`], while [`OWNER`] serves them from `table`.
fn run<F: Future<Output = ()> + 'static>(
    table: &Arc<LockTable>,
    ask: impl FnOnce(LotusLocks<Host>, Handle, SimFabric) -> F,
) {
    let mut world = World::new(Config::new(1, 2, Profile::ideal())).expect("valid");
    let locks = |node, table: &Arc<LockTable>, lane: Lane| {
        let host = Arc::new(Host(node));
        LotusLocks::new(Arc::clone(table), host, Rpc::new(lane), Some(LEASE), LockWait::Ordered)
    };
    let (owner, lane) = open(&world, OWNER);
    let serving = locks(OWNER, table, lane);
    world.add_core(OWNER, owner);
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
        let outcome = locks.acquire(&mut held, 0, &[row(1)], TIMEOUT).await;
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
            let outcome = locks.acquire(held, 0, &[row(u64::from(slot))], TIMEOUT).await;
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
