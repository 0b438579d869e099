//! Arguments of `lotus cluster`, `lotus chaos` and `lotus shards`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use lotus_node::command_line::{BeginningArgs, ClusterPlace};

use lotus_runner::args::values::positive_secs;

#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub task: ClusterTask,
}

#[derive(Debug, Subcommand)]
pub enum ClusterTask {
    /// Starts the nodes whose addresses are this host's, and waits until all nodes serve.
    Up {
        #[command(flatten)]
        place: ClusterPlace,
        /// Longest wait, in seconds.
        #[arg(long = "wait", value_name = "SECONDS", default_value_t = 60)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
        wait_secs: u64,
        #[command(flatten)]
        beginning: BeginningArgs,
    },
    /// Shows every node. The exit code is 1 unless all serve.
    Status {
        #[command(flatten)]
        place: ClusterPlace,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Has a compute node write all data to a file, while transactions run.
    Snapshot {
        #[command(flatten)]
        place: ClusterPlace,
        /// Longest wait, in seconds.
        #[arg(long = "wait", value_name = "SECONDS", default_value_t = 600)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
        wait_secs: u64,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ends the nodes that were started on this host; takes a snapshot first if the file names a
    /// directory for snapshots.
    Down {
        #[command(flatten)]
        place: ClusterPlace,
        /// Longest wait for the snapshot, in seconds.
        #[arg(long = "wait", value_name = "SECONDS", default_value_t = 600)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
        wait_secs: u64,
        /// Takes no snapshot: what was committed since the last one is lost with the cluster.
        #[arg(long)]
        no_snapshot: bool,
        /// As --no-snapshot, and needed where the file names no directory for snapshots: all data
        /// is lost with the cluster.
        #[arg(long)]
        discard: bool,
        /// Declares, with etcd, that compute nodes of other hosts that do not answer have ended, so
        /// that the life of the cluster ends there. A node that does answer keeps it going.
        #[arg(long)]
        others_have_ended: bool,
        /// Ends the nodes of this host even if serving nodes of other hosts then lose the only
        /// authority, or the last copies of some rows.
        #[arg(long)]
        force: bool,
    },
    /// Strikes the processes of a small cluster at every step of a start, of a snapshot and of
    /// down, and checks what is left.
    #[cfg(feature = "fault-points")]
    Matrix(ClusterMatrixArgs),
}

#[cfg(feature = "fault-points")]
#[derive(Debug, Args)]
pub struct ClusterMatrixArgs {
    /// Every process at every step, killed and stopped; one killed at each step otherwise.
    #[arg(long)]
    pub all: bool,
    /// One step by its name, or one coordinate.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Clusters that are struck at the same time. Most of a run is waiting for leases.
    #[arg(long, value_name = "N", default_value = "6")]
    pub at_once: std::num::NonZeroU8,
}

#[derive(Debug, Args)]
pub struct ChaosArgs {
    #[command(flatten)]
    pub place: ClusterPlace,
    /// Schedule of faults: a file, or random for a schedule drawn from the seed.
    #[arg(long, value_name = "FILE|random")]
    pub schedule: PathBuf,
    /// Duration of the load, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = positive_secs)]
    pub secs: f64,
    /// Seed of random choices [default: the time].
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Number of times that a random schedule ends the cluster with a snapshot and starts it from
    /// there [default: about once a minute; 0 where the cluster's file has no snapshots].
    #[arg(long, value_name = "N")]
    pub restores: Option<usize>,
    /// The workload; the cluster must be loaded with it [default: the loaded workload].
    #[arg(long, value_name = "NAME", value_parser = ["kvs", "smallbank", "tatp", "tpcc"])]
    pub workload: Option<String>,
    /// Runs each node in a network namespace, NAME-mn-0 and so on, whose cables can be pulled at
    /// NAME-switch, and single paths between two be cut (scripts/cables.sh makes them).
    #[arg(long, value_name = "NAME")]
    pub namespaces: Option<String>,
    /// Hostile applications besides the callers: one never reads, one reads a byte a second, one
    /// sends garbage, and so on.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub hostile: usize,
    /// Writes what every call read and wrote to a file, for lotus check; calls are fewer then.
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Writes the result as JSON to a file; - is the standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ShardsArgs {
    #[command(subcommand)]
    pub task: Option<ShardsTask>,
    /// Description of the cluster.
    #[arg(long, value_name = "FILE", global = true)]
    pub file: Option<PathBuf>,
    /// Directory of process ids, logs and sockets on this host
    /// [default: beside the file, ending in .state].
    #[arg(long, value_name = "DIRECTORY", global = true)]
    pub state: Option<PathBuf>,
    /// Only shards that have rows of this table.
    #[arg(long, value_name = "NAME")]
    pub table: Option<String>,
    /// Only this compute node, with all its ranges and its hottest shards.
    #[arg(long, value_name = "N", value_parser = compute_node)]
    pub cn: Option<u16>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum ShardsTask {
    /// Moves shards to a compute node while transactions run.
    Move {
        /// Shards: 7, or 0-63, or 0-4094/2 for every second shard, or a list of these.
        #[arg(value_name = "SHARD|RANGE")]
        shards: String,
        /// The new owner.
        #[arg(long, value_name = "N", value_parser = compute_node)]
        to: u16,
    },
    /// Turns load balancing on or off, until the nodes end.
    Balance {
        /// On or off.
        switch: OnOff,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum OnOff {
    /// Compute nodes that have too much to do give shards away.
    On,
    /// Shards stay where they are.
    Off,
}

/// Parses a compute node's index or name, such as cn-0.
fn compute_node(text: &str) -> Result<u16, String> {
    let number = text.strip_prefix("cn-").unwrap_or(text);
    number.parse().map_err(|_| "a compute node is cn-0, or 0, and so on".to_owned())
}
