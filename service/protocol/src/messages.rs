//! Messages between applications and compute nodes.
//!
//! A connection begins with the handshake (`crate::handshake`). After that the client sends
//! requests and the server answers every request except [`Op::Abandon`] once, in any order.
//! Requests and answers are frames ([`crate::frame`]) of a number, four bytes little-endian, chosen
//! by the client and repeated in the answer, and a message in `postcard`'s encoding: an [`Op`] or
//! an [`Answer`].
//!
//! Messages borrow from the received frame. A message that does not decode ends the connection.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use lotus_mvcc::{CriticalField, Naming, Secret, TableSpec};

pub use crate::steps::{Action, Begin, Found, Keys, Kind, Step, StepEnd};

use crate::effect::Effect;
use crate::table_shape::{self, TableShape};

/// The protocol's version. Both ends must have the same version.
pub const VERSION: u16 = 7;
/// Default for the longest request that a server takes, in bytes.
pub const REQUEST_BYTES: usize = 256 << 10;
/// The longest answer that a client takes, in bytes.
pub const ANSWER_BYTES: usize = 1 << 20;
/// Longest result of a call, in bytes. Also the limit for the values of an execution's rows,
/// counted with [`ROW_BYTES`] per row. The remaining bytes of an answer are for its head.
pub const RESULT_BYTES: usize = ANSWER_BYTES - 64;
/// Most bytes that a row takes in an answer beside its value.
pub const ROW_BYTES: usize = 6;
/// Bytes of the number in front of a message.
pub const NUMBER_BYTES: usize = 4;

/// Permanent name of a call: the call is carried out once, however often it is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct CallId(pub [u8; 16]);

impl From<u128> for CallId {
    fn from(number: u128) -> Self {
        Self(number.to_be_bytes())
    }
}

/// A request of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op<'a> {
    /// Runs a stored transaction. Answered by `Done`, `Rejected` or `Failed`.
    #[serde(borrow)]
    Call(Call<'a>),
    /// Asks for the final outcome of a call: if the call has not committed by now, it never will.
    /// Answered by `Done`, `Never` or `Failed`.
    Outcome {
        /// The call.
        id: CallId,
        /// Time that the server may take, in microseconds.
        timeout_us: u32,
    },
    /// The next step of an interactive transaction. Answered by `Executed`, `Found`, `Committed` or
    /// `Failed`; after the last two the transaction is over.
    #[serde(borrow)]
    Step(Step<'a>),
    /// Gives up an interactive transaction or a scan. Not answered.
    Abandon {
        /// The client's number for the transaction or the scan.
        txn: u32,
    },
    /// Asks for the directory. Answered by `Directory`.
    Directory,
    /// Creates a table, unless a table with this name and shape exists. Answered by `TableCreated`
    /// or `Failed`.
    CreateTable {
        /// The table.
        #[serde(borrow)]
        table: TableShape<'a>,
        /// Time that the server may take, in microseconds.
        timeout_us: u32,
    },
    /// Asks for the next page of a scan. Answered by `Page` or `Failed`. A failure ends the scan;
    /// after the last page the client has to abandon the scan.
    #[serde(borrow)]
    Scan(Scan<'a>),
    /// Drops a table. The request may be repeated: a table dropped before counts as dropped, even
    /// if another table has taken the name since. Answered by `TableDropped` or `Failed`.
    DropTable {
        /// Name of the table.
        name: &'a str,
        /// Number of the table; `None` if the client knows of no such table: then nothing is
        /// dropped.
        table: Option<u16>,
        /// Time that the server may take, in microseconds.
        timeout_us: u32,
    },
}

/// A request for a page of a scan. A repeated request gets the same page again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scan<'a> {
    /// The client's number for the scan, unique among the scans and interactive transactions that
    /// are open on the connection.
    pub scan: u32,
    /// Begins the scan, with a new snapshot or with the cursor's snapshot.
    pub begin: bool,
    /// The table.
    pub table: u16,
    /// Cursor of the previous page; empty for the first page.
    #[serde(borrow)]
    pub cursor: Bytes<'a>,
    /// Rows to show; all rows, from the first on, unless the table is ordered.
    pub keys: Keys<'a>,
}

/// A row: its key and its value.
pub type PageRow<'a> = (Bytes<'a>, Bytes<'a>);

/// A call of a stored transaction.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call<'a> {
    /// Name of the stored transaction.
    pub procedure: &'a str,
    /// Encoded arguments.
    #[serde(borrow)]
    pub arguments: Bytes<'a>,
    /// Time that the server may take, in microseconds.
    pub timeout_us: u32,
    /// The shard whose owner is asked; other nodes answer `WrongOwner`. `None` asks any node.
    pub shard: Option<u16>,
    /// Id under which the call takes effect at most once.
    pub id: Option<CallId>,
}

/// An answer of a server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer<'a> {
    /// The call has committed; contains its encoded result.
    #[serde(borrow)]
    Done(Bytes<'a>),
    /// The transaction's own code gave up, with this encoded error. Nothing was changed.
    Rejected(Bytes<'a>),
    /// The request failed.
    Failed(Failure),
    /// The call has not committed, and never will.
    Never,
    /// Values of the rows that the step added, in the step's order; `None` for absent rows.
    Executed(Vec<Option<Bytes<'a>>>),
    /// Values of the added rows, and the result of the step's operation on an ordered table.
    Found {
        /// Values of the rows that the step added.
        added: Vec<Option<Bytes<'a>>>,
        /// Result of the operation.
        found: Found<'a>,
    },
    /// The interactive transaction has committed, with this timestamp if it wrote anything.
    Committed(Option<u64>),
    /// The interactive transaction is over. No server sends this answer at present.
    Ended,
    /// The directory.
    Directory(Box<Directory>),
    /// The table exists, with this number.
    TableCreated(u16),
    /// Rows of a scan.
    Page {
        /// The rows.
        #[serde(borrow)]
        rows: Vec<PageRow<'a>>,
        /// The cursor behind these rows; `None` if they are the last.
        cursor: Option<Bytes<'a>>,
    },
    /// The table was dropped. Its memory has been given back, or will be.
    TableDropped,
}

/// Failure of a request. [`Failure::effect`] says what the request has changed: nothing, except for
/// [`Failure::Unknown`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure {
    /// Another node owns the shard. Ask the owner.
    #[error("shard {shard} belongs to compute node {owner:?} in epoch {epoch}")]
    WrongOwner {
        /// The shard.
        shard: u16,
        /// Index of the owner among the compute nodes; `None` while the shard has no owner.
        owner: Option<u16>,
        /// The shard epoch in which `owner` took effect.
        epoch: u32,
    },
    /// The compute node takes no part in the cluster any more, or is about to stop. Ask another
    /// node.
    #[error("the compute node is leaving the cluster")]
    Leaving,
    /// The node is at one of its limits. Back off, then ask again.
    #[error("the compute node has no room for {0}")]
    Busy(ScarceResource),
    /// No stored transaction has that name.
    #[error("there is no stored transaction of that name")]
    UnknownProcedure,
    /// The arguments do not decode as arguments of the stored transaction.
    #[error("the arguments do not decode: {0}")]
    Arguments(String),
    /// The result cannot be encoded, or is too long to be sent or kept; therefore nothing was
    /// committed.
    #[error("the result cannot be returned: {0}")]
    Result(String),
    /// Time ran out before the commit began.
    #[error("time ran out")]
    Timeout,
    /// The last attempt met another transaction's lock or write, or a node that did not answer. The
    /// sentence names the cause. A call was retried until its time ran out; a step of an
    /// interactive transaction is not retried.
    #[error("{0}; a new attempt may succeed")]
    Conflict(String),
    /// The transaction may or may not have committed. Ask with the call's id, if it has one.
    #[error("the outcome is unknown")]
    Unknown,
    /// A call with this id was made with another name or other arguments.
    #[error("another call has this id")]
    IdTaken,
    /// The call's outcome was asked for before the call was carried out, so the call is never
    /// carried out.
    #[error("the call was given up when its outcome was asked for")]
    GivenUp,
    /// The interactive transaction held its locks too long and was aborted.
    #[error("the transaction was aborted because it took longer than {limit_ms} ms")]
    HeldTooLong {
        /// The limit.
        limit_ms: u32,
    },
    /// The connection has no such interactive transaction.
    #[error("there is no such transaction on this connection")]
    NoTransaction,
    /// The row, or the table that is to be dropped, does not exist.
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
        /// The quantity that is too large.
        excess: Excess,
        /// Its limit.
        limit: u32,
    },
    /// Clients may not create tables in this cluster.
    #[error("clients may not create tables: [clients] of the cluster file does not say so")]
    MayNotCreate,
    /// Clients may not drop tables in this cluster.
    #[error("clients may not drop tables: [clients] of the cluster file does not say so")]
    MayNotDrop,
    /// The specification of the table is not valid; the sentence says what to change.
    #[error("{0}")]
    InvalidTable(String),
    /// A table with this name and another shape exists. The text names the settings that differ.
    #[error("there is a table of this name already, of another shape: {0}")]
    TableDiffers(String),
    /// The memory nodes have no room for the table, or the cluster has its maximum number of
    /// tables. The sentence says which limit was met. No table was created.
    #[error("{0}")]
    NoRoomForTable(String),
    /// The authority, which keeps the list of tables, does not answer. No table was created.
    #[error("the authority does not answer")]
    NoAuthority,
    /// The table does not exist: it was dropped, or never created, or belongs to the server itself.
    #[error("there is no table {table}")]
    UnknownTable {
        /// Number of the table.
        table: u16,
    },
    /// The snapshot of the scan is not readable any more, or was taken by another node. Begin a new
    /// scan.
    #[error("the snapshot of the scan is too old")]
    SnapshotTooOld,
    /// The scan took too long, or the client paused too long between two pages, so the scan's
    /// snapshot was given up. The scan can continue at its cursor as long as the snapshot is still
    /// readable.
    #[error("the scan was ended: it may take {limit_ms} ms, and {pause_ms} ms between two pages")]
    ScanTooLong {
        /// The limit for the whole scan.
        limit_ms: u32,
        /// The limit for the client's pause between two pages.
        pause_ms: u32,
    },
}

impl Failure {
    /// Returns the effect of the failed request.
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
            | Self::TooLarge { .. }
            | Self::MayNotCreate
            | Self::MayNotDrop
            | Self::InvalidTable(_)
            | Self::TableDiffers(_)
            | Self::NoRoomForTable(_)
            | Self::NoAuthority
            | Self::UnknownTable { .. }
            | Self::SnapshotTooOld
            | Self::ScanTooLong { .. } => Effect::Nothing,
        }
    }
}

impl Failure {
    /// Whether the request certainly had no effect, and may succeed if sent as a new request. False
    /// for a transaction that was held too long: its application is likely to take as long again,
    /// with the same locks.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::WrongOwner { .. }
            | Self::Leaving
            | Self::Busy(_)
            | Self::Timeout
            | Self::Conflict(_)
            | Self::NoAuthority
            | Self::NoTransaction => true,
            Self::UnknownProcedure
            | Self::Arguments(_)
            | Self::Result(_)
            | Self::Unknown
            | Self::IdTaken
            | Self::GivenUp
            | Self::HeldTooLong { .. }
            | Self::NotFound(_)
            | Self::AlreadyExists(_)
            | Self::Refused(_)
            | Self::Panicked
            | Self::TooLarge { .. }
            | Self::MayNotCreate
            | Self::MayNotDrop
            | Self::InvalidTable(_)
            | Self::TableDiffers(_)
            | Self::NoRoomForTable(_)
            | Self::UnknownTable { .. }
            | Self::SnapshotTooOld
            | Self::ScanTooLong { .. } => false,
        }
    }
}

/// A quantity that a server limits in interactive transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Excess {
    /// Rows in the transaction. Every change of an ordered table counts, and every node read of an
    /// ordered table.
    Rows,
    /// Bytes in the answer to one step.
    AnswerBytes,
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rows => "it has too many rows, with changes and nodes of ordered tables",
            Self::AnswerBytes => "the answer to its step has too many bytes",
        })
    }
}

/// A resource that a node may have used up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ScarceResource {
    /// Slots for interactive transactions.
    Transactions,
    /// Records of idempotent calls.
    CallIds,
    /// Buffers for answers: the client has not read the answers already sent.
    Answers,
    /// The queue of tables to be created.
    Tables,
}

impl fmt::Display for ScarceResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transactions => "another interactive transaction",
            Self::CallIds => "the record of another call",
            Self::Answers => "another answer beside those that the client has not read",
            Self::Tables => "another table in its queue",
        })
    }
}

/// Secret of the names of rows, from which a client finds a row's shard. Sent to admitted clients
/// only, and shown nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameSecret([u8; Secret::BYTES]);

impl NameSecret {
    /// Returns the wire form of a naming's secret.
    pub fn of(naming: Naming) -> Self {
        Self(naming.secret().to_bytes())
    }

    /// Returns the naming with this secret.
    pub fn naming(self) -> Naming {
        Naming::by(Secret::from_bytes(self.0))
    }
}

impl fmt::Debug for NameSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameSecret(..)")
    }
}

/// Data by which clients route: nodes, tables, stored transactions and the shards' owners.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Directory {
    /// Index in `nodes` of the node that sends this directory.
    pub node: u16,
    /// Addresses of all compute nodes.
    pub nodes: Vec<String>,
    /// All tables.
    pub tables: Vec<Table>,
    /// All stored transactions.
    pub procedures: Vec<Procedure>,
    /// The owner of each shard.
    pub owners: Vec<Owner>,
    /// Number of requests that a connection may have in flight.
    pub in_flight: u32,
    /// Secret of the names of rows; `None` as long as the cluster has no table.
    pub names: Option<NameSecret>,
}

/// A table, as clients see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Table {
    /// Name of the table.
    pub name: String,
    /// Number of the table.
    pub id: u16,
    /// First byte and length of the critical field; `None` if the whole key's hash decides.
    pub critical_field: Option<(u8, u8)>,
    /// Number of shards.
    pub shards: u16,
    /// Whether the table keeps its rows in key order.
    pub ordered: bool,
    /// Largest value, in bytes.
    pub record_bytes: u32,
}

impl Table {
    /// Returns the table with this number and specification, which must be valid.
    pub fn of(id: u16, spec: &TableSpec) -> Self {
        let critical_field = table_shape::pair(spec.critical_field);
        let name = spec.name.clone().into_owned();
        let (shards, ordered) = (spec.shards as u16, spec.ordered);
        let record_bytes = spec.record_bytes;
        Self { name, id, critical_field, shards, ordered, record_bytes }
    }

    /// Returns the critical field, from which a key's shard is derived.
    pub fn critical_field(&self) -> CriticalField {
        table_shape::field(self.critical_field)
    }
}

/// A stored transaction, as clients see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Procedure {
    /// Name of the stored transaction.
    pub name: String,
    /// Isolation, and whether the transaction may write.
    pub kind: Kind,
}

/// The owner of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// Index of the owner among the compute nodes; `None` while the shard has no owner.
    pub node: Option<u16>,
    /// The shard epoch in which `node` took effect.
    pub epoch: u32,
}

/// Bytes encoded in one piece, and borrowed when decoded.
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

/// Appends a frame with a number and a message.
pub fn send(out: &mut Vec<u8>, number: u32, message: &impl Serialize) {
    crate::frame::append(out, |out| {
        out.extend_from_slice(&number.to_le_bytes());
        crate::frame::write(out, message);
    });
}

/// A frame without a message of this protocol. The connection cannot continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame that is no message of this protocol")]
pub struct Garbage;

/// Splits a frame into its number and its message.
///
/// # Errors
/// [`Garbage`] if the frame is too short for a number.
pub fn split(frame: &[u8]) -> Result<(u32, &[u8]), Garbage> {
    let (number, message) = frame.split_first_chunk::<NUMBER_BYTES>().ok_or(Garbage)?;
    Ok((u32::from_le_bytes(*number), message))
}

/// Decodes a message.
///
/// # Errors
/// [`Garbage`] if the message does not decode, or bytes follow it.
pub fn decode<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Result<T, Garbage> {
    match postcard::take_from_bytes(message) {
        Ok((decoded, [])) => Ok(decoded),
        _ => Err(Garbage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_mvcc::KeyRange;
    use proptest::prelude::*;

    fn step(end: StepEnd<'static>) -> Op<'static> {
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
                Action::Upsert { item: 9, value },
                Action::OrderedPut { table: 3, key, value },
                Action::OrderedInsert { table: 3, key, value },
            ],
            end,
        })
    }

    fn steps() -> [Op<'static>; 5] {
        let (table, key, for_update) = (3, Bytes(b"key"), true);
        let keys = Keys { from: key, until: Some(Bytes(b"other")), reverse: true };
        [
            StepEnd::Execute,
            StepEnd::Commit,
            StepEnd::Get { table, key, for_update },
            StepEnd::Delete { table, key },
            StepEnd::Range { table, keys, limit: u64::MAX, for_update },
        ]
        .map(step)
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
        static STOCK: TableSpec = TableSpec::new("stock").record_bytes(320).capacity(1 << 20);
        let create = Op::CreateTable { table: TableShape::of(&STOCK), timeout_us: 5 };
        let drop = Op::DropTable { name: "stock", table: Some(9), timeout_us: 5 };
        let (cursor, keys) = (Bytes(b"cursor"), Keys::default());
        let scan = Op::Scan(Scan { scan: 4, begin: true, table: 1, cursor, keys });
        let abandon = Op::Abandon { txn: 1 };
        let others = [Op::Call(call), outcome, abandon, Op::Directory, create, scan, drop];
        others.into_iter().chain(steps()).collect()
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

    #[test]
    fn ranges_survive_the_wire() {
        for range in [KeyRange::default(), KeyRange::prefix(b"a"), KeyRange::of(..)] {
            for reverse in [false, true] {
                let keys = Keys::of(&range, reverse);
                assert_eq!((keys.range(), keys.reverse), (range.clone(), reverse));
            }
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
            which in 0..12_usize, at in any::<prop::sample::Index>(), byte: u8,
        ) {
            let mut sent = Vec::new();
            crate::frame::write(&mut sent, &ops()[which]);
            let at = at.index(sent.len());
            sent[at] = byte;
            let _ = decode::<Op<'_>>(&sent);
        }
    }
}
