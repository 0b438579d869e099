//! All data of a cluster in one file, as it was at one time, and back again.
//!
//! # What it is
//! A *logical* snapshot: the tables' specifications and all rows, without versions and places
//! ([`format`]). It is taken while transactions run, from a snapshot that holds the horizon
//! ([`scan`]), and shows of every transaction all or nothing. The rows of `lotus.calls`, which
//! make calls take effect once, are among them. It is restored into a cluster without tables, of
//! whatever shape, before that serves anybody; timestamps go on behind the snapshot's.
//!
//! # Who writes it
//! The process that is asked: its coordinator reads, the calling thread writes to a file of its
//! host. Beyond what it takes to see the rows nothing is agreed with anybody, so a process that
//! dies on the way leaves an unfinished file, and a horizon that goes on when it is expelled.
//!
//! # Which one is the newest
//! Timestamps order the snapshots of one life of a cluster, but not those of several: an oracle's
//! run ahead of the clock, and the next life of a cluster that begins without a snapshot begins
//! behind them. So each has a [`SnapshotLabel`], with a sequence number that its directory's
//! keeper counts on across lives, and the time of the clock when it was taken.
//!
//! # What it is not
//! A log: what was committed after the snapshot is not in it. Nor a copy of memory: a memory node
//! that was lost is not made anew from it, only a whole cluster is.

mod error;
mod format;
pub(crate) mod fuzzing;
mod restore;
mod scan;
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
    SnapshotHead, SnapshotInfo, SnapshotLabel, SnapshotVisitor, read_snapshot, read_snapshot_head,
};

use crate::cluster::{Cluster, Seat};
use crate::error::TxnError;
use crate::loaded::Data;
use crate::submit::Submitted;
use format::Writer;
use scan::{Piece, read_all};

/// How often a snapshot is begun anew that has become too old, or was in the way of a change of the
/// membership.
const ATTEMPTS: u32 = 5;
/// Pieces of some tens of kilobytes that may wait for the file.
const PIECES: usize = 16;

impl<M: Machines> Cluster<M> {
    /// Writes all that is committed by now to a file, for its owner only. Transactions go on; it
    /// takes a coroutine slot of one coordinator for as long as it lasts, and blocks this thread.
    /// Its sequence number is 0.
    ///
    /// The file appears under its name when it is whole and on the disk. If this fails, whatever
    /// had the name before still has it.
    ///
    /// # Errors
    /// `Io`; `Read`, when it became too old a few times; `Busy`; `NotLoaded`, in a cluster of
    /// several processes whose founder has not [filled](Cluster::fill) it; `Cluster`, if the
    /// authority does not say.
    pub fn snapshot(&self, path: &Path) -> Result<SnapshotInfo, SnapshotError> {
        let label = |_| {
            let taken = self.machines().outside().now();
            Ok(SnapshotLabel { sequence: 0, taken })
        };
        let open = || Part::beside(&Disk, path, Readers::Owner);
        let (part, info) = self.snapshot_with(open, label, Vec::new)?;
        let nameless = || io::Error::from(io::ErrorKind::InvalidInput);
        part.publish(path.file_name().ok_or_else(nameless)?, Existing::Replaced)?;
        Ok(info)
    }

    /// Writes a snapshot like [`Cluster::snapshot`] to a sink of the caller's, which is opened
    /// again for every attempt and returned when all is written. The `label` is asked for when the
    /// timestamp is drawn; `notes`, which stand in the file for its reader, when all rows have been
    /// read.
    ///
    /// # Errors
    /// As [`Cluster::snapshot`], or those of `label`. Nothing more is written to the sink then.
    pub fn snapshot_with<S: Write>(
        &self,
        open: impl Fn() -> io::Result<S>,
        label: impl Fn(Timestamp) -> Result<SnapshotLabel, SnapshotError>,
        notes: impl Fn() -> Vec<u8>,
    ) -> Result<(S, SnapshotInfo), SnapshotError> {
        match self.data()? {
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
                Err(error) if error.is_retryable() && attempts < ATTEMPTS => {
                    attempts += 1;
                    // Long enough for a coordinator to notice what has changed.
                    self.shared.control.pause(self.shared.config.horizon_interval);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Begins to read all rows at a coordinator, which goes on as long as no more than `waiting`
    /// pieces of them wait to be written.
    ///
    /// # Panics
    /// If there is no such coordinator in this process, or nothing may wait.
    #[doc(hidden)]
    pub fn start_snapshot(&self, seat: Seat, waiting: usize) -> Copying {
        let (out, pieces) = async_channel::bounded(waiting);
        let ended = self.submit(seat, move |session| read_all(session, out));
        Copying { pieces, ended }
    }
}

/// A snapshot that is being taken.
#[doc(hidden)]
#[must_use = "it waits until somebody writes it down"]
pub struct Copying {
    pieces: Receiver<Piece>,
    ended: Submitted<Timestamp>,
}

impl Copying {
    /// Whether all rows are read, or will not be.
    pub fn is_finished(&self) -> bool {
        self.ended.is_finished()
    }

    /// Writes it down as it comes.
    ///
    /// # Errors
    /// `Io`, `Read` or `Busy`, or those of `label`.
    pub fn write<M: Machines>(
        self,
        cluster: &Cluster<M>,
        sink: &mut dyn Write,
        label: &dyn Fn(Timestamp) -> Result<SnapshotLabel, SnapshotError>,
        notes: &dyn Fn() -> Vec<u8>,
    ) -> Result<SnapshotInfo, SnapshotError> {
        let Self { pieces, ended } = self;
        let written = write_down(cluster, &pieces, sink, label);
        // Whoever reads gives up where nobody listens any more.
        drop(pieces);
        let ended = cluster.wait(ended).map_err(|error| match error {
            // There is one way to misuse it.
            TxnError::Misuse(_) => SnapshotError::Busy,
            error => error.into(),
        });
        match (written?, ended?) {
            (Some(writer), _) => Ok(writer.end(notes())?),
            (None, _) => unreachable!("whoever has read everything has begun"),
        }
    }
}

/// Writes down all that comes; `None` if nothing has.
fn write_down<'a, M: Machines>(
    cluster: &Cluster<M>,
    pieces: &Receiver<Piece>,
    sink: &'a mut dyn Write,
    label: &dyn Fn(Timestamp) -> Result<SnapshotLabel, SnapshotError>,
) -> Result<Option<Writer<'a>>, SnapshotError> {
    let Some(Piece::Begin(timestamp)) = cluster.machines().wait(pieces) else { return Ok(None) };
    let mut writer = Writer::begin(sink, &SnapshotHead { timestamp, label: label(timestamp)? })?;
    while let Some(piece) = cluster.machines().wait(pieces) {
        match piece {
            Piece::Begin(_) => unreachable!("it begins once"),
            Piece::Table(spec) => writer.table(&spec)?,
            Piece::Rows(payload, count) => writer.rows(&payload, count)?,
        }
    }
    Ok(Some(writer))
}
