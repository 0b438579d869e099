//! Flags of `lotus-lab bench lock-trace`.

use clap::Args;
use lotus_loads::traces::TatpTrace;

use super::locks::{LockRunArgs, SystemArgs};
use lotus_runner::args::values::{count, micros, ratio};

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct LockTraceArgs {
    /// Transactions: tatp, tpcc, or a file with a transaction a line, such as NEW r12 w77.
    #[arg(value_name = "tatp|tpcc|FILE")]
    pub trace: String,
    #[command(flatten)]
    pub system: SystemArgs,
    /// tatp: subscribers.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=TatpTrace::MAX_SUBSCRIBERS))]
    pub subscribers: u64,
    /// tatp: call forwardings have four locks a subscriber, divided by this.
    #[arg(long, value_name = "N", default_value_t = TatpTrace::FORWARDINGS_A_LOCK)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub forwarding_factor: u64,
    /// tpcc: warehouses of each compute node.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub warehouses: u32,
    /// tpcc: a lock for each row, with tables smaller by this divisor; 1 is the whole warehouse
    /// [default: 121 locks for each warehouse].
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub row_locks: Option<u32>,
    /// tpcc: share of transactions that read all customers for long; each warehouse then has one
    /// lock for its customers [default: no such transactions].
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    pub scans: Option<f64>,
    /// Execution time of a transaction of --scans, in microseconds.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=60_000_000))]
    pub scan_us: u64,
    /// Memory nodes, which share the locks.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(60))]
    pub mns: usize,
    /// Takes the locks of a transaction in ascending order, not in the order of the trace.
    #[arg(long)]
    pub sorted: bool,
    /// Time for which a transaction executes once it has its locks, in microseconds [default: 2.8
    /// of tatp, 7 of tpcc, 0 of a file].
    #[arg(long, value_name = "N", value_parser = micros)]
    pub exec_us: Option<f64>,
    /// A lane executes one transaction at a time, like a core that waits actively.
    #[arg(long)]
    pub busy: bool,
    /// Time after which an acquisition is given up, and its transaction begun again, in
    /// microseconds.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60_000_000))]
    pub timeout_us: u64,
    #[command(flatten)]
    pub run: LockRunArgs,
}
