//! A transaction of FORD until its commit: declaring rows, locking and reading them, logging.
//!
//! A row whose address is known takes one round trip: to write, a compare-and-swap of its lock and
//! a READ of the row behind it; to read, the READ alone. Otherwise a READ of its bucket brings it,
//! and a row to write is locked by the commit.

use std::cell::Cell;
use std::rc::Rc;

use lotus_benchmarks::engine::{Isolation, Item, Txn, TxnEngine, TxnKind};
use lotus_benchmarks::{AbortReason, TxnError};
use lotus_fabric::ids::{NodeSet, TableId, TxnId};
use lotus_fabric::lane::{Completed, Posted};
use lotus_fabric::verbs::Buffer;
use lotus_mvcc::PrimaryKey;

use super::Ford;
use super::item::{self, HEADER_WORDS, Header, INVISIBLE, LOCK_AT, WORD};
use crate::store::index::SlotNumber;
use crate::store::log::LogRing;
use crate::store::rows::{CONFLICT, RowUse, TxnRow, TxnRows, Value};
use crate::store::search::{Found, search};
use crate::store::seat::ThreadSeat;
use crate::store::{Faults, Locking, StoredTable};

/// Words before the rows of a log entry: transaction, and number of words.
const LOG_HEADER_WORDS: usize = 2;

/// What FORD knows of a row of a transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Its slot, or the free one that it will get.
    pub(super) slot: Option<SlotNumber>,
    /// Bucket where the search for it has ended, if there is no such row.
    pub(super) absent_in: Option<u64>,
    /// Whether this transaction holds its lock.
    pub(super) held: bool,
    /// Whether a compare-and-swap of its lock was posted.
    pub(super) tried: bool,
    /// Version that was read; 0 if the slot was free.
    pub(super) version: u64,
    /// Value that was read, also if the row was deleted.
    pub(super) old: Option<Value>,
    /// Whether its old value is in the log.
    logged: bool,
    /// Whether it was read.
    seen: bool,
}

impl Known {
    /// Notes the version that was read, unless another one was read before.
    fn note(&mut self, version: u64) -> Result<(), TxnError> {
        if self.seen && self.version != version {
            return Err(CONFLICT);
        }
        (self.seen, self.version) = (true, version);
        Ok(())
    }
}

/// What is under way for a row.
#[derive(Clone, Copy, Debug)]
enum RowStep {
    Bucket(u64),
    Item,
    LockAndItem,
}

/// Memory of a transaction that the next one of its coroutine uses again.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) rows: TxnRows<Known>,
    steps: Vec<(usize, RowStep)>,
    flights: Vec<(usize, RowStep, Posted, [Buffer; 2])>,
    log: LogRing,
    /// Log entries that have not landed.
    pub(super) logs: Vec<Posted>,
}

/// Begins the transactions of one coroutine.
pub(crate) struct Session {
    seat: Rc<ThreadSeat<Ford>>,
    task: usize,
    attempts: u64,
    spare: Rc<Cell<Option<Box<Scratch>>>>,
}

impl Session {
    pub(super) fn new(seat: Rc<ThreadSeat<Ford>>, task: usize) -> Self {
        Self { seat, task, attempts: 0, spare: Rc::default() }
    }
}

impl TxnEngine for Session {
    type Txn = FordTxn;

    async fn begin(&mut self, kind: TxnKind) -> Result<FordTxn, TxnError> {
        if kind == TxnKind::ReadWrite(Isolation::Snapshot) {
            return Err(TxnError::Fatal("FORD is serializable only".to_owned()));
        }
        let executor = self.seat.lane.executor();
        executor.env().transaction_begins();
        self.attempts += 1;
        Ok(FordTxn {
            id: self.seat.txn_id(self.task, self.attempts),
            start: self.seat.store.clock.next(executor.recent().0).raw(),
            may_write: kind != TxnKind::ReadOnly,
            faults: self.seat.store.options.faults,
            scratch: self.spare.take().unwrap_or_default(),
            spare: Rc::clone(&self.spare),
            seat: Rc::clone(&self.seat),
        })
    }
}

/// A transaction. Dropping it aborts it.
pub(crate) struct FordTxn {
    pub(super) seat: Rc<ThreadSeat<Ford>>,
    pub(super) id: TxnId,
    /// When it began: the version of what it writes.
    pub(super) start: u64,
    may_write: bool,
    pub(super) faults: Faults,
    pub(super) scratch: Box<Scratch>,
    spare: Rc<Cell<Option<Box<Scratch>>>>,
}

/// A verb that failed: no run survives that.
#[cold]
pub(super) fn broken(error: impl std::fmt::Display) -> TxnError {
    TxnError::Fatal(format!("FORD survives no failure here: {error}"))
}

impl FordTxn {
    pub(super) fn table(&self, number: usize) -> &StoredTable<Ford> {
        &self.seat.store.tables[number]
    }

    /// Whether a lock is another's, where locks are heeded.
    pub(super) fn is_shut_out(&self, lock: u64) -> bool {
        let heeds = self.faults == Faults::Mended;
        let heeds = heeds && self.seat.store.options.locking == Locking::On;
        heeds && lock != 0 && lock != self.id.raw()
    }

    fn first_step(&self, row: &TxnRow<Known>) -> (Option<SlotNumber>, RowStep) {
        let table = self.table(row.table);
        let known = row.engine.slot.filter(|_| row.engine.absent_in.is_none());
        let mut addresses = self.seat.addresses.borrow_mut();
        let find = || addresses.find(row.table, &row.key, table.loaded.as_ref());
        match known.or_else(find) {
            Some(slot) if row.access == RowUse::Read => (Some(slot), RowStep::Item),
            Some(slot) => (Some(slot), RowStep::LockAndItem),
            None => (None, RowStep::Bucket(table.geometry.bucket_of(&row.key))),
        }
    }

    fn post(&mut self, at: usize, step: RowStep) -> (usize, RowStep, Posted, [Buffer; 2]) {
        let mut batch = self.seat.lane.batch();
        let row = &self.scratch.rows.all()[at];
        let table = self.table(row.table);
        let mut buffers = [Buffer::EMPTY; 2];
        match step {
            RowStep::Bucket(bucket) => {
                let node = self.seat.store.placement.homes(row.table, bucket).primary;
                let addr = table.geometry.bucket_addr(node, table.region, bucket);
                buffers[1] = batch.read_stable(addr, table.geometry.bucket_bytes());
            }
            RowStep::Item | RowStep::LockAndItem => {
                let slot = row.engine.slot.expect("it is known");
                let node = self.seat.store.homes(table, slot).primary;
                let addr = table.slot(node, slot);
                let is_on = self.seat.store.options.locking == Locking::On;
                if is_on && matches!(step, RowStep::LockAndItem) {
                    let lock = addr.plus((LOCK_AT * WORD) as u64);
                    buffers[0] = batch.compare_and_swap(lock, 0, self.id.raw());
                }
                buffers[1] = batch.read_stable(addr, table.geometry.slot_bytes());
            }
        }
        let locks = matches!(step, RowStep::LockAndItem);
        self.scratch.rows.get(at).engine.tried |= locks;
        (at, step, batch.post(), buffers)
    }

    /// Takes in what a step has brought; returns the row's next one.
    fn take(
        &mut self,
        (at, step, [lock, read]): (usize, RowStep, [Buffer; 2]),
        done: &Completed,
    ) -> Result<Option<RowStep>, TxnError> {
        let words = done.words(read);
        match step {
            RowStep::Bucket(bucket) => self.search(at, bucket, words),
            RowStep::LockAndItem => {
                let held = match self.seat.store.options.locking {
                    Locking::On => done.words(lock)[0],
                    Locking::Off => 0,
                };
                if held != 0 && held != self.id.raw() {
                    return Err(CONFLICT);
                }
                self.scratch.rows.get(at).engine.held = true;
                self.judge(at, words).map(|()| None)
            }
            RowStep::Item => self.judge(at, words).map(|()| None),
        }
    }

    /// Looks for a row in its bucket.
    fn search(
        &mut self,
        at: usize,
        bucket: u64,
        words: &[u64],
    ) -> Result<Option<RowStep>, TxnError> {
        let row = &self.scratch.rows.all()[at];
        let table = self.table(row.table);
        let rows = self.scratch.rows.all().iter().enumerate();
        let is_mine = |slot| {
            rows.clone().any(|(other, row)| {
                let claims = row.engine.absent_in.is_some() && row.engine.slot == Some(slot);
                other != at && row.table == table.number && claims
            })
        };
        let mut addresses = self.seat.addresses.borrow_mut();
        let found = search(table, &row.key, (bucket, words), &mut addresses, is_mine);
        drop(addresses);
        match found {
            Found::GoOn(next) => Ok(Some(RowStep::Bucket(next))),
            Found::Full => Err(TxnError::Aborted(AbortReason::MemoryFull)),
            Found::There(slot, words) => {
                let row = self.scratch.rows.get(at);
                (row.engine.slot, row.engine.absent_in) = (Some(slot), None);
                self.judge(at, words).map(|()| None)
            }
            Found::Free(slot, words) => {
                if self.is_shut_out(words[LOCK_AT]) {
                    return Err(CONFLICT);
                }
                let row = self.scratch.rows.get(at);
                row.engine.absent_in = Some(bucket);
                row.engine.slot = (row.access > RowUse::Read).then_some(slot);
                (row.read, row.writer) = (None, None);
                row.engine.note(0).map(|()| None)
            }
        }
    }

    /// Takes a row in, unless it is being written, or was by a transaction that began later.
    fn judge(&mut self, at: usize, words: &[u64]) -> Result<(), TxnError> {
        let start = self.start;
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

    /// Posts the old values of the rows to write to the log on every memory node, for the commit to
    /// wait for.
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
        let nodes: NodeSet = self.seat.store.placement.nodes().collect();
        let mut batch = self.seat.lane.batch();
        self.scratch.log.put(&self.seat, &mut batch, nodes, &words)?;
        self.scratch.logs.push(batch.post());
        Ok(())
    }
}

impl Txn for FordTxn {
    fn id(&self) -> TxnId {
        self.id
    }

    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        let row = (key.into(), RowUse::Read);
        self.scratch.rows.declare(&self.seat.store, table, row, self.may_write)
    }

    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        let row = (key.into(), RowUse::Write);
        self.scratch.rows.declare(&self.seat.store, table, row, self.may_write)
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let row = (key.into(), RowUse::Insert);
        let item = self.scratch.rows.declare(&self.seat.store, table, row, self.may_write)?;
        self.put(item, value)?;
        Ok(item)
    }

    async fn execute(&mut self) -> Result<(), TxnError> {
        let mut steps = std::mem::take(&mut self.scratch.steps);
        let mut flights = std::mem::take(&mut self.scratch.flights);
        for at in 0..self.scratch.rows.all().len() {
            if self.scratch.rows.all()[at].is_new {
                let (slot, step) = self.first_step(&self.scratch.rows.all()[at]);
                let row = self.scratch.rows.get(at);
                // A slot that is locked stays known, so that the lock is freed.
                (row.is_new, row.engine.slot) = (false, slot.or(row.engine.slot));
                steps.push((at, step));
            }
        }
        let mut lost = None;
        while !steps.is_empty() && lost.is_none() {
            for (at, step) in steps.drain(..) {
                flights.push(self.post(at, step));
            }
            for (at, step, posted, buffers) in flights.drain(..) {
                let next = match posted.await {
                    Ok(done) => self.take((at, step, buffers), &done),
                    Err(error) => Err(broken(error)),
                };
                match next {
                    Ok(next) => steps.extend(next.map(|step| (at, step))),
                    Err(error) => lost = Some(lost.unwrap_or(error)),
                }
            }
        }
        steps.clear();
        (self.scratch.steps, self.scratch.flights) = (steps, flights);
        match lost {
            Some(error) => Err(error),
            None => self.log(),
        }
    }

    fn value(&self, item: Item) -> Option<&[u8]> {
        self.scratch.rows.value(item)
    }

    fn writer(&self, item: Item) -> Option<TxnId> {
        self.scratch.rows.writer(item)
    }

    fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let table = self.scratch.rows.all().get(item.0 as usize).map(|row| row.table);
        let table = self.table(table.unwrap_or(0));
        let lengths = (table.record_bytes, table.shape.value_words());
        self.scratch.rows.set(item, value, lengths)
    }

    fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        self.scratch.rows.delete(item)
    }
}

impl Drop for FordTxn {
    fn drop(&mut self) {
        self.let_go();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.rows.clear();
        scratch.logs.clear();
        self.spare.set(Some(scratch));
    }
}

impl FordTxn {
    /// Frees the locks that are still held at the primaries; as published, those that were tried.
    fn let_go(&mut self) {
        for row in self.scratch.rows.all() {
            let Known { held, tried, slot, .. } = row.engine;
            if tried && !held {
                self.seat.note_freed();
            }
            let frees = held || (tried && self.faults == Faults::AsPublished);
            if let (true, Some(slot)) = (frees, slot) {
                let table = self.table(row.table);
                let node = self.seat.store.homes(table, slot).primary;
                let mut batch = self.seat.lane.batch();
                batch.write_word(table.slot(node, slot).plus((LOCK_AT * WORD) as u64), 0);
                // What is posted later on this connection comes after it.
                drop(batch.post());
            }
        }
    }
}
