//! `lotus-lab figures run recovery`: throughput around the loss of nodes, the time until survivors
//! have taken over from the lost nodes, and the filling of a memory node that returns. `fig15` is
//! the published loss, on the profile for comparing engines.
//!
//! Unlike other experiments, a recovery is not a file of benchmarks: it watches the running
//! cluster. The testbed is the same, SmallBank at one tenth, with a lease.

mod watched;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::{self, BenchError};
use lotus_benchmarks::lotus::{Embedded, builder};
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_benchmarks::wrapper::Wrapper;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{
    Config, Fault, Interleaving, MemoryFate, Profile, Scheduled, SimMachines, When, World,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::command::CommandLine;
use super::experiment::{Block, Experiment, Findings, Length, Tally, Task};
use super::grid::Grid;
use super::plot::{Line as Curve, Plot};
use super::transactions::{TESTBED, parse};
use crate::bench;
use lotus_runner::args::BenchArgs;
use watched::{Awaited, Sightings, Watched};

/// The two experiments.
pub(super) static ALL: [Recovery; 2] = [
    Recovery {
        name: "recovery",
        title: "Throughput around the loss of three compute nodes, or of a memory node",
        source: "LOTUS §8.4",
        profile: "cx3-56g",
        cases: &CASES,
        remarks: "",
    },
    Recovery {
        name: "fig15",
        title: "Throughput around the loss of three compute nodes",
        source: "LOTUS Figure 15",
        profile: "cx3-56g-fitted",
        cases: CASES.first_chunk::<1>().expect("there are cases"),
        remarks: "Published: from 2.06 to 1.43 M transactions a second, 30.6 % less, and whole \
                  again after 233 ms, without the time until the loss is detected. Ours has it: a \
                  lease. Lost nodes stay lost here: what is awaited is the survivors' share.",
    },
];

const BENCH: &str =
    "lotus-lab bench smallbank --accounts 2000000 --hot-accounts 80000 --audit no --timeline 1";
/// Overrides the testbed's warm-up.
const WARM_UP: &str = "--warmup 0.01";
const ACCOUNTS: u64 = 2_000_000;
const HOT_ACCOUNTS: u64 = 80_000;
const HOT_RATIO: f64 = 0.9;
/// Times of the loss and of the timeline's start, in milliseconds since the world began.
const LOST_AT_MS: u64 = 40;
const WARM_UP_MS: u64 = 10;
/// Number of steps before an event for the mean throughput before that event.
const BEFORE: usize = 15;
/// Steps shown before the loss, and in total, in the table of steps.
const SHOWN_BEFORE: usize = 2;
const SHOWN: usize = 40;
/// Share of the expected throughput that counts as recovered.
const BACK: f64 = 0.9;

/// A loss to be measured.
struct Case {
    label: &'static str,
    lease_ms: u64,
    memory_nodes: u16,
    compute_nodes: u16,
    /// Time from the loss to the restart of the lost memory node's process.
    made_anew_ms: Option<u64>,
    /// Length of the timeline.
    shown_ms: u64,
}

const CASES: [Case; 4] = [
    Case { label: "3 of 9 compute nodes", compute_nodes: 3, ..NOTHING },
    Case { label: "1 of 9 compute nodes", compute_nodes: 1, ..NOTHING },
    Case { label: "1 of 3 memory nodes", memory_nodes: 1, ..NOTHING },
    Case {
        label: "a memory node, which returns",
        memory_nodes: 1,
        made_anew_ms: Some(40),
        shown_ms: 400,
        ..NOTHING
    },
];

const NOTHING: Case = Case {
    label: "nothing",
    lease_ms: 10,
    memory_nodes: 0,
    compute_nodes: 0,
    made_anew_ms: None,
    shown_ms: 90,
};

/// Measurements of a loss.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    label: String,
    lease_ms: u64,
    /// Throughput before the loss.
    before_tps: f64,
    /// Share of the compute nodes, or memory nodes, that survive.
    share: f64,
    lowest_tps: f64,
    /// Time from the loss, detection included, until every shard has a live owner.
    owned_ms: Option<f64>,
    /// Time from the loss until throughput stays at [`BACK`] of the survivors' share.
    back_ms: Option<f64>,
    /// Filling of the memory node; `None` without filling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    filled: Option<Filled>,
    /// Throughput by milliseconds of the timeline.
    tps: Vec<f64>,
}

/// Filling of a memory node that returned with empty memory, to its end or to the end of the run.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
struct Filled {
    /// Restart time of the memory node's process, in milliseconds after the loss.
    made_anew_ms: f64,
    /// Time from which the memory node gets every write, in milliseconds after the loss.
    joined_ms: f64,
    /// Time at which the copies were whole, in milliseconds after the loss.
    whole_ms: Option<f64>,
    /// Share copied by that time, or by the end of the run, and its size in bytes.
    copied: f64,
    copied_bytes: u64,
    /// Rate of copying since `joined_ms`.
    bytes_per_s: f64,
    /// Throughput just before the restart of the process, during filling, and afterwards.
    without_tps: f64,
    filling_tps: f64,
    whole_tps: Option<f64>,
}

/// The experiment.
#[derive(Clone, Copy)]
pub(super) struct Recovery {
    pub(super) name: &'static str,
    title: &'static str,
    source: &'static str,
    /// Profile of the simulated cluster.
    profile: &'static str,
    cases: &'static [Case],
    remarks: &'static str,
}

impl Experiment for Recovery {
    fn title(&self) -> &str {
        self.title
    }

    fn source(&self) -> &str {
        self.source
    }

    /// Independent of the length: the cases take less than a minute in total.
    fn tasks(&self, _: Length) -> Vec<Task> {
        let task = |case: &Case| Task {
            label: case.label.to_owned(),
            command: format!("lotus-lab figures run {}", self.name),
            without: Vec::new(),
        };
        self.cases.iter().map(task).collect()
    }

    fn measure(&self, task: &Task) -> Result<Value, bench::Failure> {
        let refused = |why: String| bench::Failure::Arguments(why);
        let case = self.cases.iter().find(|case| case.label == task.label);
        let case = case.ok_or_else(|| refused(format!("there is no case {}", task.label)))?;
        let measured = measure(case, self.profile)?;
        serde_json::to_value(measured).map_err(|error| refused(error.to_string()))
    }

    fn findings(&self, _: Length, results: &[Value]) -> Result<Findings, serde_json::Error> {
        let all = results.iter().map(Measured::deserialize).collect::<Result<Vec<_>, _>>()?;
        let mut tables = vec![losses(&all), steps(&all)];
        if all.iter().any(|one| one.filled.is_some()) {
            tables.push(fillings(&all));
        }
        Ok(Findings {
            blocks: tables.into_iter().map(Block::Table).collect(),
            plots: drawn(&all),
            remarks: self.remarks.to_owned(),
            busiest: all.iter().map(|_| String::new()).collect(),
            tally: Tally::default(),
            fallen: Vec::new(),
            unsound: Vec::new(),
            json: results.iter().map(|result| of_figure(self.name, result)).collect(),
        })
    }
}

/// A result, with the experiment's name.
fn of_figure(name: &str, result: &Value) -> Value {
    let mut named = result.clone();
    if let Some(fields) = named.as_object_mut() {
        fields.insert("figure".to_owned(), name.into());
    }
    named
}

/// The command line of a case, parsed as if typed after `lotus-lab bench`.
fn line(case: &Case, profile: &str) -> BenchArgs {
    let own = format!("--profile {profile} --secs {}", case.shown_ms as f64 / 1e3);
    let line = CommandLine::of([BENCH, TESTBED, WARM_UP, &own]);
    parse(&line.typed()).expect("the constants are sound")
}

/// Faults of a case, for the simulated world.
fn schedule(case: &Case, lost_memory: Range<u16>, lost_compute: Range<u16>) -> Vec<Scheduled> {
    let at = |ms: u64| When::At(Duration::from_millis(ms));
    let crash = |node: u16, memory| {
        let fault = Fault::Crash { node: NodeId(node), memory };
        Scheduled { when: at(LOST_AT_MS), fault }
    };
    let anew = case.made_anew_ms.into_iter().flat_map(|ms| {
        lost_memory.clone().map(move |node| {
            let fault = Fault::Restart { node: NodeId(node) };
            Scheduled { when: at(LOST_AT_MS + ms), fault }
        })
    });
    (lost_compute.map(|node| crash(node, MemoryFate::Kept)))
        .chain(lost_memory.clone().map(|node| crash(node, MemoryFate::Lost)))
        .chain(anew)
        .collect()
}

fn measure(case: &Case, profile: &str) -> Result<Measured, BenchError> {
    let mut options = line(case, profile).common().options();
    options.cluster.lease_us = Some(case.lease_ms * 1_000);
    let memory_nodes = options.cluster.mns as u16;
    let compute = memory_nodes + options.cluster.cns as u16;
    // The last nodes of their kind, since the loss of the oracle or of the first primary is not
    // measured.
    let lost_compute = compute - case.compute_nodes..compute;
    let lost_memory = memory_nodes - case.memory_nodes..memory_nodes;
    let schedule = schedule(case, lost_memory.clone(), lost_compute.clone());
    let profile = Profile::named(profile).expect("it is built in");
    let builder = builder(&options.cluster, &options.load);
    let world = |nodes| {
        let interleaving = Interleaving::PerBatch;
        let config = Config { interleaving, schedule, ..Config::new(1, nodes, profile) };
        let world = World::new(config).map_err(|error| DeployError::Refused(error.to_string()))?;
        Ok(SimMachines::new(world))
    };
    let cluster = Embedded::start_on(builder, world)?;
    let made_anew = case.made_anew_ms.map(|ms| (LOST_AT_MS + ms) as f64);
    let awaited = Awaited {
        lost_at_ms: LOST_AT_MS as f64,
        dead: lost_compute.map(|node| usize::from(node - memory_nodes)).collect(),
        made_anew: made_anew.map(|at_ms| (usize::from(lost_memory.start), at_ms)),
    };
    let mut watched = Watched::new(cluster, awaited);
    let coordinators = options.cluster.cns * options.cluster.threads;
    let progress = Arc::new(Progress::new(coordinators, |_| ()));
    let bank = SmallBank::new(ACCOUNTS, HOT_ACCOUNTS, HOT_RATIO, options.load.seed);
    let outcome = harness::run(&mut watched, bank, &options, &progress)?;
    let timeline = outcome.tally.timeline.as_ref().expect("it was asked for");
    let per_s = |commits: &u64| *commits as f64 * 1e9 / timeline.step_ns as f64;
    let tps: Vec<f64> = timeline.commits.iter().take(case.shown_ms as usize).map(per_s).collect();
    // Surviving share of the lost kind of node; the other factor is 1.
    let share = f64::from(9 - case.compute_nodes) / 9.0 * f64::from(3 - case.memory_nodes) / 3.0;
    let used = watched.embedded().cluster().memory_use();
    let used = used.map_err(|error| DeployError::Failed(error.to_string()))?;
    // Copies are dealt out evenly.
    let copied = used.replica_bytes * options.cluster.replicas as u64 / u64::from(memory_nodes);
    Ok(judge(case, tps, share, watched.seen, copied))
}

/// Measurements of a loss, from its timeline. `share` is the survivors' share; `copied_bytes` is
/// the size of the copies on a returning memory node.
fn judge(case: &Case, tps: Vec<f64>, share: f64, seen: Sightings, copied_bytes: u64) -> Measured {
    let lost = (LOST_AT_MS - WARM_UP_MS) as usize;
    let before = mean(&tps[lost - BEFORE..lost]);
    // Up to the next event.
    let end = case.made_anew_ms.map_or(tps.len(), |ms| lost + ms as usize);
    let after = &tps[lost..end];
    let enough = before * share * BACK;
    let low = after.iter().rposition(|tps| *tps < enough).map_or(0, |low| low + 1);
    Measured {
        label: case.label.to_owned(),
        lease_ms: case.lease_ms,
        before_tps: before,
        share,
        lowest_tps: after.iter().copied().fold(f64::INFINITY, f64::min),
        owned_ms: seen.owned,
        back_ms: (low < after.len()).then_some(low as f64),
        filled: filled(case, &tps[lost..], seen, copied_bytes),
        tps,
    }
}

/// Measurements of the filling, if it began. `after` is the timeline since the loss; `bytes` is the
/// size of all copies.
fn filled(case: &Case, after: &[f64], seen: Sightings, bytes: u64) -> Option<Filled> {
    let made_anew = case.made_anew_ms? as usize;
    let (joined, (copied, last)) = (seen.joined?, seen.copied?);
    let end = after.len().min(last as usize);
    let filling = after.get(joined.ceil() as usize..end).filter(|steps| !steps.is_empty())?;
    let settled = seen.whole.map(|whole| whole.ceil() as usize + BEFORE);
    let rest = settled.and_then(|settled| after.get(settled..));
    let copied_bytes = bytes as f64 * copied;
    Some(Filled {
        made_anew_ms: made_anew as f64,
        joined_ms: joined,
        whole_ms: seen.whole,
        copied,
        copied_bytes: copied_bytes as u64,
        bytes_per_s: copied_bytes / (last - joined) * 1e3,
        without_tps: mean(&after[made_anew - BEFORE..made_anew]),
        filling_tps: mean(filling),
        whole_tps: rest.filter(|rest| !rest.is_empty()).map(mean),
    })
}

fn mean(tps: &[f64]) -> f64 {
    tps.iter().sum::<f64>() / tps.len() as f64
}

/// Formats a time; empty for `None`.
fn ms(ms: Option<f64>) -> String {
    ms.map_or_else(String::new, |ms| format!("{ms:.1}"))
}

/// A table of numbers, with a label for each row.
fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Grid {
    Grid::of_rows(1, header.map(str::to_owned), rows.map(Vec::from))
}

fn losses(all: &[Measured]) -> Grid {
    let header = [
        "lost",
        "lease ms",
        "before, txn/s",
        "survivors' share %",
        "lowest, txn/s",
        "lowest %",
        "all shards owned after ms",
        "90 % of the share after ms",
    ];
    let row = |one: &Measured| {
        [
            one.label.clone(),
            one.lease_ms.to_string(),
            grouped(one.before_tps as u64),
            format!("{:.1}", one.share * 100.0),
            grouped(one.lowest_tps as u64),
            format!("{:.1}", one.lowest_tps / one.before_tps * 100.0),
            ms(one.owned_ms),
            ms(one.back_ms),
        ]
    };
    table(header, all.iter().map(row))
}

/// Table of the fillings: times, rates, and throughput during the filling.
fn fillings(all: &[Measured]) -> Grid {
    let header = [
        "filled",
        "made anew after ms",
        "gets writes after ms",
        "whole after ms",
        "copied %",
        "copied MB",
        "MB/s",
        "before the loss, txn/s",
        "without it, txn/s",
        "filling, txn/s",
        "whole again, txn/s",
    ];
    let row = |one: &Measured| {
        let filled = one.filled?;
        Some([
            one.label.clone(),
            format!("{:.0}", filled.made_anew_ms),
            format!("{:.1}", filled.joined_ms),
            ms(filled.whole_ms),
            format!("{:.1}", filled.copied * 100.0),
            format!("{:.1}", filled.copied_bytes as f64 / 1e6),
            format!("{:.0}", filled.bytes_per_s / 1e6),
            grouped(one.before_tps as u64),
            grouped(filled.without_tps as u64),
            grouped(filled.filling_tps as u64),
            filled.whole_tps.map_or_else(String::new, |tps| grouped(tps as u64)),
        ])
    };
    table(header, all.iter().filter_map(row))
}

/// Table of throughput by milliseconds around the losses.
fn steps(all: &[Measured]) -> Grid {
    let header = std::iter::once("ms after the loss".to_owned());
    let header = header.chain(all.iter().map(|one| format!("{}, ktps", one.label)));
    let first = (LOST_AT_MS - WARM_UP_MS) as usize - SHOWN_BEFORE;
    let row = |step: usize| {
        let of = |one: &Measured| {
            one.tps.get(step).map_or_else(String::new, |tps| grouped((tps / 1e3) as u64))
        };
        let at = (step as i64 - (first + SHOWN_BEFORE) as i64).to_string();
        std::iter::once(at).chain(all.iter().map(of)).collect()
    };
    Grid::of_rows(0, header, (first..first + SHOWN).map(row))
}

/// A plot of each timeline, in the style of LOTUS Figure 15.
fn drawn(all: &[Measured]) -> Vec<Plot> {
    let lost = (LOST_AT_MS - WARM_UP_MS) as f64;
    let plot = |one: &Measured| {
        let points = one.tps.iter().enumerate();
        let points = points.map(|(step, tps)| (step as f64 - lost, tps / 1e6)).collect();
        let mut marks = vec![("lost".to_owned(), 0.0)];
        marks.extend(one.owned_ms.map(|ms| ("all shards owned".to_owned(), ms)));
        if let Some(filled) = one.filled {
            marks.push(("made anew".to_owned(), filled.made_anew_ms));
            marks.extend(filled.whole_ms.map(|ms| ("whole".to_owned(), ms)));
        }
        Plot {
            x: "ms after the loss".to_owned(),
            y: "million transactions a second".to_owned(),
            marks,
            ..Plot::new(
                format!("recovery, {}", one.label),
                vec![Curve::ours(one.label.clone(), points)],
            )
        }
    };
    all.iter().map(plot).collect()
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
            let tps = before.into_iter().chain(after).collect();
            let measured = judge(case, tps, 6.0 / 9.0, Sightings::default(), 0);
            assert_eq!((measured.before_tps, measured.lowest_tps), (9.0, lowest));
            assert_eq!(measured.back_ms, back_ms, "{after:?}");
        }
    }

    #[test]
    fn a_copy_is_filled_from_its_first_write_until_it_is_whole() {
        let case = Case { made_anew_ms: Some(20), ..NOTHING };
        let seen = Sightings {
            joined: Some(21.5),
            copied: Some((1.0, 23.5)),
            whole: Some(23.5),
            ..Sightings::default()
        };
        let mut tps = vec![9.0; (LOST_AT_MS - WARM_UP_MS) as usize];
        tps.extend([0.0; 5]);
        tps.extend([6.0; 15]);
        tps.extend([0.0, 1.0, 4.0, 1.0]);
        // It counts as settled only when it has been whole for a while.
        tps.extend([0.0; BEFORE]);
        tps.extend([8.0; 3]);
        let measured = judge(&case, tps.clone(), 6.0 / 9.0, seen, 3000);
        assert_eq!(measured.back_ms, Some(5.0), "of the loss alone");
        assert_eq!(
            measured.filled,
            Some(Filled {
                made_anew_ms: 20.0,
                joined_ms: 21.5,
                whole_ms: Some(23.5),
                copied: 1.0,
                copied_bytes: 3000,
                bytes_per_s: 1_500_000.0,
                without_tps: 6.0,
                filling_tps: 4.0,
                whole_tps: Some(8.0),
            })
        );
        // The run ended before the copies were whole.
        let half = Sightings { copied: Some((0.5, 24.0)), whole: None, ..seen };
        let half = judge(&case, tps.clone(), 6.0 / 9.0, half, 3000).filled.expect("it has begun");
        assert_eq!((half.copied_bytes, half.bytes_per_s), (1500, 600_000.0));
        assert_eq!((half.filling_tps, half.whole_ms, half.whole_tps), (2.5, None, None));
        assert_eq!(judge(&case, tps, 6.0 / 9.0, Sightings::default(), 3000).filled, None);
    }

    #[test]
    fn what_is_measured_can_be_run() {
        for case in &CASES {
            bench::check(&line(case, "cx3-56g-fitted")).expect("sound");
        }
    }
}
