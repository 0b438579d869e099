//! `lotus-lab figures`: experiments of the papers, simulated, beside the published results.
//!
//! An experiment is a file in `lab/cli/figures`: series of benchmarks that differ in a flag or two.
//! All run on the simulated testbed of LOTUS (§8.1), with data, caches and lock tables divided by
//! ten. (TPC-C keeps its warehouses, since contention depends on them, and has a tenth of their
//! customers and items.) Absolute figures of another cluster mean little, so each point is compared
//! with another point of its series, for our results and for the published results. Where results
//! differ, the file says why; parameters are not adjusted to match.
//!
//! * `catalogue`: experiments by their names, and files of the user; `run`: measures experiments
//!   and shows their findings; `report`: a page about the experiments, from stored points;
//! * `transactions`: figures of transactions; `locks`: figures of lock systems alone, on the
//!   testbeds of their papers; `recovery`: figures of losses; each is an `experiment`;
//! * `judge`: bands around published ratios; `observed`: the fields read from a report; `timeline`;
//!   `command`: command lines of points; `without`: broken rules;
//! * `parallel`: several points at a time; `grid`, `plot`, `progress`: tables, plots, and progress.
//!
//! Imports `bench` and `args`.

mod catalogue;
mod command;
mod experiment;
mod grid;
mod judge;
mod locks;
mod observed;
mod parallel;
mod plot;
mod progress;
mod recovery;
mod report;
mod run;
mod timeline;
mod transactions;
mod without;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use lotus_benchmarks::output::OutputError;
use lotus_benchmarks::stream::StandardOutput;

use crate::args::{FiguresArgs, FiguresTask};
use crate::bench;
use lotus_runner::show::Verdict;

/// Failure of an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FigureError {
    /// An experiment cannot be run.
    #[error(transparent)]
    Refused(#[from] catalogue::ChoiceError),
    /// The folder of a report cannot be used. Name another folder.
    #[error(transparent)]
    Folder(#[from] report::FolderError),
    /// A benchmark did not finish.
    #[error("{label}: {error}")]
    Bench {
        /// The measured point.
        label: String,
        /// The benchmark's failure.
        error: bench::Failure,
    },
    /// A result does not have this program's format.
    #[error("{0}: what was measured cannot be read: {1}")]
    Result(String, serde_json::Error),
    /// The result could not be written to its path. Name another path.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The standard output is closed.
    #[error("cannot write the result: {0}")]
    Stdout(#[from] io::Error),
    /// A plot could not be written to its path. Name another directory.
    #[error("cannot draw {0}: {1}")]
    Plot(PathBuf, String),
}

/// Runs the subcommand.
///
/// # Errors
/// [`FigureError`] if there is no result.
pub fn run(args: &FiguresArgs) -> Result<Verdict, FigureError> {
    match &args.task {
        FiguresTask::List => list(),
        FiguresTask::Run(args) => run::run(args),
        FiguresTask::Report(args) => report::run(args),
    }
}

/// Whether an experiment has this name, or all have.
pub fn is_known(name: &str) -> bool {
    name == catalogue::ALL || catalogue::names().any(|known| known == name)
}

fn list() -> Result<Verdict, FigureError> {
    let mut text = String::new();
    for one in catalogue::names().filter_map(catalogue::known) {
        let (title, source) = (one.experiment.title(), one.experiment.source());
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{:<20}{title} ({source})", one.name);
    }
    StandardOutput.write_all(text.as_bytes())?;
    Ok(Verdict::Sound)
}
