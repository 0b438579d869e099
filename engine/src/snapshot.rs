//! Snapshot files: all data of a cluster at one timestamp, and restoring a cluster.
//!
//! # What it is
//! A *logical* snapshot: the tables' specifications and all rows, without versions and places
//! ([`format`]). The file is taken while transactions run, from a snapshot that holds the horizon
//! ([`scan`]), and contains all or nothing of every transaction (I150). The rows of `lotus.calls`,
//! which make calls take effect once, are included. A snapshot file is restored into a cluster
//! without tables, of any shape, before the cluster serves clients; timestamps continue after the
//! snapshot's.
//!
//! # The writer
//! The process that is asked writes the file: a coordinator reads, and the calling thread writes to
//! a file on its host. Only the snapshot itself is agreed with other processes, so a writer that
//! dies on the way leaves an unfinished file, and a horizon that advances once the writer is
//! expelled.
//!
//! # Which one is the newest
//! Timestamps order the snapshots of one life of a cluster, but not of several lives: an oracle's
//! timestamps run ahead of the clock, and a later life that begins without a snapshot may begin
//! below them. So every file has a [`SnapshotLabel`]: a life, a sequence number, which is counted
//! across lives, and the clock's time when the snapshot was taken.
//!
//! # What it is not
//! A log: later commits are missing. Nor a copy of memory: a snapshot file restores a whole
//! cluster, not a single lost memory node.

mod error;
mod format;
pub(crate) mod fuzzing;
mod restore;
mod scan;
mod tables;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::Path;

use async_channel::Receiver;
use lotus_fabric::machines::MachinesExt;
use lotus_files::{Disk, Existing, Part, Readers};
use lotus_mvcc::Timestamp;

pub use error::SnapshotError;
pub use format::{
    SnapshotHead, SnapshotInfo, SnapshotLabel, SnapshotLife, SnapshotVisitor, read_snapshot,
    read_snapshot_head,
};
pub use tables::{SnapshotTable, snapshot_tables};

use crate::api::coordinator_id::CoordinatorId;
use crate::cluster::handle::Cluster;
use crate::cluster::loaded::Data;
use crate::txn::submit::Submitted;
use format::Writer;
use scan::{CopyError, Piece, read_all};

/// Limit of the pieces, of some tens of kilobytes, that wait to be written to the file.
const PIECES: usize = 16;

impl Cluster {
    /// Writes all data committed by now to a file that only its owner can read. Transactions go on;
    /// the snapshot occupies a coroutine slot of one coordinator for its duration, and blocks this
    /// thread. Its sequence number is 0.
    ///
    /// The file appears under its name once complete and on the disk. On failure an earlier file of
    /// the same name is unchanged.
    ///
    /// While a table is dropped, or a node lost or taken in, the snapshot waits, and then goes on.
    /// The snapshot is begun anew, a few times at most, if it became too old, the table being read
    /// was dropped, or its compute node has failed and another compute node of this process serves.
    ///
    /// # Errors
    /// `Io`; `TooOld`, `Dropped`, `Still` or `Read`; `Busy`; `NotLoaded`, in a cluster of several
    /// processes that the founder has not [filled](Cluster::fill) yet; `Cluster`, if the authority
    /// has not answered for a minute; `Read` with `Misuse`, if called in a transaction's code,
    /// which would wait for its own thread.
    pub fn snapshot(&self, path: &Path) -> Result<SnapshotInfo, SnapshotError> {
        let label = |_| {
            let taken = self.machines().outside().now();
            Ok(SnapshotLabel { taken, ..SnapshotLabel::default() })
        };
        let open = || Part::beside(&Disk, path, Readers::Owner);
        let (part, info) = self.snapshot_with(open, label, Vec::new)?;
        let nameless = || io::Error::from(io::ErrorKind::InvalidInput);
        part.publish(path.file_name().ok_or_else(nameless)?, Existing::Replaced)?;
        Ok(info)
    }

    /// Writes a snapshot like [`Cluster::snapshot`] to the caller's sink, which is opened again for
    /// every attempt and returned when the snapshot is complete. `label` is called when the
    /// timestamp is drawn, and `notes` when all rows have been read; the notes are stored in the
    /// file for its reader.
    ///
    /// # Errors
    /// As [`Cluster::snapshot`], or an error of `label`. Nothing more is written to the sink then.
    pub fn snapshot_with<S: Write>(
        &self,
        open: impl Fn() -> io::Result<S>,
        label: impl Fn(Timestamp) -> Result<SnapshotLabel, SnapshotError>,
        notes: impl Fn() -> Vec<u8>,
    ) -> Result<(S, SnapshotInfo), SnapshotError> {
        self.name().check()?;
        match self.shared.ask(|| self.data())? {
            Data::Loaded => {}
            Data::Loading { .. } => return Err(SnapshotError::NotLoaded("compute node 0 loads")),
            Data::CutShort { .. } => return Err(SnapshotError::NotLoaded("that was cut short")),
        }
        let mut attempts = 1;
        loop {
            let mut sink = open()?;
            let copying = self.start_snapshot(self.any_coordinator(), PIECES);
            match copying.write(self, &mut sink, &label, &notes) {
                Ok(info) => return Ok((sink, info)),
                Err(error)
                    if attempts < error.attempts(self.serving_coordinators().next().is_some()) =>
                {
                    attempts += 1;
                    // Long enough for a coordinator to notice the change.
                    self.shared.control.pause(self.shared.config.horizon_interval);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Begins to read all rows at a coordinator. The coordinator pauses while `waiting` pieces wait
    /// to be written.
    ///
    /// # Panics
    /// If the coordinator is not in this process, or `waiting` is zero.
    #[doc(hidden)]
    pub fn start_snapshot(&self, coordinator_id: CoordinatorId, waiting: usize) -> Copying {
        let (out, pieces) = async_channel::bounded(waiting);
        let job = move |session| async move { Ok(read_all(session, out).await) };
        Copying { pieces, ended: self.submit(coordinator_id, job) }
    }
}

/// Snapshot being taken.
#[doc(hidden)]
#[must_use = "nothing is written before `write` is called"]
pub struct Copying {
    pieces: Receiver<Piece>,
    ended: Submitted<Result<Timestamp, CopyError>>,
}

impl Copying {
    /// Whether the reader has ended, with all rows or an error.
    pub fn is_finished(&self) -> bool {
        self.ended.is_finished()
    }

    /// Writes the pieces of the snapshot as they arrive.
    ///
    /// # Errors
    /// As [`Cluster::snapshot`], or an error of `label`.
    pub fn write(
        self,
        cluster: &Cluster,
        sink: &mut dyn Write,
        label: &dyn Fn(Timestamp) -> Result<SnapshotLabel, SnapshotError>,
        notes: &dyn Fn() -> Vec<u8>,
    ) -> Result<SnapshotInfo, SnapshotError> {
        let Self { pieces, ended } = self;
        let written = write_down(cluster, &pieces, sink, label);
        // The reader gives up once this end of the channel is closed.
        drop(pieces);
        // Wait for the reader's end, so that the next snapshot does not find the coordinator busy.
        let ended = cluster.wait(ended);
        // The writer's error takes precedence: the reader only knows that the writer is gone.
        match (written?, ended?) {
            (Some(writer), Ok(_)) => Ok(writer.end(notes())?),
            (None, Ok(_)) => unreachable!("whoever has read everything has begun"),
            (_, Err(error)) => Err(error.into()),
        }
    }
}

/// Writes all pieces; returns `None` if no piece arrived.
fn write_down<'a>(
    cluster: &Cluster,
    pieces: &Receiver<Piece>,
    sink: &'a mut dyn Write,
    label: &dyn Fn(Timestamp) -> Result<SnapshotLabel, SnapshotError>,
) -> Result<Option<Writer<'a>>, SnapshotError> {
    let Some(Piece::Begin(timestamp)) = cluster.machines().wait(pieces) else { return Ok(None) };
    let mut writer = Writer::begin(sink, &SnapshotHead { timestamp, label: label(timestamp)? })?;
    if let Some(naming) = cluster.naming() {
        writer.secret(naming.secret())?;
    }
    while let Some(piece) = cluster.machines().wait(pieces) {
        match piece {
            Piece::Begin(_) => unreachable!("it begins once"),
            Piece::Dropped(count) => writer.dropped(count)?,
            Piece::Table(spec) => writer.table(&spec)?,
            Piece::Rows(payload, count) => writer.rows(&payload, count)?,
        }
    }
    Ok(Some(writer))
}
