//! Report of a benchmark, as JSON and as a table for display.
//!
//! [`Report`] is the JSON, field by field; [`Report::table`] shows the same data with units.
//! Latencies are microseconds, rates per second.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Serialize, Serializer};

use super::origin::Origin;
use super::spread::{Bucket, buckets};
use crate::contract::audit::Audit;
use crate::contract::config::{ClusterConfig, LoadConfig};
use crate::contract::deployment::{
    Caches, Hits, Memory, MemoryNodesUse, Ownership, Replay, Traffic,
};
use crate::contract::engine::AbortReason;
use crate::contract::stats::{Counts, Timeline};
use crate::contract::workload::Rate;
use crate::drive::harness::{Options, Outcome, Unanswered};
use crate::judge::utilisation::{Busy, Simulation};

/// The result of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Program, machine and time; absent if the caller does not provide them.
    #[serde(flatten)]
    pub origin: Option<Origin>,
    /// The workload's name.
    pub workload: &'static str,
    /// The fabric's name.
    pub fabric: &'static str,
    /// Configuration, complete enough to repeat the run.
    pub config: RunConfig,
    /// Wall time for creating and filling the tables, in seconds; absent if they existed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_s: Option<f64>,
    /// Time from the end of the warm-up to the end of the last transaction, in seconds.
    pub elapsed_s: f64,
    /// Figures of all types of transaction together.
    #[serde(flatten)]
    pub total: Figures,
    /// Latencies of all types of transaction together, in buckets.
    pub histogram: Vec<Bucket>,
    /// Commits, warm-up included: the transactions to which the counts of verbs and nodes refer.
    pub all_committed: u64,
    /// Well-known rates of the workload; empty for most workloads.
    #[serde(flatten, serialize_with = "rates")]
    pub rates: Vec<Rate>,
    /// Figures of each type of transaction.
    pub by_transaction: BTreeMap<&'static str, Figures>,
    /// Verbs and messages per committed transaction, aborted attempts included.
    pub verbs_per_txn: VerbsPerTxn,
    /// Hit rates of the compute nodes' caches; absent if there were no look-ups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caches: Option<CacheFigures>,
    /// Locks taken and shards moved; absent where locks have no owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ownership: Option<OwnershipFigures>,
    /// Throughput over time; absent unless requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<TimelineFigures>,
    /// Memory that the data takes; absent if it cannot be seen from this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Processor use of the memory nodes; absent unless they are processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_nodes: Option<MemoryNodesUse>,
    /// Checks of the data; absent if there was no audit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<Audit>,
    /// Rates of the fabric alone; absent unless measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<Floor>,
    /// Utilisation; absent unless the cluster was simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulation: Option<Simulation>,
    /// Calls that ended without a result; absent unless the cluster was running already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<Unanswered>,
    /// Sentences about missing parts of the report, with reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// Configuration, complete enough to repeat a run.
#[derive(Clone, Debug, Serialize)]
pub struct RunConfig {
    /// Configuration of the cluster.
    #[serde(flatten)]
    pub cluster: ClusterConfig,
    /// Configuration of the clients' load.
    #[serde(flatten)]
    pub load: LoadConfig,
    /// Parameters of the workload.
    #[serde(flatten)]
    pub workload: serde_json::Value,
}

/// Counts, rates and latencies of some transactions.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Number of committed transactions.
    pub committed: u64,
    /// Committed transactions a second.
    pub throughput_tps: f64,
    /// Attempts that aborted, by reason; reasons without attempts are left out.
    pub aborted: BTreeMap<&'static str, u64>,
    /// Aborted attempts among all attempts, in 0..=1.
    pub abort_rate: f64,
    /// Number of transactions with unknown outcome.
    pub unknown: u64,
    /// Latency from intended start to commit, retries included.
    pub latency_us: Latency,
}

/// Latency percentiles, in microseconds, to one per cent.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half of the transactions took no longer.
    pub p50: f64,
    /// 90 % took no longer.
    pub p90: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
    /// Longest latency.
    pub max: f64,
}

/// Verbs and messages per committed transaction.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct VerbsPerTxn {
    /// READ verbs.
    pub read: f64,
    /// WRITE verbs.
    pub write: f64,
    /// Compare-and-swap verbs.
    pub compare_and_swap: f64,
    /// Fetch-and-add verbs.
    pub fetch_and_add: f64,
    /// Doorbells.
    pub doorbells: f64,
    /// Messages.
    pub messages: f64,
}

/// Hit rates of the compute nodes' caches, warm-up included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheFigures {
    /// Version table caches: a hit saves the READ of a CVT.
    pub version_tables: HitRate,
    /// Address caches, asked after a miss in the version table cache: a hit saves the READ of a
    /// bucket.
    pub addresses: HitRate,
}

/// Locks taken and shards moved (LOTUS §4.3), warm-up included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OwnershipFigures {
    /// Share of locks owned by the transaction's own node, in 0..=1.
    pub local_locks: f64,
    /// Hand-overs, which move a batch of shards from one node to another.
    pub hand_overs: u64,
    /// Shards moved by hand-overs.
    pub shards_moved: u64,
    /// Attempts asked by a hand-over to give up their locks.
    pub stragglers: u64,
    /// Mean time per hand-over in which no owner grants the moving shards' locks.
    pub interruption_us: f64,
    /// The longest interruption by a single hand-over.
    pub interruption_us_max: f64,
    /// A shard that takes most of its owner's time and would take as much on any other node, so
    /// that only spreading its rows over more shards can help. Absent if no such shard exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub too_hot: Option<u16>,
}

/// Throughput in equal steps of time, from the end of the warm-up on.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineFigures {
    /// Length of a step.
    pub step_ms: f64,
    /// Transactions a second in each whole step.
    pub tps: Vec<f64>,
}

/// Look-ups and hits of one kind of cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct HitRate {
    /// Number of look-ups.
    pub lookups: u64,
    /// Number of look-ups that found an entry.
    pub hits: u64,
    /// Ratio of hits to look-ups, in 0..=1; 0 without look-ups.
    pub hit_rate: f64,
}

/// Rates of the fabric without a protocol, compared with the engine.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Floor {
    /// Transactions' verb lists replayed a second.
    pub tps: f64,
    /// Time that the protocol adds to a transaction, in nanoseconds of one coordinator.
    pub protocol_ns: f64,
    /// Throughput of the engine divided by `tps`. A faster fabric lowers the ratio.
    pub ratio: f64,
    /// One-sided verbs replayed a second.
    pub verbs_per_s: f64,
}

impl Report {
    /// Derives the report from `outcome`.
    pub fn new(options: &Options, outcome: &Outcome) -> Self {
        let counts = outcome.tally.total();
        let total = Figures::new(&counts, outcome.elapsed_s);
        let coordinators = options.cluster.cns * options.cluster.threads;
        let by_transaction = outcome.transactions.iter().zip(&outcome.tally.by_transaction);
        let by_transaction =
            by_transaction.map(|(name, counts)| (*name, Figures::new(counts, outcome.elapsed_s)));
        Self {
            origin: None,
            workload: outcome.workload,
            fabric: options.cluster.fabric.name(),
            config: RunConfig {
                cluster: options.cluster.clone(),
                load: options.load.clone(),
                workload: outcome.settings.clone(),
            },
            load_s: outcome.load_s,
            elapsed_s: outcome.elapsed_s,
            histogram: buckets(&counts.latency_ns),
            all_committed: outcome.tally.all_committed,
            rates: outcome.rates.clone(),
            by_transaction: by_transaction.collect(),
            verbs_per_txn: VerbsPerTxn::new(&outcome.traffic, outcome.tally.all_committed),
            caches: CacheFigures::new(&outcome.caches),
            ownership: OwnershipFigures::new(&outcome.ownership),
            timeline: TimelineFigures::new(outcome.tally.timeline.as_ref(), options.load.secs),
            memory: outcome.memory.clone(),
            memory_nodes: outcome.memory_nodes,
            audit: outcome.audit.clone(),
            floor: outcome
                .floor
                .map(|replay| Floor::new(&replay, total.throughput_tps, coordinators)),
            simulation: outcome.simulation.clone(),
            unanswered: outcome.unanswered,
            remarks: outcome.remarks.clone(),
            total,
        }
    }

    /// Formats the report for display; ends with a line break.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (what, figures) in self.summary() {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "{what:<14}{figures}");
        }
        let _ = writeln!(text, "\n{}", self.transaction_table());
        if let Some(timeline) = &self.timeline {
            let _ = writeln!(text, "\n{}", timeline.table());
        }
        if let Some(audit) = &self.audit {
            text.push('\n');
            for check in &audit.checks {
                let _ = writeln!(text, "{:<7} {}: {}", check.mark(), check.name, check.detail);
            }
        }
        text
    }

    /// Labels and values of all parts of the report except transactions, timeline and audit.
    fn summary(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![(self.workload, self.setting())];
        lines.extend(self.load_s.map(|load_s| ("loading", format!("{load_s:.2} s"))));
        lines.push(("throughput", self.throughput()));
        // Directly after the throughput.
        let rate =
            |rate: &Rate| (rate.name, format!("{} {}", grouped(rate.value as u64), rate.unit));
        lines.extend(self.rates.iter().map(rate));
        lines.extend(self.unanswered.map(|calls| ("unanswered", calls.line())));
        lines.push(("aborts", self.total.aborts()));
        let bound = self.config.cluster.locks.why_not_judged();
        lines.extend(bound.map(|why| ("locks", why.to_owned())));
        lines.extend(self.ownership.iter().map(|ownership| ("locks", ownership.line())));
        lines.extend(self.caches.iter().map(|caches| ("caches", caches.line())));
        lines.push(("per txn", self.verbs_per_txn.line()));
        lines.extend(self.memory.iter().map(|memory| ("memory", memory.line())));
        if let Some(MemoryNodesUse { processes, processor_s }) = self.memory_nodes {
            let busy = format!("{processes} processes, busy for {processor_s:.6} s altogether");
            lines.push(("memory nodes", busy));
        }
        lines.extend(self.floor.map(|floor| ("floor", floor.line())));
        if let Some(simulation) = &self.simulation {
            lines.extend(simulated(simulation));
        }
        lines.extend(self.remarks.iter().map(|remark| ("missing", remark.clone())));
        lines
    }

    fn setting(&self) -> String {
        let ClusterConfig { cns, threads, coroutines, mns, replicas, .. } = &self.config.cluster;
        let (fabric, isolation) = (self.fabric, self.config.load.isolation.name());
        format!(
            "{fabric} fabric, {cns} CNs x {threads} coordinators x {coroutines} coroutines, \
             {mns} MNs, {replicas} replicas, {isolation}"
        )
    }

    fn throughput(&self) -> String {
        let Figures { committed, throughput_tps, .. } = self.total;
        let (committed, tps) = (grouped(committed), grouped(throughput_tps as u64));
        format!("{tps} txn/s ({committed} committed in {:.2} s)", self.elapsed_s)
    }

    fn transaction_table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header([
            "transaction",
            "committed",
            "txn/s",
            "aborts %",
            "p50 us",
            "p90 us",
            "p99 us",
            "p99.9 us",
            "max us",
        ]);
        for (name, figures) in &self.by_transaction {
            table.add_row(figures.row(name));
        }
        if self.by_transaction.len() > 1 {
            table.add_row(self.total.row("all"));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

impl Memory {
    fn line(&self) -> String {
        let Self { bytes_per_record_and_replica: bytes, resident_bytes, .. } = self;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut line = format!(
            "{bytes:.1} bytes per record and replica, {:.1} MiB resident",
            mib(*resident_bytes)
        );
        let most = |nodes: &[u64]| nodes.iter().copied().max().map(mib);
        if let Some(most_now) = most(&self.bytes_per_node) {
            let _ = write!(line, ", at most {most_now:.1} MiB on a memory node");
            if let Some(loaded) = most(&self.loaded_bytes_per_node) {
                let _ = write!(line, " ({loaded:.1} when loaded)");
            }
        }
        line
    }
}

impl Unanswered {
    fn line(&self) -> String {
        let Self { calls, committed, unknown, without_id } = *self;
        let without = match without_id {
            0 => String::new(),
            some => format!("; {} calls had no id", grouped(some)),
        };
        let (calls, not) = (grouped(calls), grouped(calls - committed - unknown));
        format!("{calls} calls: {committed} committed, {not} did not, {unknown} unknown{without}")
    }
}

impl Figures {
    fn new(counts: &Counts, elapsed_s: f64) -> Self {
        let aborted = AbortReason::ALL.into_iter().zip(counts.aborted);
        let percentile = |quantile| counts.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            committed: counts.committed,
            throughput_tps: if elapsed_s > 0.0 { counts.committed as f64 / elapsed_s } else { 0.0 },
            aborted: aborted
                .filter(|(_, count)| *count > 0)
                .map(|(reason, count)| (reason.name(), count))
                .collect(),
            abort_rate: counts.abort_rate(),
            unknown: counts.unknown,
            latency_us: Latency {
                mean: counts.latency_ns.mean() / 1e3,
                p50: percentile(0.5),
                p90: percentile(0.9),
                p99: percentile(0.99),
                p999: percentile(0.999),
                max: counts.latency_ns.max() as f64 / 1e3,
            },
        }
    }

    fn aborts(&self) -> String {
        let mut text = format!("{:.2} % of attempts", self.abort_rate * 100.0);
        let mut separator = " (";
        for (reason, count) in &self.aborted {
            let _ = write!(text, "{separator}{reason} {}", grouped(*count));
            separator = ", ";
        }
        if !self.aborted.is_empty() {
            text.push(')');
        }
        if self.unknown > 0 {
            let _ = write!(text, ", {} outcomes unknown", grouped(self.unknown));
        }
        text
    }

    fn row(&self, name: &str) -> [String; 9] {
        let Latency { p50, p90, p99, p999, max, .. } = self.latency_us;
        let [p50, p90, p99, p999, max] = [p50, p90, p99, p999, max].map(|us| format!("{us:.1}"));
        let abort_percent = format!("{:.2}", self.abort_rate * 100.0);
        let throughput = grouped(self.throughput_tps as u64);
        let committed = grouped(self.committed);
        [name.to_owned(), committed, throughput, abort_percent, p50, p90, p99, p999, max]
    }
}

impl VerbsPerTxn {
    fn new(traffic: &Traffic, committed: u64) -> Self {
        let per_txn = |count: u64| count as f64 / committed.max(1) as f64;
        Self {
            read: per_txn(traffic.reads),
            write: per_txn(traffic.writes),
            compare_and_swap: per_txn(traffic.compare_and_swaps),
            fetch_and_add: per_txn(traffic.fetch_and_adds),
            doorbells: per_txn(traffic.doorbells),
            messages: per_txn(traffic.messages),
        }
    }

    fn line(&self) -> String {
        let Self { read, write, compare_and_swap, fetch_and_add, doorbells, messages } = self;
        format!(
            "{read:.2} READ, {write:.2} WRITE, {compare_and_swap:.2} CAS, {fetch_and_add:.2} FAA, \
             {doorbells:.2} doorbells, {messages:.2} messages"
        )
    }
}

impl OwnershipFigures {
    fn new(ownership: &Ownership) -> Option<Self> {
        let Ownership { locks, hand_overs, shards, stragglers, .. } = *ownership;
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        (locks.lookups > 0).then(|| Self {
            local_locks: locks.hits as f64 / locks.lookups as f64,
            hand_overs,
            shards_moved: shards,
            stragglers,
            interruption_us: micros(ownership.interrupted) / hand_overs.max(1) as f64,
            interruption_us_max: micros(ownership.longest),
            too_hot: ownership.too_hot,
        })
    }

    fn line(&self) -> String {
        let mut local = format!("{:.1} % taken locally", self.local_locks * 100.0);
        if let Some(shard) = self.too_hot {
            let _ = write!(local, "; shard {shard} is too hot for any node");
        }
        if self.hand_overs == 0 {
            return local;
        }
        let Self { hand_overs, shards_moved, interruption_us, interruption_us_max, .. } = self;
        format!(
            "{local}; {shards_moved} shards moved in {hand_overs} hand-overs, interrupted for \
             {interruption_us:.0} us on average, {interruption_us_max:.0} us at most"
        )
    }
}

impl TimelineFigures {
    fn new(timeline: Option<&Timeline>, secs: f64) -> Option<Self> {
        let Timeline { step_ns, commits } = timeline?;
        let step_s = *step_ns as f64 / 1e9;
        // Steps after the last client has stopped are left out: they would look like a slump.
        let whole = (secs / step_s + 1e-6) as usize;
        let tps = commits.iter().take(whole).map(|commits| *commits as f64 / step_s).collect();
        Some(Self { step_ms: step_s * 1e3, tps })
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header(["ms", "txn/s"]);
        for (step, tps) in self.tps.iter().enumerate() {
            let at_ms = format!("{:.0}", step as f64 * self.step_ms);
            table.add_row([at_ms, grouped(*tps as u64)]);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

impl CacheFigures {
    fn new(caches: &Caches) -> Option<Self> {
        let asked = caches.version_tables.lookups + caches.addresses.lookups > 0;
        let rate = |Hits { lookups, hits }| {
            let hit_rate = hits as f64 / lookups.max(1) as f64;
            HitRate { lookups, hits, hit_rate }
        };
        let (version_tables, addresses) = (rate(caches.version_tables), rate(caches.addresses));
        asked.then_some(Self { version_tables, addresses })
    }

    fn line(&self) -> String {
        let part = |what, HitRate { lookups, hit_rate, .. }: HitRate| match lookups {
            0 => format!("{what} not asked"),
            _ => format!("{what} {:.1} % of {} hit", hit_rate * 100.0, grouped(lookups)),
        };
        let (tables, addresses) =
            (part("version tables", self.version_tables), part("addresses", self.addresses));
        format!("{tables}; {addresses}")
    }
}

impl Floor {
    /// Compares the replay with an engine that `coordinators` coordinators ran.
    fn new(&Replay { tps, verbs_per_s }: &Replay, engine_tps: f64, coordinators: usize) -> Self {
        if tps <= 0.0 || engine_tps <= 0.0 {
            return Self { tps, protocol_ns: 0.0, ratio: 0.0, verbs_per_s };
        }
        let ns_at = |tps: f64| coordinators as f64 * 1e9 / tps;
        let protocol_ns = ns_at(engine_tps) - ns_at(tps);
        Self { tps, protocol_ns, ratio: engine_tps / tps, verbs_per_s }
    }

    fn line(self) -> String {
        let (tps, verbs) = (grouped(self.tps as u64), grouped(self.verbs_per_s as u64));
        let (ns, percent) = (self.protocol_ns, self.ratio * 100.0);
        format!(
            "{tps} txn/s, {verbs} verbs/s; the protocol adds {ns:.0} ns a txn; the engine reaches \
             {percent:.1} %"
        )
    }
}

/// Serializes each rate as a field named after the rate.
fn rates<S: Serializer>(rates: &[Rate], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(rates.iter().map(|rate| (rate.name, rate.value)))
}

/// Summary lines of a simulation.
fn simulated(simulation: &Simulation) -> Vec<(&'static str, String)> {
    let Simulation { wall_s, verbs_per_wall_s, bottleneck, kinds, nodes, .. } = simulation;
    let verbs = grouped(*verbs_per_wall_s as u64);
    let mut lines = vec![("simulated", format!("in {wall_s:.2} s, {verbs} verbs a second"))];
    if let Some(Busy { resource, busy }) = bottleneck {
        lines.push(("bottleneck", format!("{resource}, busy {:.1} % of the time", busy * 100.0)));
    }
    lines.extend(kinds.iter().map(|(kind, mean, most)| {
        let [mean, most] = [mean, most].map(|part| part * 100.0);
        ("busy", format!("{kind}: {mean:.1} % on average, {most:.1} % at most"))
    }));
    let memory = nodes.iter().filter(|node| node.is_memory());
    lines.extend(memory.map(|node| ("served", node.to_string())));
    lines
}

/// Formats a number with commas between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1234567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn hit_rates_are_told_where_somebody_asked() {
        assert!(CacheFigures::new(&Caches::default()).is_none());
        let caches = Caches { addresses: Hits { lookups: 2000, hits: 1500 }, ..Caches::default() };
        let figures = CacheFigures::new(&caches).expect("addresses were asked for");
        assert_eq!((figures.version_tables.hit_rate, figures.addresses.hit_rate), (0.0, 0.75));
        assert_eq!(figures.line(), "version tables not asked; addresses 75.0 % of 2,000 hit");
    }

    #[test]
    fn what_the_protocol_adds_is_told_in_time_of_one_coordinator() {
        let replay = Replay { tps: 1e6, verbs_per_s: 2e7 };
        let floor = Floor::new(&replay, 5e5, 2);
        assert_eq!((floor.protocol_ns, floor.ratio), (2_000.0, 0.5));
        let expected = "1,000,000 txn/s, 20,000,000 verbs/s; the protocol adds 2000 ns a txn; \
                        the engine reaches 50.0 %";
        assert_eq!(floor.line(), expected);
        assert_eq!(Floor::new(&replay, 0.0, 2).protocol_ns, 0.0);
    }

    #[test]
    fn nothing_measured_gives_zeroes() {
        let figures = Figures::new(&Counts::default(), 0.0);
        assert_eq!((figures.throughput_tps, figures.abort_rate), (0.0, 0.0));
        assert_eq!((figures.latency_us.p50, figures.latency_us.max), (0.0, 0.0));
    }
}
