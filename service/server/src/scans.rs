//! A scan for a client: a job that stays in one coroutine slot, and holds the scan's snapshot, from
//! the first page to the last.
//!
//! A scan ends at the client's request, with a failure, with one of its limits ([`Limits::scan`]
//! for the whole scan, [`Limits::scan_pause`] for the client between two pages) or with the
//! client's connection; then the snapshot is released (I82). Every request names the cursor of the
//! previous page, so a request whose answer was lost may be repeated. Pages are small, and reading
//! a page yields to the coordinator's other work at every batch.

use std::sync::Arc;

use lotus::{Nanos, ScanCursor, ScanError, ScanPage, Session, SessionScan, TableId};
use lotus_protocol::messages::{
    Answer, Bytes, Failure, Op, PageRow, RESULT_BYTES, ROW_BYTES, Scan, decode,
};

use crate::config::Limits;
use crate::failure;
use crate::interactive::{Inbox, Message, Open};
use crate::node::{InteractivePlace, NodeServer};
use crate::ticket::Ticket;
use crate::within::Alarm;

// Lengths of a key and a value take less than `ROW_BYTES`, and a row has one byte at least.
const _: () = assert!(
    ScanPage::MAX_BYTES * (1 + ROW_BYTES) + ScanCursor::MAX_BYTES <= RESULT_BYTES,
    "a page fits in an answer"
);

/// Begins a scan in `place`; the request for its first page is to follow.
pub(crate) fn begin(node: &Arc<NodeServer>, place: InteractivePlace) -> Open {
    let Limits { scan, scan_pause, .. } = node.limits;
    let [limit_ms, pause_ms] = [scan, scan_pause].map(|time| time.as_millis() as u32);
    let (open, inbox) = Open::new(Failure::ScanTooLong { limit_ms, pause_ms });
    let (shared, deadline) = (Arc::clone(node), node.env.now().after(scan));
    node.submit(place.thread, move |session| async move {
        serve(&shared, session, &inbox, deadline).await;
        drop(place);
    });
    open
}

/// Answers requests until the scan fails, its time runs out or the client ends it. The last page
/// does not end the scan: its answer may be lost, and asked for again.
async fn serve(node: &NodeServer, mut session: Session, inbox: &Inbox, deadline: Nanos) {
    let mut alarm = Alarm::new(session.view());
    let until = || node.env.now().after(node.limits.scan_pause).min(deadline);
    let Some(Message { ticket, step }) = inbox.next(&mut alarm, until()).await else { return };
    let Ok(Op::Scan(first)) = decode(&step) else { return };
    // Another node may have created the table.
    if let Err(error) = session.view().learn_table(TableId(first.table)).await {
        return ticket.fail(failure::of(error));
    }
    let mut scan = match start(node, &mut session, &first).await {
        Ok(scan) => scan,
        Err(failure) => return ticket.fail(failure),
    };
    let mut asked = ticket;
    while answer(&mut scan, asked).await {
        let Some(Message { ticket, step }) = inbox.next(&mut alarm, until()).await else { return };
        let Ok(Op::Scan(next)) = decode(&step) else { return };
        if let Err(failure) = go_to(&mut scan, &next) {
            return ticket.fail(failure);
        }
        asked = ticket;
    }
}

/// Begins a scan at a new snapshot, or continues at the snapshot of the request's cursor.
async fn start<'s>(
    node: &NodeServer,
    session: &'s mut Session,
    asked: &Scan<'_>,
) -> Result<SessionScan<'s>, Failure> {
    let table = TableId(asked.table);
    // The table of call records belongs to the server.
    if table == node.calls {
        return Err(failure::of_scan(ScanError::UnknownTable(table)));
    }
    let scan = match asked.cursor {
        Bytes([]) => session.scan(table).await,
        Bytes(cursor) => match ScanCursor::decode(cursor) {
            Some(cursor) if cursor.table() == table => session.resume_scan(&cursor).await,
            _ => Err(ScanError::SnapshotTooOld),
        },
    };
    let mut scan = scan.map_err(failure::of_scan)?;
    scan.select(asked.keys.range(), asked.keys.reverse).map_err(failure::of_scan)?;
    Ok(scan)
}

/// Moves to the request's cursor, which may belong to a page that was answered before.
fn go_to(scan: &mut SessionScan<'_>, asked: &Scan<'_>) -> Result<(), Failure> {
    let Bytes(cursor) = asked.cursor;
    match ScanCursor::decode(cursor) {
        Some(cursor) => scan.go_to(&cursor).map_err(failure::of_scan),
        // The first page once more.
        None if cursor.is_empty() => {
            scan.restart();
            Ok(())
        }
        None => Err(Failure::SnapshotTooOld),
    }
}

/// Reads a page and answers; returns false after a failure.
async fn answer(scan: &mut SessionScan<'_>, ticket: Ticket) -> bool {
    let page = match scan.next_page().await {
        Ok(page) => page.unwrap_or(ScanPage { rows: Vec::new(), next: None }),
        Err(error) => {
            ticket.fail(failure::of_scan(error));
            return false;
        }
    };
    let cursor = page.next.map(|cursor| cursor.encode());
    let rows: Vec<PageRow<'_>> =
        page.rows.iter().map(|(key, value)| (Bytes(key), Bytes(value))).collect();
    let bytes = cursor.as_ref().map(|cursor| Bytes(cursor));
    ticket.answer(&Answer::Page { rows, cursor: bytes });
    true
}
