//! Errors of taking, reading and restoring snapshots, and the caller's possible reactions.

use std::io;
use std::time::Duration;

use super::format::FORMAT;
use super::scan::CopyError;
use crate::api::error::{ClusterError, TxnError};

/// Attempts at a snapshot that becomes too old, or whose compute node fails.
const ATTEMPTS: u32 = 5;
/// Attempts at a snapshot during which tables are dropped: each attempt leaves out one more table.
const MOST_DROPS: u32 = 100;

/// Error of a snapshot operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The operating system refused. Nothing was restored; an unfinished snapshot leaves no file,
    /// and an earlier file of that name is unchanged.
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
    /// The rows could not be read, and a retry would not help: the compute node takes no part any
    /// more, or the last copies of rows are lost.
    #[error("the rows could not be read: {0}")]
    Read(#[from] TxnError),
    /// Versions that the snapshot needs were gone before they were read, in repeated attempts, too.
    /// Try again under less load, or with more memory for versions that writers displace.
    #[error("rows were overwritten faster than they could be read; try again under less load")]
    TooOld,
    /// Tables were dropped after a part of their rows had been written, in every attempt. Try again
    /// while no tables are dropped.
    #[error("tables were dropped while they were being read; try again while none is dropped")]
    Dropped,
    /// No row could be read for a long time: transactions stand still, or a row stays locked. Check
    /// the nodes, and try again.
    #[error("no row could be read for {} s: {last}", .waited.as_secs())]
    Still {
        /// Time since the last row.
        waited: Duration,
        /// Last error.
        last: TxnError,
    },
    /// The coordinator is already taking a snapshot. Wait for its end.
    #[error("a snapshot is being taken already")]
    Busy,
    /// A snapshot of a later time was begun meanwhile; this snapshot would count as older. Try
    /// again.
    #[error("another snapshot, of a later time, was begun meanwhile")]
    Overtaken,
    /// The data is incomplete, temporarily or permanently: a snapshot would pass for complete. Wait
    /// until the cluster serves, if it ever does.
    #[error("not all data is there: {0}")]
    NotLoaded(&'static str),
    /// The cluster has tables: a snapshot is restored only into an empty cluster. Nothing was
    /// changed.
    #[error("the cluster has tables already")]
    NotEmpty,
    /// Taking a snapshot: the authority has not answered for a minute, or its catalogue of tables
    /// cannot be used. Restoring: the tables could not be created or filled, and the cluster is of
    /// no use any more.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

impl SnapshotError {
    /// Whether the error lies in the file: it cannot be read, or is not a complete snapshot in a
    /// known format.
    pub fn is_of_the_file(&self) -> bool {
        use SnapshotError::{Cut, Damaged, Foreign, Io, OtherFormat};
        matches!(self, Io(_) | Foreign | OtherFormat { .. } | Cut | Damaged)
    }

    /// Whether taking the snapshot anew may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Read(error) => error.is_retryable(),
            Self::TooOld | Self::Dropped | Self::Still { .. } | Self::Overtaken => true,
            _ => false,
        }
    }

    /// Number of attempts after which this error is reported; `another` tells whether a compute
    /// node of this process can make a further attempt.
    pub(super) fn attempts(&self, another: bool) -> u32 {
        match self {
            Self::TooOld | Self::Overtaken => ATTEMPTS,
            Self::Dropped => MOST_DROPS,
            Self::Read(TxnError::Fenced) if another => ATTEMPTS,
            _ => 1,
        }
    }
}

impl From<CopyError> for SnapshotError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Busy => Self::Busy,
            CopyError::WriterGone => Self::Io(io::ErrorKind::BrokenPipe.into()),
            CopyError::TooOld => Self::TooOld,
            CopyError::Dropped => Self::Dropped,
            CopyError::Still(waited, last) => Self::Still { waited, last },
            CopyError::Tables(error) => Self::Cluster(error),
            CopyError::Txn(error) => Self::Read(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_begun_anew_where_that_may_help() {
        let last = TxnError::Timeout;
        let still = SnapshotError::Still { waited: Duration::from_secs(72), last };
        assert_eq!(
            still.to_string(),
            "no row could be read for 72 s: a node did not answer in time"
        );
        let cases = [
            (SnapshotError::TooOld, ATTEMPTS),
            (SnapshotError::Overtaken, ATTEMPTS),
            (SnapshotError::Dropped, MOST_DROPS),
            (SnapshotError::Read(TxnError::Fenced), ATTEMPTS),
            (SnapshotError::Read(TxnError::DataLost { memory_node: 0 }), 1),
            (still, 1),
            (SnapshotError::Busy, 1),
        ];
        for (error, attempts) in cases {
            assert_eq!(error.attempts(true), attempts, "{error}");
        }
        assert_eq!(SnapshotError::Read(TxnError::Fenced).attempts(false), 1);
    }

    #[test]
    fn each_reason_of_the_reader_is_reported_as_itself() {
        let misuse = || TxnError::Misuse("a sentence");
        let reported = SnapshotError::from(CopyError::Txn(misuse()));
        assert!(matches!(&reported, SnapshotError::Read(error) if *error == misuse()));
        assert!(matches!(SnapshotError::from(CopyError::Busy), SnapshotError::Busy));
        assert!(matches!(SnapshotError::from(CopyError::TooOld), SnapshotError::TooOld));
        assert!(matches!(SnapshotError::from(CopyError::Dropped), SnapshotError::Dropped));
    }
}
