//! The snapshots of a cluster: files in a directory, of which the newest that is whole is what the
//! cluster begins with.
//!
//! # What it is
//! Names are the snapshots' timestamps, so that they sort by age. A new one is written beside them
//! and gets its name last; then the oldest go, until as many are left as the cluster's file says.
//! In each there is also what benchmarks have done to balances, so that they can be judged in the
//! cluster that begins with it.
//!
//! # What it is not
//! A way between hosts. A snapshot is on the host of the compute node that took it, and is restored
//! from that of compute node 0.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use lotus::{Authority, Cluster, Machines, SnapshotInfo};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::warn;

use super::ledger::{self, Ledger};
use super::processes::make_private;
use super::records;

/// What the names of snapshots end in.
const EXTENSION: &str = "snapshot";
/// What one is called that has no timestamp yet.
const NAMELESS: &str = "next";
/// Where the authority keeps what the cluster has begun with.
const RESTORED: &str = "snapshots/restored";

/// Where snapshots are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshots {
    /// On whichever host.
    pub directory: PathBuf,
    /// How many stay when there is a new one.
    pub keep: usize,
}

/// A snapshot that was taken or restored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The file.
    pub path: PathBuf,
    /// What was committed up to here is in it.
    pub timestamp: u64,
    /// The same, as a date.
    pub time: String,
    pub tables: u32,
    pub rows: u64,
    pub bytes: u64,
}

/// What is in a snapshot beside the tables.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Notes {
    benchmarks: Ledger,
}

impl Snapshot {
    fn new(path: PathBuf, info: &SnapshotInfo) -> Self {
        let SnapshotInfo { timestamp, tables, rows, bytes, .. } = *info;
        let timestamp = timestamp.raw();
        Self { path, timestamp, time: date(timestamp), tables, rows, bytes }
    }

    /// In words.
    pub fn in_words(&self) -> String {
        let Self { path, time, tables, rows, bytes, .. } = self;
        let path = path.display();
        format!("of {time}: {rows} rows of {tables} tables, {bytes} bytes, in {path}")
    }

    /// What the cluster has begun with, if anything.
    ///
    /// # Errors
    /// The authority does not answer.
    pub fn restored(authority: &dyn Authority) -> Result<Option<Self>, String> {
        let read = records::read(authority, RESTORED);
        read.map(|(_, found)| found).map_err(|error| error.to_string())
    }
}

/// A timestamp as a date, to the second.
fn date(timestamp: u64) -> String {
    let second = OffsetDateTime::from_unix_timestamp((timestamp / 1_000_000_000) as i64);
    let date = second.ok().and_then(|second| second.format(&Rfc3339).ok());
    date.unwrap_or_else(|| format!("{timestamp} ns"))
}

impl Snapshots {
    /// Takes one of a running cluster, and removes those that are too old.
    ///
    /// # Errors
    /// A sentence; then all is as it was.
    pub fn take<M: Machines>(
        &self,
        cluster: &Cluster<M>,
        authority: &dyn Authority,
    ) -> Result<Snapshot, String> {
        make_private(&self.directory)?;
        let nameless = self.directory.join(NAMELESS);
        let before = ledger::read(authority).map_err(|error| error.to_string())?;
        let notes = || {
            // Who has begun or ended meanwhile may have done something before the timestamp.
            let known = ledger::read(authority).is_ok_and(|after| after == before);
            let open = if known { before.open } else { before.open.max(1) };
            let notes = Notes { benchmarks: Ledger { open, ..before } };
            serde_json::to_vec(&notes).expect("strings and numbers")
        };
        let failed = |error: &dyn std::fmt::Display| {
            format!("no snapshot could be taken in {}: {error}", self.directory.display())
        };
        let taken = cluster.snapshot_with(&nameless, notes).map_err(|error| failed(&error))?;
        let name = format!("{:020}.{EXTENSION}", taken.timestamp.raw());
        let path = self.directory.join(name);
        let named = fs::rename(&nameless, &path);
        let named = named.and_then(|()| File::open(&self.directory)?.sync_all());
        named.map_err(|error| failed(&error))?;
        if let Err(error) = self.prune() {
            warn!(%error, "old snapshots cannot be removed");
        }
        Ok(Snapshot::new(path, &taken))
    }

    /// All that are there, the newest first.
    fn all(&self) -> io::Result<Vec<PathBuf>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                paths.push(path);
            }
        }
        paths.sort_unstable_by(|one, other| other.cmp(one));
        Ok(paths)
    }

    fn prune(&self) -> io::Result<()> {
        self.all()?.iter().skip(self.keep).try_for_each(fs::remove_file)
    }

    /// Fills a cluster that has just been made with the newest snapshot that is whole, if there are
    /// any, and tells everybody.
    ///
    /// # Errors
    /// A sentence: none is whole, or the cluster has no room for it.
    pub fn restore<M: Machines>(
        &self,
        cluster: &Cluster<M>,
        authority: &dyn Authority,
    ) -> Result<Option<Snapshot>, String> {
        let all = self.all().map_err(|error| {
            format!("cannot look for snapshots in {}: {error}", self.directory.display())
        })?;
        let Some(newest) = all.first() else { return Ok(None) };
        for path in &all {
            let Some(info) = restore_one(cluster, path)? else { continue };
            let notes: Notes = serde_json::from_slice(&info.notes).unwrap_or_default();
            let restored = Snapshot::new(path.clone(), &info);
            let told = ledger::restore(authority, &notes.benchmarks)
                .and_then(|()| records::write(authority, RESTORED, &restored));
            told.map_err(|error| error.to_string())?;
            return Ok(Some(restored));
        }
        Err(format!(
            "{} is no whole snapshot, and there is no other: move it away to begin without",
            newest.display()
        ))
    }
}

/// What was restored; `None` if the file is not whole, and nothing was changed.
fn restore_one<M: Machines>(
    cluster: &Cluster<M>,
    path: &Path,
) -> Result<Option<SnapshotInfo>, String> {
    match cluster.restore(path) {
        Ok(info) => Ok(Some(info)),
        Err(error) if cluster.tables().is_empty() => {
            warn!(%error, path = %path.display(), "a snapshot is left out");
            Ok(None)
        }
        Err(error) => Err(format!("{} cannot be restored: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_timestamps() {
        assert_eq!(date(1_782_130_424_999_999_999), "2026-06-22T12:13:44Z");
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn the_newest_stay_and_other_files_are_left_alone() {
        let name = format!("lotus-prune-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).unwrap();
        let snapshots = Snapshots { directory: directory.clone(), keep: 2 };
        let names = ["9", "11", "10", "8"].map(|time| format!("{time:0>20}.{EXTENSION}"));
        for name in names.iter().map(String::as_str).chain(["notes.txt", "next.part"]) {
            fs::write(directory.join(name), name).unwrap();
        }
        snapshots.prune().unwrap();
        let left = [&names[1], &names[2]].map(|name| directory.join(name));
        assert_eq!(snapshots.all().unwrap(), left);
        assert!(directory.join("notes.txt").exists() && directory.join("next.part").exists());
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(snapshots.all().unwrap(), Vec::<PathBuf>::new());
    }
}
