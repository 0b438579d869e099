//! The command line of `lotus`: every flag with its range and default, but for the flags of a
//! benchmark, which `lotus-lab` has too (`lotus_runner::args`).

#[cfg(feature = "tcp")]
mod cluster;
#[cfg(feature = "tcp")]
mod rows;
mod top;

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
#[cfg(feature = "tcp")]
use lotus_node::command_line::NodeCommand;
use lotus_runner::args::{self, BenchArgs, HostArgs, OF_OTHER_ENGINES};

#[cfg(all(feature = "tcp", feature = "fault-points"))]
pub use cluster::ClusterMatrixArgs;
#[cfg(feature = "tcp")]
pub use cluster::{ChaosArgs, ClusterArgs, ClusterTask, OnOff, ShardsArgs, ShardsTask};
#[cfg(feature = "tcp")]
pub use rows::{DelArgs, Format, FormatArgs, GetArgs, PutArgs, RangeArgs, ScanArgs, TablesArgs};
pub use top::TopArgs;

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
        Self::of(Self::shown().try_get_matches()?)
    }

    /// Parses a command line given as text.
    ///
    /// # Errors
    /// As [`Cli::read`].
    pub fn typed(line: &str) -> Result<Self, clap::Error> {
        Self::of(Self::shown().try_get_matches_from(line.split_whitespace())?)
    }

    /// The flags of engines that `lotus-lab` measures are understood, to be refused with a sentence
    /// of their own, and not shown.
    fn shown() -> clap::Command {
        let is_of_others = |arg: &clap::Arg| {
            let flag = arg.get_id().as_str().replace('_', "-");
            flag == "engine" || OF_OTHER_ENGINES.contains(&flag.as_str())
        };
        Self::command().mut_subcommand("bench", |bench| {
            bench.mut_subcommands(|workload| {
                workload.mut_args(|arg| {
                    let hidden = arg.is_hide_set() || is_of_others(&arg);
                    arg.hide(hidden)
                })
            })
        })
    }

    fn of(mut matches: clap::ArgMatches) -> Result<Self, clap::Error> {
        let given = args::given(&matches);
        let mut cli = Self::from_arg_matches_mut(&mut matches)?;
        if let Command::Bench(bench) = &mut cli.command {
            bench.workload.common_mut().given = given;
        }
        Ok(cli)
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a workload and reports throughput, latency, verbs and an audit of the data.
    #[command(arg_required_else_help = true)]
    Bench(Box<BenchArgs>),
    /// Judges a history: can the isolation levels that were asked for account for all reads?
    #[command(arg_required_else_help = true)]
    Check(CheckArgs),
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

#[cfg(test)]
mod tests {
    use lotus_runner::args::WorkloadArgs;

    use super::*;

    /// Regression: a benchmark of a running cluster ignored flags that contradict its data's size.
    #[test]
    fn what_a_running_cluster_says_itself_is_refused() {
        let bench = |flags: &str| {
            let words = format!("lotus bench smallbank --cluster c.toml {flags}");
            let matches = Cli::command().try_get_matches_from(words.split_whitespace());
            let cli = Cli::of(matches.expect("the flags are known")).expect("they are sound");
            let Command::Bench(bench) = cli.command else { panic!("another command") };
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
        let WorkloadArgs::Smallbank(args) = task.workload else { panic!("another workload") };
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
