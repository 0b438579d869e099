//! Effects of a verb, and of a batch of verbs, when nothing fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Cluster, MEMORY, REGION, properties, read, read_words, word, write};
use crate::contract::ids::{NodeSet, RemoteAddr};
use crate::contract::masked::MaskedSwap;
use crate::contract::region::WORD_BYTES;
use crate::contract::verbs::MAX_VERB_BYTES;
use crate::contract::wide::WideSwap;

properties! {
    fresh_memory_is_zero,
    a_read_returns_what_a_write_stored,
    a_write_touches_nothing_else,
    compare_and_swap_stores_only_on_a_match,
    fetch_and_add_wraps_and_returns_the_old_word,
    a_masked_compare_and_swap_compares_some_bits_and_replaces_others,
    a_masked_fetch_and_add_carries_nothing_into_the_next_field,
    masked_atomics_are_refused_where_they_are_missing,
    wide_atomics_are_refused_where_they_are_missing,
    one_batch_serves_several_nodes,
    one_buffer_is_written_to_several_nodes,
    one_request_is_a_verb_on_each_of_its_nodes,
    a_batch_may_hold_more_than_one_chunk,
    an_empty_batch_completes,
}

fn fresh_memory_is_zero(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        assert!(read_words(&lane, word(MEMORY[0], 0), 512).await.iter().all(|word| *word == 0));
    });
}

fn a_read_returns_what_a_write_stored(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        for (round, bytes) in (1_u64..).zip([8, 16, 56, 64, 72, 1000, 4096, MAX_VERB_BYTES]) {
            // Not on a line boundary, and at a new address in every round.
            let addr = word(MEMORY[0], 3 * round);
            let pattern: Vec<u64> =
                (0..bytes / WORD_BYTES).map(|i| i as u64 ^ round << 32).collect();
            let mut batch = lane.batch();
            let staged = batch.stage(bytes);
            batch.words_mut(staged).copy_from_slice(&pattern);
            batch.write(addr, staged);
            batch.post().await.expect("the range is inside the region");
            assert_eq!(read_words(&lane, addr, pattern.len()).await, pattern, "{bytes} bytes");
            let mut batch = lane.batch();
            let stable = batch.read_stable(addr, bytes);
            let done = batch.post().await.expect("the range is inside the region");
            assert_eq!(done.words(stable), pattern, "{bytes} bytes, stable");
        }
    });
}

fn a_write_touches_nothing_else(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let mut batch = lane.batch();
        let staged = batch.stage(3 * WORD_BYTES);
        batch.words_mut(staged).fill(7);
        batch.write(word(MEMORY[0], 10), staged);
        batch.write(word(MEMORY[0], 20), staged.prefix(WORD_BYTES));
        batch.write_word(word(MEMORY[0], 30), 7);
        batch.post().await.expect("the ranges are inside the region");
        for (index, found) in read_words(&lane, word(MEMORY[0], 0), 64).await.iter().enumerate() {
            let written = matches!(index, 10..13 | 20 | 30);
            assert_eq!(*found, if written { 7 } else { 0 }, "word {index}");
        }
        assert_eq!(read(&lane, word(MEMORY[1], 10)).await, 0, "the other node");
    });
}

fn compare_and_swap_stores_only_on_a_match(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let addr = word(MEMORY[0], 9);
        for (expected, new, old, after) in [(0, 5, 0, 5), (0, 6, 5, 5), (5, u64::MAX, 5, u64::MAX)]
        {
            let mut batch = lane.batch();
            let before = batch.compare_and_swap(addr, expected, new);
            let done = batch.post().await.expect("the word is inside the region");
            assert_eq!(done.words(before), [old], "compare-and-swap {expected} to {new}");
            assert_eq!(read(&lane, addr).await, after);
        }
    });
}

fn fetch_and_add_wraps_and_returns_the_old_word(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let addr = word(MEMORY[0], 9);
        for (addend, old) in [(5, 0), (u64::MAX, 5), (u64::MAX - 3, 4), (0, 0)] {
            let mut batch = lane.batch();
            let before = batch.fetch_and_add(addr, addend);
            let done = batch.post().await.expect("the word is inside the region");
            assert_eq!(done.words(before), [old], "fetch-and-add of {addend}");
        }
    });
}

fn a_masked_compare_and_swap_compares_some_bits_and_replaces_others(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        if !lane.capabilities().masked_atomics {
            return;
        }
        let addr = word(MEMORY[0], 9);
        write(&lane, addr, 0x1111_2222_3333_4444).await;
        // Compared bits and their mask, new bits and their mask, and the word after the swap.
        let cases = [
            (0x4444, 0xFFFF, 0xABCD << 48, 0xFFFF << 48, 0xABCD_2222_3333_4444),
            (0x4445, 0xFFFF, 0, !0, 0xABCD_2222_3333_4444),
            (!0, 0, !0, 0xFFFF << 16, 0xABCD_2222_FFFF_4444),
            (0, 0, !0, 0, 0xABCD_2222_FFFF_4444),
            (0xABCD_2222_FFFF_4444, !0, 7, !0, 7),
        ];
        let mut old = 0x1111_2222_3333_4444;
        for (compare, compare_mask, swap, swap_mask, after) in cases {
            let swap = MaskedSwap { compare, compare_mask, swap, swap_mask };
            let mut batch = lane.batch();
            let before = batch.masked_compare_and_swap(addr, swap);
            let again = batch.read(addr, WORD_BYTES);
            let done = batch.post().await.expect("the word is inside the region");
            assert_eq!([done.words(before), done.words(again)], [[old], [after]], "{swap:x?}");
            old = after;
        }
    });
}

fn a_masked_fetch_and_add_carries_nothing_into_the_next_field(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        if !lane.capabilities().masked_atomics {
            return;
        }
        let addr = word(MEMORY[0], 9);
        // Fields of 16, 16 and 32 bits.
        let boundary = 1 << 15 | 1 << 31;
        let mut old = 0;
        for (addend, after) in [
            (0x0000_0001_0001_FFFF, 0x0000_0001_0001_FFFF),
            (0x0000_0000_FFFF_0001, 0x0000_0001_0000_0000),
            (0xFFFF_FFFF_8000_8000, 0x0000_0000_8000_8000),
            (0x0000_0000_8000_8000, 0),
        ] {
            let mut batch = lane.batch();
            let before = batch.masked_fetch_and_add(addr, addend, boundary);
            let again = batch.read(addr, WORD_BYTES);
            let done = batch.post().await.expect("the word is inside the region");
            assert_eq!([done.words(before), done.words(again)], [[old], [after]], "{addend:x}");
            old = after;
        }
    });
}

fn masked_atomics_are_refused_where_they_are_missing(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        if lane.capabilities().masked_atomics {
            return;
        }
        let adding =
            AssertUnwindSafe(|| lane.batch().masked_fetch_and_add(word(MEMORY[0], 0), 1, 0));
        assert!(catch_unwind(adding).is_err(), "such a verb has no meaning here");
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, 0, "the lane goes on");
    });
}

fn wide_atomics_are_refused_where_they_are_missing(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        if lane.capabilities().wide_atomics {
            return;
        }
        let addr = word(MEMORY[0], 0);
        let swap = WideSwap { compare: 0, compare_mask: 0, swap: !0, swap_mask: !0 };
        let swapping = || lane.batch().wide_compare_and_swap(addr, swap);
        let adding = || lane.batch().wide_fetch_and_add(addr, 1, 0);
        for refused in
            [catch_unwind(AssertUnwindSafe(swapping)), catch_unwind(AssertUnwindSafe(adding))]
        {
            assert!(refused.is_err(), "such a verb has no meaning here");
        }
        assert_eq!(read_words(&lane, addr, 2).await, [0, 0], "the lane goes on");
    });
}

fn one_batch_serves_several_nodes(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        write(&lane, word(MEMORY[1], 0), 11).await;
        let mut batch = lane.batch();
        batch.write_word(word(MEMORY[0], 0), 10);
        let second = batch.read(word(MEMORY[1], 0), WORD_BYTES);
        let first = batch.fetch_and_add(word(MEMORY[0], 0), 1);
        let swapped = batch.compare_and_swap(word(MEMORY[1], 0), 11, 12);
        let done = batch.post().await.expect("nothing fails");
        assert_eq!([first, second, swapped].map(|buffer| done.words(buffer)[0]), [10, 11, 11]);
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, 11);
        assert_eq!(read(&lane, word(MEMORY[1], 0)).await, 12);
    });
}

fn one_buffer_is_written_to_several_nodes(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let mut batch = lane.batch();
        let staged = batch.stage(64);
        batch.words_mut(staged).copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        for node in MEMORY {
            batch.write(word(node, 8), staged);
        }
        batch.post().await.expect("nothing fails");
        for node in MEMORY {
            assert_eq!(read_words(&lane, word(node, 8), 8).await, [1, 2, 3, 4, 5, 6, 7, 8]);
        }
    });
}

/// Every copy takes effect in posting order on its connection, and counts as a verb.
fn one_request_is_a_verb_on_each_of_its_nodes(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let nodes: NodeSet = MEMORY.into_iter().collect();
        let at = |index: u64| index * WORD_BYTES as u64;
        let before = lane.counters();
        let mut batch = lane.batch();
        let staged = batch.stage(2 * WORD_BYTES);
        batch.words_mut(staged).copy_from_slice(&[5, 6]);
        batch.write_word(word(MEMORY[0], 0), 1);
        batch.write_all(nodes, REGION, at(0), staged);
        batch.write_word(word(MEMORY[1], 1), 2);
        batch.write_word_all(nodes, REGION, at(2), 7);
        batch.write_word_all(NodeSet::from(MEMORY[1]), REGION, at(3), 8);
        batch.write_all(NodeSet::EMPTY, REGION, at(0), staged.prefix(WORD_BYTES));
        assert_eq!(batch.verb_count(), 7);
        batch.post().await.expect("the ranges are inside the regions");
        let posted = lane.counters() - &before;
        assert_eq!((posted.writes, posted.verb_bytes, posted.doorbells), (7, 72, 2));
        assert_eq!(read_words(&lane, word(MEMORY[0], 0), 4).await, [5, 6, 7, 0]);
        assert_eq!(read_words(&lane, word(MEMORY[1], 0), 4).await, [5, 2, 7, 8]);
    });
}

fn a_batch_may_hold_more_than_one_chunk(cluster: &Cluster) {
    const BYTES: usize = 4096;
    cluster.with_regions().solo(async |lane| {
        let page = |index: usize| RemoteAddr::new(MEMORY[0], REGION, (index * BYTES) as u64);
        let mut batch = lane.batch();
        for index in 0..10 {
            let staged = batch.stage(BYTES);
            batch.words_mut(staged).fill(index as u64);
            batch.write(page(index), staged);
        }
        let buffers: Vec<_> = (0..10).map(|index| batch.read(page(index), BYTES)).collect();
        let done = batch.post().await.expect("nothing fails");
        for (index, buffer) in (0_u64..).zip(buffers) {
            assert!(done.words(buffer).iter().all(|word| *word == index), "page {index}");
        }
    });
}

fn an_empty_batch_completes(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        lane.batch().post().await.expect("there is nothing to fail");
    });
}
