//! The cluster that a benchmark starts and ends.
//!
//! Only this module knows the fabrics of this build.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use lotus_benchmarks::config::{ClusterConfig, Engine, Fabric};
use lotus_benchmarks::deployment::{DeployError, MemoryNodesUse};
use lotus_benchmarks::harness::{BenchError, Options, Outcome};
use lotus_benchmarks::lotus::{Embedded, builder};
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_benchmarks::progress::Progress;
use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::Threads;
#[cfg(feature = "rdma")]
use lotus_fabric::rdma::{self, RdmaFabric};
use lotus_fabric::shm::{ShmError, ShmFabric};
use lotus_fabric::sim::{Config, Interleaving, Profile, SimMachines, World};
#[cfg(feature = "tcp")]
use lotus_fabric::tcp::{self, TcpFabric};

use super::Place;
use super::memory_nodes::MemoryNodes;
#[cfg(feature = "tcp")]
use crate::applications::load;
use crate::args::{BenchArgs, RdmaArgs, SPARE_COROUTINES};
use crate::host::sockets::Sockets;

/// Default size of a memory node of the `rdma` fabric, in bytes. Devices need the whole memory
/// resident and locked from the start, so the default cannot be the largest size that might ever be
/// needed.
#[cfg(feature = "rdma")]
const RDMA_MEMORY_BYTES: u64 = 512 << 20;

/// A cluster of the benchmark's own, on the fabric that the options name.
pub struct OwnCluster<'a> {
    rdma: &'a RdmaArgs,
}

impl<'a> OwnCluster<'a> {
    /// The cluster that the flags describe.
    pub fn new(args: &'a BenchArgs) -> Self {
        Self { rdma: &args.common().rdma }
    }
}

/// Use of a cluster once it is started. Boxed, so that the code of the fabrics is compiled once for
/// all workloads.
type ClusterUse<'a> = Box<dyn FnOnce(&mut Embedded) -> Result<Outcome, BenchError> + 'a>;

impl Place for OwnCluster<'_> {
    /// Starts the cluster described by the options and runs a workload on it.
    ///
    /// # Errors
    /// The errors of the harness; [`DeployError::Refused`] if this build does not have the fabric,
    /// or the engine is another than Lotus.
    fn run<W: OnLotus>(
        &self,
        workload: W,
        options: &Options,
        progress: &Arc<Progress>,
    ) -> Result<Outcome, BenchError> {
        if options.cluster.engine != Engine::Lotus {
            let (engine, workload) = (options.cluster.engine.name(), W::NAME);
            let why =
                format!("lotus-lab measures it: lotus-lab bench {workload} --engine {engine}");
            return Err(
                refused(&format!("{engine} is not an engine of this program: {why}")).into()
            );
        }
        let run = |cluster: &mut Embedded| {
            #[cfg(feature = "tcp")]
            if let Some(in_flight) = options.load.in_flight {
                return load::run(cluster, workload, options, in_flight, progress);
            }
            workload.bench(cluster, options, progress)
        };
        self.with(options, progress, Box::new(run))
    }
}

impl OwnCluster<'_> {
    /// Starts the cluster described by the options for `run`.
    fn with(
        &self,
        options: &Options,
        progress: &Arc<Progress>,
        run: ClusterUse<'_>,
    ) -> Result<Outcome, BenchError> {
        let config = shape(options);
        match options.cluster.fabric {
            Fabric::Local => run(&mut Embedded::start(&config, &options.load)?),
            Fabric::Sim => {
                let world = |nodes| sim_machines(nodes, options);
                run(&mut Embedded::start_on(builder(&config, &options.load), world)?)
            }
            #[cfg(feature = "rdma")]
            Fabric::Rdma => {
                let machines = |nodes| rdma_machines(nodes, self.rdma, options.load.seed);
                let memory_limit_bytes = config.memory_limit_bytes.or(Some(RDMA_MEMORY_BYTES));
                let config = ClusterConfig { memory_limit_bytes, ..config };
                run(&mut Embedded::start_on(builder(&config, &options.load), machines)?)
            }
            Fabric::Shm => run_on_processes(&config, options, progress, run),
            #[cfg(feature = "tcp")]
            Fabric::Tcp => {
                let machines = |nodes| tcp_machines(nodes, options.load.seed);
                run(&mut Embedded::start_on(builder(&config, &options.load), machines)?)
            }
            #[cfg(not(all(feature = "rdma", feature = "tcp")))]
            other => {
                let _unused_without_features = self.rdma;
                Err(DeployError::Refused(crate::args::common::lacks(other)).into())
            }
        }
    }
}

/// Simulated machines with the profile of the options.
pub fn sim_machines(nodes: u16, options: &Options) -> Result<SimMachines, DeployError> {
    let profile = profile(options.cluster.profile.as_deref().unwrap_or_default())?;
    let interleaving = Interleaving::PerBatch;
    let config = Config { interleaving, ..Config::new(options.load.seed, nodes, profile) };
    let world = World::new(config).map_err(|error| refused(&error))?;
    Ok(SimMachines::new(world))
}

/// The options' cluster, with spare coroutines if applications generate the load.
fn shape(options: &Options) -> ClusterConfig {
    let mut config = options.cluster.clone();
    if options.load.in_flight.is_some() {
        config.coroutines += SPARE_COROUTINES;
    }
    config
}

/// Starts a cluster for `run`, with every memory node in a process of its own.
fn run_on_processes(
    config: &ClusterConfig,
    options: &Options,
    progress: &Arc<Progress>,
    run: ClusterUse<'_>,
) -> Result<Outcome, BenchError> {
    let builder = builder(config, &options.load);
    let nodes = builder.node_count().map_err(|error| refused(&error))?;
    let memory_nodes = options.cluster.mns as u16;
    on_processes(nodes, memory_nodes, options.load.seed, progress, |machines, processes| {
        let mut cluster = Embedded::start_on(builder, |_| Ok(machines))?;
        let before = processes.processor_time();
        let outcome = run(&mut cluster);
        if progress.failure().is_some() {
            // A coordinator may repeat forever a request to a node that has ended, so no
            // coordinator is waited for. Coordinators end with this process, which has no further
            // work.
            std::mem::forget(cluster);
        }
        let mut outcome = outcome?;
        let used = processes.processor_time().zip(before).map(|(now, before)| now - before);
        outcome.memory_nodes = used.map(|used| MemoryNodesUse {
            processes: processes.count(),
            processor_s: used.as_secs_f64(),
        });
        Ok(outcome)
    })
}

/// Runs `run` over shared memory. The first `memory_nodes` of the `nodes` nodes are processes of
/// their own; the remaining nodes are in this process. If a memory node ends, so does the run.
pub fn on_processes<T>(
    nodes: u16,
    memory_nodes: u16,
    seed: u64,
    progress: &Arc<Progress>,
    run: impl FnOnce(Threads, &MemoryNodes) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let sockets = Sockets::new().map_err(|error| refused(&error))?;
    let arguments = |node: u16| -> Vec<OsString> {
        let (node, nodes) = (node.to_string(), nodes.to_string());
        let words = ["host", "--node", &node, "--nodes", &nodes, "--shm"].map(OsString::from);
        words.into_iter().chain([sockets.path().into()]).collect()
    };
    let env = Env::real(seed);
    let watched = Arc::clone(progress);
    let processes = MemoryNodes::start(memory_nodes, arguments, &env, move |why| watched.fail(why))
        .map_err(|error| refused(&error))?;
    let machines = || {
        let fabric = ShmFabric::join(sockets.path(), nodes, &env)?;
        (memory_nodes..nodes).try_for_each(|node| fabric.host(NodeId(node)))?;
        Ok(Threads::over(fabric, env.clone()))
    };
    let machines = machines().map_err(|error: ShmError| refused(&error).into());
    let outcome = machines.and_then(|machines| run(machines, &processes));
    // Once a node has ended, any other error is a consequence.
    match progress.failure() {
        Some(why) => Err(BenchError::Fatal(why.clone())),
        None => outcome,
    }
}

/// Threads of this process that reach the memory nodes through the machine's RDMA devices.
#[cfg(feature = "rdma")]
fn rdma_machines(nodes: u16, arguments: &RdmaArgs, seed: u64) -> Result<Threads, DeployError> {
    let config = rdma::Config::in_process(nodes, &arguments.rdma_devices);
    let mut config = config.map_err(|error| refused(&error))?;
    config.gid_index = arguments.rdma_gid_index;
    config.mtu = arguments.rdma_mtu;
    let env = Env::real(seed);
    let fabric = RdmaFabric::new(config, env.clone()).map_err(|error| refused(&error))?;
    Ok(Threads::over(fabric, env))
}

/// Threads of this process that reach the memory nodes, threads as well, over loopback. The memory
/// nodes demand a key that only this process has, because other users of the machine can reach the
/// ports.
#[cfg(feature = "tcp")]
pub fn tcp_machines(nodes: u16, seed: u64) -> Result<Threads, DeployError> {
    let key = lotus_security::Key::random().map_err(|error| refused(&error))?;
    let security = lotus_security::Security::SharedKey(key);
    let config = tcp::Config { security, ..tcp::Config::loopback(nodes) };
    let env = Env::real(seed);
    let fabric = TcpFabric::start(config, env.clone()).map_err(|error| refused(&error))?;
    Ok(Threads::over(fabric, env))
}

/// A built-in profile, or a profile from a file.
pub fn profile(name: &str) -> Result<Profile, DeployError> {
    if Profile::names().any(|known| known == name) || !Path::new(name).exists() {
        return Profile::named(name).map_err(|error| refused(&error));
    }
    let text = std::fs::read(name)
        .map_err(|error| DeployError::Refused(format!("cannot read {name}: {error}")))?;
    Profile::parse(name, &text).map_err(|error| refused(&error))
}

/// A refusal with the sentence of an error.
pub fn refused(error: &dyn Display) -> DeployError {
    DeployError::Refused(error.to_string())
}
