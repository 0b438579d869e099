//! A history in memory: reads and writes of every attempt of a transaction.
//!
//! # Layout
//! Attempts are in the order of the file, and all operations are in one array. Rows (pairs of table
//! and key) are numbered, so that the other modules work on 32-bit indexes into flat arrays: 16
//! bytes per operation, about 80 per attempt.
//!
//! # Construction
//! [`Builder`] numbers rows and refuses malformed attempts; a [`History`] is immutable.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use ahash::AHasher;

use crate::error::{HistoryError, Problem};

/// Hasher with the same result in every run.
type Fixed = BuildHasherDefault<AHasher>;

/// Isolation level requested by an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isolation {
    /// `sr`: equivalent to some serial order.
    Serializable,
    /// `si`: reads from one snapshot, and the first of two concurrent writers of a row wins.
    Snapshot,
}

/// Outcome of an attempt, as far as its client knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// `ok`: committed.
    Committed,
    /// `fail`: certainly not committed.
    Aborted,
    /// `info`: unknown. The attempt took effect if an effective transaction read from it.
    Unknown,
}

/// An attempt of a transaction, without operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Id of the attempt; every retry has a new id.
    pub id: u64,
    /// Session of the client; attempts of one session never overlap.
    pub session: u64,
    /// Time of the request, on a clock that all sessions share.
    pub start: u64,
    /// Time of the answer. Only an attempt of unknown outcome may lack an end, and its end bounds
    /// nothing.
    pub end: Option<u64>,
    /// Isolation level requested.
    pub isolation: Isolation,
    /// Outcome.
    pub status: Status,
    /// Commit timestamp of a writer. Ignored for aborted attempts.
    pub commit_ts: Option<u64>,
    /// Timestamp of the snapshot that the attempt read from, if any.
    pub snapshot: Option<u64>,
}

/// Type of an operation on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read of the version; `None` means the row's initial state, present or not.
    Read,
    /// Write of the version.
    Write,
    /// Deletion of the row, which also writes a version.
    Delete,
}

/// A row's key within its table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key<'a> {
    /// A number.
    Number(u64),
    /// Any other key, as text.
    Text(&'a str),
}

/// An operation of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation<'a> {
    /// Type of the operation.
    pub access: Access,
    /// The row's table.
    pub table: &'a str,
    /// The row's key.
    pub key: Key<'a>,
    /// The version, unique for the row. `None` is the initial state and can only be read.
    pub version: Option<u64>,
}

/// Index of an attempt: its line number less one.
pub(crate) type AttemptIndex = u32;
/// Index of an operation in the history.
pub(crate) type OpIndex = u32;
/// Index of a row.
pub(crate) type RowIndex = u32;

/// Type of a stored operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    ReadInitial,
    Write,
}

/// A stored operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) version: u64,
    pub(crate) row: RowIndex,
    pub(crate) kind: Kind,
}

/// A key with text replaced by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RowKey {
    Number(u64),
    Text(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Row {
    table: u32,
    key: RowKey,
}

/// Attempts of transactions with their operations, ready to be checked.
#[derive(Debug, Default)]
pub struct History {
    attempts: Vec<Attempt>,
    /// End of the operations of each attempt.
    ends: Vec<OpIndex>,
    ops: Vec<Op>,
    rows: Vec<Row>,
    tables: Vec<String>,
    texts: Vec<String>,
}

impl History {
    /// Returns an empty history to be filled.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// All attempts, in the order of the file.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// Number of operations of all attempts.
    pub fn operation_count(&self) -> usize {
        self.ops.len()
    }

    /// Number of rows that occur in operations.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn attempt(&self, index: AttemptIndex) -> &Attempt {
        &self.attempts[index as usize]
    }

    pub(crate) fn indexes(&self) -> Range<AttemptIndex> {
        0..self.attempts.len() as u32
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub(crate) fn op(&self, index: OpIndex) -> Op {
        self.ops[index as usize]
    }

    pub(crate) fn ops_of(&self, attempt: AttemptIndex) -> Range<OpIndex> {
        let start = attempt.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        start..self.ends[attempt as usize]
    }

    /// All attempts, by session, in order of time.
    pub(crate) fn by_session(&self) -> Vec<AttemptIndex> {
        let mut order: Vec<AttemptIndex> = self.indexes().collect();
        order.sort_by_key(|index| {
            let attempt = self.attempt(*index);
            (attempt.session, attempt.start, attempt.end)
        });
        order
    }

    /// Displays a row as `table/key`.
    pub(crate) fn row(&self, row: RowIndex) -> impl fmt::Display + '_ {
        let Row { table, key } = self.rows[row as usize];
        fmt::from_fn(move |f| {
            write!(f, "{}/", self.tables[table as usize])?;
            match key {
                RowKey::Number(number) => write!(f, "{number}"),
                RowKey::Text(text) => f.write_str(&self.texts[text as usize]),
            }
        })
    }
}

/// Assigns numbers to distinct strings.
#[derive(Debug, Default)]
struct Interner {
    strings: Vec<String>,
    numbers: HashMap<String, u32, Fixed>,
}

impl Interner {
    fn number(&mut self, string: &str) -> u32 {
        if let Some(&number) = self.numbers.get(string) {
            return number;
        }
        let number = self.strings.len() as u32;
        self.strings.push(string.to_owned());
        self.numbers.insert(string.to_owned(), number);
        number
    }
}

/// Builds a [`History`] attempt by attempt.
///
/// ```
/// use lotus_checker::{Access, Attempt, History, Isolation, Key, Operation, Options, Status};
///
/// let write = Operation {
///     access: Access::Write,
///     table: "acct",
///     key: Key::Number(17),
///     version: Some(43),
/// };
/// let attempt = Attempt {
///     id: 7,
///     session: 3,
///     start: 100,
///     end: Some(140),
///     isolation: Isolation::Serializable,
///     status: Status::Committed,
///     commit_ts: Some(131),
///     snapshot: None,
/// };
/// let mut builder = History::builder();
/// builder.push(attempt, [write])?;
/// let history = builder.finish()?;
/// assert!(lotus_checker::check(&history, &Options::default()).is_clean());
/// # Ok::<(), lotus_checker::HistoryError>(())
/// ```
#[derive(Debug, Default)]
pub struct Builder {
    history: History,
    tables: Interner,
    texts: Interner,
    numbers: HashMap<Row, RowIndex, Fixed>,
}

impl Builder {
    /// Limit of rows, to leave room for row and link in an edge's label.
    const MAX_ROWS: usize = 1 << 29;
    /// Limit of attempts, to allow three graph nodes for an attempt.
    const MAX_ATTEMPTS: usize = 1 << 30;
    /// Limit of operations, which reserves some indexes for special values.
    const MAX_OPERATIONS: usize = (1 << 32) - 16;

    /// Adds an attempt with its operations in order of execution.
    ///
    /// # Errors
    /// [`HistoryError::Line`] if the format does not allow the attempt. Do not use the builder
    /// after an error.
    pub fn push<'a>(
        &mut self,
        attempt: Attempt,
        operations: impl IntoIterator<Item = Operation<'a>>,
    ) -> Result<(), HistoryError> {
        let line = self.history.attempts.len() + 1;
        let refused = |problem| HistoryError::Line { line, problem };
        for operation in operations {
            self.add_operation(operation).map_err(refused)?;
        }
        self.add_attempt(attempt).map_err(refused)
    }

    /// Adds an operation to the attempt that the next [`Self::add_attempt`] closes.
    pub(crate) fn add_operation(&mut self, operation: Operation<'_>) -> Result<(), Problem> {
        let kind = match (operation.access, operation.version) {
            (Access::Read, None) => Kind::ReadInitial,
            (Access::Read, Some(_)) => Kind::Read,
            (_, Some(_)) => Kind::Write,
            (_, None) => return Err(Problem::MissingField("version")),
        };
        let table = self.tables.number(operation.table);
        let key = match operation.key {
            Key::Number(number) => RowKey::Number(number),
            Key::Text(text) => RowKey::Text(self.texts.number(text)),
        };
        let rows = &mut self.history.rows;
        let row = *self.numbers.entry(Row { table, key }).or_insert_with(|| {
            rows.push(Row { table, key });
            rows.len() as u32 - 1
        });
        if rows.len() > Self::MAX_ROWS || self.history.ops.len() >= Self::MAX_OPERATIONS {
            return Err(Problem::TooLarge);
        }
        self.history.ops.push(Op { version: operation.version.unwrap_or(0), row, kind });
        Ok(())
    }

    /// Closes an attempt, which gets the operations added since the previous attempt.
    pub(crate) fn add_attempt(&mut self, attempt: Attempt) -> Result<(), Problem> {
        match attempt.end {
            Some(end) if end < attempt.start => return Err(Problem::EndsBeforeStart),
            None if attempt.status != Status::Unknown => return Err(Problem::MissingField("end")),
            _ => {}
        }
        if self.history.attempts.len() >= Self::MAX_ATTEMPTS {
            return Err(Problem::TooLarge);
        }
        self.history.attempts.push(attempt);
        self.history.ends.push(self.history.ops.len() as u32);
        Ok(())
    }

    /// Builds the history, if ids are unique and the attempts of each session do not overlap.
    ///
    /// # Errors
    /// [`HistoryError::Line`] with the later of the two conflicting lines.
    pub fn finish(self) -> Result<History, HistoryError> {
        let mut history = self.history;
        history.tables = self.tables.strings;
        history.texts = self.texts.strings;
        let line = |index: AttemptIndex| index as usize + 1;
        let mut by_id: Vec<AttemptIndex> = history.indexes().collect();
        by_id.sort_by_key(|index| history.attempt(*index).id);
        for pair in by_id.windows(2) {
            let id = history.attempt(pair[0]).id;
            if history.attempt(pair[1]).id == id {
                let problem = Problem::DuplicateId { id, first: line(pair[0]) };
                return Err(HistoryError::Line { line: line(pair[1]), problem });
            }
        }
        for pair in history.by_session().windows(2) {
            let [before, after] = [history.attempt(pair[0]), history.attempt(pair[1])];
            let overlaps = before.session == after.session
                && before.status != Status::Unknown
                && before.end.is_some_and(|end| after.start < end);
            if overlaps {
                let problem = Problem::SessionOverlap { with: line(pair[0]) };
                return Err(HistoryError::Line { line: line(pair[1]), problem });
            }
        }
        Ok(history)
    }
}
