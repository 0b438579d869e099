//! Modes in which locks are taken.

/// Mode of a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// To read: beside other readers.
    Shared,
    /// To write: alone.
    Exclusive,
}
