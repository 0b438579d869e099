//! Atomicity of words, stable READs and atomics under concurrent writers.

use super::{CLIENT, Cluster, Coordinator, Flag, MEMORY, PEER, SetOnDrop, properties, read, word};
use crate::contract::ids::{Endpoint, LaneId};
use crate::contract::masked::MaskedSwap;
use crate::contract::region::WORD_BYTES;
use crate::lane::Lane;

properties! {
    a_word_never_tears,
    a_stable_read_is_a_snapshot,
    concurrent_adds_all_count,
    compare_and_swap_lets_one_of_many_through,
    fields_of_one_word_count_apart,
    a_masked_field_is_a_lock_beside_a_counter,
}

const ROUNDS: u64 = 20_000;

/// Writers store words with two equal halves; no reader sees halves that differ.
fn a_word_never_tears(cluster: &Cluster) {
    let (writers, done) = writers(cluster, async |lane, round| {
        let half = round & 0xFFFF_FFFF;
        let mut batch = lane.batch();
        let staged = batch.stage(64);
        batch.words_mut(staged).fill(half << 32 | half);
        batch.write(word(MEMORY[0], 0), staged);
        batch.post().await.expect("nothing fails");
    });
    let reader = Coordinator::new(CLIENT, move |lane| async move {
        while !done.is_set() {
            let mut batch = lane.batch();
            let buffer = batch.read(word(MEMORY[0], 0), 64);
            let seen = batch.post().await.expect("nothing fails");
            for word in seen.words(buffer) {
                assert_eq!(word >> 32, word & 0xFFFF_FFFF, "a torn word");
            }
        }
    });
    cluster.with_regions().run(writers.into_iter().chain([reader]));
}

/// One writer stores the round into one word after the other. At any moment the memory holds a
/// prefix of one round before a suffix of the previous one; any other data mixes two moments (H14).
fn a_stable_read_is_a_snapshot(cluster: &Cluster) {
    const WORDS: usize = 24;
    let (done, rounds) = (Flag::default(), cluster.rounds(ROUNDS));
    let finish = done.set_on_drop();
    let writer = Coordinator::new(PEER, move |lane| async move {
        let _finish = finish;
        for round in 1..=rounds {
            let mut batch = lane.batch();
            (0..WORDS as u64).for_each(|index| batch.write_word(word(MEMORY[0], index), round));
            batch.post().await.expect("nothing fails");
        }
    });
    let reader = Coordinator::new(CLIENT, move |lane| async move {
        while lane.capabilities().stable_reads && !done.is_set() {
            let mut batch = lane.batch();
            let buffer = batch.read_stable(word(MEMORY[0], 0), WORDS * WORD_BYTES);
            let seen = batch.post().await.expect("nothing fails");
            let words = seen.words(buffer);
            let ascends = words.windows(2).any(|pair| pair[0] < pair[1]);
            assert!(!ascends && words[0] - words[WORDS - 1] <= 1, "no snapshot: {words:?}");
        }
    });
    cluster.with_regions().run([writer, reader]);
}

fn concurrent_adds_all_count(cluster: &Cluster) {
    let (adders, _) = writers(cluster, async |lane, _| {
        let mut batch = lane.batch();
        batch.fetch_and_add(word(MEMORY[0], 0), 1);
        batch.fetch_and_add(word(MEMORY[0], 1), 3);
        batch.post().await.expect("nothing fails");
    });
    let total = adders.len() as u64 * cluster.rounds(ROUNDS);
    cluster.with_regions().run(adders);
    cluster.solo(async move |lane| {
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, total);
        assert_eq!(read(&lane, word(MEMORY[0], 1)).await, 3 * total);
    });
}

/// All coordinators increment a word by compare-and-swap and count their successes in another.
fn compare_and_swap_lets_one_of_many_through(cluster: &Cluster) {
    let (swappers, _) = writers(cluster, async |lane, _| {
        let seen = read(lane, word(MEMORY[0], 0)).await;
        let mut batch = lane.batch();
        let before = batch.compare_and_swap(word(MEMORY[0], 0), seen, seen + 1);
        let done = batch.post().await.expect("nothing fails");
        if done.words(before) == [seen] {
            let mut batch = lane.batch();
            batch.fetch_and_add(word(MEMORY[0], 1), 1);
            batch.post().await.expect("nothing fails");
        }
    });
    cluster.with_regions().run(swappers);
    let rounds = cluster.rounds(ROUNDS);
    cluster.solo(async move |lane| {
        let raised = read(&lane, word(MEMORY[0], 0)).await;
        assert_eq!(raised, read(&lane, word(MEMORY[0], 1)).await, "raised and counted differ");
        assert!(raised >= rounds, "fewer raised than one alone would have");
    });
}

/// Fields of 16 and 48 bits, the lower of which wraps.
fn fields_of_one_word_count_apart(cluster: &Cluster) {
    let (adders, _) = writers(cluster, async |lane, _| {
        if lane.capabilities().masked_atomics {
            let mut batch = lane.batch();
            batch.masked_fetch_and_add(word(MEMORY[0], 0), 3 << 16 | 0x1001, 1 << 15);
            batch.post().await.expect("nothing fails");
        }
    });
    let total = adders.len() as u64 * cluster.rounds(ROUNDS);
    cluster.with_regions().run(adders);
    cluster.solo(async move |lane| {
        let expected = (3 * total) << 16 | (0x1001 * total) & 0xFFFF;
        let there = lane.capabilities().masked_atomics;
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, if there { expected } else { 0 });
    });
}

/// One field is taken and freed by compare-and-swap while others add to a field of the same word;
/// whoever has taken it raises a word that nobody else may touch.
fn a_masked_field_is_a_lock_beside_a_counter(cluster: &Cluster) {
    const OWNER: u64 = 0xFF << 56;
    let owner = |from: u64, to: u64| MaskedSwap {
        compare: from << 56,
        compare_mask: OWNER,
        swap: to << 56,
        swap_mask: OWNER,
    };
    let (lockers, _) = writers(cluster, async move |lane, _| {
        if !lane.capabilities().masked_atomics {
            return;
        }
        let lock = word(MEMORY[0], 0);
        let mut batch = lane.batch();
        let before = batch.masked_compare_and_swap(lock, owner(0, 1));
        batch.masked_fetch_and_add(lock, 1, 1 << 55);
        let done = batch.post().await.expect("nothing fails");
        if done.words(before)[0] & OWNER == 0 {
            let raised = read(lane, word(MEMORY[0], 8)).await + 1;
            let mut batch = lane.batch();
            batch.write_word(word(MEMORY[0], 8), raised);
            batch.fetch_and_add(word(MEMORY[0], 16), 1);
            batch.masked_compare_and_swap(lock, owner(1, 0));
            batch.post().await.expect("nothing fails");
        }
    });
    let tries = lockers.len() as u64 * cluster.rounds(ROUNDS);
    cluster.with_regions().run(lockers);
    cluster.solo(async move |lane| {
        let raised = read(&lane, word(MEMORY[0], 8)).await;
        assert_eq!(raised, read(&lane, word(MEMORY[0], 16)).await, "two were inside at once");
        if lane.capabilities().masked_atomics {
            assert_eq!(read(&lane, word(MEMORY[0], 0)).await, tries, "free, and all were counted");
            assert!(raised > 0, "somebody came in");
        }
    });
}

/// Three coordinators on two nodes that write their rounds; and a flag that is set once the first
/// of them has finished.
fn writers(
    cluster: &Cluster,
    write: impl AsyncFn(&Lane, u64) + Copy + Send + 'static,
) -> (Vec<Coordinator>, Flag) {
    let (done, rounds) = (Flag::default(), cluster.rounds(ROUNDS));
    let writer = |at: Endpoint| {
        let finish: SetOnDrop = done.set_on_drop();
        Coordinator::new(at, move |lane| async move {
            let _finish = finish;
            for round in 1..=rounds {
                write(&lane, round).await;
            }
        })
    };
    let places =
        [PEER, Endpoint { lane: LaneId(1), ..PEER }, Endpoint { lane: LaneId(1), ..CLIENT }];
    (places.into_iter().map(writer).collect(), done)
}
