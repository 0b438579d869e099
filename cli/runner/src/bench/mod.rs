//! A benchmark of transactions: from checked flags to a report. Imports `applications`, `args`,
//! `host` and `show`.
//!
//! * `deploy`: the cluster that a benchmark starts; `memory_nodes`: memory nodes as processes of
//!   their own, and `lotus host`;
//! * `repeat`: one benchmark several times.
//!
//! Invalid arguments, output paths included, are refused before the run, so that a typing error
//! does not cost a run.

pub mod deploy;
pub mod memory_nodes;
mod repeat;

use std::io::{self, Write};
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::config::{Engine, Fabric};
use lotus_benchmarks::harness::{BenchError, Options, Outcome};
use lotus_benchmarks::hotspot::Hotspot;
use lotus_benchmarks::kvs::Kvs;
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_benchmarks::origin::Origin;
use lotus_benchmarks::output::OutputError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::report::Report;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_benchmarks::tatp::Tatp;
use lotus_benchmarks::tpcc::Tpcc;
use lotus_benchmarks::ycsb::{Mix, Ycsb};
use lotus_fabric::ids::ShardId;

use crate::args::{BenchArgs, KvsArgs, SmallbankArgs, WorkloadArgs};
use crate::host::origin;
use crate::show::outputs::{Outputs, Refused};
use crate::show::watch::{Shown, Watch};
use crate::show::{Verdict, screen};
use deploy::OwnCluster;

/// Where a workload runs. Places on Lotus need [`OnLotus`].
pub trait Place {
    /// Adapts the flags' options to a cluster that exists.
    fn adapt(&self, _options: &mut Options) {}

    /// Runs a workload.
    ///
    /// # Errors
    /// The errors of the harness.
    fn run<W: OnLotus>(
        &self,
        workload: W,
        options: &Options,
        progress: &Arc<Progress>,
    ) -> Result<Outcome, BenchError>;
}

/// Failure of a benchmark.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The arguments conflict. Change them.
    #[error("{0}")]
    Arguments(String),
    /// A result could not be written to its path. Name another path.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// Results cannot be written to these paths. Name other paths.
    #[error(transparent)]
    Outputs(#[from] Refused),
    /// The load ended early; the partial result was shown.
    #[error("the run was stopped: {0}")]
    Stopped(String),
    /// The benchmark did not finish.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// The standard output is closed.
    #[error("cannot write the result: {0}")]
    Stdout(#[from] io::Error),
}

/// Runs a benchmark on a cluster of its own, and shows the result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &BenchArgs) -> Result<Verdict, Failure> {
    run_at(args, &OwnCluster::new(args))
}

/// Runs a benchmark, and shows the result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run_at<P: Place>(args: &BenchArgs, place: &P) -> Result<Verdict, Failure> {
    check(args)?;
    let common = args.common();
    let outputs = Outputs::check(common.json.as_deref(), common.history.as_deref())?;
    let mut options = common.options();
    place.adapt(&mut options);
    if common.cluster.is_none() {
        warn_of_crowding(&options);
    }
    if common.repeat > 1 {
        return repeat::run(args, &options, place, &outputs);
    }
    let origin = origin::here();
    let outcome = measure(args, &options, place)?;
    show(origin, &options, &outcome, &outputs)
}

/// Runs a benchmark on a cluster of its own, and returns its report, without output.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn report(args: &BenchArgs) -> Result<Report, Failure> {
    report_at(args, &OwnCluster::new(args))
}

/// Runs a benchmark, and returns its report, without output.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn report_at<P: Place>(args: &BenchArgs, place: &P) -> Result<Report, Failure> {
    check(args)?;
    let (origin, mut options) = (Some(origin::here()), args.common().options());
    place.adapt(&mut options);
    Ok(Report { origin, ..Report::new(&options, &measure(args, &options, place)?) })
}

/// Refuses conflicting arguments.
///
/// # Errors
/// [`Failure::Arguments`].
pub fn check(args: &BenchArgs) -> Result<(), Failure> {
    if let WorkloadArgs::Smallbank(args) = &args.workload {
        hot_accounts(args)?;
    }
    let is_ordered = match &args.workload {
        WorkloadArgs::Tpcc(args) => args.ordered,
        WorkloadArgs::Ycsb(args) => args.ordered || args.mix == Mix::E,
        _ => false,
    };
    let engine = args.common().engine.engine;
    if is_ordered && engine != Engine::Lotus {
        let engine = engine.name();
        return Err(Failure::Arguments(format!("--engine {engine} has no ordered tables")));
    }
    args.common().check().map_err(Failure::Arguments)
}

fn measure<P: Place>(args: &BenchArgs, options: &Options, place: &P) -> Result<Outcome, Failure> {
    let coordinators = options.cluster.cns * options.cluster.threads;
    let common = args.common();
    let inside = options.load.in_flight.is_none() && common.cluster.is_none();
    let shown = Shown {
        at: common.live.as_deref(),
        bench: args.workload.name(),
        fabric: options.cluster.fabric.name(),
        has_aborts: inside,
        is_virtual: options.cluster.fabric == Fabric::Sim,
    };
    let watch = match common.quiet {
        true => Watch::unseen(coordinators, common.txns),
        false => Watch::start(coordinators, common.txns, "committed", shown)
            .map_err(|error| BenchError::from(deploy::refused(&error)))?,
    };
    let progress = &watch.progress;
    let outcome = match &args.workload {
        WorkloadArgs::Kvs(args) => {
            let kvs = Kvs::new(args.keys, args.update_ratio, args.zipf);
            let kvs = kvs.with_hotspot(hotspot(args, options.cluster.cns));
            place.run(kvs, options, progress)
        }
        WorkloadArgs::Smallbank(bank) => {
            let SmallbankArgs { accounts, hot_ratio, .. } = bank;
            let hot = hot_accounts(bank)?;
            let bank = SmallBank::new(*accounts, hot, *hot_ratio, options.load.seed);
            place.run(bank, options, progress)
        }
        WorkloadArgs::Tatp(args) => {
            let tatp = Tatp::new(args.subscribers, options.load.seed);
            place.run(tatp, options, progress)
        }
        WorkloadArgs::Tpcc(args) => {
            let tpcc = Tpcc::new(args.scale(), args.critical_field, options.load.seed);
            let tpcc = tpcc.with_paths(args.paths());
            place.run(tpcc, options, progress)
        }
        WorkloadArgs::Ycsb(args) => {
            let (value_bytes, ordered) = (args.value_bytes as usize, args.ordered);
            let ycsb = Ycsb::new(args.mix, args.records, value_bytes, args.zipf, ordered);
            place.run(ycsb, options, progress)
        }
    };
    Ok(outcome?)
}

/// The hotspot, if any, of a store whose shards are dealt out to `nodes` compute nodes.
fn hotspot(args: &KvsArgs, nodes: usize) -> Option<Hotspot> {
    args.hot_shards.map(|hot_shards| Hotspot {
        hot_shards,
        ratio: args.hot_ratio,
        every: Duration::from_secs_f64(args.jump),
        nodes: nodes as u64,
        shards: u64::from(ShardId::COUNT),
    })
}

/// The size of the hot set.
fn hot_accounts(args: &SmallbankArgs) -> Result<u64, Failure> {
    let default = || SmallBank::default_hot_accounts(args.accounts);
    match args.hot_accounts.unwrap_or_else(default) {
        1 => Err(Failure::Arguments("a hot set of 1 account has no one to pay".to_owned())),
        hot if hot > args.accounts => Err(Failure::Arguments(format!(
            "{hot} hot accounts are more than the {} accounts there are",
            args.accounts
        ))),
        hot => Ok(hot),
    }
}

/// Warns if there are more coordinators than cores, so that pollers have to take turns.
fn warn_of_crowding(options: &Options) {
    let coordinators = options.cluster.cns * options.cluster.threads;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    if coordinators > cores && options.cluster.fabric != Fabric::Sim {
        // A closed standard error is ignored.
        let _ = writeln!(
            io::stderr(),
            "warning: {coordinators} coordinators share {cores} cores, so latencies include \
             waiting for a core"
        );
    }
}

/// Writes the results, the human-readable result last.
fn show(
    origin: Origin,
    options: &Options,
    outcome: &Outcome,
    outputs: &Outputs,
) -> Result<Verdict, Failure> {
    let report = Report { origin: Some(origin), ..Report::new(options, outcome) };
    if let (Some(history), Some(output)) = (&outcome.history, &outputs.history) {
        output.write(|out| history.write(out))?;
    }
    if let Some(output) = &outputs.json {
        screen::write_json(output, &report)?;
    }
    let mut text = report.table();
    if let Some(audit) = &outcome.audit {
        text.push_str(&audit.verdict());
        text.push('\n');
    }
    screen::show(&text, &[&outputs.json, &outputs.history])?;
    if let Some(why) = &outcome.stopped {
        return Err(Failure::Stopped(why.clone()));
    }
    Ok(outcome.audit.as_ref().map_or(Verdict::Sound, |audit| audit.outcome.into()))
}
