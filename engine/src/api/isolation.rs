//! Isolation levels of transactions.

/// Isolation level of a read-write transaction (LOTUS §5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Isolation {
    /// Transactions take effect as if run one after the other.
    #[default]
    Serializable,
    /// Reads come from a single snapshot; a row that another transaction has written since the
    /// snapshot conflicts.
    Snapshot,
}
