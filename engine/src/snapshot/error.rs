//! Errors of taking, reading and restoring snapshots, and what the caller may do about them.

use std::io;

use super::format::FORMAT;
use crate::api::error::{ClusterError, TxnError};

/// Error of a snapshot operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The operating system refused. Nothing was restored; nothing is left of a snapshot that was
    /// being taken, and an earlier one of that name is unchanged.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file does not begin as a snapshot does. Name another file.
    #[error("it is no snapshot")]
    Foreign,
    /// A later version of the program wrote the file. Use that version.
    #[error("it has format {found}, and this program reads formats up to {FORMAT}")]
    OtherFormat {
        /// Format number in the file.
        found: u32,
    },
    /// The file ends too early. Use another snapshot.
    #[error("it was cut off")]
    Cut,
    /// A checksum or a count does not hold. Use another snapshot.
    #[error("it is damaged")]
    Damaged,
    /// The rows could not be read, even when repeated. Try again when there is less load, or with
    /// more memory for versions that writers displace.
    #[error("the rows could not be read: {0}")]
    Read(#[from] TxnError),
    /// The coordinator is taking a snapshot already. Wait for that.
    #[error("a snapshot is being taken already")]
    Busy,
    /// A snapshot of a later time was begun meanwhile; it would count as the older one. Try again.
    #[error("another snapshot, of a later time, was begun meanwhile")]
    Overtaken,
    /// The data is incomplete, for now or for good: a snapshot would pass for whole. Wait until the
    /// cluster serves, if it ever does.
    #[error("not all data is there: {0}")]
    NotLoaded(&'static str),
    /// The cluster has tables: a snapshot is restored into an empty one. Nothing was changed.
    #[error("the cluster has tables already")]
    NotEmpty,
    /// The tables could not be made or filled. The cluster is of no use any more.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl SnapshotError {
    /// Whether the error is the file's: it cannot be read, or is no whole snapshot of a known
    /// format.
    pub fn is_of_the_file(&self) -> bool {
        use SnapshotError::{Cut, Damaged, Foreign, Io, OtherFormat};
        matches!(self, Io(_) | Foreign | OtherFormat { .. } | Cut | Damaged)
    }

    /// Whether taking the snapshot anew may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Read(error) => error.is_retryable(),
            Self::Overtaken => true,
            _ => false,
        }
    }
}
