//! `lotus-lab bench locks`: load on a lock system alone, without transactions.

use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::grouped;
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::{Fault, MemoryFate, Scheduled, When};
use lotus_loads::lanes::{Clients, Latencies, START};
use lotus_loads::locks::{
    self, ClientBehaviour, Fairness, HotLocks, LockLoad, LockOutcome, LongReads, LossRecovery,
    TimeSum,
};
use lotus_locks::Counts;
use serde_json::json;

use super::Failure;
use super::clients::{
    self, LockBench, Table, check_fabric, check_server_lock, clients, extend, latency, micros,
    nodes, on_machines, per, quantiles, rate, verdict, who,
};
use crate::args::{LockRunArgs, LocksArgs, SystemArgs};
use lotus_runner::show::outputs::Outputs;
use lotus_runner::show::{Verdict, screen};

impl LockBench for LockLoad {
    type Outcome = LockOutcome;
    const DONE: &str = "released";

    fn clients(&self) -> &Clients {
        &self.clients
    }

    fn schedule(&self) -> Vec<Scheduled> {
        let losses = self.lost_node().zip(self.loses).map(|(node, after)| Scheduled {
            when: When::At(START + after),
            fault: Fault::Crash { node, memory: MemoryFate::Lost },
        });
        losses.into_iter().collect()
    }

    fn run(
        &self,
        machines: &dyn Machines,
        progress: &Arc<Progress>,
    ) -> Result<LockOutcome, DeployError> {
        locks::run(machines, self, progress)
    }
}

/// Runs the load and shows the result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &LocksArgs) -> Result<Verdict, Failure> {
    check(args)?;
    let (load, run) = (timed(load(args), &args.run)?, &args.run);
    let outputs = Outputs::check(run.json.as_deref(), None)?;
    let outcome = on_machines(run, &load)?;
    if let Some(output) = &outputs.json {
        screen::write_json(output, &as_json(args, &load, &outcome))?;
    }
    let mut text = Table::default();
    text.line("lock", who(&load.clients, run));
    text.line("operations a second", rate(outcome.tally.operations, outcome.used.secs));
    text.line("acquire, µs", quantiles(&outcome.tally.acquire_ns));
    text.line("operation, µs", quantiles(&outcome.tally.operation_ns));
    details(&mut text, &load, &outcome);
    screen::show(&text.0, &[&outputs.json])?;
    Ok(verdict(outcome.findings.as_ref()))
}

/// Refuses conflicting flags.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that names the conflict.
pub fn check(args: &LocksArgs) -> Result<(), Failure> {
    refuse(&args.system, &args.run, &load(args))
}

/// Runs the load, with flags that [`check`] accepts.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn measure(args: &LocksArgs) -> Result<LockOutcome, Failure> {
    Ok(on_machines(&args.run, &timed(load(args), &args.run)?)?)
}

/// The load, with the times of the simulated machines' profile.
fn timed(load: LockLoad, run: &LockRunArgs) -> Result<LockLoad, Failure> {
    let clients = clients::charged(load.clients, run).map_err(BenchError::from)?;
    Ok(LockLoad { clients, ..load })
}

/// Refuses a conflicting combination of options.
///
/// # Errors
/// [`Failure::Arguments`] with a sentence that names the conflict.
pub(super) fn refuse(
    system: &SystemArgs,
    run: &LockRunArgs,
    load: &LockLoad,
) -> Result<(), Failure> {
    let checked = match load.clients.server_lock {
        Some(server_lock) => {
            check_server_lock(system, run, "locks alone", server_lock).and_then(|()| load.check())
        }
        None => {
            let kind = load.clients.choice.kind;
            load.check().and_then(|()| check_fabric(run, "locks alone", kind))
        }
    };
    checked.map_err(Failure::Arguments)
}

fn load(args: &LocksArgs) -> LockLoad {
    let long_reads = LongReads {
        share: args.long_reads,
        time: Duration::from_micros(args.long_us),
        terms: args.long_terms,
    };
    let think = Duration::from_micros(args.think_us);
    let hot = args.hot_locks.map(|count| HotLocks {
        count,
        share: args.hot_share,
        every: Duration::from_micros(args.hot_every_us),
    });
    LockLoad {
        behaviour: ClientBehaviour {
            think,
            failing: args.failing,
            long_reads,
            held_locks: args.held_locks,
        },
        count: args.count,
        zipf: args.zipf,
        hot,
        read_ratio: args.read_ratio,
        update_ratio: args.update_ratio,
        section: args.critical_section,
        object_bytes: args.object_bytes,
        patience: args.patience_us.map(Duration::from_micros),
        ..plain(&args.system, &args.run)
    }
}

/// Clients that hold a lock for a verb of one word; one lock in total.
pub(super) fn plain(system: &SystemArgs, run: &LockRunArgs) -> LockLoad {
    LockLoad {
        clients: clients(system, run),
        count: 1,
        zipf: 0.0,
        hot: None,
        read_ratio: 0.0,
        update_ratio: 0.0,
        section: 1,
        object_bytes: 8,
        patience: None,
        behaviour: ClientBehaviour::default(),
        loses: run.loses(),
        audit: !run.no_audit,
    }
}

/// Adds the costs of operations of a lock system, counts of its behaviour, and the findings of the
/// audit.
pub(super) fn details(text: &mut Table, load: &LockLoad, outcome: &LockOutcome) {
    let (tally, counts) = (&outcome.tally, outcome.used.counts);
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
    text.used(&load.clients, &outcome.used, tally.operations);
    let waited = 100.0 * per(counts.waited, tally.operations);
    text.line("waited", format!("{waited:.1} %, {} given up", grouped(tally.refused)));
    let refetches = per(counts.refetches, counts.acquired);
    text.line("refetches", format!("{refetches:.4} a release"));
    let Counts { resets, reset_ns, ghosts, .. } = counts;
    let reset = micros(reset_ns) / resets.max(1) as f64;
    text.line("resets, ghosts", format!("{resets} of {reset:.1} µs, {}", grouped(ghosts)));
    if let Some(LossRecovery { over, took }) = &outcome.recovery {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let (report, rewrite, resume) = (us(over.reporting), us(over.rewriting), us(over.resuming));
        let steps = format!("{report:.1} report, {rewrite:.1} rewrite, {resume:.1} resume");
        let (took, locks) = (us(*took), grouped(over.locks as u64));
        text.line("recovery, µs", format!("{took:.1}: {steps}; {locks} locks held"));
    }
    if load.audit {
        let Fairness { longest_run, largest_bypass } = tally.fairness;
        let (run, bypass) = (grouped(longest_run), grouped(largest_bypass));
        text.line("at most", format!("{run} writers in a row, {bypass} later requests first"));
    }
    let passed = "nobody held two, no update lost, all locks free";
    text.end(outcome.utilisation.as_ref(), outcome.findings.as_ref(), passed);
}

/// Latency of the most popular lock, with its distribution: shares of the requests, and the times
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
        "held_locks": load.behaviour.held_locks,
        "critical_section": load.section,
        "failed": outcome.tally.failed,
    });
    extend(&mut json, own);
    json
}

/// Fields common to the reports of all loads on locks.
pub(super) fn details_as_json(
    system: &SystemArgs,
    run: &LockRunArgs,
    load: &LockLoad,
    outcome: &LockOutcome,
) -> serde_json::Value {
    let LockOutcome { tally, used, findings, utilisation, recovery } = outcome;
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let recovery = recovery.map(|LossRecovery { over, took }| {
        json!({
            "us": us(took),
            "report_us": us(over.reporting),
            "rewrite_us": us(over.rewriting),
            "resume_us": us(over.resuming),
            "locks": over.locks,
        })
    });
    let fairness = load.audit.then_some(tally.fairness);
    let mut json = clients::as_json(system, run, &load.clients, tally.operations, used);
    let own = json!({
        "zipf": load.zipf,
        "hot_locks": load.hot.map(|hot| json!({
            "count": hot.count,
            "share": hot.share,
            "every_us": hot.every.as_micros() as u64,
        })),
        "object_bytes": load.object_bytes,
        "given_up": tally.refused,
        "acquire": latency(&tally.acquire_ns),
        "operation": latency(&tally.operation_ns),
        "readers_acquire_us": tally.reader_acquire.mean_ns() / 1000.0,
        "writers_acquire_us": tally.writer_acquire.mean_ns() / 1000.0,
        "release_us": tally.released.mean_ns() / 1000.0,
        "hottest": hottest(&tally.hottest_ns),
        "longest_writer_run": fairness.map(|fairness| fairness.longest_run),
        "largest_bypass": fairness.map(|fairness| fairness.largest_bypass),
        "recovery": recovery,
        "nodes": nodes(utilisation.as_ref()),
        "audit": findings,
    });
    extend(&mut json, own);
    json
}
