//! Datagrams arrive whole or not at all, and losses do no harm.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::{CLIENT, Cluster, Coordinator, Flag, PEER, properties, wait_until};
use crate::contract::ids::{Endpoint, LaneId, NodeId};
use crate::contract::transport::MAX_MESSAGE_BYTES;
use crate::lane::Lane;

properties! {
    messages_arrive_whole_and_name_their_sender,
    messages_to_nobody_are_lost_in_silence,
    a_flood_that_nobody_drains_harms_nobody,
    messages_flow_again_after_a_partition,
}

/// Sends `message` to `to` until `received` is set, because any message may be lost.
async fn insist(lane: &Lane, to: Endpoint, message: &[u8], received: &Flag) {
    let deadline = lane.executor().now().after(super::LIMIT);
    while !received.is_set() {
        assert!(lane.executor().now() < deadline, "{} bytes never arrive", message.len());
        lane.send(to, message);
        lane.executor().sleep(Duration::from_micros(200)).await;
    }
}

/// A coordinator that sets a message's flag on receiving exactly the expected bytes.
fn receiver(at: Endpoint, from: Endpoint, expected: Vec<(Vec<u8>, Flag)>) -> Coordinator {
    Coordinator::new(at, move |lane: Lane| async move {
        let flags: Vec<_> = expected.iter().map(|(_, flag)| flag.clone()).collect();
        lane.on_message(Box::new(move |sender, bytes| {
            let known = expected.iter().find(|(message, _)| message == bytes);
            let (_, received) = known.unwrap_or_else(|| panic!("{} strange bytes", bytes.len()));
            assert_eq!(sender, from);
            received.set();
        }));
        wait_until(&lane, "every message arrives", || flags.iter().all(Flag::is_set)).await;
    })
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index * 31 + bytes) as u8).collect()
}

fn messages_arrive_whole_and_name_their_sender(cluster: &Cluster) {
    let messages: Vec<_> = [1, 7, 8, 16, 100, 1500, MAX_MESSAGE_BYTES]
        .map(|bytes| (pattern(bytes), Flag::default()))
        .into();
    let sent = messages.clone();
    let sender = Coordinator::new(CLIENT, move |lane: Lane| async move {
        for (message, received) in sent {
            insist(&lane, PEER, &message, &received).await;
        }
    });
    cluster.run([sender, receiver(PEER, CLIENT, messages)]);
}

fn messages_to_nobody_are_lost_in_silence(cluster: &Cluster) {
    let beyond = NodeId(cluster.harness.node_count());
    cluster.solo(async move |lane| {
        let heard = Rc::new(RefCell::new(Vec::new()));
        let hears = Rc::clone(&heard);
        lane.on_message(Box::new(move |_, bytes| hears.borrow_mut().push(bytes.to_vec())));
        for to in [PEER, Endpoint { lane: LaneId(77), ..CLIENT }, Endpoint { node: beyond, ..PEER }]
        {
            (0..100).for_each(|_| lane.send(to, &pattern(64)));
        }
        lane.executor().sleep(Duration::from_millis(2)).await;
        assert!(heard.borrow().is_empty(), "messages to nobody came here");
    });
}

/// At first the receiver does not poll its lane; the sender must neither block nor fail.
fn a_flood_that_nobody_drains_harms_nobody(cluster: &Cluster) {
    let (flooded, message) = (Flag::default(), (pattern(200), Flag::default()));
    let (tell, flood) = (flooded.clone(), cluster.rounds(20_000));
    let last = message.clone();
    let sender = Coordinator::new(CLIENT, move |lane: Lane| async move {
        let _even_in_a_panic = tell.set_on_drop();
        (0..flood).for_each(|_| lane.send(PEER, &last.0));
        tell.set();
        insist(&lane, PEER, &last.0, &last.1).await;
    });
    let Coordinator { at, epoch, body } = receiver(PEER, CLIENT, vec![message]);
    let receiver = Coordinator {
        at,
        epoch,
        body: Box::new(move |lane| {
            Box::pin(async move {
                wait_until(&lane, "the flood ends", || flooded.is_set()).await;
                body(lane).await;
            })
        }),
    };
    cluster.run([sender, receiver]);
}

fn messages_flow_again_after_a_partition(cluster: &Cluster) {
    let (before, after) = ((pattern(10), Flag::default()), (pattern(20), Flag::default()));
    let expected = vec![before.clone(), after.clone()];
    let harness = cluster.harness.clone();
    let sender = Coordinator::new(CLIENT, move |lane: Lane| async move {
        insist(&lane, PEER, &before.0, &before.1).await;
        for node in [PEER.node, CLIENT.node] {
            harness.set_reachable(node, false);
            // These messages must be lost: the receiver panics at unexpected bytes.
            (0..100).for_each(|_| lane.send(PEER, b"lost"));
            lane.executor().sleep(Duration::from_millis(1)).await;
            harness.set_reachable(node, true);
        }
        insist(&lane, PEER, &after.0, &after.1).await;
    });
    cluster.run([sender, receiver(PEER, CLIENT, expected)]);
}
