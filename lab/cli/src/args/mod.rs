//! The command line of `lotus-lab`: every flag with its range and default, but for the flags of a
//! benchmark of transactions, which `lotus` has too (`lotus_runner::args`).

mod bank;
mod figures;
mod lock_trace;
mod locks;
mod sim;
mod tree;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use lotus_runner::args::{self, HostArgs, WorkloadArgs};

pub use bank::BankArgs;
pub use figures::{FiguresArgs, FiguresReportArgs, FiguresRunArgs, FiguresTask};
pub use lock_trace::LockTraceArgs;
pub use locks::{LockRunArgs, LocksArgs, ObjectsArgs, SystemArgs};
#[cfg(feature = "fault-points")]
pub use sim::MatrixArgs;
#[cfg(feature = "sabotage")]
pub use sim::SabotageArgs;
pub use sim::{ScenarioArgs, SimArgs, SimLocksArgs, SimReplayArgs, SimRunArgs, SimTask};
pub use tree::TreeArgs;

/// The laboratory of Lotus: lock systems, other engines, simulated campaigns, published figures.
#[derive(Debug, Parser)]
#[command(name = "lotus-lab", version, arg_required_else_help = true)]
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

    fn of(mut matches: clap::ArgMatches) -> Result<Self, clap::Error> {
        let given = args::given(&matches);
        let mut cli = Self::from_arg_matches_mut(&mut matches)?;
        if let Command::Bench(task) = &mut cli.command
            && let BenchTask::Load(workload) = &mut **task
        {
            workload.common_mut().given = given;
        }
        Ok(cli)
    }
}

/// A command of `lotus-lab`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs a load on a lock system, or a workload on any engine, and reports what was measured.
    #[command(subcommand, arg_required_else_help = true)]
    Bench(Box<BenchTask>),
    /// Runs the whole cluster on virtual time, with faults, and checks its invariants.
    #[command(arg_required_else_help = true)]
    Sim(SimArgs),
    /// Runs experiments of the papers in simulation, and compares them with the published results.
    #[command(arg_required_else_help = true)]
    Figures(FiguresArgs),
    /// Hosts a memory node of a benchmark until the standard input ends.
    #[command(hide = true)]
    Host(HostArgs),
}

/// A benchmark.
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
