//! A client of a cluster that runs no program of its own: uses a table of the cluster file, creates
//! another one, and changes rows of both in one transaction.
//!
//! ```text
//! lotus cluster up --file examples/tables.toml
//! cargo run --release --example tables-client
//! lotus cluster down --file examples/tables.toml
//! ```

#![expect(clippy::print_stdout, reason = "it tells its user what happened")]

use lotus_client::{CallError, Client, Config, Failure, Kind, TableId, TableSpec};

/// Client address of a compute node in examples/tables.toml; the other is learned from it.
const SERVICE: &str = "127.0.0.1:7651";
/// Visits of each customer, by the customer's number.
const VISITS: TableSpec = TableSpec::new("visits").record_bytes(8).capacity(10_000);
const CUSTOMER: u64 = 42;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = std::env::args().nth(1).unwrap_or_else(|| SERVICE.to_owned());
    let client = Client::connect(Config::new(service)).await?;
    let customers = client.open_table("customers").await?.ok_or("the file names it")?;
    // Every run begins by it: a table that exists is found.
    let visits = client.create_table(&VISITS).await?;
    let number = loop {
        match visit(&client, customers, visits).await {
            // Another client was in the way, or all places for transactions are taken.
            Err(CallError::Failed(Failure::Conflict(_) | Failure::Busy(_))) => {}
            outcome => break outcome?,
        }
    };
    println!("this is visit {number} of customer {CUSTOMER}");
    Ok(())
}

/// Registers the customer at the first visit, and counts all of them.
async fn visit(client: &Client, customers: TableId, visits: TableId) -> Result<u64, CallError> {
    let mut txn = client.transaction(Kind::Serializable);
    let customer = txn.add_ro(customers, CUSTOMER);
    let count = txn.add_rw(visits, CUSTOMER);
    txn.execute().await?;
    let before = txn.value(count).and_then(|value| value.try_into().ok());
    let number = before.map_or(0, u64::from_le_bytes) + 1;
    if txn.value(customer).is_none() {
        txn.insert(customers, CUSTOMER, "Ada, 12 Analytical Row");
    }
    match before {
        Some(_) => txn.put(count, number.to_le_bytes()),
        None => _ = txn.insert(visits, CUSTOMER, number.to_le_bytes()),
    }
    txn.commit().await?;
    Ok(number)
}
