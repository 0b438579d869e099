//! The commit of a FORD transaction: late locks and validation in one round trip, the WRITEs to all
//! replicas in another, and the release of the locks, which is not awaited.

use lotus_benchmarks::TxnError;
use lotus_benchmarks::engine::Receipt;
use lotus_fabric::ids::{NodeSet, RemoteAddr};
use lotus_fabric::lane::Posted;
use lotus_fabric::verbs::Buffer;

use super::item::{self, HEADER_WORDS, Header, INVISIBLE, LOCK_AT, VERSION_AT, WORD};
use super::txn::{FordTxn, Known};
use crate::store::SHARED_REGION;
use crate::store::attempt::broken;
use crate::store::rows::{CONFLICT, Change, RowUse, TxnRow};
use crate::store::search::may_have_come;

/// Validation read of a row.
#[derive(Clone, Copy)]
enum Again {
    /// Version and lock.
    Version,
    /// The header of a slot that was free.
    Header,
    /// The bucket that did not contain the row.
    Bucket,
}

impl FordTxn {
    /// Commits, after all rows have been executed.
    pub(super) async fn commit_all(&mut self) -> Result<Receipt, TxnError> {
        let writes = self.scratch.rows.all().iter().any(|row| row.change != Change::None);
        let recent = self.context.lane.executor().recent();
        // The timestamp only orders commits in histories; FORD itself has no commit timestamp.
        let commit = self.context.store.clock.next(recent.0).raw();
        if writes || self.scratch.rows.all().len() > 1 {
            self.validate().await?;
        }
        if !writes {
            return Ok(Receipt::default());
        }
        for log in std::mem::take(&mut self.scratch.logs) {
            log.await.map_err(broken)?;
        }
        self.write_all().await?;
        Ok(Receipt { commit_ts: Some(commit), snapshot: None })
    }

    /// Locks the rows to write that are not locked yet, and reads the versions of all other rows
    /// again.
    async fn validate(&mut self) -> Result<(), TxnError> {
        let mut posted = Vec::new();
        for at in 0..self.scratch.rows.all().len() {
            let row = &self.scratch.rows.all()[at];
            if row.held {
                continue;
            }
            let (flight, locks) = self.post_again(row);
            posted.push((at, flight));
            self.scratch.rows.get(at).tried |= locks;
        }
        let mut changed = false;
        for (at, (again, posted, lock, read)) in posted {
            let done = posted.await.map_err(broken)?;
            if let Some(lock) = lock {
                changed |= self.take_lock(at, lock, &done).is_err();
            }
            changed |= self.has_changed(&self.scratch.rows.all()[at], again, done.words(read));
        }
        if changed { Err(CONFLICT) } else { Ok(()) }
    }

    /// Posts the validation read of a row; returns the flight, and whether it locks the row.
    fn post_again(&self, row: &TxnRow<Known>) -> ((Again, Posted, Option<Buffer>, Buffer), bool) {
        let table = self.table(row.table);
        let mut batch = self.context.lane.batch();
        let locks = row.access > RowUse::Read;
        let (again, lock, read) = match (row.slot, row.absent_in) {
            (Some(slot), absent_in) => {
                let at = table.slot(self.context.store.homes(table, slot).primary, slot);
                let word = |word: usize| -> RemoteAddr { at.plus((word * WORD) as u64) };
                let lock = locks.then(|| self.lock(&mut batch, at));
                match absent_in {
                    None => {
                        let read = batch.read_stable(word(VERSION_AT), 2 * WORD);
                        (Again::Version, lock, read)
                    }
                    Some(_) => {
                        let read = batch.read_stable(at, HEADER_WORDS * WORD);
                        (Again::Header, lock, read)
                    }
                }
            }
            (None, Some(bucket)) => {
                (Again::Bucket, None, self.read_bucket(&mut batch, row.table, bucket))
            }
            (None, None) => unreachable!("a row that was executed was found or is absent"),
        };
        ((again, batch.post(), lock, read), locks)
    }

    /// Whether a row has changed since it was read, according to `words`.
    fn has_changed(&self, row: &TxnRow<Known>, again: Again, words: &[u64]) -> bool {
        match again {
            Again::Version => words[0] != row.engine.version || self.is_shut_out(words[1]),
            Again::Header => item::key_in(words).is_some(),
            Again::Bucket => {
                let is_shut_out = |slot: &[u64]| self.is_shut_out(slot[LOCK_AT]);
                may_have_come(self.table(row.table), &row.key, words, is_shut_out)
            }
        }
    }

    /// Writes the changed rows to all replicas, waits for completion, and releases the locks.
    async fn write_all(&mut self) -> Result<(), TxnError> {
        let mut posted = Vec::new();
        for row in self.scratch.rows.all() {
            if row.change != Change::None {
                posted.push(self.post_row(row));
            }
        }
        if self.context.store.options.ford.flush {
            posted.push(self.post_flush());
        }
        for posted in posted {
            posted.await.map_err(broken)?;
        }
        for at in 0..self.scratch.rows.all().len() {
            let row = &self.scratch.rows.all()[at];
            if row.change != Change::None {
                self.release(row);
            } else if row.held && row.absent_in.is_some() {
                self.leave_empty(row);
            } else {
                // The lock is released when the transaction is dropped.
                continue;
            }
            let row = self.scratch.rows.get(at);
            (row.held, row.tried) = (false, false);
        }
        Ok(())
    }

    /// Posts the WRITEs of a row: the row is made invisible, then written.
    fn post_row(&self, row: &TxnRow<Known>) -> Posted {
        let table = self.table(row.table);
        let slot = row.slot.expect("a row that is written has a slot");
        let homes = self.context.store.homes(table, slot);
        let at = table.geometry.slot_at(slot);
        let lock = self.id.raw() | INVISIBLE;
        let bytes = (row.change == Change::Put).then_some(row.new.bytes);
        let header = Header { version: self.view, lock, writer: self.id.raw(), bytes };
        let value = match (row.change, row.engine.old) {
            (Change::Put, _) | (_, None) => row.new,
            (_, Some(old)) => old,
        };
        let mut batch = self.context.lane.batch();
        batch.write_word_all(homes.all, table.region, at + (LOCK_AT * WORD) as u64, lock);
        let staged = batch.stage(table.geometry.slot_bytes());
        let words = batch.words_mut(staged);
        words[..HEADER_WORDS].copy_from_slice(&header.to_words(row.table, &row.key));
        let value = self.scratch.rows.words(value, table.shape.value_words());
        words[HEADER_WORDS..].copy_from_slice(value);
        batch.write_all(homes.all, table.region, at, staged);
        batch.post()
    }

    /// Posts a READ of each backup of a written row, behind the WRITEs on the same connection.
    fn post_flush(&self) -> Posted {
        let mut batch = self.context.lane.batch();
        let written = self.scratch.rows.all().iter().filter(|row| row.change != Change::None);
        let backups = written.filter_map(|row| {
            let homes = self.context.store.homes(self.table(row.table), row.slot?);
            Some(homes.all.without(homes.primary))
        });
        for node in backups.fold(NodeSet::EMPTY, NodeSet::or) {
            batch.read(RemoteAddr::new(node, SHARED_REGION, 0), WORD);
        }
        batch.post()
    }

    /// Releases the lock of a row on all replicas, without waiting for completion.
    fn release(&self, row: &TxnRow<Known>) {
        let table = self.table(row.table);
        let Some(slot) = row.slot else { return };
        let homes = self.context.store.homes(table, slot);
        let lock = table.geometry.slot_at(slot) + (LOCK_AT * WORD) as u64;
        let mut batch = self.context.lane.batch();
        batch.write_word_all(homes.all, table.region, lock, 0);
        drop(batch.post());
    }

    /// Assigns a slot that was locked for an absent row to the row's key: a row in a later slot may
    /// have been placed there because this slot was taken, and must be found.
    fn leave_empty(&self, row: &TxnRow<Known>) {
        let table = self.table(row.table);
        let Some(slot) = row.slot else { return };
        let homes = self.context.store.homes(table, slot);
        let header = Header { version: self.view, lock: 0, writer: 0, bytes: None };
        let mut batch = self.context.lane.batch();
        let staged = batch.stage(HEADER_WORDS * WORD);
        batch.words_mut(staged).copy_from_slice(&header.to_words(row.table, &row.key));
        batch.write_all(homes.all, table.region, table.geometry.slot_at(slot), staged);
        drop(batch.post());
    }
}
