//! Commands and replies in the protocol of a real Redis: RESP, version 2.
//!
//! Pure: bytes in, bytes out. A server answers the commands of a connection in order, so the
//! meaning of a reply follows from its command.

use std::time::Duration;

use redis_protocol::resp2::decode;
use redis_protocol::resp2::encode;
use redis_protocol::resp2::types::{BorrowedFrame, OwnedFrame};

use super::redis::{Command, Token};
use super::rules::RedisReply;

/// Atomically deletes a key if the value is still the token: a late holder must not delete the key
/// of the next holder.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// A command without the key; determines the meaning of the reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Set,
    Delete,
}

impl Verb {
    pub(super) const fn of(command: Command) -> Self {
        match command {
            Command::Set { .. } => Self::Set,
            Command::Delete { .. } => Self::Delete,
        }
    }
}

/// Key of a lock.
pub(super) fn key_of(prefix: &str, lock: u64) -> String {
    format!("{prefix}:{lock}")
}

/// Appends a command; lock keys begin with `prefix`.
pub(super) fn push_command(out: &mut Vec<u8>, prefix: &str, command: Command) {
    let value = |Token(token): Token| format!("{token:032x}");
    match command {
        Command::Set { key, token, ttl } => {
            // A key lives no shorter than the client believes, and Redis refuses 0.
            let millis = ttl.as_nanos().div_ceil(1_000_000).max(1).to_string();
            push(out, &["SET", &key_of(prefix, key), &value(token), "NX", "PX", &millis]);
        }
        Command::Delete { key, token } => {
            let key = key_of(prefix, key);
            push(out, &["EVAL", COMPARE_AND_DELETE, "1", &key, &value(token)]);
        }
    }
}

/// Appends a command of several words.
pub(super) fn push(out: &mut Vec<u8>, words: &[&str]) {
    let words: Vec<_> =
        words.iter().map(|word| BorrowedFrame::BulkString(word.as_bytes())).collect();
    let command = BorrowedFrame::Array(&words);
    let from = out.len();
    out.resize(from + command.encode_len(false), 0);
    encode::encode_borrowed(&mut out[from..], &command, false)
        .expect("there is room for a command of that length");
}

/// Parses the first reply in the bytes, with its length; `None` if the reply is incomplete.
///
/// # Errors
/// A sentence, if the bytes are not a reply of a Redis.
pub(super) fn take_reply(bytes: &[u8]) -> Result<Option<(OwnedFrame, usize)>, String> {
    decode::decode(bytes).map_err(|_| "it does not speak as a Redis does".to_owned())
}

/// Interprets the reply to a command.
///
/// # Errors
/// A sentence, if the command failed for a reason other than the key.
pub(super) fn understand(verb: Verb, reply: &OwnedFrame) -> Result<RedisReply, String> {
    match (verb, reply) {
        (Verb::Set, OwnedFrame::SimpleString(said)) if said == b"OK" => Ok(RedisReply::Done),
        (Verb::Set, OwnedFrame::Null) => Ok(RedisReply::Refused),
        (Verb::Delete, OwnedFrame::Integer(1)) => Ok(RedisReply::Done),
        (Verb::Delete, OwnedFrame::Integer(0)) => Ok(RedisReply::Refused),
        (_, reply) => Err(unexpected(reply)),
    }
}

/// A server's life, from start to end: keys in memory belong to one life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ServerLife {
    /// Run ID drawn at the server's start.
    pub(super) run_id: String,
    /// Time since the start; whole seconds.
    pub(super) uptime: Duration,
}

/// Appends the command that asks for the server's life.
pub(super) fn push_info(out: &mut Vec<u8>) {
    push(out, &["INFO", "server"]);
}

/// Parses the server's life from a reply to [`push_info`].
///
/// # Errors
/// A sentence, if the reply does not contain a life.
pub(super) fn life(reply: &OwnedFrame) -> Result<ServerLife, String> {
    let OwnedFrame::BulkString(said) = reply else { return Err(unexpected(reply)) };
    let said = String::from_utf8_lossy(said);
    let field = |name: &str| {
        let of = |line: &'_ str| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned());
        said.lines().find_map(of)
    };
    let secs = field("uptime_in_seconds").and_then(|secs| secs.parse().ok());
    match field("run_id").filter(|run_id| !run_id.is_empty()).zip(secs) {
        Some((run_id, secs)) => Ok(ServerLife { run_id, uptime: Duration::from_secs(secs) }),
        None => Err("it does not say since when it has been up".to_owned()),
    }
}

/// Returns a sentence about an unexpected reply.
pub(super) fn unexpected(reply: &OwnedFrame) -> String {
    match reply {
        OwnedFrame::Error(why) => format!("it refuses: {why}"),
        _ => "it answers something else than was asked".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token(0xab);

    fn said(command: Command) -> String {
        let mut out = b"before".to_vec();
        push_command(&mut out, "run", command);
        String::from_utf8(out).expect("all words are text")
    }

    #[test]
    fn commands_are_those_of_the_algorithm() {
        let set = Command::Set { key: 7, token: TOKEN, ttl: Duration::from_micros(10_001) };
        let value = format!("$32\r\n{:032x}\r\n", 0xab);
        let expected = format!(
            "before*6\r\n$3\r\nSET\r\n$5\r\nrun:7\r\n{value}$2\r\nNX\r\n$2\r\nPX\r\n$2\r\n11\r\n"
        );
        assert_eq!(said(set), expected, "times to live are rounded up");
        let deletion = said(Command::Delete { key: 7, token: TOKEN });
        let (length, script) = (COMPARE_AND_DELETE.len(), COMPARE_AND_DELETE);
        let expected = format!(
            "before*5\r\n$4\r\nEVAL\r\n${length}\r\n{script}\r\n$1\r\n1\r\n$5\r\nrun:7\r\n{value}"
        );
        assert_eq!(deletion, expected);
        let none = said(Command::Set { key: 7, token: TOKEN, ttl: Duration::ZERO });
        assert!(none.ends_with("PX\r\n$1\r\n1\r\n"), "Redis refuses 0: {none}");
    }

    #[test]
    fn replies_are_understood_by_the_command_that_they_answer() {
        let (done, refused) = (Ok(Ok(RedisReply::Done)), Ok(Ok(RedisReply::Refused)));
        let refuses = |why: &str| Ok(Err(format!("it refuses: {why}")));
        let other = Ok(Err("it answers something else than was asked".to_owned()));
        let cases = [
            (Verb::Set, "+OK\r\n", done.clone()),
            (Verb::Set, "$-1\r\n", refused.clone()),
            (Verb::Delete, ":1\r\n", done),
            (Verb::Delete, ":0\r\n", refused),
            (Verb::Delete, ":2\r\n", other.clone()),
            (Verb::Set, ":1\r\n", other.clone()),
            (Verb::Delete, "+OK\r\n", other),
            (Verb::Set, "-NOAUTH Authentication required.\r\n", {
                refuses("NOAUTH Authentication required.")
            }),
            (Verb::Set, "HTTP/1.1 400 Bad Request\r\n", {
                Err("it does not speak as a Redis does".to_owned())
            }),
        ];
        for (verb, bytes, expected) in cases {
            let reply = take_reply(bytes.as_bytes()).map(|reply| {
                let (reply, length) = reply.expect("it is complete");
                assert_eq!(length, bytes.len(), "{bytes}");
                understand(verb, &reply)
            });
            assert_eq!(reply, expected, "{verb:?}: {bytes}");
        }
    }

    #[test]
    fn the_life_of_a_server_is_in_its_answer() {
        let mut asked = Vec::new();
        push_info(&mut asked);
        assert_eq!(asked, b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n");
        let of = |said: &str| life(&OwnedFrame::BulkString(said.as_bytes().to_vec()));
        let said = "# Server\r\nrun_id:0a1b\r\nuptime_in_seconds:41\r\nuptime_in_days:0\r\n";
        let (run_id, uptime) = ("0a1b".to_owned(), Duration::from_secs(41));
        assert_eq!(of(said), Ok(ServerLife { run_id, uptime }));
        let untold = Err("it does not say since when it has been up".to_owned());
        for missing in ["", "run_id:0a1b", "uptime_in_seconds:4", "run_id:\nuptime_in_seconds:4", {
            "run_id:0a1b\nuptime_in_seconds:soon"
        }] {
            assert_eq!(of(missing), untold, "{missing}");
        }
        let refuses = life(&OwnedFrame::Error("NOPERM no".into()));
        assert_eq!(refuses, Err("it refuses: NOPERM no".to_owned()));
    }

    #[test]
    fn a_part_of_a_reply_is_none_and_of_two_the_first_is_taken() {
        let both = b"$-1\r\n:1\r\n";
        for end in 0..5 {
            assert_eq!(take_reply(&both[..end]), Ok(None), "{end}");
        }
        assert_eq!(take_reply(both), Ok(Some((OwnedFrame::Null, 5))));
        assert_eq!(take_reply(&both[5..]), Ok(Some((OwnedFrame::Integer(1), 4))));
    }
}
