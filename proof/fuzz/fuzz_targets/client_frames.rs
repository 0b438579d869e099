//! Messages between applications and compute nodes, from an untrusted sender: frames, cut anywhere,
//! each taken as every kind of message, and as a step of the handshake of either side.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lotus_protocol::frame::{self, Incoming};
use lotus_protocol::handshake::{ServerHandshake, ClientHandshake};
use lotus_protocol::messages::{Answer, Op, REQUEST_BYTES, decode, split};
use lotus_security::Key;

fuzz_target!(|bytes: &[u8]| {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    let key = Key::new(&[7; 16]).expect("long enough");
    let (mut open, mut guarded) = (ServerHandshake::default(), ServerHandshake::default());
    let mut sent = Vec::new();
    let mut guest = ClientHandshake::start(Some(&key), &mut sent).expect("randomness");

    let mut incoming = Incoming::new(REQUEST_BYTES);
    for chunk in bytes.chunks(usize::from(*cut) + 1) {
        incoming.space(chunk.len()).extend_from_slice(chunk);
        while let Ok(Some(frame)) = incoming.take_frame() {
            let _ = open.step(frame, None, &mut sent);
            let admitted = guarded.step(frame, Some(&key), &mut sent);
            assert_ne!(admitted, Ok(true), "admitted without the key");
            let welcomed = guest.step(frame, &mut sent);
            assert!(!matches!(welcomed, Ok(Some(_))), "a server without the key was believed");
            let Ok((_, message)) = split(frame) else { continue };
            // A decoded message is the same after encoding and decoding again.
            let mut again = Vec::new();
            if let Ok(op) = decode::<Op<'_>>(message) {
                frame::write(&mut again, &op);
                assert_eq!(decode::<Op<'_>>(&again), Ok(op));
            }
            again.clear();
            if let Ok(answer) = decode::<Answer<'_>>(message) {
                frame::write(&mut again, &answer);
                assert_eq!(decode::<Answer<'_>>(&again), Ok(answer));
            }
        }
    }
});
