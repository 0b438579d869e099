//! Flags of a benchmark of transactions, with their ranges and defaults.
//!
//! clap refuses a flag that is invalid by itself, through the parsers in `values`;
//! [`CommonArgs::check`] refuses flags that are invalid only together.

pub mod common;
mod engine;
pub mod values;
mod workload;

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Subcommand};

pub use common::{CommonArgs, LOCKS, RdmaArgs, SPARE_COROUTINES};
pub use engine::{EngineArgs, OF_OTHER_ENGINES};
pub use workload::{KvsArgs, SmallbankArgs, TatpArgs, TpccArgs, YcsbArgs};

/// Flags of `lotus host`.
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

/// A benchmark of transactions.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// The workload, and its flags.
    #[command(subcommand)]
    pub workload: WorkloadArgs,
}

/// A workload, and its flags.
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

/// Names of the flags that the command line of `PROGRAM bench WORKLOAD` gives.
pub fn given(matches: &ArgMatches) -> Vec<String> {
    let workload = matches.subcommand().and_then(|(_, bench)| bench.subcommand());
    let Some((_, flags)) = workload else { return Vec::new() };
    let is_given = |id: &&clap::Id| {
        // Groups have no source.
        matches!(flags.try_contains_id(id.as_str()), Ok(true))
            && flags.value_source(id.as_str()) == Some(ValueSource::CommandLine)
    };
    flags.ids().filter(is_given).map(|id| id.as_str().replace('_', "-")).collect()
}
