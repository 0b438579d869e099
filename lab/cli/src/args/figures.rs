//! Flags of `lotus-lab figures`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use lotus_runner::args::values::count;

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
