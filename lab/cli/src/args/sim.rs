//! Flags of `lotus-lab sim`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lotus_benchmarks::config::Locks;
use lotus_locksystems::LockSpec;
use lotus_runner::args::LOCKS;
use lotus_runner::args::values::{count, one_of};

#[derive(Debug, Args)]
pub struct SimArgs {
    #[command(subcommand)]
    pub task: SimTask,
}

#[derive(Debug, Subcommand)]
pub enum SimTask {
    /// Runs one scenario for each seed on all cores, and sums up.
    Run(SimRunArgs),
    /// Runs one seed again, and shows everything that happens.
    Replay(SimReplayArgs),
    /// Reduces the failing scenario of a seed to a short one, and prints it.
    Shrink(SimReplayArgs),
    /// Runs lock systems under faults, without an engine: one trial for each seed.
    Locks(SimLocksArgs),
    /// Lists the named scenarios.
    List,
    /// Breaks every rule of the protocol in turn, and shows which check notices.
    #[cfg(feature = "sabotage")]
    Sabotage(SabotageArgs),
    /// Strikes every node that takes part in a step of the protocol or of recovery, at each step.
    #[cfg(feature = "fault-points")]
    Matrix(MatrixArgs),
}

#[cfg(feature = "fault-points")]
#[derive(Debug, Args)]
pub struct MatrixArgs {
    /// Every coordinate, not one for each point.
    #[arg(long)]
    pub all: bool,
    /// Coordinates of one point, or a single coordinate, by the names in the table.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Writes the scenario of the one coordinate, and does not run it.
    #[arg(long, requires = "only")]
    pub show: bool,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=u64::from(u32::MAX)))]
    pub from: u64,
    /// Threads [default: one for each core].
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub workers: Option<usize>,
}

#[cfg(feature = "sabotage")]
#[derive(Debug, Args)]
pub struct SabotageArgs {
    /// Seeds after which the hunt for a rule is given up, and which a sound engine must survive.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub seeds: u64,
    /// Seeds of each scenario in the control, in which nothing is broken, if the scenario's rules
    /// took fewer.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub control: Option<u64>,
    /// One rule alone.
    #[arg(long, value_name = "NAME")]
    pub rule: Option<String>,
    /// Threads [default: one for each core].
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub workers: Option<usize>,
}

#[derive(Debug, Args)]
pub struct SimRunArgs {
    /// Number of seeds.
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=u64::from(u32::MAX)))]
    pub from: u64,
    /// Threads [default: one for each core].
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub workers: Option<usize>,
    /// Writes the summary as JSON to a file; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub scenario: ScenarioArgs,
}

#[derive(Debug, Args)]
pub struct SimLocksArgs {
    /// Number of seeds.
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=u64::from(u32::MAX)))]
    pub from: u64,
    /// One lock system alone [default: each seed's own].
    #[arg(long, value_name = "NAME", conflicts_with = "scenario")]
    pub lock: Option<LockSpec>,
    /// A named scenario, each scenario in turn (all), or a list of scenarios (list) [default: one
    /// of each seed's own].
    #[arg(long, value_name = "NAME|all|list")]
    pub scenario: Option<String>,
    /// Locks as published, which fail in many scenarios.
    #[arg(long)]
    pub as_published: bool,
    /// Threads [default: one for each core].
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub workers: Option<usize>,
    /// Writes the summary as JSON to a file; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SimReplayArgs {
    /// The seed.
    #[arg(long, value_name = "SEED")]
    pub seed: u64,
    #[command(flatten)]
    pub scenario: ScenarioArgs,
}

#[derive(Debug, Args)]
pub struct ScenarioArgs {
    /// A named scenario, all scenarios in turn (all), or a file [default: one of each seed's own].
    #[arg(long, value_name = "NAME|all|FILE")]
    pub scenario: Option<String>,
    /// Locks of all seeds: lock tables on the compute nodes, or words of the memory nodes
    /// [default: each seed's own].
    #[arg(long, value_name = "NAME", conflicts_with = "scenario", value_parser = one_of(LOCKS))]
    pub locks: Option<Locks>,
    /// Events after which a run is stopped.
    #[arg(long, value_name = "N", default_value_t = 50_000_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub max_events: u64,
}
