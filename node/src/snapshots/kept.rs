//! The files of a directory of snapshots: their names, their order, and which of them stay.
//!
//! # What it is
//! The number in a file's head decides, not its name; if the head cannot be read, the name has to
//! do. A file with neither counts as the newest, since it may be: the cluster then begins with an
//! older one only if the operator says so.
//!
//! # What is removed
//! Files that are older than the newest `keep` *whole* ones, each of which was read to its end
//! first. A damaged file neither counts nor takes the place of a whole one, so the newest whole one
//! always stays.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use lotus::{SnapshotError, SnapshotInfo, SnapshotLabel, read_snapshot, read_snapshot_head};
use lotus_fabric::env::Nanos;
use lotus_files::Files;
use tracing::warn;

use super::{Snapshot, date};

/// Extension of the names of snapshots.
const EXTENSION: &str = "snapshot";

/// Order of a file among the others: its number, then its timestamp.
pub type Rank = (u64, u64);

/// Name of a snapshot: its number, and the date at which it was begun.
pub(super) fn name(label: SnapshotLabel) -> String {
    format!("{:010}-{}.{EXTENSION}", label.sequence, date(label.taken.0).replace(':', ""))
}

/// Rank by file name: one of `name`, or a timestamp alone, the old name of snapshots without a
/// label. `None` for any other.
pub fn rank_by_name(path: &Path) -> Option<Rank> {
    let stem = path.file_stem()?.to_str()?;
    match stem.split_once('-') {
        Some((sequence, _)) => Some((sequence.parse().ok()?, 0)),
        None => Some((0, stem.parse().ok()?)),
    }
}

fn rank(path: &Path) -> Option<Rank> {
    let head = File::open(path).ok().and_then(|mut file| read_snapshot_head(&mut file).ok());
    let by_head = head.map(|head| (head.label.sequence, head.timestamp.raw()));
    by_head.or_else(|| rank_by_name(path))
}

fn ranked(directory: &Path) -> io::Result<Vec<(Option<Rank>, PathBuf)>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            files.push((rank(&path), path));
        }
    }
    Ok(files)
}

/// All snapshots of a directory, the newest first.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn all(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = ranked(directory)?;
    files.sort_by_cached_key(|(rank, path)| Reverse((rank.is_none(), *rank, path.clone())));
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Time at which the newest snapshot with a readable head was taken.
pub(super) fn newest_taken(directory: &Path) -> Option<Nanos> {
    let head = |path: PathBuf| read_snapshot_head(&mut File::open(path).ok()?).ok();
    all(directory).ok()?.into_iter().find_map(head).map(|head| head.label.taken)
}

/// Highest number in a directory; 0 if there is none.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn last_sequence(directory: &Path) -> io::Result<u64> {
    let sequences = ranked(directory)?.into_iter().filter_map(|(rank, _)| rank);
    Ok(sequences.map(|(sequence, _)| sequence).max().unwrap_or(0))
}

/// Reads a snapshot to its end, to check that it is whole.
///
/// # Errors
/// The first error found.
pub(super) fn check(path: &Path) -> Result<SnapshotInfo, SnapshotError> {
    read_snapshot(&mut BufReader::with_capacity(1 << 20, File::open(path)?), &mut ())
}

/// Removes the snapshots that are older than the newest `keep` whole ones.
///
/// # Errors
/// The directory cannot be read, or a file not be removed.
///
/// # Panics
/// If `keep` is 0.
pub(super) fn prune(files: &dyn Files, directory: &Path, keep: usize) -> io::Result<()> {
    assert!(keep > 0, "the newest whole one always stays");
    let all = all(directory)?;
    // Checked first, since reading takes as long as a snapshot is large.
    if all.len() <= keep {
        return Ok(());
    }
    let mut whole = 0;
    for path in all {
        if whole == keep {
            files.remove(&path)?;
        } else if let Err(error) = check(&path) {
            warn!(%error, path = %path.display(), "a snapshot is damaged, and does not count");
        } else {
            whole += 1;
        }
    }
    Ok(())
}

/// Error message: why a cluster does not begin when its newest snapshot has this error. Names what
/// it could begin with instead.
pub(super) fn refusal(all: &[PathBuf], error: &SnapshotError) -> String {
    let (newest, older) = all.split_first().expect("there is one that has the error");
    let newest = newest.display();
    let whole = older.iter().find_map(|path| Some((path, check(path).ok()?)));
    match whole {
        None => format!(
            "{newest} is no whole snapshot ({error}), and there is no other: move it away to begin \
             without"
        ),
        Some((path, info)) => format!(
            "{newest} is no whole snapshot ({error}): put a whole copy in its place. With \
             --older-snapshot the cluster begins with the one {}; what was committed later is lost \
             then",
            Snapshot::new(path.clone(), &info).in_words()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus::Nanos;

    #[test]
    fn names_have_the_number_and_the_date() {
        let label = SnapshotLabel { sequence: 7, taken: Nanos(1_782_130_424_999_999_999) };
        assert_eq!(name(label), "0000000007-2026-06-22T121344Z.snapshot");
        assert_eq!(rank_by_name(Path::new(&name(label))), Some((7, 0)));
        let unlabelled = Path::new("a/01782130424999999999.snapshot");
        assert_eq!(rank_by_name(unlabelled), Some((0, 1_782_130_424_999_999_999)));
        for other in ["x.snapshot", "-3.snapshot", "x-3.snapshot", ".snapshot", "1_0.snapshot"] {
            assert_eq!(rank_by_name(Path::new(other)), None, "{other}");
        }
    }
}
