//! Views: plain values, ready to be drawn.

use std::collections::BTreeMap;

#[cfg(feature = "tcp")]
use lotus_node::config::name::NodeName;

/// Number of points in the last minute.
pub const HISTORY: usize = 60;

/// View of the watched target.
#[derive(Clone, PartialEq, Debug)]
pub enum View {
    /// A cluster of processes.
    #[cfg(feature = "tcp")]
    Cluster(ClusterView),
    /// A benchmark.
    Bench(BenchView),
}

/// Health, for colours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mood {
    /// Everything is well.
    Good,
    /// Something is in progress.
    Changing,
    /// Something is lost, or does not answer.
    Bad,
}

/// Order of the compute nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortBy {
    #[default]
    Name,
    State,
    Committed,
    Latency,
    Aborts,
    Shards,
}

impl SortBy {
    const ALL: [Self; 6] =
        [Self::Name, Self::State, Self::Committed, Self::Latency, Self::Aborts, Self::Shards];

    /// The next order; the first order after the last.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|one| *one == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// The name for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::State => "state",
            Self::Committed => "txn/s",
            Self::Latency => "p99",
            Self::Aborts => "aborts",
            Self::Shards => "shards",
        }
    }
}

/// A cluster.
#[cfg(feature = "tcp")]
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ClusterView {
    /// Path of the cluster's description.
    pub title: String,
    /// Number of serving nodes, and of all nodes.
    pub serving: (usize, usize),
    pub epoch: Option<u32>,
    pub copies: Option<usize>,
    pub data: Option<&'static str>,
    /// The authority, in words.
    pub authority: String,
    /// Reason why the authority does not answer.
    pub authority_why: Option<String>,
    pub authority_is_well: bool,
    /// Commits per second, summed over nodes that answer; `None` without answers.
    pub committed: Option<f64>,
    /// Commits per second in the last minute, latest last; and seconds between two points.
    pub history: Vec<f64>,
    pub history_step_s: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// Aborts per second, by reason.
    pub aborts: BTreeMap<String, f64>,
    /// Shards given to other nodes, per second, and since the nodes started.
    pub moves: f64,
    pub moved: f64,
    pub compute: Vec<ComputeRow>,
    pub memory: Vec<MemoryRow>,
}

/// A compute node.
#[cfg(feature = "tcp")]
#[derive(Clone, PartialEq, Debug)]
pub struct ComputeRow {
    pub node: NodeName,
    pub state: String,
    pub mood: Mood,
    /// Reason why the node's metrics are missing.
    pub trouble: Option<String>,
    pub epoch: Option<u64>,
    pub committed: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub aborts: Option<f64>,
    pub locks: Option<f64>,
    /// Share of the requested locks owned by the node itself.
    pub own_locks: Option<f64>,
    pub shards: Option<u64>,
    pub moved: Option<u64>,
    pub processors: Option<f64>,
    pub resident: Option<u64>,
    pub lease_left_s: Option<f64>,
}

/// A memory node.
#[cfg(feature = "tcp")]
#[derive(Clone, PartialEq, Debug)]
pub struct MemoryRow {
    pub node: NodeName,
    pub state: String,
    pub mood: Mood,
    pub trouble: Option<String>,
    /// Allocated bytes for rows and indexes, and the limit.
    pub used: Option<(u64, u64)>,
    pub processors: Option<f64>,
    pub resident: Option<u64>,
}

#[cfg(feature = "tcp")]
impl ClusterView {
    /// Sorts the compute nodes: names ascending, figures descending, bad states first.
    pub fn sort(&mut self, by: SortBy, backwards: bool) {
        let down =
            |figure: Option<f64>| std::cmp::Reverse(figure.map_or(-1, |one| (one * 1e3) as i64));
        match by {
            SortBy::Name => self.compute.sort_by_key(|row| row.node),
            SortBy::State => self.compute.sort_by_key(|row| std::cmp::Reverse(row.mood)),
            SortBy::Committed => self.compute.sort_by_key(|row| down(row.committed)),
            SortBy::Latency => self.compute.sort_by_key(|row| down(row.p99_ms)),
            SortBy::Aborts => self.compute.sort_by_key(|row| down(row.aborts)),
            SortBy::Shards => self.compute.sort_by_key(|row| std::cmp::Reverse(row.shards)),
        }
        if backwards {
            self.compute.reverse();
        }
    }
}

/// A benchmark.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct BenchView {
    /// Path of the benchmark's socket.
    pub title: String,
    /// Benchmark and fabric; empty before the first line.
    pub what: String,
    pub phase: String,
    /// Reason for the end of the lines; `None` while the benchmark runs.
    pub ended: Option<String>,
    /// Whether seconds are simulated.
    pub is_virtual: bool,
    pub elapsed_s: f64,
    pub left_s: f64,
    /// Participle of the counted operation: committed, or released.
    pub counted: String,
    pub done: u64,
    pub per_s: f64,
    /// Rates of the last intervals, latest last; and seconds between two points.
    pub history: Vec<f64>,
    pub history_step_s: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub has_aborts: bool,
    pub aborts: BTreeMap<String, f64>,
    pub moved: u64,
    /// Hit rates, by cache.
    pub hits: BTreeMap<String, f64>,
}
