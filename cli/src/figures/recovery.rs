//! `lotus figures run recovery`: throughput around the loss of nodes, and how long it takes until
//! others serve what they served.
//!
//! Not a file of benchmarks as the other experiments are: here the cluster is watched while it
//! runs. The testbed is the same, SmallBank at one tenth, with a lease.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use lotus::{ShardStatus, Submitted, TableSpec};
use lotus_benchmarks::audit::Check;
use lotus_benchmarks::deployment::{
    Caches, DeployError, Deployment, Memory, Ownership, Replay, RowSource, RowVisitor, Seat,
    Traffic,
};
use lotus_benchmarks::harness::{self, BenchError};
use lotus_benchmarks::lotus::{Embedded, Slot, builder};
use lotus_benchmarks::output::Output;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_fabric::ids::{NodeId, TableId};
use lotus_fabric::sim::{
    Config, Fault, Interleaving, MemoryFate, Profile, Scheduled, SimMachines, When, World,
};
use serde::Serialize;

use super::{Failure, Line, TESTBED};
use crate::{bench, screen};

pub(super) const NAME: &str = "recovery";
pub(super) const TITLE: &str =
    "Throughput around the loss of three compute nodes, or of a memory node (LOTUS §8.4)";

const BENCH: &str = "smallbank --accounts 2000000 --hot-accounts 80000 --audit no --timeline 1";
/// Overrides what the testbed says.
const TIMES: &str = "--warmup 0.01 --secs 0.09";
const ACCOUNTS: u64 = 2_000_000;
const HOT_ACCOUNTS: u64 = 80_000;
const HOT_RATIO: f64 = 0.9;
/// When nodes are lost, after the world began and after the timeline did, in milliseconds.
const LOST_AT_MS: u64 = 40;
const WARM_UP_MS: u64 = 10;
/// How often the cluster is asked who owns what.
const LOOK: Duration = Duration::from_micros(200);
/// Steps before the loss that say what throughput was.
const BEFORE: usize = 15;
/// The share of what is to be expected at which throughput counts as back.
const BACK: f64 = 0.9;

/// What is lost.
struct Case {
    label: &'static str,
    lease_ms: u64,
    memory_nodes: u16,
    compute_nodes: u16,
}

const CASES: [Case; 3] = [
    Case { label: "3 of 9 compute nodes", lease_ms: 10, memory_nodes: 0, compute_nodes: 3 },
    Case { label: "1 of 9 compute nodes", lease_ms: 10, memory_nodes: 0, compute_nodes: 1 },
    Case { label: "1 of 3 memory nodes", lease_ms: 10, memory_nodes: 1, compute_nodes: 0 },
];

/// What a loss did.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    label: &'static str,
    lease_ms: u64,
    /// Before the loss.
    before_tps: f64,
    /// The share of the compute nodes, or memory nodes, that are left.
    share: f64,
    lowest_tps: f64,
    /// From the loss, detection included, until every shard has an owner that lives.
    owned_ms: Option<f64>,
    /// From the loss until throughput is at [`BACK`] of the survivors' share, and stays there.
    back_ms: Option<f64>,
    /// Throughput by milliseconds of the timeline.
    tps: Vec<f64>,
}

/// Runs all of it, and shows what came of it.
pub(super) fn run(output: &Option<Output>) -> Result<Vec<Measured>, Failure> {
    let mut all = Vec::new();
    for case in &CASES {
        let outcome = measure(case).map_err(|error| Failure::Bench {
            label: case.label.to_owned(),
            error: bench::Failure::Bench(error),
        })?;
        all.push(outcome);
    }
    screen::show(&text(&all), &[output])?;
    Ok(all)
}

fn measure(case: &Case) -> Result<Measured, BenchError> {
    let words = [BENCH, TESTBED, TIMES].into_iter().flat_map(|words| words.split_whitespace());
    let line = Line::try_parse_from(words).expect("the constants are sound");
    let mut options = line.bench.common().options();
    options.cluster.lease_us = Some(case.lease_ms * 1_000);
    let memory_nodes = options.cluster.mns as u16;
    let compute = memory_nodes + options.cluster.cns as u16;
    // The last of their kind: the first oracle and the first primary are others' subjects.
    let lost_compute = compute - case.compute_nodes..compute;
    let lost_memory = memory_nodes - case.memory_nodes..memory_nodes;
    let at = When::At(Duration::from_millis(LOST_AT_MS));
    let crash = |node: u16, memory| {
        let fault = Fault::Crash { node: NodeId(node), memory };
        Scheduled { when: at, fault }
    };
    let schedule = (lost_compute.clone().map(|node| crash(node, MemoryFate::Kept)))
        .chain(lost_memory.map(|node| crash(node, MemoryFate::Lost)));
    let schedule: Vec<_> = schedule.collect();
    let profile = Profile::named("cx3-56g").expect("it is built in");
    let builder = builder(&options.cluster, &options.load);
    let world = |nodes| {
        let interleaving = Interleaving::PerBatch;
        let config = Config { interleaving, schedule, ..Config::new(1, nodes, profile) };
        let world = World::new(config).map_err(|error| DeployError::Refused(error.to_string()))?;
        Ok(SimMachines::new(world))
    };
    let cluster = Embedded::start_on(builder, world)?;
    let dead: Vec<usize> = lost_compute.map(|node| usize::from(node - memory_nodes)).collect();
    let mut watched = Watched { cluster, dead, owned: None };
    let coordinators = options.cluster.cns * options.cluster.threads;
    let progress = Arc::new(Progress::new(coordinators, |_| ()));
    let bank = SmallBank::new(ACCOUNTS, HOT_ACCOUNTS, HOT_RATIO, options.load.seed);
    let outcome = harness::run(&mut watched, bank, &options, &progress)?;
    let timeline = outcome.tally.timeline.as_ref().expect("it was asked for");
    let per_s = |commits: &u64| *commits as f64 * 1e9 / timeline.step_ns as f64;
    let steps = (options.load.secs * 1e9 / timeline.step_ns as f64) as usize;
    let tps: Vec<f64> = timeline.commits.iter().take(steps).map(per_s).collect();
    // Of those compute nodes, or memory nodes, of which some are lost.
    let share = f64::from(9 - case.compute_nodes) / 9.0 * f64::from(3 - case.memory_nodes) / 3.0;
    Ok(Measured { share, owned_ms: watched.owned, ..judge(case, tps, share) })
}

/// What a timeline says about a loss, whose survivors are this share of all.
fn judge(case: &Case, tps: Vec<f64>, share: f64) -> Measured {
    let lost = (LOST_AT_MS - WARM_UP_MS) as usize;
    let before = tps[lost - BEFORE..lost].iter().sum::<f64>() / BEFORE as f64;
    let after = &tps[lost..];
    let enough = before * share * BACK;
    let low = after.iter().rposition(|tps| *tps < enough).map_or(0, |low| low + 1);
    Measured {
        label: case.label,
        lease_ms: case.lease_ms,
        before_tps: before,
        share,
        lowest_tps: after.iter().copied().fold(f64::INFINITY, f64::min),
        owned_ms: None,
        back_ms: (low < after.len()).then_some(low as f64),
        tps,
    }
}

fn text(all: &[Measured]) -> String {
    let mut text = format!("{TITLE}\n\n");
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header([
        "lost",
        "lease ms",
        "before, txn/s",
        "survivors' share %",
        "lowest, txn/s",
        "lowest %",
        "all shards owned after ms",
        "90 % of the share after ms",
    ]);
    let ms = |ms: Option<f64>| ms.map_or_else(String::new, |ms| format!("{ms:.1}"));
    for one in all {
        table.add_row([
            one.label.to_owned(),
            one.lease_ms.to_string(),
            grouped(one.before_tps as u64),
            format!("{:.1}", one.share * 100.0),
            grouped(one.lowest_tps as u64),
            format!("{:.1}", one.lowest_tps / one.before_tps * 100.0),
            ms(one.owned_ms),
            ms(one.back_ms),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    // Writing into a string cannot fail.
    let _ = writeln!(text, "{table}\n");
    let mut steps = Table::new();
    let header = ["ms after the loss".to_owned()].into_iter();
    let header = header.chain(all.iter().map(|one| format!("{}, ktps", one.label)));
    steps.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    let first = (LOST_AT_MS - WARM_UP_MS) as usize - 2;
    for step in first..first + 40 {
        let of = |one: &Measured| {
            one.tps.get(step).map_or_else(String::new, |tps| grouped((tps / 1e3) as u64))
        };
        let at = (step as i64 - first as i64 - 2).to_string();
        steps.add_row([at].into_iter().chain(all.iter().map(of)));
    }
    for column in steps.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(text, "{steps}\n");
    text
}

/// A simulated cluster that is asked who owns what, from the loss on.
struct Watched {
    cluster: Embedded<SimMachines>,
    /// The places of the compute nodes that are lost.
    dead: Vec<usize>,
    /// How long after the loss every shard had an owner that lives, in milliseconds.
    owned: Option<f64>,
}

impl Watched {
    fn look(&mut self) {
        let since_ms = |world: &World| world.now().as_secs_f64() * 1e3 - LOST_AT_MS as f64;
        let since = since_ms(&self.cluster.cluster().machines().world());
        if self.owned.is_some() || since <= 0.0 || self.dead.is_empty() {
            return;
        }
        let lives =
            |shard: &ShardStatus| shard.owner.is_some_and(|owner| !self.dead.contains(&owner));
        // What cannot be read now is asked for again.
        if self.cluster.cluster().shards().is_ok_and(|shards| shards.iter().all(lives)) {
            self.owned = Some(since);
        }
    }
}

fn failed(error: impl std::fmt::Display) -> DeployError {
    DeployError::Failed(error.to_string())
}

impl Deployment for Watched {
    type Host = Slot;

    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(Seat, Slot) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let submitted = self.cluster.submit(tasks, task);
        while !submitted.iter().all(Submitted::is_finished) {
            if self.cluster.cluster().machines().run_for(LOOK).is_none() {
                break;
            }
            self.look();
        }
        let ended = self.cluster.outcomes(submitted)?;
        self.cluster.cluster().settle().map_err(failed)?;
        Ok(ended)
    }

    fn create_table(&mut self, spec: TableSpec) -> Result<TableId, DeployError> {
        self.cluster.create_table(spec)
    }

    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError> {
        self.cluster.load(table, rows, row)
    }

    fn traffic(&self) -> Traffic {
        self.cluster.traffic()
    }

    fn caches(&self) -> Caches {
        self.cluster.caches()
    }

    fn ownership(&self) -> Ownership {
        self.cluster.ownership()
    }

    fn memory(&self) -> Memory {
        self.cluster.memory()
    }

    fn utilisation(&self) -> Option<lotus_fabric::sim::Report> {
        self.cluster.utilisation()
    }

    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError> {
        self.cluster.scan(table, visit)
    }

    fn audit(&mut self) -> Result<Vec<Check>, DeployError> {
        self.cluster.audit()
    }

    fn record_verbs(&mut self) {
        self.cluster.record_verbs();
    }

    fn replay(&mut self, secs: f64) -> Result<Replay, DeployError> {
        self.cluster.replay(secs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_back_when_it_stays_at_the_share_of_who_is_left() {
        let case = &CASES[0];
        // (from the loss on, lowest, back after ms)
        let cases = [
            ([6.0, 6.0, 6.0, 6.0], 6.0, Some(0.0)),
            ([1.0, 6.0, 2.0, 6.0], 1.0, Some(3.0)),
            ([6.0, 6.0, 6.0, 1.0], 1.0, None),
        ];
        for (after, lowest, back_ms) in cases {
            let before = vec![9.0; (LOST_AT_MS - WARM_UP_MS) as usize];
            let measured = judge(case, before.into_iter().chain(after).collect(), 6.0 / 9.0);
            assert_eq!((measured.before_tps, measured.lowest_tps), (9.0, lowest));
            assert_eq!(measured.back_ms, back_ms, "{after:?}");
        }
    }

    #[test]
    fn what_is_measured_can_be_run() {
        let words = [BENCH, TESTBED, TIMES].into_iter().flat_map(str::split_whitespace);
        let line = Line::try_parse_from(words).expect("sound");
        bench::check(&line.bench).expect("sound");
    }
}
