//! A compute node with stored transactions and an application that calls them, in one program. The
//! two sides share only an address: they could as well be two programs on two hosts.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use lotus::{Cluster, Item, TableId, TableSpec, Transaction};
use lotus_client::{CallError, CallId, Client, Kind};
use lotus_server::{Abort, Config, Registry, Server};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Transfer {
    from: u64,
    to: u64,
    amount: u64,
}

/// Refusal of a transfer.
#[derive(Debug, Serialize, Deserialize)]
struct Overdrawn {
    balance: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Arc::new(Cluster::embedded().memory_nodes(3).replicas(3).start()?);
    let accounts =
        cluster.create_table(TableSpec::new("accounts").record_bytes(8).capacity(100))?;
    let open = |row: u64, value: &mut Vec<u8>| (value.extend(100_u64.to_le_bytes()), row.into()).1;
    cluster.load(accounts, 100, &open, &Default::default())?;

    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let config = Config::new(listener, vec![address.clone()]);
    let server = Server::start(Arc::clone(&cluster), 0, transactions(accounts), config)?;

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(application(address))?;
    server.stop()?;
    cluster.settle()?;
    assert!(cluster.audit()?.iter().all(|finding| finding.passed), "the audit failed");
    Ok(())
}

/// Registers the compute node's stored transactions.
fn transactions(accounts: TableId) -> Registry {
    let mut registry = Registry::new();
    registry.register("transfer", async move |txn: &mut Transaction, transfer: Transfer| {
        let payer = txn.add_rw(accounts, transfer.from)?;
        let payee = txn.add_rw(accounts, transfer.to)?;
        txn.execute().await?;
        let balance = amount(txn, payer);
        let overdrawn = Abort::Application(Overdrawn { balance });
        let left = balance.checked_sub(transfer.amount).ok_or(overdrawn)?;
        txn.put(payer, &left.to_le_bytes())?;
        txn.put(payee, &(amount(txn, payee) + transfer.amount).to_le_bytes())?;
        Ok::<u64, Abort<Overdrawn>>(left)
    });
    registry.register_read_only("balance", async move |txn: &mut Transaction, account: u64| {
        let item = txn.add_ro(accounts, account)?;
        txn.execute().await?;
        Ok::<u64, Abort>(amount(txn, item))
    });
    registry
}

fn amount(txn: &Transaction, item: Item) -> u64 {
    let bytes = txn.value(item).and_then(|value| value.try_into().ok());
    u64::from_le_bytes(bytes.unwrap_or_default())
}

/// Runs the application's side.
async fn application(address: String) -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect(lotus_client::Config::new(address)).await?;
    let accounts = client.table("accounts").ok_or("there is no table of accounts")?;

    // Sent to the node that owns the payer's lock; takes effect once, however often the client has
    // to send it.
    let id = CallId::from(0x5EED_u128);
    let transfer = Transfer { from: 1, to: 2, amount: 30 };
    for _ in 0..2 {
        let call = client.call("transfer", &transfer).at(accounts, transfer.from).idempotent(id);
        let left: u64 = call.timeout(Duration::from_secs(1)).await?;
        println!("account 1 has {left} left");
    }
    println!("and what became of it: {:?}", client.outcome::<u64>(id).await?);

    // A rule of the transaction itself refuses this transfer.
    let too_much = Transfer { from: 1, to: 2, amount: 1_000 };
    let refused = client.call::<_, u64>("transfer", &too_much).await;
    if let Err(CallError::Rejected(rejection)) = refused {
        println!("refused: {:?}", rejection.decode::<Overdrawn>());
    }

    // Interactive transaction: one exchange for the reads and one for the commit. The transaction
    // commits since its body returns `Ok`; after a conflict the body is run again.
    let emptied = client.run(Kind::Serializable, async |txn: &mut lotus_client::Transaction| {
        let (one, two) = (txn.add_rw(accounts, 1), txn.add_ro(accounts, 2));
        txn.execute().await?;
        let both = [one, two].map(|item| txn.value(item).map(<[u8]>::to_vec));
        txn.put(one, 0_u64.to_le_bytes());
        Ok::<_, CallError>(both)
    });
    let had = emptied.await?.value;
    println!("accounts 1 and 2 had {had:?}; now 1 has {}", balance(&client, 1).await?);
    Ok(())
}

async fn balance(client: &Client, account: u64) -> Result<u64, CallError> {
    client.call("balance", &account).await
}
