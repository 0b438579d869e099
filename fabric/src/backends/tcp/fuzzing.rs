//! Fuzz targets of this back end. See [`crate::fuzzing`].

use std::sync::LazyLock;

use lotus_security::Key;

use super::handshake::TargetHandshake;
use super::limits::GUEST_WORDS;
use super::wire::{self, FrameKind, MAX_FRAME_WORDS};
use crate::backends::tcp::server::serve::{Regions, Served};
use crate::contract::ids::RegionId;
use crate::contract::region::Rights;

/// Returns the whole words of `bytes`.
fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, _rest) = bytes.as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Executes frames of verbs on a node with one small region: answers stay within the bound, and an
/// answer covers as many verbs as the frame.
pub fn tcp_verbs(bytes: &[u8]) {
    static REGIONS: LazyLock<Regions> = LazyLock::new(|| {
        let regions = Regions::new(u64::MAX);
        assert!(regions.register(RegionId(0), 512, Rights::ALL).is_ok());
        regions
    });
    let words = words(bytes);
    let mut input = &words[..];
    REGIONS.prefetch(input);
    let mut out = Vec::new();
    while let Ok(Some(frame)) = wire::decode(input) {
        input = &input[frame.words()..];
        if frame.header.kind != FrameKind::Verbs {
            continue;
        }
        out.clear();
        let Ok(served) = REGIONS.execute(&frame, &mut out) else { continue };
        assert!(out.len() <= MAX_FRAME_WORDS);
        let Ok(Some(answer)) = wire::decode(&out) else { panic!("the answer is a frame") };
        assert_eq!(answer.words(), out.len());
        let (asked, answered) = (frame.header.count, answer.header.count);
        match served {
            Served::All => assert_eq!(answered, asked),
            Served::UpTo => assert!(answered < asked),
        }
    }
}

/// Feeds a target's handshake: no initiator without the key is admitted.
pub fn tcp_handshake(bytes: &[u8]) {
    static KEY: LazyLock<Key> = LazyLock::new(|| Key::random().expect("there is randomness"));
    let words = words(bytes);
    for key in [None, Some(&*KEY)] {
        let (mut handshake, mut input, mut out) =
            (TargetHandshake::default(), &words[..], Vec::new());
        while let Ok(Some(frame)) = wire::decode(input) {
            input = &input[frame.words()..];
            match handshake.step(&frame, key, &mut out) {
                Ok(admitted) => assert!(admitted.is_none() || key.is_none(), "without the key"),
                Err(_refused) => break,
            }
        }
        assert!(out.len() <= GUEST_WORDS, "an answer fits in what a guest is given");
    }
}
