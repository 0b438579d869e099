//! Admission: both sides of the handshake, without a socket.

use lotus_security::{Key, MIN_KEY_BYTES, WeakKey};

use super::handshake::*;
use super::wire::decode;
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId};

fn hello() -> Hello {
    let at = |node, lane| Endpoint { node: NodeId(node), lane: LaneId(lane) };
    Hello {
        purpose: Purpose::Verbs,
        from: at(7, 300),
        to: at(2, 0),
        epoch: Epoch(5),
        session: 77,
        number: 3,
    }
}

fn key(byte: u8) -> Key {
    Key::new(&[byte; MIN_KEY_BYTES]).expect("long enough")
}

/// Runs both sides until one has decided. Returns the hello that the target admits, if the
/// initiator accepts the welcome.
fn talk(initiator_key: Option<&Key>, target_key: Option<&Key>) -> Result<Hello, Refusal> {
    let (mut to_target, mut to_initiator) = (Vec::new(), Vec::new());
    let mut initiator =
        Initiator::start(hello(), initiator_key, &mut to_target).expect("there is randomness");
    let mut handshake = TargetHandshake::default();
    loop {
        let frame = decode(&to_target).expect("a frame").expect("whole");
        match handshake.step(&frame, target_key, &mut to_initiator) {
            Ok(Some(hello)) => {
                push_frame(&mut to_initiator, super::wire::FrameKind::Welcome, 0, &[]);
                let frame = decode(&to_initiator).expect("a frame").expect("whole");
                assert!(initiator.step(&frame, &mut to_target)?);
                return Ok(hello);
            }
            Ok(None) => {}
            Err(refusal) => push_refusal(&mut to_initiator, refusal),
        }
        to_target.clear();
        let frame = decode(&to_initiator).expect("a frame").expect("whole");
        assert!(!initiator.step(&frame, &mut to_target)?, "welcome without a word");
        to_initiator.clear();
    }
}

#[test]
fn only_equal_keys_open_a_connection() {
    let (one, other) = (key(1), key(2));
    let cases = [
        (None, None, Ok(hello())),
        (Some(&one), Some(&one), Ok(hello())),
        (Some(&one), Some(&other), Err(Refusal::Proof)),
        (Some(&one), None, Err(Refusal::Security)),
        (None, Some(&one), Err(Refusal::Security)),
    ];
    for (initiator, target, expected) in cases {
        assert_eq!(talk(initiator, target), expected, "{initiator:?} and {target:?}");
    }
}

#[test]
fn a_target_that_welcomes_without_a_proof_is_not_trusted() {
    let key = key(1);
    let mut out = Vec::new();
    let mut initiator = Initiator::start(hello(), Some(&key), &mut out).expect("randomness");
    let mut welcome = Vec::new();
    push_frame(&mut welcome, super::wire::FrameKind::Welcome, 0, &[]);
    let frame = decode(&welcome).expect("a frame").expect("whole");
    assert_eq!(initiator.step(&frame, &mut out), Err(Refusal::Security));
}

#[test]
fn a_proof_is_good_for_one_challenge_only() {
    let key = key(1);
    let (mut hello_frame, mut challenge, mut proof) = (Vec::new(), Vec::new(), Vec::new());
    let mut initiator =
        Initiator::start(hello(), Some(&key), &mut hello_frame).expect("randomness");
    let first = decode(&hello_frame).expect("a frame").expect("whole");
    assert_eq!(TargetHandshake::default().step(&first, Some(&key), &mut challenge), Ok(None));
    let asked = decode(&challenge).expect("a frame").expect("whole");
    assert_eq!(initiator.step(&asked, &mut proof), Ok(false));
    let proof = decode(&proof).expect("a frame").expect("whole");
    // An eavesdropper replays the recorded frames.
    let (mut again, mut out) = (TargetHandshake::default(), Vec::new());
    assert_eq!(again.step(&first, Some(&key), &mut out), Ok(None));
    assert_eq!(again.step(&proof, Some(&key), &mut out), Err(Refusal::Proof));
    // Or it reflects the target's own proof.
    let (mut reflected, mut out) = (TargetHandshake::default(), Vec::new());
    assert_eq!(reflected.step(&first, Some(&key), &mut out), Ok(None));
    let mut echo = Vec::new();
    push_frame(&mut echo, super::wire::FrameKind::Proof, 0, &out[5..9]);
    let echo = decode(&echo).expect("a frame").expect("whole");
    assert_eq!(reflected.step(&echo, Some(&key), &mut out), Err(Refusal::Proof));
}

#[test]
fn what_is_no_hello_is_refused() {
    let mut good = Vec::new();
    Initiator::start(hello(), None, &mut good).expect("randomness");
    let with = |word: usize, change: u64| {
        let mut frame = good.clone();
        frame[word] ^= change;
        let frame = decode(&frame).expect("a frame").expect("whole");
        TargetHandshake::default().step(&frame, None, &mut Vec::new())
    };
    assert_eq!(with(1, 0), Ok(Some(hello())));
    assert_eq!(with(1, 1), Err(Refusal::Garbage), "the magic");
    assert_eq!(with(2, 1 << 48), Err(Refusal::Version), "the version");
    assert_eq!(with(2, 8 << 32), Err(Refusal::Garbage), "the purpose");
    assert_eq!(with(0, 3 << 56), Err(Refusal::Garbage), "the kind of frame");
}

#[test]
fn short_keys_are_refused_and_keys_are_not_shown() {
    assert_eq!(Key::new(&[1; MIN_KEY_BYTES - 1]), Err(WeakKey(MIN_KEY_BYTES - 1)));
    assert_eq!(format!("{:?}", key(65)), "Key(..)");
}
