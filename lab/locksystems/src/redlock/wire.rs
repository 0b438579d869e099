//! Commands and replies as messages of a fabric.

use std::time::Duration;

use super::redis::{Command, CommandName, Token};
use super::rules::RedisReply;
use crate::servers::Asker;

/// Length of a command: code, asker, number, key, time to live in nanoseconds, token.
const COMMAND_BYTES: usize = 1 + 4 * 8 + 16;
/// Length of a reply: code, asker, number.
const REPLY_BYTES: usize = 1 + 2 * 8;

/// Encodes a command.
pub(super) fn encode_command(name: CommandName, command: Command) -> [u8; COMMAND_BYTES] {
    let (code, key, ttl, token) = match command {
        // Times to live longer than centuries are sent as the maximum.
        Command::Set { key, token, ttl } => {
            (0, key, u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX), token)
        }
        Command::Delete { key, token } => (1, key, 0, token),
    };
    let mut bytes = [0; COMMAND_BYTES];
    bytes[0] = code;
    let words = [name.asker.raw(), name.number, key, ttl];
    for (part, word) in bytes[1..33].chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.to_le_bytes());
    }
    bytes[33..].copy_from_slice(&token.0.to_le_bytes());
    bytes
}

/// Decodes a command; `None` for other bytes.
pub(super) fn decode_command(bytes: &[u8]) -> Option<(CommandName, Command)> {
    let bytes: &[u8; COMMAND_BYTES] = bytes.try_into().ok()?;
    let (parts, token) = bytes[1..].split_last_chunk::<16>()?;
    let token = Token(u128::from_le_bytes(*token));
    let (words, _) = parts.as_chunks::<8>();
    let &[asker, number, key, ttl] = words else { return None };
    let [asker, number, key, ttl] = [asker, number, key, ttl].map(u64::from_le_bytes);
    let name = CommandName { asker: Asker::of(asker)?, number };
    match bytes[0] {
        0 => Some((name, Command::Set { key, token, ttl: Duration::from_nanos(ttl) })),
        1 => Some((name, Command::Delete { key, token })),
        _ => None,
    }
}

/// Encodes a reply.
pub(super) fn encode_reply(name: CommandName, reply: RedisReply) -> [u8; REPLY_BYTES] {
    let mut bytes = [0; REPLY_BYTES];
    bytes[0] = u8::from(reply == RedisReply::Done);
    bytes[1..9].copy_from_slice(&name.asker.raw().to_le_bytes());
    bytes[9..].copy_from_slice(&name.number.to_le_bytes());
    bytes
}

/// Decodes a reply; `None` for other bytes.
pub(super) fn decode_reply(bytes: &[u8]) -> Option<(CommandName, RedisReply)> {
    let bytes: &[u8; REPLY_BYTES] = bytes.try_into().ok()?;
    let reply = match bytes[0] {
        0 => RedisReply::Refused,
        1 => RedisReply::Done,
        _ => return None,
    };
    let (words, _) = bytes[1..].as_chunks::<8>();
    let &[asker, number] = words else { return None };
    let [asker, number] = [asker, number].map(u64::from_le_bytes);
    Some((CommandName { asker: Asker::of(asker)?, number }, reply))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_locks::word::Claimant;

    #[test]
    fn what_is_said_arrives_as_it_was_and_other_bytes_say_nothing() {
        let asker = Asker::new(Claimant::new(3, 70_000), 5, 900);
        let name = CommandName { asker, number: u64::MAX - 1 };
        let (key, token) = (1 << 40, Token(u128::MAX - 5));
        let set = Command::Set { key, token, ttl: Duration::from_micros(10_001) };
        for command in [set, Command::Delete { key, token }] {
            let mut bytes = encode_command(name, command);
            assert_eq!(decode_command(&bytes), Some((name, command)));
            assert_eq!(decode_command(&bytes[1..]), None);
            assert_eq!(decode_reply(&bytes), None);
            bytes[0] = 2;
            assert_eq!(decode_command(&bytes), None);
        }
        for reply in [RedisReply::Done, RedisReply::Refused] {
            let mut bytes = encode_reply(name, reply);
            assert_eq!(decode_reply(&bytes), Some((name, reply)));
            assert_eq!(decode_command(&bytes), None);
            // The largest number of a node names none.
            bytes[8] = u8::MAX;
            assert_eq!(decode_reply(&bytes), None);
        }
    }
}
