//! Typed rows: typed keys and values over tables of bytes.
//!
//! # What it is
//! A [`Schema`] names a table and its key and value types; a [`Table`] is a table of a cluster,
//! with a schema. Both types are `Copy` and hold no resource of the cluster. `put` encodes a row to
//! bytes, and `get` decodes the bytes:
//!
//! ```
//! use lotus::{Cluster, Isolation, Transaction, TxnError};
//! use lotus_rows::{Ordered, Purpose, Schema, Serde};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     product: String,
//!     pieces: u32,
//! }
//!
//! /// Pieces on the shelf, by product.
//! const STOCK: Schema<String, u32> = Schema::new("stock").key_bytes(31);
//! /// Orders, by customer and number.
//! const ORDERS: Schema<(u32, u64), Serde<Order>, Ordered> =
//!     Schema::ordered("orders").record_bytes(100);
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::embedded().memory_limit(32 << 20).start()?;
//! let stock = STOCK.table(cluster.create_table(STOCK.spec().capacity(1_000))?);
//! let orders = ORDERS.table(cluster.create_table(ORDERS.spec().capacity(1_000))?);
//!
//! let anvil = "anvil".to_owned();
//! cluster
//!     .run(Isolation::Serializable, async move |txn: &mut Transaction| {
//!         stock.put(txn, &anvil, &10).await?;
//!         for number in 1..=3 {
//!             // Locked to write from the beginning, since it will be written.
//!             let left = stock.get_for_update(txn, &anvil).await?.unwrap_or(0);
//!             let order = Order { product: anvil.clone(), pieces: 2 };
//!             stock.put(txn, &anvil, &(left - order.pieces)).await?;
//!             orders.insert(txn, &(7, number), &order).await?;
//!         }
//!         Ok::<_, TxnError>(())
//!     })
//!     .wait()?;
//!
//! let newest = cluster
//!     .run_read_only(async move |txn: &mut Transaction| {
//!         // All keys that begin with customer 7, from the greatest down.
//!         orders.prefix(txn, &7).reverse().limit(2).rows().await
//!     })
//!     .wait()?;
//! let numbers: Vec<u64> = newest.value.iter().map(|((_, number), _)| *number).collect();
//! assert_eq!(numbers, [3, 2]);
//! assert_eq!(newest.value[0].1.pieces, 2);
//!
//! // Rows with known keys are declared first, so that one round reads them all.
//! let products = ["anvil", "bellows"].map(str::to_owned);
//! let left = cluster
//!     .run_read_only(async move |txn: &mut Transaction| {
//!         for product in &products {
//!             stock.declare(txn, product, Purpose::Read)?;
//!         }
//!         let anvils = stock.get(txn, &products[0]).await?;
//!         Ok::<_, TxnError>((anvils, stock.get(txn, &products[1]).await?))
//!     })
//!     .wait()?;
//! assert_eq!(left.value, (Some(4), None));
//! cluster.stop()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`path`] decodes and encodes the values of secondary access paths.
//!
//! # What it is not
//! The crate runs no transactions and knows no schema of a whole database. Tables do not record the
//! types of their rows: bytes that do not decode as the schema's types are a [`RowError`], which
//! names table and key.
//!
//! # Keys and values
//! The encoding of a [`RowKey`] keeps the order of the keys, so ranges of an ordered table are
//! ranges of keys. An application's types become keys by [`KeyAs`]. Values are numbers, strings and
//! arrays, types of serde ([`Serde`], with the feature `serde`), or plain memory ([`Zerocopy`]);
//! further types implement [`Value`]. Encoding a key does not allocate; encoding a value allocates
//! only for [`Serde`].
//!
//! # Transactions
//! Tables work over the traits [`HashRows`] and [`OrderedRows`], implemented by the transactions of
//! the engine and of the client, as far as they support the kind of table. Code over the traits
//! works with every transaction type. The implementations are in the crates of the transactions,
//! which therefore import this crate, without `serde`.

#![forbid(unsafe_code)]

mod error;
mod key;
mod ordered;
pub mod path;
mod schema;
mod table;
mod txn;
mod value;

pub use error::{Defect, Malformed, RowError};
pub use key::{KeyAs, KeyBuffer, KeyRange, KeyReader, KeyWriter, PrefixOf, RowKey};
pub use lotus_mvcc::{PrimaryKey, TableId, TableSpec};
pub use ordered::Range;
pub use schema::{Hashed, Ordered, Schema, TableKind};
pub use table::{OrderedTable, Table};
pub use txn::{HashRows, OrderedRows, Purpose, RangeQuery};
#[cfg(feature = "serde")]
pub use value::Serde;
pub use value::{Value, Zerocopy};
