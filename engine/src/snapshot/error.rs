//! Why a snapshot could not be taken, read or restored, and what the caller may do about it.

use std::io;

use super::format::FORMAT;
use crate::error::{ClusterError, TxnError};

/// See the module's essay.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The operating system refused. Nothing was restored; of a snapshot that was being taken
    /// nothing is left, and an older one of that name is as it was.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It does not begin as a snapshot does. Name another file.
    #[error("it is no snapshot")]
    Foreign,
    /// A later version of the program wrote it. Use that one.
    #[error("it has format {found}, and this program reads formats up to {FORMAT}")]
    OtherFormat {
        /// The format that the file names.
        found: u32,
    },
    /// It ends too early. Use another snapshot.
    #[error("it was cut off")]
    Cut,
    /// A checksum or a count does not hold. Use another snapshot.
    #[error("it is damaged")]
    Damaged,
    /// The rows could not be read, however often it was tried. Try again when there is less load,
    /// or with more memory for versions that writers displace.
    #[error("the rows could not be read: {0}")]
    Read(#[from] TxnError),
    /// The coordinator takes one already. Wait for that.
    #[error("a snapshot is being taken already")]
    Busy,
    /// A snapshot of a later time was begun meanwhile; it would count as the older one. Try again.
    #[error("another snapshot, of a later time, was begun meanwhile")]
    Overtaken,
    /// Not all data is there yet, or it never will be: a snapshot would pass for whole. Wait until
    /// the cluster serves, if it ever does.
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
    /// Whether the file is to blame: it cannot be read, or is no whole snapshot of a known format.
    pub fn is_of_the_file(&self) -> bool {
        use SnapshotError::{Cut, Damaged, Foreign, Io, OtherFormat};
        matches!(self, Io(_) | Foreign | OtherFormat { .. } | Cut | Damaged)
    }

    /// Whether a snapshot that could not be taken may be, if it is begun anew.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Read(error) => error.is_retryable(),
            Self::Overtaken => true,
            _ => false,
        }
    }
}
