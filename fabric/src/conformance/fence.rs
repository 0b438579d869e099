//! After a fence has returned, no verb of the expelled epoch takes effect at the fenced target
//! (H2).

use std::time::Duration;

use super::{
    CLIENT, Cluster, Coordinator, Flag, MEMORY, PEER, properties, read_words, wait_until, word,
    write,
};
use crate::contract::ids::{Endpoint, Epoch, LaneId};
use crate::contract::verbs::{Failure, VerbError};
use crate::lane::Lane;

properties! {
    nothing_takes_effect_after_a_fence,
    a_fence_refuses_every_kind_of_verb,
    a_fence_spares_other_nodes_and_newer_epochs,
    a_fence_never_goes_back,
    a_lane_opened_late_is_fenced_as_well,
}

/// Number of concurrently writing lanes of the expelled node.
const HAMMERS: u16 = 2;
/// Words in one batch of a hammer: enough that a fence nearly always comes in the middle of a
/// batch.
const WORDS: u64 = 1000;
/// Number of times that the node is expelled, with a newer epoch in every round.
const ROUNDS: u32 = 20;

/// Outcome of a verb after a fence of its target: `error`, or the reconnect's error if the verb's
/// outcome is unknown and the back end need not report the fence in the verb.
async fn settled(lane: &Lane, error: VerbError, told: bool) -> VerbError {
    if told || !error.outcome_unknown() {
        return error;
    }
    lane.reconnect(MEMORY[0]).await.expect_err("the target has fenced this node out")
}

/// Writes ever larger numbers to both memory nodes until the first memory node refuses; returns the
/// failure.
async fn hammer(lane: &Lane, started: &Flag, fencer_done: &Flag) -> Failure {
    let first = u64::from(lane.at().lane.0) * WORDS;
    for value in 1.. {
        let mut batch = lane.batch();
        for index in first..first + WORDS {
            batch.write_word(word(MEMORY[0], index), value);
        }
        batch.write_word(word(MEMORY[1], first), value);
        // Read before posting, because a batch posted in time may complete after the fence.
        let too_late = fencer_done.is_set();
        if let Err(error) = batch.post().await {
            return error.first();
        }
        started.set();
        assert!(!too_late, "never refused");
    }
    unreachable!("the numbers do not end")
}

fn nothing_takes_effect_after_a_fence(cluster: &Cluster) {
    cluster.with_regions();
    for epoch in (1..=ROUNDS).map(Epoch) {
        expel_once(cluster, epoch);
    }
}

/// Fences the hammering node at the first memory node, for epochs up to `epoch`.
fn expel_once(cluster: &Cluster, epoch: Epoch) {
    let (done, told) = (Flag::default(), cluster.harness.tells_of_fences());
    let finish = done.set_on_drop();
    let started: Vec<Flag> = (0..HAMMERS).map(|_| Flag::default()).collect();
    let hammers: Vec<_> = (0..HAMMERS)
        .zip(started.clone())
        .map(|(index, started)| {
            let (at, done) = (Endpoint { lane: LaneId(index), ..PEER }, done.clone());
            let hammer = Coordinator::new(at, move |lane| async move {
                let refusal = hammer(&lane, &started, &done).await;
                let error = settled(&lane, refusal.error, told).await;
                assert_eq!((refusal.node, error), (MEMORY[0], VerbError::Revoked));
                // The expelled node continues at the memory node without the fence.
                write(&lane, word(MEMORY[1], 1), 1).await;
            });
            hammer.with_epoch(epoch)
        })
        .collect();
    let fabric = cluster.harness.fabric();
    let fencer = Coordinator::new(CLIENT, move |lane| async move {
        let _finish = finish;
        wait_until(&lane, "the hammers start", || started.iter().all(Flag::is_set)).await;
        fabric.fence(MEMORY[0], PEER.node, Epoch(epoch.0 + 1)).expect("both nodes exist");
        let words = usize::from(HAMMERS) * WORDS as usize;
        let fenced = read_words(&lane, word(MEMORY[0], 0), words).await;
        for _ in 0..10 {
            let later = read_words(&lane, word(MEMORY[0], 0), words).await;
            assert!(later == fenced, "a write of the expelled node came after the fence");
            lane.executor().sleep(Duration::from_micros(100)).await;
        }
    });
    cluster.run(hammers.into_iter().chain([fencer]));
}

fn a_fence_refuses_every_kind_of_verb(cluster: &Cluster) {
    let (fabric, told) = (cluster.harness.fabric(), cluster.harness.tells_of_fences());
    cluster.with_regions().solo(async move |lane| {
        write(&lane, word(MEMORY[0], 0), 1).await;
        fabric.fence(MEMORY[0], CLIENT.node, Epoch(2)).expect("both nodes exist");
        for kind in 0..5 {
            let error = super::error_of(&lane, |batch| {
                let addr = word(MEMORY[0], 0);
                match kind {
                    0 => _ = batch.read(addr, 8),
                    1 => _ = batch.read_stable(addr, 8),
                    2 => batch.write_word(addr, 2),
                    3 => _ = batch.compare_and_swap(addr, 1, 2),
                    _ => _ = batch.fetch_and_add(addr, 1),
                }
            });
            let error = settled(&lane, error.await, told || kind > 0).await;
            assert_eq!(error, VerbError::Revoked, "verb {kind}");
            let error = lane.reconnect(MEMORY[0]).await;
            assert_eq!(error, Err(VerbError::Revoked), "re-making the connection");
        }
    });
    check_first_word(cluster, 1);
}

fn a_fence_spares_other_nodes_and_newer_epochs(cluster: &Cluster) {
    let fabric = cluster.with_regions().harness.fabric();
    fabric.fence(MEMORY[0], PEER.node, Epoch(2)).expect("both nodes exist");
    let expelled_elsewhere = Coordinator::new(PEER, async |lane: Lane| {
        write(&lane, word(MEMORY[1], 0), 3).await;
    });
    let other = Coordinator::new(CLIENT, async |lane: Lane| {
        write(&lane, word(MEMORY[0], 1), 4).await;
    });
    cluster.run([expelled_elsewhere, other]);
    let rejoined = Coordinator::new(PEER, async |lane: Lane| {
        write(&lane, word(MEMORY[0], 0), 5).await;
    });
    cluster.run([rejoined.with_epoch(Epoch(2))]);
    check_first_word(cluster, 5);
}

fn a_fence_never_goes_back(cluster: &Cluster) {
    let fabric = cluster.with_regions().harness.fabric();
    for epoch in [5, 3, 5] {
        fabric.fence(MEMORY[0], PEER.node, Epoch(epoch)).expect("both nodes exist");
    }
    let between = Coordinator::new(PEER, async |lane: Lane| {
        let write = |batch: &mut crate::lane::Batch| batch.write_word(word(MEMORY[0], 0), 1);
        assert_eq!(super::error_of(&lane, write).await, VerbError::Revoked);
    });
    cluster.run([between.with_epoch(Epoch(4))]);
    check_first_word(cluster, 0);
}

fn a_lane_opened_late_is_fenced_as_well(cluster: &Cluster) {
    let fabric = cluster.with_regions().harness.fabric();
    fabric.fence(MEMORY[0], PEER.node, Epoch(2)).expect("both nodes exist");
    cluster.run([Coordinator::new(PEER, async |lane: Lane| {
        let write = |batch: &mut crate::lane::Batch| batch.write_word(word(MEMORY[0], 0), 1);
        assert_eq!(super::error_of(&lane, write).await, VerbError::Revoked);
    })]);
    check_first_word(cluster, 0);
}

fn check_first_word(cluster: &Cluster, expected: u64) {
    let at = Endpoint { lane: LaneId(9), ..CLIENT };
    // A newer epoch than the fences of every property.
    let check = Coordinator::new(at, async move |lane: Lane| {
        assert_eq!(super::read(&lane, word(MEMORY[0], 0)).await, expected);
    });
    cluster.run([check.with_epoch(Epoch(9))]);
}
