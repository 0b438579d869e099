//! A scan of a table, page by page: one exchange per page.
//!
//! A scan holds a coroutine slot and a snapshot on a single compute node, and belongs to a single
//! connection. The server releases both when the connection is lost or the scan takes too long.
//! Every request names the cursor of the previous page, so a request may be repeated, also on
//! another connection, and no row is shown twice or left out.

use std::ops::RangeBounds;
use std::sync::Arc;

use lotus_fabric::ids::TableId;
use lotus_mvcc::KeyRange;

use crate::client::{ClientState, Target};
use crate::connection::Connection;
use crate::error::CallError;
use crate::retry::Repetition;
use lotus_protocol::messages::{self, Answer, Bytes, Keys, Kind, Op, PageRow, decode};

/// Scan of a table at one snapshot: of an ordered table in key order, of other tables in no
/// particular order. Dropping the scan ends it.
///
/// After an error the scan can continue: the next call of [`Scan::next_page`] asks for the same
/// page again, at the same snapshot. If the snapshot is not readable any more, every further call
/// returns [`Failure::SnapshotTooOld`][too_old]; begin a new scan then.
///
/// [too_old]: crate::Failure::SnapshotTooOld
#[must_use = "nothing is sent before the first page is asked for"]
pub struct Scan {
    shared: Arc<ClientState>,
    table: TableId,
    /// Rows to show, and whether from the greatest key down.
    keys: (KeyRange, bool),
    /// The client's number for the scan.
    number: u32,
    /// Connection on which the scan is open.
    connection: Option<Arc<Connection>>,
    /// Node that holds the scan's snapshot, or has held it.
    node: Option<usize>,
    /// Cursor of the last page; empty before the first.
    cursor: Vec<u8>,
    ended: bool,
}

/// Keys and values of rows.
pub type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// Copies the rows of a message.
pub(crate) fn owned(rows: Vec<PageRow<'_>>) -> Rows {
    rows.into_iter().map(|(Bytes(key), Bytes(value))| (key.to_vec(), value.to_vec())).collect()
}

impl Scan {
    pub(crate) fn new(shared: Arc<ClientState>, table: TableId) -> Self {
        let number = shared.next_number();
        let (keys, cursor, ended) = (Default::default(), Vec::new(), false);
        Self { shared, table, keys, number, connection: None, node: None, cursor, ended }
    }

    /// Shows only the rows between these bounds, which compare as bytes do, of an ordered table. To
    /// be called before the first page.
    pub fn range<'k>(mut self, bounds: impl RangeBounds<&'k [u8]>) -> Self {
        self.keys.0 = KeyRange::of(bounds);
        self
    }

    /// Shows only the rows of an ordered table whose keys begin with `prefix`. To be called before
    /// the first page.
    pub fn prefix(mut self, prefix: &[u8]) -> Self {
        self.keys.0 = KeyRange::prefix(prefix);
        self
    }

    /// Shows the rows of an ordered table from the greatest key down. To be called before the first
    /// page.
    pub const fn reverse(mut self) -> Self {
        self.keys.1 = true;
        self
    }

    /// Fetches the next page, of 128 KiB at most; `None` after the last page. A page may be empty
    /// where a large table has few rows. If the future is dropped, the next call fetches the same
    /// page.
    ///
    /// # Errors
    /// [`CallError`], without effect. [`Failure::ScanTooLong`][too_long] and
    /// [`CallError::Unreachable`] leave open whether the snapshot is still readable: ask again.
    /// [`Failure::Refused`][refused] if the scan has a range, or is in reverse, and the table is
    /// not ordered, or if the range ends before it begins.
    ///
    /// [too_long]: crate::Failure::ScanTooLong
    /// [refused]: crate::Failure::Refused
    pub async fn next_page(&mut self) -> Result<Option<Rows>, CallError> {
        if self.ended {
            return Ok(None);
        }
        let asked = match self.connection.clone() {
            Some(connection) => self.go_on(&connection).await,
            None => self.begin().await,
        };
        let answer = asked.inspect_err(|_| self.abandon())?;
        let page = decode(&answer).map_err(|_| CallError::Protocol);
        let Ok(Answer::Page { rows, cursor }) = page else {
            self.abandon();
            return Err(CallError::Protocol);
        };
        let rows = owned(rows);
        match cursor {
            Some(Bytes(cursor)) => self.cursor = cursor.into(),
            None => {
                self.ended = true;
                self.abandon();
            }
        }
        Ok(Some(rows))
    }

    /// Begins or continues the scan, on the node that held its snapshot before, if any.
    async fn begin(&mut self) -> Result<Vec<u8>, CallError> {
        let shared = &self.shared;
        let target = Target { near: self.node, ..Target::any(Kind::ReadOnly) };
        let op = |_, _| self.request(true);
        let asked = shared.carry_out(target, Repetition::Effectless, shared.timeout(), op);
        let (connection, answer) = asked.await?;
        self.node = shared.node_of(&connection).or(self.node);
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn go_on(&self, connection: &Connection) -> Result<Vec<u8>, CallError> {
        let answer = self.shared.ask(connection, self.request(false)).await;
        let answer = answer.map_err(|unanswered| self.shared.effectless(unanswered))?;
        match decode(&answer) {
            Ok(Answer::Failed(failure)) => Err(CallError::Failed(failure)),
            _ => Ok(answer),
        }
    }

    fn request(&self, begin: bool) -> Op<'_> {
        let (scan, table, cursor) = (self.number, self.table.0, Bytes(&self.cursor));
        let keys = Keys::of(&self.keys.0, self.keys.1);
        Op::Scan(messages::Scan { scan, begin, table, cursor, keys })
    }

    fn abandon(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.tell(&Op::Abandon { txn: self.number });
        }
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.abandon();
    }
}
