//! Typed rows, by code that is written once: in this process and by interactive transactions.

use std::fmt::Debug;

use crate::common::{Bank, INITIAL, run};
use lotus::{Isolation, TxnError};
use lotus_client::{CallError, Failure, Kind};
use lotus_rows::{Defect, HashRows, Ordered, OrderedRows, OrderedTable, Purpose, Schema, Table};

const ACCOUNTS: Schema<u64, u64> = Schema::new("accounts");

/// Goes through all operations, from account `first` on, of which the next ones do not exist.
async fn all<T: HashRows<Error: Debug>>(
    txn: &mut T,
    accounts: Table<u64, u64>,
    [old, new, other]: [u64; 3],
) -> Result<(), T::Error> {
    accounts.declare(txn, &old, Purpose::Update)?;
    accounts.declare(txn, &new, Purpose::Read)?;
    assert_eq!(accounts.get(txn, &new).await?, None);
    assert_eq!(accounts.get_for_update(txn, &old).await?, Some(INITIAL));
    accounts.put(txn, &old, &7).await?;
    assert_eq!(accounts.get(txn, &old).await?, Some(7), "its own changes are seen");
    accounts.put(txn, &old, &8).await?;
    assert_eq!(accounts.get(txn, &old).await?, Some(8));

    accounts.insert(txn, &new, &1).await?;
    assert_eq!(accounts.get(txn, &new).await?, Some(1));
    accounts.put(txn, &new, &2).await?;
    assert_eq!(accounts.get(txn, &new).await?, Some(2));
    accounts.put(txn, &other, &3).await?;
    assert_eq!(accounts.get_for_update(txn, &other).await?, Some(3));

    assert!(accounts.delete(txn, &old).await?);
    assert!(!accounts.delete(txn, &old).await?);
    assert_eq!(accounts.get(txn, &old).await?, None);
    accounts.put(txn, &old, &4).await?;
    assert_eq!(accounts.get(txn, &old).await?, Some(4));
    Ok(())
}

#[test]
fn one_function_works_here_and_at_a_client() {
    let bank = Bank::open(1);
    let accounts = ACCOUNTS.table(bank.table);
    let read = async move |txn: &mut lotus::Transaction| {
        let mut found = Vec::new();
        for account in [1, 2, 100, 101, 102, 103] {
            found.push(accounts.get(txn, &account).await?);
        }
        Ok::<_, TxnError>(found)
    };
    let cluster = &bank.cluster;
    cluster
        .run(Isolation::Serializable, async move |txn: &mut lotus::Transaction| {
            all(txn, accounts, [1, 100, 101]).await
        })
        .wait()
        .unwrap();
    run(async {
        let client = bank.client().await;
        let body = async move |txn: &mut lotus_client::Transaction| {
            all(txn, accounts, [2, 102, 103]).await
        };
        client.run(Kind::Serializable, body).await.unwrap();
    });
    let rows = cluster.run_read_only(read).wait().unwrap().value;
    assert_eq!(rows, [Some(4), Some(4), Some(2), Some(3), Some(2), Some(3)]);
}

const VISITS: Schema<(u32, u32), u64, Ordered> = Schema::ordered("visits");

/// Goes through all operations on an ordered table, for visits of one guest.
async fn visits<T: OrderedRows<Error: Debug>>(
    txn: &mut T,
    visits: OrderedTable<(u32, u32), u64>,
    guest: u32,
) -> Result<(), T::Error> {
    visits.declare(txn, &(guest, 5), Purpose::Update)?;
    for day in [5, 3, 9] {
        visits.insert(txn, &(guest, day), &u64::from(day)).await?;
    }
    visits.put(txn, &(guest, 9), &90).await?;
    assert_eq!(visits.get(txn, &(guest, 9)).await?, Some(90), "its own changes are seen");
    assert!(visits.delete(txn, &(guest, 3)).await?);
    assert!(!visits.delete(txn, &(guest, 3)).await?);
    assert_eq!(visits.get_for_update(txn, &(guest, 3)).await?, None);
    let rows = visits.prefix(txn, &guest).rows().await?;
    assert_eq!(rows, [((guest, 5), 5), ((guest, 9), 90)]);
    let last = visits.range(txn, (guest, 0)..(guest, 99)).reverse().limit(1).rows().await?;
    assert_eq!(last, [((guest, 9), 90)]);
    Ok(())
}

#[test]
fn one_function_on_an_ordered_table_works_here_and_at_a_client() {
    let bank = Bank::open(1);
    let created = bank.cluster.create_table(VISITS.spec().capacity(100)).unwrap();
    let table = VISITS.table(created);
    let body = async move |txn: &mut lotus::Transaction| visits(txn, table, 1).await;
    bank.cluster.run(Isolation::Serializable, body).wait().unwrap();
    run(async {
        let client = bank.client().await;
        let body = async move |txn: &mut lotus_client::Transaction| visits(txn, table, 2).await;
        client.run(Kind::Serializable, body).await.unwrap();
    });
    let all = async move |txn: &mut lotus::Transaction| {
        Ok::<_, TxnError>(table.range(txn, ..).rows().await?.len())
    };
    assert_eq!(bank.cluster.run_read_only(all).wait().unwrap().value, 4);
}

#[test]
fn a_client_learns_why_a_row_does_not_fit() {
    let bank = Bank::open(1);
    run(async {
        let client = bank.client().await;
        let texts = Schema::<u64, String>::new("texts").record_bytes(8).table(bank.table);
        let mut txn = client.transaction(Kind::Serializable);
        let long = texts.put(&mut txn, &1, &"x".repeat(9)).await;
        assert!(matches!(&long, Err(CallError::Row(error))
            if *error.defect() == Defect::ValueLength { bytes: 9, limit: 8 }));
        let narrow = Schema::<u64, u32>::new("narrow").table(bank.table);
        let wrong = narrow.get(&mut txn, &1).await;
        assert!(matches!(&wrong, Err(CallError::Row(error)) if error.table() == "narrow"));
        // The row is known, so it needs no server to end the transaction.
        let accounts = ACCOUNTS.table(bank.table);
        let exists = accounts.insert(&mut txn, &1, &1).await;
        assert!(matches!(exists, Err(CallError::Failed(Failure::AlreadyExists(_)))));
        let over = accounts.put(&mut txn, &1, &5).await;
        assert!(matches!(over, Err(CallError::Failed(Failure::NoTransaction))), "{over:?}");
        // A row that is not known is found by the commit.
        let mut txn = client.transaction(Kind::Serializable);
        accounts.insert(&mut txn, &1, &1).await.unwrap();
        let exists = txn.commit().await;
        assert!(matches!(exists, Err(CallError::Failed(Failure::AlreadyExists(_)))));
    });
}
