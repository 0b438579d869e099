//! Isolation levels of transactions.

/// Effects of other transactions that a read-write transaction may see (LOTUS §5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Isolation {
    /// The same effects as if transactions ran one after another.
    #[default]
    Serializable,
    /// All reads come from one snapshot; a row written since by another transaction conflicts.
    Snapshot,
}
