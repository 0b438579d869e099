//! The `rdma` back end on software devices: the whole contract, every bad input, and the costs of
//! the data path, on any machine.
//!
//! The devices replace the library: `library` defines the functions of libibverbs in this program,
//! so all of the back end is tested, raw calls included. Behaviour that depends on packets is
//! tested on Soft-RoCE (`just rdma-test`).

mod bad_input;
mod data_path;
mod devices;
mod library;
mod verbs;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use lotus_fabric::conformance::{self, Harness};
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::rdma::{Config, RdmaFabric};
use lotus_fabric::region::Rights;
use lotus_fabric::transport::{Fabric, MAX_MESSAGE_BYTES};
use lotus_fabric::verbs::VerbError;

const MEMORY: NodeId = NodeId(0);
const CLIENT: Endpoint = Endpoint { node: NodeId(1), lane: LaneId(0) };
const REGION: RegionId = RegionId(3);
const REGION_BYTES: u64 = 1 << 16;

/// Time limit of every test here.
const LIMIT: Duration = Duration::from_secs(30);

/// A fabric of `nodes` nodes, assigned to these devices in turn.
fn fabric(nodes: u16, devices: &[&str]) -> RdmaFabric {
    let devices: Vec<_> = devices.iter().map(|name| (*name).to_owned()).collect();
    let config = Config::in_process(nodes, &devices).expect("the names make sense");
    // Small queues, so that they fill up.
    let config = Config { send_queue: 64, unsignalled: 16, ..config };
    RdmaFabric::new(config, Env::real(0)).expect("the devices work")
}

/// A fabric of two nodes on one device, the first with a region.
fn pair_on(device: &str) -> RdmaFabric {
    let fabric = fabric(2, &[device]);
    fabric.register(MEMORY, REGION, REGION_BYTES, Rights::ALL).expect("there is memory");
    fabric
}

/// Opens a lane on an executor that drives it.
fn open(fabric: &RdmaFabric) -> (Executor, Lane) {
    let mut executor = Executor::new(Env::real(0));
    let transport = fabric.open_lane(CLIENT, Epoch(1), executor.handle().waker());
    let transport = transport.expect("the lane is free");
    let lane = Lane::new(CLIENT, executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    (executor, lane)
}

fn word(index: u64) -> RemoteAddr {
    RemoteAddr::new(MEMORY, REGION, index * 8)
}

/// Runs `body` on a thread of its own, and fails if it does not end in time.
fn within_the_limit(what: &str, body: impl FnOnce() + Send + 'static) {
    let (ended, end) = mpsc::channel();
    let run = move || {
        body();
        // Fails if the time is already over.
        let _ = ended.send(());
    };
    Env::real(0).spawn("bounded", run).expect("the system has a thread left");
    assert!(end.recv_timeout(LIMIT).is_ok(), "{what}: not within {LIMIT:?}");
}

struct Software(RdmaFabric);

impl Harness for Software {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.0.clone())
    }

    fn set_reachable(&self, node: NodeId, reachable: bool) {
        self.0.set_reachable(node, reachable).expect("the node is here");
    }

    fn rounds(&self, rounds: u64) -> u64 {
        rounds / 4
    }

    fn tells_of_fences(&self) -> bool {
        false
    }
}

#[test]
fn the_contract_holds_where_the_device_keeps_verbs_in_order() {
    conformance::run(|| Software(fabric(conformance::NODES, &["card0", "card1"])));
}

#[test]
fn the_contract_holds_where_this_side_keeps_verbs_in_order() {
    conformance::run(|| Software(fabric(conformance::NODES, &["soft0"])));
}

/// Regression test: a batch larger than the queue goes to the device in parts. When the device
/// refused one part, the rest waited for completions that never came, and the coordinator waited
/// for the rest.
#[test]
fn a_device_that_takes_nothing_fails_batches_whole() {
    let fabric = pair_on("full0");
    within_the_limit("a batch that the device refuses", move || {
        let (mut executor, lane) = open(&fabric);
        executor.run(async {
            for verbs in [1, 1000] {
                let mut batch = lane.batch();
                (0..verbs).for_each(|index| batch.write_word(word(index), 1));
                let refused = batch.post().await.expect_err("the device takes nothing");
                assert_eq!(refused.first().error, VerbError::Flushed);
                lane.reconnect(MEMORY).await.expect("the node is there");
            }
        });
    });
}

/// Regression test: the thread that waits for events was told of one, but the queue of that event
/// was destroyed before the thread read it. The thread then waited for the next event, and blocked
/// the drop of the fabric.
#[test]
fn an_event_that_is_withdrawn_holds_up_nobody() {
    let fabric = pair_on("fickle0");
    within_the_limit("dropping the fabric", move || {
        let (mut executor, lane) = open(&fabric);
        executor.run(async {
            // Long enough for the lane to fall asleep after requesting an event.
            lane.executor().sleep(Duration::from_millis(20)).await;
            let peer = Endpoint { lane: LaneId(1), ..CLIENT };
            let mut executor = Executor::new(Env::real(0));
            let transport = fabric.open_lane(peer, Epoch(1), executor.handle().waker());
            let other = Lane::new(peer, executor.handle().clone(), transport.expect("free"));
            executor.add_driver(other.driver());
            executor.run(async {
                for _ in 0..20 {
                    other.send(CLIENT, b"an event");
                    other.executor().sleep(Duration::from_millis(1)).await;
                }
            });
        });
        drop((executor, lane, fabric));
    });
}

/// Regression test: when the device takes only two fragments of a message, the message is lost, but
/// its slots were counted as free although the device had them: soon the device took nothing any
/// more.
#[test]
fn a_device_that_takes_part_of_a_message_goes_on_sending() {
    within_the_limit("messages after refused ones", || whole_messages_pass("short0"));
}

/// An error stops a datagram pair from sending until software resumes it.
#[test]
fn a_message_that_cannot_be_sent_does_not_stop_those_after_it() {
    within_the_limit("messages after one that failed", || whole_messages_pass("bad0"));
}

/// Sends long messages between short ones until three of the short ones have arrived.
fn whole_messages_pass(device: &str) {
    let fabric = pair_on(device);
    let (mut executor, lane) = open(&fabric);
    let peer = Endpoint { lane: LaneId(1), ..CLIENT };
    let transport = fabric.open_lane(peer, Epoch(1), executor.handle().waker());
    let other = Lane::new(peer, executor.handle().clone(), transport.expect("free"));
    executor.add_driver(other.driver());
    let came = Rc::new(Cell::new(0));
    let counts = Rc::clone(&came);
    other.on_message(Box::new(move |_, bytes| {
        counts.set(counts.get() + u32::from(bytes == b"short"));
    }));
    executor.run(async {
        for round in 1..=3 {
            while came.get() < round {
                lane.send(peer, b"short");
                lane.executor().sleep(Duration::from_micros(200)).await;
            }
            for _ in 0..200 {
                lane.send(peer, &[7; MAX_MESSAGE_BYTES]);
                lane.executor().yield_now().await;
            }
        }
    });
}
