//! Rows of the greatest length through a client: in interactive and stored transactions, in scans,
//! and in ordered tables.

use crate::common::{Bank, procedures, run};
use lotus::{MAX_RECORD_BYTES, TableSpec, TxnError, max_ordered_record_bytes};
use lotus_client::{CallError, Client, Failure, Kind, TableId, Transaction};
use lotus_server::{Abort, Config, Server};
use std::net::TcpListener;
use std::sync::Arc;

const LONGEST: usize = MAX_RECORD_BYTES as usize;
const BLOBS: TableSpec =
    TableSpec::new("blobs").record_bytes(MAX_RECORD_BYTES).key_bytes(31).capacity(300).shards(8);
const PAGES: TableSpec = TableSpec::new("pages")
    .record_bytes(max_ordered_record_bytes(255))
    .key_bytes(255)
    .capacity(300)
    .shards(8)
    .ordered();
/// More rows than a request, a page or an answer has room for.
const ROWS: u64 = 100;

fn value(number: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64 * 31 + at as u64 / 256 + number * 7) as u8).collect()
}

fn page_key(number: u64) -> Vec<u8> {
    [vec![b'p'; 247], number.to_be_bytes().to_vec()].concat()
}

/// A bank with tables of long rows, and stored transactions that write and read one.
fn open() -> (Bank, [TableId; 2]) {
    let bank = Bank::open(1);
    let tables = [BLOBS, PAGES].map(|spec| bank.cluster.create_table(spec).unwrap());
    let [blobs, _] = tables;
    let mut registry = procedures(bank.table);
    let stored = async move |txn: &mut lotus::Transaction, (row, value): (u64, Vec<u8>)| {
        txn.insert(blobs, row, &value)?;
        Ok::<(), Abort>(())
    };
    registry.register("store", stored);
    registry.register_read_only("recall", async move |txn: &mut lotus::Transaction, row: u64| {
        let item = txn.add_ro(blobs, row)?;
        txn.execute().await?;
        let value = txn.value(item).ok_or(TxnError::Misuse("no such row"))?;
        Ok::<Vec<u8>, Abort>(value.to_vec())
    });
    let Bank { cluster, table, servers } = bank;
    drop(servers);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = Config::new(listener, vec!["127.0.0.1:1".to_owned()]);
    let server = Server::start(Arc::clone(&cluster), 0, registry, config).unwrap();
    (Bank { cluster, table, servers: vec![server] }, tables)
}

/// Inserts all rows in one transaction, whose steps are longer than a request may be.
async fn fill(client: &Client, table: TableId) {
    let body = async move |txn: &mut Transaction| {
        let items: Vec<_> =
            (0..ROWS).map(|row| txn.insert(table, row, value(row, LONGEST))).collect();
        txn.execute().await?;
        for (row, item) in (0..).zip(items) {
            assert_eq!(txn.value(item), Some(&value(row, LONGEST)[..]));
        }
        Ok::<(), CallError>(())
    };
    client.run(Kind::Serializable, body).await.unwrap();
}

#[test]
fn the_longest_rows_come_and_go_by_interactive_transactions_and_scans() {
    let (bank, [blobs, _]) = open();
    run(async {
        let client = bank.client().await;
        fill(&client, blobs).await;
        // All changes in the commit's own request.
        let mut txn = client.transaction(Kind::Serializable);
        let items: Vec<_> = (0..40).map(|row| txn.add_rw(blobs, row)).collect();
        txn.execute().await.unwrap();
        for (row, item) in (0..).zip(items) {
            txn.put(item, value(row + 1, LONGEST));
        }
        assert!(txn.commit().await.unwrap().is_some());

        let mut scan = client.scan(blobs);
        let mut rows = std::collections::BTreeMap::new();
        while let Some(page) = scan.next_page().await.unwrap() {
            rows.extend(page);
        }
        let row = |row: u64| {
            let written = if row < 40 { row + 1 } else { row };
            (row.to_be_bytes().to_vec(), value(written, LONGEST))
        };
        assert!(rows.into_iter().eq((0..ROWS).map(row)), "the scan shows all rows, whole");
    });
    bank.audit();
}

#[test]
fn the_longest_rows_come_and_go_by_stored_transactions() {
    let (bank, [blobs, _]) = open();
    run(async {
        let client = bank.client().await;
        for row in 0..20 {
            client.call::<_, ()>("store", &(row, value(row, LONGEST))).await.unwrap();
        }
        for row in 0..20 {
            let found: Vec<u8> = client.call("recall", &row).at(blobs, row).await.unwrap();
            assert_eq!(found, value(row, LONGEST));
        }
        let long: Result<(), _> = client.call("store", &(20_u64, value(0, LONGEST + 1))).await;
        let said = long.unwrap_err().to_string();
        assert!(said.contains("has at most 15360 bytes, not 15361"), "{said}");
    });
    bank.audit();
}

#[test]
fn rows_of_half_a_node_come_and_go() {
    let (bank, [_, pages]) = open();
    let bytes = PAGES.record_bytes as usize;
    run(async {
        let client = bank.client().await;
        let body = async move |txn: &mut Transaction| {
            let mut table = txn.ordered(pages);
            for row in 0..ROWS {
                table.put(page_key(row * 37 % ROWS), value(row * 37 % ROWS, bytes));
            }
            Ok::<(), CallError>(())
        };
        client.run(Kind::Serializable, body).await.unwrap();
        let mut txn = client.transaction(Kind::ReadOnly);
        let rows = txn.ordered(pages).range(..).rows().await.unwrap();
        assert!(rows.into_iter().eq((0..ROWS).map(|row| (page_key(row), value(row, bytes)))));
        let mut txn = client.transaction(Kind::Serializable);
        for row in 0..ROWS / 2 {
            assert!(txn.ordered(pages).delete(&page_key(row)).await.unwrap());
        }
        txn.commit().await.unwrap();
        let mut txn = client.transaction(Kind::ReadOnly);
        let rest = txn.ordered(pages).range(..).rows().await.unwrap();
        assert_eq!(rest.len() as u64, ROWS / 2);
    });
    bank.audit();
}

#[test]
fn rows_that_no_table_takes_are_refused_and_leave_the_connection() {
    let (bank, [blobs, pages]) = open();
    run(async {
        let client = bank.client().await;
        for bytes in [LONGEST + 1, 200_000, 1 << 20] {
            let mut txn = client.transaction(Kind::Serializable);
            txn.insert(blobs, 7, vec![0; bytes]);
            let refused = txn.commit().await.unwrap_err();
            let is_clear = matches!(&refused, CallError::Failed(Failure::Refused(why))
                if why.contains("15360"));
            assert!(is_clear, "{refused:?}");
            let mut txn = client.transaction(Kind::Serializable);
            txn.ordered(pages).put(*b"key", vec![0; bytes]);
            let refused = txn.commit().await.unwrap_err();
            assert!(matches!(refused, CallError::Failed(Failure::Refused(_))), "{refused:?}");
        }
        let mut txn = client.transaction(Kind::ReadOnly);
        let item = txn.add_ro(blobs, 7);
        txn.execute().await.unwrap();
        assert_eq!(txn.value(item), None);
    });
    bank.audit();
}
