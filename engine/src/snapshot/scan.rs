//! Reading all rows as of one timestamp, while transactions run.
//!
//! # What it is
//! A job in a coroutine slot. It draws a snapshot, holds the horizon there, reads the index of each
//! table block by block at the primaries, and of each row the newest version up to the snapshot.
//! The rows go through a channel to the thread that writes the file, which sets the pace.
//!
//! # Why no row is missed
//! A row that the snapshot shows was inserted before the snapshot was drawn, so its CVT was
//! complete, in a bucket of its chain, before the first READ; and it is not purged while the
//! horizon is no later than the snapshot, because it was deleted later or not at all. So a slot
//! that is free, or in which an insert is landing, has nothing to show. Should rows have been
//! purged beyond the snapshot all the same, the purge time says so, and the attempt fails.
//!
//! # Two ways to read a row
//! Most rows have one version that counts. Its record is read, and then the CVT again: if that has
//! not changed, a transaction would have accepted the two as well ([`lotus_mvcc::acceptance`]). All
//! other cases (a writer is at work, the version has left the CVT) are read by a transaction at
//! this snapshot, which applies all the rules; the row's primary key comes from any of its records.
//! The transaction follows the row's records back without the limit of others: its snapshot stays,
//! however often the row is written meanwhile.
//!
//! # What it is not
//! Sure to succeed. Versions that writers displace are kept for it, more than for other snapshots
//! ([`crate::membership::floors`]); where they are still more, or memory is full, it becomes too
//! old, and the caller begins anew.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;
use lotus_fabric::ids::Key;
use lotus_fabric::lane::{Batch, Completed};
use lotus_fabric::verbs::Buffer;
use lotus_mvcc::acceptance::{Expected, accept_record};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::Bucket;
use lotus_mvcc::layout::cvt::{Cvt, Slot as CvtSlot, Version};
use lotus_mvcc::layout::record::Record;
use lotus_mvcc::layout::region::PURGE_TIME_OFFSET;
use lotus_mvcc::visibility::{Candidate, Visible, visible_at};
use lotus_mvcc::{PrimaryKey, TableDef, TableSpec, Timestamp};
use lotus_router::GroupId;
use lotus_sabotage::{Rule, broken};
use zerocopy::IntoBytes;

use super::format::{ROWS_BYTES, push_row};
use crate::api::error::TxnError;
use crate::checks::audit::{IndexBlocks, Scan};
use crate::node::coordinator::Coordinator;
use crate::txn::session::Session;
use crate::txn::slot::Slot;
use crate::txn::transaction::Transaction;

/// Rows that one batch reads.
const AT_ONCE: usize = 64;
/// Rows that one transaction reads.
const BY_TRANSACTION: usize = 64;
/// Most READs of a row's CVT that shows no whole record.
const MOST_LOOKS: u32 = 1 << 12;

/// Error of a snapshot that is too old for a row without any record, and so without a primary key
/// to name. The caller retries it, as with any that is too old.
const NAMELESS_TOO_OLD: TxnError = TxnError::Timeout;

/// Piece of a snapshot, in the order of the file.
pub(crate) enum Piece {
    /// Begins the snapshot that was drawn.
    Begin(Timestamp),
    /// Begins a table.
    Table(TableSpec),
    /// Rows of the table, in the file's format, and their number.
    Rows(Vec<u8>, u64),
}

/// Reads all rows and sends them to `out`; returns the snapshot.
///
/// # Errors
/// Retryable ones, which make the whole attempt invalid; `Fenced`.
pub(crate) async fn read_all(
    mut session: Session,
    out: Sender<Piece>,
) -> Result<Timestamp, TxnError> {
    let slot = Rc::clone(session.slot());
    let held = Held::draw(&slot).await?;
    send(&out, Piece::Begin(held.snapshot)).await?;
    let coordinator = &*slot.coordinator;
    // Tables known by now: commits to any others are later.
    let shared = Arc::clone(&coordinator.shared);
    let learned = coordinator.shared.council.apart(move || shared.learn_tables().map(drop)).await;
    learned.map_err(|_| TxnError::Fenced)?.map_err(|_| TxnError::Timeout)?;
    for table in coordinator.shared.all_tables() {
        send(&out, Piece::Table(table.spec().clone())).await?;
        for group in 0..coordinator.shared.placement.group_count() {
            let group = GroupId(group as u8);
            let (table, out) = (Arc::clone(&table), &out);
            let mut reader =
                Reader { session: &mut session, held: &held, table, group, out, rows: Rows::new() };
            reader.read_group().await?;
        }
    }
    Ok(held.snapshot)
}

async fn send(out: &Sender<Piece>, piece: Piece) -> Result<(), TxnError> {
    // The writing thread has given up, and knows the reason.
    out.send(piece).await.map_err(|_| TxnError::Timeout)
}

/// Snapshot that is protected from purges and trims until this is dropped.
struct Held {
    slot: Rc<Slot>,
    snapshot: Timestamp,
}

impl Held {
    /// Draws a snapshot, once all compute nodes keep displaced versions for it.
    async fn draw(slot: &Rc<Slot>) -> Result<Self, TxnError> {
        let coordinator = &*slot.coordinator;
        if coordinator.reads_all.replace(true) {
            return Err(TxnError::Misuse("the coordinator reads all rows already"));
        }
        // From here on dropping `held` undoes all of it.
        let mut held = Self { slot: Rc::clone(slot), snapshot: Timestamp::ZERO };
        coordinator.node.horizon.begin_reading_all();
        coordinator.executor.sleep(coordinator.notice()).await;
        coordinator.node.check_standing()?;
        let place = coordinator.shared.config.coroutines + 1;
        let issued = coordinator.timestamps.issued();
        coordinator.snapshots.borrow_mut().register(place, issued);
        held.snapshot = coordinator.timestamps.snapshot().await?;
        coordinator.snapshots.borrow_mut().activate(place, held.snapshot);
        Ok(held)
    }

    /// Returns the timestamp to read rows at.
    fn at(&self) -> Timestamp {
        if broken(Rule::CopiesAreOfOneTime) { Timestamp::MAX } else { self.snapshot }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let coordinator = &*self.slot.coordinator;
        coordinator.snapshots.borrow_mut().finish(coordinator.shared.config.coroutines + 1);
        coordinator.node.horizon.end_reading_all();
        coordinator.reads_all.set(false);
    }
}

/// Rows to be sent.
struct Rows {
    payload: Vec<u8>,
    count: u64,
}

impl Rows {
    fn new() -> Self {
        Self { payload: Vec::new(), count: 0 }
    }

    fn push(&mut self, key: &PrimaryKey, value: &[u8]) {
        push_row(&mut self.payload, key, value);
        self.count += 1;
    }
}

/// Reader of the rows of one table in one group.
struct Reader<'a> {
    session: &'a mut Session,
    held: &'a Held,
    table: Arc<TableDef>,
    group: GroupId,
    out: &'a Sender<Piece>,
    rows: Rows,
}

/// CVT of a row, as read with its index block.
struct RowsSeen<'a> {
    key: Key,
    /// Offset of the CVT.
    offset: u64,
    cvt: Cvt<'a>,
}

/// First READ for a row.
#[derive(Clone, Copy)]
enum Aim {
    /// The record of the version that counts.
    Version(Candidate),
    /// No READ: the row is absent, unless the CVT changes meanwhile.
    Absent,
    /// The record in this slot, to learn the primary key; a transaction reads the row.
    Key(u64),
    /// No READ: the snapshot is too old for the row, which has no record left.
    TooOld,
    /// No READ: the CVT shows no record at this moment.
    Again,
}

/// Outcome of the READs of a row.
enum Found<'a> {
    Row(PrimaryKey, &'a [u8]),
    Nothing,
    /// A transaction must read the row.
    Unclear(PrimaryKey),
    /// The snapshot is too old for the row.
    TooOld,
    /// The CVT must be read again.
    Again,
}

fn aim(cvt: Cvt<'_>, snapshot: Timestamp) -> Aim {
    match visible_at(cvt, snapshot) {
        // A deletion in full memory has no record; it is accepted like an absence.
        Visible::Version(candidate) if candidate.record == 0 => Aim::Absent,
        Visible::Version(candidate) => Aim::Version(candidate),
        Visible::NotFound => Aim::Absent,
        // A deletion without a record, and a trim has taken the version before it.
        Visible::TooOld => any_record(cvt).map_or(Aim::TooOld, Aim::Key),
        _ => any_record(cvt).map_or(Aim::Again, Aim::Key),
    }
}

/// Returns the slot of a record of the row, preferably the newest one's, which is not about to be
/// overwritten.
fn any_record(cvt: Cvt<'_>) -> Option<u64> {
    let cells = cvt.cells().flatten().filter(|cell| cell.record != 0);
    let rank = |version| match version {
        Version::Committed(time) => time,
        _ => Timestamp::ZERO,
    };
    cells.max_by_key(|cell| rank(cell.version)).map(|cell| cell.record)
}

/// Judges a row by the words read: its record's, then its CVT's.
fn judge<'a>(
    table: &TableDef,
    seen: &RowsSeen<'_>,
    aim: Aim,
    record: Option<&'a [u64]>,
    cvt: &[u64],
) -> Found<'a> {
    let unchanged = seen.cvt.words() == cvt;
    let Some(words) = record else {
        return match aim {
            Aim::Absent if unchanged => Found::Nothing,
            Aim::TooOld if unchanged => Found::TooOld,
            _ => Found::Again,
        };
    };
    let Ok(found) = Record::decode(seen.key, words) else { return Found::Again };
    let Ok(primary_key) = found.primary_key() else { return Found::Again };
    let expected = Expected { table: table.id(), key: seen.key, primary_key: &primary_key };
    match aim {
        Aim::Version(candidate) if unchanged => match accept_record(&expected, candidate, words) {
            Ok(record) => record
                .value_range()
                .map_or(Found::Nothing, |value| Found::Row(primary_key, &words.as_bytes()[value])),
            Err(_) => Found::Unclear(primary_key),
        },
        _ => Found::Unclear(primary_key),
    }
}

impl Reader<'_> {
    fn coordinator(&self) -> &Coordinator {
        self.session.coordinator()
    }

    async fn read_group(&mut self) -> Result<(), TxnError> {
        let mut blocks = IndexBlocks::new(&self.table, self.group);
        while let Some((offset, words)) = self.next_block(&mut blocks).await? {
            self.read_block(offset, &words).await?;
        }
        self.check_purges().await?;
        let Rows { payload, count } = std::mem::replace(&mut self.rows, Rows::new());
        if count > 0 { send(self.out, Piece::Rows(payload, count)).await } else { Ok(()) }
    }

    async fn next_block(
        &self,
        blocks: &mut IndexBlocks,
    ) -> Result<Option<(u64, Vec<u64>)>, TxnError> {
        let coordinator = self.coordinator();
        coordinator.node.check_standing()?;
        let epoch = coordinator.configuration.enter_epoch()?;
        let placement = coordinator.placement().clone();
        let (shared, lane) = (&*coordinator.shared, coordinator.lane.clone());
        let scan = Scan { shared, placement: &placement, lane };
        let primary = coordinator.primary(self.group);
        match blocks.next(&scan, &self.table, primary).await {
            Ok(block) => coordinator.configuration.check_epoch(epoch).map(|()| block),
            Err(error) => Err(coordinator.after_failure(error).await),
        }
    }

    /// Reads the rows of a block of buckets.
    async fn read_block(&mut self, offset: u64, words: &[u64]) -> Result<(), TxnError> {
        let table = Arc::clone(&self.table);
        let (bucket_bytes, cvt_bytes) =
            (table.bucket_words() * WORD_BYTES, table.cvt_words() * WORD_BYTES);
        let mut seen = Vec::new();
        for (index, bucket) in words.chunks_exact(table.bucket_words()).enumerate() {
            for (slot, cvt) in Bucket::new(bucket, table.cvt()).cvts().enumerate() {
                let CvtSlot::Used(header) = cvt.slot() else { continue };
                let offset = offset + (index * bucket_bytes + slot * cvt_bytes) as u64;
                seen.push(RowsSeen { key: header.key, offset, cvt });
            }
        }
        for some in seen.chunks(AT_ONCE) {
            self.read_rows(some).await?;
            if self.rows.payload.len() >= ROWS_BYTES {
                let Rows { payload, count } = std::mem::replace(&mut self.rows, Rows::new());
                send(self.out, Piece::Rows(payload, count)).await?;
            }
        }
        Ok(())
    }

    async fn read_rows(&mut self, rows: &[RowsSeen<'_>]) -> Result<(), TxnError> {
        let snapshot = self.held.at();
        let (mut unclear, mut again) = (Vec::new(), Vec::new());
        let aims: Vec<Aim> = rows.iter().map(|row| aim(row.cvt, snapshot)).collect();
        let mut batch = self.coordinator().lane.batch();
        let buffers: Vec<_> = rows
            .iter()
            .zip(&aims)
            .map(|(row, aim)| self.add_reads(&mut batch, row, *aim))
            .collect();
        let done = self.post(batch).await?;
        for ((row, aim), (record, cvt)) in rows.iter().zip(aims).zip(buffers) {
            let record = record.map(|buffer| done.words(buffer));
            match judge(&self.table, row, aim, record, done.words(cvt)) {
                Found::Row(key, value) => self.rows.push(&key, value),
                Found::Nothing => {}
                Found::Unclear(key) => unclear.push(key),
                Found::TooOld => return Err(NAMELESS_TOO_OLD),
                Found::Again => again.push((row.key, row.offset)),
            }
        }
        drop(done);
        for (key, offset) in again {
            unclear.extend(self.primary_key(key, offset).await?);
        }
        for some in unclear.chunks(BY_TRANSACTION) {
            self.read_by_transaction(some).await?;
        }
        Ok(())
    }

    /// Adds the READs of a record, if there is one to read, and then of the CVT.
    fn add_reads(
        &self,
        batch: &mut Batch,
        row: &RowsSeen<'_>,
        aim: Aim,
    ) -> (Option<Buffer>, Buffer) {
        let primary = self.coordinator().primary(self.group);
        let record = match aim {
            Aim::Version(version) => {
                let bytes = self.table.record_words(version.contents) * WORD_BYTES;
                Some(batch.read(primary.at(version.record), bytes))
            }
            Aim::Key(slot) => Some(batch.read(primary.at(slot), self.table.whole_record_bytes())),
            Aim::Absent | Aim::TooOld | Aim::Again => None,
        };
        (record, batch.read(primary.at(row.offset), row.cvt.words().len() * WORD_BYTES))
    }

    async fn post(&self, batch: Batch) -> Result<Completed, TxnError> {
        let coordinator = self.coordinator();
        let epoch = coordinator.configuration.enter_epoch()?;
        match batch.post().await {
            Ok(done) => coordinator.configuration.check_epoch(epoch).map(|()| done),
            Err(error) => Err(coordinator.after_failure(error).await),
        }
    }

    /// Returns the primary key of the row with its CVT at `offset`; `None` if the row is not there
    /// any more, or has become absent.
    async fn primary_key(&self, key: Key, offset: u64) -> Result<Option<PrimaryKey>, TxnError> {
        let primary = self.coordinator().primary(self.group);
        let mut before: Option<Vec<u64>> = None;
        for _ in 0..MOST_LOOKS {
            let mut batch = self.coordinator().lane.batch();
            let cvt = batch.read(primary.at(offset), self.table.cvt_words() * WORD_BYTES);
            let done = self.post(batch).await?;
            let cvt = Cvt::new(done.words(cvt), self.table.cvt());
            if !matches!(cvt.slot(), CvtSlot::Used(header) if header.key == key) {
                return Ok(None);
            }
            // Without a record to vouch for it, an answer takes two equal READs.
            let unchanged = before.as_deref() == Some(cvt.words());
            match aim(cvt, self.held.at()) {
                Aim::Absent if unchanged => return Ok(None),
                Aim::TooOld if unchanged => return Err(NAMELESS_TOO_OLD),
                _ => before = Some(cvt.words().to_vec()),
            }
            let slot = any_record(cvt);
            drop(done);
            if let Some(slot) = slot {
                let mut batch = self.coordinator().lane.batch();
                let record = batch.read(primary.at(slot), self.table.whole_record_bytes());
                let done = self.post(batch).await?;
                let found = Record::decode(key, done.words(record));
                if let Some(key) = found.ok().and_then(|found| found.primary_key().ok()) {
                    return Ok(Some(key));
                }
            }
            self.coordinator().executor.yield_now().await;
        }
        Err(TxnError::Timeout)
    }

    /// Reads rows in a transaction at the snapshot, and retries while other transactions conflict.
    async fn read_by_transaction(&mut self, keys: &[PrimaryKey]) -> Result<(), TxnError> {
        let patience = row_patience(self.coordinator());
        let deadline = self.session.now().after(patience);
        let mut attempts = 0;
        loop {
            match self.attempt(keys).await {
                Err(error @ TxnError::SnapshotTooOld { .. }) => return Err(error),
                Err(error) if error.is_retryable() && self.session.now() < deadline => {
                    self.session.back_off(attempts).await;
                    attempts += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn attempt(&mut self, keys: &[PrimaryKey]) -> Result<(), TxnError> {
        let mut txn = Transaction::begin_at(self.session.slot(), self.held.at()).await?;
        let mut items = Vec::with_capacity(keys.len());
        for key in keys {
            items.push(txn.add_ro(self.table.id(), *key)?);
        }
        txn.execute().await?;
        for (key, item) in keys.iter().zip(items) {
            if let Some(value) = txn.value(item) {
                self.rows.push(key, value);
            }
        }
        Ok(())
    }

    /// Fails if the group was purged beyond the snapshot: rows that it shows may be missing then.
    async fn check_purges(&self) -> Result<(), TxnError> {
        let mut batch = self.coordinator().lane.batch();
        let primary = self.coordinator().primary(self.group);
        let time = batch.read(primary.at(PURGE_TIME_OFFSET), WORD_BYTES);
        let done = self.post(batch).await?;
        let purged = done.words(time)[0];
        if purged > self.held.snapshot.raw() { Err(TxnError::Timeout) } else { Ok(()) }
    }
}

/// Time to wait for rows that are being written, or left by dead writers.
fn row_patience(coordinator: &Coordinator) -> Duration {
    let config = &coordinator.shared.config;
    config.commit_timeout + config.lock_timeout + 5 * config.lease.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::TableId;
    use lotus_mvcc::layout::cvt::{Cell, CellState, CvtHeader, CvtShape};

    use super::*;

    const SHAPE: CvtShape = CvtShape::new(2, 0);

    fn time(raw: u64) -> Timestamp {
        Timestamp::new(raw).expect("63 bits")
    }

    /// A row that was deleted in full memory has a tombstone without a record. Its record was read
    /// at offset 0, where none is, again and again, until the snapshot failed.
    #[test]
    fn a_deletion_without_a_record_is_taken_for_an_absence_and_nothing_is_read() {
        let header = CvtHeader { key: Key(1), table: TableId(1), cvt: SHAPE, value_limit: 16 };
        let deleted = Cell {
            version: Version::Committed(time(21)),
            state: CellState::Tombstone,
            record: 0,
            length: 0,
            writes: 1,
        };
        let words: Vec<u64> =
            [header.encode(), deleted.encode(), Cell::NEVER_USED.trimmed().encode()].concat();
        assert!(matches!(aim(Cvt::new(&words, SHAPE), time(30)), Aim::Absent));
        let value = Cell { state: CellState::Valid, record: 4096, length: 16, ..deleted };
        let words: Vec<u64> = [header.encode(), value.encode(), Cell::NEVER_USED.encode()].concat();
        let aimed = aim(Cvt::new(&words, SHAPE), time(30));
        assert!(matches!(aimed, Aim::Version(one) if one.record == 4096));
    }

    /// The snapshot needed the version before that deletion, which has been trimmed. The reader
    /// looked for a record of the row, which has none, until the limit of its looks.
    #[test]
    fn a_snapshot_too_old_for_a_row_without_any_record_ends() {
        let header = CvtHeader { key: Key(1), table: TableId(1), cvt: SHAPE, value_limit: 16 };
        let deleted = Cell {
            version: Version::Committed(time(21)),
            state: CellState::Tombstone,
            record: 0,
            length: 0,
            writes: 1,
        };
        let words: Vec<u64> =
            [header.encode(), deleted.encode(), Cell::NEVER_USED.trimmed().encode()].concat();
        let row = RowsSeen { key: Key(1), offset: 4096, cvt: Cvt::new(&words, SHAPE) };
        let aimed = aim(row.cvt, time(20));
        assert!(matches!(aimed, Aim::TooOld));
        let spec = TableSpec::new("rows").record_bytes(16).capacity(100);
        let table = TableDef::new(TableId(1), spec, vec![4096]).expect("it is sound");
        let found = judge(&table, &row, aimed, None, &words);
        assert!(matches!(found, Found::TooOld));
        // If the row has changed meanwhile, it is read again.
        let found = judge(&table, &row, aimed, None, &[0; 8]);
        assert!(matches!(found, Found::Again));
    }
}
