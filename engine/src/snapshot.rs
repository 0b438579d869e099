//! Snapshot files: all data of a cluster as of one timestamp, and restoring it.
//!
//! # What it is
//! A *logical* snapshot: the tables' specifications and all rows, without versions and places
//! ([`format`]). It is taken while transactions run, from a snapshot that holds the horizon
//! ([`scan`]), and shows of every transaction all or nothing. It includes the rows of
//! `lotus.calls`, which make calls take effect once. It is restored into a cluster without tables,
//! of any shape, before that serves clients; timestamps continue after the snapshot's.
//!
//! # The writer
//! The process that is asked writes it: its coordinator reads, and the calling thread writes to a
//! file on its host. Beyond what it takes to see the rows nothing is agreed with other processes,
//! so one that dies on the way leaves an unfinished file, and a horizon that goes on when it is
//! expelled.
//!
//! # Which one is the newest
//! Timestamps order the snapshots of one life of a cluster, but not those of several: an oracle's
//! run ahead of the clock, and a later life that begins without a snapshot may begin below them. So
//! each has a [`SnapshotLabel`]: a life, a sequence number, which is counted across lives,
//! and the clock's time when it was taken.
//!
//! # What it is not
//! A log: it lacks what was committed after it was taken. Nor a copy of memory: it restores a whole
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
use lotus_fabric::machines::Machines;
use lotus_files::{Disk, Existing, Part, Readers};
use lotus_mvcc::Timestamp;

pub use error::SnapshotError;
pub use format::{
    SnapshotHead, SnapshotInfo, SnapshotLabel, SnapshotLife, SnapshotVisitor, read_snapshot,
    read_snapshot_head,
};
pub use tables::{SnapshotTable, snapshot_tables};

use crate::api::seat::Seat;
use crate::cluster::handle::Cluster;
use crate::cluster::loaded::Data;
use crate::txn::submit::Submitted;
use format::Writer;
use scan::{CopyError, Piece, read_all};

/// Pieces, of some tens of kilobytes each, that may wait for the file.
const PIECES: usize = 16;

impl<M: Machines> Cluster<M> {
    /// Writes all that is committed by now to a file that only its owner can read. Transactions go
    /// on; it takes a coroutine slot of one coordinator for its duration, and blocks this thread.
    /// Its sequence number is 0.
    ///
    /// The file appears under its name once it is whole and on the disk. On failure an earlier file
    /// of that name is unchanged.
    ///
    /// While a table is dropped, or a node lost or taken in, it waits, and goes on. It is begun
    /// anew, a few times at most, if it became too old, a table was dropped in the middle of which
    /// it was, or its compute node has failed and another one of this process serves.
    ///
    /// # Errors
    /// `Io`; `TooOld`, `Dropped`, `Still` or `Read`; `Busy`; `NotLoaded`, in a cluster of several
    /// processes that its founder has not [filled](Cluster::fill) yet; `Cluster`, if the authority
    /// has not answered for a minute; `Read` with `Misuse` in a transaction's code, which would
    /// wait for its own thread.
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
    /// every attempt and returned when all is written. `label` is called when the timestamp is
    /// drawn; `notes`, which are stored in the file for its reader, when all rows have been read.
    ///
    /// # Errors
    /// As [`Cluster::snapshot`], or those of `label`. Nothing more is written to the sink then.
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
            let copying = self.start_snapshot(self.any_seat(), PIECES);
            match copying.write(self, &mut sink, &label, &notes) {
                Ok(info) => return Ok((sink, info)),
                Err(error) if attempts < error.attempts(self.serving_seats().next().is_some()) => {
                    attempts += 1;
                    // Time enough for a coordinator to notice the change.
                    self.shared.control.pause(self.shared.config.horizon_interval);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Begins to read all rows at a coordinator, which pauses while `waiting` pieces wait to be
    /// written.
    ///
    /// # Panics
    /// If this process has no such coordinator, or `waiting` is zero.
    #[doc(hidden)]
    pub fn start_snapshot(&self, seat: Seat, waiting: usize) -> Copying {
        let (out, pieces) = async_channel::bounded(waiting);
        let job = move |session| async move { Ok(read_all(session, out).await) };
        Copying { pieces, ended: self.submit(seat, job) }
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

    /// Writes the snapshot as it arrives.
    ///
    /// # Errors
    /// As [`Cluster::snapshot`], or those of `label`.
    pub fn write<M: Machines>(
        self,
        cluster: &Cluster<M>,
        sink: &mut dyn Write,
        label: &dyn Fn(Timestamp) -> Result<SnapshotLabel, SnapshotError>,
        notes: &dyn Fn() -> Vec<u8>,
    ) -> Result<SnapshotInfo, SnapshotError> {
        let Self { pieces, ended } = self;
        let written = write_down(cluster, &pieces, sink, label);
        // The reader gives up once this end of the channel is closed.
        drop(pieces);
        // The reader has ended before this returns, so that the next one does not find it busy.
        let ended = cluster.wait(ended);
        // An error of the writer comes first: the reader only knows that there is none any more.
        match (written?, ended?) {
            (Some(writer), Ok(_)) => Ok(writer.end(notes())?),
            (None, Ok(_)) => unreachable!("whoever has read everything has begun"),
            (_, Err(error)) => Err(error.into()),
        }
    }
}

/// Writes all pieces; `None` if there were none.
fn write_down<'a, M: Machines>(
    cluster: &Cluster<M>,
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
