//! `lotus bench`: a workload on a cluster of its own (`lotus_runner::bench`), or on a running
//! cluster (`drive`). Imports `apps` and `config`.

#[cfg(feature = "tcp")]
mod drive;

use lotus_runner::args::BenchArgs;
use lotus_runner::bench::{self, Failure};
use lotus_runner::show::Verdict;

/// Runs a benchmark and shows its result.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &BenchArgs) -> Result<Verdict, Failure> {
    #[cfg(feature = "tcp")]
    if let Some(path) = &args.common().cluster {
        bench::check(args)?;
        let file = crate::config::read(path, None);
        let file = file.map_err(|error| Failure::Arguments(error.to_string()))?;
        let mut args = args.clone();
        drive::sized(&file, &mut args).map_err(Failure::Arguments)?;
        return bench::run_at(&args, &drive::RunningCluster(&file));
    }
    bench::run(args)
}
