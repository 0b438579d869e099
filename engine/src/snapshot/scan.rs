//! Reading all tables as of one timestamp, for a snapshot file.
//!
//! The reading is a job in a coroutine slot. The job holds a snapshot ([`crate::scan::held`]), and
//! reads table after table with [`crate::scan::reader`]. The rows go through a channel to the
//! thread that writes the file, which sets the pace.
//!
//! # If the cluster stops meanwhile
//! A page that cannot be read is read again ([`crate::scan::patience`]): while a table is dropped,
//! or a node lost or taken in, the reader waits and then continues at the same place and snapshot.
//! A table that is dropped before its first page was sent is left out, like a table dropped
//! earlier. If a table is dropped later, or the snapshot becomes too old, the file is of no use,
//! and the caller begins anew.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Sender;
use lotus_mvcc::{PrimaryKey, TableDef, TableSpec, Timestamp};

use super::format::{ROWS_BYTES, push_row};
use crate::api::error::{ClusterError, TxnError};
use crate::cluster::once::Unanswered;
use crate::node::coordinator::Coordinator;
use crate::scan::held::Held;
use crate::scan::patience::{self, Next, RetryBudget};
use crate::scan::place::ScanPlace;
use crate::scan::reader::{ReadError, Reader, RowSink};
use crate::txn::session::Session;

/// Piece of a snapshot, in the order of the file.
pub(crate) enum Piece {
    /// Begins the snapshot that was drawn.
    Begin(Timestamp),
    /// Count of dropped tables' numbers that precede the next table's number.
    Dropped(u32),
    /// Begins a table.
    Table(TableSpec),
    /// Rows of the table, in the file's format, and their number.
    Rows(Vec<u8>, u64),
}

/// Error of reading all rows. Each variant has one cause.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// The coordinator is reading all rows for another file.
    Busy,
    /// The writing thread has given up, and knows the reason.
    WriterGone,
    /// The snapshot is not readable any more.
    TooOld,
    /// A table was dropped after a part of its rows had been sent.
    Dropped,
    /// No row could be read for this time; the last error.
    Still(Duration, TxnError),
    /// The catalogue cannot be read or learned.
    Tables(ClusterError),
    /// An error that a retry does not mend.
    Txn(TxnError),
}

impl CopyError {
    /// Converts the error of a reader that has given up after waiting for `waited`.
    fn given_up(error: ReadError, waited: Duration) -> Self {
        match error {
            ReadError::TooOld => Self::TooOld,
            ReadError::Txn(error) if error.is_retryable() => Self::Still(waited, error),
            ReadError::Txn(error) => Self::Txn(error),
        }
    }
}

/// Reads all rows and sends them to `out`; returns the snapshot.
///
/// # Errors
/// Any error makes the whole attempt invalid.
pub(crate) async fn read_all(
    mut session: Session,
    out: Sender<Piece>,
) -> Result<Timestamp, CopyError> {
    let slot = Rc::clone(session.slot());
    let coordinator = &*slot.coordinator;
    let _alone = Alone::begin(coordinator)?;
    let drawn = patience::draw(&session).await;
    let held = drawn.map_err(|(error, waited)| CopyError::given_up(error, waited))?;
    send(&out, Piece::Begin(held.snapshot())).await?;
    // Tables known by now: commits to any other table are later.
    learn_tables(&session).await?;
    let (tables, numbers) = coordinator.shared.tables_and_numbers();
    let mut next_number = 0;
    for table in tables {
        let mut copy = TableCopy { table: Arc::clone(&table), next_number, begun: false };
        match copy.send_all(&mut session, &held, &out).await {
            Ok(()) => next_number = u32::from(table.id().0) + 1,
            Err(CopyError::Dropped) if !copy.begun => {}
            Err(error) => return Err(error),
        }
    }
    if numbers > next_number {
        send(&out, Piece::Dropped(numbers - next_number)).await?;
    }
    Ok(held.snapshot())
}

/// Learns the tables from the catalogue, and retries while the authority does not answer.
async fn learn_tables(session: &Session) -> Result<(), CopyError> {
    let coordinator = session.coordinator();
    let (mut patience, mut attempts) = (RetryBudget::begin(coordinator), 0);
    loop {
        let shared = Arc::clone(&coordinator.shared);
        let learned =
            coordinator.shared.async_authority.apart(move || shared.learn_tables().map(drop));
        let error = match learned.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            // The process is ending.
            Err(_) => return Err(CopyError::Txn(TxnError::Fenced)),
        };
        let unanswered = ReadError::Txn(TxnError::Timeout);
        if !error.is_unanswered() || patience.next(coordinator, &unanswered) != Next::Again {
            return Err(CopyError::Tables(error));
        }
        session.back_off(attempts).await;
        attempts += 1;
    }
}

/// Copy of one table.
struct TableCopy {
    table: Arc<TableDef>,
    /// Number after that of the table sent before.
    next_number: u32,
    /// Whether a part of the table was sent.
    begun: bool,
}

impl TableCopy {
    /// Sends the table and its rows.
    ///
    /// # Errors
    /// `Dropped`, with nothing sent if the copy has not [begun](Self::begun), and others.
    async fn send_all(
        &mut self,
        session: &mut Session,
        held: &Held,
        out: &Sender<Piece>,
    ) -> Result<(), CopyError> {
        let mut next = Some(ScanPlace::START);
        while let Some(place) = next {
            let rows;
            (rows, next) = self.page(session, held, place).await?;
            if !self.begun {
                self.begin(out).await?;
            }
            if rows.count > 0 {
                send(out, Piece::Rows(rows.payload, rows.count)).await?;
            }
        }
        Ok(())
    }

    async fn begin(&mut self, out: &Sender<Piece>) -> Result<(), CopyError> {
        self.begun = true;
        let number = u32::from(self.table.id().0);
        debug_assert!(
            number >= self.next_number,
            "I318: a file has each table once, in the order of their numbers"
        );
        if number > self.next_number {
            send(out, Piece::Dropped(number - self.next_number)).await?;
        }
        send(out, Piece::Table(self.table.spec().clone())).await
    }

    /// Reads a page of rows from `place` on; returns it with the place behind the page.
    async fn page(
        &self,
        session: &mut Session,
        held: &Held,
        place: ScanPlace,
    ) -> Result<(Rows, Option<ScanPlace>), CopyError> {
        let (mut patience, mut attempts) = (RetryBudget::begin(session.coordinator()), 0);
        loop {
            let mut rows = Rows::default();
            let mut reader = Reader::new(session, held, Arc::clone(&self.table));
            let error = match reader.read_page(place, ROWS_BYTES, &mut rows).await {
                Ok(behind) => return Ok((rows, behind)),
                Err(error) => error,
            };
            let coordinator = session.coordinator();
            match patience.next(coordinator, &error) {
                Next::Again => {}
                Next::Dropped => return Err(CopyError::Dropped),
                Next::TooOld => return Err(CopyError::TooOld),
                Next::GiveUp => {
                    return Err(CopyError::given_up(error, patience.waited(coordinator)));
                }
            }
            session.back_off(attempts).await;
            attempts += 1;
        }
    }
}

async fn send(out: &Sender<Piece>, piece: Piece) -> Result<(), CopyError> {
    out.send(piece).await.map_err(|_| CopyError::WriterGone)
}

/// Right to read for a snapshot file; a coordinator reads for one file at a time.
struct Alone<'a>(&'a Coordinator);

impl<'a> Alone<'a> {
    fn begin(coordinator: &'a Coordinator) -> Result<Self, CopyError> {
        match coordinator.reads_all.replace(true) {
            true => Err(CopyError::Busy),
            false => Ok(Self(coordinator)),
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.reads_all.set(false);
    }
}

/// Rows to be sent, in the file's format.
#[derive(Default)]
struct Rows {
    payload: Vec<u8>,
    /// Number of stored rows.
    count: u64,
}

impl RowSink for Rows {
    fn push(&mut self, key: &PrimaryKey, value: &[u8]) {
        push_row(&mut self.payload, key, value);
        self.count += 1;
    }

    fn bytes(&self) -> usize {
        self.payload.len()
    }
}
