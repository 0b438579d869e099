//! Lanes that sleep are woken by messages from other processes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use lotus_fabric::ids::{Endpoint, Epoch};
use lotus_fabric::shm::ShmFabric;
use lotus_fabric::transport::{Fabric, Sink, Token, Transport, Wake};
use lotus_fabric::verbs::{VerbError, Work};

use super::{Directory, at, join};

/// Instead of a thread that sleeps.
struct Sleeper(Sender<()>);

impl Wake for Sleeper {
    fn wake(&self) {
        // The test may have ended.
        let _ = self.0.send(());
    }
}

/// Keeps what came.
#[derive(Default)]
struct Inbox(Vec<(Endpoint, Vec<u8>)>);

impl Sink for Inbox {
    fn completed(&mut self, _: Token, _: Box<Work>) {}
    fn reconnected(&mut self, _: Token, _: Result<(), VerbError>) {}
    fn message(&mut self, from: Endpoint, bytes: &[u8]) {
        self.0.push((from, bytes.to_vec()));
    }
}

fn open(fabric: &ShmFabric, node: u16, wakes: &Sender<()>) -> Box<dyn Transport> {
    let wake = Arc::new(Sleeper(wakes.clone()));
    fabric.open_lane(at(node), Epoch(1), wake).expect("a lane")
}

/// Sleeps whenever there is nothing to do, as an executor does, until a message has come.
fn next_message(lane: &mut dyn Transport, woken: &Receiver<()>) -> (Endpoint, Vec<u8>) {
    let mut inbox = Inbox::default();
    while inbox.0.is_empty() {
        if !lane.has_input() {
            woken.recv().expect("somebody can still wake us");
        }
        lane.poll(&mut inbox);
    }
    inbox.0.pop().expect("there is one")
}

/// Two shares know as little of each other as two processes do. A wake that is lost would let this
/// wait for ever.
#[test]
fn a_sleeping_lane_is_woken_by_a_message() {
    let directory = Directory::new();
    let shares = [0, 1].map(|node| join(directory.path(), node, 2));
    let (wakes, woken) = channel();
    let mut receiver = open(&shares[0], 0, &wakes);
    let (sender_wakes, _sender_is_awake) = channel();
    let mut sender = open(&shares[1], 1, &sender_wakes);
    // The first one waits in the sender until the receiver is found.
    sender.send(at(0), b"first");
    while !receiver.has_input() {
        sender.poll(&mut Inbox::default());
        std::thread::yield_now();
    }
    assert_eq!(next_message(&mut *receiver, &woken), (at(1), b"first".to_vec()));
    for round in 0..1000_u16 {
        let message = round.to_le_bytes();
        assert!(!receiver.has_input(), "round {round}");
        sender.send(at(0), &message);
        // It may have been for an earlier message, which was there when it looked.
        woken.recv().expect("somebody can still wake us");
        assert_eq!(next_message(&mut *receiver, &woken), (at(1), message.to_vec()));
    }
}
