//! A node of an order service: its own tables and stored transactions, on a cluster of processes.
//!
//! ```text
//! cargo build --release --bins --examples
//! lotus cluster up --file examples/orders.toml
//! cargo run --release --example orders-client
//! lotus cluster down --discard --file examples/orders.toml
//! ```

mod orders;
mod shop;

use lotus::Transaction;
use lotus_node::{Node, NodeError, TableIds};
use lotus_server::Registry;

use orders::{Order, Restock};
use shop::{Shop, TABLES};

fn main() -> Result<(), NodeError> {
    Node::from_command_line()?.tables(TABLES).procedures(procedures).run()
}

fn procedures(tables: &TableIds) -> Registry {
    let shop = Shop::new(TABLES.map(|table| tables[&*table.name]));
    let mut registry = Registry::new();
    registry.register("restock", async move |txn: &mut Transaction, more: Restock| {
        shop.restock(txn, more).await
    });
    registry.register("order", async move |txn: &mut Transaction, order: Order| {
        shop.order(txn, order).await
    });
    registry.register_read_only("find_item", async move |txn: &mut Transaction, number: u64| {
        shop.find_item(txn, number).await
    });
    registry.register_read_only("find_order", async move |txn: &mut Transaction, number: u64| {
        shop.find_order(txn, number).await
    });
    registry.register_read_only("last_orders", async move |txn: &mut Transaction, item: u64| {
        shop.last_orders(txn, item).await
    });
    registry
}
