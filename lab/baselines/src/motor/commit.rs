//! The commit of a Motor transaction: validation, and the WRITEs to all replicas.
//!
//! # At once, as published
//! Each written row has a doorbell for each replica: value, delta, cell, lock, in this order. A
//! reader that sees the cell before the lock is free does not wait; it is refused. A reader with an
//! older version table finds a value of another version. No WRITE is awaited: later verbs on the
//! same connections take effect afterwards.
//!
//! # With a log and a visible step
//! As in LOTUS §5.1: one doorbell for each memory node carries a log entry of the whole write set,
//! and the record and an INVISIBLE cell of each row; its completion is awaited. A second doorbell,
//! awaited, writes the timestamp into all cells. The last one releases the locks.

use lotus_benchmarks::TxnError;
use lotus_benchmarks::engine::{Isolation, Receipt, TxnKind};
use lotus_fabric::ids::NodeSet;
use lotus_fabric::lane::Batch;

use super::decide;
use super::row::{Cvt, INVISIBLE, LOCK_AT};
use super::txn::{Known, MotorTxn};
use super::write::RowWriter;
use crate::store::CommitSteps;
use crate::store::attempt::broken;
use crate::store::rows::{CONFLICT, Change, FULL, RowUse, TxnRow};
use crate::store::search::may_have_come;

/// Whether a commit writes a row, or only the header of a slot claimed for the row: a row in a
/// later slot may have been placed there because this slot was taken, and must be found.
fn is_written(row: &TxnRow<Known>) -> bool {
    row.change != Change::None || row.engine.claimed
}

impl MotorTxn {
    /// Commits, after all rows have been executed.
    pub(super) async fn commit_all(&mut self) -> Result<Receipt, TxnError> {
        let start = Some(self.view.start);
        let rows = self.scratch.rows.all();
        let writes = rows.iter().any(|row| row.change != Change::None);
        let snapshot = match self.view.kind {
            TxnKind::ReadWrite(Isolation::Serializable) => None,
            TxnKind::ReadWrite(Isolation::Snapshot) | TxnKind::ReadOnly => start,
        };
        if !writes {
            return Ok(Receipt { commit_ts: None, snapshot });
        }
        let steps = self.context.store.options.commit;
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

    /// Draws the commit timestamp.
    fn stamp(&self) -> u64 {
        let now = self.context.lane.executor().recent();
        self.context.store.clock.next(now.0).raw()
    }

    /// Whether the transaction has rows that must not change until the commit.
    fn validates(&self) -> bool {
        let is_read = |row: &TxnRow<Known>| row.access == RowUse::Read;
        self.view.is_serializable_writer() && self.scratch.rows.all().iter().any(is_read)
    }

    /// Reads again the version tables of rows that were only read, and aborts if a row has changed.
    async fn validate(&mut self, commit: u64) -> Result<(), TxnError> {
        let mut posted = Vec::new();
        for (at, row) in self.scratch.rows.all().iter().enumerate() {
            if row.access != RowUse::Read {
                continue;
            }
            let table = self.table(row.table);
            let mut batch = self.context.lane.batch();
            let buffer = match (row.absent_in, row.slot) {
                (None, Some(slot)) => {
                    let node = self.context.store.homes(table, slot).primary;
                    batch.read_stable(table.slot(node, slot), table.geometry.slot_bytes())
                }
                (Some(bucket), _) => self.read_bucket(&mut batch, row.table, bucket),
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

    /// Whether a row has changed since it was read, according to `words`.
    fn has_changed(&self, at: usize, words: &[u64], commit: u64) -> bool {
        let row = &self.scratch.rows.all()[at];
        if row.absent_in.is_none() {
            let version = row.engine.newest;
            let cvt = Cvt::of(words);
            return cvt.is_none_or(|cvt| self.view.has_changed(&cvt, version, commit));
        }
        let is_shut_out = |slot: &[u64]| self.view.is_shut_out(slot[LOCK_AT]);
        may_have_come(self.table(row.table), &row.key, words, is_shut_out)
    }

    /// Posts the WRITEs of all rows, including the release of the locks.
    fn write_at_once(&mut self, commit: u64) -> Result<(), TxnError> {
        self.reserve_deltas()?;
        for row in self.written() {
            let mut batch = self.context.lane.batch();
            row.put_version(&mut batch, commit);
            if row.is_claimed() {
                row.put_header(&mut batch, 0);
            } else {
                row.put_unlock(&mut batch);
            }
            drop(batch.post());
        }
        self.note_unlocked();
        Ok(())
    }

    /// Writes the log entry, and all rows with INVISIBLE versions.
    async fn write_invisible(&mut self) -> Result<(), TxnError> {
        let mut batch = self.context.lane.batch();
        self.put_log(&mut batch)?;
        for row in self.written() {
            row.put_version(&mut batch, INVISIBLE);
            if row.is_claimed() {
                row.put_header(&mut batch, self.view.id);
            }
        }
        batch.post().await.map(drop).map_err(broken)
    }

    /// Makes the new versions of all rows visible, and releases their locks without waiting for
    /// completion.
    async fn make_visible(&mut self, commit: u64) -> Result<(), TxnError> {
        let mut batch = self.context.lane.batch();
        self.written().for_each(|row| row.put_visible(&mut batch, commit));
        batch.post().await.map_err(broken)?;
        let mut batch = self.context.lane.batch();
        self.written().for_each(|row| row.put_unlock(&mut batch));
        drop(batch.post());
        self.note_unlocked();
        Ok(())
    }

    /// The rows that the commit writes.
    fn written(&self) -> impl Iterator<Item = RowWriter<'_>> {
        let rows = self.scratch.rows.all().iter().filter(|row| is_written(row));
        rows.map(|row| RowWriter::new(self, row))
    }

    /// Records that the locks of the written rows were released.
    fn note_unlocked(&mut self) {
        for at in 0..self.scratch.rows.all().len() {
            let row = self.scratch.rows.get(at);
            if is_written(row) {
                (row.held, row.tried) = (false, false);
            }
        }
    }

    /// Adds the WRITE of a log entry: the transaction, the number of words, and two words for each
    /// row. Old versions are the undo log, so the entry needs no values (LOTUS §5.1).
    fn put_log(&mut self, batch: &mut Batch) -> Result<(), TxnError> {
        let mut entry = vec![self.view.id, 0];
        let mut nodes = NodeSet::EMPTY;
        for row in self.written() {
            entry.extend(row.in_log());
            nodes = nodes.or(row.nodes());
        }
        entry[1] = entry.len() as u64;
        self.scratch.log.put(&self.context, batch, nodes, &entry)
    }

    /// Allocates a bar of deltas for each row that is updated for the first time.
    fn reserve_deltas(&mut self) -> Result<(), TxnError> {
        for at in 0..self.scratch.rows.all().len() {
            let row = &self.scratch.rows.all()[at];
            let known = &row.engine;
            let is_update = row.change != Change::None && !known.claimed;
            if !is_update || known.bar.is_some() || known.newest == 0 {
                continue;
            }
            let bytes = self.table(row.table).shape.bar_bytes();
            let bar = self.context.take(bytes).ok_or(FULL)?;
            let row = self.scratch.rows.get(at);
            (row.engine.bar, row.engine.new_bar) = (Some(bar), true);
        }
        Ok(())
    }
}
