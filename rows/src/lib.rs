//! Typed rows: keys and values of types, over tables of bytes.
#![forbid(unsafe_code)]

mod error;
mod key;
mod ordered;
mod schema;
mod table;
mod txn;
mod value;

pub use error::{Defect, Malformed, RowError};
pub use key::{Key, KeyAs, KeyBuffer, KeyRange, KeyReader, KeyWriter, PrefixOf};
pub use lotus_mvcc::{PrimaryKey, TableId, TableSpec};
pub use ordered::Range;
pub use schema::{Hashed, Ordered, Schema, TableKind};
pub use table::{OrderedTable, Table};
pub use txn::{HashRows, OrderedRows, Purpose, RangeQuery};
#[cfg(feature = "serde")]
pub use value::Serde;
pub use value::{Value, Zerocopy};
