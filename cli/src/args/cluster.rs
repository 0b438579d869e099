//! Arguments of `lotus cluster`, `lotus mn` and `lotus cn`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

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
        /// How long to wait, in seconds.
        #[arg(long = "wait", value_name = "SECONDS", default_value_t = 60)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
        wait_secs: u64,
    },
    /// Shows every node. The exit code is 1 unless all serve.
    Status {
        #[command(flatten)]
        place: ClusterPlace,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Ends the nodes that were started on this host.
    Down {
        #[command(flatten)]
        place: ClusterPlace,
    },
}

/// Where a cluster is described, and remembered.
#[derive(Debug, Args)]
pub struct ClusterPlace {
    /// Description of the cluster.
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Where this host keeps process ids, logs and sockets [default: beside the file, ending in
    /// .state].
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    #[command(flatten)]
    pub place: ClusterPlace,
    /// Its place among the nodes of its kind, from 0.
    #[arg(long, value_name = "N")]
    pub node: u16,
}
