//! Typed rows on a cluster of this process: hash and ordered tables, and errors.

use std::collections::BTreeMap;

use lotus::{Abort, Cluster, Isolation, Transaction, TxnError};
use lotus_rows::{
    Defect, HashRows, Malformed, Ordered, OrderedTable, Purpose, Schema, Serde, Table,
};
use proptest::collection::vec;
use proptest::prelude::*;

const ACCOUNTS: Schema<u64, i64> = Schema::new("accounts");
const NAMES: Schema<String, Vec<u8>> = Schema::new("names").key_bytes(31).record_bytes(8);
const ORDERS: Schema<(u32, String, u64), Serde<Order>, Ordered> =
    Schema::ordered("orders").key_bytes(32).record_bytes(64);

/// Pieces and a product.
type Order = (u16, String);

fn cluster() -> Cluster {
    let small = Cluster::embedded().memory_nodes(1).compute_nodes(1).replicas(1);
    small.memory_limit(48 << 20).lock_table_bytes(1 << 20).coroutines(8).start().expect("sound")
}

fn create<K, V, O>(cluster: &Cluster, schema: Schema<K, V, O>) -> Table<K, V, O>
where
    K: lotus_rows::RowKey,
    V: lotus_rows::Value,
    O: lotus_rows::TableKind,
{
    schema.table(cluster.create_table(schema.spec().capacity(2_000)).expect("there is room"))
}

/// Runs a transaction to its end.
fn run<T, E>(
    cluster: &Cluster,
    body: impl AsyncFn(&mut Transaction) -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<TxnError> + Send + 'static,
{
    cluster.run(Isolation::Serializable, body).wait().map(|committed| committed.value)
}

/// Moves money; it is written once, for any transaction.
async fn transfer<T: HashRows>(
    txn: &mut T,
    accounts: Table<u64, i64>,
    (from, to): (u64, u64),
    amount: i64,
) -> Result<(), T::Error> {
    accounts.declare(txn, &from, Purpose::Update)?;
    accounts.declare(txn, &to, Purpose::Update)?;
    let payer = accounts.get_for_update(txn, &from).await?.unwrap_or(0);
    accounts.put(txn, &from, &(payer - amount)).await?;
    let payee = accounts.get_for_update(txn, &to).await?.unwrap_or(0);
    accounts.put(txn, &to, &(payee + amount)).await
}

#[test]
fn rows_of_a_hash_table_are_read_and_changed() {
    let cluster = cluster();
    let accounts = create(&cluster, ACCOUNTS);
    run(&cluster, async move |txn| {
        accounts.insert(txn, &1, &100).await?;
        accounts.put(txn, &2, &-5).await?;
        assert_eq!(accounts.get(txn, &1).await?, Some(100), "its own changes are seen");
        assert_eq!(accounts.get(txn, &2).await?, Some(-5));
        assert_eq!(accounts.get(txn, &3).await?, None);
        Ok::<_, TxnError>(())
    })
    .expect("nothing is in its way");
    run(&cluster, async move |txn| transfer(txn, accounts, (1, 3), 30).await).expect("as above");
    run(&cluster, async move |txn| transfer(txn, accounts, (2, 2), 7).await).expect("as above");
    run(&cluster, async move |txn| {
        let mut balances = Vec::new();
        for account in 1..=3 {
            balances.push(accounts.get(txn, &account).await?);
        }
        assert_eq!(balances, [Some(70), Some(-5), Some(30)]);
        assert!(accounts.delete(txn, &2).await? && !accounts.delete(txn, &2).await?);
        assert!(!accounts.delete(txn, &4).await?);
        assert_eq!(accounts.get(txn, &2).await?, None);
        accounts.insert(txn, &2, &1).await?;
        assert_eq!(accounts.get(txn, &2).await?, Some(1), "a deleted row may be added again");
        Ok::<_, TxnError>(())
    })
    .expect("nothing is in its way");
    cluster.stop().expect("it ends");
}

#[test]
fn a_row_is_inserted_once() {
    let cluster = cluster();
    let accounts = create(&cluster, ACCOUNTS);
    let twice = run(&cluster, async move |txn| {
        accounts.insert(txn, &1, &1).await?;
        accounts.insert(txn, &1, &2).await
    });
    let key = ACCOUNTS.primary_key(&1).expect("it fits");
    let exists = TxnError::AlreadyExists { table: accounts.id(), key: key.into() };
    assert_eq!(twice, Err(exists.clone()));
    let insert = async move |txn: &mut Transaction| accounts.insert(txn, &1, &3).await;
    assert_eq!(run(&cluster, insert), Ok(()));
    assert_eq!(run(&cluster, insert), Err(exists.clone()), "the commit finds it");
    let expected = exists.clone();
    let known = run(&cluster, async move |txn| {
        assert_eq!(accounts.get(txn, &1).await?, Some(3));
        let refused = accounts.insert(txn, &1, &4).await;
        assert_eq!(refused, Err(expected.clone()));
        assert!(matches!(accounts.put(txn, &1, &5).await, Err(TxnError::Misuse(_))));
        Ok::<_, TxnError>(())
    });
    assert_eq!(known, Err(exists), "a row that was read ends the attempt as any other");
    let left = run(&cluster, async move |txn| accounts.get(txn, &1).await);
    assert_eq!(left, Ok(Some(3)));
    cluster.stop().expect("it ends");
}

#[test]
fn keys_and_values_that_do_not_fit_are_refused() {
    let cluster = cluster();
    let names = create(&cluster, NAMES);
    let refused = run(&cluster, async move |txn| {
        names.put(txn, &"ada".to_owned(), &vec![1]).await?;
        let long = names.get(txn, &"x".repeat(31)).await;
        assert!(matches!(&long, Err(TxnError::Row(error))
            if *error.defect() == Defect::KeyLength { bytes: 32, limit: 31 }));
        let large = names.put(txn, &"bob".to_owned(), &vec![0; 9]).await;
        assert_eq!(
            large.map_err(|error| error.to_string()),
            Err("row 0x626f6200 of table names: a value of this table has at most 8 bytes, not 9"
                .to_owned())
        );
        // Neither has ended the attempt.
        names.get(txn, &"ada".to_owned()).await
    });
    assert_eq!(refused, Ok(Some(vec![1])));
    cluster.stop().expect("it ends");
}

#[test]
fn rows_of_another_type_are_refused() {
    let cluster = cluster();
    let names = create(&cluster, NAMES);
    let as_numbers = Schema::<String, u64>::new("names").key_bytes(31).table(names.id());
    run(&cluster, async move |txn| names.insert(txn, &"ada".to_owned(), &vec![7; 3]).await)
        .expect("nothing is in its way");
    let read = run(&cluster, async move |txn: &mut Transaction| {
        as_numbers.get(txn, &"ada".to_owned()).await.map_err(Abort::<()>::from)
    });
    let Err(Abort::Application(())) = read else {
        let Err(Abort::Engine(TxnError::Row(error))) = read else { panic!("{read:?}") };
        let length = Malformed::Length { expected: 8, found: 3 };
        assert_eq!(error.defect(), &Defect::Value(length));
        assert_eq!((error.table(), error.key()), ("names", &b"ada\0"[..]));
        return cluster.stop().expect("it ends");
    };
    panic!("the engine's error is not the application's");
}

fn order(pieces: u16) -> Order {
    (pieces, format!("product {pieces}"))
}

#[test]
fn ranges_of_an_ordered_table_follow_the_parts_of_its_keys() {
    let cluster = cluster();
    let orders: OrderedTable<_, _> = create(&cluster, ORDERS);
    let key = |customer: u32, city: &str, number: u64| (customer, city.to_owned(), number);
    run(&cluster, async move |txn| {
        for number in 0..300 {
            let city = ["", "Bern", "Berne", "Be\0"][number as usize % 4];
            let pieces = order(number as u16);
            orders.insert(txn, &key(number as u32 % 3, city, number), &pieces).await?;
        }
        Ok::<_, TxnError>(())
    })
    .expect("nothing is in its way");
    let again = run(&cluster, async move |txn| orders.insert(txn, &key(0, "", 0), &order(1)).await);
    assert!(matches!(again, Err(TxnError::AlreadyExists { .. })), "{again:?}");
    run(&cluster, async move |txn| {
        let of_one = orders.prefix(txn, &1).rows().await?;
        assert_eq!(of_one.len(), 100);
        assert!(of_one.is_sorted() && of_one.iter().all(|(key, _)| key.0 == 1));
        let in_bern = orders.prefix(txn, &(1, "Bern".to_owned())).rows().await?;
        let expected = (0..300).filter(|number| number % 3 == 1 && number % 4 == 1);
        assert!(in_bern.iter().map(|(key, _)| key.2).eq(expected.clone()));
        assert!(in_bern.iter().all(|(key, (pieces, _))| u64::from(*pieces) == key.2));
        let newest = orders.prefix(txn, &(1, "Bern".to_owned())).reverse().limit(1).rows().await?;
        assert_eq!(newest.first().map(|(key, _)| key.2), expected.max());
        let until_one = orders.range(txn, ..key(1, "", 0)).rows().await?;
        assert_eq!(until_one.len(), 100);

        let first = orders.prefix(txn, &2).limit(1).for_update().rows().await?;
        let (found, _) = first.first().expect("there are a hundred");
        assert_eq!(orders.get_for_update(txn, found).await?, Some(order(found.2 as u16)));
        orders.put(txn, found, &order(9)).await?;
        assert_eq!(orders.get(txn, found).await?, Some(order(9)));
        assert!(orders.delete(txn, found).await? && !orders.delete(txn, found).await?);
        assert_eq!(orders.get(txn, found).await?, None);
        assert_eq!(orders.prefix(txn, &2).rows().await?.len(), 99);
        Ok::<_, TxnError>(())
    })
    .expect("nothing is in its way");
    cluster.settle().expect("nothing runs");
    assert!(cluster.audit().expect("it can be read").iter().all(|finding| finding.passed));
    cluster.stop().expect("it ends");
}

#[test]
fn errors_of_ranges_leave_the_attempt_as_it_is() {
    let cluster = cluster();
    let orders = create(&cluster, ORDERS);
    let numbers = Schema::<(u32, u8), (), Ordered>::ordered("orders").table(orders.id());
    let rows = run(&cluster, async move |txn| {
        orders.put(txn, &(1, "Bern".to_owned(), 7), &order(3)).await?;
        let wrong = numbers.range(txn, ..).rows().await;
        let trailing = Defect::Key(Malformed::Trailing { bytes: 12 });
        assert!(matches!(&wrong, Err(TxnError::Row(error)) if *error.defect() == trailing));
        let long = orders.prefix(txn, &(1, "x".repeat(300))).rows().await;
        assert!(matches!(&long, Err(TxnError::Row(error))
            if matches!(error.defect(), Defect::KeyLength { bytes: 305, limit: 32 })));
        let backwards = (2, String::new(), 0)..(1, String::new(), 0);
        assert!(matches!(orders.range(txn, backwards).rows().await, Err(TxnError::Misuse(_))));
        orders.range(txn, ..).rows().await
    });
    assert_eq!(rows.map(|rows| rows.len()), Ok(1));
    cluster.stop().expect("it ends");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn an_ordered_table_is_a_sorted_map(
        changes in vec(
            (any::<Option<i8>>(), "[a\0\u{1}\u{7f}]{0,3}", any::<Option<u16>>()),
            1..150,
        ),
    ) {
        const SCHEMA: Schema<(Option<i8>, String), u16, Ordered> =
            Schema::ordered("sorted").key_bytes(9);
        let cluster = cluster();
        let table = create(&cluster, SCHEMA);
        let mut model = BTreeMap::new();
        for (number, text, value) in &changes {
            let key = (*number, text.clone());
            match value {
                Some(value) => model.insert(key, *value),
                None => model.remove(&key),
            };
        }
        let read = run(&cluster, async move |txn| {
            for (number, text, value) in &changes {
                let key = (*number, text.clone());
                match value {
                    Some(value) => table.put(txn, &key, value).await?,
                    None => _ = table.delete(txn, &key).await?,
                }
            }
            let none = table.prefix(txn, &None).rows().await?;
            Ok::<_, TxnError>((table.range(txn, ..).rows().await?, none))
        });
        let (all, none) = read.expect("nothing is in its way");
        prop_assert!(all.iter().map(|(key, value)| (key, value)).eq(&model));
        prop_assert_eq!(none.len(), model.keys().filter(|key| key.0.is_none()).count());
        cluster.stop().expect("it ends");
    }
}
