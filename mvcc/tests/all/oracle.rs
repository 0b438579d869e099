//! Who asks for timestamps while another node takes over: three nodes on virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::sim::{Config, Profile, World};
use lotus_fabric::transport::Fabric;
use lotus_mvcc::Timestamp;
use lotus_mvcc::oracle::{OracleClient, OracleServer};

const CLIENT: NodeId = NodeId(0);
const FORMER: NodeId = NodeId(1);
const SUCCESSOR: NodeId = NodeId(2);

fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

fn core(world: &World, node: NodeId) -> (Executor, Rpc) {
    let mut executor = Executor::new(world.fabric().env(node));
    let at = Endpoint { node, lane: LaneId(0) };
    let transport = world.fabric().open_lane(at, Epoch(1), executor.handle().waker());
    let lane = Lane::new(at, executor.handle().clone(), transport.expect("the lane is free"));
    executor.add_driver(lane.driver());
    (executor, Rpc::new(lane))
}

/// A node that issues `timestamp` from `opens` on.
fn serve(world: &mut World, node: NodeId, timestamp: u64, opens: Duration) {
    let (executor, rpc) = core(world, node);
    let began = executor.handle().now();
    OracleServer::serve(&rpc, move |_, now| {
        (now.since(began) >= opens).then(|| Timestamp::new(timestamp).expect("63 bits"))
    });
    // What it serves ends with it.
    executor.handle().spawn(async move {
        std::future::pending::<()>().await;
        drop(rpc);
    });
    world.add_core(node, executor);
}

/// Runs what `body` does with a client of the former oracle to its end.
fn client<F: Future<Output = ()> + 'static>(
    world: &mut World,
    body: impl FnOnce(OracleClient, Handle) -> F,
) {
    let (executor, rpc) = core(world, CLIENT);
    let ended = Rc::new(Cell::new(false));
    let body = body(OracleClient::new(rpc, FORMER), executor.handle().clone());
    let over = Rc::clone(&ended);
    executor.handle().spawn(async move {
        body.await;
        over.set(true);
    });
    world.add_core(CLIENT, executor);
    world.run_while(|| !ended.get()).expect("it ends");
}

#[test]
fn answers_of_a_former_oracle_are_not_taken() {
    // The former one answers while the client turns away: before it does, on its way, long after.
    for turns in [1, 2, 3, 5, 400] {
        let mut world = World::new(Config::new(turns, 3, Profile::ideal())).expect("valid");
        serve(&mut world, FORMER, 100, micros(if turns == 400 { 300 } else { 0 }));
        serve(&mut world, SUCCESSOR, 5, micros(600));
        client(&mut world, move |oracle, executor| async move {
            let taken = Rc::new(RefCell::new(Vec::new()));
            let (asking, into) = (oracle.clone(), Rc::clone(&taken));
            executor.spawn(async move {
                for _ in 0..3 {
                    let answer = asking.timestamp().await.expect("somebody answers");
                    into.borrow_mut().push(answer.raw());
                }
            });
            executor.sleep(Duration::from_nanos(turns * 500)).await;
            assert!(oracle.turn_to(SUCCESSOR) && !oracle.turn_to(SUCCESSOR));
            let before = taken.borrow().len();
            while taken.borrow().len() < 3 {
                executor.sleep(micros(10)).await;
            }
            assert!(taken.borrow()[..before].iter().all(|timestamp| *timestamp == 100));
            assert!(taken.borrow()[before..].iter().all(|timestamp| *timestamp == 5), "{taken:?}");
        });
    }
}

#[test]
fn who_asks_too_early_is_answered_when_that_may_be() {
    let mut world = World::new(Config::new(7, 3, Profile::ideal())).expect("valid");
    serve(&mut world, FORMER, 100, micros(700));
    client(&mut world, |oracle, executor| async move {
        let asked = executor.now();
        assert_eq!(oracle.timestamp().await.map(Timestamp::raw), Ok(100));
        let waited = executor.now().since(asked);
        // Long before it would have asked again.
        assert!((micros(650)..micros(1_000)).contains(&waited), "{waited:?}");
    });
}
