//! Directory of a cluster's snapshots, and rules for it.

use std::path::PathBuf;

/// Directory of snapshots, and rules for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshots {
    /// Directory, on the host of each node that takes one.
    pub directory: PathBuf,
    /// Number of whole snapshots that stay when there is a new one; at least 1.
    pub keep: usize,
    /// Handling of a newest snapshot that is damaged or out of reach. Not in the file: an operator
    /// decides it for one start.
    pub if_damaged: IfDamaged,
}

/// Handling of a start when the newest snapshot is not whole, or not at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfDamaged {
    /// Do not start; report the error.
    Stop,
    /// Start from the newest that is whole and at hand; what was committed later is lost.
    UseOlder,
    /// Start with the data of the file, whatever snapshots there are; what was committed before is
    /// lost.
    Afresh,
}
