//! Spin locks in memory-node words: a transaction that waits for one word blocks no other word.
#![cfg(not(lotus_loom))]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{
    Endpoint, Epoch, Incarnation, Key, LaneId, NodeId, RegionId, RemoteAddr, TableId, TxnId,
};
use lotus_fabric::lane::Lane;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::region::{Rights, WORD_BYTES};
use lotus_fabric::transport::Fabric;
use lotus_locktable::{
    CasLocks, HeldLocks, LockError, LockMode, LockName, LockRequest, LockService,
};

const WORDS: RegionId = RegionId(0);
const MEMORY_NODE: NodeId = NodeId(1);
const PATIENCE: Duration = Duration::from_secs(10);

/// The lock with the `index`th word.
fn lock(index: u64) -> LockRequest {
    LockRequest { name: LockName::row(TableId(1), Key(index)), mode: LockMode::Write }
}

fn attempt(slot: u16) -> HeldLocks {
    let mut held = HeldLocks::default();
    held.begin(TxnId::new(Incarnation::new(1).expect("fits"), slot, 1));
    held
}

/// Locks in the words of a memory node, for tasks of one executor.
fn locks(executor: &mut Executor) -> CasLocks {
    let fabric = LocalFabric::new(2);
    fabric.register(MEMORY_NODE, WORDS, 64 * WORD_BYTES as u64, Rights::ALL).expect("registers");
    let at = Endpoint { node: NodeId(0), lane: LaneId(0) };
    let transport = fabric.open_lane(at, Epoch(1), executor.handle().waker()).expect("opens");
    let lane = Lane::new(at, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    let word_of =
        |name: &LockName, _| RemoteAddr::new(MEMORY_NODE, WORDS, name.key.0 * WORD_BYTES as u64);
    CasLocks::new(lane, Rc::new(word_of))
}

#[test]
fn nothing_is_kept_above_a_word_that_is_waited_for() {
    let mut executor = Executor::new(Env::real(0));
    let locks = locks(&mut executor);
    let (handle, order) = (executor.handle().clone(), Rc::new(RefCell::new(Vec::new())));
    executor.run(async {
        let mut first = attempt(0);
        locks.acquire(&mut first, 0, &[lock(1)], PATIENCE).await.expect("is free");
        // Waits for the word of lock 1, in vain, and would like lock 2 as well.
        let waits = {
            let (locks, order) = (locks.clone(), Rc::clone(&order));
            async move {
                let mut held = attempt(1);
                let wanted = [lock(2), lock(1)];
                let outcome = locks.acquire(&mut held, 0, &wanted, PATIENCE).await;
                assert_eq!(outcome, Err(LockError::Conflict(lock(1).name)));
                order.borrow_mut().push("waits");
                locks.release(&mut held);
            }
        };
        let passes = {
            let (locks, order) = (locks.clone(), Rc::clone(&order));
            async move {
                let mut held = attempt(2);
                locks.acquire(&mut held, 0, &[lock(2)], PATIENCE).await.expect("is left free");
                order.borrow_mut().push("passes");
                locks.release(&mut held);
            }
        };
        handle.spawn(waits);
        handle.spawn(passes);
        while order.borrow().len() < 2 {
            handle.yield_now().await;
        }
        assert_eq!(*order.borrow(), ["passes", "waits"]);

        // Released locks can be taken, and others cannot.
        let mut last = attempt(3);
        locks.acquire(&mut last, 0, &[lock(2), lock(3)], PATIENCE).await.expect("are free");
        let taken = locks.acquire(&mut last, 1, &[lock(1)], PATIENCE).await;
        assert_eq!(taken, Err(LockError::Conflict(lock(1).name)));
        locks.release(&mut last);
        locks.release(&mut first);
    });
}
