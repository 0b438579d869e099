//! A workload on an engine other than Lotus.

use std::sync::Arc;

use lotus_baselines::{
    Deltas, Engine as Baseline, Faults, FordOptions, Known, Locking, Options as BaselineOptions,
    Records, Size,
};
use lotus_benchmarks::config::{
    AddressCache, BaselineConfig, CommitSteps, Engine, Fabric, Primaries, RecordStore,
};
use lotus_benchmarks::harness::{BenchError, Options, Outcome};
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::machines::Threads;

use lotus_runner::args::BenchArgs;
use lotus_runner::bench::Place;

use super::deploy::{refused, sim_machines};

/// An engine other than Lotus.
pub(super) struct OtherEngine(BaselineConfig);

impl OtherEngine {
    /// The engine that the flags name; `None` if it is Lotus.
    pub(super) fn of(args: &BenchArgs) -> Option<Self> {
        args.common().engine.config().map(Self)
    }
}

impl Place for OtherEngine {
    fn run<W: OnLotus>(
        &self,
        workload: W,
        options: &Options,
        progress: &Arc<Progress>,
    ) -> Result<Outcome, BenchError> {
        run(self.0, workload, options, progress)
    }
}

/// Runs a workload on the engine named in the options.
///
/// # Errors
/// The errors of the harness.
fn run<W: Workload>(
    config: BaselineConfig,
    workload: W,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<Outcome, BenchError> {
    let cluster = &options.cluster;
    let size = Size {
        memory_nodes: cluster.mns as u16,
        compute_nodes: cluster.cns as u16,
        threads: cluster.threads as u16,
        replicas: cluster.replicas as u16,
    };
    let settings = BaselineOptions {
        primaries: match config.primaries {
            Primaries::Table => lotus_baselines::Primaries::ByTable,
            Primaries::Shard => lotus_baselines::Primaries::ByBucket,
        },
        known: match cluster.address_cache {
            AddressCache::Warm => Known::Loaded,
            AddressCache::Cold | AddressCache::PerThread => Known::Nothing,
        },
        faults: if config.as_published { Faults::AsPublished } else { Faults::Mended },
        locking: if config.unlocked { Locking::Off } else { Locking::On },
        deltas: if config.loaded_deltas { Deltas::Loaded } else { Deltas::AtFirstUpdate },
        records: match config.record_store {
            RecordStore::Deltas => Records::Deltas,
            RecordStore::Full => Records::Full,
        },
        commit: match config.commit {
            CommitSteps::AtOnce => lotus_baselines::CommitSteps::AtOnce,
            CommitSteps::LogAndVisible => lotus_baselines::CommitSteps::LogAndVisible,
        },
        ford: FordOptions { item_bytes: config.item_bytes, flush: config.flush },
    };
    let engine = match cluster.engine {
        Engine::Motor => Baseline::Motor,
        Engine::Ford => Baseline::Ford,
        Engine::Lotus => return Err(refused(&"lotus is no baseline").into()),
    };
    let settings = (settings, options);
    match cluster.fabric {
        Fabric::Local => {
            let machines = Threads::new(size.nodes(), options.load.seed);
            lotus_baselines::run(engine, machines, size, settings, workload, progress)
        }
        Fabric::Sim => {
            let machines = sim_machines(size.nodes(), options)?;
            lotus_baselines::run(engine, machines, size, settings, workload, progress)
        }
        other => Err(refused(&format!(
            "--engine {} runs on the fabrics local and sim, not {}",
            cluster.engine.name(),
            other.name()
        ))
        .into()),
    }
}
