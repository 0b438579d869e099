//! Scans: all rows of a table at one snapshot, while transactions run.
//!
//! # What it is
//! A scan draws a snapshot and returns every row of the snapshot exactly once, page by page: rows
//! of an ordered table in key order, rows of a hash table in no particular order. Concurrent
//! writes, inserts and deletes do not change the result ([`reader`]). Plain threads use a [`Scan`],
//! a job in a coroutine slot of a coordinator; the application's own jobs use a [`SessionScan`].
//!
//! # How long the snapshot lasts
//! The scan holds its snapshot ([`held`]): until the scan ends or is dropped, no compute node
//! purges deleted rows or trims old versions. Versions that writers displace are kept within
//! bounds, so with many writes a slow scan may become too old; a scan never shows a wrong row. Each
//! page has a cursor, from which a later scan continues at the same snapshot, as long as the
//! snapshot is readable: purges and trims do not wait for a snapshot that no scan holds.
//!
//! # What it is not
//! A transaction: a scan takes no locks and is not checked against later writes. Nor the audit's
//! read ([`Cluster::audit_scan`]), which shows the newest versions and must run without writers.

mod chains;
pub(crate) mod held;
pub(crate) mod patience;
pub(crate) mod place;
pub(crate) mod reader;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use async_channel::{Receiver, Sender};
use lotus_fabric::ids::TableId;
use lotus_fabric::machines::MachinesExt;
use lotus_mvcc::{KeyRange, PrimaryKey, TableDef, Timestamp};

use crate::api::error::TxnError;
use crate::cluster::handle::Cluster;
use crate::node::coordinator::Coordinator;
use crate::txn::ordered;
use crate::txn::session::Session;
use crate::txn::submit::Submitted;
use crate::txn::transaction::Transaction;
use held::Held;
use patience::{Next, RetryBudget};
pub use place::ScanCursor;
use place::{CursorPlace, ScanPlace};
use reader::{ReadError, Reader, RowSink};

/// Bytes of keys and values after which a page ends.
const PAGE_BYTES: usize = 64 << 10;

/// Error of a scan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScanError {
    /// The snapshot is not readable any more: some of its versions or rows are gone, or the cursor
    /// comes from another process. Begin a new scan, with a new snapshot.
    #[error("the snapshot of the scan is too old")]
    SnapshotTooOld,
    /// The table does not exist, or was dropped meanwhile.
    #[error("there is no table {}", .0.0)]
    UnknownTable(TableId),
    /// The rows could not be read, even after retries for a while. The last cursor is still valid.
    #[error(transparent)]
    Txn(#[from] TxnError),
}

impl From<ReadError> for ScanError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::TooOld | ReadError::Txn(TxnError::SnapshotTooOld { .. }) => {
                Self::SnapshotTooOld
            }
            ReadError::Txn(TxnError::UnknownTable(table)) => Self::UnknownTable(table),
            ReadError::Txn(error) => Self::Txn(error),
        }
    }
}

/// Key and value of a row.
pub type ScanRow = (Vec<u8>, Vec<u8>);

/// Rows that a scan has read together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanPage {
    /// Keys and values, of [`ScanPage::MAX_BYTES`] at most. A page may be empty where a large table
    /// has few rows.
    pub rows: Vec<ScanRow>,
    /// The cursor behind these rows; `None` after the last page.
    pub next: Option<ScanCursor>,
}

impl ScanPage {
    /// Most bytes that the keys and values of a page take: the page ends with the stretch of
    /// buckets that fills half of this limit.
    pub const MAX_BYTES: usize = 2 * PAGE_BYTES;
}

const _: () = assert!(ordered::Range::PAGE_BYTES <= ScanPage::MAX_BYTES, "it is a page of a scan");

/// Rows of a page, with their total size.
#[derive(Default)]
struct Rows {
    rows: Vec<ScanRow>,
    bytes: usize,
}

impl RowSink for Rows {
    fn push(&mut self, key: &PrimaryKey, value: &[u8]) {
        self.rows.push((key.as_bytes().to_vec(), value.to_vec()));
        self.bytes += key.byte_count() + value.len();
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Scan in the coroutine slot of a job. Dropping the scan releases its snapshot.
///
/// Keeps one page in memory at a time: the page being returned.
pub struct SessionScan<'s> {
    session: &'s mut Session,
    held: Held,
    table: Arc<TableDef>,
    /// Key range of an ordered table to show, and whether from the greatest key down.
    keys: (KeyRange, bool),
    /// Place of the next page; `None` at the end.
    next: Option<CursorPlace>,
}

impl SessionScan<'_> {
    /// Returns the snapshot: the scan shows exactly the transactions committed by this timestamp.
    pub fn snapshot(&self) -> Timestamp {
        self.held.snapshot()
    }

    /// Returns the cursor of the next page; `None` at the end.
    pub fn cursor(&self) -> Option<ScanCursor> {
        let place = self.next.clone()?;
        let process = self.session.coordinator().shared.process;
        let snapshot = self.held.snapshot();
        Some(ScanCursor { process, table: self.table.id(), snapshot, place })
    }

    /// Shows only the rows of an ordered table in this range, if `reverse` from the greatest key
    /// down. A cursor does not hold the range: select the range again after
    /// [`Session::resume_scan`].
    ///
    /// # Errors
    /// `Txn` with `Misuse` if the table is not ordered, or the range ends before it begins.
    pub fn select(&mut self, keys: KeyRange, reverse: bool) -> Result<(), ScanError> {
        let is_all = keys == KeyRange::default() && !reverse;
        if !self.table.is_ordered() && !is_all {
            return Err(
                TxnError::Misuse("the table is not ordered: it is scanned as a whole").into()
            );
        }
        if keys.is_inverted() {
            return Err(ordered::INVERTED.into());
        }
        self.keys = (keys, reverse);
        Ok(())
    }

    /// Reads the next page; returns `None` after the last. Waits for rows being written, and
    /// retries while nodes do not answer, for as long as a commit may take, and for up to a minute
    /// more while the cluster's transactions stand still. After a failure, or if the future is
    /// dropped, the next call reads the page again.
    ///
    /// # Errors
    /// `SnapshotTooOld`, `UnknownTable` if the table was dropped, or `Txn`.
    pub async fn next_page(&mut self) -> Result<Option<ScanPage>, ScanError> {
        let Some(place) = self.next.clone() else { return Ok(None) };
        let (mut patience, mut attempts) = (RetryBudget::begin(self.session.coordinator()), 0);
        loop {
            let read = match self.table.is_ordered() {
                false => self.read_buckets(&place).await,
                true => self.read_keys(&place).await,
            };
            match read {
                Ok((rows, next)) => {
                    self.next = next;
                    return Ok(Some(ScanPage { rows, next: self.cursor() }));
                }
                Err(error) if patience.next(self.session.coordinator(), &error) == Next::Again => {
                    self.session.back_off(attempts).await;
                    attempts += 1;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads a page of rows from the index. Returns the rows and the place behind them.
    async fn read_buckets(
        &mut self,
        place: &CursorPlace,
    ) -> Result<(Vec<ScanRow>, Option<CursorPlace>), ReadError> {
        let place = match place {
            CursorPlace::Buckets(place) => *place,
            CursorPlace::Start | CursorPlace::Key(_) => ScanPlace::START,
        };
        let mut rows = Rows::default();
        let mut reader = Reader::new(self.session, &self.held, Arc::clone(&self.table));
        let next = reader.read_page(place, PAGE_BYTES, &mut rows).await?;
        Ok((rows.rows, next.map(CursorPlace::Buckets)))
    }

    /// Reads a page of rows of an ordered table, in a transaction at the snapshot, which holds the
    /// nodes of one page. Returns the rows and the place behind them.
    async fn read_keys(
        &mut self,
        place: &CursorPlace,
    ) -> Result<(Vec<ScanRow>, Option<CursorPlace>), ReadError> {
        let (all, reverse) = &self.keys;
        let keys = match place {
            CursorPlace::Key(key) => all.rest(key.clone(), *reverse),
            CursorPlace::Start | CursorPlace::Buckets(_) => all.clone(),
        };
        let mut txn = Transaction::begin_at(self.session.slot(), self.held.at()).await?;
        let mut table = txn.ordered(self.table.id())?;
        let range = table.within(keys).page();
        let read = if *reverse { range.reverse() } else { range }.rows().await;
        let rows = match read {
            Ok(rows) => rows,
            Err(error @ TxnError::Damaged { .. }) => {
                // A node of the snapshot is missing: damage, unless the node was purged.
                drop(txn);
                let table = Arc::clone(&self.table);
                Reader::new(self.session, &self.held, table).check_all_purges().await?;
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        let next = rows.rest().and_then(|rest| match reverse {
            false => Some(rest.from.clone()),
            true => rest.until.clone(),
        });
        let rows = rows.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        Ok((rows, next.map(CursorPlace::Key)))
    }

    /// Goes back to the first page.
    pub fn restart(&mut self) {
        self.next = Some(CursorPlace::Start);
    }

    /// Continues at another cursor of this scan.
    ///
    /// # Errors
    /// `SnapshotTooOld` if the cursor belongs to another snapshot or table.
    pub fn go_to(&mut self, cursor: &ScanCursor) -> Result<(), ScanError> {
        let is_ours = cursor.process == self.session.coordinator().shared.process
            && cursor.table == self.table.id()
            && cursor.place.is_of(&self.table)
            && cursor.snapshot == self.held.snapshot();
        if !is_ours {
            return Err(ScanError::SnapshotTooOld);
        }
        self.next = Some(cursor.place.clone());
        Ok(())
    }
}

impl Session {
    /// Begins a scan of a table, at a snapshot drawn now. Takes some 16 horizon intervals, in which
    /// all compute nodes learn that old versions will be needed, and longer while nodes do not
    /// answer, like [`SessionScan::next_page`]. No transaction of this slot may be alive meanwhile.
    ///
    /// # Errors
    /// `UnknownTable`; `Txn` if no timestamp can be drawn or the node does not take part any more.
    pub async fn scan(&mut self, table: TableId) -> Result<SessionScan<'_>, ScanError> {
        let table = known(self.coordinator(), table)?;
        let held = patience::draw(self).await.map_err(|(error, _)| error)?;
        let (keys, next) = (Default::default(), Some(CursorPlace::Start));
        Ok(SessionScan { session: self, held, table, keys, next })
    }

    /// Continues a scan behind a page that it has returned, at the same snapshot.
    ///
    /// # Errors
    /// As [`Session::scan`], and `SnapshotTooOld`, which may also be the error of a later page.
    pub async fn resume_scan(&mut self, cursor: &ScanCursor) -> Result<SessionScan<'_>, ScanError> {
        if cursor.process != self.coordinator().shared.process {
            return Err(ScanError::SnapshotTooOld);
        }
        let table = known(self.coordinator(), cursor.table)?;
        if !cursor.place.is_of(&table) {
            return Err(ScanError::SnapshotTooOld);
        }
        let held = Held::again(self.slot(), cursor.snapshot).await?;
        let held = held.ok_or(ScanError::SnapshotTooOld)?;
        let (keys, next) = (Default::default(), Some(cursor.place.clone()));
        Ok(SessionScan { session: self, held, table, keys, next })
    }
}

fn known(coordinator: &Coordinator, table: TableId) -> Result<Arc<TableDef>, ScanError> {
    coordinator.shared.table(table).ok_or(ScanError::UnknownTable(table))
}

/// Scan of a table from a plain thread: an iterator of rows, or of pages
/// ([`Scan::next_page`]).
///
/// At most four pages are in memory: one being read, two on their way, one being taken out. The
/// scan occupies a coroutine slot, and holds its snapshot, until the last page or an error was
/// returned, or the scan is dropped; slot and snapshot are released soon after. A thread with as
/// many unfinished scans as a coordinator has slots may wait for ever for the next scan.
///
/// ```
/// # use lotus::{Cluster, TableSpec};
/// # let cluster = Cluster::embedded().memory_nodes(2).replicas(2).start()?;
/// # let table = cluster.create_table(TableSpec::new("rows").record_bytes(8).capacity(100))?;
/// let mut bytes = 0;
/// for row in cluster.scan(table) {
///     let (_key, value) = row?;
///     bytes += value.len();
/// }
/// # cluster.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a scan that is dropped reads nothing"]
pub struct Scan<'c> {
    cluster: &'c Cluster,
    pages: Receiver<ScanPage>,
    /// `None` once the end, or the error, was returned.
    ended: Option<Submitted<Result<(), ScanError>>>,
    /// Rows of the last page that the iterator has not returned.
    rows: VecDeque<ScanRow>,
}

impl Scan<'_> {
    /// Returns the next page; `None` after the last, or after an error. Drops rows of an earlier
    /// page that the iterator has not returned.
    ///
    /// # Errors
    /// [`ScanError`]; the scan is over then, and the cursor of the last page is the place where the
    /// scan ended.
    pub fn next_page(&mut self) -> Result<Option<ScanPage>, ScanError> {
        self.rows.clear();
        if self.ended.is_none() {
            return Ok(None);
        }
        if let Some(page) = self.cluster.machines().wait(&self.pages) {
            return Ok(Some(page));
        }
        let Some(ended) = self.ended.take() else { return Ok(None) };
        self.cluster.wait(ended)??;
        Ok(None)
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<ScanRow, ScanError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.rows.is_empty() {
            match self.next_page() {
                Ok(page) => self.rows = page?.rows.into(),
                Err(error) => return Some(Err(error)),
            }
        }
        self.rows.pop_front().map(Ok)
    }
}

impl Cluster {
    /// Begins a scan of a table: every row of one snapshot, once, while transactions run. An
    /// unknown table is an error of the first page. So is `Misuse`, if called in a transaction's
    /// code, which would wait for its own thread.
    pub fn scan(&self, table: TableId) -> Scan<'_> {
        self.start_scan(move |mut session, pages| async move {
            let scan = session.scan(table).await?;
            send_pages(scan, pages).await
        })
    }

    /// Continues a scan behind a page that it has returned, at the same snapshot: fails with
    /// [`ScanError::SnapshotTooOld`] unless the whole snapshot is still readable.
    pub fn resume_scan(&self, cursor: &ScanCursor) -> Scan<'_> {
        let cursor = cursor.clone();
        self.start_scan(move |mut session, pages| async move {
            let scan = session.resume_scan(&cursor).await?;
            send_pages(scan, pages).await
        })
    }

    fn start_scan<F, Fut>(&self, job: F) -> Scan<'_>
    where
        F: FnOnce(Session, Sender<ScanPage>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), ScanError>> + 'static,
    {
        let (out, pages) = async_channel::bounded(1);
        let ended = match self.name().check() {
            Ok(()) => {
                let scanned = |session| async move { Ok(job(session, out).await) };
                self.submit(self.any_coordinator(), scanned)
            }
            // The scan has no pages, and reading the first one returns this error.
            Err(refused) => Submitted::refused(self.name(), refused),
        };
        Scan { cluster: self, pages, ended: Some(ended), rows: VecDeque::new() }
    }
}

/// Sends all pages, unless the receiver is dropped.
async fn send_pages(mut scan: SessionScan<'_>, pages: Sender<ScanPage>) -> Result<(), ScanError> {
    while let Some(page) = scan.next_page().await? {
        if pages.send(page).await.is_err() {
            break;
        }
    }
    Ok(())
}
