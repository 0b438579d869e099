//! Snapshots that are taken into files while clients run, and what must be true of each.
//!
//! # What it is
//! Now and then a random compute node is asked to read all rows. Each file is judged by itself: a
//! file of [`Pairs`](crate::scenario::pairs::Pairs) has at most one row of each pair, as every
//! transaction sees them. If that node or a memory node dies meanwhile, there is no file.
//!
//! # What it is not
//! Part of the history: rows in a file bear no version.

use std::collections::BTreeSet;
use std::time::Duration;

use lotus::{
    Cluster, Copying, Nanos, PrimaryKey, Seat, SnapshotError, SnapshotLabel, SnapshotVisitor,
    read_snapshot,
};
use lotus_benchmarks::kvs::integer_key;
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::SimMachines;
use lotus_mvcc::TableSpec;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::scenario::format::{Scenario, Workload};
use crate::verdict::Violation;

/// Property that all rows of a snapshot file existed at one time, whichever transactions ran.
pub const OF_ONE_TIME: &str = "a snapshot file shows all rows as they were at one time";
/// More pieces than the rows of these clusters come in.
const PIECES: usize = 1 << 16;

/// Takes snapshots at an interval, one at a time, and checks their files.
pub(crate) struct Copies {
    /// Interval between snapshots; zero for never.
    every: Duration,
    since: Duration,
    rng: SmallRng,
    pairs: bool,
    under_way: Option<Copying>,
    /// Number of snapshots that were written.
    pub(crate) taken: u64,
}

impl Copies {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let every = Duration::from_micros(scenario.cluster.snapshots_us);
        let pairs = matches!(scenario.workload, Workload::Pairs { .. });
        // A stream of its own, so that the others of this seed stay as they are.
        let rng = SmallRng::seed_from_u64(seed ^ 0x5AFE_C091);
        Self { every, since: Duration::ZERO, rng, pairs, under_way: None, taken: 0 }
    }

    /// Time until the next look, at most `interval`.
    pub(crate) fn pause(&self, interval: Duration) -> Duration {
        if self.every.is_zero() { interval } else { self.every.min(interval) }
    }

    /// Takes note that time has `passed`, judges a finished snapshot, or begins one. Returns what
    /// is wrong with the finished one.
    pub(crate) fn look(
        &mut self,
        cluster: &Cluster<SimMachines>,
        passed: Duration,
    ) -> Option<Violation> {
        self.since += passed;
        if self.every.is_zero() || self.since < self.every {
            return None;
        }
        self.since = Duration::ZERO;
        if let Some(copying) = self.under_way.take_if(|copying| copying.is_finished()) {
            return self.judge(cluster, copying);
        }
        if self.under_way.is_none() {
            let compute_node = self.rng.random_range(0..cluster.config().compute_nodes);
            let seat = Seat { compute_node, thread: 0 };
            self.under_way = Some(cluster.start_snapshot(seat, PIECES));
        }
        None
    }

    fn judge(&mut self, cluster: &Cluster<SimMachines>, copying: Copying) -> Option<Violation> {
        let mut file = Vec::new();
        // A snapshot may fail by a fault.
        let label =
            SnapshotLabel { sequence: self.taken, taken: Nanos::NEVER, ..SnapshotLabel::default() };
        let info = copying.write(cluster, &mut file, &|_| Ok(label), &Vec::new).ok()?;
        let mut seen = FileRows { pairs: self.pairs, rows: BTreeSet::new(), both: None };
        let read = read_snapshot(&mut &file[..], &mut seen);
        self.taken += 1;
        let sound = read.is_ok_and(|read| read == info);
        let at = cluster.machines().outside().now();
        let violation = |detail| Violation { property: OF_ONE_TIME.to_owned(), detail };
        match seen.both {
            _ if !sound => Some(violation(format!("at {at:?}: the file is not whole"))),
            Some(row) => Some(violation(format!("at {at:?}: row {row} and its partner exist"))),
            None => None,
        }
    }
}

/// Rows of a file, and a pair of which both exist.
struct FileRows {
    pairs: bool,
    rows: BTreeSet<u64>,
    both: Option<u64>,
}

impl SnapshotVisitor for FileRows {
    fn table(&mut self, _: TableSpec) -> Result<(), SnapshotError> {
        Ok(())
    }

    fn row(&mut self, key: PrimaryKey, _: &[u8]) -> Result<(), SnapshotError> {
        let row = integer_key(&key).filter(|_| self.pairs);
        if let Some(row) = row {
            self.rows.insert(row);
            if self.rows.contains(&(row ^ 1)) {
                self.both = Some(row);
            }
        }
        Ok(())
    }
}
