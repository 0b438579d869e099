//! Messages about resets, and notices between uses of locks.

use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};

use crate::contract::{NoticeKind, Peer, Waiter};

/// Bytes of a message.
const BYTES: usize = 16;
/// Bytes of a notice. The number differs from `BYTES`, which tells messages and notices apart.
const LETTER_BYTES: usize = ADDRESS_BYTES + 2 * PEER_BYTES + 8 + 4 + 1;
const ADDRESS_BYTES: usize = 11;
const PEER_BYTES: usize = 12;

/// Message about a lock that is being reset, or has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// Request to be done with the lock, because it is being reset.
    Finish,
    /// Notice that a waiter for the lock may wait for a lost node.
    Stalled,
    /// Notice that an atomic on the lock had no answer.
    Doubted,
    /// Request to free the lock, with an era instead of a life: nothing was released for long.
    Suspected,
    /// Notice that the lock has no room for what a use has added, in a generation.
    Full,
}

/// Encodes a message about `at` with a number. For `Finish`, the number is the incarnation of the
/// addressed node: a later life does not answer for an earlier one, because verbs of the earlier
/// life may be under way. For `Full`, the number is the low half of the generation.
pub(super) fn encode(message: Message, at: RemoteAddr, number: u32) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..ADDRESS_BYTES].copy_from_slice(&encode_address(at));
    bytes[ADDRESS_BYTES..BYTES - 1].copy_from_slice(&number.to_le_bytes());
    bytes[BYTES - 1] = message as u8;
    bytes
}

/// Decodes a message; `None` for other bytes.
pub(super) fn decode(bytes: &[u8]) -> Option<(Message, RemoteAddr, u32)> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let (address, rest) = bytes.split_first_chunk::<ADDRESS_BYTES>()?;
    let [number @ .., message] = rest else { return None };
    let number = u32::from_le_bytes(number.try_into().ok()?);
    let message = match message {
        0 => Message::Finish,
        1 => Message::Stalled,
        2 => Message::Doubted,
        3 => Message::Suspected,
        4 => Message::Full,
        _ => return None,
    };
    Some((message, decode_address(address)?, number))
}

/// Encodes an answer: the generation whose reset may go on.
pub(super) fn encode_answer(generation: u64) -> [u8; 8] {
    generation.to_le_bytes()
}

/// Decodes the generation of an answer; `None` for other bytes.
pub(super) fn decode_answer(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// A notice of one use of a lock to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Letter {
    pub(super) kind: NoticeKind,
    /// The lock.
    pub(super) at: RemoteAddr,
    pub(super) from: Peer,
    pub(super) to: Peer,
    /// See [`crate::LockSystem::says`].
    pub(super) says: u64,
    /// Life of the memory node ([`crate::Client::resume`]).
    pub(super) life: u32,
}

/// Bit of the last byte that turns a notice into its own acknowledgement.
const ANSWER: u8 = 0x80;

/// Encodes a notice.
pub(super) fn encode_letter(letter: &Letter) -> [u8; LETTER_BYTES] {
    let mut bytes = [0; LETTER_BYTES];
    bytes[..ADDRESS_BYTES].copy_from_slice(&encode_address(letter.at));
    let (peers, rest) = bytes[ADDRESS_BYTES..].split_at_mut(2 * PEER_BYTES);
    for (bytes, peer) in peers.chunks_mut(PEER_BYTES).zip([letter.from, letter.to]) {
        bytes[..4].copy_from_slice(&peer.who.raw().to_le_bytes());
        bytes[4..].copy_from_slice(&peer.number.to_le_bytes());
    }
    rest[..8].copy_from_slice(&letter.says.to_le_bytes());
    rest[8..12].copy_from_slice(&letter.life.to_le_bytes());
    rest[12] = letter.kind as u8;
    bytes
}

/// Encodes the acknowledgement of a notice.
pub(super) fn encode_answer_to(letter: &Letter) -> [u8; LETTER_BYTES] {
    let mut bytes = encode_letter(letter);
    bytes[LETTER_BYTES - 1] |= ANSWER;
    bytes
}

/// Decodes a notice, with a flag for its acknowledgement; `None` for other bytes.
pub(super) fn decode_letter(bytes: &[u8]) -> Option<(Letter, bool)> {
    let bytes: &[u8; LETTER_BYTES] = bytes.try_into().ok()?;
    let (address, rest) = bytes.split_first_chunk::<ADDRESS_BYTES>()?;
    let (from, rest) = rest.split_first_chunk::<PEER_BYTES>()?;
    let (to, rest) = rest.split_first_chunk::<PEER_BYTES>()?;
    let (says, rest) = rest.split_first_chunk::<8>()?;
    let (life, rest) = rest.split_first_chunk::<4>()?;
    let kind = match rest[0] & !ANSWER {
        0 => NoticeKind::Successor,
        1 => NoticeKind::Handover,
        2 => NoticeKind::ModeChanged,
        3 => NoticeKind::Joins,
        4 => NoticeKind::Awaits,
        5 => NoticeKind::Left,
        _ => return None,
    };
    let (from, to) = (decode_peer(from)?, decode_peer(to)?);
    let (says, life) = (u64::from_le_bytes(*says), u32::from_le_bytes(*life));
    let letter = Letter { kind, at: decode_address(address)?, from, to, says, life };
    Some((letter, rest[0] & ANSWER != 0))
}

fn decode_peer(bytes: &[u8; PEER_BYTES]) -> Option<Peer> {
    let (who, number) = bytes.split_first_chunk::<4>()?;
    let who = Waiter::of(u32::from_le_bytes(*who)).filter(|who| who.node() <= Waiter::MAX_NODE)?;
    Some(Peer { who, number: u64::from_le_bytes(number.try_into().ok()?) })
}

fn encode_address(at: RemoteAddr) -> [u8; ADDRESS_BYTES] {
    let mut bytes = [0; ADDRESS_BYTES];
    bytes[..2].copy_from_slice(&at.node().0.to_le_bytes());
    bytes[2] = at.region().0;
    bytes[3..].copy_from_slice(&at.offset().to_le_bytes());
    bytes
}

fn decode_address(bytes: &[u8; ADDRESS_BYTES]) -> Option<RemoteAddr> {
    let [n0, n1, region, offset @ ..] = bytes;
    let offset = u64::from_le_bytes(*offset);
    let fits = offset <= RemoteAddr::MAX_OFFSET && offset.is_multiple_of(8);
    let node = NodeId(u16::from_le_bytes([*n0, *n1]));
    fits.then(|| RemoteAddr::new(node, RegionId(*region), offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written_and_garbage_is_refused() {
        let at = RemoteAddr::new(NodeId(0x1234), RegionId(7), 0x12_3456_7890);
        let requests = [Message::Finish, Message::Suspected];
        let notices = [Message::Stalled, Message::Doubted, Message::Full];
        for message in requests.into_iter().chain(notices) {
            assert_eq!(decode(&encode(message, at, 0x1234_5678)), Some((message, at, 0x1234_5678)));
        }
        assert_eq!(decode_answer(&encode_answer(3)), Some(3));
        assert_eq!(decode(&[]), None);
        let mut bytes = encode(Message::Finish, at, 7);
        bytes[3..11].fill(0xFF);
        assert_eq!(decode(&bytes), None, "beyond a region");
        assert_eq!(decode(&bytes[..BYTES - 1]), None);
        bytes = encode(Message::Finish, at, 7);
        bytes[BYTES - 1] = 5;
        assert_eq!(decode(&bytes), None, "no such message");
        assert_eq!(decode_answer(&[1; 7]), None);
    }

    #[test]
    fn notices_are_read_as_they_were_written_and_garbage_is_refused() {
        let at = RemoteAddr::new(NodeId(0x1234), RegionId(7), 0x12_3456_7890);
        let from = Peer { who: Waiter::new(3, 2, 1), number: 0x1234_5678_9ABC_DEF0 };
        let to = Peer { who: Waiter::new(0, 0, 0), number: 7 };
        let to_uses = [
            NoticeKind::Successor,
            NoticeKind::Handover,
            NoticeKind::ModeChanged,
            NoticeKind::Joins,
        ];
        for kind in to_uses.into_iter().chain([NoticeKind::Awaits, NoticeKind::Left]) {
            let (says, life) = (0x1122_3344_5566_7788, 0x1234_5678);
            let letter = Letter { kind, at, from, to, says, life };
            assert_eq!(decode_letter(&encode_letter(&letter)), Some((letter, false)));
            assert_eq!(decode_letter(&encode_answer_to(&letter)), Some((letter, true)));
            assert_eq!(decode(&encode_letter(&letter)), None);
            let mut bytes = encode_letter(&letter);
            assert_eq!(decode_letter(&bytes[1..]), None);
            bytes[LETTER_BYTES - 1] = 6;
            assert_eq!(decode_letter(&bytes), None, "nothing is said so");
            bytes = encode_letter(&letter);
            bytes[ADDRESS_BYTES..ADDRESS_BYTES + 4].fill(0);
            assert_eq!(decode_letter(&bytes), None, "from nobody");
        }
        assert_eq!(decode_letter(&encode(Message::Finish, at, 7)), None);
    }
}
