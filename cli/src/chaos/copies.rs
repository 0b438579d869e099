//! Snapshots under load. Each snapshot is requested on a thread of its own; reported snapshots are
//! checked until the end.
//!
//! A reported snapshot is whole, and stays until there are `keep` newer whole snapshots (I232). A
//! failed snapshot leaves no file that counts as a snapshot.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use lotus::SnapshotError;
use lotus_benchmarks::audit::Check;
use lotus_fabric::env::Env;

use lotus_node::agree::cluster_authority::authority;
use lotus_node::config::file::ClusterFile;
use lotus_node::config::snapshots::Snapshots;
use lotus_node::requests::copier;
use lotus_node::snapshots::Snapshot;

/// Timeout of a snapshot: the node may have to be started again before it reports that the outcome
/// is unknown.
pub const TAKING: Duration = Duration::from_secs(60);

/// Snapshots requested so far.
#[derive(Debug, Default)]
pub struct Copies {
    /// Snapshots reported as taken.
    pub reported: Vec<Snapshot>,
    /// Number of failed snapshots, with the error of the last failure.
    pub failed: usize,
    last_failure: Option<String>,
    /// Number of snapshots struck while in progress.
    pub struck: usize,
    /// Violations found.
    findings: Vec<String>,
}

/// Takes snapshots of one cluster.
pub struct Copying {
    file: ClusterFile,
    env: Env,
    under_way: Option<UnderWay>,
    copies: Copies,
}

struct UnderWay {
    asked: JoinHandle<Result<Snapshot, String>>,
    is_struck: bool,
}

impl Copying {
    /// Continues from earlier `copies`.
    pub fn new(file: &ClusterFile, copies: Copies) -> Self {
        Self { file: file.clone(), env: Env::real(0), under_way: None, copies }
    }

    /// Requests a snapshot, unless a snapshot is in progress.
    ///
    /// # Errors
    /// A sentence: the thread cannot be started.
    pub fn begin(&mut self) -> Result<(), String> {
        if self.under_way.is_some() {
            return Ok(());
        }
        let file = self.file.clone();
        let take = move || {
            let taken = copier::take(&file, &authority(&file)?, TAKING)?;
            Ok(taken.1)
        };
        let asked = self.env.spawn("lotus-copying", take).map_err(|error| error.to_string())?;
        self.under_way = Some(UnderWay { asked, is_struck: false });
        Ok(())
    }

    /// Notes a strike at a compute node.
    pub fn is_struck(&mut self) {
        if let Some(under_way) = &mut self.under_way {
            under_way.is_struck = true;
        }
    }

    /// Handles the last snapshot if it has ended; with `waits`, waits for the end.
    pub fn look(&mut self, waits: bool) {
        let has_ended = |one: &mut UnderWay| waits || one.asked.is_finished();
        let Some(UnderWay { asked, is_struck }) = self.under_way.take_if(has_ended) else { return };
        let taken = asked.join().unwrap_or_else(|_| Err("its thread has panicked".to_owned()));
        self.copies.struck += usize::from(is_struck);
        self.copies.hear(self.file.snapshots.as_ref(), taken);
    }

    /// Waits for the last snapshot, and returns the results of all snapshots.
    pub fn end(mut self) -> Copies {
        self.look(true);
        self.copies
    }
}

impl Copies {
    /// Records that a snapshot was taken or has failed, and checks all files.
    pub fn hear(&mut self, snapshots: Option<&Snapshots>, taken: Result<Snapshot, String>) {
        match taken {
            Ok(snapshot) => self.reported.push(snapshot),
            Err(why) => {
                self.failed += 1;
                self.last_failure = Some(why);
            }
        }
        self.look_at_all(snapshots);
    }

    fn look_at_all(&mut self, snapshots: Option<&Snapshots>) {
        let Some(snapshots) = snapshots else { return };
        let look = || match snapshots.read_all() {
            Ok(found) => missing_or_damaged(&self.reported, &found, snapshots.keep),
            Err(error) => vec![error.to_string()],
        };
        let mut found = look();
        if !found.is_empty() {
            // Old snapshots may have been removed while the directory was read.
            found = look();
        }
        for finding in found {
            if !self.findings.contains(&finding) {
                self.findings.push(finding);
            }
        }
    }

    /// Result of all checks so far; checks the files once more.
    pub fn check(&mut self, snapshots: Option<&Snapshots>) -> Check {
        self.look_at_all(snapshots);
        let failed = match &self.last_failure {
            Some(why) => format!("{} not taken, the last: {why}", self.failed),
            None => "none failed".to_owned(),
        };
        let detail = match self.findings.is_empty() {
            true => format!("{} reported, {failed}", self.reported.len()),
            false => self.findings.join("; "),
        };
        Check::new("every snapshot that was reported reads whole", self.findings.is_empty(), detail)
    }
}

/// Violations in a directory's files: a file that counts as a snapshot is not whole, its content
/// differs from the report, or a reported file is gone although fewer than `keep` are newer.
fn missing_or_damaged(
    reported: &[Snapshot],
    found: &[(PathBuf, Result<Snapshot, SnapshotError>)],
    keep: usize,
) -> Vec<String> {
    let damaged = found.iter().filter_map(|(path, snapshot)| match snapshot {
        Ok(_) => None,
        Err(error) => Some(format!("{} is not whole: {error}", path.display())),
    });
    let wrong = reported.iter().filter_map(|said| {
        let path = said.path.display();
        let is_it = |path: &PathBuf| path.file_name() == said.path.file_name();
        match found.iter().find(|(path, _)| is_it(path)) {
            Some((_, Ok(there))) if content(there) == content(said) => None,
            Some((_, Ok(there))) => {
                Some(format!("{path} was reported with {} rows, and has {}", said.rows, there.rows))
            }
            // Reported above as damaged.
            Some((_, Err(_))) => None,
            None => {
                let whole = found.iter().filter_map(|(_, snapshot)| snapshot.as_ref().ok());
                let newer = whole.filter(|other| other.sequence > said.sequence).count();
                (newer < keep).then(|| format!("{path} is gone, and {newer} are newer"))
            }
        }
    });
    damaged.chain(wrong).collect()
}

/// Content of a snapshot, without its path.
fn content(snapshot: &Snapshot) -> [u64; 5] {
    let Snapshot { sequence, timestamp, tables, rows, bytes, .. } = *snapshot;
    [sequence, timestamp, u64::from(tables), rows, bytes]
}

#[cfg(test)]
mod tests {
    use lotus::SnapshotLife;

    use super::*;

    fn snapshot(sequence: u64, rows: u64) -> Snapshot {
        let (path, time) = (PathBuf::from(format!("{sequence}.snapshot")), String::new());
        let (timestamp, tables, bytes, left_out) = (sequence, 1, rows * 8, Vec::new());
        let life = SnapshotLife::default();
        Snapshot { path, sequence, life, timestamp, time, tables, rows, bytes, left_out }
    }

    fn whole(sequence: u64, rows: u64) -> (PathBuf, Result<Snapshot, SnapshotError>) {
        let snapshot = snapshot(sequence, rows);
        (snapshot.path.clone(), Ok(snapshot))
    }

    fn damaged(sequence: u64) -> (PathBuf, Result<Snapshot, SnapshotError>) {
        (snapshot(sequence, 0).path, Err(SnapshotError::Damaged))
    }

    #[test]
    fn a_reported_snapshot_that_is_gone_early_or_damaged_or_another_is_a_finding() {
        let reported = [snapshot(3, 10), snapshot(5, 12)];
        let sound = |found: &[_]| missing_or_damaged(&reported, found, 2);
        assert_eq!(sound(&[whole(5, 12), whole(3, 10)]), [""; 0]);
        // Number 4 was taken and not reported: its node was killed.
        assert_eq!(sound(&[whole(5, 12), whole(4, 11)]), [""; 0]);
        assert_eq!(sound(&[whole(5, 12)]), ["3.snapshot is gone, and 1 are newer"]);
        assert_eq!(sound(&[whole(3, 10)]), ["5.snapshot is gone, and 0 are newer"]);
        let newer = [damaged(6), whole(5, 12), whole(3, 10)];
        assert_eq!(sound(&newer).len(), 1, "it counts, and cluster would not begin");
        let only = [damaged(5), whole(3, 10)];
        assert!(sound(&only)[0].starts_with("5.snapshot is not whole"), "{:?}", sound(&only));
        let fewer = [whole(5, 11), whole(3, 10)];
        assert_eq!(sound(&fewer), ["5.snapshot was reported with 12 rows, and has 11"]);
        // A damaged one does not count as newer.
        assert_eq!(sound(&[damaged(6), whole(5, 12)]).len(), 2);
    }
}
