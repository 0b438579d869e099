//! The files of a directory of snapshots: names, order, and pruning.
//!
//! # What it is
//! The life and the number in a file's head determine its rank, not its name; if the head cannot be
//! read, the name does. A file with neither counts as the newest, since it may be: the cluster then
//! begins with an older file only if the operator says so.
//!
//! # What is removed
//! Files older than the newest `keep` *whole* files (I197); wholeness is checked by reading a file
//! to its end. A damaged file neither counts nor takes the place of a whole file, so the newest
//! whole file always stays.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use lotus::{
    SnapshotError, SnapshotHead, SnapshotInfo, SnapshotLabel, SnapshotLife, read_snapshot,
    read_snapshot_head,
};
use lotus_fabric::env::Nanos;
use lotus_files::Files;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::holding::HeldFile;
use super::{Snapshot, date};

/// Extension of the names of snapshots.
const EXTENSION: &str = "snapshot";

/// Order of the files: life, number, then timestamp (I351).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub struct Rank {
    /// Life in which the snapshot was taken; the default life if the file's format has no lives.
    pub life: SnapshotLife,
    /// Number of the snapshot.
    pub sequence: u64,
    /// Timestamp of the snapshot; 0 if only its name is known.
    pub timestamp: u64,
}

impl Rank {
    pub(super) fn of(head: &SnapshotHead) -> Self {
        let SnapshotLabel { life, sequence, .. } = head.label;
        Self { life, sequence, timestamp: head.timestamp.raw() }
    }
}

/// Name of a snapshot: sequence number, start date, and life: number, id of the cluster, id of the
/// life. So files of different lives never share a name.
pub(super) fn name(label: SnapshotLabel) -> String {
    let SnapshotLabel { life, sequence, taken } = label;
    let SnapshotLife { number, cluster, id } = life;
    let date = date(taken.0).replace(':', "");
    match life == SnapshotLife::default() {
        true => format!("{sequence:010}-{date}.{EXTENSION}"),
        false => format!("{sequence:010}-{date}-{number}-{cluster:012x}-{id:012x}.{EXTENSION}"),
    }
}

/// Rank by file name: a name made by `name`, or a timestamp alone, the old name of snapshots
/// without a label. `None` for any other name.
pub fn rank_by_name(path: &Path) -> Option<Rank> {
    let stem = path.file_stem()?.to_str()?;
    let Some((sequence, rest)) = stem.split_once('-') else {
        return Some(Rank { timestamp: stem.parse().ok()?, ..Rank::default() });
    };
    let life = life_by_name(rest).unwrap_or_default();
    Some(Rank { life, sequence: sequence.parse().ok()?, timestamp: 0 })
}

/// The life in a name, behind the snapshot's number.
fn life_by_name(rest: &str) -> Option<SnapshotLife> {
    let mut parts = rest.rsplit('-');
    let id = u64::from_str_radix(parts.next()?, 16).ok()?;
    let cluster = u64::from_str_radix(parts.next()?, 16).ok()?;
    let number = parts.next()?.parse().ok()?;
    // Three parts, of the date, are left.
    (parts.count() == 3).then_some(SnapshotLife { number, cluster, id })
}

fn head(path: &Path) -> Option<SnapshotHead> {
    File::open(path).ok().and_then(|mut file| read_snapshot_head(&mut file).ok())
}

fn rank(path: &Path) -> Option<Rank> {
    head(path).map(|head| Rank::of(&head)).or_else(|| rank_by_name(path))
}

/// Describes a file by its head, or else by its name.
pub fn held(path: PathBuf) -> HeldFile {
    let head = head(&path);
    let time = head.map_or(String::new(), |head| date(head.label.taken.0));
    HeldFile { rank: head.map(|head| Rank::of(&head)).or_else(|| rank_by_name(&path)), time, path }
}

/// All snapshots of a directory, described by their heads or names, the newest first.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn all_held(directory: &Path) -> io::Result<Vec<HeldFile>> {
    Ok(all(directory)?.into_iter().map(held).collect())
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

/// Highest number in a directory; 0 if it has no snapshot.
///
/// # Errors
/// The directory cannot be read.
pub(super) fn last_sequence(directory: &Path) -> io::Result<u64> {
    let sequences = ranked(directory)?.into_iter().filter_map(|(rank, _)| rank);
    Ok(sequences.map(|rank| rank.sequence).max().unwrap_or(0))
}

/// Reads a snapshot to its end, to check that it is whole.
///
/// # Errors
/// The first error found.
pub(super) fn check(path: &Path) -> Result<SnapshotInfo, SnapshotError> {
    read_snapshot(&mut BufReader::with_capacity(1 << 20, File::open(path)?), &mut ())
}

/// Removes the snapshots that are older than the newest `keep` whole snapshots.
///
/// # Errors
/// The directory cannot be read, or a file not be removed.
///
/// # Panics
/// If `keep` is 0.
pub(super) fn prune(files: &dyn Files, directory: &Path, keep: usize) -> io::Result<()> {
    assert!(keep > 0, "the newest whole one always stays");
    let all = all(directory)?;
    // Checked first, since reading a snapshot takes as long as it is large.
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

/// Error message: why a cluster does not begin when its newest snapshot has this error. Names the
/// snapshot that the cluster could begin with instead.
pub(super) fn refusal(all: &[PathBuf], error: &SnapshotError) -> String {
    let (newest, older) = all.split_first().expect("there is one that has the error");
    let newest = newest.display();
    let whole = older.iter().find_map(|path| Some((path, check(path).ok()?)));
    match whole {
        None => format!(
            "{newest} is no whole snapshot ({error}), and there is no other: put a whole copy in \
             its place; with --fresh the cluster begins with the data of its file"
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
    fn names_have_the_number_the_date_and_the_life() {
        let taken = Nanos(1_782_130_424_999_999_999);
        let label = SnapshotLabel { sequence: 7, taken, ..SnapshotLabel::default() };
        assert_eq!(name(label), "0000000007-2026-06-22T121344Z.snapshot");
        let seventh = Rank { sequence: 7, ..Rank::default() };
        assert_eq!(rank_by_name(Path::new(&name(label))), Some(seventh));
        let life = SnapshotLife { number: 3, cluster: 0xabc, id: (1 << 48) - 1 };
        let label = SnapshotLabel { life, ..label };
        let named = "0000000007-2026-06-22T121344Z-3-000000000abc-ffffffffffff.snapshot";
        assert_eq!(name(label), named);
        assert_eq!(rank_by_name(Path::new(named)), Some(Rank { life, ..seventh }));
        let unlabelled = Path::new("a/01782130424999999999.snapshot");
        let first = Rank { timestamp: 1_782_130_424_999_999_999, ..Rank::default() };
        assert_eq!(rank_by_name(unlabelled), Some(first));
        for other in ["x.snapshot", "-3.snapshot", "x-3.snapshot", ".snapshot", "1_0.snapshot"] {
            assert_eq!(rank_by_name(Path::new(other)), None, "{other}");
        }
    }

    /// A number that two lives had given looked newest in both.
    #[test]
    fn a_later_life_is_newer_whatever_the_numbers_are() {
        let rank = |number, sequence| Rank {
            life: SnapshotLife { number, cluster: 5, id: 90 - number },
            sequence,
            timestamp: 100 - number,
        };
        assert!(rank(2, 2) > rank(1, 3) && rank(1, 3) > rank(1, 2));
        assert!(rank(1, 1) > Rank { sequence: 9, timestamp: u64::MAX, ..Rank::default() });
    }
}
