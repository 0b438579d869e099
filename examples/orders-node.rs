//! A node of an order service: tables and stored transactions of its own, on a cluster of
//! processes.
//!
//! ```text
//! cargo build --release --bins --examples
//! lotus cluster up --file examples/orders.toml
//! cargo run --release --example orders-client
//! lotus cluster down --file examples/orders.toml
//! ```

mod orders;

use lotus::{TableId, TableSpec, Transaction};
use lotus_node::{Node, NodeError, TableIds};
use lotus_server::{Abort, Registry};

use orders::{Item, Order, Refused, Restock};

fn main() -> Result<(), NodeError> {
    Node::from_command_line()?
        .tables([
            TableSpec::new("items").record_bytes(16).capacity(10_000),
            TableSpec::new("orders").record_bytes(16).capacity(100_000),
        ])
        .procedures(procedures)
        .run()
}

fn procedures(tables: &TableIds) -> Registry {
    let (items, orders) = (tables["items"], tables["orders"]);
    let mut registry = Registry::new();
    registry.register("restock", async move |txn: &mut Transaction, more: Restock| {
        let row = txn.add_rw(items, more.item)?;
        txn.execute().await?;
        let mut item = txn.value(row).map(item).unwrap_or_default();
        item.stocked += more.pieces;
        txn.upsert(row, &pair(item.stocked, item.ordered))?;
        Ok::<Item, Abort>(item)
    });
    registry.register("order", async move |txn: &mut Transaction, order: Order| {
        place(items, orders, txn, order).await
    });
    registry.register_read_only("find_item", async move |txn: &mut Transaction, number: u64| {
        let row = txn.add_ro(items, number)?;
        txn.execute().await?;
        Ok::<Option<Item>, Abort>(txn.value(row).map(item))
    });
    registry.register_read_only("find_order", async move |txn: &mut Transaction, number: u64| {
        let row = txn.add_ro(orders, number)?;
        txn.execute().await?;
        let order = txn.value(row).map(|value| {
            let (item, pieces) = halves(value);
            Order { number, item, pieces }
        });
        Ok::<Option<Order>, Abort>(order)
    });
    registry
}

/// Places an order, if enough pieces of its item are left; the result is how many stay.
async fn place(
    items: TableId,
    orders: TableId,
    txn: &mut Transaction,
    order: Order,
) -> Result<u64, Abort<Refused>> {
    let row = txn.add_rw(items, order.item)?;
    let new = txn.add_rw(orders, order.number)?;
    txn.execute().await?;
    if txn.value(new).is_some() {
        return Err(Abort::Application(Refused::Taken));
    }
    let Item { stocked, ordered } = txn.value(row).map(item).unwrap_or_default();
    let left = stocked - ordered;
    let stays = left.checked_sub(order.pieces);
    let stays = stays.ok_or(Abort::Application(Refused::SoldOut { left }))?;
    txn.put(row, &pair(stocked, ordered + order.pieces))?;
    txn.upsert(new, &pair(order.item, order.pieces))?;
    Ok(stays)
}

fn item(value: &[u8]) -> Item {
    let (stocked, ordered) = halves(value);
    Item { stocked, ordered }
}

/// A row of two numbers.
fn pair(first: u64, second: u64) -> [u8; 16] {
    (u128::from(second) << 64 | u128::from(first)).to_le_bytes()
}

fn halves(value: &[u8]) -> (u64, u64) {
    let both = u128::from_le_bytes(value.try_into().unwrap_or_default());
    (both as u64, (both >> 64) as u64)
}
