//! Which cluster a benchmark runs on.
//!
//! The one place that knows which fabrics this build has.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use lotus_benchmarks::config::Fabric;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::{self, BenchError, Options, Outcome};
use lotus_benchmarks::lotus::{self, Embedded};
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::sim::{Config, Interleaving, Profile, SimMachines, World};
#[cfg(feature = "tcp")]
use lotus_fabric::{
    env::Env,
    machines::Threads,
    tcp::{self, TcpFabric},
};

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
        Fabric::Sim => {
            let profile = profile(options.cluster.profile.as_deref().unwrap_or_default())?;
            let world = |nodes| {
                let interleaving = Interleaving::PerBatch;
                let config =
                    Config { interleaving, ..Config::new(options.load.seed, nodes, profile) };
                let world = World::new(config).map_err(|error| refused(&error))?;
                Ok(SimMachines::new(world))
            };
            let mut cluster =
                Embedded::start_on(lotus::builder(&options.cluster, &options.load), world)?;
            harness::run(&mut cluster, workload, options, progress)
        }
        #[cfg(feature = "tcp")]
        Fabric::Tcp => {
            let machines = |nodes| tcp_machines(nodes, options.load.seed);
            let mut cluster =
                Embedded::start_on(lotus::builder(&options.cluster, &options.load), machines)?;
            harness::run(&mut cluster, workload, options, progress)
        }
        other => {
            let why = format!("the {} fabric is not available in this build", other.name());
            Err(DeployError::Refused(why).into())
        }
    }
}

/// Whether this build has a fabric.
pub const fn has(fabric: Fabric) -> bool {
    match fabric {
        Fabric::Local | Fabric::Sim => true,
        Fabric::Tcp => cfg!(feature = "tcp"),
        Fabric::Shm | Fabric::Rdma => false,
    }
}

/// Threads of this process that reach its memory nodes, threads as well, over loopback. With a key
/// that only this process has: other users of the machine reach the ports, too.
#[cfg(feature = "tcp")]
fn tcp_machines(nodes: u16, seed: u64) -> Result<Threads<TcpFabric>, DeployError> {
    let key = tcp::Key::random().map_err(|error| refused(&error))?;
    let security = tcp::Security::SharedKey(key);
    let config = tcp::Config { security, ..tcp::Config::loopback(nodes) };
    let env = Env::real(seed);
    let fabric = TcpFabric::start(config, env.clone()).map_err(|error| refused(&error))?;
    Ok(Threads::over(fabric, env))
}

/// A built-in profile, or one from a file.
fn profile(name: &str) -> Result<Profile, DeployError> {
    if Profile::names().any(|known| known == name) || !Path::new(name).exists() {
        return Profile::named(name).map_err(|error| refused(&error));
    }
    let text = std::fs::read(name)
        .map_err(|error| DeployError::Refused(format!("cannot read {name}: {error}")))?;
    Profile::parse(name, &text).map_err(|error| refused(&error))
}

fn refused(error: &dyn Display) -> DeployError {
    DeployError::Refused(error.to_string())
}
