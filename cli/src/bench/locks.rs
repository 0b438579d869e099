//! `lotus bench locks`: load on a lock system alone, without transactions.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use lotus_benchmarks::config::Fabric;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::locks::{
    self, Fairness, Habits, Latencies, LockLoad, LockOutcome, LockTally, LongReads, TimeSum,
};
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::utilisation::NodeLoad;
use lotus_fabric::machines::Threads;
use lotus_fabric::shm::MAX_LANES;
use lotus_fabric::sim::{
    Config, Fault, Interleaving, MemoryFate, Profile, Scheduled, SimMachines, When, World,
};
use lotus_fabric::verbs::Capabilities;
use lotus_locks::local::Transfers;
use lotus_locks::systems::{Choice, Declock, DslrTimes, Kind, Release};
use lotus_locks::word::DeclockFields;
use lotus_locks::{Counts, Recovery};
use serde_json::json;

use super::{Failure, deploy};
use crate::args::{LockRunArgs, LocksArgs, SystemArgs};
use crate::show::outputs::Outputs;
use crate::show::watch::Watch;
use crate::show::{Verdict, screen};

/// The node numbered 0 has the locks.
pub(super) const MEMORY_NODES: usize = 1;

/// Runs the load and shows what came of it.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &LocksArgs) -> Result<Verdict, Failure> {
    check(args)?;
    let (load, run) = (load(args), &args.run);
    let outputs = Outputs::check(run.json.as_deref(), None)?;
    let outcome = on_machines(run, &load)?;
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    let mut text = Table::default();
    let clients = clients(run);
    text.line("lock", format!("{} on {}, {clients} clients", load.choice.kind, run.fabric.name()));
    summary(&mut text, &load, &outcome);
    details(&mut text, &load, &outcome);
    screen::show(&text.0, &[&outputs.json])?;
    Ok(verdict(&outcome))
}

/// What the audit of a run has found.
pub(super) fn verdict(outcome: &LockOutcome) -> Verdict {
    let is_sound = outcome.findings.as_ref().is_none_or(Vec::is_empty);
    if is_sound { Verdict::Sound } else { Verdict::Unsound }
}

/// Refuses flags that make no sense together.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that says which.
pub fn check(args: &LocksArgs) -> Result<(), Failure> {
    refuse(&args.run, &load(args))
}

/// Runs the load, with flags that [`check`] accepts.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn measure(args: &LocksArgs) -> Result<LockOutcome, Failure> {
    Ok(on_machines(&args.run, &load(args))?)
}

/// Refuses what makes no sense together.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that says which.
pub(super) fn refuse(run: &LockRunArgs, load: &LockLoad) -> Result<(), Failure> {
    let checked = load.check().and_then(|()| check_fabric(run, "locks alone", load.choice.kind));
    checked.map_err(Failure::Arguments)
}

fn load(args: &LocksArgs) -> LockLoad {
    let long_reads = LongReads {
        share: args.long_reads,
        time: Duration::from_micros(args.long_us),
        terms: args.long_terms,
    };
    let think = Duration::from_micros(args.think_us);
    LockLoad {
        habits: Habits { think, failing: args.failing, long_reads },
        count: args.count,
        zipf: args.zipf,
        read_ratio: args.read_ratio,
        update_ratio: args.update_ratio,
        section: args.critical_section,
        object_bytes: args.object_bytes,
        patience: args.patience_us.map(Duration::from_micros),
        ..plain(&args.system, &args.run)
    }
}

/// Clients that hold one lock for one verb of one word.
pub(super) fn plain(system: &SystemArgs, run: &LockRunArgs) -> LockLoad {
    let recovery = if system.as_published { Recovery::Paper } else { Recovery::Fenced };
    let release = if system.release_by_swap { Release::Swap } else { Release::Add };
    let times = DslrTimes {
        poll: Duration::from_micros(system.poll_us),
        term: Duration::from_micros(system.lease_us),
        again_most: Duration::from_micros(system.again_us),
    };
    let requests = if system.policy.is_some() { run.cns } else { clients(run) };
    let requests = requests.next_power_of_two() as u32;
    let room = requests.clamp(Declock::PUBLISHED_ENTRIES, DeclockFields::MAX_CAPACITY);
    LockLoad {
        choice: Choice {
            kind: system.lock,
            recovery,
            backs_off: system.backoff,
            release,
            times,
            threshold: system.threshold,
            entries: system.queue_entries.unwrap_or(room),
        },
        policy: system.policy,
        count: 1,
        zipf: 0.0,
        read_ratio: 0.0,
        update_ratio: 0.0,
        section: 1,
        object_bytes: 8,
        patience: None,
        habits: Habits::default(),
        loses: run.lose_ms.map(Duration::from_millis),
        cns: run.cns as u16,
        threads: run.threads as u16,
        coroutines: run.coroutines as u16,
        warmup: run.warmup.unwrap_or((run.secs / 10.0).min(1.0)),
        secs: run.secs,
        audit: !run.no_audit,
    }
}

pub(super) fn clients(run: &LockRunArgs) -> usize {
    run.cns * run.threads * run.coroutines
}

/// Refuses a fabric that cannot be had, or not for as many lanes, or that lacks what a lock system
/// needs; `what` is to run on it.
pub(super) fn check_fabric(args: &LockRunArgs, what: &str, kind: Kind) -> Result<(), String> {
    if (args.profile.is_some() || args.cn_cn_ns.is_some()) && args.fabric != Fabric::Sim {
        return Err("only the simulated fabric has a profile".to_owned());
    }
    if args.lose_ms.is_some() && args.fabric != Fabric::Sim {
        return Err("only simulated nodes are lost".to_owned());
    }
    let lanes = args.cns * args.threads;
    match args.fabric {
        Fabric::Shm if lanes > MAX_LANES => Err(format!(
            "{lanes} lanes are more than one process can have on shm: at most {MAX_LANES}"
        )),
        Fabric::Tcp if !cfg!(feature = "tcp") => Err(crate::args::common::lacks(Fabric::Tcp)),
        Fabric::Rdma => Err(format!("{what} run on local, shm, tcp and sim, not on rdma")),
        Fabric::Sim if kind.needs_wide_atomics() => {
            let profile = profile(args).map_err(|error| error.to_string())?;
            fits(kind, profile.has_wide_atomics())
        }
        _ => fits(kind, false),
    }
}

/// Refuses a lock system for which there are no atomics on 16 bytes.
fn fits(kind: Kind, wide_atomics: bool) -> Result<(), String> {
    let fabric = Capabilities { wide_atomics, ..Capabilities::default() };
    kind.fits(&fabric).map_err(|error| error.to_string())
}

/// Profile of the simulated cards.
fn profile(args: &LockRunArgs) -> Result<Profile, DeployError> {
    deploy::profile(args.profile.as_deref().unwrap_or("cx3-56g"))
}

pub(super) fn on_machines(args: &LockRunArgs, load: &LockLoad) -> Result<LockOutcome, BenchError> {
    let watch = Watch::start(args.cns * args.threads, "released");
    let (nodes, progress) = (load.nodes(), &watch.progress);
    let outcome = match args.fabric {
        Fabric::Local => locks::run(&Threads::new(nodes, args.seed), load, progress),
        Fabric::Shm => {
            return deploy::on_processes(nodes, 1, args.seed, progress, |machines, _| {
                Ok(locks::run(&machines, load, progress)?)
            });
        }
        Fabric::Sim => {
            let losses = load.lost_node().zip(load.loses).map(|(node, after)| Scheduled {
                when: When::At(locks::START + after),
                fault: Fault::Crash { node, memory: MemoryFate::Lost },
            });
            let machines = simulated(args, nodes, losses.into_iter().collect())?;
            locks::run(&machines, load, progress)
        }
        #[cfg(feature = "tcp")]
        Fabric::Tcp => locks::run(&deploy::tcp_machines(nodes, args.seed)?, load, progress),
        other => Err(DeployError::Refused(crate::args::common::lacks(other))),
    };
    Ok(outcome?)
}

/// Simulated machines, which meet these faults.
pub(super) fn simulated(
    args: &LockRunArgs,
    nodes: u16,
    schedule: Vec<Scheduled>,
) -> Result<SimMachines, DeployError> {
    let mut profile = profile(args)?;
    if let Some(ns) = args.cn_cn_ns {
        profile = profile.with_cn_cn_delay(Duration::from_nanos(ns));
    }
    let interleaving = Interleaving::PerBatch;
    let config = Config { interleaving, schedule, ..Config::new(args.seed, nodes, profile) };
    let world = World::new(config).map_err(|error| deploy::refused(&error))?;
    Ok(SimMachines::new(world))
}

pub(super) fn rate(count: u64, secs: f64) -> u64 {
    (count as f64 / secs) as u64
}

pub(super) fn per(count: u64, operations: u64) -> f64 {
    count as f64 / operations.max(1) as f64
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// Verbs of an acquisition beyond the first.
fn retries(counts: &Counts) -> f64 {
    per(counts.retries, counts.acquired)
}

/// Mean and quantiles of latencies for a person, in microseconds.
pub(super) fn quantiles(histogram: &Latencies) -> String {
    let at = |quantile| micros(histogram.value_at_quantile(quantile));
    let mean = histogram.mean() / 1000.0;
    format!("{mean:.1} mean, {:.1} p50, {:.1} p99, {:.1} p99.9", at(0.5), at(0.99), at(0.999))
}

/// A result for a person: lines with a name and a value.
#[derive(Default)]
pub(super) struct Table(pub(super) String);

impl Table {
    pub(super) fn line(&mut self, name: &str, value: impl Display) {
        _ = writeln!(self.0, "{name:<22}{value}");
    }
}

/// Rate and latencies.
fn summary(text: &mut Table, load: &LockLoad, outcome: &LockOutcome) {
    let tally = &outcome.tally;
    text.line("operations a second", grouped(rate(tally.operations, load.secs)));
    text.line("acquire, µs", quantiles(&tally.acquire_ns));
    text.line("operation, µs", quantiles(&tally.operation_ns));
}

/// What operations of a lock system cost, and how it treats them; what the audit has found.
pub(super) fn details(text: &mut Table, load: &LockLoad, outcome: &LockOutcome) {
    let tally = &outcome.tally;
    let mean = |times: &TimeSum| times.mean_ns() / 1000.0;
    let (reader, writer) = (mean(&tally.reader_acquire), mean(&tally.writer_acquire));
    let release = mean(&tally.released);
    text.line(
        "means, µs",
        format!(
            "{reader:.1} of readers, {writer:.1} of writers to the lock, {release:.1} to release it"
        ),
    );
    if !tally.hottest_ns.is_empty() {
        text.line("hottest lock, µs", quantiles(&tally.hottest_ns));
    }
    let verbs = &tally.verbs;
    let of = |count| per(count, tally.operations);
    text.line(
        "an operation",
        format!(
            "{:.2} READ, {:.2} WRITE, {:.2} CAS, {:.2} FAA, {:.3} messages",
            of(verbs.reads),
            of(verbs.writes),
            of(verbs.compare_and_swaps),
            of(verbs.fetch_and_adds),
            of(verbs.messages)
        ),
    );
    if let Some(policy) = load.policy {
        let Transfers { local, remote } = tally.transfers;
        let (here, there) = (grouped(local), grouped(remote));
        let value = format!("{policy}: {here} within nodes, {there} from the memory node");
        text.line("transfers", value);
    }
    text.line("retries", format!("{:.3} an acquisition", retries(&tally.counts)));
    let waited = 100.0 * of(tally.counts.waited);
    text.line("waited", format!("{waited:.1} %, {} given up", grouped(tally.refused)));
    let refetches = per(tally.counts.refetches, tally.counts.acquired);
    text.line("refetches", format!("{refetches:.4} a release"));
    let Counts { resets, reset_ns, ghosts, .. } = tally.counts;
    let reset = micros(reset_ns) / resets.max(1) as f64;
    text.line("resets, ghosts", format!("{resets} of {reset:.1} µs, {}", grouped(ghosts)));
    if load.audit {
        let Fairness { longest_run, largest_bypass } = tally.fairness;
        let (run, bypass) = (grouped(longest_run), grouped(largest_bypass));
        text.line("at most", format!("{run} writers in a row, {bypass} later requests first"));
    }
    if let Some(report) = &outcome.utilisation {
        text.line("busiest", busiest(report));
        let memory = nodes(outcome).into_iter().filter(NodeLoad::is_memory);
        memory.for_each(|node| text.line("served", node));
    }
    match &outcome.findings {
        None => text.line("audit", "not made"),
        Some(findings) if findings.is_empty() => {
            text.line("audit", "passed: nobody held two, no update lost, all locks free");
        }
        Some(findings) => findings.iter().for_each(|finding| text.line("AUDIT FAILED", finding)),
    }
}

/// What each node's NIC did for others, warm-up included; nothing unless that was simulated.
pub fn nodes(outcome: &LockOutcome) -> Vec<NodeLoad> {
    outcome.utilisation.iter().flat_map(|used| NodeLoad::all(used, MEMORY_NODES)).collect()
}

/// The resource that bounds a simulated run, and its share.
pub fn busiest(report: &lotus_fabric::sim::Report) -> String {
    report.bound().map_or_else(
        || "nothing".to_owned(),
        |found| format!("{:?}: {:.0} %", found.resource, 100.0 * found.busy),
    )
}

/// Mean and quantiles of latencies, in microseconds.
pub(super) fn latency(histogram: &Latencies) -> serde_json::Value {
    let at = |quantile| micros(histogram.value_at_quantile(quantile));
    json!({
        "mean_us": histogram.mean() / 1000.0,
        "p50_us": at(0.5),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
    })
}

/// Verbs and messages of an operation.
fn per_operation(tally: &LockTally) -> serde_json::Value {
    let (verbs, of) = (&tally.verbs, |count| per(count, tally.operations));
    json!({
        "read": of(verbs.reads),
        "write": of(verbs.writes),
        "compare_and_swap": of(verbs.compare_and_swaps),
        "fetch_and_add": of(verbs.fetch_and_adds),
        "messages": of(verbs.messages),
    })
}

/// Latency of the most popular lock, with its distribution: shares of its requests, and the time
/// within which they were granted.
fn hottest(histogram: &Latencies) -> serde_json::Value {
    if histogram.is_empty() {
        return serde_json::Value::Null;
    }
    let points = locks::distribution(histogram).into_iter();
    let points = points.map(|(share, ns)| json!({ "share": share, "us": micros(ns) }));
    json!({
        "operations": histogram.len(),
        "acquire": latency(histogram),
        "acquire_cdf": points.collect::<Vec<_>>(),
    })
}

fn as_json(args: &LocksArgs, load: &LockLoad, outcome: &LockOutcome) -> serde_json::Value {
    let mut json = details_as_json(&args.system, &args.run, load, outcome);
    let own = json!({
        "locks": load.count,
        "read_ratio": load.read_ratio,
        "update_ratio": load.update_ratio,
        "critical_section": load.section,
        "failed": outcome.tally.failed,
    });
    extend(&mut json, own);
    json
}

/// Adds the fields of one JSON object to another one.
pub(super) fn extend(json: &mut serde_json::Value, with: serde_json::Value) {
    if let (Some(json), serde_json::Value::Object(with)) = (json.as_object_mut(), with) {
        json.extend(with);
    }
}

/// What every load on locks reports.
pub(super) fn details_as_json(
    system: &SystemArgs,
    run: &LockRunArgs,
    load: &LockLoad,
    outcome: &LockOutcome,
) -> serde_json::Value {
    let LockOutcome { tally, findings, .. } = outcome;
    let (verbs, counts) = (&tally.verbs, &tally.counts);
    let fairness = load.audit.then_some(tally.fairness);
    json!({
        "lock": load.choice.kind.name(),
        "fabric": run.fabric.name(),
        "as_published": system.as_published,
        "zipf": load.zipf,
        "object_bytes": load.object_bytes,
        "clients": clients(run),
        "secs": load.secs,
        "operations": tally.operations,
        "operations_per_s": tally.operations as f64 / load.secs,
        "given_up": tally.refused,
        "acquire": latency(&tally.acquire_ns),
        "operation": latency(&tally.operation_ns),
        "readers_acquire_us": tally.reader_acquire.mean_ns() / 1000.0,
        "writers_acquire_us": tally.writer_acquire.mean_ns() / 1000.0,
        "release_us": tally.released.mean_ns() / 1000.0,
        "hottest": hottest(&tally.hottest_ns),
        "reads": verbs.reads,
        "writes": verbs.writes,
        "compare_and_swaps": verbs.compare_and_swaps,
        "fetch_and_adds": verbs.fetch_and_adds,
        "messages": verbs.messages,
        "per_operation": per_operation(tally),
        "policy": load.policy.map(|policy| policy.to_string()),
        "local_transfers": tally.transfers.local,
        "remote_transfers": tally.transfers.remote,
        "acquired": counts.acquired,
        "retries": counts.retries,
        "retries_per_acquisition": retries(counts),
        "waited": counts.waited,
        "refetches": counts.refetches,
        "resets": counts.resets,
        "reset_us": micros(counts.reset_ns) / counts.resets.max(1) as f64,
        "ghosts": counts.ghosts,
        "longest_writer_run": fairness.map(|fairness| fairness.longest_run),
        "largest_bypass": fairness.map(|fairness| fairness.largest_bypass),
        "nodes": nodes(outcome),
        "audit": findings,
    })
}
