//! What applications and compute nodes say to each other.
//!
//! A connection begins with the handshake (`crate::handshake`). After that the client sends
//! requests and the server answers each of them once, in any order. Both are frames
//! ([`crate::frame`]) of a number, four bytes little-endian, which the client chooses and the
//! answer repeats, and a message in `postcard`'s encoding: an [`Op`] or an [`Answer`].
//!
//! Messages borrow from the frame that they came in. A message that does not decode ends the
//! connection.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use lotus_mvcc::CriticalField;

use crate::error::Effect;

/// The protocol's version. Both ends must have the same.
pub const VERSION: u16 = 2;
/// The longest request that a server takes unless it is told otherwise, in bytes.
pub const REQUEST_BYTES: usize = 256 << 10;
/// The longest answer that a client takes, in bytes.
pub const ANSWER_BYTES: usize = 1 << 20;
/// The longest result of a call, and the most bytes that the rows of an execution may have together
/// with [`ROW_BYTES`] for each: what fits in an answer beside its head.
pub const RESULT_BYTES: usize = ANSWER_BYTES - 64;
/// What a row takes in an answer beside its value, at most.
pub const ROW_BYTES: usize = 6;
/// Bytes of the number in front of a message.
pub const NUMBER_BYTES: usize = 4;

/// Names a call for all time, so that it is carried out once however often it is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CallId(pub [u8; 16]);

impl From<u128> for CallId {
    fn from(number: u128) -> Self {
        Self(number.to_be_bytes())
    }
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op<'a> {
    /// Runs a stored transaction. Answered by `Done`, `Rejected` or `Failed`.
    #[serde(borrow)]
    Call(Call<'a>),
    /// What became of a call, for good: what has not committed by now never will. Answered by
    /// `Done`, `Never` or `Failed`.
    Outcome {
        /// The call.
        id: CallId,
        /// How long the server may try, in microseconds.
        timeout_us: u32,
    },
    /// The next step of an interactive transaction. Answered by `Executed`, `Committed` or
    /// `Failed`; after the last two the transaction is over.
    #[serde(borrow)]
    Step(Step<'a>),
    /// Gives up an interactive transaction. Answered by `Ended`.
    Abandon {
        /// The client's number for it.
        txn: u32,
    },
    /// Asks for the directory. Answered by `Directory`.
    Directory,
}

/// A call of a stored transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call<'a> {
    /// Its name.
    pub procedure: &'a str,
    /// Its arguments, encoded.
    #[serde(borrow)]
    pub arguments: Bytes<'a>,
    /// How long the server may try, in microseconds.
    pub timeout_us: u32,
    /// The shard whose owner is asked: somebody else answers `WrongOwner`. `None` if anybody will
    /// do.
    pub shard: Option<u16>,
    /// Makes it happen at most once.
    pub id: Option<CallId>,
}

/// A step of an interactive transaction: changes and new rows, in this order, and then either an
/// execution of the new rows or the commit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step<'a> {
    /// The client's number for the transaction; among those that are open on the connection it is
    /// used once.
    pub txn: u32,
    /// Begins it.
    pub begin: Option<Begin>,
    /// What to do first.
    #[serde(borrow)]
    pub actions: Vec<Action<'a>>,
    /// What to do then.
    pub end: StepEnd,
}

/// How a step ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StepEnd {
    /// Locks and reads what was added.
    Execute,
    /// Commits.
    Commit,
}

/// How an interactive transaction begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Begin {
    /// What it may do.
    pub kind: Kind,
    /// As in [`Call::shard`].
    pub shard: Option<u16>,
}

/// What a transaction may do, and how much of others' work it may notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Reads one snapshot, without locks.
    ReadOnly,
    /// Reads and writes as if transactions ran one after another.
    Serializable,
    /// Reads one snapshot, and writes what nobody has written since.
    Snapshot,
}

/// One row's part in a step. New rows are items, numbered from zero through the whole transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action<'a> {
    /// A row to read.
    Read {
        /// The table.
        table: u16,
        /// The primary key.
        #[serde(borrow)]
        key: Bytes<'a>,
    },
    /// A row to read and perhaps write.
    Write {
        /// The table.
        table: u16,
        /// The primary key.
        key: Bytes<'a>,
    },
    /// A row that does not exist yet.
    Insert {
        /// The table.
        table: u16,
        /// The primary key.
        key: Bytes<'a>,
        /// Its value.
        value: Bytes<'a>,
    },
    /// A new value for an item.
    Put {
        /// The item.
        item: u32,
        /// The value.
        value: Bytes<'a>,
    },
    /// The end of an item.
    Delete {
        /// The item.
        item: u32,
    },
}

/// What a server answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer<'a> {
    /// The call has committed; its result, encoded.
    #[serde(borrow)]
    Done(Bytes<'a>),
    /// The transaction's own code gave up, with this error, encoded. Nothing was changed.
    Rejected(Bytes<'a>),
    /// It did not work out.
    Failed(Failure),
    /// The call has not committed, and never will.
    Never,
    /// The values of the rows that the step added, in their order; `None` for absent ones.
    Executed(Vec<Option<Bytes<'a>>>),
    /// The interactive transaction has committed, at this time if it wrote anything.
    Committed(Option<u64>),
    /// The interactive transaction is over.
    Ended,
    /// Who and what there is.
    Directory(Box<Directory>),
}

/// Why a request had no success. [`Failure::effect`] says what it has changed: nothing, but for
/// [`Failure::Unknown`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure {
    /// Somebody else owns the shard. Ask there.
    #[error("shard {shard} belongs to compute node {owner:?} in epoch {epoch}")]
    WrongOwner {
        /// The shard.
        shard: u16,
        /// The owner's place among the compute nodes; `None` while nobody owns it.
        owner: Option<u16>,
        /// Since which epoch of the shard.
        epoch: u32,
    },
    /// The compute node takes no part in the cluster any more, or is about to stop. Ask another.
    #[error("the compute node is leaving the cluster")]
    Leaving,
    /// More is asked of the node than it takes. Back off, then ask again.
    #[error("the compute node has no room for {0}")]
    Busy(Room),
    /// No stored transaction has that name.
    #[error("there is no stored transaction of that name")]
    UnknownProcedure,
    /// The arguments do not decode as what the stored transaction takes.
    #[error("the arguments do not decode: {0}")]
    Arguments(String),
    /// The result cannot be encoded, or is too long to be sent or kept; so nothing was committed.
    #[error("the result cannot be returned: {0}")]
    Result(String),
    /// Time ran out before the commit began.
    #[error("time ran out")]
    Timeout,
    /// Time ran out, and the last attempt had met another transaction's lock or write, or a node
    /// that did not answer. The sentence names it.
    #[error("gave up retrying: {0}")]
    Conflict(String),
    /// The transaction may or may not have committed. Ask with the call's id, if it has one.
    #[error("the outcome is unknown")]
    Unknown,
    /// A call with this id was made with another name or other arguments.
    #[error("another call has this id")]
    IdTaken,
    /// Somebody has asked for the outcome of the call before it was carried out, so it never is.
    #[error("the call was given up when its outcome was asked for")]
    GivenUp,
    /// The interactive transaction held its locks too long and was aborted.
    #[error("the transaction was aborted because it took longer than {limit_ms} ms")]
    HeldTooLong {
        /// The limit.
        limit_ms: u32,
    },
    /// There is no such interactive transaction on this connection.
    #[error("there is no such transaction on this connection")]
    NoTransaction,
    /// The row does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The row exists already.
    #[error("{0}")]
    AlreadyExists(String),
    /// The engine refuses the transaction as it is; the sentence says why.
    #[error("{0}")]
    Refused(String),
    /// The transaction's own code panicked.
    #[error("the transaction's code panicked")]
    Panicked,
    /// The interactive transaction asks for more than the server gives, and was aborted. Take
    /// smaller steps.
    #[error("the transaction was aborted: {excess}, and {limit} is the most")]
    TooLarge {
        /// What there is too much of.
        excess: Excess,
        /// How much there may be.
        limit: u32,
    },
}

impl Failure {
    /// What the request has changed.
    pub const fn effect(&self) -> Effect {
        match self {
            Self::Unknown => Effect::Unknown,
            Self::WrongOwner { .. }
            | Self::Leaving
            | Self::Busy(_)
            | Self::UnknownProcedure
            | Self::Arguments(_)
            | Self::Result(_)
            | Self::Timeout
            | Self::Conflict(_)
            | Self::IdTaken
            | Self::GivenUp
            | Self::HeldTooLong { .. }
            | Self::NoTransaction
            | Self::NotFound(_)
            | Self::AlreadyExists(_)
            | Self::Refused(_)
            | Self::Panicked
            | Self::TooLarge { .. } => Effect::Nothing,
        }
    }
}

/// What an interactive transaction may have too much of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Excess {
    /// Rows in the transaction.
    Rows,
    /// Bytes in the answer to one step.
    AnswerBytes,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rows => "it has too many rows",
            Self::AnswerBytes => "the answer to its step has too many bytes",
        })
    }
}

/// What a node may lack room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Room {
    /// Places for interactive transactions.
    Transactions,
    /// Room for records of idempotent calls.
    CallIds,
    /// Room for answers: the client has not taken those that it was sent.
    Answers,
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transactions => "another interactive transaction",
            Self::CallIds => "the record of another call",
            Self::Answers => "another answer beside those that the client has not read",
        })
    }
}

/// Who and what there is, for clients to route by.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Directory {
    /// The place, among the compute nodes, of the one that says this.
    pub node: u16,
    /// The addresses of all compute nodes, by place.
    pub nodes: Vec<String>,
    /// All tables.
    pub tables: Vec<Table>,
    /// All stored transactions.
    pub procedures: Vec<Procedure>,
    /// The owner of each shard.
    pub owners: Vec<Owner>,
    /// How many requests a connection may have in flight.
    pub in_flight: u32,
}

/// A table, as far as clients care.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Table {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u16,
    /// First byte and length of the critical field; `None` if the whole key's hash decides.
    pub critical_field: Option<(u8, u8)>,
    /// How many shards it has.
    pub shards: u16,
}

impl Table {
    /// How its shards are derived.
    pub fn critical_field(&self) -> CriticalField {
        match self.critical_field {
            Some((start, len)) => CriticalField::Bytes { start, len },
            None => CriticalField::Hashed,
        }
    }
}

/// A stored transaction, as far as clients care.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Procedure {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub kind: Kind,
}

/// Who owns a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Its place among the compute nodes; `None` while nobody owns it.
    pub node: Option<u16>,
    /// Since which epoch of the shard.
    pub epoch: u32,
}

/// Bytes that are encoded in one piece and borrowed when decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Bytes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrow;
        impl<'de> Visitor<'de> for Borrow {
            type Value = &'de [u8];

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<&'de [u8], E> {
                Ok(bytes)
            }
        }
        deserializer.deserialize_bytes(Borrow).map(Bytes)
    }
}

/// Appends a numbered message in a frame.
pub fn send(out: &mut Vec<u8>, number: u32, message: &impl Serialize) {
    crate::frame::append(out, |out| {
        out.extend_from_slice(&number.to_le_bytes());
        crate::frame::write(out, message);
    });
}

/// A frame that holds no message of this protocol. The connection cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame that is no message of this protocol")]
pub struct Garbage;

/// A frame's number and the rest of it, which is a message.
///
/// # Errors
/// [`Garbage`] if the frame is too short for a number.
pub fn split(frame: &[u8]) -> Result<(u32, &[u8]), Garbage> {
    let (number, message) = frame.split_first_chunk::<NUMBER_BYTES>().ok_or(Garbage)?;
    Ok((u32::from_le_bytes(*number), message))
}

/// A message.
///
/// # Errors
/// [`Garbage`] if it does not decode, or something follows it.
pub fn decode<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Result<T, Garbage> {
    match postcard::take_from_bytes(message) {
        Ok((decoded, [])) => Ok(decoded),
        _ => Err(Garbage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step() -> Op<'static> {
        let (key, value) = (Bytes(b"key"), Bytes(b"value"));
        Op::Step(Step {
            txn: 3,
            begin: Some(Begin { kind: Kind::Snapshot, shard: Some(4095) }),
            actions: vec![
                Action::Read { table: 0, key },
                Action::Write { table: 1, key },
                Action::Insert { table: 2, key, value },
                Action::Put { item: 7, value },
                Action::Delete { item: 8 },
            ],
            end: StepEnd::Commit,
        })
    }

    fn ops() -> Vec<Op<'static>> {
        let call = Call {
            procedure: "transfer",
            arguments: Bytes(&[1, 2, 3]),
            timeout_us: 1_000_000,
            shard: None,
            id: Some(CallId::from(7)),
        };
        let outcome = Op::Outcome { id: CallId::from(9), timeout_us: 5 };
        vec![Op::Call(call), outcome, step(), Op::Abandon { txn: 1 }, Op::Directory]
    }

    #[test]
    fn messages_survive_the_wire_and_nothing_may_follow_them() {
        for op in ops() {
            let mut sent = Vec::new();
            send(&mut sent, 77, &op);
            let (number, message) = split(&sent[crate::frame::HEADER_BYTES..]).unwrap();
            assert_eq!((number, decode::<Op<'_>>(message)), (77, Ok(op)));
            let longer = [message, &[0]].concat();
            assert_eq!(decode::<Op<'_>>(&longer), Err(Garbage));
        }
    }

    proptest! {
        #[test]
        fn garbage_decodes_or_does_not_and_nothing_else(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = decode::<Op<'_>>(&bytes);
            let _ = decode::<Answer<'_>>(&bytes);
        }

        #[test]
        fn damaged_messages_decode_or_do_not_and_nothing_else(
            which in 0..5_usize, at in any::<prop::sample::Index>(), byte: u8,
        ) {
            let mut sent = Vec::new();
            crate::frame::write(&mut sent, &ops()[which]);
            let at = at.index(sent.len());
            sent[at] = byte;
            let _ = decode::<Op<'_>>(&sent);
        }
    }
}
