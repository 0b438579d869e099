//! Atomicity of words, stable READs and atomics under concurrent writers.

use super::{
    CLIENT, Cluster, Coordinator, Flag, MEMORY, PEER, SetOnDrop, properties, read, read_words, word,
};
use crate::contract::ids::{Endpoint, LaneId};
use crate::contract::masked::MaskedSwap;
use crate::contract::region::WORD_BYTES;
use crate::contract::wide::{WIDE_BYTES, WideSwap, value_of, words_of};
use crate::lane::Lane;

properties! {
    a_word_never_tears,
    a_stable_read_is_a_snapshot,
    concurrent_adds_all_count,
    compare_and_swap_lets_one_of_many_through,
    fields_of_one_word_count_apart,
    a_masked_field_is_a_lock_beside_a_counter,
    wide_atomics_do_what_their_definition_says,
    concurrent_wide_adds_all_count,
    a_wide_swap_lets_one_of_many_through,
}

const ROUNDS: u64 = 20_000;

/// Writers store words with two equal halves; no reader sees different halves.
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

/// One writer stores the round number into one word after the other. At any moment the memory holds
/// a prefix of one round followed by a suffix of the previous round; different data mixes two
/// moments (H14).
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

/// The coordinators increment a word by compare-and-swap and count their successes in a second
/// word.
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

/// Fields of 16 and 48 bits; the lower field wraps.
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

/// One field is a lock, acquired and released by compare-and-swap, while fetch-and-adds change a
/// counter in the same word. Only the lock holder may change a separate, protected word.
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

/// Swaps and sums of 16 bytes, checked against a plain number as the model.
fn wide_atomics_do_what_their_definition_says(cluster: &Cluster) {
    let rounds = cluster.rounds(2000);
    cluster.with_regions().solo(async move |lane| {
        if !lane.capabilities().wide_atomics {
            return;
        }
        let (addr, mut model, mut random) = (word(MEMORY[0], 10), 0_u128, Arbitrary(1));
        for round in 0..rounds {
            let mut batch = lane.batch();
            let (before, after) = if round.is_multiple_of(2) {
                let (addend, boundary) = (random.wide(), random.wide() & random.wide());
                let before = batch.wide_fetch_and_add(addr, addend, boundary);
                (before, sum_by_bits(model, addend, boundary))
            } else {
                let compare_mask = random.wide() & random.wide();
                // Every second swap compares with the current value; nearly all the rest fail.
                let compare = if round & 2 == 0 { model ^ !compare_mask } else { random.wide() };
                let (swap, swap_mask) = (random.wide(), random.wide());
                let swap = WideSwap { compare, compare_mask, swap, swap_mask };
                let before = batch.wide_compare_and_swap(addr, swap);
                let (agree, kept) = (model & compare_mask == compare & compare_mask, !swap_mask);
                let swapped = model & kept | swap.swap & swap_mask;
                (before, if agree { swapped } else { model })
            };
            let around = batch.read(word(MEMORY[0], 9), WIDE_BYTES + 2 * WORD_BYTES);
            let done = batch.post().await.expect("the bytes are inside the region");
            assert_eq!(done.words(before), words_of(model), "round {round}");
            let [low, high] = words_of(after);
            assert_eq!(done.words(around), [0, low, high, 0], "round {round}");
            model = after;
        }
    });
}

/// Sum of 16 bytes, bit by bit; a bit of `boundary` stops the carry out of its position.
fn sum_by_bits(old: u128, addend: u128, boundary: u128) -> u128 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..u128::BITS {
        let ones = (old >> bit & 1) + (addend >> bit & 1) + carry;
        sum |= (ones & 1) << bit;
        carry = (ones >> 1) & !(boundary >> bit) & 1;
    }
    sum
}

/// Sums that constantly carry from the low word into the high word, while atomics on 8 bytes add to
/// the high word.
fn concurrent_wide_adds_all_count(cluster: &Cluster) {
    const WIDE: u128 = 5 << 64 | (u64::MAX - 2) as u128;
    // The top byte of the high word is a separate counter.
    const FIELD: u128 = 0x41 << 120;
    let (adders, _) = writers(cluster, async |lane, _| {
        if lane.capabilities().wide_atomics {
            let mut batch = lane.batch();
            batch.wide_fetch_and_add(word(MEMORY[0], 2), WIDE | FIELD, 1 << 119);
            batch.fetch_and_add(word(MEMORY[0], 3), 7);
            batch.post().await.expect("nothing fails");
        }
    });
    let total = adders.len() as u128 * u128::from(cluster.rounds(ROUNDS));
    cluster.with_regions().run(adders);
    cluster.solo(async move |lane| {
        let found = read_words(&lane, word(MEMORY[0], 2), 2).await;
        let expected = total * (WIDE + (7 << 64)) + ((0x41 * total % 256) << 120);
        let there = lane.capabilities().wide_atomics;
        assert_eq!(value_of([found[0], found[1]]), if there { expected } else { 0 });
    });
}

/// The high word is a lock, acquired and released by compare-and-swap of 16 bytes; the low word is
/// changed by atomics on 8 bytes. A successful swap has seen both words at one moment.
fn a_wide_swap_lets_one_of_many_through(cluster: &Cluster) {
    const LOW: u128 = u64::MAX as u128;
    let (lockers, _) = writers(cluster, async move |lane, round| {
        if !lane.capabilities().wide_atomics {
            return;
        }
        let lock = word(MEMORY[0], 0);
        let mut batch = lane.batch();
        let seen = batch.wide_fetch_and_add(lock, 0, 0);
        let done = batch.post().await.expect("nothing fails");
        let seen = value_of([done.words(seen)[0], done.words(seen)[1]]) & LOW;
        // Succeeds only if the lock is free and nobody has held it since: the low word counts the
        // holders.
        let take = WideSwap {
            compare: seen,
            compare_mask: !0,
            swap: 1 << 64 | u128::from(round),
            swap_mask: !LOW,
        };
        let mut batch = lane.batch();
        let before = batch.wide_compare_and_swap(lock, take);
        let done = batch.post().await.expect("nothing fails");
        if done.words(before) == words_of(seen) {
            let raised = read(lane, word(MEMORY[0], 8)).await + 1;
            let mut batch = lane.batch();
            batch.write_word(word(MEMORY[0], 8), raised);
            batch.fetch_and_add(word(MEMORY[0], 0), 1);
            let free = WideSwap { compare: 1 << 64, compare_mask: !LOW, swap: 0, swap_mask: !LOW };
            let held = batch.wide_compare_and_swap(lock, free);
            let done = batch.post().await.expect("nothing fails");
            assert_eq!(done.words(held), [seen as u64 + 1, 1], "only its holder frees the lock");
        }
    });
    cluster.with_regions().run(lockers);
    cluster.solo(async move |lane| {
        let raised = read(&lane, word(MEMORY[0], 8)).await;
        assert_eq!(read_words(&lane, word(MEMORY[0], 0), 2).await, [raised, 0], "two were inside");
        if lane.capabilities().wide_atomics {
            assert!(raised > 0, "somebody came in");
        }
    });
}

/// Numbers without a pattern, equal in every run (SplitMix64).
struct Arbitrary(u64);

impl Arbitrary {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn wide(&mut self) -> u128 {
        value_of([self.word(), self.word()])
    }
}

/// Three coordinators on two nodes that write their round numbers, and a flag set when the first
/// coordinator has finished.
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
