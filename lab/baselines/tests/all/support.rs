//! One run of a workload on an engine, in simulation or on threads.

use std::sync::Arc;

use lotus_baselines::{Engine, Options, Size};
use lotus_benchmarks::config::{Aborted, ClusterConfig, LoadConfig, Routing};
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::harness::{Options as Bench, Outcome};
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::machines::Threads;
use lotus_fabric::sim::{Config, Profile, SimMachines, World};

/// Machines of a run.
#[derive(Clone, Copy)]
pub(crate) enum On {
    Simulation,
    Threads,
}

/// A run.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) engine: Engine,
    pub(crate) options: Options,
    pub(crate) on: On,
    pub(crate) isolation: Isolation,
    pub(crate) coroutines: usize,
    pub(crate) versions: u32,
    /// Time of the clients, in seconds.
    pub(crate) secs: f64,
    pub(crate) seed: u64,
}

impl Case {
    /// A short simulation of an engine with its faults mended.
    pub(crate) fn of(engine: Engine) -> Self {
        Self {
            engine,
            options: Options::default(),
            on: On::Simulation,
            isolation: Isolation::Serializable,
            coroutines: 4,
            versions: 2,
            secs: 0.004,
            seed: 1,
        }
    }

    /// Runs a workload on three memory nodes and two compute nodes of two threads.
    pub(crate) fn run(self, workload: impl Workload) -> Outcome {
        let size = Size { memory_nodes: 3, compute_nodes: 2, threads: 2, replicas: 3 };
        let bench = Bench {
            cluster: ClusterConfig {
                cns: 2,
                threads: 2,
                coroutines: self.coroutines,
                versions: self.versions,
                ..ClusterConfig::default()
            },
            load: LoadConfig {
                isolation: self.isolation,
                other_isolation: 0.0,
                routing: Routing::Random,
                aborted: Aborted::Retry,
                secs: self.secs,
                warmup_secs: 0.0,
                rate_tps: None,
                seed: self.seed,
                in_flight: None,
                move_us: None,
                timeline_us: None,
                txns: None,
            },
            audit: true,
            floor: false,
            history: true,
        };
        let (settings, progress) = ((self.options, &bench), Arc::new(Progress::new(4, |_| {})));
        let outcome = match self.on {
            On::Simulation => {
                let profile = Profile::named("cx3-56g").expect("it is built in");
                let world = World::new(Config::new(self.seed, size.nodes(), profile));
                let machines = SimMachines::new(world.expect("it is sound"));
                lotus_baselines::run(self.engine, machines, size, settings, workload, &progress)
            }
            On::Threads => {
                let machines = Threads::new(size.nodes(), self.seed);
                lotus_baselines::run(self.engine, machines, size, settings, workload, &progress)
            }
        };
        outcome.expect("it runs")
    }
}

/// Fails with the checks that failed.
pub(crate) fn assert_sound(outcome: &Outcome, what: &str) {
    let audit = outcome.audit.as_ref().expect("it was asked for");
    let failed: Vec<_> = audit.checks.iter().filter(|check| check.has_failed()).collect();
    assert!(failed.is_empty(), "{what}: {failed:?}");
    assert!(outcome.tally.all_committed > 20, "{what}: {}", outcome.tally.all_committed);
}
