//! A transaction of FORD until its commit: declaring rows, locking and reading them, logging.
//!
//! A row with a known address takes one round trip: for a write, a compare-and-swap of the row's
//! lock and a READ of the row behind it; for a read, the READ alone. A row with an unknown address
//! is fetched by a READ of its bucket; a row to write is then locked by the commit.

use lotus_benchmarks::engine::{Isolation, Receipt, TxnKind};
use lotus_benchmarks::{AbortReason, TxnError};
use lotus_fabric::ids::{NodeSet, TxnId};
use lotus_fabric::lane::{Completed, Posted};
use lotus_fabric::verbs::Buffer;

use super::Ford;
use super::item::{self, HEADER_WORDS, Header, INVISIBLE, LOCK_AT, Shape, WORD};
use crate::store::attempt::{Attempt, Protocol};
use crate::store::rows::{CONFLICT, FULL, RowUse, Value};
use crate::store::search::Found;
use crate::store::thread_context::ThreadContext;
use crate::store::{Faults, Locking};

/// Words before the rows of a log entry: transaction, and number of words.
const LOG_HEADER_WORDS: usize = 2;

/// FORD's state for a row of a transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    /// Version that was read; 0 if the slot was free.
    pub(super) version: u64,
    /// Value that was read, even of a deleted row.
    pub(super) old: Option<Value>,
    /// Whether the row's old value is in the log.
    logged: bool,
    /// Whether the row was read.
    seen: bool,
}

impl Known {
    /// Records the version that was read, unless a different version was read before.
    fn note(&mut self, version: u64) -> Result<(), TxnError> {
        if self.seen && self.version != version {
            return Err(CONFLICT);
        }
        (self.seen, self.version) = (true, version);
        Ok(())
    }
}

/// Step under way for a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowStep {
    Bucket(u64),
    Item,
    LockAndItem,
}

impl Protocol for Ford {
    const LOCK_AT: usize = LOCK_AT;
    type Known = Known;
    type Step = RowStep;
    /// Buffers of the lock, and of the row or bucket.
    type Answers = [Buffer; 2];
    /// Start timestamp: the version of the rows that the transaction writes.
    type View = u64;

    fn view(context: &ThreadContext<Self>, _id: TxnId, kind: TxnKind) -> Result<u64, TxnError> {
        if kind == TxnKind::ReadWrite(Isolation::Snapshot) {
            return Err(TxnError::Fatal("FORD is serializable only".to_owned()));
        }
        Ok(context.store.clock.next(context.lane.executor().recent().0).raw())
    }

    fn find(bucket: u64) -> RowStep {
        RowStep::Bucket(bucket)
    }

    fn visit(access: RowUse) -> RowStep {
        if access == RowUse::Read { RowStep::Item } else { RowStep::LockAndItem }
    }

    fn locks(step: RowStep) -> bool {
        matches!(step, RowStep::LockAndItem)
    }

    fn post(txn: &mut FordTxn, at: usize, step: RowStep) -> ([Buffer; 2], Posted) {
        let row = &txn.scratch.rows.all()[at];
        let mut batch = txn.context.lane.batch();
        let answers = match step {
            RowStep::Bucket(bucket) => {
                [Buffer::EMPTY, txn.read_bucket(&mut batch, row.table, bucket)]
            }
            RowStep::Item | RowStep::LockAndItem => {
                let (table, (node, slot)) = (txn.table(row.table), txn.place(row));
                let addr = table.slot(node, slot);
                let lock = match step {
                    RowStep::LockAndItem => txn.lock(&mut batch, addr),
                    _ => Buffer::EMPTY,
                };
                [lock, batch.read_stable(addr, table.geometry.slot_bytes())]
            }
        };
        (answers, batch.post())
    }

    fn take(
        txn: &mut FordTxn,
        (at, step, [lock, read]): (usize, RowStep, [Buffer; 2]),
        done: &Completed,
    ) -> Result<Option<RowStep>, TxnError> {
        let words = done.words(read);
        match step {
            RowStep::Bucket(bucket) => return txn.find_in(at, bucket, words),
            RowStep::LockAndItem => txn.take_lock(at, lock, done)?,
            RowStep::Item => {}
        }
        txn.judge(at, words).map(|()| None)
    }

    fn executed(txn: &mut FordTxn) -> Result<(), TxnError> {
        txn.log()
    }

    fn value_words(shape: Shape) -> usize {
        shape.value_words()
    }

    async fn commit(txn: &mut FordTxn) -> Result<Receipt, TxnError> {
        txn.commit_all().await
    }
}

/// A transaction.
pub(crate) type FordTxn = Attempt<Ford>;

impl FordTxn {
    /// Whether another transaction holds a lock; false where locks are ignored.
    pub(super) fn is_shut_out(&self, lock: u64) -> bool {
        let crate::Options { faults, locking, .. } = self.context.store.options;
        let heeds = faults == Faults::Mended && locking == Locking::On;
        heeds && lock != 0 && lock != self.id.raw()
    }

    /// Searches for a row in its bucket.
    fn find_in(
        &mut self,
        at: usize,
        bucket: u64,
        words: &[u64],
    ) -> Result<Option<RowStep>, TxnError> {
        let found = self.search(at, bucket, words);
        match found {
            Found::GoOn(next) => Ok(Some(RowStep::Bucket(next))),
            Found::Full => Err(FULL),
            Found::There(slot, words) => {
                let row = self.scratch.rows.get(at);
                (row.slot, row.absent_in) = (Some(slot), None);
                self.judge(at, words).map(|()| None)
            }
            Found::Free(slot, words) => {
                if self.is_shut_out(words[LOCK_AT]) {
                    return Err(CONFLICT);
                }
                let row = self.scratch.rows.get(at);
                row.absent_in = Some(bucket);
                row.slot = (row.access > RowUse::Read).then_some(slot);
                (row.read, row.writer) = (None, None);
                row.engine.note(0).map(|()| None)
            }
        }
    }

    /// Accepts a row, unless the row is being written, or was written by a transaction that began
    /// later.
    fn judge(&mut self, at: usize, words: &[u64]) -> Result<(), TxnError> {
        let start = self.view;
        let (table, access) = {
            let row = &self.scratch.rows.all()[at];
            if !item::is_of(words, row.table, &row.key) {
                return Err(CONFLICT);
            }
            (row.table, row.access)
        };
        let header = Header::of(words);
        if header.lock & INVISIBLE != 0 || header.version > start {
            return Err(CONFLICT);
        }
        let shape = self.table(table).shape;
        let bytes = header.bytes.unwrap_or(0) as usize;
        if bytes > shape.value_words() * WORD {
            return Err(TxnError::Fatal(format!("a value of {bytes} bytes")));
        }
        if header.bytes.is_some() && access == RowUse::Insert {
            return Err(TxnError::Aborted(AbortReason::Logic));
        }
        let value = self.scratch.rows.room(shape.value_words(), bytes);
        let room = self.scratch.rows.words_mut(value, shape.value_words());
        room.copy_from_slice(&words[HEADER_WORDS..]);
        let row = self.scratch.rows.get(at);
        row.engine.note(header.version)?;
        row.engine.old = Some(value);
        row.read = header.bytes.map(|_| value);
        row.writer = header.bytes.and_then(|_| header.writer());
        Ok(())
    }

    /// Posts the old values of the rows to write to the log on every memory node. The commit waits
    /// for completion.
    fn log(&mut self) -> Result<(), TxnError> {
        let mut words = vec![self.id.raw(), 0];
        for at in 0..self.scratch.rows.all().len() {
            let row = &self.scratch.rows.all()[at];
            let Some(old) = row.engine.old else { continue };
            if row.access == RowUse::Read || row.engine.logged {
                continue;
            }
            let value_words = self.table(row.table).shape.value_words();
            let header = Header {
                version: row.engine.version,
                lock: 0,
                writer: row.writer.map_or(0, TxnId::raw),
                bytes: row.read.map(|value| value.bytes),
            };
            words.extend(header.to_words(row.table, &row.key));
            words.extend(self.scratch.rows.words(old, value_words));
            self.scratch.rows.get(at).engine.logged = true;
        }
        if words.len() == LOG_HEADER_WORDS {
            return Ok(());
        }
        words[1] = words.len() as u64;
        let nodes: NodeSet = self.context.store.placement.nodes().collect();
        let mut batch = self.context.lane.batch();
        self.scratch.log.put(&self.context, &mut batch, nodes, &words)?;
        self.scratch.logs.push(batch.post());
        Ok(())
    }
}
