//! Snapshots into files, and table scans, while clients run; with the required properties.
//!
//! # What it is
//! At an interval a random compute node reads all rows into a file, and a random table is scanned.
//! A file is judged by itself: the nodes of an ordered table are a tree, and rows of
//! [`Pairs`](crate::scenario::pairs::Pairs) and [`Bins`](crate::scenario::bins::Bins) satisfy the
//! limits that every transaction sees. Only errors with a known reason are allowed: overwritten
//! versions, a dropped table, and, where the scenario has faults, a dead compute node, data out of
//! reach, and nodes that do not answer.
//!
//! # What it is not
//! Part of the history: rows in a file have no version.

use std::collections::BTreeSet;
use std::time::Duration;

use lotus::{
    Cluster, CoordinatorId, Copying, Nanos, ScanError, ScanRow, SnapshotError, SnapshotLabel,
    Submitted, TableId, TxnError, read_snapshot, snapshot_tables,
};
use lotus_fabric::sim::Rates;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::scenario::bins;
use crate::scenario::format::Scenario;
use crate::verdict::Violation;

/// Property that the rows of a snapshot file existed at the same time, despite concurrent
/// transactions.
pub const OF_ONE_TIME: &str = "a snapshot file shows all rows as they were at one time";
/// Property that snapshots and scans fail only for the reasons above.
pub const FAIL_WITH_REASON: &str = "snapshots and scans fail for a reason";
/// More pieces than the rows of these clusters form.
const PIECES: usize = 1 << 16;

/// Takes snapshots at an interval, one at a time, with scans beside them, and checks both.
pub(crate) struct Copies {
    /// Interval between snapshots; zero for never.
    every: Duration,
    since: Duration,
    rng: SmallRng,
    /// Whether the scenario has faults.
    is_disturbed: bool,
    under_way: Option<Copying>,
    scanning: Option<Scanning>,
    /// Number of snapshots written.
    pub(crate) taken: u64,
}

/// Scan in progress.
struct Scanning {
    name: String,
    is_ordered: bool,
    rows: Submitted<Result<Vec<ScanRow>, ScanError>>,
}

impl Copies {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let every = Duration::from_micros(scenario.cluster.snapshots_us);
        // A separate random stream; the other streams of the seed are unchanged.
        let rng = SmallRng::seed_from_u64(seed ^ 0x5AFE_C091);
        let is_calm = scenario.schedule.is_empty() && scenario.strikes.is_empty();
        let is_disturbed = !is_calm || scenario.rates != Rates::default();
        let (since, taken) = (Duration::ZERO, 0);
        Self { every, since, rng, is_disturbed, under_way: None, scanning: None, taken }
    }

    /// Time until the next look, at most `interval`.
    pub(crate) fn pause(&self, interval: Duration) -> Duration {
        if self.every.is_zero() { interval } else { self.every.min(interval) }
    }

    /// Advances time by `passed`: judges finished snapshots and scans, or begins new ones. Returns
    /// the violations.
    pub(crate) fn look(&mut self, cluster: &Cluster, passed: Duration) -> Vec<Violation> {
        self.since += passed;
        if self.every.is_zero() || self.since < self.every {
            return Vec::new();
        }
        self.since = Duration::ZERO;
        let scanned = self.scanning.take_if(|scanning| scanning.rows.is_finished());
        let scanned = scanned.and_then(|scanning| self.judge_scan(cluster, scanning));
        let copied = self.under_way.take_if(|copying| copying.is_finished());
        let is_idle = copied.is_none() && self.under_way.is_none();
        let copied = copied.and_then(|copying| self.judge(cluster, copying));
        if is_idle {
            let compute_node = self.rng.random_range(0..cluster.config().compute_nodes);
            let coordinator_id = CoordinatorId { compute_node, thread: 0 };
            self.under_way = Some(cluster.start_snapshot(coordinator_id, PIECES));
        }
        if self.scanning.is_none() {
            self.scan(cluster);
        }
        scanned.into_iter().chain(copied).collect()
    }

    /// Begins to scan a random table at a random compute node.
    fn scan(&mut self, cluster: &Cluster) {
        let tables = cluster.tables();
        let compute_node = self.rng.random_range(0..cluster.config().compute_nodes);
        let (table, spec) = &tables[self.rng.random_range(0..tables.len())];
        let (table, coordinator_id) = (*table, CoordinatorId { compute_node, thread: 0 });
        let rows = cluster.submit(coordinator_id, move |mut session| async move {
            Ok(scan(&mut session, table).await)
        });
        let (name, is_ordered) = (spec.name.clone().into_owned(), spec.ordered);
        self.scanning = Some(Scanning { name, is_ordered, rows });
    }

    fn judge(&mut self, cluster: &Cluster, copying: Copying) -> Option<Violation> {
        let at = cluster.machines().outside().now();
        let violation = |property: &str, detail| {
            let detail = format!("at {at:?}: {detail}");
            Some(Violation { property: property.to_owned(), detail })
        };
        let mut file = Vec::new();
        let label =
            SnapshotLabel { sequence: self.taken, taken: Nanos::NEVER, ..SnapshotLabel::default() };
        let info = match copying.write(cluster, &mut file, &|_| Ok(label), &Vec::new) {
            Ok(info) => info,
            Err(error) if may_fail(&error, self.is_disturbed) => return None,
            Err(error) => return violation(FAIL_WITH_REASON, format!("a snapshot: {error:?}")),
        };
        self.taken += 1;
        if !read_snapshot(&mut &file[..], &mut ()).is_ok_and(|read| read == info) {
            return violation(OF_ONE_TIME, "the file is not whole".to_owned());
        }
        let tables = match snapshot_tables(&mut &file[..]) {
            Ok(tables) => tables,
            Err(_) => return violation(OF_ONE_TIME, "a table is no tree".to_owned()),
        };
        let rows = tables.iter().map(|(_, rows)| rows.len() as u64).sum::<u64>();
        if rows != info.rows {
            return violation(OF_ONE_TIME, format!("{rows} rows, and {} are said", info.rows));
        }
        let wrong = tables.iter().find_map(|(spec, rows)| wrong_rows(&spec.name, rows));
        wrong.and_then(|wrong| violation(OF_ONE_TIME, wrong))
    }

    fn judge_scan(&self, cluster: &Cluster, scanning: Scanning) -> Option<Violation> {
        let at = cluster.machines().outside().now();
        let Scanning { name, is_ordered, rows } = scanning;
        let violation = |property: &str, detail| {
            let detail = format!("at {at:?}: scan of {name}: {detail}");
            Some(Violation { property: property.to_owned(), detail })
        };
        let scanned = cluster.wait(rows).unwrap_or_else(|error| Err(error.into()));
        match scanned {
            Ok(rows) if is_ordered && !rows.is_sorted_by(|(one, _), (next, _)| one < next) => {
                violation(OF_ONE_TIME, "the keys do not ascend".to_owned())
            }
            Ok(rows) => wrong_rows(&name, &rows).and_then(|wrong| violation(OF_ONE_TIME, wrong)),
            Err(error) if scan_may_fail(&error, self.is_disturbed) => None,
            Err(error) => violation(FAIL_WITH_REASON, format!("{error:?}")),
        }
    }
}

/// Reads all rows of a table.
async fn scan(session: &mut lotus::Session, table: TableId) -> Result<Vec<ScanRow>, ScanError> {
    let (mut scan, mut rows) = (session.scan(table).await?, Vec::new());
    while let Some(page) = scan.next_page().await? {
        rows.extend(page.rows);
    }
    Ok(rows)
}

/// Whether a snapshot may fail with this error.
fn may_fail(error: &SnapshotError, is_disturbed: bool) -> bool {
    match error {
        SnapshotError::TooOld | SnapshotError::Dropped => true,
        SnapshotError::Still { .. } => is_disturbed,
        SnapshotError::Read(TxnError::Fenced | TxnError::DataLost { .. }) => is_disturbed,
        _ => false,
    }
}

/// Whether a scan may fail with this error.
fn scan_may_fail(error: &ScanError, is_disturbed: bool) -> bool {
    match error {
        ScanError::SnapshotTooOld | ScanError::UnknownTable(_) => true,
        ScanError::Txn(TxnError::Fenced | TxnError::DataLost { .. }) => is_disturbed,
        ScanError::Txn(error) => is_disturbed && error.is_retryable(),
        _ => false,
    }
}

/// Rows of a workload's table that no transaction may see together.
fn wrong_rows(table: &str, rows: &[ScanRow]) -> Option<String> {
    match table {
        "pairs" => {
            let number = |(key, _): &ScanRow| key[..].try_into().ok().map(u64::from_be_bytes);
            let all: BTreeSet<u64> = rows.iter().filter_map(number).collect();
            let both = all.iter().find(|row| all.contains(&(*row ^ 1)))?;
            Some(format!("row {both} and its partner exist"))
        }
        "bins" => {
            let keys: Vec<Vec<u8>> = rows.iter().map(|(key, _)| key.clone()).collect();
            Some(format!("bin {} has more rows than its limit", bins::overfull(&keys)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_without_a_reason_are_violations() {
        let misuse = || TxnError::Misuse("a sentence");
        let fenced = || SnapshotError::Read(TxnError::Fenced);
        let cases = [
            (SnapshotError::TooOld, [true, true]),
            (fenced(), [false, true]),
            (SnapshotError::Read(TxnError::Timeout), [false, false]),
            (SnapshotError::Read(misuse()), [false, false]),
            (SnapshotError::Busy, [false, false]),
        ];
        for (error, allowed) in cases {
            assert_eq!([false, true].map(|faults| may_fail(&error, faults)), allowed, "{error}");
        }
        let timeout = ScanError::Txn(TxnError::Timeout);
        assert_eq!([false, true].map(|faults| scan_may_fail(&timeout, faults)), [false, true]);
        assert!(!scan_may_fail(&ScanError::Txn(misuse()), true));
    }

    #[test]
    fn rows_that_exclude_each_other_are_found() {
        let row = |number: u64| (number.to_be_bytes().to_vec(), Vec::new());
        assert_eq!(wrong_rows("pairs", &[row(2), row(4), row(7)]), None);
        assert!(wrong_rows("pairs", &[row(2), row(6), row(7)]).is_some());
        assert_eq!(wrong_rows("further 1", &[row(6), row(7)]), None, "a table of its own");
    }
}
