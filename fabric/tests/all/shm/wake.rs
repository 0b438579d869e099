//! Lanes that sleep are woken by messages from other processes.

use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::ids::{Endpoint, Epoch};
use lotus_fabric::shm::ShmFabric;
use lotus_fabric::transport::{Fabric, Sink, Token, Transport, Wake};
use lotus_fabric::verbs::{VerbError, Work};

use super::{Directory, at, env, join};

/// A lane that was not woken by then never will be.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waker of lanes that no thread of this process wakes.
struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

/// Collects the received messages.
#[derive(Default)]
struct Inbox(Vec<(Endpoint, Vec<u8>)>);

impl Sink for Inbox {
    fn completed(&mut self, _: Token, _: Box<Work>) {}
    fn reconnected(&mut self, _: Token, _: Result<(), VerbError>) {}
    fn message(&mut self, from: Endpoint, bytes: &[u8]) {
        self.0.push((from, bytes.to_vec()));
    }
}

fn open(fabric: &ShmFabric, node: u16) -> Box<dyn Transport> {
    fabric.open_lane(at(node), Epoch(1), Arc::new(Nobody)).expect("a lane")
}

/// Sleeps as an executor does, and expects to be woken.
fn sleep(lane: &dyn Transport) {
    let sleeper = lane.sleeper().expect("a way to sleep");
    let clock = env();
    let before = clock.now();
    sleeper.sleep(PATIENCE);
    assert!(clock.now().since(before) < PATIENCE, "the lane is not woken");
}

/// Sleeps whenever there is no input, until a message has arrived.
fn next_message(lane: &mut dyn Transport) -> (Endpoint, Vec<u8>) {
    let mut inbox = Inbox::default();
    while inbox.0.is_empty() {
        if !lane.has_input() {
            sleep(lane);
        }
        lane.poll(&mut inbox);
    }
    inbox.0.pop().expect("there is one")
}

/// Two fabrics share no more than two processes do. A message sent while the receiver sleeps rings
/// its bell; no other thread has to be awake for that.
#[test]
fn a_sleeping_lane_is_woken_by_a_message() {
    let directory = Directory::new();
    let shares = [0, 1].map(|node| join(directory.path(), node, 2));
    let mut receiver = open(&shares[0], 0);
    let mut sender = open(&shares[1], 1);
    // The first message waits in the sender until the receiver is found.
    sender.send(at(0), b"first");
    while !receiver.has_input() {
        sender.poll(&mut Inbox::default());
        std::thread::yield_now();
    }
    assert_eq!(next_message(&mut *receiver), (at(1), b"first".to_vec()));
    for round in 0..1000_u16 {
        let message = round.to_le_bytes();
        assert!(!receiver.has_input(), "round {round}");
        sender.send(at(0), &message);
        // The wake may be for an earlier message, which was received already.
        sleep(&*receiver);
        assert_eq!(next_message(&mut *receiver), (at(1), message.to_vec()));
    }
}
