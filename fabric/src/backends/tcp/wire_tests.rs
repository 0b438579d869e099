//! Received bytes do no harm, and encoding and decoding are inverse.

use std::io::Read;

use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::socket::{Fill, Input};
use super::wire::*;
use crate::backends::tcp::server::serve::Regions;
use crate::contract::ids::{NodeId, RegionId, RemoteAddr};
use crate::contract::masked::MaskedSwap;
use crate::contract::region::Rights;
use crate::contract::verbs::Op;

const REGION: RegionId = RegionId(3);
const REGION_WORDS: u64 = 64;

/// A request and the data that a WRITE carries.
type Posted = (RemoteAddr, Op, usize, Vec<u64>);

fn posted() -> impl Strategy<Value = Posted> {
    let data = vec(any::<u64>(), 4..20);
    (0..8_u8, 0..=RemoteAddr::MAX_OFFSET, any::<u8>(), data).prop_map(
        |(op, offset, region, data)| {
            let addr = RemoteAddr::new(NodeId(1), RegionId(region), offset);
            let (op, words) = match op {
                0 => (Op::Read, data.len()),
                1 => (Op::ReadStable, data.len()),
                2 => (Op::Write, data.len()),
                3 => (Op::WriteWord { value: data[0] }, 1),
                4 => (Op::CompareAndSwap { expected: data[0], new: !data[0] }, 1),
                5 => (Op::FetchAndAdd { addend: data[0] }, 1),
                6 => (Op::MaskedCompareAndSwap, 1),
                _ => (Op::MaskedFetchAndAdd { addend: data[0], boundary: data[1] }, 1),
            };
            let data = match op {
                Op::MaskedCompareAndSwap => data[..MaskedSwap::WORDS].to_vec(),
                _ => data,
            };
            (addr, op, words * 8, data)
        },
    )
}

fn encode(posted: &[Posted]) -> Vec<u64> {
    let mut out = vec![0];
    for (addr, op, bytes, data) in posted {
        encode_verb(&mut out, *addr, *op, *bytes, data);
    }
    out[0] = Header::new(FrameKind::Verbs, posted.len(), out.len() - 1).pack();
    out
}

/// Words that are likely to pass the first checks.
fn plausible() -> impl Strategy<Value = Vec<u64>> {
    let word = prop_oneof![
        any::<u64>(),
        // A header of a short frame.
        (0..13_u64, any::<u8>(), 0..9_u64, 0..9_u64).prop_map(|(kind, status, count, words)| {
            kind << 56 | u64::from(status) << 48 | count << 32 | words
        }),
        // A verb in or near the region.
        (0..9_u64, 0..5_u64, 0..600_u64)
            .prop_map(|(op, words, offset)| op << 60 | words << 48 | 3 << 40 | offset),
    ];
    vec(word, 0..40)
}

/// A reader that returns a few bytes at a time.
struct Dribble<'a> {
    bytes: &'a [u8],
    pieces: std::slice::Iter<'a, usize>,
}

impl Read for Dribble<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let piece = self.pieces.next().map_or(usize::MAX, |piece| piece + 1);
        let count = piece.min(into.len()).min(self.bytes.len());
        let (now, later) = self.bytes.split_at(count);
        into[..count].copy_from_slice(now);
        self.bytes = later;
        Ok(count)
    }
}

proptest! {
    #[test]
    fn decoding_never_reads_past_what_has_come(words in plausible()) {
        let mut rest = &words[..];
        while let Ok(Some(frame)) = decode(rest) {
            prop_assert!(frame.words() <= MAX_FRAME_WORDS);
            rest = &rest[frame.words()..];
            let mut body = frame.body;
            while let Ok((verb, behind)) = decode_verb(body) {
                prop_assert!(behind.len() < body.len());
                prop_assert!(verb.words <= crate::contract::verbs::MAX_VERB_BYTES / 8);
                body = behind;
            }
            let _either = message(&frame);
        }
    }

    #[test]
    fn a_frame_is_whole_or_awaited_wherever_it_is_cut(posts in vec(posted(), 1..20)) {
        let words = encode(&posts);
        for end in 0..words.len() {
            prop_assert_eq!(decode(&words[..end]), Ok(None));
        }
        let frame = decode(&words).expect("well-formed").expect("whole");
        prop_assert_eq!(frame.words(), words.len());
        let mut body = frame.body;
        for (addr, op, bytes, data) in &posts {
            let (verb, rest) = decode_verb(body).expect("well-formed");
            body = rest;
            prop_assert_eq!((verb.region, verb.offset), (addr.region(), addr.offset()));
            prop_assert_eq!(verb.words * 8, *bytes);
            let expected = match *op {
                Op::Read => Act::Read,
                Op::ReadStable => Act::ReadStable,
                Op::Write => Act::Write(data),
                Op::WriteWord { .. } => Act::Write(&data[..1]),
                Op::CompareAndSwap { expected, new } => Act::CompareAndSwap { expected, new },
                Op::FetchAndAdd { addend } => Act::FetchAndAdd { addend },
                Op::MaskedCompareAndSwap => {
                    let words = data[..].try_into().expect("four operands");
                    Act::MaskedCompareAndSwap(MaskedSwap::of_words(words))
                }
                Op::MaskedFetchAndAdd { addend, boundary } => {
                    Act::MaskedFetchAndAdd { addend, boundary }
                }
                Op::WideCompareAndSwap | Op::WideFetchAndAdd => unreachable!("none was posted"),
            };
            prop_assert_eq!(verb.act, expected);
            prop_assert_eq!(sizes(*op, *bytes).1, verb.result_words());
        }
        prop_assert!(body.is_empty());
    }

    #[test]
    fn frames_arrive_whole_in_whatever_pieces(
        messages in vec(vec(any::<u8>(), 0..300), 1..20),
        pieces in vec(0..40_usize, 0..400),
    ) {
        let mut words = Vec::new();
        messages.iter().for_each(|bytes| encode_message(&mut words, bytes));
        let mut socket = Dribble { bytes: words.as_bytes(), pieces: pieces.iter() };
        let (mut input, mut arrived) = (Input::new(100), Vec::new());
        while input.fill(&mut socket).expect("it cannot fail") != Fill::Closed {
            while let Some(frame) = decode(input.words()).expect("well-formed") {
                arrived.push(message(&frame).expect("a message").to_vec());
                let taken = frame.words();
                input.take(taken);
            }
        }
        prop_assert_eq!(arrived, messages);
        prop_assert!(input.is_empty());
    }

    #[test]
    fn whatever_comes_is_answered_within_bounds_or_refused(words in plausible()) {
        let regions = Regions::new(u64::MAX);
        prop_assert!(regions.register(REGION, REGION_WORDS * 8, Rights::ALL).is_ok());
        regions.prefetch(&words);
        if let Ok(Some(frame)) = decode(&words) {
            let mut out = vec![7];
            if regions.execute(&frame, &mut out).is_ok() {
                let answer = decode(&out[1..]).expect("well-formed").expect("whole");
                prop_assert_eq!(answer.words() + 1, out.len());
                prop_assert_eq!(answer.header.kind, FrameKind::Results);
            }
        }
    }
}

/// Among them any that an initiator might invent for atomics on 16 bytes.
#[test]
fn numbers_of_no_verb_are_refused() {
    for (op, words) in (0..16_u8).flat_map(|op| (0..9_u64).map(move |words| (op, words))) {
        let body = [vec![u64::from(op) << 60 | words << 48], vec![0; 16]].concat();
        let known = (1..=7).contains(&op);
        match decode_verb(&body) {
            Err(WireError::Verb(number)) => assert!(number == op && !known),
            decoded => assert!(known, "{op} is decoded as {decoded:?}"),
        }
    }
}

#[test]
#[should_panic(expected = "does not declare")]
fn wide_atomics_cannot_be_sent() {
    let addr = RemoteAddr::new(NodeId(1), REGION, 0);
    encode_verb(&mut Vec::new(), addr, Op::WideFetchAndAdd, 16, &[0; 4]);
}

#[test]
fn the_errors_of_a_target_keep_their_status() {
    use crate::contract::verbs::VerbError::*;
    for error in [OutOfBounds, Misaligned, AccessDenied, Revoked] {
        assert_eq!(error_of(status_of(error)), Ok(error));
    }
    assert_eq!(error_of(0), Err(WireError::Body));
    assert_eq!(error_of(9), Err(WireError::Body));
}
