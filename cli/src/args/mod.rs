//! The command line: every flag with its range and default.
//!
//! clap refuses a flag that is invalid by itself, through the parsers below; [`CommonArgs::check`]
//! refuses flags that are invalid only together.

mod bank;
#[cfg(feature = "tcp")]
mod cluster;
pub mod common;
mod engine;
mod lock_trace;
mod locks;
#[cfg(feature = "tcp")]
mod rows;
mod top;
mod tree;
mod values;
mod workload;

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use lotus_locksystems::LockName;

pub use bank::BankArgs;
#[cfg(all(feature = "tcp", feature = "fault-points"))]
pub use cluster::ClusterMatrixArgs;
#[cfg(feature = "tcp")]
pub use cluster::{ChaosArgs, ClusterArgs, ClusterTask, OnOff, ShardsArgs, ShardsTask};
pub use common::{CommonArgs, LOCKS, RdmaArgs, SPARE_COROUTINES};
pub use lock_trace::LockTraceArgs;
pub use locks::{LockRunArgs, LocksArgs, ObjectsArgs, SystemArgs};
use lotus_benchmarks::config::Locks;
#[cfg(feature = "tcp")]
use lotus_node::command_line::NodeCommand;
#[cfg(feature = "tcp")]
pub use rows::{DelArgs, Format, FormatArgs, GetArgs, PutArgs, RangeArgs, ScanArgs, TablesArgs};
pub use top::TopArgs;
pub use tree::TreeArgs;
use values::{count, one_of};
pub use workload::{KvsArgs, SmallbankArgs, TatpArgs, TpccArgs, YcsbArgs};

/// ACID transactions over disaggregated memory.
#[derive(Debug, Parser)]
#[command(name = "lotus", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads the command line of this process.
    ///
    /// # Errors
    /// [`clap::Error`] if the command line is not valid, or asks for help or the version.
    pub fn read() -> Result<Self, clap::Error> {
        Self::of(Self::command().try_get_matches()?)
    }

    /// Parses a command line given as text.
    ///
    /// # Errors
    /// As [`Cli::read`].
    pub fn typed(line: &str) -> Result<Self, clap::Error> {
        Self::of(Self::command().try_get_matches_from(line.split_whitespace())?)
    }

    fn of(mut matches: ArgMatches) -> Result<Self, clap::Error> {
        let workload = matches.subcommand().and_then(|(_, bench)| bench.subcommand());
        let given = workload.map(|(_, flags)| given(flags)).unwrap_or_default();
        let mut cli = Self::from_arg_matches_mut(&mut matches)?;
        if let Command::Bench(task) = &mut cli.command
            && let BenchTask::Load(workload) = &mut **task
        {
            workload.common_mut().given = given;
        }
        Ok(cli)
    }
}

/// Names of the flags present on the command line.
fn given(flags: &ArgMatches) -> Vec<String> {
    let is_given = |id: &&clap::Id| {
        // Groups have no source.
        matches!(flags.try_contains_id(id.as_str()), Ok(true))
            && flags.value_source(id.as_str()) == Some(ValueSource::CommandLine)
    };
    flags.ids().filter(is_given).map(|id| id.as_str().replace('_', "-")).collect()
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a workload and reports throughput, latency, verbs and an audit of the data.
    #[command(subcommand, arg_required_else_help = true)]
    Bench(Box<BenchTask>),
    /// Judges a history: can the isolation levels that were asked for account for all reads?
    #[command(arg_required_else_help = true)]
    Check(CheckArgs),
    /// Runs the whole cluster on virtual time, with faults, and checks its invariants.
    #[command(arg_required_else_help = true)]
    Sim(SimArgs),
    /// Runs experiments of the papers in simulation, and compares them with the published results.
    #[command(arg_required_else_help = true)]
    Figures(FiguresArgs),
    /// Shows a running cluster or benchmark in the terminal, as it goes on.
    #[command(arg_required_else_help = true)]
    Top(TopArgs),
    /// Starts and stops a cluster of processes, and shows its status.
    #[cfg(feature = "tcp")]
    #[command(arg_required_else_help = true)]
    Cluster(ClusterArgs),
    /// Shows which compute node of a running cluster owns which shards, and moves them.
    #[cfg(feature = "tcp")]
    Shards(ShardsArgs),
    /// Lists the tables of a running cluster, or drops one.
    #[cfg(feature = "tcp")]
    #[command(arg_required_else_help = true)]
    Tables(TablesArgs),
    /// Shows the value of a row of a running cluster.
    #[cfg(feature = "tcp")]
    #[command(arg_required_else_help = true)]
    Get(GetArgs),
    /// Writes a row of a running cluster, whether it exists or not.
    #[cfg(feature = "tcp")]
    #[command(arg_required_else_help = true)]
    Put(PutArgs),
    /// Deletes a row of a running cluster.
    #[cfg(feature = "tcp")]
    #[command(arg_required_else_help = true)]
    Del(DelArgs),
    /// Shows the rows of a table of a running cluster, all as of one moment.
    #[cfg(feature = "tcp")]
    #[command(arg_required_else_help = true)]
    Scan(ScanArgs),
    /// Kills and pauses nodes of a cluster of processes under load, and audits the data afterwards.
    #[cfg(feature = "tcp")]
    #[command(arg_required_else_help = true)]
    Chaos(ChaosArgs),
    #[cfg(feature = "tcp")]
    #[command(flatten)]
    Node(NodeCommand),
    /// Hosts a memory node of a benchmark until the standard input ends.
    #[command(hide = true)]
    Host(HostArgs),
}

#[derive(Debug, Args)]
pub struct HostArgs {
    /// Directory of the cluster's sockets.
    #[arg(long, value_name = "DIRECTORY")]
    pub shm: PathBuf,
    /// The node's number.
    #[arg(long, value_name = "N")]
    pub node: u16,
    /// Number of the cluster's nodes.
    #[arg(long, value_name = "N")]
    pub nodes: u16,
}

#[derive(Debug, Args)]
pub struct FiguresArgs {
    #[command(subcommand)]
    pub task: FiguresTask,
}

#[derive(Debug, Subcommand)]
pub enum FiguresTask {
    /// Lists the experiments.
    List,
    /// Runs experiments, one after the other. Each takes minutes.
    Run(FiguresRunArgs),
    /// Writes one HTML page about all experiments; measures missing points, and continues an
    /// interrupted run.
    Report(FiguresReportArgs),
}

#[derive(Debug, Args)]
pub struct FiguresReportArgs {
    /// Experiments, or files of experiments, or all [default: all that this build can run].
    #[arg(value_name = "NAME|FILE|all")]
    pub names: Vec<String>,
    /// Folder of the page and of all measured points; made if it does not exist.
    #[arg(long, value_name = "DIRECTORY")]
    pub out: PathBuf,
    /// Measures each point for a moment, and sweeps at three loads, to take a minute or so.
    #[arg(long)]
    pub short: bool,
    /// Measures all points anew, whichever program measured the points in the folder.
    #[arg(long)]
    pub again: bool,
    /// Points measured at a time; some of full length take 6 GB of memory [default: one for each
    /// core with --short, otherwise 1].
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub workers: Option<usize>,
}

#[derive(Debug, Args)]
pub struct FiguresRunArgs {
    /// Experiments, or files of experiments, or all.
    #[arg(value_name = "NAME|FILE|all", required = true)]
    pub names: Vec<String>,
    /// Measures each point for a moment, and sweeps at three loads, to take a minute or so.
    #[arg(long)]
    pub short: bool,
    /// Writes every report as JSON to a file; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Directory for plots, as SVG; made if it does not exist.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/figures")]
    pub plots: PathBuf,
    /// Points measured at a time; some of full length take 6 GB of memory [default: one for each
    /// core with --short, otherwise 1].
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub workers: Option<usize>,
}

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
    pub lock: Option<LockName>,
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

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The history, one attempt of a transaction a line; - is the standard input.
    #[arg(value_name = "FILE")]
    pub history: PathBuf,
    /// Demands real-time order as well: a transaction that ended before another began comes first.
    #[arg(long)]
    pub strict: bool,
    /// Writes the result as JSON to a file; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub enum BenchTask {
    #[command(flatten)]
    Load(WorkloadArgs),
    /// A lock system alone, without transactions: acquire, a few verbs, release.
    Locks(LocksArgs),
    /// An object store on the locks of memory nodes: gets and sets of whole objects.
    Objects(ObjectsArgs),
    /// A tree on memory nodes under their locks, as Sherman has it: searches and updates.
    Tree(TreeArgs),
    /// Locks of the transactions of TATP, TPC-C or a file, under two-phase locking.
    LockTrace(LockTraceArgs),
    /// A bank whose balances are at a server, under the locks of its accounts.
    Bank(BankArgs),
}

/// A benchmark of transactions.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub workload: WorkloadArgs,
}

#[derive(Clone, Debug, Subcommand)]
pub enum WorkloadArgs {
    /// One table of 8-byte keys and 40-byte values; transactions read or update one record.
    Kvs(KvsArgs),
    /// A bank with savings and checking accounts and six transactions.
    Smallbank(SmallbankArgs),
    /// A registry of mobile subscribers: four tables and seven transactions.
    Tatp(TatpArgs),
    /// A company with warehouses, customers, stock and orders, and five transactions.
    Tpcc(TpccArgs),
    /// One table; reads, updates, inserts, ranges and read-modify-writes in six mixes (YCSB).
    Ycsb(YcsbArgs),
}

impl BenchArgs {
    /// The flags common to all workloads.
    pub fn common(&self) -> &CommonArgs {
        self.workload.common()
    }
}

impl WorkloadArgs {
    /// Name of the workload.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Kvs(_) => "kvs",
            Self::Smallbank(_) => "smallbank",
            Self::Tatp(_) => "tatp",
            Self::Tpcc(_) => "tpcc",
            Self::Ycsb(_) => "ycsb",
        }
    }

    /// The flags common to all workloads.
    pub fn common_mut(&mut self) -> &mut CommonArgs {
        match self {
            Self::Kvs(args) => &mut args.common,
            Self::Smallbank(args) => &mut args.common,
            Self::Tatp(args) => &mut args.common,
            Self::Tpcc(args) => &mut args.common,
            Self::Ycsb(args) => &mut args.common,
        }
    }

    /// The flags common to all workloads.
    pub fn common(&self) -> &CommonArgs {
        match self {
            Self::Kvs(args) => &args.common,
            Self::Smallbank(args) => &args.common,
            Self::Tatp(args) => &args.common,
            Self::Tpcc(args) => &args.common,
            Self::Ycsb(args) => &args.common,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a benchmark of a running cluster ignored flags that contradict its data's size.
    #[test]
    fn what_a_running_cluster_says_itself_is_refused() {
        let bench = |flags: &str| {
            let words = format!("lotus bench smallbank --cluster c.toml {flags}");
            let matches = Cli::command().try_get_matches_from(words.split_whitespace());
            let cli = Cli::of(matches.expect("the flags are known")).expect("they are sound");
            let Command::Bench(task) = cli.command else { panic!("another command") };
            let BenchTask::Load(bench) = *task else { panic!("another benchmark") };
            bench.common().check()
        };
        assert_eq!(bench("--secs 1 --through-client 8 --hot-accounts 9 --json -"), Ok(()));
        let refused =
            "--accounts 5|--cns 2|--lock-table 1M|--seed 1|--rate 9|--history h|--fabric tcp";
        for flag in refused.split('|') {
            let name = flag.split(' ').next().expect("a name");
            let why = bench(flag).expect_err(flag);
            assert!(why.starts_with(&format!("{name} makes no sense with --cluster")), "{why}");
        }
        let fine = Cli::try_parse_from(["lotus", "bench", "smallbank", "--accounts", "5"]);
        assert!(fine.is_ok());
    }

    #[test]
    fn defaults_are_those_of_the_design() {
        let cli = Cli::try_parse_from(["lotus", "bench", "smallbank"]).expect("defaults suffice");
        let Command::Bench(task) = cli.command else { panic!("another command: {cli:?}") };
        let BenchTask::Load(WorkloadArgs::Smallbank(args)) = *task else {
            panic!("another workload")
        };
        assert_eq!(args.common.check(), Ok(()));
        let options = args.common.options();
        let cluster = options.cluster;
        assert_eq!((cluster.cns, cluster.threads, cluster.coroutines), (2, 1, 16));
        assert_eq!((cluster.mns, cluster.replicas, cluster.versions), (3, 3, 2));
        assert_eq!((cluster.lock_table_bytes, cluster.vt_cache), (32 << 20, 64 << 10));
        assert!(options.audit && !options.floor && !options.history);
        assert_eq!(options.load.rate_tps, None);
    }
}
