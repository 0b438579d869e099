//! `lotus-lab bench`: load on lock systems, and workloads on all engines. Imports `args`.
//!
//! * `baselines`: a workload on an engine other than Lotus;
//! * `locks`: load on a lock system alone;
//! * `objects`, `tree`, `lock_trace`, `bank`: an object store, a tree, transactions of a trace, and
//!   a bank on the locks of a lock system; `clients`: code shared by these benchmarks.
//!
//! Not here: a workload on Lotus (`lotus_runner::bench`).

pub mod bank;
mod baselines;
pub mod clients;
pub mod lock_trace;
pub mod locks;
pub mod objects;
pub mod tree;

use lotus_benchmarks::report::Report;
use lotus_runner::args::BenchArgs;
pub use lotus_runner::bench::Failure;
use lotus_runner::bench::{self, deploy};
use lotus_runner::show::Verdict;

use baselines::OtherEngine;

/// Runs a workload and shows its result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &BenchArgs) -> Result<Verdict, Failure> {
    check(args)?;
    match OtherEngine::of(args) {
        Some(engine) => bench::run_at(args, &engine),
        None => bench::run(args),
    }
}

/// Runs a workload and returns its report, without output.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn report(args: &BenchArgs) -> Result<Report, Failure> {
    check(args)?;
    match OtherEngine::of(args) {
        Some(engine) => bench::report_at(args, &engine),
        None => bench::report(args),
    }
}

/// Refuses conflicting arguments.
///
/// # Errors
/// [`Failure::Arguments`].
pub fn check(args: &BenchArgs) -> Result<(), Failure> {
    bench::check(args)?;
    if args.common().cluster.is_some() {
        let why = "--cluster is of lotus-lab bench: lotus-lab measures clusters of its own";
        return Err(Failure::Arguments(why.to_owned()));
    }
    Ok(())
}
