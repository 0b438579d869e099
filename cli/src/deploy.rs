//! Which cluster a benchmark runs on.
//!
//! The one place that knows which fabrics this build has.

use std::sync::Arc;

use lotus_benchmarks::config::Fabric;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::{self, BenchError, Options, Outcome};
use lotus_benchmarks::lotus::Embedded;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::workload::Workload;

/// Starts the cluster that the options ask for and runs a workload on it.
///
/// # Errors
/// What the harness says, and if this build has no such fabric.
pub fn run<W: Workload>(
    workload: W,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Outcome, BenchError> {
    match options.cluster.fabric {
        Fabric::Local => {
            let mut cluster = Embedded::start(&options.cluster, &options.load)?;
            harness::run(&mut cluster, workload, options, progress)
        }
        other => {
            let why = format!("the {} fabric is not available in this build", other.name());
            Err(DeployError::Refused(why).into())
        }
    }
}
