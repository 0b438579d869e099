//! Fills memory with rows, deletes half of the rows, and fills memory again; a coordinator on a
//! different compute node makes the deletions. Updates succeed all the while.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

use std::ops::Range;
use std::time::Duration;

use lotus::{Cluster, CoordinatorId, Isolation, Session, TableId, TableSpec, TxnError};

const RECORD_BYTES: usize = 4096;
/// Refused inserts in a row after which each of the three groups of replicas is full: a row falls
/// to each group with the same chance.
const REFUSALS: usize = 60;
/// Repetitions of an insert that finds no memory: deleted rows are purged a moment later, once no
/// snapshot can need them. Half a minute, for busy machines.
const TRIES: u32 = 6_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Cluster::embedded().memory_nodes(3).compute_nodes(2).threads(2).replicas(3);
    let cluster = builder.memory_limit(24 << 20).start()?;
    let spec = TableSpec::new("documents").record_bytes(RECORD_BYTES as u32).capacity(5_000);
    let documents = cluster.create_table(spec)?;
    let [writer, deleter] =
        [(0, 0), (1, 1)].map(|(compute_node, thread)| CoordinatorId { compute_node, thread });

    let rows = fill(&cluster, writer, documents)?;
    println!("full after {} rows of {RECORD_BYTES} bytes, inserted by {writer:?}", rows.len());

    let next = rows.last().map_or(0, |last| last + 1);
    let (deleted, kept) = (rows.len() / 2, rows.len().div_ceil(2));
    let work = move |mut session| async move {
        for row in &rows[..deleted] {
            change(&mut session, documents, *row, Change::Delete).await?;
        }
        for row in &rows[deleted..] {
            change(&mut session, documents, *row, Change::Update).await?;
        }
        Ok(())
    };
    cluster.submit(deleter, work).wait()?;
    println!("{deleted} rows deleted and {kept} updated by {deleter:?}");

    // Some slots are reserved for updates; and a group may get more new rows than it lost.
    let again = deleted * 4 / 5;
    refill(&cluster, writer, documents, next..next + again as u64)?;
    println!("{again} rows inserted in their place by {writer:?}");

    cluster.settle()?;
    let mut found = 0;
    cluster.audit_scan(documents, &mut |_, _, _| found += 1)?;
    assert_eq!(found, kept + again, "rows came or went");
    assert!(cluster.audit()?.iter().all(|finding| finding.passed), "the audit failed");
    println!("{found} rows, and the audit is clean");
    cluster.stop()?;
    Ok(())
}

/// Inserts rows until [`REFUSALS`] inserts in a row have found no memory. Returns the inserted
/// rows.
fn fill(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
) -> Result<Vec<u64>, TxnError> {
    let work = move |mut session: Session| async move {
        let (mut inserted, mut refused) = (Vec::new(), 0);
        for row in 0.. {
            match change(&mut session, table, row, Change::Insert).await {
                Ok(()) => {
                    inserted.push(row);
                    refused = 0;
                }
                Err(TxnError::TableFull { .. }) if refused == REFUSALS => break,
                Err(TxnError::TableFull { .. }) => refused += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(inserted)
    };
    cluster.submit(coordinator_id, work).wait()
}

/// Inserts these rows, each of which must find memory within [`TRIES`].
fn refill(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    rows: Range<u64>,
) -> Result<(), TxnError> {
    let work = move |mut session: Session| async move {
        for row in rows {
            let mut refused = 0;
            while let Err(error) = change(&mut session, table, row, Change::Insert).await {
                refused += 1;
                if !matches!(error, TxnError::TableFull { .. }) || refused > TRIES {
                    return Err(error);
                }
                let view = session.view();
                view.sleep_until(view.now().after(Duration::from_millis(5))).await;
            }
        }
        Ok(())
    };
    cluster.submit(coordinator_id, work).wait()
}

#[derive(Clone, Copy)]
enum Change {
    Insert,
    Update,
    Delete,
}

/// Changes one row, and retries as long as a retry may help.
async fn change(
    session: &mut Session,
    table: TableId,
    row: u64,
    change: Change,
) -> Result<(), TxnError> {
    for attempt in 0.. {
        match attempt_change(session, table, row, change).await {
            Err(error) if error.is_retryable() => session.back_off(attempt).await,
            outcome => return outcome,
        }
    }
    unreachable!("some attempt has an outcome")
}

async fn attempt_change(
    session: &mut Session,
    table: TableId,
    row: u64,
    change: Change,
) -> Result<(), TxnError> {
    let value = [row as u8; RECORD_BYTES];
    let mut txn = session.begin(Isolation::Serializable).await?;
    match change {
        Change::Insert => _ = txn.insert(table, row, &value)?,
        Change::Update => {
            let item = txn.add_rw(table, row)?;
            txn.put(item, &value)?;
        }
        Change::Delete => {
            let item = txn.add_rw(table, row)?;
            txn.delete(item)?;
        }
    }
    txn.commit().await.map(drop)
}
