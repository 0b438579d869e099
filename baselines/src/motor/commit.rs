//! The commit of a transaction of Motor: validation, and the WRITEs to all replicas.
//!
//! Each written row has one doorbell for each replica: value, delta, cell, lock, in this order. A
//! reader that sees the cell before the lock is free waits for nothing, and is refused; one that
//! has an older version table finds the value to be of another version. None of it is awaited: what
//! is posted later on the same connections comes after it.

use lotus_benchmarks::engine::{Finish, Isolation, Receipt, TxnKind};
use lotus_benchmarks::{AbortReason, TxnError};
use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::lane::Batch;

use super::decide;
use super::row::{self, CELL_WORDS, Cell, Cvt, DELTA_AT, HEADER_WORDS, LOCK_AT, WORD};
use super::txn::{MotorTxn, broken};
use crate::store::SHARED_REGION;
use crate::store::placement::Homes;
use crate::store::rows::{CONFLICT, Change, RowUse};
use crate::store::search::may_have_come;

/// Address of byte `offset` of the deltas on a node.
pub(super) fn shared(node: NodeId, offset: u64) -> RemoteAddr {
    RemoteAddr::new(node, SHARED_REGION, offset)
}

impl Finish for MotorTxn {
    async fn commit(mut self) -> Result<Receipt, TxnError> {
        if self.scratch.rows.all().iter().any(|row| row.is_new) {
            lotus_benchmarks::engine::Txn::execute(&mut self).await?;
        }
        let start = Some(self.reader.start);
        let rows = self.scratch.rows.all();
        let writes = rows.iter().any(|row| row.change != Change::None);
        let snapshot = match self.reader.kind {
            TxnKind::ReadWrite(Isolation::Serializable) => None,
            TxnKind::ReadWrite(Isolation::Snapshot) | TxnKind::ReadOnly => start,
        };
        if !writes {
            return Ok(Receipt { commit_ts: None, snapshot });
        }
        self.scratch.rows.check_changes()?;
        let now = self.seat.lane.executor().recent();
        let commit = self.seat.store.clock.next(now.0).raw();
        if self.reader.is_serializable_writer() {
            self.validate(commit).await?;
        }
        self.write_all(commit)?;
        Ok(Receipt { commit_ts: Some(commit), snapshot })
    }

    fn abort(self) {
        drop(self);
    }
}

impl MotorTxn {
    /// Reads the version tables of all rows that were only read again, and aborts if one has
    /// changed.
    async fn validate(&mut self, commit: u64) -> Result<(), TxnError> {
        let mut posted = Vec::new();
        for (at, row) in self.scratch.rows.all().iter().enumerate() {
            if row.access != RowUse::Read {
                continue;
            }
            let table = self.table(row.table);
            let mut batch = self.seat.lane.batch();
            let buffer = match (row.engine.absent_in, row.engine.slot) {
                (None, Some(slot)) => {
                    let node = self.seat.store.homes(table, slot).primary;
                    batch.read_stable(table.slot(node, slot), table.geometry.slot_bytes())
                }
                (Some(bucket), _) => {
                    let node = self.seat.store.placement.homes(row.table, bucket).primary;
                    let at = table.geometry.bucket_addr(node, table.region, bucket);
                    batch.read_stable(at, table.geometry.bucket_bytes())
                }
                (None, None) => unreachable!("a row that was executed was found or is absent"),
            };
            posted.push((at, batch.post(), buffer));
        }
        let mut changed = false;
        for (at, posted, buffer) in posted {
            let done = posted.await.map_err(broken)?;
            changed |= self.has_changed(at, done.words(buffer), commit);
        }
        if changed { Err(CONFLICT) } else { Ok(()) }
    }

    /// Whether a row that was read has changed since, as far as these words tell.
    fn has_changed(&self, at: usize, words: &[u64], commit: u64) -> bool {
        let row = &self.scratch.rows.all()[at];
        if row.engine.absent_in.is_none() {
            let version = row.engine.cvt.newest_version();
            let cvt = Cvt::of(words);
            return cvt.is_none_or(|cvt| self.reader.has_changed(&cvt, version, commit));
        }
        let is_shut_out = |slot: &[u64]| self.reader.is_shut_out(slot[LOCK_AT]);
        may_have_come(self.table(row.table), &row.key, words, is_shut_out)
    }

    /// Posts the WRITEs of all rows, which frees their locks.
    fn write_all(&mut self, commit: u64) -> Result<(), TxnError> {
        self.reserve_deltas()?;
        for at in 0..self.scratch.rows.all().len() {
            let row = &self.scratch.rows.all()[at];
            match (row.change, row.engine.claimed) {
                (Change::None, false) => continue,
                (Change::None, true) => self.leave_empty(at),
                (_, true) => self.write_new(at, commit),
                (_, false) => self.write_version(at, commit),
            }
            let row = self.scratch.rows.get(at);
            (row.engine.held, row.engine.tried) = (false, false);
        }
        Ok(())
    }

    /// Takes a bar of deltas for each row that is updated for the first time.
    fn reserve_deltas(&mut self) -> Result<(), TxnError> {
        for at in 0..self.scratch.rows.all().len() {
            let row = &self.scratch.rows.all()[at];
            let known = row.engine;
            let is_update = row.change != Change::None && !known.claimed;
            if !is_update || known.cvt.bar.is_some() || known.cvt.newest().is_none() {
                continue;
            }
            let bytes = self.table(row.table).shape.bar_bytes();
            let full = TxnError::Aborted(AbortReason::MemoryFull);
            let bar = self.seat.take(bytes).ok_or(full)?;
            let row = self.scratch.rows.get(at);
            (row.engine.cvt.bar, row.engine.new_bar) = (Some(bar), true);
        }
        Ok(())
    }

    /// The new content of a row: its value, and the writer.
    fn content(&self, at: usize) -> Vec<u64> {
        let row = &self.scratch.rows.all()[at];
        let words = self.table(row.table).shape.content_words;
        let value = match (row.change, row.read) {
            (Change::Put, _) => row.new,
            (_, Some(read)) => read,
            (_, None) => unreachable!("only a row that exists is deleted"),
        };
        let mut content = self.scratch.rows.words(value, words).to_vec();
        if let Some(writer) = content.last_mut() {
            *writer = self.reader.id;
        }
        content
    }

    fn cell(&self, at: usize, commit: u64) -> Cell {
        let row = &self.scratch.rows.all()[at];
        let deleted = row.change == Change::Delete;
        let bytes = if deleted { 0 } else { row.new.bytes };
        Cell { version: commit, bytes, deleted, ..Cell::default() }
    }

    fn place_of(&self, at: usize) -> (u64, Homes) {
        let row = &self.scratch.rows.all()[at];
        let slot = row.engine.slot.expect("a row that is written has a slot");
        (slot, self.seat.store.homes(self.table(row.table), slot))
    }

    /// Adds the WRITE of a value to a batch.
    fn put_value(&self, batch: &mut Batch, at: usize, commit: u64, content: &[u64]) {
        let (slot, homes) = self.place_of(at);
        let table = self.table(self.scratch.rows.all()[at].table);
        let staged = batch.stage(table.shape.value_words() * WORD);
        table.shape.write_value(commit, content, batch.words_mut(staged));
        batch.write_all(homes.all, table.region, table.geometry.beside_at(slot), staged);
    }

    /// Adds the WRITE of some words of a slot, from word `first` on.
    fn put_words(&self, batch: &mut Batch, at: usize, first: usize, words: &[u64]) {
        let (slot, homes) = self.place_of(at);
        let table = self.table(self.scratch.rows.all()[at].table);
        let staged = batch.stage(words.len() * WORD);
        batch.words_mut(staged).copy_from_slice(words);
        let offset = table.geometry.slot_at(slot) + (first * WORD) as u64;
        batch.write_all(homes.all, table.region, offset, staged);
    }

    /// Writes a further version of a row.
    fn write_version(&self, at: usize, commit: u64) {
        let row = &self.scratch.rows.all()[at];
        let table = self.table(row.table);
        let (slot, homes) = self.place_of(at);
        let content = self.content(at);
        let place = decide::place(&row.engine.cvt);
        let mut cell = self.cell(at, commit);
        let mut batch = self.seat.lane.batch();
        self.put_value(&mut batch, at, commit, &content);
        if let (Some(bar), Some(old)) = (row.engine.cvt.bar, row.engine.content) {
            let old = self.scratch.rows.words(old, table.shape.content_words);
            let changed = table.shape.changed(old, &content);
            let staged = batch.stage(table.shape.words_of_delta(changed) * WORD);
            table.shape.write_delta(commit, changed, old, batch.words_mut(staged));
            let offset = bar + table.shape.delta_at(place.delta);
            batch.write_all(homes.all, SHARED_REGION, offset, staged);
            (cell.changed, cell.place) = (changed, place.delta);
            if row.engine.new_bar {
                self.put_words(&mut batch, at, DELTA_AT, &[bar + 1]);
            }
        }
        let first = HEADER_WORDS + place.cell * CELL_WORDS;
        self.put_words(&mut batch, at, first, &cell.to_words());
        let lock = table.geometry.slot_at(slot) + (LOCK_AT * WORD) as u64;
        batch.write_word_all(homes.all, table.region, lock, 0);
        drop(batch.post());
    }

    /// Writes the first version of a row that was inserted. The header ends with the lock.
    fn write_new(&self, at: usize, commit: u64) {
        let row = &self.scratch.rows.all()[at];
        let content = self.content(at);
        let mut batch = self.seat.lane.batch();
        self.put_value(&mut batch, at, commit, &content);
        self.put_words(&mut batch, at, HEADER_WORDS, &self.cell(at, commit).to_words());
        self.put_words(&mut batch, at, 0, &row::header(row.table, &row.key, 0));
        drop(batch.post());
    }

    /// Leaves a slot that was claimed to its key, without a version: a row behind it may have been
    /// placed there because it was taken, and must be found.
    fn leave_empty(&self, at: usize) {
        let row = &self.scratch.rows.all()[at];
        let mut batch = self.seat.lane.batch();
        self.put_words(&mut batch, at, 0, &row::header(row.table, &row.key, 0));
        drop(batch.post());
    }
}
