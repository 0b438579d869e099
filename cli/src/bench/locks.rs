//! `lotus bench locks`: load on a lock system alone, without transactions.

use std::fmt::Write as _;
use std::time::Duration;

use lotus_benchmarks::config::Fabric;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::locks::{
    self, Fairness, Habits, Latencies, LockLoad, LockOutcome, LockTally, LongReads,
};
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::utilisation::NodeLoad;
use lotus_fabric::machines::Threads;
use lotus_fabric::shm::MAX_LANES;
use lotus_fabric::sim::{Config, Interleaving, SimMachines, World};
use lotus_locks::local::Transfers;
use lotus_locks::systems::{Choice, Declock, DslrTimes, Release};
use lotus_locks::word::DeclockFields;
use lotus_locks::{Counts, Recovery};
use serde_json::json;

use super::{Failure, deploy};
use crate::args::LocksArgs;
use crate::show::outputs::Outputs;
use crate::show::watch::Watch;
use crate::show::{Verdict, screen};

/// The node numbered 0 has the locks.
const MEMORY_NODES: usize = 1;

/// Runs the load and shows what came of it.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &LocksArgs) -> Result<Verdict, Failure> {
    check(args)?;
    let outputs = Outputs::check(args.json.as_deref(), None)?;
    let (load, outcome) = (load(args), measure(args)?);
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    screen::show(&text(args, &load, &outcome), &[&outputs.json])?;
    let is_sound = outcome.findings.as_ref().is_none_or(Vec::is_empty);
    Ok(if is_sound { Verdict::Sound } else { Verdict::Unsound })
}

/// Refuses flags that make no sense together.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that says which.
pub fn check(args: &LocksArgs) -> Result<(), Failure> {
    load(args).check().and_then(|()| check_fabric(args)).map_err(Failure::Arguments)
}

/// Runs the load, with flags that [`check`] accepts.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn measure(args: &LocksArgs) -> Result<LockOutcome, Failure> {
    Ok(on_machines(args, &load(args))?)
}

fn load(args: &LocksArgs) -> LockLoad {
    let recovery = if args.as_published { Recovery::Paper } else { Recovery::Fenced };
    let release = if args.release_by_swap { Release::Swap } else { Release::Add };
    let times = DslrTimes {
        poll: Duration::from_micros(args.poll_us),
        term: Duration::from_micros(args.lease_us),
        again_most: Duration::from_micros(args.again_us),
    };
    let long_reads = LongReads {
        share: args.long_reads,
        time: Duration::from_micros(args.long_us),
        terms: args.long_terms,
    };
    let clients = if args.policy.is_some() { 1 } else { args.threads * args.coroutines };
    let clients = (args.cns * clients).next_power_of_two() as u32;
    let room = clients.clamp(Declock::PUBLISHED_ENTRIES, DeclockFields::MAX_CAPACITY);
    let entries = args.queue_entries.unwrap_or(room);
    let think = Duration::from_micros(args.think_us);
    LockLoad {
        choice: Choice {
            kind: args.lock,
            recovery,
            backs_off: args.backoff,
            release,
            times,
            threshold: args.threshold,
            entries,
        },
        policy: args.policy,
        habits: Habits { think, failing: args.failing, long_reads },
        count: args.count,
        zipf: args.zipf,
        read_ratio: args.read_ratio,
        update_ratio: args.update_ratio,
        section: args.critical_section,
        object_bytes: args.object_bytes,
        patience: args.patience_us.map(Duration::from_micros),
        cns: args.cns as u16,
        threads: args.threads as u16,
        coroutines: args.coroutines as u16,
        warmup: args.warmup.unwrap_or((args.secs / 10.0).min(1.0)),
        secs: args.secs,
        audit: !args.no_audit,
    }
}

/// Refuses a fabric that cannot be had, or not for as many lanes.
fn check_fabric(args: &LocksArgs) -> Result<(), String> {
    if args.profile.is_some() && args.fabric != Fabric::Sim {
        return Err("only the simulated fabric has a profile".to_owned());
    }
    let lanes = args.cns * args.threads;
    match args.fabric {
        Fabric::Shm if lanes > MAX_LANES => Err(format!(
            "{lanes} lanes are more than one process can have on shm: at most {MAX_LANES}"
        )),
        Fabric::Tcp if !cfg!(feature = "tcp") => Err(crate::args::common::lacks(Fabric::Tcp)),
        Fabric::Rdma => Err("locks alone run on local, shm, tcp and sim, not on rdma".to_owned()),
        _ => Ok(()),
    }
}

fn on_machines(args: &LocksArgs, load: &LockLoad) -> Result<LockOutcome, BenchError> {
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
            let profile = deploy::profile(args.profile.as_deref().unwrap_or("cx3-56g"))?;
            let interleaving = Interleaving::PerBatch;
            let config = Config { interleaving, ..Config::new(args.seed, nodes, profile) };
            let world = World::new(config).map_err(|error| deploy::refused(&error))?;
            locks::run(&SimMachines::new(world), load, progress)
        }
        #[cfg(feature = "tcp")]
        Fabric::Tcp => locks::run(&deploy::tcp_machines(nodes, args.seed)?, load, progress),
        other => Err(DeployError::Refused(crate::args::common::lacks(other))),
    };
    Ok(outcome?)
}

fn rate(count: u64, secs: f64) -> u64 {
    (count as f64 / secs) as u64
}

fn per(count: u64, operations: u64) -> f64 {
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
fn quantiles(histogram: &Latencies) -> String {
    let at = |quantile| micros(histogram.value_at_quantile(quantile));
    let mean = histogram.mean() / 1000.0;
    format!("{mean:.1} mean, {:.1} p50, {:.1} p99, {:.1} p99.9", at(0.5), at(0.99), at(0.999))
}

fn text(args: &LocksArgs, load: &LockLoad, outcome: &LockOutcome) -> String {
    let tally = &outcome.tally;
    let operations = tally.operations;
    let mut text = String::new();
    let mut line = |name: &str, value: String| _ = writeln!(text, "{name:<22}{value}");
    let clients = args.cns * args.threads * args.coroutines;
    line("lock", format!("{} on {}, {clients} clients", load.choice.kind, args.fabric.name()));
    line("operations a second", grouped(rate(operations, load.secs)));
    line("acquire, µs", quantiles(&tally.acquire_ns));
    line("operation, µs", quantiles(&tally.operation_ns));
    if !tally.hottest_ns.is_empty() {
        line("hottest lock, µs", quantiles(&tally.hottest_ns));
    }
    let verbs = &tally.verbs;
    let of = |count| per(count, operations);
    line(
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
        line("transfers", format!("{policy}: {here} within nodes, {there} from the memory node"));
    }
    line("retries", format!("{:.3} an acquisition", retries(&tally.counts)));
    let waited = 100.0 * of(tally.counts.waited);
    line("waited", format!("{waited:.1} %, {} given up", grouped(tally.refused)));
    line("resets, ghosts", format!("{}, {}", tally.counts.resets, grouped(tally.counts.ghosts)));
    if load.audit {
        let Fairness { longest_run, largest_bypass } = tally.fairness;
        let (run, bypass) = (grouped(longest_run), grouped(largest_bypass));
        line("at most", format!("{run} writers in a row, {bypass} later requests first"));
    }
    if let Some(report) = &outcome.utilisation {
        line("busiest", busiest(report));
        let memory = nodes(outcome).into_iter().filter(NodeLoad::is_memory);
        memory.for_each(|node| line("served", node.to_string()));
    }
    match &outcome.findings {
        None => line("audit", "not made".to_owned()),
        Some(findings) if findings.is_empty() => {
            line("audit", "passed: nobody held two, no update lost, all locks free".to_owned());
        }
        Some(findings) => {
            findings.iter().for_each(|finding| line("AUDIT FAILED", finding.clone()));
        }
    }
    text
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
fn latency(histogram: &Latencies) -> serde_json::Value {
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
    let LockOutcome { tally, findings, .. } = outcome;
    let (verbs, counts) = (&tally.verbs, &tally.counts);
    let fairness = load.audit.then_some(tally.fairness);
    json!({
        "lock": load.choice.kind.name(),
        "fabric": args.fabric.name(),
        "as_published": args.as_published,
        "locks": load.count,
        "zipf": load.zipf,
        "read_ratio": load.read_ratio,
        "update_ratio": load.update_ratio,
        "critical_section": load.section,
        "object_bytes": load.object_bytes,
        "clients": args.cns * args.threads * args.coroutines,
        "secs": load.secs,
        "operations": tally.operations,
        "operations_per_s": tally.operations as f64 / load.secs,
        "given_up": tally.refused,
        "failed": tally.failed,
        "acquire": latency(&tally.acquire_ns),
        "operation": latency(&tally.operation_ns),
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
        "resets": counts.resets,
        "ghosts": counts.ghosts,
        "longest_writer_run": fairness.map(|fairness| fairness.longest_run),
        "largest_bypass": fairness.map(|fairness| fairness.largest_bypass),
        "nodes": nodes(outcome),
        "audit": findings,
    })
}
