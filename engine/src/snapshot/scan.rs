//! Reading all tables as of one timestamp, for a snapshot file.
//!
//! A job in a coroutine slot. It holds a snapshot ([`crate::scan::held`]), and reads table after
//! table with [`crate::scan::reader`]. The rows go through a channel to the thread that writes the
//! file, which sets the pace.
//!
//! It is not sure to succeed: if the snapshot becomes too old, or the membership changes meanwhile,
//! the caller begins anew.

use std::rc::Rc;
use std::sync::Arc;

use async_channel::Sender;
use lotus_mvcc::{PrimaryKey, TableSpec, Timestamp};

use super::format::{ROWS_BYTES, push_row};
use crate::api::error::TxnError;
use crate::node::coordinator::Coordinator;
use crate::scan::held::Held;
use crate::scan::place::ScanPlace;
use crate::scan::reader::{Reader, RowSink};
use crate::txn::session::Session;

/// Piece of a snapshot, in the order of the file.
pub(crate) enum Piece {
    /// Begins the snapshot that was drawn.
    Begin(Timestamp),
    /// Numbers of dropped tables, before the next table's.
    Dropped(u32),
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
    let coordinator = &*slot.coordinator;
    let _alone = Alone::begin(coordinator)?;
    let held = Held::draw(&slot).await?;
    send(&out, Piece::Begin(held.snapshot())).await?;
    // Tables known by now: commits to any others are later.
    let shared = Arc::clone(&coordinator.shared);
    let learned = coordinator.shared.council.apart(move || shared.learn_tables().map(drop)).await;
    learned.map_err(|_| TxnError::Fenced)?.map_err(|_| TxnError::Timeout)?;
    let (tables, numbers) = coordinator.shared.tables_and_numbers();
    let mut next_number = 0;
    for table in tables {
        let number = u32::from(table.id().0);
        if number > next_number {
            send(&out, Piece::Dropped(number - next_number)).await?;
        }
        next_number = number + 1;
        send(&out, Piece::Table(table.spec().clone())).await?;
        let mut reader = Reader::new(&mut session, &held, table);
        let mut next = Some(ScanPlace::START);
        while let Some(place) = next {
            let mut rows = Rows::default();
            next = reader.read_page(place, ROWS_BYTES, &mut rows).await?;
            if rows.count > 0 {
                send(&out, Piece::Rows(rows.payload, rows.count)).await?;
            }
        }
    }
    if numbers > next_number {
        send(&out, Piece::Dropped(numbers - next_number)).await?;
    }
    Ok(held.snapshot())
}

async fn send(out: &Sender<Piece>, piece: Piece) -> Result<(), TxnError> {
    // The writing thread has given up, and knows the reason.
    out.send(piece).await.map_err(|_| TxnError::Timeout)
}

/// The one snapshot file that a coordinator reads for at a time.
struct Alone<'a>(&'a Coordinator);

impl<'a> Alone<'a> {
    fn begin(coordinator: &'a Coordinator) -> Result<Self, TxnError> {
        match coordinator.reads_all.replace(true) {
            true => Err(TxnError::Misuse("the coordinator reads all rows already")),
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
