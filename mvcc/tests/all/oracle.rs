//! Requests for timestamps while another node takes over: three nodes on virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::ids::{Endpoint, Epoch, Incarnation, LaneId, NodeId};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::Rpc;
use lotus_fabric::sim::{Config, Profile, Rates, World};
use lotus_fabric::transport::Fabric;
use lotus_mvcc::Timestamp;
use lotus_mvcc::oracle::{OracleAnswer, OracleClient, OracleServer};

const CLIENT: NodeId = NodeId(0);
const FORMER: NodeId = NodeId(1);
const SUCCESSOR: NodeId = NodeId(2);

const LEASE: Duration = Duration::from_micros(640);

/// Life of the client's node that takes part.
const LIFE: u16 = 3;

fn life(number: u16) -> Incarnation {
    Incarnation::new(number).expect("small")
}

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

/// Starts a node that issues `timestamp` from `opens` on; returns the count of requests to it.
fn serve(world: &mut World, node: NodeId, timestamp: u64, opens: Duration) -> Rc<Cell<u64>> {
    let (executor, rpc) = core(world, node);
    let began = executor.handle().now();
    let asked = Rc::new(Cell::new(0));
    let count = Rc::clone(&asked);
    OracleServer::serve(&rpc, move |asker, now| {
        count.set(count.get() + 1);
        match asker.life == life(LIFE) {
            false => OracleAnswer::Refused,
            true if now.since(began) < opens => OracleAnswer::NotYet,
            true => OracleAnswer::Issued(Timestamp::new(timestamp).expect("63 bits")),
        }
    });
    // The service ends when `rpc` is dropped.
    executor.handle().spawn(async move {
        std::future::pending::<()>().await;
        drop(rpc);
    });
    world.add_core(node, executor);
    asked
}

/// Runs `body` to its end with a client of the former oracle.
fn client<F: Future<Output = ()> + 'static>(
    world: &mut World,
    body: impl FnOnce(OracleClient, Handle) -> F,
) {
    client_of(world, LIFE, body);
}

/// Like [`client`], for another life of the client's node.
fn client_of<F: Future<Output = ()> + 'static>(
    world: &mut World,
    number: u16,
    body: impl FnOnce(OracleClient, Handle) -> F,
) {
    let (executor, rpc) = core(world, CLIENT);
    let ended = Rc::new(Cell::new(false));
    let body =
        body(OracleClient::new(rpc, FORMER, life(number), Some(LEASE)), executor.handle().clone());
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

/// A refused client learns it at once, and may find out why.
#[test]
fn who_takes_no_part_is_refused_without_a_wait() {
    let mut world = World::new(Config::new(7, 3, Profile::ideal())).expect("valid");
    serve(&mut world, FORMER, 100, micros(0));
    client_of(&mut world, LIFE - 1, |oracle, executor| async move {
        let asked = executor.now();
        assert!(oracle.timestamp().await.is_err());
        assert!(executor.now().since(asked) < micros(50));
    });
}

/// As long as answers are fast a lost message costs little, however many are lost.
#[test]
fn a_request_that_was_lost_is_sent_again_when_its_answer_is_late() {
    let rates = Rates { message_loss: 0.3, ..Rates::default() };
    let mut world = World::new(Config { rates, ..Config::new(7, 3, Profile::ideal()) });
    let world = world.as_mut().expect("valid");
    serve(world, FORMER, 100, micros(0));
    client(world, |oracle, executor| async move {
        let began = executor.now();
        for _ in 0..100 {
            oracle.timestamp().await.expect("it answers in the end");
        }
        let took = executor.now().since(began);
        assert!(took < Duration::from_millis(20), "{took:?}");
    });
}

/// An oracle that is known to be slow is not asked over and over.
#[test]
fn a_slow_oracle_is_asked_about_once() {
    let slow = Duration::from_micros(500);
    let rates = Rates { message_delay: 1.0, message_delay_max: slow, ..Rates::default() };
    let mut world = World::new(Config { rates, ..Config::new(7, 3, Profile::ideal()) });
    let world = world.as_mut().expect("valid");
    let asked = serve(world, FORMER, 100, micros(0));
    client(world, |oracle, _| async move {
        let mut before = 0;
        for turn in 0..100 {
            if turn == 50 {
                before = asked.get();
            }
            oracle.timestamp().await.expect("it answers in the end");
        }
        let repeated = asked.get() - before - 50;
        assert!(repeated < 10, "{repeated}");
    });
}
