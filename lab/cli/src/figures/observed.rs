//! Fields of a benchmark's JSON report that figures show: from this run, or from the file of an
//! earlier run.

use std::collections::BTreeMap;

use lotus_benchmarks::audit::AuditOutcome;
use lotus_benchmarks::report::TimelineFigures;
use serde::Deserialize;
use serde_json::Value;

/// The part of a report that figures need; see [`lotus_benchmarks::report::Report`].
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Observed {
    pub throughput_tps: f64,
    pub abort_rate: f64,
    pub latency_us: Percentiles,
    /// Commits, warm-up included.
    pub all_committed: u64,
    verbs_per_txn: Verbs,
    caches: Option<Caches>,
    pub ownership: Option<Ownership>,
    #[serde(default)]
    pub by_transaction: BTreeMap<String, ByType>,
    timeline: Option<Timeline>,
    audit: Option<Audit>,
    simulation: Option<Simulation>,
    #[serde(default)]
    memory: NodeBytes,
    config: Shape,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Percentiles {
    pub p50: f64,
    pub p99: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Verbs {
    read: f64,
    write: f64,
    compare_and_swap: f64,
    fetch_and_add: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Caches {
    version_tables: HitRate,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct HitRate {
    lookups: u64,
    hit_rate: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Ownership {
    pub local_locks: f64,
    pub shards_moved: u64,
    pub interruption_us: f64,
    pub interruption_us_max: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct ByType {
    pub abort_rate: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Timeline {
    step_ms: f64,
    tps: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct Audit {
    outcome: AuditOutcome,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct NodeBytes {
    #[serde(default)]
    bytes_per_node: Vec<u64>,
    #[serde(default)]
    loaded_bytes_per_node: Vec<u64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Simulation {
    bottleneck: Option<Busy>,
    #[serde(default)]
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Deserialize)]
struct Busy {
    resource: String,
    busy: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Node {
    kind: String,
    reads: u64,
    writes: u64,
    compare_and_swaps: u64,
    fetch_and_adds: u64,
}

impl Node {
    const fn verbs(&self) -> u64 {
        self.reads + self.writes + self.compare_and_swaps + self.fetch_and_adds
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Shape {
    cns: usize,
    threads: usize,
    coroutines: usize,
    #[serde(default)]
    secs: f64,
    #[serde(default)]
    warmup_secs: f64,
    /// Interval of a hotspot's jumps, in seconds.
    jump_s: Option<f64>,
}

impl Observed {
    /// # Errors
    /// A parser error, if the value is not a report.
    pub(super) fn of(report: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(report)
    }

    /// Transactions in flight on the whole cluster.
    pub(super) fn concurrency(&self) -> usize {
        let Shape { cns, threads, coroutines, .. } = self.config;
        cns * threads * coroutines
    }

    /// Bytes in use on the fullest memory node: after loading, and at the end; 0 if unknown.
    pub(super) fn memory_bytes(&self) -> [f64; 2] {
        let NodeBytes { loaded_bytes_per_node, bytes_per_node } = &self.memory;
        let most = |of: &[u64]| of.iter().copied().max().unwrap_or(0) as f64;
        [most(loaded_bytes_per_node), most(bytes_per_node)]
    }

    /// Duration of the run, warm-up included, in seconds.
    pub(super) fn secs(&self) -> f64 {
        self.config.secs + self.config.warmup_secs
    }

    /// Verbs per committed transaction.
    pub(super) fn verbs(&self) -> f64 {
        let Verbs { read, write, compare_and_swap, fetch_and_add } = self.verbs_per_txn;
        read + write + compare_and_swap + fetch_and_add
    }

    /// Share of version tables found in a cache; `None` without lookups.
    pub(super) fn table_hits(&self) -> Option<f64> {
        let tables = self.caches?.version_tables;
        (tables.lookups > 0).then_some(tables.hit_rate)
    }

    /// Whether no check of the audit failed. A bound without locks leaves unjudged data.
    pub(super) fn is_sound(&self) -> bool {
        self.audit.is_none_or(|audit| audit.outcome != AuditOutcome::Failed)
    }

    /// The busiest resource, and its share of the time.
    pub(super) fn busiest(&self) -> String {
        let busy = self.simulation.as_ref().and_then(|simulated| simulated.bottleneck.as_ref());
        busy.map_or_else(String::new, |busy| {
            format!("{} {:.0} %", busy.resource, busy.busy * 100.0)
        })
    }

    /// Compare-and-swaps, and all verbs, served for each committed transaction by the memory node
    /// with the most of both.
    pub(super) fn busiest_memory_node(&self) -> Option<[f64; 2]> {
        let nodes = &self.simulation.as_ref()?.nodes;
        let memory = nodes.iter().filter(|node| node.kind == "memory");
        let node = memory.max_by_key(|node| (node.compare_and_swaps, node.verbs()))?;
        let each = |count: u64| count as f64 / self.all_committed.max(1) as f64;
        Some([each(node.compare_and_swaps), each(node.verbs())])
    }

    /// Timeline of a benchmark with a hotspot, and the interval of its jumps in seconds.
    pub(super) fn jumping(&self) -> Option<(TimelineFigures, f64)> {
        let every_s = self.config.jump_s.filter(|s| *s > 0.0)?;
        let Timeline { step_ms, tps } = self.timeline.as_ref()?;
        Some((TimelineFigures { step_ms: *step_ms, tps: tps.clone() }, every_s))
    }
}
