//! The WRITEs of a commit to one row, on all of the row's replicas.

use lotus_fabric::ids::NodeSet;
use lotus_fabric::lane::Batch;

use super::Motor;
use super::row::{self, CELL_WORDS, Cell, DELTA_AT, Delta, HEADER_WORDS, LOCK_AT, Link, WORD};
use super::txn::{Known, MotorTxn};
use crate::store::index::SlotNumber;
use crate::store::rows::{Change, TxnRow, TxnRows};
use crate::store::{Records, SHARED_REGION, StoredTable};

/// Bits of a cell's number in a log entry, below the table's.
const CELL_BITS: u32 = 8;

/// A row that a commit writes.
pub(super) struct RowWriter<'t> {
    /// Id of the transaction: the writer in contents and records.
    writer: u64,
    rows: &'t TxnRows<Known>,
    row: &'t TxnRow<Known>,
    table: &'t StoredTable<Motor>,
    slot: SlotNumber,
    nodes: NodeSet,
}

impl<'t> RowWriter<'t> {
    pub(super) fn new(txn: &'t MotorTxn, row: &'t TxnRow<Known>) -> Self {
        let table = txn.table(row.table);
        let slot = row.slot.expect("a row that is written has a slot");
        let nodes = txn.context.store.homes(table, slot).all;
        Self { writer: txn.id.raw(), rows: &txn.scratch.rows, row, table, slot, nodes }
    }

    /// Nodes with a replica.
    pub(super) fn nodes(&self) -> NodeSet {
        self.nodes
    }

    /// Whether the row's slot was free before.
    pub(super) fn is_claimed(&self) -> bool {
        self.row.engine.claimed
    }

    /// The row's words in a log entry: table and cell, and slot.
    pub(super) fn in_log(&self) -> [u64; 2] {
        let cell = u64::from(self.row.engine.place.cell);
        [(self.row.table as u64) << CELL_BITS | cell, self.slot]
    }

    /// Adds the WRITEs of the row's next version, if the row has changed: value, delta, cell.
    pub(super) fn put_version(&self, batch: &mut Batch, version: u64) {
        if self.row.change == Change::None {
            return;
        }
        let deleted = self.row.change == Change::Delete;
        let bytes = if deleted { 0 } else { self.row.new.bytes };
        let place = self.row.engine.place;
        let link = match self.table.shape.records {
            Records::Deltas => Link::Delta(self.put_newest(batch, version, place.delta)),
            Records::Full => {
                let (writer, place) = (self.writer, place.cell);
                if !deleted {
                    self.put_value(batch, place, (writer, self.content()));
                }
                Link::Record { writer, place }
            }
        };
        let cell = Cell { version, bytes, deleted, link };
        self.put_words(batch, self.first_of_cell(), &cell.to_words());
    }

    /// Adds the WRITE of the new version's timestamp, if the row has a new version.
    pub(super) fn put_visible(&self, batch: &mut Batch, commit: u64) {
        if self.row.change != Change::None {
            self.put_word(batch, self.first_of_cell(), commit);
        }
    }

    /// Adds the WRITE of the header of a claimed slot. The header ends with the lock.
    pub(super) fn put_header(&self, batch: &mut Batch, lock: u64) {
        let mut header = row::header(self.row.table, &self.row.key, 0);
        header[LOCK_AT] = lock;
        self.put_words(batch, 0, &header);
    }

    /// Adds the WRITE that releases the lock.
    pub(super) fn put_unlock(&self, batch: &mut Batch) {
        self.put_word(batch, LOCK_AT, 0);
    }

    /// The new content: value, and writer.
    fn content(&self) -> &'t [u64] {
        self.rows.words(self.row.new, self.table.shape.content_words)
    }

    /// First word, within the slot, of the new version's cell.
    fn first_of_cell(&self) -> usize {
        HEADER_WORDS + usize::from(self.row.engine.place.cell) * CELL_WORDS
    }

    /// Adds the WRITEs of the newest value, and of the delta that undoes it.
    fn put_newest(&self, batch: &mut Batch, version: u64, place: u8) -> Delta {
        let (shape, content) = (self.table.shape, self.content());
        self.put_value(batch, 0, (version, content));
        let (Some(bar), Some(old)) = (self.row.engine.bar, self.row.engine.content) else {
            return Delta::default();
        };
        let old = self.rows.words(old, shape.content_words);
        let changed = shape.changed(old, content);
        let staged = batch.stage(shape.words_of_delta(changed) * WORD);
        shape.write_delta(version, changed, old, batch.words_mut(staged));
        batch.write_all(self.nodes, SHARED_REGION, bar + shape.delta_at(place), staged);
        if self.row.engine.new_bar {
            self.put_words(batch, DELTA_AT, &[bar + 1]);
        }
        Delta { changed, place }
    }

    /// Adds the WRITE of the value at `place` among the row's values.
    fn put_value(&self, batch: &mut Batch, place: u8, (anchor, content): (u64, &[u64])) {
        let Self { table, slot, .. } = *self;
        let staged = batch.stage(table.shape.value_words() * WORD);
        table.shape.write_value(anchor, content, batch.words_mut(staged));
        let offset = table.geometry.beside_at(slot) + table.shape.value_at(place);
        batch.write_all(self.nodes, table.region, offset, staged);
    }

    /// Adds the WRITE of words of the slot, from word `first` on.
    fn put_words(&self, batch: &mut Batch, first: usize, words: &[u64]) {
        let staged = batch.stage(words.len() * WORD);
        batch.words_mut(staged).copy_from_slice(words);
        batch.write_all(self.nodes, self.table.region, self.offset(first), staged);
    }

    /// Adds the WRITE of one word of the slot.
    fn put_word(&self, batch: &mut Batch, word: usize, value: u64) {
        batch.write_word_all(self.nodes, self.table.region, self.offset(word), value);
    }

    /// Offset of a word of the slot in the table's region.
    fn offset(&self, word: usize) -> u64 {
        self.table.geometry.slot_at(self.slot) + (word * WORD) as u64
    }
}
