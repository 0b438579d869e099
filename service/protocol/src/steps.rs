//! Steps of interactive transactions, and results of operations on ordered tables. These types are
//! part of the messages ([`crate::messages`]), which re-export them.

use lotus_mvcc::KeyRange;
use serde::{Deserialize, Serialize};

use crate::messages::{Bytes, PageRow};

/// A step of an interactive transaction: changes and new rows, in order, and then an end, with one
/// kind of end for every kind of answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Step<'a> {
    /// The client's number for the transaction, unique among the open transactions of the
    /// connection.
    pub txn: u32,
    /// Begins the transaction, if this is its first step.
    pub begin: Option<Begin>,
    /// Changes and new rows, in order.
    #[serde(borrow)]
    pub actions: Vec<Action<'a>>,
    /// Execution, an operation on an ordered table, or commit.
    pub end: StepEnd<'a>,
}

/// The end of a step. Every variant first locks and reads the rows that the step has added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StepEnd<'a> {
    /// No further operation. Answered by `Executed`.
    Execute,
    /// Commits. Answered by `Committed`.
    Commit,
    /// Reads a row of an ordered table. Answered by `Found`.
    Get {
        /// The table.
        table: u16,
        /// The key.
        #[serde(borrow)]
        key: Bytes<'a>,
        /// Whether the row is locked to write.
        for_update: bool,
    },
    /// Deletes a row of an ordered table, if the row exists. Answered by `Found`.
    Delete {
        /// The table.
        table: u16,
        /// The key.
        key: Bytes<'a>,
    },
    /// Reads a page of rows of an ordered table. Answered by `Found`.
    Range {
        /// The table.
        table: u16,
        /// The rows.
        keys: Keys<'a>,
        /// Most rows to read.
        limit: u64,
        /// Whether the rows are locked to write.
        for_update: bool,
    },
}

/// First-step parameters of an interactive transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Begin {
    /// Isolation, and whether the transaction may write.
    pub kind: Kind,
    /// Same as [`Call::shard`](crate::messages::Call::shard).
    pub shard: Option<u16>,
}

/// Isolation of a transaction, and whether the transaction may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// Reads one snapshot, without locks.
    ReadOnly,
    /// Reads and writes as if transactions ran one after another.
    Serializable,
    /// Snapshot isolation: reads one snapshot, and writes only rows that were not written since.
    Snapshot,
}

/// A change or a new row in a step. New rows are items, numbered from zero per transaction.
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
    /// Deletes an item's row.
    Delete {
        /// The item.
        item: u32,
    },
    /// A new value for an executed item; inserts the row if it does not exist.
    Upsert {
        /// The item.
        item: u32,
        /// The value.
        value: Bytes<'a>,
    },
    /// The value of a row of an ordered table; inserts the row if it does not exist.
    OrderedPut {
        /// The table.
        table: u16,
        /// The key.
        key: Bytes<'a>,
        /// The value.
        value: Bytes<'a>,
    },
    /// A row of an ordered table that does not exist yet.
    OrderedInsert {
        /// The table.
        table: u16,
        /// The key.
        key: Bytes<'a>,
        /// Its value.
        value: Bytes<'a>,
    },
}

/// A range of keys of an ordered table. The upper bound may be below the lower bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Keys<'a> {
    /// Lower bound, inclusive.
    #[serde(borrow)]
    pub from: Bytes<'a>,
    /// Upper bound, exclusive.
    pub until: Option<Bytes<'a>>,
    /// Whether the greatest key comes first.
    pub reverse: bool,
}

impl<'a> Keys<'a> {
    /// Returns the wire form of a range.
    pub fn of(range: &'a KeyRange, reverse: bool) -> Self {
        Self { from: Bytes(&range.from), until: range.until.as_deref().map(Bytes), reverse }
    }

    /// Returns the range.
    pub fn range(&self) -> KeyRange {
        KeyRange { from: self.from.0.to_vec(), until: self.until.map(|until| until.0.to_vec()) }
    }
}

/// Result of an operation on an ordered table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Found<'a> {
    /// Value of a row; `None` if there is no row.
    #[serde(borrow)]
    Value(Option<Bytes<'a>>),
    /// Whether there was a row to delete.
    Deleted(bool),
    /// Rows of a range.
    Rows {
        /// The rows, in their order.
        rows: Vec<PageRow<'a>>,
        /// End of a page: the least key of the range that is still to be read, or in reverse the
        /// least key already covered. `None` if the whole range is covered, or the number of rows
        /// has reached the limit.
        rest: Option<Bytes<'a>>,
    },
}
