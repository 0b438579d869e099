//! Messages about resets.

use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};

/// Bytes of a message.
const BYTES: usize = 16;

/// Message about a lock that is reset, or is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// Request to be done with the lock, because it is being reset.
    Finish,
    /// Notice that somebody waits for the lock who may wait for a node that was lost.
    Stalled,
    /// Notice that an atomic on the lock had no answer.
    Doubted,
}

/// A message about `at` to a node in the life with this incarnation. A later life of the node does
/// not answer for it: verbs of the earlier one may be under way.
pub(super) fn encode(message: Message, at: RemoteAddr, incarnation: u32) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[BYTES - 1] = message as u8;
    bytes[..2].copy_from_slice(&at.node().0.to_le_bytes());
    bytes[2] = at.region().0;
    bytes[11..15].copy_from_slice(&incarnation.to_le_bytes());
    bytes[3..11].copy_from_slice(&at.offset().to_le_bytes());
    bytes
}

/// The message; `None` for other bytes.
pub(super) fn decode(bytes: &[u8]) -> Option<(Message, RemoteAddr, u32)> {
    let [n0, n1, region, offset @ .., i0, i1, i2, i3, message] = bytes else { return None };
    let incarnation = u32::from_le_bytes([*i0, *i1, *i2, *i3]);
    let message = match message {
        0 => Message::Finish,
        1 => Message::Stalled,
        2 => Message::Doubted,
        _ => return None,
    };
    let offset = u64::from_le_bytes(offset.try_into().ok()?);
    let fits = offset <= RemoteAddr::MAX_OFFSET && offset.is_multiple_of(8);
    let node = NodeId(u16::from_le_bytes([*n0, *n1]));
    fits.then(|| (message, RemoteAddr::new(node, RegionId(*region), offset), incarnation))
}

/// Answer: the generation whose reset may go on.
pub(super) fn encode_answer(generation: u64) -> [u8; 8] {
    generation.to_le_bytes()
}

/// The generation of an answer; `None` for other bytes.
pub(super) fn decode_answer(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_garbage_is_refused() {
        let at = RemoteAddr::new(NodeId(0x1234), RegionId(7), 0x12_3456_7890);
        for message in [Message::Finish, Message::Stalled, Message::Doubted] {
            assert_eq!(decode(&encode(message, at, 0x1234_5678)), Some((message, at, 0x1234_5678)));
        }
        assert_eq!(decode_answer(&encode_answer(3)), Some(3));
        assert_eq!(decode(&[]), None);
        let mut bytes = encode(Message::Finish, at, 7);
        bytes[3..11].fill(0xFF);
        assert_eq!(decode(&bytes), None, "beyond a region");
        assert_eq!(decode(&bytes[..BYTES - 1]), None);
        bytes = encode(Message::Finish, at, 7);
        bytes[BYTES - 1] = 3;
        assert_eq!(decode(&bytes), None, "no such message");
        assert_eq!(decode_answer(&[1; 7]), None);
    }
}
