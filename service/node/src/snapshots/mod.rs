//! The snapshots of a cluster: files in a directory; the cluster begins with the newest.
//!
//! # What it is
//! A new snapshot is written beside the existing files under a temporary name, and gets its final
//! name last ([`lotus_files`]); then the oldest files are removed, until as many whole snapshots
//! are left as the cluster's file says ([`snapshot_files`]). Each snapshot also holds the
//! application's values at the authority ([`Notes`]).
//!
//! # Which snapshot is the newest
//! Of the latest life, the snapshot with the highest sequence number. The number is drawn together
//! with the snapshot's timestamp, from a counter at the authority: within a life the order of
//! numbers is the order of timestamps. A cluster counts on from the highest number of its earlier
//! lives. Neither timestamps nor dates decide: timestamps of a life may run ahead of the clock, and
//! the clock may be set back.
//!
//! # Which snapshot a cluster begins with
//! Compute node 0 asks all compute nodes for the holdings of their hosts ([`holding`]) and decides
//! ([`initial_data`]). Each node marks on its host that the cluster has lived, and the newest
//! snapshot ([`marker`]).
//!
//! # What it is not
//! A transfer between hosts. A snapshot stays on the host of the node that took the snapshot, and
//! is restored from compute node 0's host, or from any directory readable there.

mod digest;
mod fault_disk;
pub mod holding;
pub mod initial_data;
pub mod marker;
pub mod snapshot_files;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use lotus::{
    Authority, Cluster, ClusterError, SnapshotError, SnapshotInfo, SnapshotLabel, SnapshotLife,
    Timestamp,
};
use lotus_authority::AuthorityError;
use lotus_fabric::env::{Env, Nanos};
use lotus_files::{Existing, Files, Part, Readers, make_directory};
use lotus_points::point_here;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::warn;

use crate::agree::records;
use crate::application::Notes;
use crate::config::snapshots::{IfDamaged, Snapshots};
pub use digest::Digest;
use fault_disk::FaultDisk;
use initial_data::InitialData;
use snapshot_files::Rank;

/// Prefix of the name of an unfinished snapshot.
const UNFINISHED: &str = "next-";
/// Key of the snapshot that the cluster has begun with.
const RESTORED: &str = "snapshots/restored";
/// Time for which a silent authority is asked again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Key of the snapshot that was begun last ([`Last`]).
const LAST: &str = "snapshots/last";
/// Key of the life of the cluster ([`SnapshotLife`]).
const LIFE: &str = "snapshots/life";

/// A snapshot that was taken or restored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// Path of the file.
    pub path: PathBuf,
    /// Sequence number among the snapshots of the cluster, across its lives.
    pub sequence: u64,
    /// Life of the cluster in which the snapshot was taken.
    #[serde(default)]
    pub life: SnapshotLife,
    /// Snapshot timestamp: commits up to it are in the snapshot. May be ahead of the clock.
    pub timestamp: u64,
    /// Date, by the clock, at which the snapshot was begun.
    pub time: String,
    /// Number of tables.
    pub tables: u32,
    /// Number of rows of all tables.
    pub rows: u64,
    /// Size of the file.
    pub bytes: u64,
    /// Newer files that were skipped at the beginning, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
}

/// Number and timestamp of the snapshot of this life that was begun last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Last {
    /// Sequence number.
    pub sequence: u64,
    /// Snapshot timestamp.
    pub timestamp: u64,
}

impl Last {
    /// Next number, for this timestamp; `there` is the highest number in the directory. `None` if a
    /// snapshot of a later timestamp was already begun (I196), or numbers are used up. Two
    /// snapshots of the same timestamp have the same rows.
    pub fn next(self, there: u64, timestamp: u64) -> Option<Self> {
        let sequence = self.sequence.max(there).checked_add(1)?;
        (timestamp >= self.timestamp).then_some(Self { sequence, timestamp })
    }
}

impl Snapshot {
    fn new(path: PathBuf, info: &SnapshotInfo) -> Self {
        let SnapshotInfo { head, tables, rows, bytes, .. } = *info;
        let SnapshotLabel { life, sequence, taken } = head.label;
        let (timestamp, time) = (head.timestamp.raw(), date(taken.0));
        Self { path, sequence, life, timestamp, time, tables, rows, bytes, left_out: Vec::new() }
    }

    /// Rank among all snapshots.
    pub fn rank(&self) -> Rank {
        let &Self { life, sequence, timestamp, .. } = self;
        Rank { life, sequence, timestamp }
    }

    /// Summary for people.
    pub fn in_words(&self) -> String {
        let Self { path, time, tables, rows, bytes, .. } = self;
        let path = path.display();
        format!("of {time}: {rows} rows of {tables} tables, {bytes} bytes, in {path}")
    }

    /// Snapshot that the cluster has begun with, if any.
    ///
    /// # Errors
    /// A sentence: the authority does not answer.
    pub fn restored(authority: &dyn Authority) -> Result<Option<Self>, String> {
        let read = records::read(authority, RESTORED);
        read.map(|(_, found)| found).map_err(|error| error.to_string())
    }
}

/// Formats nanoseconds since the Unix epoch as a date, to the second.
fn date(nanos: u64) -> String {
    let second = OffsetDateTime::from_unix_timestamp((nanos / 1_000_000_000) as i64);
    let date = second.ok().and_then(|second| second.format(&Rfc3339).ok());
    date.unwrap_or_else(|| format!("{nanos} ns"))
}

impl Snapshots {
    /// Time since the newest snapshot on this host was taken, if any.
    pub fn newest_age(&self, now: Nanos) -> Option<Duration> {
        snapshot_files::newest_taken(&self.directory).map(|taken| now.since(taken))
    }

    /// Snapshot files of the directory, the newest first.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn paths(&self) -> io::Result<Vec<PathBuf>> {
        snapshot_files::all(&self.directory)
    }

    /// Snapshot files of the directory, the newest first, each with its content or its error. A
    /// file that is removed meanwhile is left out.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read_all(&self) -> io::Result<Vec<(PathBuf, Result<Snapshot, SnapshotError>)>> {
        let read = |path: PathBuf| match snapshot_files::check(&path) {
            Err(SnapshotError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
            found => Some((path.clone(), found.map(|info| Snapshot::new(path, &info)))),
        };
        Ok(self.paths()?.into_iter().filter_map(read).collect())
    }

    /// Takes a snapshot of a running cluster, and removes snapshots that are too old.
    ///
    /// # Errors
    /// A sentence; the directory is then as it was.
    pub fn take(
        &self,
        cluster: &Cluster,
        authority: &dyn Authority,
        notes: &dyn Notes,
    ) -> Result<Snapshot, String> {
        self.take_through(&FaultDisk, cluster, authority, notes)
    }

    fn take_through(
        &self,
        files: &dyn Files,
        cluster: &Cluster,
        authority: &dyn Authority,
        notes: &dyn Notes,
    ) -> Result<Snapshot, String> {
        make_directory(files, &self.directory)
            .map_err(|error| format!("cannot make {}: {error}", self.directory.display()))?;
        let before = notes.before(authority).map_err(|error| error.to_string())?;
        let after = || notes.after(authority, &before);
        let open = || Part::create(files, &self.directory, UNFINISHED, Readers::Owner);
        let env = cluster.machines().outside();
        let label = |timestamp| self.label(authority, &env, timestamp);
        let taken = cluster.snapshot_with(open, label, after).and_then(|(part, info)| {
            let name = snapshot_files::name(info.head.label);
            part.publish(&name, Existing::Kept)?;
            Ok(Snapshot::new(self.directory.join(name), &info))
        });
        let taken = taken.map_err(|error| {
            format!("no snapshot could be taken in {}: {error}", self.directory.display())
        })?;
        if let Err(error) = snapshot_files::prune(files, &self.directory, self.keep) {
            warn!(%error, "old snapshots cannot be removed");
        }
        point_here!(0, SnapshotPruned);
        Ok(taken)
    }

    /// Registers a snapshot of this timestamp as the last, with the next number. If an answer of
    /// the authority is lost, a number may be skipped.
    fn label(
        &self,
        authority: &dyn Authority,
        env: &Env,
        timestamp: Timestamp,
    ) -> Result<SnapshotLabel, SnapshotError> {
        let there = snapshot_files::last_sequence(&self.directory)?;
        let mut next = None;
        let enter = || {
            records::update(authority, LAST, |last: &mut Last| {
                next = last.next(there, timestamp.raw());
                *last = next.unwrap_or(*last);
            })
        };
        let entered = records::until_answered(env, PATIENCE, || ControlFlow::Continue(()), enter);
        entered.map_err(ClusterError::from)?;
        let Last { sequence, .. } = next.ok_or(SnapshotError::Overtaken)?;
        let (_, life) = records::read(authority, LIFE).map_err(io::Error::other)?;
        // Anchored now: the clock may have been set since the node was started.
        Ok(SnapshotLabel { life: life.unwrap_or_default(), sequence, taken: Env::real(0).now() })
    }

    /// Fills a new cluster with the newest snapshot of `beginning`, if any, and publishes the
    /// restored snapshot at the authority.
    ///
    /// # Errors
    /// A sentence: the newest snapshot is not whole, and no older snapshot is to be used instead;
    /// no snapshot is whole; or the cluster has no room for the snapshot.
    pub fn restore(
        &self,
        cluster: &Cluster,
        authority: &dyn Authority,
        notes: &dyn Notes,
        beginning: &InitialData,
    ) -> Result<Option<Snapshot>, String> {
        let env = cluster.machines().outside();
        let last = Last { sequence: beginning.last, timestamp: 0 };
        let begin = || {
            records::write(authority, LIFE, &beginning.life)?;
            records::write(authority, LAST, &last)
        };
        let begun = records::until_answered(&env, PATIENCE, || ControlFlow::Continue(()), begin);
        begun.map_err(|error| error.to_string())?;
        let all = &beginning.paths;
        let mut left_out = Vec::new();
        for path in all {
            match cluster.restore(path) {
                Ok(info) => {
                    let restored = Snapshot { left_out, ..Snapshot::new(path.clone(), &info) };
                    let restore = || notes.restore(authority, &info.notes);
                    let restored = begin_with(restored, beginning, restore, authority, &env);
                    return restored.map(Some);
                }
                Err(error) if !error.is_of_the_file() || !cluster.tables().is_empty() => {
                    let full =
                        matches!(error, SnapshotError::Cluster(ClusterError::OutOfMemory { .. }));
                    let cure = if full { "; raise memory in the cluster's file" } else { "" };
                    return Err(format!("{} cannot be restored: {error}{cure}", path.display()));
                }
                Err(error) if self.if_damaged == IfDamaged::Stop => {
                    return Err(snapshot_files::refusal(all, &error));
                }
                Err(error) => {
                    warn!(%error, path = %path.display(), "a snapshot is left out");
                    left_out.push(format!("{}: {error}", path.display()));
                }
            }
        }
        match left_out.is_empty() {
            true => Ok(None),
            false => Err(format!(
                "no snapshot is whole ({}): put a whole copy there; with --fresh the cluster \
                 begins with the data of its file",
                left_out.join("; ")
            )),
        }
    }
}

/// Publishes the snapshot that the cluster begins with, and the number to count on from.
fn begin_with(
    restored: Snapshot,
    beginning: &InitialData,
    restore_notes: impl Fn() -> Result<(), AuthorityError>,
    authority: &dyn Authority,
    env: &Env,
) -> Result<Snapshot, String> {
    let last = Last { sequence: beginning.last, timestamp: restored.timestamp };
    let tell = || {
        records::write(authority, LAST, &last)?;
        restore_notes()?;
        records::write(authority, RESTORED, &restored)
    };
    // Patient: giving up here would mean starting the whole cluster again and repeating the load.
    let told = records::until_answered(env, PATIENCE, || ControlFlow::Continue(()), tell);
    told.map(|_| restored).map_err(|error| error.to_string())
}
