//! Directory of a cluster's snapshots, and rules for the snapshots.

use std::path::PathBuf;

/// Directory of snapshots, and rules for the snapshots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshots {
    /// Directory, on the hosts of snapshot-taking nodes.
    pub directory: PathBuf,
    /// Number of whole snapshots that stay after a new snapshot; at least 1.
    pub keep: usize,
    /// Handling of a newest snapshot that is damaged or out of reach. Not in the file: an operator
    /// decides for one start.
    pub if_damaged: IfDamaged,
}

/// Handling of a start when the newest snapshot is not whole, or not at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IfDamaged {
    /// Do not start; report the error.
    Stop,
    /// Start from the newest snapshot that is whole and at hand; later commits are lost.
    UseOlder,
    /// Start with the data of the file, even if snapshots exist; earlier commits are lost.
    Afresh,
}
