//! The commit of a transaction of Motor: validation, and the WRITEs to all replicas.
//!
//! # At once, as published
//! Each written row has one doorbell for each replica: value, delta, cell, lock, in this order. A
//! reader that sees the cell before the lock is free waits for nothing, and is refused; one that
//! has an older version table finds the value to be of another version. None of it is awaited: what
//! is posted later on the same connections comes after it.
//!
//! # With a log and a visible step
//! As in LOTUS §5.1: one doorbell for each memory node has a log entry of the whole write set, and
//! of each row the record and an INVISIBLE cell; it is awaited. A second one, awaited, puts the
//! timestamp into all cells. The last one frees the locks.

use lotus_benchmarks::engine::{Finish, Isolation, Receipt, TxnKind};
use lotus_benchmarks::{AbortReason, TxnError};
use lotus_fabric::ids::{NodeId, NodeSet, RemoteAddr};
use lotus_fabric::lane::Batch;

use super::decide;
use super::row::{self, CELL_WORDS, Cell, Cvt, DELTA_AT, Delta, HEADER_WORDS, INVISIBLE, LOCK_AT};
use super::row::{Link, WORD};
use super::txn::{Known, MotorTxn, broken};
use crate::store::placement::Homes;
use crate::store::rows::{CONFLICT, Change, RowUse, TxnRow};
use crate::store::search::may_have_come;
use crate::store::{CommitSteps, Records, SHARED_REGION};

/// Bits of a cell's number in a log entry, below the table's.
const CELL_BITS: u32 = 8;

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
        let steps = self.seat.store.options.commit;
        let validates = self.validates();
        let stamped = decide::is_stamped_first(steps, validates).then(|| self.stamp());
        if let (true, Some(commit)) = (validates, stamped) {
            self.validate(commit).await?;
        }
        if steps == CommitSteps::LogAndVisible {
            self.write_invisible().await?;
        }
        let commit = stamped.unwrap_or_else(|| self.stamp());
        match steps {
            CommitSteps::AtOnce => self.write_at_once(commit)?,
            CommitSteps::LogAndVisible => self.make_visible(commit).await?,
        }
        Ok(Receipt { commit_ts: Some(commit), snapshot })
    }

    fn abort(self) {
        drop(self);
    }
}

/// Whether a commit writes a row, or no more than the header of a slot that was claimed for it: a
/// row behind that may have been placed there because the slot was taken, and must be found.
fn is_touched(row: &TxnRow<Known>) -> bool {
    row.change != Change::None || row.engine.claimed
}

impl MotorTxn {
    /// Draws the commit timestamp.
    fn stamp(&self) -> u64 {
        let now = self.seat.lane.executor().recent();
        self.seat.store.clock.next(now.0).raw()
    }

    /// Whether there are rows that must not have changed until the commit.
    fn validates(&self) -> bool {
        let is_read = |row: &TxnRow<Known>| row.access == RowUse::Read;
        self.reader.is_serializable_writer() && self.scratch.rows.all().iter().any(is_read)
    }

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
    fn write_at_once(&mut self, commit: u64) -> Result<(), TxnError> {
        self.reserve_deltas()?;
        for at in self.touched() {
            let mut batch = self.seat.lane.batch();
            self.put_version(&mut batch, at, commit);
            if self.scratch.rows.all()[at].engine.claimed {
                self.put_header(&mut batch, at, 0);
            } else {
                self.put_unlock(&mut batch, at);
            }
            drop(batch.post());
        }
        self.note_unlocked();
        Ok(())
    }

    /// Writes the log entry, and all rows with INVISIBLE versions.
    async fn write_invisible(&mut self) -> Result<(), TxnError> {
        let mut batch = self.seat.lane.batch();
        self.put_log(&mut batch)?;
        for at in self.touched() {
            self.put_version(&mut batch, at, INVISIBLE);
            if self.scratch.rows.all()[at].engine.claimed {
                self.put_header(&mut batch, at, self.reader.id);
            }
        }
        batch.post().await.map(drop).map_err(broken)
    }

    /// Makes the new versions of all rows visible, and frees their locks without waiting for that.
    async fn make_visible(&mut self, commit: u64) -> Result<(), TxnError> {
        let mut batch = self.seat.lane.batch();
        for at in self.touched() {
            self.put_visible(&mut batch, at, commit);
        }
        batch.post().await.map_err(broken)?;
        let mut batch = self.seat.lane.batch();
        for at in self.touched() {
            self.put_unlock(&mut batch, at);
        }
        drop(batch.post());
        self.note_unlocked();
        Ok(())
    }

    /// Numbers of the rows that the commit writes.
    fn touched(&self) -> impl Iterator<Item = usize> {
        let rows = self.scratch.rows.all().iter().enumerate();
        rows.filter(|(_, row)| is_touched(row)).map(|(at, _)| at)
    }

    /// Notes that the locks of these rows were freed.
    fn note_unlocked(&mut self) {
        for at in 0..self.scratch.rows.all().len() {
            let row = self.scratch.rows.get(at);
            if is_touched(row) {
                (row.engine.held, row.engine.tried) = (false, false);
            }
        }
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

    fn place_of(&self, at: usize) -> (u64, Homes) {
        let row = &self.scratch.rows.all()[at];
        let slot = row.engine.slot.expect("a row that is written has a slot");
        (slot, self.seat.store.homes(self.table(row.table), slot))
    }

    /// Adds the WRITE of a log entry: the transaction, the number of words, and of each changed row
    /// table, cell and slot. Old versions are the undo log, so no values are needed (LOTUS §5.1).
    fn put_log(&mut self, batch: &mut Batch) -> Result<(), TxnError> {
        let mut entry = vec![self.reader.id, 0];
        let mut nodes = NodeSet::EMPTY;
        for at in self.touched() {
            let row = &self.scratch.rows.all()[at];
            let (slot, homes) = self.place_of(at);
            let cell = decide::place(&row.engine.cvt).cell as u64;
            entry.extend([(row.table as u64) << CELL_BITS | cell, slot]);
            nodes = nodes.or(homes.all);
        }
        entry[1] = entry.len() as u64;
        self.scratch.log.put(&self.seat, batch, nodes, &entry)
    }

    /// Adds the WRITE of the value at `place` among those of its row.
    fn put_value(&self, batch: &mut Batch, at: usize, place: u8, (anchor, content): (u64, &[u64])) {
        let (slot, homes) = self.place_of(at);
        let table = self.table(self.scratch.rows.all()[at].table);
        let staged = batch.stage(table.shape.value_words() * WORD);
        table.shape.write_value(anchor, content, batch.words_mut(staged));
        let offset = table.geometry.beside_at(slot) + table.shape.value_at(place);
        batch.write_all(homes.all, table.region, offset, staged);
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

    /// Adds the WRITEs of a row's next version, if it has changed: value, delta, cell.
    fn put_version(&self, batch: &mut Batch, at: usize, version: u64) {
        let row = &self.scratch.rows.all()[at];
        if row.change == Change::None {
            return;
        }
        let deleted = row.change == Change::Delete;
        let bytes = if deleted { 0 } else { row.new.bytes };
        let place = decide::place(&row.engine.cvt);
        let link = match self.table(row.table).shape.records {
            Records::Deltas => Link::Delta(self.put_newest(batch, at, version, place.delta)),
            Records::Full => {
                let (writer, place) = (self.reader.id, place.cell as u8);
                if !deleted {
                    self.put_value(batch, at, place, (writer, &self.content(at)));
                }
                Link::Record { writer, place }
            }
        };
        let cell = Cell { version, bytes, deleted, link };
        let first = HEADER_WORDS + place.cell * CELL_WORDS;
        self.put_words(batch, at, first, &cell.to_words());
    }

    /// Adds the WRITEs of a row's newest value, and of the delta by which it is taken back.
    fn put_newest(&self, batch: &mut Batch, at: usize, version: u64, place: u8) -> Delta {
        let row = &self.scratch.rows.all()[at];
        let shape = self.table(row.table).shape;
        let content = self.content(at);
        self.put_value(batch, at, 0, (version, &content));
        let (Some(bar), Some(old)) = (row.engine.cvt.bar, row.engine.content) else {
            return Delta::default();
        };
        let old = self.scratch.rows.words(old, shape.content_words);
        let changed = shape.changed(old, &content);
        let staged = batch.stage(shape.words_of_delta(changed) * WORD);
        shape.write_delta(version, changed, old, batch.words_mut(staged));
        let (_, homes) = self.place_of(at);
        batch.write_all(homes.all, SHARED_REGION, bar + shape.delta_at(place), staged);
        if row.engine.new_bar {
            self.put_words(batch, at, DELTA_AT, &[bar + 1]);
        }
        Delta { changed, place }
    }

    /// Adds the WRITE that gives the version of a changed row its timestamp.
    fn put_visible(&self, batch: &mut Batch, at: usize, commit: u64) {
        let row = &self.scratch.rows.all()[at];
        if row.change != Change::None {
            let cell = decide::place(&row.engine.cvt).cell;
            self.put_word(batch, at, HEADER_WORDS + cell * CELL_WORDS, commit);
        }
    }

    /// Adds the WRITE of the header of a slot that was claimed. It ends with the lock.
    fn put_header(&self, batch: &mut Batch, at: usize, lock: u64) {
        let row = &self.scratch.rows.all()[at];
        let mut header = row::header(row.table, &row.key, 0);
        header[LOCK_AT] = lock;
        self.put_words(batch, at, 0, &header);
    }

    /// Adds the WRITE that frees a lock.
    fn put_unlock(&self, batch: &mut Batch, at: usize) {
        self.put_word(batch, at, LOCK_AT, 0);
    }

    /// Adds the WRITE of one word of a slot.
    fn put_word(&self, batch: &mut Batch, at: usize, word: usize, value: u64) {
        let (slot, homes) = self.place_of(at);
        let table = self.table(self.scratch.rows.all()[at].table);
        let offset = table.geometry.slot_at(slot) + (word * WORD) as u64;
        batch.write_word_all(homes.all, table.region, offset, value);
    }
}
