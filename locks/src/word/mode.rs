//! Lock modes.

/// Mode of a lock. A stronger mode compares greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Read access, shared with other readers.
    Shared,
    /// Read access beside the readers already present, with the option to write once they have
    /// left. One holder at a time. Exclusive in systems without update locks.
    Update,
    /// Write access, without another holder.
    Exclusive,
}
