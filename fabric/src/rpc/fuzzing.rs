//! Fuzz target of RPC datagrams. See [`crate::fuzzing`].

use super::wire::{Header, MAX_PAYLOAD_BYTES, Reassembly};
use crate::contract::ids::{Endpoint, LaneId, NodeId};

/// Decodes datagrams prefixed with their length in two bytes, and checks that no reassembled
/// payload is longer than allowed.
pub fn datagrams(mut bytes: &[u8]) {
    let mut partial = Reassembly::default();
    let from = Endpoint { node: NodeId(1), lane: LaneId(0) };
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (datagram, rest) = rest.split_at(length);
        bytes = rest;
        let Some((header, part)) = Header::decode(datagram) else { continue };
        if let Some(payload) = partial.add(from, header, part) {
            assert!(payload.len() <= MAX_PAYLOAD_BYTES);
            partial.recycle(payload);
        }
    }
}
