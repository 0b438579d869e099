//! Reading the rows of a table as of one timestamp, page by page, while transactions run.
//!
//! # What it is
//! The reader goes through the index's buckets, in the order of [`ScanPlace`], at the primaries,
//! and reads the newest version of each row up to the snapshot. A page depends on its place and the
//! snapshot alone, so a failed page is read again.
//!
//! # Why no row is missed
//! A row that the snapshot shows was inserted before the snapshot was drawn, so its CVT was
//! complete, in a bucket of its chain, before the first READ; and it is not purged while the
//! horizon is no later than the snapshot, because it was deleted later or not at all. Hence a free
//! slot, or a slot with an insert still landing, has nothing to show. If rows have been purged
//! beyond the snapshot nevertheless, the purge time says so, and the page fails.
//!
//! # Two ways to read a row
//! Most rows have one version that counts. The record is read, and then the CVT again: if the CVT
//! has not changed, a transaction would have accepted the two as well ([`lotus_mvcc::acceptance`]).
//! In all other cases (a writer is at work, the version has left the CVT) a transaction at this
//! snapshot reads the row and applies all the rules; the row's primary key comes from any of its
//! records. The transaction follows the row's records back without the limit of other transactions:
//! its snapshot stays, however often the row is written meanwhile.
//!
//! # Limits
//! A read may fail. Versions that writers displace are kept for the reader, more than for other
//! snapshots ([`crate::membership::floors`]); if writers displace more, or memory is full, the
//! snapshot becomes too old.

use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::lane::{Batch, Completed};
use lotus_fabric::verbs::Buffer;
use lotus_mvcc::acceptance::{Expected, accept_record};
use lotus_mvcc::layout::WORD_BYTES;
use lotus_mvcc::layout::bucket::{Bucket, bucket_bytes};
use lotus_mvcc::layout::cvt::{Cvt, Slot as CvtSlot, Version};
use lotus_mvcc::layout::record::Record;
use lotus_mvcc::layout::region::PURGE_TIME_OFFSET;
use lotus_mvcc::visibility::{Candidate, Visible, visible_at};
use lotus_mvcc::{PrimaryKey, RowName, TableDef, Timestamp};
use lotus_router::GroupId;
use zerocopy::IntoBytes;

use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::scan::chains::Chains;
use crate::scan::held::Held;
use crate::scan::place::{AT_ONCE, ChainPlace, Homes, Path, ScanPlace, stretch};
use crate::txn::body::Access;
use crate::txn::session::Session;
use crate::txn::transaction::Transaction;

/// Number of rows read by one transaction.
const BY_TRANSACTION: usize = 64;
/// Largest number of READs of a row's CVT that shows no whole record.
const MOST_LOOKS: u32 = 1 << 12;
/// Largest number of steps in a page, which ends a page soon where rows are few.
const MOST_STEPS: u32 = 1 << 10;

/// Error of reading a page.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The snapshot is too old, for a purged row or a row without a record to name it by.
    TooOld,
    /// An error of the engine, possibly `SnapshotTooOld`.
    Txn(TxnError),
}

impl From<TxnError> for ReadError {
    fn from(error: TxnError) -> Self {
        Self::Txn(error)
    }
}

/// Taker of the rows of a page.
pub(crate) trait RowSink {
    /// Takes a row.
    fn push(&mut self, key: &PrimaryKey, value: &[u8]);

    /// Bytes of the rows so far.
    fn bytes(&self) -> usize;
}

/// Reader of the rows of one table at one snapshot.
pub(crate) struct Reader<'a> {
    session: &'a mut Session,
    held: &'a Held,
    table: Arc<TableDef>,
    /// Group being read.
    group: GroupId,
    /// Buckets that were read ahead: the number of the first bucket, and the words of all.
    ahead: (u64, Vec<u64>),
}

/// Buckets that are processed together, as offset and words.
type Buckets = Vec<(u64, Vec<u64>)>;

/// CVT of a row, as read with its index block.
struct RowsSeen<'a> {
    name: RowName,
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
        // The newest version is a deletion without a record, and a trim has taken the version
        // before it.
        Visible::TooOld => any_record(cvt).map_or(Aim::TooOld, Aim::Key),
        _ => any_record(cvt).map_or(Aim::Again, Aim::Key),
    }
}

/// Returns the slot of a record of the row that is not about to be overwritten, preferably of the
/// newest record.
fn any_record(cvt: Cvt<'_>) -> Option<u64> {
    let cells = cvt.cells().flatten().filter(|cell| cell.record != 0);
    let rank = |version| match version {
        Version::Committed(time) => time,
        _ => Timestamp::ZERO,
    };
    cells.max_by_key(|cell| rank(cell.version)).map(|cell| cell.record)
}

/// Returns the primary key in the record in `words`, if the record is of this row. A different row
/// of the same name may have taken the slot.
fn primary_key_in(table: &TableDef, name: RowName, words: &[u64]) -> Option<PrimaryKey> {
    let primary_key = Record::decode(name.key, words).ok()?.primary_key().ok()?;
    (table.name(&primary_key) == name).then_some(primary_key)
}

/// Judges a row by the words read: first the record's, then the CVT's.
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
    let Some(primary_key) = primary_key_in(table, seen.name, words) else { return Found::Again };
    let expected = Expected { table: table.id(), key: seen.name.key, primary_key: &primary_key };
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

impl<'a> Reader<'a> {
    pub(crate) fn new(session: &'a mut Session, held: &'a Held, table: Arc<TableDef>) -> Self {
        Self { session, held, table, group: GroupId(0), ahead: (0, Vec::new()) }
    }

    fn coordinator(&self) -> &Coordinator {
        self.session.coordinator()
    }

    /// Reads rows from a place on, until they take `enough` bytes or a little more, or many buckets
    /// have none; returns the place behind the rows, `None` at the table's end. After an error the
    /// rows passed to `rows` do not count.
    pub(crate) async fn read_page(
        &mut self,
        from: ScanPlace,
        enough: usize,
        rows: &mut impl RowSink,
    ) -> Result<Option<ScanPlace>, ReadError> {
        let groups = self.coordinator().shared.placement.group_count();
        let stretch = stretch(&self.table, enough);
        let mut place = from;
        // Read again: these words would be as old as the last page.
        self.ahead.1.clear();
        let mut chains = None;
        for _ in 0..MOST_STEPS {
            if usize::from(place.group) >= groups {
                return Ok(None);
            }
            self.group = GroupId(place.group as u8);
            let homes = Homes::of(&self.table, self.group);
            if place.bucket >= homes.count {
                self.check_purges().await?;
                self.ahead.1.clear();
                place = place.next_group();
                continue;
            }
            let asked = place.chain.map_or(stretch, |chain| u64::from(chain.homes));
            let count = asked.clamp(1, homes.in_one_read(place.bucket));
            let (buckets, behind) = match place.chain {
                None => {
                    let buckets = self.home_buckets(&homes, place.bucket, count).await?;
                    (buckets, ChainPlace { homes: count as u8, home: 0, path: Path::HOME })
                }
                Some(at) => {
                    let mut rest = match chains.take() {
                        Some(rest) => rest,
                        None => self.chains_from(&homes, place.bucket, at).await?,
                    };
                    self.read_wanted(&mut rest).await?;
                    let run = rest.take(stretch as usize);
                    chains = Some(rest);
                    run.map_or((Vec::new(), at), |run| (run.buckets, run.last))
                }
            };
            self.read_buckets(&buckets, rows).await?;
            let rest = chains.get_or_insert_with(|| self.chains_behind(&buckets, behind));
            place = match rest.is_over() {
                false => ScanPlace { chain: Some(behind), ..place },
                true => {
                    chains = None;
                    place.next_stretch(count)
                }
            };
            if rows.bytes() >= enough {
                break;
            }
        }
        debug_assert!(place != from, "I271: a page ends behind the place where it begins");
        self.check_purges().await?;
        Ok(Some(place))
    }

    /// Walk over the buckets behind the home buckets in `homes`, from the home bucket of `at` on.
    fn chains_behind(&self, homes: &Buckets, at: ChainPlace) -> Chains {
        Chains::behind(self.table.cvt(), at, homes.iter().map(|(_, words)| &words[..]))
    }

    /// Walk over the buckets behind the home buckets from `first` on, continued behind `at`.
    async fn chains_from(
        &mut self,
        homes: &Homes,
        first: u64,
        at: ChainPlace,
    ) -> Result<Chains, ReadError> {
        let count = u64::from(at.homes).clamp(1, homes.in_one_read(first));
        let buckets = self.home_buckets(homes, first, count).await?;
        let mut chains = self.chains_behind(&buckets, at);
        for path in at.path.prefixes() {
            self.read_wanted(&mut chains).await?;
            chains.pass(ChainPlace { path, ..at });
        }
        Ok(chains)
    }

    /// Reads the overflow buckets that a walk wants next.
    async fn read_wanted(&self, chains: &mut Chains) -> Result<(), ReadError> {
        let bytes = bucket_bytes(self.table.cvt());
        let reads: Vec<_> = chains.wanted().map(|offset| (offset, bytes)).collect();
        if !reads.is_empty() {
            chains.absorb(self.read_words(&reads).await?);
        }
        Ok(())
    }

    async fn home_buckets(
        &mut self,
        homes: &Homes,
        first: u64,
        count: u64,
    ) -> Result<Buckets, ReadError> {
        let words = self.table.bucket_words();
        let (ahead, read) = &self.ahead;
        let end = ahead + (read.len() / words) as u64;
        if first < *ahead || first + count > end {
            let bytes = homes.in_one_read(first) as usize * words * WORD_BYTES;
            let read = self.read_words(&[(homes.offset(first), bytes)]).await?.remove(0);
            self.ahead = (first, read);
        }
        let (ahead, read) = &self.ahead;
        let skipped = (first - ahead) as usize;
        let all = read.chunks_exact(words).skip(skipped).take(count as usize);
        Ok((first..).zip(all).map(|(bucket, words)| (homes.offset(bucket), words.into())).collect())
    }

    /// Reads words at the primary, by offset and length in bytes.
    async fn read_words(&self, reads: &[(u64, usize)]) -> Result<Vec<Vec<u64>>, TxnError> {
        let coordinator = self.coordinator();
        coordinator.node.check_standing()?;
        let primary = coordinator.primary(self.group);
        let mut batch = coordinator.lane.batch();
        let read = |(offset, bytes): &(u64, usize)| batch.read(primary.at(*offset), *bytes);
        let buffers: Vec<Buffer> = reads.iter().map(read).collect();
        let done = self.post(batch).await?;
        Ok(buffers.into_iter().map(|buffer| done.words(buffer).to_vec()).collect())
    }

    /// Reads the rows of some buckets.
    async fn read_buckets(
        &mut self,
        buckets: &Buckets,
        rows: &mut impl RowSink,
    ) -> Result<(), ReadError> {
        let table = Arc::clone(&self.table);
        let cvt_bytes = (table.cvt_words() * WORD_BYTES) as u64;
        let mut seen = Vec::new();
        for (begin, words) in buckets {
            for (slot, cvt) in (0..).zip(Bucket::new(words, table.cvt()).cvts()) {
                let CvtSlot::Used(header) = cvt.slot() else { continue };
                seen.push(RowsSeen { name: header.name, offset: begin + slot * cvt_bytes, cvt });
            }
        }
        for some in seen.chunks(AT_ONCE) {
            self.read_rows(some, rows).await?;
        }
        Ok(())
    }

    async fn read_rows(
        &mut self,
        rows: &[RowsSeen<'_>],
        out: &mut impl RowSink,
    ) -> Result<(), ReadError> {
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
                Found::Row(key, value) => out.push(&key, value),
                Found::Nothing => {}
                Found::Unclear(key) => unclear.push(key),
                Found::TooOld => return Err(ReadError::TooOld),
                Found::Again => again.push((row.name, row.offset)),
            }
        }
        drop(done);
        for (name, offset) in again {
            unclear.extend(self.primary_key(name, offset).await?);
        }
        for some in unclear.chunks(BY_TRANSACTION) {
            self.read_by_transaction(some, out).await?;
        }
        Ok(())
    }

    /// Adds the READ of a record, if the aim has one, and then of the CVT.
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
        if !coordinator.serves_table(self.table.id()) {
            return Err(TxnError::UnknownTable(self.table.id()));
        }
        match batch.post().await {
            Ok(done) => coordinator.configuration.check_epoch(epoch).map(|()| done),
            Err(error) => Err(coordinator.after_failure(error).await),
        }
    }

    /// Returns the primary key of the row with its CVT at `offset`; `None` if the row is gone or
    /// has become absent.
    async fn primary_key(
        &self,
        name: RowName,
        offset: u64,
    ) -> Result<Option<PrimaryKey>, ReadError> {
        let primary = self.coordinator().primary(self.group);
        let mut before: Option<Vec<u64>> = None;
        for _ in 0..MOST_LOOKS {
            let mut batch = self.coordinator().lane.batch();
            let cvt = batch.read(primary.at(offset), self.table.cvt_words() * WORD_BYTES);
            let done = self.post(batch).await?;
            let cvt = Cvt::new(done.words(cvt), self.table.cvt());
            if !matches!(cvt.slot(), CvtSlot::Used(header) if header.name == name) {
                return Ok(None);
            }
            // Without a record to confirm it, an answer takes two equal READs.
            let unchanged = before.as_deref() == Some(cvt.words());
            match aim(cvt, self.held.at()) {
                Aim::Absent if unchanged => return Ok(None),
                Aim::TooOld if unchanged => return Err(ReadError::TooOld),
                _ => before = Some(cvt.words().to_vec()),
            }
            let slot = any_record(cvt);
            drop(done);
            if let Some(slot) = slot {
                let mut batch = self.coordinator().lane.batch();
                let record = batch.read(primary.at(slot), self.table.whole_record_bytes());
                let done = self.post(batch).await?;
                let found = primary_key_in(&self.table, name, done.words(record));
                if found.is_some() {
                    return Ok(found);
                }
            }
            self.coordinator().executor.yield_now().await;
        }
        Err(TxnError::Timeout.into())
    }

    /// Reads rows in a transaction at the snapshot, and retries while other transactions conflict.
    async fn read_by_transaction(
        &mut self,
        keys: &[PrimaryKey],
        out: &mut impl RowSink,
    ) -> Result<(), TxnError> {
        let patience = row_patience(self.coordinator());
        let deadline = self.session.now().after(patience);
        let mut attempts = 0;
        loop {
            match self.attempt(keys, out).await {
                Err(error @ TxnError::SnapshotTooOld { .. }) => return Err(error),
                Err(error) if error.is_retryable() && self.session.now() < deadline => {
                    self.session.back_off(attempts).await;
                    attempts += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn attempt(
        &mut self,
        keys: &[PrimaryKey],
        out: &mut impl RowSink,
    ) -> Result<(), TxnError> {
        let mut txn = Transaction::begin_at(self.session.slot(), self.held.at()).await?;
        let mut items = Vec::with_capacity(keys.len());
        for key in keys {
            // Nodes of an ordered table are read like any row.
            items.push(txn.add(self.table.id(), *key, Access::Read, 0)?);
        }
        txn.execute().await?;
        for (key, item) in keys.iter().zip(items) {
            if let Some(value) = txn.value(item) {
                out.push(key, value);
            }
        }
        Ok(())
    }

    /// Fails if any group was purged beyond the snapshot.
    pub(crate) async fn check_all_purges(&mut self) -> Result<(), ReadError> {
        for group in 0..self.coordinator().shared.placement.group_count() {
            self.group = GroupId(group as u8);
            self.check_purges().await?;
        }
        Ok(())
    }

    /// Fails if the group was purged beyond the snapshot: rows of the snapshot may be missing.
    async fn check_purges(&self) -> Result<(), ReadError> {
        let purged = self.read_words(&[(PURGE_TIME_OFFSET, WORD_BYTES)]).await?[0][0];
        if purged > self.held.snapshot().raw() { Err(ReadError::TooOld) } else { Ok(()) }
    }
}

/// Time to wait for rows that are being written, or left by dead writers.
pub(crate) fn row_patience(coordinator: &Coordinator) -> Duration {
    let config = &coordinator.shared.config;
    config.commit_timeout + config.lock_timeout + 5 * config.lease.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::{Key, TableId};
    use lotus_mvcc::layout::cvt::{Cell, CellState, CvtHeader, CvtShape};
    use lotus_mvcc::naming::KeyMark;
    use lotus_mvcc::{Naming, TableSpec};

    use super::*;

    const SHAPE: CvtShape = CvtShape::new(2, 0);

    fn time(raw: u64) -> Timestamp {
        Timestamp::new(raw).expect("63 bits")
    }

    const NAME: RowName = RowName { key: Key(1), mark: KeyMark::from_low_bits(2) };

    /// Cell of a row that was deleted at 21, in full memory: it has no record.
    fn deleted() -> Cell {
        Cell {
            version: Version::Committed(time(21)),
            state: CellState::Tombstone,
            record: 0,
            length: 0,
            writes: 1,
        }
    }

    fn words_of(cells: [Cell; 2]) -> Vec<u64> {
        let header = CvtHeader { name: NAME, table: TableId(1), cvt: SHAPE, value_limit: 16 };
        let [first, second] = cells.map(|cell| cell.encode());
        [header.encode(), first, second].concat()
    }

    /// A row that was deleted in full memory has a tombstone without a record. Its record was read
    /// at offset 0, where none is, again and again, until the snapshot failed.
    #[test]
    fn a_deletion_without_a_record_is_taken_for_an_absence_and_nothing_is_read() {
        let words = words_of([deleted(), Cell::NEVER_USED.trimmed()]);
        assert!(matches!(aim(Cvt::new(&words, SHAPE), time(30)), Aim::Absent));
        let value = Cell { state: CellState::Valid, record: 4096, length: 16, ..deleted() };
        let words = words_of([value, Cell::NEVER_USED]);
        let aimed = aim(Cvt::new(&words, SHAPE), time(30));
        assert!(matches!(aimed, Aim::Version(one) if one.record == 4096));
    }

    /// The snapshot needed the version before that deletion, which has been trimmed. The reader
    /// looked for a record of the row, which has none, until the limit of its looks.
    #[test]
    fn a_snapshot_too_old_for_a_row_without_any_record_ends() {
        let words = words_of([deleted(), Cell::NEVER_USED.trimmed()]);
        let row = RowsSeen { name: NAME, offset: 4096, cvt: Cvt::new(&words, SHAPE) };
        let aimed = aim(row.cvt, time(20));
        assert!(matches!(aimed, Aim::TooOld));
        let spec = TableSpec::new("rows").record_bytes(16).capacity(100);
        let table =
            TableDef::new(TableId(1), spec, vec![4096], Naming::KNOWN).expect("it is sound");
        let found = judge(&table, &row, aimed, None, &words);
        assert!(matches!(found, Found::TooOld));
        // If the row has changed meanwhile, it is read again.
        let found = judge(&table, &row, aimed, None, &[0; 8]);
        assert!(matches!(found, Found::Again));
    }
}
