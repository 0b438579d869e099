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
#[cfg(feature = "rdma")]
use lotus_fabric::{
    env::Env,
    machines::Threads,
    rdma::{self, RdmaFabric},
};

use crate::args::RdmaArgs;

/// What a memory node of the `rdma` fabric takes unless somebody says otherwise. Devices need all
/// of it resident and locked from the start, so it cannot be as much as there might ever be.
#[cfg(feature = "rdma")]
const RDMA_MEMORY_BYTES: u64 = 512 << 20;

/// Starts the cluster that the options ask for and runs a workload on it.
///
/// # Errors
/// What the harness says, and if this build has no such fabric.
pub fn run<W: Workload>(
    workload: W,
    options: &Options,
    rdma: &RdmaArgs,
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
        #[cfg(feature = "rdma")]
        Fabric::Rdma => {
            let machines = |nodes| rdma_machines(nodes, rdma, options.load.seed);
            let mut config = options.cluster.clone();
            config.memory_limit_bytes.get_or_insert(RDMA_MEMORY_BYTES);
            let mut cluster = Embedded::start_on(lotus::builder(&config, &options.load), machines)?;
            harness::run(&mut cluster, workload, options, progress)
        }
        other => {
            let _unused_without_features = rdma;
            Err(DeployError::Refused(lacks(other)).into())
        }
    }
}

/// Whether this build has a fabric.
pub const fn has(fabric: Fabric) -> bool {
    match fabric {
        Fabric::Local | Fabric::Sim => true,
        Fabric::Rdma => cfg!(feature = "rdma"),
        Fabric::Shm | Fabric::Tcp => false,
    }
}

/// What to say of a fabric that this build does not have.
pub fn lacks(fabric: Fabric) -> String {
    match fabric {
        Fabric::Rdma => "the rdma fabric is not available in this build; it needs the feature \
                         rdma: cargo build --release --features rdma"
            .to_owned(),
        other => format!("the {} fabric is not available in this build", other.name()),
    }
}

/// Threads of this process that reach its memory nodes through the machine's RDMA devices.
#[cfg(feature = "rdma")]
fn rdma_machines(
    nodes: u16,
    arguments: &RdmaArgs,
    seed: u64,
) -> Result<Threads<RdmaFabric>, DeployError> {
    let config = rdma::Config::in_process(nodes, &arguments.rdma_devices);
    let mut config = config.map_err(|error| refused(&error))?;
    config.gid_index = arguments.rdma_gid_index;
    config.mtu = arguments.rdma_mtu;
    let env = Env::real(seed);
    let fabric = RdmaFabric::new(config, env.clone()).map_err(|error| refused(&error))?;
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
