//! Refusals by the fabric, and the state of the connection and of later verbs afterwards.

use super::{
    CLIENT, Cluster, Coordinator, MEMORY, PEER, REGION, REGION_BYTES, error_of, properties, read,
    read_words, word, write,
};
use crate::contract::ids::{NodeId, NodeSet, RegionId, RemoteAddr};
use crate::contract::masked::MaskedSwap;
use crate::contract::region::{Rights, WORD_BYTES};
use crate::contract::verbs::VerbError;
use crate::contract::wide::{WIDE_BYTES, WideSwap};
use crate::lane::{Batch, Lane};

properties! {
    misaligned_verbs_are_not_applied,
    verbs_out_of_bounds_are_not_applied,
    verbs_without_the_right_are_not_applied,
    a_failed_copy_leaves_the_others,
    verbs_behind_a_failed_one_do_not_take_effect,
    a_connection_stays_broken_until_it_is_re_made,
    broken_connections_are_one_lane_s_own,
    an_unreachable_node_is_reported,
    an_unknown_node_is_reported,
}

/// Verbs that write at least the word at `addr`, and verbs that read the word.
const WRITERS: [fn(&mut Batch, RemoteAddr); 2] = [
    |batch, addr| batch.write_word(addr, !0),
    |batch, addr| {
        let staged = batch.stage(2 * WORD_BYTES);
        batch.words_mut(staged).fill(!0);
        batch.write(addr, staged);
    },
];
const READERS: [fn(&mut Batch, RemoteAddr); 2] = [
    |batch, addr| _ = batch.read(addr, 2 * WORD_BYTES),
    |batch, addr| _ = batch.read_stable(addr, WORD_BYTES),
];
const ATOMICS: [fn(&mut Batch, RemoteAddr); 2] = [
    |batch, addr| _ = batch.compare_and_swap(addr, 0, !0),
    |batch, addr| _ = batch.fetch_and_add(addr, !0),
];

/// Masked atomics, for back ends that have the capability.
const MASKED: [fn(&mut Batch, RemoteAddr); 2] = [
    |batch, addr| {
        let swap = MaskedSwap { compare: 0, compare_mask: 0, swap: !0, swap_mask: !0 };
        _ = batch.masked_compare_and_swap(addr, swap);
    },
    |batch, addr| _ = batch.masked_fetch_and_add(addr, !0, 1 << 31),
];

const WIDE: [fn(&mut Batch, RemoteAddr); 2] = [
    |batch, addr| {
        let swap = WideSwap { compare: 0, compare_mask: 0, swap: !0, swap_mask: !0 };
        _ = batch.wide_compare_and_swap(addr, swap);
    },
    |batch, addr| _ = batch.wide_fetch_and_add(addr, !0, 1 << 63),
];

fn masked_verbs(lane: &Lane) -> impl Iterator<Item = fn(&mut Batch, RemoteAddr)> + use<> {
    let are_there = lane.capabilities().masked_atomics;
    MASKED.into_iter().filter(move |_| are_there)
}

fn wide_verbs(lane: &Lane) -> impl Iterator<Item = fn(&mut Batch, RemoteAddr)> + use<> {
    let are_there = lane.capabilities().wide_atomics;
    WIDE.into_iter().filter(move |_| are_there)
}

/// Every kind of verb with an address that is a multiple of eight.
fn word_verbs(lane: &Lane) -> impl Iterator<Item = fn(&mut Batch, RemoteAddr)> + use<> {
    [WRITERS, READERS, ATOMICS].into_iter().flatten().chain(masked_verbs(lane))
}

fn all_verbs(lane: &Lane) -> impl Iterator<Item = fn(&mut Batch, RemoteAddr)> + use<> {
    word_verbs(lane).chain(wide_verbs(lane))
}

/// Expects `error` from `verb` at `addr`, then reconnects.
async fn expect_refusal(
    lane: &Lane,
    verb: fn(&mut Batch, RemoteAddr),
    addr: RemoteAddr,
    error: VerbError,
) {
    assert_eq!(error_of(lane, |batch| verb(batch, addr)).await, error, "at {addr:?}");
    lane.reconnect(addr.node()).await.expect("the node is reachable");
}

fn misaligned_verbs_are_not_applied(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        for verb in all_verbs(&lane) {
            for offset in [4, 1, 63] {
                let addr = RemoteAddr::new(MEMORY[0], REGION, offset);
                expect_refusal(&lane, verb, addr, VerbError::Misaligned).await;
            }
        }
        for verb in wide_verbs(&lane) {
            for offset in [8, 24, REGION_BYTES - 8, REGION_BYTES + 8] {
                let addr = RemoteAddr::new(MEMORY[0], REGION, offset);
                expect_refusal(&lane, verb, addr, VerbError::Misaligned).await;
            }
        }
        assert_eq!(read_words(&lane, word(MEMORY[0], 0), 32).await, [0; 32]);
    });
}

fn verbs_out_of_bounds_are_not_applied(cluster: &Cluster) {
    let wide = |verb: usize| [WRITERS[1], READERS[0]][verb];
    cluster.with_regions().solo(async move |lane| {
        let end = RemoteAddr::new(MEMORY[0], REGION, REGION_BYTES);
        let last = RemoteAddr::new(MEMORY[0], REGION, REGION_BYTES - 8);
        let farthest = RemoteAddr::new(MEMORY[0], REGION, RemoteAddr::MAX_OFFSET - 7);
        let no_region = RemoteAddr::new(MEMORY[0], RegionId(77), 0);
        for verb in word_verbs(&lane) {
            for addr in [end, farthest, no_region] {
                expect_refusal(&lane, verb, addr, VerbError::OutOfBounds).await;
            }
        }
        let farthest = RemoteAddr::new(MEMORY[0], REGION, RemoteAddr::MAX_OFFSET - 15);
        for verb in wide_verbs(&lane) {
            for addr in [end, farthest, no_region] {
                expect_refusal(&lane, verb, addr, VerbError::OutOfBounds).await;
            }
            let mut batch = lane.batch();
            verb(&mut batch, RemoteAddr::new(MEMORY[0], REGION, REGION_BYTES - WIDE_BYTES as u64));
            batch.post().await.expect("the last 16 bytes belong to the region");
        }
        write(&lane, last, 0).await;
        // Two words, only the first inside the region; no part may be applied.
        for verb in 0..2 {
            expect_refusal(&lane, wide(verb), last, VerbError::OutOfBounds).await;
        }
        assert_eq!(read(&lane, last).await, 0, "the last word was touched");
        write(&lane, last, 5).await;
        assert_eq!(read(&lane, last).await, 5, "the last word belongs to the region");
    });
}

fn verbs_without_the_right_are_not_applied(cluster: &Cluster) {
    let none = Rights { read: false, write: false, atomic: false };
    let regions = [
        (RegionId(1), Rights::READ_ONLY),
        (RegionId(2), Rights { write: true, ..none }),
        (RegionId(3), Rights { atomic: true, ..none }),
    ];
    regions.into_iter().for_each(|(region, rights)| cluster.register(MEMORY[0], region, rights));
    cluster.solo(async move |lane| {
        for (region, rights) in regions {
            let addr = RemoteAddr::new(MEMORY[0], region, 64);
            let atomics = ATOMICS.into_iter().chain(masked_verbs(&lane)).chain(wide_verbs(&lane));
            let atomics = atomics.collect();
            let kinds: [(bool, Vec<_>); 3] = [
                (rights.read, READERS.to_vec()),
                (rights.write, WRITERS.to_vec()),
                (rights.atomic, atomics),
            ];
            for (allowed, verbs) in kinds {
                for verb in verbs {
                    if allowed {
                        let mut batch = lane.batch();
                        verb(&mut batch, addr);
                        batch.post().await.expect("the right was granted");
                    } else {
                        expect_refusal(&lane, verb, addr, VerbError::AccessDenied).await;
                    }
                }
            }
        }
        let untouched = RemoteAddr::new(MEMORY[0], RegionId(1), 0);
        assert_eq!(read_words(&lane, untouched, 32).await, [0; 32]);
    });
}

/// A failed copy breaks only its own connection.
fn a_failed_copy_leaves_the_others(cluster: &Cluster) {
    let one_node_only = RegionId(1);
    cluster.register(MEMORY[1], one_node_only, Rights::ALL);
    cluster.with_regions().solo(async move |lane| {
        let nodes: NodeSet = MEMORY.into_iter().collect();
        let mut batch = lane.batch();
        batch.write_word_all(nodes, REGION, 0, 1);
        batch.write_word_all(nodes, one_node_only, 0, 2);
        batch.write_word_all(nodes, REGION, 0, 3);
        let error = batch.post().await.expect_err("a node has no such region");
        let [failure] = error.failures() else { panic!("one failure, not {error:?}") };
        assert_eq!((failure.node, failure.error), (MEMORY[0], VerbError::OutOfBounds));
        assert_eq!(read(&lane, word(MEMORY[1], 0)).await, 3);
        assert_eq!(read(&lane, RemoteAddr::new(MEMORY[1], one_node_only, 0)).await, 2);
        lane.reconnect(MEMORY[0]).await.expect("the node is reachable");
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, 1, "the verbs before it");
    });
}

fn verbs_behind_a_failed_one_do_not_take_effect(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let mut batch = lane.batch();
        batch.write_word(word(MEMORY[0], 0), 1);
        batch.write_word(word(MEMORY[1], 0), 1);
        batch.write_word(RemoteAddr::new(MEMORY[0], REGION, REGION_BYTES), 2);
        batch.write_word(word(MEMORY[0], 0), 3);
        batch.write_word(word(MEMORY[1], 1), 3);
        let failing = batch.post();
        // Posted before the failure is known: flushed or refused, but never applied.
        let mut batch = lane.batch();
        batch.write_word(word(MEMORY[0], 0), 4);
        batch.write_word(word(MEMORY[1], 2), 4);
        let behind = batch.post();
        let error = failing.await.expect_err("one verb is out of bounds");
        let [failure] = error.failures() else { panic!("one failure, not {error:?}") };
        assert_eq!(
            (failure.node, failure.verb, failure.error),
            (MEMORY[0], 2, VerbError::OutOfBounds)
        );
        let error = behind.await.expect_err("the connection is broken").first();
        assert_eq!((error.node, error.verb), (MEMORY[0], 0));
        assert!(matches!(error.error, VerbError::Broken | VerbError::Flushed), "{error:?}");
        lane.reconnect(MEMORY[0]).await.expect("the node is reachable");
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, 1, "only the verb before counts");
        assert_eq!(read_words(&lane, word(MEMORY[1], 0), 3).await, [1, 3, 4], "the other node");
    });
}

fn a_connection_stays_broken_until_it_is_re_made(cluster: &Cluster) {
    cluster.with_regions().solo(async |lane| {
        let outside = RemoteAddr::new(MEMORY[0], REGION, REGION_BYTES);
        error_of(&lane, |batch| batch.write_word(outside, 1)).await;
        for _ in 0..3 {
            for verb in all_verbs(&lane) {
                let error = error_of(&lane, |batch| verb(batch, word(MEMORY[0], 0))).await;
                assert_eq!(error, VerbError::Broken);
            }
        }
        lane.reconnect(MEMORY[0]).await.expect("the node is reachable");
        assert_eq!(read_words(&lane, word(MEMORY[0], 0), 2).await, [0, 0]);
        lane.reconnect(MEMORY[0]).await.expect("a connection in order may be re-made, too");
        write(&lane, word(MEMORY[0], 0), 1).await;
    });
}

fn broken_connections_are_one_lane_s_own(cluster: &Cluster) {
    cluster.with_regions().run([CLIENT, PEER].map(|at| {
        Coordinator::new(at, move |lane| async move {
            for round in 0..100 {
                if at == CLIENT {
                    let outside = RemoteAddr::new(MEMORY[0], REGION, REGION_BYTES);
                    error_of(&lane, |batch| batch.write_word(outside, 1)).await;
                } else {
                    write(&lane, word(MEMORY[0], 0), round).await;
                }
            }
        })
    }));
}

fn an_unreachable_node_is_reported(cluster: &Cluster) {
    let harness = cluster.harness.clone();
    cluster.with_regions().solo(async move |lane| {
        write(&lane, word(MEMORY[0], 0), 1).await;
        harness.set_reachable(MEMORY[0], false);
        let mut batch = lane.batch();
        batch.write_word(word(MEMORY[0], 0), 2);
        batch.write_word(word(MEMORY[1], 0), 2);
        let error = batch.post().await.expect_err("one node does not answer");
        let [failure] = error.failures() else { panic!("one failure, not {error:?}") };
        assert_eq!((failure.node, failure.verb), (MEMORY[0], 0));
        assert!(failure.error.outcome_unknown(), "{failure:?} claims to know");
        assert_eq!(read(&lane, word(MEMORY[1], 0)).await, 2, "the other node");
        let error = lane.reconnect(MEMORY[0]).await.expect_err("the node does not answer");
        assert!(error.outcome_unknown(), "{error:?} claims to know");
        error_of(&lane, |batch| batch.write_word(word(MEMORY[0], 0), 3)).await;
        harness.set_reachable(MEMORY[0], true);
        lane.reconnect(MEMORY[0]).await.expect("the node answers again");
        let found = read(&lane, word(MEMORY[0], 0)).await;
        assert!(found <= 2, "a verb on a broken connection took effect");
        write(&lane, word(MEMORY[0], 0), 4).await;
    });
}

fn an_unknown_node_is_reported(cluster: &Cluster) {
    let beyond = NodeId(cluster.harness.node_count());
    cluster.with_regions().solo(async move |lane| {
        let mut batch = lane.batch();
        batch.write_word(word(beyond, 0), 1);
        batch.write_word(word(MEMORY[0], 0), 1);
        let error = batch.post().await.expect_err("there is no such node");
        assert_eq!(error.failures().len(), 1);
        assert_eq!((error.first().node, error.first().verb), (beyond, 0));
        lane.reconnect(beyond).await.expect_err("there is no such node");
        assert_eq!(read(&lane, word(MEMORY[0], 0)).await, 1);
    });
}
