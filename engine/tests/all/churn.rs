//! Rows that come and go give their memory back (H13, H20).
//!
//! A table sees many times as many rows as its capacity, each under a key of its own, inserted and
//! deleted again, while snapshots look for some of them. The memory nodes' allocations must stop
//! growing, and all checks must pass at the end.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use lotus::{Inline, Isolation, Session, TableId, TableSpec, TxnError};

const CAPACITY: u64 = 2_000;
/// Total number of rows, in multiples of the capacity.
const TIMES: u64 = 24;
/// Rows that each worker keeps.
const ALIVE: u64 = 40;
const WORKERS: u64 = 4;
/// Steps that a worker takes at a time. Every wait has a limit, so that no hang goes unnoticed; it
/// covers this much work only, which takes far less time even on a slow machine.
const STEPS: u64 = 500;

/// Rows of a worker, over time. The value of row `number` is its number.
fn rows_of(worker: u64) -> Range<u64> {
    let count = TIMES * CAPACITY / WORKERS;
    worker * count..(worker + 1) * count
}

/// Takes the steps from number `from` on: one for each new row, and some after the last until all
/// are deleted.
async fn come_and_go(
    mut session: Session,
    table: TableId,
    rows: Range<u64>,
    from: u64,
) -> Result<(), TxnError> {
    for number in from..(from + STEPS).min(rows.end + ALIVE) {
        let mut attempts = 0;
        loop {
            match replace(&mut session, table, &rows, number).await {
                Err(error) if error.is_retryable() => session.back_off(attempts).await,
                outcome => break outcome?,
            }
            attempts += 1;
        }
    }
    Ok(())
}

/// Inserts a row, up to the last, and deletes the one inserted some time before.
async fn replace(
    session: &mut Session,
    table: TableId,
    rows: &Range<u64>,
    number: u64,
) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    if number < rows.end {
        txn.insert(table, number, &number.to_le_bytes())?;
    }
    if number >= rows.start + ALIVE {
        let item = txn.add_rw(table, number - ALIVE)?;
        txn.execute().await?;
        txn.delete(item)?;
    }
    txn.commit().await.map(drop)
}

/// Reads rows that may exist or not, in snapshots, until it is `over`.
async fn look(mut session: Session, table: TableId, over: &AtomicBool) -> Result<(), TxnError> {
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let mut txn = session.begin_read_only().await?;
        let items = [number, number + 7].map(|number| txn.add_ro(table, number));
        match txn.execute().await {
            Ok(()) => {
                for (item, number) in items.into_iter().zip([number, number + 7]) {
                    if let Some(value) = txn.value(item?) {
                        assert_eq!(value, number.to_le_bytes());
                    }
                }
            }
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
        number = (number + 1) % (TIMES * CAPACITY);
    }
    Ok(())
}

#[test]
fn h13_rows_that_come_and_go_give_their_memory_back() {
    // Each row has had two records of 64 bytes, and a seventh of a bucket.
    come_and_go_in(Inline::Never, 2 * 64 + 512 / 7);
}

#[test]
fn h13_rows_beside_their_cells_give_their_memory_back() {
    come_and_go_in(Inline::Auto, 1344 / 7);
}

/// Inserts and deletes rows, each of which takes `row_bytes` until it is purged.
fn come_and_go_in(inline: Inline, row_bytes: u64) {
    let spec = TableSpec::new("rows").record_bytes(8).capacity(CAPACITY).shards(16);
    let spec = spec.inline(inline);
    let cluster = start(small().coroutines(3));
    let table = cluster.create_table(spec).expect("it is new");
    let coordinator_ids: Vec<_> = cluster.coordinators().collect();
    let over = Arc::new(AtomicBool::new(false));
    let lookers: Vec<_> = coordinator_ids
        .iter()
        .map(|coordinator_id| {
            let over = Arc::clone(&over);
            cluster.submit(*coordinator_id, move |session| async move {
                look(session, table, &over).await
            })
        })
        .collect();
    for step in (0..rows_of(0).end + ALIVE).step_by(STEPS as usize) {
        let workers = (0..WORKERS).map(|worker| {
            let coordinator_id = coordinator_ids[worker as usize % coordinator_ids.len()];
            let rows = rows_of(worker);
            let from = rows.start + step;
            cluster.submit(coordinator_id, move |session| come_and_go(session, table, rows, from))
        });
        // Start all workers before waiting for the first.
        workers.collect::<Vec<_>>().into_iter().for_each(done);
    }
    over.store(true, Ordering::Relaxed);
    lookers.into_iter().for_each(done);
    cluster.settle().expect("nothing has failed");
    let mut rows = 0;
    cluster.audit_scan(table, &mut |_, _, _| rows += 1).expect("it can be read");
    assert_eq!(rows, 0);
    let unpurged = TIMES * CAPACITY * row_bytes;
    let used = cluster.memory_use().expect("it can be read").replica_bytes;
    assert!(used < unpurged / 2, "{used} bytes of {unpurged} without purges");
    stop_clean(cluster);
}
