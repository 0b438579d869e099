//! Messages about resets.

use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};

/// Bytes of a message.
const BYTES: usize = 12;

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

pub(super) fn encode(message: Message, at: RemoteAddr) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[BYTES - 1] = message as u8;
    bytes[..2].copy_from_slice(&at.node().0.to_le_bytes());
    bytes[2] = at.region().0;
    bytes[3..BYTES - 1].copy_from_slice(&at.offset().to_le_bytes());
    bytes
}

/// The message; `None` for other bytes.
pub(super) fn decode(bytes: &[u8]) -> Option<(Message, RemoteAddr)> {
    let [n0, n1, region, offset @ .., message] = bytes else { return None };
    let message = match message {
        0 => Message::Finish,
        1 => Message::Stalled,
        2 => Message::Doubted,
        _ => return None,
    };
    let offset = u64::from_le_bytes(offset.try_into().ok()?);
    let fits = offset <= RemoteAddr::MAX_OFFSET && offset.is_multiple_of(8);
    let node = NodeId(u16::from_le_bytes([*n0, *n1]));
    fits.then(|| (message, RemoteAddr::new(node, RegionId(*region), offset)))
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
            assert_eq!(decode(&encode(message, at)), Some((message, at)));
        }
        assert_eq!(decode_answer(&encode_answer(3)), Some(3));
        assert_eq!(decode(&[]), None);
        let mut bytes = encode(Message::Finish, at);
        bytes[3..11].fill(0xFF);
        assert_eq!(decode(&bytes), None, "beyond a region");
        assert_eq!(decode(&bytes[..BYTES - 1]), None);
        bytes = encode(Message::Finish, at);
        bytes[BYTES - 1] = 3;
        assert_eq!(decode(&bytes), None, "no such message");
        assert_eq!(decode_answer(&[1; 7]), None);
    }
}
