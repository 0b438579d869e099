//! Verbs on one connection take effect in posting order; no order is required between connections.

use super::{CLIENT, Cluster, Coordinator, Flag, MEMORY, PEER, properties, read, word};
use crate::contract::region::WORD_BYTES;
use crate::lane::Lane;

properties! {
    verbs_of_one_batch_take_effect_in_order,
    batches_of_one_lane_take_effect_in_order,
    no_lane_sees_the_second_write_without_the_first,
    no_lane_sees_the_second_batch_without_the_first,
}

/// Rounds of the writer in the properties with two coordinators.
const ROUNDS: u64 = 20_000;

/// A NIC could reorder a READ or an atomic with a following WRITE (H24).
fn verbs_of_one_batch_take_effect_in_order(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let addr = word(MEMORY[0], 0);
        for round in (0..1000).map(|round| round * 10) {
            let mut batch = lane.batch();
            let before = batch.read(addr, WORD_BYTES);
            batch.write_word(addr, round + 1);
            let first = batch.fetch_and_add(addr, 1);
            batch.write_word(addr, round + 5);
            let second = batch.compare_and_swap(addr, round + 5, round + 6);
            let third = batch.read_stable(addr, WORD_BYTES);
            batch.write_word(addr, round + 10);
            let done = batch.post().await.expect("nothing fails");
            let seen = [before, first, second, third].map(|buffer| done.words(buffer)[0]);
            assert_eq!(seen, [round, round + 1, round + 5, round + 6]);
        }
    });
}

fn batches_of_one_lane_take_effect_in_order(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let posted: Vec<_> = (0..1000)
            .map(|value| {
                let mut batch = lane.batch();
                let before = batch.read(word(MEMORY[0], 0), WORD_BYTES);
                batch.write_word(word(MEMORY[0], 0), value + 1);
                (before, batch.post())
            })
            .collect();
        // Awaited in reverse posting order, which must not matter.
        for (value, (before, posted)) in posted.into_iter().enumerate().rev() {
            assert_eq!(posted.await.expect("nothing fails").words(before), [value as u64]);
        }
    });
}

fn no_lane_sees_the_second_write_without_the_first(cluster: &Cluster) {
    observed(cluster, async |lane, round| {
        let mut batch = lane.batch();
        batch.write_word(word(MEMORY[0], FIRST), round);
        batch.write_word(word(MEMORY[0], SECOND), round);
        batch.post().await.expect("nothing fails");
    });
}

fn no_lane_sees_the_second_batch_without_the_first(cluster: &Cluster) {
    observed(cluster, async |lane, round| {
        let posted = [FIRST, SECOND].map(|index| {
            let mut batch = lane.batch();
            batch.write_word(word(MEMORY[0], index), round);
            batch.post()
        });
        for posted in posted {
            posted.await.expect("nothing fails");
        }
    });
}

/// Words written first and second, on different cache lines and pages.
const FIRST: u64 = 4096;
const SECOND: u64 = 0;

/// One coordinator `write`s rounds while a reader reads the second word, then the first.
fn observed(cluster: &Cluster, write: impl AsyncFn(&Lane, u64) + Copy + Send + 'static) {
    let (done, rounds) = (Flag::default(), cluster.rounds(ROUNDS));
    let finish = done.set_on_drop();
    let writer = Coordinator::new(PEER, move |lane| async move {
        let _finish = finish;
        for round in 1..=rounds {
            write(&lane, round).await;
        }
    });
    let reader = Coordinator::new(CLIENT, move |lane| async move {
        while !done.is_set() {
            let mut batch = lane.batch();
            let second = batch.read(word(MEMORY[0], SECOND), WORD_BYTES);
            let first = batch.read(word(MEMORY[0], FIRST), WORD_BYTES);
            let both = batch.post().await.expect("nothing fails");
            let [first, second] = [first, second].map(|buffer| both.words(buffer)[0]);
            assert!(first >= second, "saw {second} of the second write, {first} of the first");
            let second = read(&lane, word(MEMORY[0], SECOND)).await;
            let first = read(&lane, word(MEMORY[0], FIRST)).await;
            assert!(first >= second, "saw {second} of the second write, {first} of the first");
        }
    });
    cluster.with_regions().run([writer, reader]);
}
