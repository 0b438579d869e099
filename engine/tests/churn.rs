//! Rows that come and go give their memory back (H13, H20).
//!
//! A table sees many times as many rows as it has room for, each under a key of its own, inserted
//! and deleted again, while snapshots look for some of them. What the memory nodes have handed out
//! must stop growing, and everything must be in order at the end.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use lotus::{Isolation, Session, TableId, TableSpec, TxnError};

const CAPACITY: u64 = 2_000;
/// How many times that many rows there are in the end.
const TIMES: u64 = 24;
/// Rows that each worker keeps.
const ALIVE: u64 = 40;
const WORKERS: u64 = 4;

/// Row `number` has its number for a value.
async fn come_and_go(mut session: Session, table: TableId, first: u64) -> Result<(), TxnError> {
    let last = first + TIMES * CAPACITY / WORKERS;
    for number in first..last + ALIVE {
        let mut attempts = 0;
        loop {
            match replace(&mut session, table, first, number, last).await {
                Err(error) if error.is_retryable() => session.back_off(attempts).await,
                outcome => break outcome?,
            }
            attempts += 1;
        }
    }
    Ok(())
}

/// Inserts a row before the last, and deletes the one inserted some time before.
async fn replace(
    session: &mut Session,
    table: TableId,
    first: u64,
    number: u64,
    last: u64,
) -> Result<(), TxnError> {
    let mut txn = session.begin(Isolation::Serializable).await?;
    if number < last {
        txn.insert(table, number, &number.to_le_bytes())?;
    }
    if number >= first + ALIVE {
        let item = txn.add_rw(table, number - ALIVE)?;
        txn.execute().await?;
        txn.delete(item)?;
    }
    txn.commit().await.map(drop)
}

/// Reads rows that may be there or not, in snapshots, until all workers are done.
async fn look(mut session: Session, table: TableId, done: &AtomicU64) -> Result<(), TxnError> {
    let mut number = 0;
    while done.load(Ordering::Relaxed) < WORKERS {
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
    let spec = TableSpec::new("rows").record_bytes(8).capacity(CAPACITY).shards(16);
    let cluster = start(small().coroutines(3));
    let table = cluster.create_table(spec).expect("it is new");
    let seats: Vec<_> = cluster.seats().collect();
    let done_workers = Arc::new(AtomicU64::new(0));
    let mut all = Vec::new();
    for worker in 0..WORKERS {
        let done = Arc::clone(&done_workers);
        let seat = seats[worker as usize % seats.len()];
        all.push(cluster.submit(seat, move |session| async move {
            let first = worker * TIMES * CAPACITY / WORKERS;
            let outcome = come_and_go(session, table, first).await;
            done.fetch_add(1, Ordering::Relaxed);
            outcome
        }));
    }
    for seat in &seats {
        let done = Arc::clone(&done_workers);
        all.push(
            cluster.submit(*seat, move |session| async move { look(session, table, &done).await }),
        );
    }
    for worker in all {
        done(worker);
    }
    cluster.settle().expect("nothing has failed");
    let mut rows = 0;
    cluster.scan(table, &mut |_, _, _| rows += 1).expect("it can be read");
    assert_eq!(rows, 0);
    // Each row has had two records, of 64 bytes, and a seventh of a bucket.
    let unpurged = TIMES * CAPACITY * (2 * 64 + 512 / 7);
    let used = cluster.memory_use().expect("it can be read").replica_bytes;
    assert!(used < unpurged / 2, "{used} bytes of {unpurged} without purges");
    stop_clean(cluster);
}
