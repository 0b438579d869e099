//! Errors for values and keys that are too long for their table.

use lotus_fabric::ids::TableId;
use thiserror::Error;

/// A value or key that is too long for its table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// The value exceeds the table's `record_bytes`; store less, or use another table.
    #[error("a value of table {} has at most {limit} bytes, not {bytes}", table.0)]
    Value {
        /// The table.
        table: TableId,
        /// Bytes of the value.
        bytes: usize,
        /// Largest length in this table.
        limit: u32,
    },
    /// The primary key exceeds the table's `key_bytes`; use a shorter key.
    #[error("a primary key of table {} has at most {limit} bytes, not {bytes}", table.0)]
    Key {
        /// The table.
        table: TableId,
        /// Bytes of the key.
        bytes: usize,
        /// Largest length in this table.
        limit: u32,
    },
}
