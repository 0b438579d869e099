//! Buffers, back-pressure, and futures dropped half-way.

use std::pin::Pin;
use std::task::Poll;

use super::{Cluster, MEMORY, REGION, properties, read, read_words, word, write};
use crate::contract::ids::RemoteAddr;
use crate::contract::region::WORD_BYTES;
use crate::lane::{Lane, MAX_VERBS_IN_FLIGHT, Posted};

properties! {
    a_dropped_future_cancels_nothing_and_leaks_nothing,
    a_batch_that_is_never_posted_does_nothing,
    more_verbs_than_fit_in_flight_all_complete_in_order,
    a_batch_larger_than_the_queue_completes,
    nothing_posted_before_a_reconnect_takes_effect_after_it,
}

async fn poll_once(posted: &mut Posted) {
    std::future::poll_fn(|context| {
        let _either = Pin::new(&mut *posted).poll(context);
        Poll::Ready(())
    })
    .await;
}

fn a_dropped_future_cancels_nothing_and_leaks_nothing(cluster: &Cluster) {
    let rounds = cluster.rounds(10_000);
    cluster.with_regions().solo(async move |lane| {
        let mut arena_bytes = 0;
        // Connects first, because a batch keeps its buffers while connecting.
        for node in MEMORY {
            read(&lane, word(node, 0)).await;
        }
        for round in 1..=rounds {
            let mut batch = lane.batch();
            let staged = batch.stage(64);
            batch.words_mut(staged).fill(round);
            batch.write(word(MEMORY[0], 0), staged);
            batch.read(word(MEMORY[1], 0), 4096);
            let mut posted = batch.post();
            if round % 2 == 0 {
                poll_once(&mut posted).await;
            }
            drop(posted);
            // On the same connection, so the write above has taken effect.
            assert_eq!(read_words(&lane, word(MEMORY[0], 0), 8).await, [round; 8]);
            if round == 100 {
                arena_bytes = lane.arena_bytes();
            }
        }
        assert_eq!(lane.arena_bytes(), arena_bytes, "buffers did not come back");
    });
}

fn a_batch_that_is_never_posted_does_nothing(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        write(&lane, word(MEMORY[0], 0), 1).await;
        let mut arena_bytes = None;
        for _ in 0..1000 {
            let mut batch = lane.batch();
            batch.write_word(word(MEMORY[0], 0), 2);
            // Two chunks, which must both return to the pool.
            batch.stage(8192);
            batch.stage(16_384);
            let first = *arena_bytes.get_or_insert(lane.arena_bytes());
            assert_eq!(lane.arena_bytes(), first, "buffers did not come back");
        }
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, 1);
    });
}

fn count_up(lane: &Lane, verbs: usize) -> (crate::contract::verbs::Buffer, Posted) {
    let mut batch = lane.batch();
    let before = batch.fetch_and_add(word(MEMORY[0], 0), 1);
    for _ in 1..verbs {
        batch.fetch_and_add(word(MEMORY[0], 0), 1);
    }
    (before, batch.post())
}

fn more_verbs_than_fit_in_flight_all_complete_in_order(cluster: &Cluster) {
    const VERBS: usize = 100;
    cluster.with_regions().solo(async |lane| {
        let batches = 3 * MAX_VERBS_IN_FLIGHT / VERBS;
        let posted: Vec<_> = (0..batches).map(|_| count_up(&lane, VERBS)).collect();
        for (index, (before, posted)) in posted.into_iter().enumerate() {
            let done = posted.await.expect("nothing fails");
            assert_eq!(done.words(before), [(index * VERBS) as u64]);
        }
    });
}

fn a_batch_larger_than_the_queue_completes(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let small = count_up(&lane, 1).1;
        let large = count_up(&lane, MAX_VERBS_IN_FLIGHT + 1).1;
        let behind = count_up(&lane, 1);
        small.await.expect("nothing fails");
        large.await.expect("nothing fails");
        let done = behind.1.await.expect("nothing fails");
        assert_eq!(done.words(behind.0), [MAX_VERBS_IN_FLIGHT as u64 + 2]);
    });
}

/// Includes batches waiting for room in the queue at the time of the reconnect (H22).
fn nothing_posted_before_a_reconnect_takes_effect_after_it(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let outside = RemoteAddr::new(MEMORY[0], REGION, super::REGION_BYTES);
        for break_first in [false, true] {
            if break_first {
                super::error_of(&lane, |batch| _ = batch.read(outside, WORD_BYTES)).await;
            }
            let posted: Vec<_> = (0..3).map(|_| count_up(&lane, MAX_VERBS_IN_FLIGHT / 2)).collect();
            lane.reconnect(MEMORY[0]).await.expect("the node is reachable");
            write(&lane, word(MEMORY[0], 0), 0).await;
            for (_, posted) in posted {
                assert_eq!(posted.await.is_err(), break_first);
            }
            assert_eq!(read(&lane, word(MEMORY[0], 0)).await, 0, "an old verb came later");
        }
    });
}
