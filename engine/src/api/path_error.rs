//! Errors of [paths](crate::path).

/// Error from reading or changing a path row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The value was not made by this module. The row belongs to another table, or a bug wrote it:
    /// do not go on.
    #[error("the value of a path row is malformed")]
    Malformed,
    /// The group has this entry already; nothing was changed.
    #[error("the group has this entry already")]
    AlreadyLinked,
    /// The group has no such entry, so it cannot be removed; nothing was changed.
    #[error("the group has no such entry")]
    NotLinked,
    /// The group would not fit in its row; nothing was changed. Give the path table longer
    /// records, or its groups a parent key that divides them further.
    #[error("a group of {bytes} bytes exceeds the {limit} bytes of its row")]
    GroupFull {
        /// Size that the group would have, in bytes.
        bytes: usize,
        /// Largest record of the table, in bytes.
        limit: usize,
    },
    /// The entry's order is longer than
    /// [`Entry::MAX_ORDER_BYTES`](crate::path::Entry::MAX_ORDER_BYTES); use a prefix.
    #[error("an entry is ordered by at most 255 bytes, not {bytes}")]
    OrderTooLong {
        /// Length of the order, in bytes.
        bytes: usize,
    },
}
