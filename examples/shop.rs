//! The transactions of the order service. The same functions run embedded (`orders-embedded`) and
//! as stored transactions of a cluster's nodes (`orders-node`): each function borrows a
//! transaction, which commits if the function returns `Ok`.

use lotus::{Abort, TableId, TableSpec, Transaction};

use crate::orders::{Item, Order, Refused, Restock};

/// Tables of the service: items and orders by number, and the order numbers of each item, in order.
pub const TABLES: [TableSpec; 3] = [
    TableSpec::new("items").record_bytes(16).capacity(10_000),
    TableSpec::new("orders").record_bytes(16).capacity(100_000),
    TableSpec::new("orders by item").key_bytes(16).record_bytes(8).capacity(100_000).ordered(),
];

/// The service's tables, opened.
#[derive(Clone, Copy)]
pub struct Shop {
    items: TableId,
    orders: TableId,
    by_item: TableId,
}

impl Shop {
    /// Opens the tables with these ids, in the order of [`TABLES`].
    pub const fn new([items, orders, by_item]: [TableId; 3]) -> Self {
        Self { items, orders, by_item }
    }

    /// Adds pieces of an item; returns the item.
    pub async fn restock(self, txn: &mut Transaction, more: Restock) -> Result<Item, Abort> {
        let row = txn.add_rw(self.items, more.item)?;
        txn.execute().await?;
        let mut item = txn.value(row).map(item).unwrap_or_default();
        item.stocked += more.pieces;
        txn.upsert(row, &pair(item.stocked, item.ordered))?;
        Ok(item)
    }

    /// Places an order, if enough pieces of its item are left; returns the number of pieces that
    /// stay.
    pub async fn order(self, txn: &mut Transaction, order: Order) -> Result<u64, Abort<Refused>> {
        let row = txn.add_rw(self.items, order.item)?;
        let new = txn.add_rw(self.orders, order.number)?;
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
        let key = by_item(order.item, order.number);
        txn.ordered(self.by_item)?.insert(&key, &order.pieces.to_le_bytes()).await?;
        Ok(stays)
    }

    /// Finds an item.
    pub async fn find_item(
        self,
        txn: &mut Transaction,
        number: u64,
    ) -> Result<Option<Item>, Abort> {
        let row = txn.add_ro(self.items, number)?;
        txn.execute().await?;
        Ok(txn.value(row).map(item))
    }

    /// Finds an order.
    pub async fn find_order(
        self,
        txn: &mut Transaction,
        number: u64,
    ) -> Result<Option<Order>, Abort> {
        let row = txn.add_ro(self.orders, number)?;
        txn.execute().await?;
        Ok(txn.value(row).map(|value| {
            let (item, pieces) = halves(value);
            Order { number, item, pieces }
        }))
    }

    /// The last orders of an item, the newest first: a range of the ordered table.
    pub async fn last_orders(self, txn: &mut Transaction, item: u64) -> Result<Vec<Order>, Abort> {
        let mut by_item = txn.ordered(self.by_item)?;
        let rows = by_item.prefix(&item.to_be_bytes()).reverse().limit(3).rows().await?;
        let order = |(key, value): (&[u8], &[u8])| {
            let number = key[8..].try_into().map_or(0, u64::from_be_bytes);
            Order { number, item, pieces: value.try_into().map_or(0, u64::from_le_bytes) }
        };
        Ok(rows.iter().map(order).collect())
    }
}

/// Key of an order in the table of an item's orders. Big-endian: keys sort by number.
fn by_item(item: u64, number: u64) -> [u8; 16] {
    (u128::from(item) << 64 | u128::from(number)).to_be_bytes()
}

fn item(value: &[u8]) -> Item {
    let (stocked, ordered) = halves(value);
    Item { stocked, ordered }
}

/// Encodes a row of two numbers.
fn pair(first: u64, second: u64) -> [u8; 16] {
    (u128::from(second) << 64 | u128::from(first)).to_le_bytes()
}

fn halves(value: &[u8]) -> (u64, u64) {
    let both = u128::from_le_bytes(value.try_into().unwrap_or_default());
    (both as u64, (both >> 64) as u64)
}
