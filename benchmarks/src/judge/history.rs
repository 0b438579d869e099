//! History of every attempt's reads and writes, for an isolation checker.
//!
//! # Versions
//! A version is named by the attempt that wrote it. A read reports the writer of the version read
//! (`null` for a loaded row), a write or deletion its own attempt; a read-modify-write is a read
//! and a write. An aborted attempt's writes therefore carry a version that no read can have seen. A
//! read of an absent row is left out, as the attempt that deleted the row is not known.
//!
//! For an ordered table, the operations are on the rows that the engine stores for the table, the
//! nodes of a tree. A range reads all nodes that could contain keys of the range, present or
//! absent, so a phantom is an ordinary cycle.
//!
//! # Ownership
//! Each worker fills a [`Log`] of its own through [`Recorded`], which wraps a transaction and notes
//! the workload's calls. [`History`] merges the logs when all workers have ended.

use std::io::{self, Write};

use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::PrimaryKey;
use serde::{Deserialize, Serialize, Serializer};

use crate::contract::engine::{
    Finish, Isolation, Item, Ordered, Receipt, StoredRow, Txn, TxnError,
};

/// Outcome of an attempt, as far as its client knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Committed.
    Ok,
    /// Certainly not committed.
    Fail,
    /// Unknown.
    Info,
}

/// Facts about an attempt besides its operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// Id of the attempt.
    pub id: TxnId,
    /// Session of the client; the attempts of one session never overlap.
    pub session: u32,
    /// Begin, in nanoseconds.
    pub start_ns: u64,
    /// End, in nanoseconds.
    pub end_ns: u64,
    /// Isolation level of the attempt.
    pub isolation: Isolation,
    /// Outcome.
    pub status: Status,
    /// Timestamps of a committed attempt; otherwise the default.
    pub receipt: Receipt,
}

/// Type of an operation on a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Access {
    /// Read of the record.
    Read,
    /// Write of the record, or its insertion.
    Write,
    /// Deletion of the record.
    Delete,
}

/// One operation of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Type of the operation.
    pub access: Access,
    /// The record's table.
    pub table: TableId,
    /// The record's key.
    pub key: PrimaryKey,
    /// Writer of the version that was read or written; `None` for a loaded row.
    pub version: Option<TxnId>,
}

/// Attempts of a worker, in the order of their ends.
#[derive(Debug, Default)]
pub struct Log {
    /// Each attempt with the index of the end of its operations.
    attempts: Vec<(Attempt, usize)>,
    operations: Vec<Operation>,
    /// Records that the attempt in progress has declared.
    declared: Vec<(Item, TableId, PrimaryKey)>,
    /// Number of `declared` records that have been read.
    read: usize,
}

impl Log {
    /// Ends an attempt and assigns to it the operations recorded since the last call.
    pub fn finish(&mut self, attempt: Attempt) {
        self.declared.clear();
        self.read = 0;
        self.attempts.push((attempt, self.operations.len()));
    }

    /// Adds an attempt with operations that were recorded elsewhere.
    pub fn add(&mut self, attempt: Attempt, operations: impl IntoIterator<Item = Operation>) {
        self.operations.extend(operations);
        self.finish(attempt);
    }

    /// Takes the operations recorded since the last attempt ended, and starts over.
    pub fn take_operations(&mut self) -> Vec<Operation> {
        self.declared.clear();
        self.read = 0;
        self.operations.split_off(self.attempts.last().map_or(0, |(_, end)| *end))
    }

    fn note(&mut self, access: Access, item: usize, version: Option<TxnId>) {
        let (_, table, key) = self.declared[item];
        self.operations.push(Operation { access, table, key, version });
    }

    /// Notes a change of an item. An undeclared item was inserted, and the insertion noted.
    fn note_change(&mut self, access: Access, item: Item, version: TxnId) {
        let at = self.declared.iter().position(|(declared, ..)| *declared == item);
        if let Some(at) = at {
            self.note(access, at, Some(version));
        }
    }

    /// Every attempt with its operations, in the order of ending.
    fn entries(&self) -> impl Iterator<Item = (&Attempt, &[Operation])> {
        let starts = std::iter::once(0).chain(self.attempts.iter().map(|(_, end)| *end));
        self.attempts
            .iter()
            .zip(starts)
            .map(|((attempt, end), start)| (attempt, &self.operations[start..*end]))
    }
}

/// A transaction that records its operations in a log.
pub struct Recorded<'l, T> {
    txn: T,
    log: &'l mut Log,
}

impl<'l, T: Txn> Recorded<'l, T> {
    /// Records `txn` into `log`.
    pub fn new(txn: T, log: &'l mut Log) -> Self {
        Self { txn, log }
    }

    /// Returns the transaction, and stops recording.
    pub fn into_inner(mut self) -> T {
        self.note_stored();
        self.txn
    }
}

impl<T: Txn> Txn for Recorded<'_, T> {
    #[inline]
    fn id(&self) -> TxnId {
        self.txn.id()
    }

    #[inline]
    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        let key = key.into();
        let item = self.txn.add_ro(table, key)?;
        self.log.declared.push((item, table, key));
        Ok(item)
    }

    #[inline]
    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        let key = key.into();
        let item = self.txn.add_rw(table, key)?;
        self.log.declared.push((item, table, key));
        Ok(item)
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let key = key.into();
        let item = self.txn.insert(table, key, value)?;
        let (access, version) = (Access::Write, Some(self.txn.id()));
        self.log.operations.push(Operation { access, table, key, version });
        Ok(item)
    }

    #[inline]
    async fn execute(&mut self) -> Result<(), TxnError> {
        self.txn.execute().await?;
        for at in self.log.read..self.log.declared.len() {
            let item = self.log.declared[at].0;
            let writer = self.txn.writer(item);
            if writer.is_some() || self.txn.value(item).is_some() {
                self.log.note(Access::Read, at, writer);
            }
        }
        self.log.read = self.log.declared.len();
        Ok(())
    }

    #[inline]
    fn value(&self, item: Item) -> Option<&[u8]> {
        self.txn.value(item)
    }

    #[inline]
    fn writer(&self, item: Item) -> Option<TxnId> {
        self.txn.writer(item)
    }

    #[inline]
    fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        self.txn.put(item, value)?;
        self.log.note_change(Access::Write, item, self.txn.id());
        Ok(())
    }

    fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        self.txn.delete(item)?;
        self.log.note_change(Access::Delete, item, self.txn.id());
        Ok(())
    }

    async fn ordered(
        &mut self,
        table: TableId,
        operation: Ordered<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, TxnError> {
        self.txn.ordered(table, operation, visit).await
    }
}

impl<T: Txn> Recorded<'_, T> {
    /// Notes the rows that the engine stores for ordered tables.
    fn note_stored(&mut self) {
        let (operations, id) = (&mut self.log.operations, Some(self.txn.id()));
        self.txn.for_each_stored(&mut |row| {
            let StoredRow { table, key, read, written, deleted } = row;
            let mut note = |access, version| {
                operations.push(Operation { access, table, key, version });
            };
            if let Some(version) = read {
                note(Access::Read, version);
            }
            if written {
                note(Access::Write, id);
            }
            if deleted {
                note(Access::Delete, id);
            }
        });
    }
}

impl<T: Finish> Finish for Recorded<'_, T> {
    #[inline]
    async fn commit(mut self) -> Result<Receipt, TxnError> {
        self.note_stored();
        self.txn.commit().await
    }

    #[inline]
    fn abort(self) {
        self.txn.abort();
    }
}

/// Logs of all workers of a run.
#[derive(Debug)]
pub struct History {
    tables: Vec<(TableId, String)>,
    logs: Vec<Log>,
}

impl History {
    /// Builds a history from the logs, with the names of the tables.
    pub fn new(tables: Vec<(TableId, String)>, logs: Vec<Log>) -> Self {
        Self { tables, logs }
    }

    /// Every attempt with its operations, worker by worker.
    pub fn attempts(&self) -> impl Iterator<Item = (&Attempt, &[Operation])> {
        self.logs.iter().flat_map(Log::entries)
    }

    /// Writes JSON Lines, one attempt a line, ordered by start.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut entries: Vec<_> = self.attempts().collect();
        entries.sort_by_key(|(attempt, _)| (attempt.start_ns, attempt.id));
        let mut ops = Vec::new();
        for (attempt, operations) in entries {
            ops.clear();
            ops.extend(operations.iter().map(|operation| self.line_op(operation)));
            serde_json::to_writer(&mut *out, &HistoryLine::new(attempt, &ops))?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }

    fn line_op(&self, operation: &Operation) -> LineOp<'_> {
        let known = self.tables.iter().find(|(id, _)| *id == operation.table);
        let kind = match operation.access {
            Access::Read => 'r',
            Access::Write => 'w',
            Access::Delete => 'd',
        };
        let table = known.map_or("", |(_, name)| name.as_str());
        LineOp(kind, table, LineKey(operation.key), operation.version.map(TxnId::raw))
    }
}

/// One line of the file.
#[derive(Serialize)]
struct HistoryLine<'a> {
    id: u64,
    session: u32,
    start: u64,
    end: Option<u64>,
    iso: &'static str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    cts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snap: Option<u64>,
    ops: &'a [LineOp<'a>],
}

impl<'a> HistoryLine<'a> {
    fn new(attempt: &Attempt, ops: &'a [LineOp<'a>]) -> Self {
        Self {
            id: attempt.id.raw(),
            session: attempt.session,
            start: attempt.start_ns,
            // An attempt of unknown outcome may still take effect.
            end: (attempt.status != Status::Info).then_some(attempt.end_ns),
            iso: attempt.isolation.name(),
            status: attempt.status,
            cts: attempt.receipt.commit_ts,
            snap: attempt.receipt.snapshot,
            ops,
        }
    }
}

/// Type, table, key, version.
#[derive(Serialize)]
struct LineOp<'a>(char, &'a str, LineKey, Option<u64>);

/// A key, serialized as an integer if it has eight bytes, otherwise in hexadecimal.
struct LineKey(PrimaryKey);

impl Serialize for LineKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.as_bytes();
        match bytes.try_into() {
            Ok(word) => serializer.serialize_u64(u64::from_be_bytes(word)),
            Err(_) => serializer.collect_str(&format_args!("{bytes:02x?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::ids::Incarnation;

    fn id(attempt: u64) -> TxnId {
        TxnId::new(Incarnation::new(0).expect("small"), 0, attempt)
    }

    fn attempt(number: u64, status: Status, receipt: Receipt) -> Attempt {
        Attempt {
            id: id(number),
            session: 3,
            start_ns: 100 + number,
            end_ns: 140,
            isolation: Isolation::Serializable,
            status,
            receipt,
        }
    }

    /// One log, three attempts: read-modify-write, a failed write, and a read of unknown outcome.
    fn sample() -> History {
        let mut log = Log::default();
        let table = TableId(5);
        log.declared.push((Item(0), table, 17.into()));
        log.note(Access::Read, 0, None);
        log.note(Access::Write, 0, Some(id(1)));
        let receipt = Receipt { commit_ts: Some(131), snapshot: None };
        log.finish(attempt(1, Status::Ok, receipt));
        log.declared.push((Item(0), table, 9.into()));
        log.note(Access::Write, 0, Some(id(2)));
        log.finish(attempt(2, Status::Fail, Receipt::default()));
        log.declared.push((Item(0), table, 17.into()));
        log.note(Access::Read, 0, Some(id(1)));
        let receipt = Receipt { commit_ts: None, snapshot: Some(7) };
        log.finish(attempt(0, Status::Info, receipt));
        History::new(vec![(table, "acct".to_owned())], vec![Log::default(), log])
    }

    #[test]
    fn lines_are_as_the_design_says_and_ordered_by_start() {
        let mut text = Vec::new();
        sample().write(&mut text).expect("memory takes everything");
        let expected = concat!(
            r#"{"id":0,"session":3,"start":100,"end":null,"iso":"sr","status":"info","snap":7,"#,
            r#""ops":[["r","acct",17,1]]}"#,
            "\n",
            r#"{"id":1,"session":3,"start":101,"end":140,"iso":"sr","status":"ok","cts":131,"#,
            r#""ops":[["r","acct",17,null],["w","acct",17,1]]}"#,
            "\n",
            r#"{"id":2,"session":3,"start":102,"end":140,"iso":"sr","status":"fail","#,
            r#""ops":[["w","acct",9,2]]}"#,
            "\n",
        );
        assert_eq!(String::from_utf8(text).expect("JSON is text"), expected);
    }
}
