//! A transaction of Motor until its commit: declaring rows, locking and reading them.
//!
//! An execution goes in rounds. In each, every row that is not done has one doorbell under way, and
//! what that brings decides the row's next step:
//!
//! | row | where its address is known | where it is not |
//! |---|---|---|
//! | to write | lock and version table, then value | bucket, then lock, version table and value |
//! | to read | version table, then value | bucket, then value |
//! | absent | | bucket, then lock and version table of the free slot |
//!
//! A round is taken in to its end also when some row has lost, since locks were got meanwhile.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use lotus_benchmarks::engine::{Item, Txn, TxnEngine, TxnKind};
use lotus_benchmarks::{AbortReason, TxnError};
use lotus_fabric::ids::{TableId, TxnId};
use lotus_fabric::lane::{Completed, Posted};
use lotus_fabric::verbs::Buffer;
use lotus_mvcc::PrimaryKey;

use super::Motor;
use super::decide::{TxnView, VersionPlace, newer, place};
use super::row::{self, Cell, Cvt, Delta, HEADER_WORDS, LOCK_AT, Link, WORD};
use crate::store::index::SlotNumber;
use crate::store::log::LogRing;
use crate::store::rows::{CONFLICT, RowUse, TxnRow, TxnRows, Value};
use crate::store::search::{Found, search};
use crate::store::seat::ThreadSeat;
use crate::store::{Faults, Locking, StoredTable};

/// What Motor knows of a row of a transaction.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Its slot, or the free one that it will get.
    pub(super) slot: Option<SlotNumber>,
    /// Bucket where the search for it has ended, if there is no such row.
    pub(super) absent_in: Option<u64>,
    /// Whether the slot was free, and is locked for this row.
    pub(super) claimed: bool,
    /// Whether this transaction holds its lock.
    pub(super) held: bool,
    /// Whether a compare-and-swap of its lock was posted.
    pub(super) tried: bool,
    /// Timestamp of its newest version; 0 if there is none.
    pub(super) newest: u64,
    /// Offset of its bar of deltas, if there is one.
    pub(super) bar: Option<u64>,
    /// Where its next version goes, if it is to be written.
    pub(super) place: VersionPlace,
    /// Version that was chosen, which may be that of a deletion; none if there is none.
    seen: Option<Cell>,
    /// What is at both ends of the value of that version.
    anchor: u64,
    /// Versions to take back, the newest first.
    newer: Vec<(u64, Delta)>,
    /// Content of that version, if it was read.
    pub(super) content: Option<Value>,
    /// Whether the row gets its bar of deltas with this commit.
    pub(super) new_bar: bool,
}

/// The next step of a row.
#[derive(Clone, Copy, Debug)]
enum RowStep {
    /// Read a bucket to find the slot.
    Bucket(u64),
    /// Read the version table.
    Cvt,
    /// Lock, and read the version table.
    Lock,
    /// Lock, and read version table and the value at this place, where the bucket had the newest.
    LockAndValue(u8),
    /// Lock a free slot.
    Claim,
    /// Read the value, and the deltas of versions that are to be taken back.
    Value,
}

impl RowStep {
    const fn locks(self) -> bool {
        matches!(self, Self::Lock | Self::LockAndValue(_) | Self::Claim)
    }
}

/// A doorbell for a row: what it brings, and where.
struct Flight {
    row: usize,
    step: RowStep,
    lock: Buffer,
    slot: Buffer,
    value: Buffer,
    deltas: Vec<Buffer>,
}

/// Memory of a transaction that the next one of its coroutine uses again.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) rows: TxnRows<Known>,
    steps: Vec<(usize, RowStep)>,
    flights: Vec<(Flight, Posted)>,
    pub(super) log: LogRing,
}

/// Begins the transactions of one coroutine.
pub(crate) struct Session {
    seat: Rc<ThreadSeat<Motor>>,
    task: usize,
    attempts: u64,
    spare: Rc<std::cell::Cell<Option<Box<Scratch>>>>,
}

impl Session {
    pub(super) fn new(seat: Rc<ThreadSeat<Motor>>, task: usize) -> Self {
        Self { seat, task, attempts: 0, spare: Rc::default() }
    }
}

impl TxnEngine for Session {
    type Txn = MotorTxn;

    async fn begin(&mut self, kind: TxnKind) -> Result<MotorTxn, TxnError> {
        self.seat.lane.executor().env().transaction_begins();
        self.attempts += 1;
        let id = self.seat.txn_id(self.task, self.attempts);
        let start = self.seat.store.clock.latest().raw();
        let crate::Options { faults, locking, .. } = self.seat.store.options;
        let scratch = self.spare.take().unwrap_or_default();
        Ok(MotorTxn {
            seat: Rc::clone(&self.seat),
            reader: TxnView { kind, start, id: id.raw(), faults, locking },
            scratch,
            spare: Rc::clone(&self.spare),
        })
    }
}

/// A transaction. Dropping it aborts it.
pub(crate) struct MotorTxn {
    pub(super) seat: Rc<ThreadSeat<Motor>>,
    pub(super) reader: TxnView,
    pub(super) scratch: Box<Scratch>,
    spare: Rc<std::cell::Cell<Option<Box<Scratch>>>>,
}

/// A verb that failed: no run survives that.
#[cold]
pub(super) fn broken(error: impl std::fmt::Display) -> TxnError {
    TxnError::Fatal(format!("Motor survives no failure: {error}"))
}

impl MotorTxn {
    pub(super) fn table(&self, number: usize) -> &StoredTable<Motor> {
        &self.seat.store.tables[number]
    }

    fn add(&mut self, table: TableId, key: PrimaryKey, access: RowUse) -> Result<Item, TxnError> {
        let may_write = self.reader.kind != TxnKind::ReadOnly;
        self.scratch.rows.declare(&self.seat.store, table, (key, access), may_write)
    }

    /// First step of a row that was added.
    fn first_step(&self, row: &TxnRow<Known>) -> (Option<SlotNumber>, RowStep) {
        let table = self.table(row.table);
        let known = row.engine.slot.filter(|_| row.engine.absent_in.is_none());
        let mut addresses = self.seat.addresses.borrow_mut();
        let find = || addresses.find(row.table, &row.key, table.loaded.as_ref());
        match known.or_else(find) {
            Some(slot) if row.access == RowUse::Read => (Some(slot), RowStep::Cvt),
            Some(slot) => (Some(slot), RowStep::Lock),
            None => (None, RowStep::Bucket(table.geometry.bucket_of(&row.key))),
        }
    }

    /// Posts a step of a row.
    fn post(&self, row: usize, step: RowStep) -> (Flight, Posted) {
        let known = &self.scratch.rows.all()[row];
        let table = self.table(known.table);
        let mut batch = self.seat.lane.batch();
        let mut buffers = [Buffer::EMPTY; 3];
        let mut deltas = Vec::new();
        if let RowStep::Bucket(bucket) = step {
            let homes = self.seat.store.placement.homes(known.table, bucket);
            let at = table.geometry.bucket_addr(homes.primary, table.region, bucket);
            buffers[1] = batch.read_stable(at, table.geometry.bucket_bytes());
        } else {
            let slot =
                known.engine.slot.expect("a step that needs the slot comes when it is known");
            let node = self.seat.store.homes(table, slot).primary;
            let at = table.slot(node, slot);
            if step.locks() && self.reader.locking == Locking::On {
                let lock = at.plus((LOCK_AT * WORD) as u64);
                buffers[0] = batch.compare_and_swap(lock, 0, self.reader.id);
            }
            if !matches!(step, RowStep::Value) {
                buffers[1] = batch.read_stable(at, table.geometry.slot_bytes());
            }
            if let (RowStep::Value, Some(bar)) = (step, known.engine.bar) {
                // Before the value: a writer overwrites that first, and so would be noticed.
                deltas.extend(known.engine.newer.iter().map(|(_, delta)| {
                    let bytes = table.shape.words_of_delta(delta.changed) * WORD;
                    let at = bar + table.shape.delta_at(delta.place);
                    batch.read_stable(super::commit::shared(node, at), bytes)
                }));
            }
            let place = match step {
                RowStep::LockAndValue(place) => Some(place),
                RowStep::Value => known.engine.seen.map(|seen| seen.value_place()),
                _ => None,
            };
            if let Some(place) = place {
                let at = table.beside(node, slot).plus(table.shape.value_at(place));
                buffers[2] = batch.read_stable(at, table.shape.value_words() * WORD);
            }
        }
        let [lock, slot, value] = buffers;
        (Flight { row, step, lock, slot, value, deltas }, batch.post())
    }

    /// Takes in what a step has brought; returns the row's next one.
    fn take(&mut self, flight: &Flight, done: &Completed) -> Result<Option<RowStep>, TxnError> {
        match flight.step {
            RowStep::Bucket(bucket) => self.search(flight.row, bucket, done.words(flight.slot)),
            RowStep::Cvt => self.judge(flight.row, done.words(flight.slot)),
            RowStep::Lock | RowStep::LockAndValue(_) | RowStep::Claim => {
                let held = match self.reader.locking {
                    Locking::On => done.words(flight.lock)[0],
                    Locking::Off => 0,
                };
                let row = self.scratch.rows.get(flight.row);
                // Also held if this row is locked again, to be written after it was inserted.
                if held != 0 && held != self.reader.id {
                    return Err(CONFLICT);
                }
                row.engine.held = true;
                let slot = done.words(flight.slot);
                if matches!(flight.step, RowStep::Claim) {
                    return self.claim(flight.row, slot);
                }
                let next = self.judge(flight.row, slot)?;
                let seen = self.scratch.rows.all()[flight.row].engine.seen;
                let place = seen.map_or(0, |seen| seen.value_place());
                match (flight.step, next) {
                    (RowStep::LockAndValue(read), Some(_)) if read == place => {
                        self.take_value(flight, done).map(|()| None)
                    }
                    (_, next) => Ok(next),
                }
            }
            RowStep::Value => self.take_value(flight, done).map(|()| None),
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
        let is_mine = |slot| self.claims(row.table, slot, at);
        let mut addresses = self.seat.addresses.borrow_mut();
        let found = search(table, &row.key, (bucket, words), &mut addresses, is_mine);
        drop(addresses);
        let row = self.scratch.rows.get(at);
        match (found, row.access) {
            (Found::GoOn(next), _) => Ok(Some(RowStep::Bucket(next))),
            (Found::Full, _) => Err(TxnError::Aborted(AbortReason::MemoryFull)),
            (Found::There(slot, words), access) => {
                (row.engine.slot, row.engine.absent_in) = (Some(slot), None);
                match access {
                    RowUse::Read => self.judge(at, words),
                    _ => {
                        let newest = Cvt::of(words).and_then(|cvt| cvt.newest());
                        let place = newest.map_or(0, |cell| cell.value_place());
                        Ok(Some(RowStep::LockAndValue(place)))
                    }
                }
            }
            (Found::Free(_, words), RowUse::Read) => {
                row.engine.absent_in = Some(bucket);
                if self.reader.is_shut_out(words[LOCK_AT]) { Err(CONFLICT) } else { Ok(None) }
            }
            (Found::Free(slot, _), _) => {
                (row.engine.slot, row.engine.absent_in) = (Some(slot), Some(bucket));
                Ok(Some(RowStep::Claim))
            }
        }
    }

    /// Whether another row of this transaction has claimed a free slot.
    fn claims(&self, table: usize, slot: SlotNumber, but: usize) -> bool {
        let rows = self.scratch.rows.all().iter().enumerate();
        rows.filter(|(at, _)| *at != but).any(|(_, row)| {
            row.table == table && row.engine.absent_in.is_some() && row.engine.slot == Some(slot)
        })
    }

    /// Takes a free slot that was locked, unless another row has come there before.
    fn claim(&mut self, at: usize, words: &[u64]) -> Result<Option<RowStep>, TxnError> {
        let row = self.scratch.rows.get(at);
        if row::key_in(words).is_some() {
            return Err(CONFLICT);
        }
        row.engine.claimed = true;
        let number = row.table;
        self.table(number).filled.fetch_add(1, Ordering::Relaxed);
        let row = self.scratch.rows.get(at);
        (row.read, row.writer) = (None, None);
        Ok(None)
    }

    /// Chooses the version that this transaction sees of a row.
    fn judge(&mut self, at: usize, words: &[u64]) -> Result<Option<RowStep>, TxnError> {
        let reader = self.reader;
        let row = self.scratch.rows.get(at);
        if !row::is_of(words, row.table, &row.key) {
            return Err(CONFLICT);
        }
        let Some(cvt) = Cvt::of(words) else {
            self.seat.note_torn();
            return Err(CONFLICT);
        };
        (row.read, row.writer, row.engine.content) = (None, None, None);
        let seen = reader.version(&cvt, row.access)?;
        (row.engine.newest, row.engine.bar, row.engine.seen) =
            (cvt.newest_version(), cvt.bar(), seen);
        if row.access > RowUse::Read {
            row.engine.place = place(&cvt);
        }
        if let Some(seen) = &seen {
            row.engine.anchor = cvt.anchor(seen);
            row.engine.newer = newer(&cvt, seen.version);
        }
        match (seen, row.access) {
            (Some(Cell { deleted: false, .. }), RowUse::Insert) => {
                Err(TxnError::Aborted(AbortReason::Logic))
            }
            (Some(Cell { deleted: true, .. }), RowUse::Read) | (None, _) => Ok(None),
            (Some(Cell { deleted: true, link: Link::Record { .. }, .. }), _) => Ok(None),
            // A writer needs the content of a row that was deleted, too, for its delta.
            (Some(_), _) => Ok(Some(RowStep::Value)),
        }
    }

    /// Takes in a value: the record of the version, or the newest value and what takes newer
    /// versions back.
    fn take_value(&mut self, flight: &Flight, done: &Completed) -> Result<(), TxnError> {
        let row = self.scratch.rows.get(flight.row);
        let (table, known) = (row.table, &mut row.engine);
        let seen = known.seen.expect("a value is read of a version that was chosen");
        let (anchor, newer) = (known.anchor, std::mem::take(&mut known.newer));
        let shape = self.table(table).shape;
        if seen.bytes as usize > (shape.content_words - 1) * WORD {
            return Err(TxnError::Fatal(format!("a value of {} bytes", seen.bytes)));
        }
        let value = done.words(flight.value);
        // Without locks, two writers may leave the value of one beside the cell of the other.
        let anchor = match self.reader.locking {
            Locking::On => anchor,
            Locking::Off => value[0],
        };
        let content = shape.content_of(value, anchor);
        // A table that was read in the middle of a row's first update may lack the bar.
        let Some(content) = content.filter(|_| newer.len() == flight.deltas.len()) else {
            self.seat.note_torn();
            return Err(CONFLICT);
        };
        let value = self.scratch.rows.keep(content, seen.bytes as usize);
        let words = self.scratch.rows.words_mut(value, shape.content_words);
        for (delta, buffer) in newer.into_iter().zip(&flight.deltas) {
            if !shape.take_back(delta, done.words(*buffer), words) {
                self.seat.note_torn();
                return Err(CONFLICT);
            }
        }
        let writer = row::writer_of(words);
        let row = self.scratch.rows.get(flight.row);
        row.engine.content = Some(value);
        if !seen.deleted {
            (row.read, row.writer) = (Some(value), writer);
        }
        Ok(())
    }
}

impl Txn for MotorTxn {
    fn id(&self) -> TxnId {
        TxnId::from_raw(self.reader.id)
    }

    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add(table, key.into(), RowUse::Read)
    }

    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add(table, key.into(), RowUse::Write)
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let item = self.add(table, key.into(), RowUse::Insert)?;
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
            for (row, step) in steps.drain(..) {
                self.scratch.rows.get(row).engine.tried |= step.locks();
                flights.push(self.post(row, step));
            }
            for (flight, posted) in flights.drain(..) {
                let next = match posted.await {
                    Ok(done) => self.take(&flight, &done),
                    Err(error) => Err(broken(error)),
                };
                match next {
                    Ok(next) => steps.extend(next.map(|step| (flight.row, step))),
                    Err(error) => lost = Some(lost.unwrap_or(error)),
                }
            }
        }
        steps.clear();
        (self.scratch.steps, self.scratch.flights) = (steps, flights);
        lost.map_or(Ok(()), Err)
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
        let content_words = table.shape.content_words;
        self.scratch.rows.set(item, value, (table.record_bytes, content_words))?;
        self.sign(item, content_words);
        Ok(())
    }

    fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        self.scratch.rows.delete(item)?;
        let row = &self.scratch.rows.all()[item.0 as usize];
        let (content_words, read) = (self.table(row.table).shape.content_words, row.read);
        // The content stays, with another writer.
        let new = self.scratch.rows.copy(read, content_words);
        self.scratch.rows.get(item.0 as usize).new = new;
        self.sign(item, content_words);
        Ok(())
    }
}

impl Drop for MotorTxn {
    fn drop(&mut self) {
        self.let_go();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.rows.clear();
        self.spare.set(Some(scratch));
    }
}

impl MotorTxn {
    /// Names this transaction as the writer of a row's new content.
    fn sign(&mut self, item: Item, content_words: usize) {
        let (new, id) = (self.scratch.rows.all()[item.0 as usize].new, self.reader.id);
        self.scratch.rows.words_mut(new, content_words)[content_words - 1] = id;
    }

    /// Frees the locks that are still held; as published, those that were tried.
    fn let_go(&mut self) {
        let published = self.reader.faults == Faults::AsPublished;
        for at in 0..self.scratch.rows.all().len() {
            let known = &self.scratch.rows.all()[at].engine;
            if known.tried && !known.held {
                self.seat.note_freed();
            }
            if known.held || (published && known.tried) {
                self.unlock(at);
            }
            let row = self.scratch.rows.get(at);
            (row.engine.held, row.engine.tried) = (false, false);
        }
    }

    /// Frees the lock of a row at its primary, without waiting for that.
    fn unlock(&self, at: usize) {
        let row = &self.scratch.rows.all()[at];
        let Some(slot) = row.engine.slot else { return };
        let table = self.table(row.table);
        let node = self.seat.store.homes(table, slot).primary;
        let mut batch = self.seat.lane.batch();
        batch.write_word(table.slot(node, slot).plus((LOCK_AT * WORD) as u64), 0);
        // What is posted later on this connection comes after it.
        drop(batch.post());
    }
}

const _: () = assert!(LOCK_AT < HEADER_WORDS);
