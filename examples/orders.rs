//! Types shared by the node and the client of the order service: arguments, results and refusals of
//! its stored transactions.

use serde::{Deserialize, Serialize};

/// Arguments of `restock`: more pieces of an item. The result is the item.
#[derive(Serialize, Deserialize)]
pub struct Restock {
    pub item: u64,
    pub pieces: u64,
}

/// Arguments of `order`, and the result of `find_order`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub number: u64,
    pub item: u64,
    pub pieces: u64,
}

/// An item: result of `find_item` and of `restock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Pieces stocked since the beginning.
    pub stocked: u64,
    /// Pieces ordered since the beginning.
    pub ordered: u64,
}

/// Refusal of an order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Refused {
    /// Fewer pieces are left than were ordered.
    SoldOut { left: u64 },
    /// The order number is taken.
    Taken,
}
