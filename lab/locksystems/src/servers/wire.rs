//! Messages between clients and servers: a code of 1 byte, then asker, number and lock of 8 bytes,
//! little-endian.

use lotus_locks::word::Mode;

use super::hot::{FromBuffer, FromSwitch};
use super::name::{Answer, Ask, Asker, RequestName};

/// Bytes of a message.
pub(super) const BYTES: usize = 25;

pub(super) type Bytes = [u8; BYTES];

const ASKS: [Ask; 7] = [
    Ask::Leave,
    acquire(Mode::Shared, false),
    acquire(Mode::Shared, true),
    acquire(Mode::Update, false),
    acquire(Mode::Update, true),
    acquire(Mode::Exclusive, false),
    acquire(Mode::Exclusive, true),
];
const ANSWERS: [Answer; 5] =
    [Answer::Granted, Answer::Queued, Answer::Refused, Answer::Left, Answer::Expelled];

const fn acquire(mode: Mode, waits: bool) -> Ask {
    Ask::Acquire { mode, waits }
}

pub(super) fn encode_ask(attempt: RequestName, ask: Ask) -> Bytes {
    encode(attempt, code(&ASKS, &ask))
}

pub(super) fn encode_answer(attempt: RequestName, answer: Answer) -> Bytes {
    encode(attempt, code(&ANSWERS, &answer))
}

/// Decodes a client's message; `None` for invalid bytes.
pub(super) fn decode_ask(bytes: &[u8]) -> Option<(RequestName, Ask)> {
    let (attempt, code) = decode(bytes)?;
    Some((attempt, *ASKS.get(usize::from(code))?))
}

/// Decodes a server's answer; `None` for invalid bytes.
pub(super) fn decode_answer(bytes: &[u8]) -> Option<(RequestName, Answer)> {
    let (attempt, code) = decode(bytes)?;
    Some((attempt, *ANSWERS.get(usize::from(code))?))
}

/// Encodes a switch's message to a server about a hot lock; `None` for messages to clients and for
/// forwarded requests.
pub(super) fn encode_from_switch(said: FromSwitch) -> Option<Vec<u8>> {
    match said {
        FromSwitch::Answer(..) | FromSwitch::Forward(..) => None,
        FromSwitch::Buffer(name, ask, room) => {
            Some([&encode_ask(name, ask)[..], &room.to_le_bytes()].concat())
        }
        FromSwitch::Room(lock, room) => {
            Some([&lock.to_le_bytes()[..], &room.to_le_bytes()].concat())
        }
    }
}

/// Decodes a switch's message about a hot lock; `None` for invalid bytes.
pub(super) fn decode_from_switch(bytes: &[u8]) -> Option<FromSwitch> {
    let (first, room) = bytes.split_last_chunk::<4>()?;
    let room = u32::from_le_bytes(*room);
    if let Ok(lock) = first.try_into() {
        return Some(FromSwitch::Room(u64::from_le_bytes(lock), room));
    }
    let (name, ask) = decode_ask(first)?;
    Some(FromSwitch::Buffer(name, ask, room))
}

/// Encodes a server's message to a switch.
pub(super) fn encode_from_buffer(said: FromBuffer) -> Vec<u8> {
    match said {
        FromBuffer::Push(name, ask) => encode_ask(name, ask).to_vec(),
        FromBuffer::End(lock, is_empty) => {
            [&lock.to_le_bytes()[..], &[u8::from(is_empty)]].concat()
        }
    }
}

/// Decodes a server's message to a switch; `None` for invalid bytes.
pub(super) fn decode_from_buffer(bytes: &[u8]) -> Option<FromBuffer> {
    if let Some((name, ask)) = decode_ask(bytes) {
        return Some(FromBuffer::Push(name, ask));
    }
    let (lock, is_empty) = bytes.split_first_chunk::<8>()?;
    let &[is_empty @ (0 | 1)] = is_empty else { return None };
    Some(FromBuffer::End(u64::from_le_bytes(*lock), is_empty == 1))
}

fn code<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let index = all.iter().position(|other| other == one);
    index.expect("all are in the table") as u8
}

fn encode(attempt: RequestName, code: u8) -> Bytes {
    let mut bytes = [0; BYTES];
    let words = [attempt.asker.raw(), attempt.number, attempt.lock];
    bytes[0] = code;
    for (part, word) in bytes[1..].chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<(RequestName, u8)> {
    let bytes: &Bytes = bytes.try_into().ok()?;
    let (parts, _) = bytes[1..].as_chunks::<8>();
    let &[asker, number, lock] = parts else { return None };
    let [asker, number, lock] = [asker, number, lock].map(u64::from_le_bytes);
    Some((RequestName { asker: Asker::of(asker)?, number, lock }, bytes[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_locks::word::Claimant;

    #[test]
    fn what_is_said_arrives_as_it_was() {
        let asker = Asker::new(Claimant::new(3, 70_000), 5, 900);
        let attempt = RequestName { asker, number: u64::MAX - 1, lock: 1 << 40 };
        assert_eq!((asker.lane(), asker.slot(), asker.life()), (5, 900, Claimant::new(3, 70_000)));
        for ask in ASKS {
            assert_eq!(decode_ask(&encode_ask(attempt, ask)), Some((attempt, ask)));
        }
        for answer in ANSWERS {
            assert_eq!(decode_answer(&encode_answer(attempt, answer)), Some((attempt, answer)));
        }
    }

    #[test]
    fn switch_and_server_understand_each_other() {
        let asker = Asker::new(Claimant::new(9, 2), 1, 3);
        let name = RequestName { asker, number: 5, lock: 77 };
        for said in [FromSwitch::Buffer(name, ASKS[2], 4), FromSwitch::Room(77, 1 << 20)] {
            let bytes = encode_from_switch(said).expect("it is for the server");
            assert_eq!(decode_from_switch(&bytes), Some(said));
            assert_eq!(decode_from_switch(&bytes[1..]), None);
            assert_eq!(decode_from_buffer(&bytes), None);
        }
        let ends = [true, false].map(|is_empty| FromBuffer::End(77, is_empty));
        for said in [FromBuffer::Push(name, ASKS[6]), ends[0], ends[1]] {
            let bytes = encode_from_buffer(said);
            assert_eq!(decode_from_buffer(&bytes), Some(said));
            assert_eq!(decode_from_buffer(&bytes[1..]), None);
            assert_eq!(decode_from_switch(&bytes), None);
        }
        assert_eq!(encode_from_switch(FromSwitch::Answer(name, Answer::Left)), None);
    }

    #[test]
    fn other_bytes_say_nothing() {
        let asker = Asker::new(Claimant::new(0, 1), 0, 0);
        let mut bytes = encode_ask(RequestName { asker, number: 1, lock: 2 }, Ask::Leave);
        assert_eq!(decode_ask(&bytes[..BYTES - 1]), None);
        bytes[0] = ASKS.len() as u8;
        assert_eq!(decode_ask(&bytes), None);
        bytes[0] = 0;
        // The largest number of a node names none.
        bytes[8] = u8::MAX;
        assert_eq!(decode_ask(&bytes), None);
    }
}
