//! A client of the order service: restocks three items, orders from several tasks at a time until
//! the items are sold out, and checks that every order is there. The nodes are other processes
//! (`orders-node`), and may be killed and restarted meanwhile.

#![expect(clippy::print_stdout, reason = "it tells whoever runs it what happened")]

mod orders;

use std::time::SystemTime;

use lotus_client::{CallError, CallId, Client, Config};
use tokio::task::JoinSet;

use orders::{Item, Order, Refused, Restock};

/// Client address of a compute node in examples/orders.toml; the client learns the other addresses
/// from the node.
const SERVICE: &str = "127.0.0.1:7631";
const ITEMS: u64 = 3;
const PIECES: u64 = 100;
const BUYERS: u64 = 8;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = std::env::args().nth(1).unwrap_or_else(|| SERVICE.to_owned());
    let client = Client::connect(Config::new(service)).await?;
    // Numbers that no earlier run has used.
    let run = (SystemTime::UNIX_EPOCH.elapsed()?.as_millis() as u64) << 20;

    for item in 0..ITEMS {
        let restock = Restock { item, pieces: PIECES };
        let id = CallId::from(u128::from(run + item) << 64);
        let item: Item = client.call("restock", &restock).idempotent(id).await?;
        println!("{} pieces are left of an item", item.stocked - item.ordered);
    }

    let mut buyers = JoinSet::new();
    for buyer in 0..BUYERS {
        let client = client.clone();
        buyers.spawn(async move { buy(&client, run + (buyer << 16)).await });
    }
    let mut placed = Vec::new();
    while let Some(orders) = buyers.join_next().await {
        placed.extend(orders??);
    }

    for order in &placed {
        let found: Option<Order> = client.call("find_order", &order.number).await?;
        assert_eq!(found.as_ref(), Some(order), "an order that was placed is there");
    }
    for number in 0..ITEMS {
        let item: Option<Item> = client.call("find_item", &number).await?;
        let Item { stocked, ordered } = item.ok_or("a restocked item is missing")?;
        let ours = placed.iter().filter(|order| order.item == number);
        let ours: u64 = ours.map(|order| order.pieces).sum();
        assert!(ours <= ordered && ordered <= stocked, "{ours}, {ordered}, {stocked}");
        println!("item {number}: {ordered} of {stocked} pieces are ordered, {ours} in this run");
        let last: Vec<Order> = client.call("last_orders", &number).await?;
        let numbers = last.iter().map(|order| order.number);
        assert!(numbers.is_sorted_by(|one, next| one > next), "the newest comes first");
    }
    println!("{} orders were placed, and all are there", placed.len());
    Ok(())
}

/// Places one buyer's orders until all items are sold out.
async fn buy(client: &Client, first: u64) -> Result<Vec<Order>, CallError> {
    let items = client.table("items");
    let mut placed = Vec::new();
    let mut sold_out = 0;
    for number in first.. {
        let order = Order { number, item: number % ITEMS, pieces: 1 + number % 4 };
        // The id makes the call take effect once, even if a node is lost during the call.
        let mut call =
            client.call::<_, u64>("order", &order).idempotent(CallId::from(u128::from(number)));
        if let Some(items) = items {
            call = call.at(items, order.item);
        }
        match call.await {
            Ok(_) => placed.push(order),
            Err(CallError::Rejected(rejection)) => match rejection.decode() {
                Some(Refused::SoldOut { .. }) => sold_out += 1,
                Some(Refused::Taken) | None => return Err(CallError::Rejected(rejection)),
            },
            Err(error) => return Err(error),
        }
        if sold_out >= 4 * ITEMS {
            break;
        }
    }
    Ok(placed)
}
