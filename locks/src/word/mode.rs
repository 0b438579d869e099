//! Modes in which locks are taken.

/// Mode of a lock; a greater one is stronger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// To read: beside other readers.
    Shared,
    /// To read beside readers that are there, and perhaps to write when they have left: one holder
    /// at a time. Exclusive in systems that have no update locks.
    Update,
    /// To write: alone.
    Exclusive,
}
