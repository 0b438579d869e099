//! Transactions that read first and write then, with every kind of locks. A lock on a memory node
//! that is held to read cannot be upgraded: the attempt is refused, and its retry takes it to write
//! at once. That takes a memory of what was refused, which each attempt of an interactive
//! transaction had to itself: such transactions never committed.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::{ACCOUNTS, Bank, INITIAL, balance, run};
use lotus::{Cluster, LockKind, LockWait, TableSpec};
use lotus_client::{CallError, Client, Kind, Transaction};

/// Attempts that a transaction may take which has no rival: some at each node, as a lock is
/// released a little after the commit that held it was reported.
const MOST_ATTEMPTS: u32 = 60;

fn with_every_kind(test: impl Fn(&Bank)) {
    let waits = [LockWait::Ordered, LockWait::None];
    let lotus = waits.into_iter().map(|wait| (LockKind::Lotus, wait));
    let on_memory = [LockKind::Cas, LockKind::Dslr, LockKind::ShiftLock, LockKind::Declock];
    let kinds = lotus.chain(on_memory.into_iter().map(|kind| (kind, LockWait::default())));
    for (kind, wait) in kinds {
        let builder = Cluster::embedded().compute_nodes(2).memory_nodes(1).replicas(1);
        let builder = builder.lock_table_bytes(1 << 16).version_table_cache(0).locks(kind);
        let bank = Bank::over(builder.lock_wait(wait).start().unwrap(), |_| {});
        test(&bank);
        assert_eq!(bank.audit(), ACCOUNTS * INITIAL, "{kind:?} {wait:?}");
    }
}

/// Moves `sum` from one account to another, and reads both before it writes.
async fn move_sum(txn: &mut Transaction, [from, to]: [u64; 2], sum: u64) -> Result<(), CallError> {
    let table = lotus::TableId(0);
    let mut left = [0; 2];
    for (account, left) in [from, to].into_iter().zip(&mut left) {
        let item = txn.add_ro(table, account);
        txn.execute().await?;
        *left = u64::from_le_bytes(txn.value(item).unwrap().try_into().unwrap());
    }
    for (account, amount) in [(from, left[0] - sum), (to, left[1] + sum)] {
        let item = txn.add_rw(table, account);
        txn.put(item, amount.to_le_bytes());
        txn.execute().await?;
    }
    Ok(())
}

#[test]
fn a_row_that_was_read_is_written() {
    with_every_kind(|bank| {
        run(async {
            let client = bank.client().await;
            let attempts = AtomicU32::new(0);
            let body = async |txn: &mut Transaction| {
                attempts.fetch_add(1, Ordering::Relaxed);
                move_sum(txn, [1, 2], 10).await
            };
            client.run(Kind::Serializable, body).await.unwrap();
            assert!(attempts.into_inner() < MOST_ATTEMPTS);
            // The application tries again by itself.
            let mut attempts = 0;
            loop {
                let mut txn = client.transaction(Kind::Serializable);
                let moved = match move_sum(&mut txn, [2, 1], 4).await {
                    Ok(()) => txn.commit().await.map(drop),
                    Err(error) => Err(error),
                };
                let Err(error) = moved else { break };
                attempts += 1;
                assert!(error.is_retryable() && attempts < MOST_ATTEMPTS, "{error}");
            }
            assert_eq!(balance(&client, 1).await.unwrap(), INITIAL - 6);
            // A stored one: its attempts follow one another in one slot.
            let after: u64 = client.call("read, then deposit", &(1_u64, 6_u64)).await.unwrap();
            assert_eq!(after, INITIAL);
            client.call::<_, u64>("deposit", &(2_u64, 0_u64)).await.unwrap();
            let mut txn = client.transaction(Kind::Serializable);
            let item = txn.add_rw(lotus::TableId(0), 2);
            txn.execute().await.unwrap();
            txn.put(item, INITIAL.to_le_bytes());
            txn.commit().await.unwrap();
        });
    });
}

/// Each of eight clients adds to the same accounts what it has read of them, at once.
#[test]
fn many_that_read_the_same_rows_first_all_commit() {
    with_every_kind(|bank| {
        run(async {
            let client = bank.client().await;
            let one = async |client: &Client, number: u64| {
                for round in 0..4 {
                    let accounts = if (number + round).is_multiple_of(2) { [1, 2] } else { [2, 1] };
                    let body = async |txn: &mut Transaction| move_sum(txn, accounts, 1).await;
                    client.run(Kind::Serializable, body).await.unwrap();
                }
            };
            tokio::join!(one(&client, 0), one(&client, 1), one(&client, 2), one(&client, 3));
        });
    });
}

#[test]
fn the_first_row_of_an_ordered_table_is_written_and_those_that_split_its_nodes() {
    with_every_kind(|bank| {
        let spec = TableSpec::new("sorted").key_bytes(8).record_bytes(200).capacity(500);
        bank.cluster.create_table(spec.ordered()).unwrap();
        run(async {
            let client = bank.client().await;
            let table = client.open_table("sorted").await.unwrap().unwrap();
            let key = |number: u64| number.to_be_bytes().to_vec();
            for number in 0..60 {
                let body = async |txn: &mut Transaction| {
                    let mut sorted = txn.ordered(table);
                    // Of another leaf, of the same one, and of the key itself.
                    let _first = sorted.get(&key(0)).await?;
                    let before = sorted.get(&key(number)).await?;
                    assert_eq!(before, None);
                    sorted.put(key(number), vec![number as u8; 200]);
                    sorted.delete(&key(number + 1_000)).await
                };
                client.run(Kind::Serializable, body).await.unwrap();
            }
            let body = async |txn: &mut Transaction| {
                let rows = txn.ordered(table).range(..).rows().await?;
                for (key, _) in &rows {
                    txn.ordered(table).delete(key).await?;
                }
                Ok::<_, CallError>(rows.len())
            };
            assert_eq!(client.run(Kind::Serializable, body).await.unwrap().value, 60);
        });
    });
}
