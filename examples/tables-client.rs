//! A client of a cluster without programs of its own: uses tables of the cluster file, creates
//! another table, and changes rows of all tables in one transaction. An ordered table finds
//! customers by the beginning of their name.
//!
//! ```text
//! lotus cluster up --file examples/tables.toml
//! cargo run --release --example tables-client
//! lotus cluster down --discard --file examples/tables.toml
//! ```

#![expect(clippy::print_stdout, reason = "it tells its user what happened")]

use lotus_client::{CallError, Client, Config, Kind, TableId, TableSpec, Transaction};

/// Client address of a compute node in examples/tables.toml; the client learns the other address
/// from the node.
const SERVICE: &str = "127.0.0.1:7651";
/// Visits of each customer, by the customer's number.
const VISITS: TableSpec = TableSpec::new("visits").record_bytes(8).capacity(10_000);
const CUSTOMER: u64 = 42;
const NAME: &str = "Ada Lovelace";

/// Numbers of the tables.
#[derive(Clone, Copy)]
struct Tables {
    customers: TableId,
    /// An ordered table.
    names: TableId,
    visits: TableId,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = std::env::args().nth(1).unwrap_or_else(|| SERVICE.to_owned());
    let client = Client::connect(Config::new(service)).await?;
    let customers = client.open_table("customers").await?.ok_or("the file names it")?;
    let names = client.open_table("names").await?.ok_or("the file names it")?;
    // Every run begins with this call: an existing table is opened.
    let visits = client.create_table(&VISITS).await?;
    let tables = Tables { customers, names, visits };
    // The transaction is run again if other clients conflict, or no place for a transaction is
    // free.
    let body = async move |txn: &mut Transaction| visit(txn, tables).await;
    let number = client.run(Kind::Serializable, body).await?.value;
    println!("this is visit {number} of customer {CUSTOMER}");
    let body =
        async move |txn: &mut Transaction| txn.ordered(names).prefix(b"Ada").limit(10).rows().await;
    for (key, _) in client.run(Kind::ReadOnly, body).await?.value {
        // The customer's number follows the name.
        let name = String::from_utf8_lossy(&key[..key.len().saturating_sub(8)]);
        println!("a customer is called {name}");
    }
    Ok(())
}

/// Registers the customer at the first visit, and counts all visits.
async fn visit(txn: &mut Transaction, tables: Tables) -> Result<u64, CallError> {
    let customer = txn.add_ro(tables.customers, CUSTOMER);
    let count = txn.add_rw(tables.visits, CUSTOMER);
    txn.execute().await?;
    let before = txn.value(count).and_then(|value| value.try_into().ok());
    let number = before.map_or(0, u64::from_le_bytes) + 1;
    if txn.value(customer).is_none() {
        txn.insert(tables.customers, CUSTOMER, "Ada, 12 Analytical Row");
        // Two customers with the same name have distinct keys.
        let key = [NAME.as_bytes(), &CUSTOMER.to_be_bytes()].concat();
        txn.ordered(tables.names).insert(key, CUSTOMER.to_be_bytes());
    }
    txn.upsert(count, number.to_le_bytes());
    Ok(number)
}
