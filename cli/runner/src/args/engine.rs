//! The engine under test, and the features of engines other than Lotus.

use clap::Args;
use lotus_benchmarks::config::{
    AddressCache, BaselineConfig, CommitSteps, Engine, Fabric, Primaries, RecordStore,
};

use super::values::one_of;

/// Engines by their names.
const ENGINES: &[(&str, Engine)] =
    &[("lotus", Engine::Lotus), ("motor", Engine::Motor), ("ford", Engine::Ford)];
const PRIMARIES: &[(&str, Primaries)] = &[("table", Primaries::Table), ("shard", Primaries::Shard)];
const RECORD_STORES: &[(&str, RecordStore)] =
    &[("deltas", RecordStore::Deltas), ("full", RecordStore::Full)];
const COMMITS: &[(&str, CommitSteps)] =
    &[("at-once", CommitSteps::AtOnce), ("log-and-visible", CommitSteps::LogAndVisible)];

/// Flags for Lotus only.
const OF_LOTUS: &[&str] = &[
    "cluster",
    "through-client",
    "read-rule",
    "inline",
    "lock-table",
    "vt-cache",
    "sharding",
    "routing",
    "locks",
    "lock-wait",
    "timestamps",
    "visible",
    "retain-versions",
    "balance",
    "lease",
    "move-shards",
    "memory-limit",
    "floor",
];
/// Flags for engines other than Lotus.
pub const OF_OTHER_ENGINES: &[&str] = &[
    "placement",
    "as-published",
    "unlocked",
    "loaded-deltas",
    "record-store",
    "commit",
    "item-bytes",
    "flush",
];
/// Flags that FORD does not support.
const NOT_OF_FORD: &[&str] = &["isolation", "versions", "loaded-deltas", "record-store", "commit"];
/// Flags for FORD only.
const OF_FORD: &[&str] = &["item-bytes", "flush"];

/// Engine under test.
#[derive(Clone, Debug, Args)]
pub struct EngineArgs {
    /// Engine under test. Engines other than lotus are for measuring without faults, on the fabrics
    /// local and sim, and route at random.
    #[arg(long, default_value = "lotus", value_parser = one_of(ENGINES))]
    pub engine: Engine,
    /// Whether a row's primary follows its table, as published, or is dealt out as shards are (not
    /// for lotus).
    #[arg(long, default_value = "table", value_parser = one_of(PRIMARIES))]
    pub placement: Primaries,
    /// Keeps the faults of the published program: aborts free locks of other transactions, and
    /// reads and validation ignore locks (not for lotus).
    #[arg(long)]
    pub as_published: bool,
    /// Takes no locks, and loses updates: to measure what locks cost. Needs --audit no (not for
    /// lotus).
    #[arg(long)]
    pub unlocked: bool,
    /// Loads rows with room for the deltas of their versions, as in rows that have been updated
    /// (for motor).
    #[arg(long)]
    pub loaded_deltas: bool,
    /// Whether a row has its newest value and deltas of other versions, as published, or a full
    /// record for each version, as Lotus has (for motor).
    #[arg(long, default_value = "deltas", value_parser = one_of(RECORD_STORES))]
    pub record_store: RecordStore,
    /// Whether commits write everything at once and await nothing, as published, or have a log step
    /// and a visible step, as in Lotus. The latter needs --record-store full (for motor).
    #[arg(long, default_value = "at-once", value_parser = one_of(COMMITS))]
    pub commit: CommitSteps,
    /// Minimum bytes of an item, key and value with their header (for ford) [default: as many as
    /// the longest value of the workload needs; FORD's own program has 720].
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(..=16 << 10))]
    pub item_bytes: u16,
    /// Commits read back their writes to backups (for ford).
    #[arg(long)]
    pub flush: bool,
}

impl EngineArgs {
    /// Refuses flags and fabrics that the engine does not support.
    pub(super) fn check(
        &self,
        (fabric, audit): (Fabric, bool),
        given: &[String],
    ) -> Result<(), String> {
        if self.unlocked && audit {
            return Err("--unlocked loses updates, which an audit finds: say --audit no".to_owned());
        }
        let engine = self.engine.name();
        let (wrong, only) = match self.engine {
            Engine::Lotus => (OF_OTHER_ENGINES, "engines other than lotus"),
            _ => (OF_LOTUS, "--engine lotus"),
        };
        let isnt_for = |flags: &[&str]| {
            let flag = given.iter().find(|flag| flags.contains(&flag.as_str()));
            flag.map(|flag| format!("--{flag} makes no sense with --engine {engine}"))
        };
        match self.engine {
            Engine::Ford => isnt_for(NOT_OF_FORD).map_or(Ok(()), Err)?,
            Engine::Motor => isnt_for(OF_FORD).map_or(Ok(()), Err)?,
            Engine::Lotus => {}
        }
        if let Some(flag) = given.iter().find(|flag| wrong.contains(&flag.as_str())) {
            return Err(format!("--{flag} makes sense with {only} only"));
        }
        self.check_steps()?;
        match (self.engine, fabric) {
            (Engine::Lotus, _) | (_, Fabric::Local | Fabric::Sim) => Ok(()),
            (_, other) => Err(format!(
                "--engine {engine} runs on the fabrics local and sim, not {}",
                other.name()
            )),
        }
    }

    /// Refuses steps from Motor to Lotus that require an earlier step.
    fn check_steps(&self) -> Result<(), String> {
        match (self.record_store, self.commit) {
            (RecordStore::Deltas, CommitSteps::LogAndVisible) => {
                Err("--commit log-and-visible needs --record-store full".to_owned())
            }
            (RecordStore::Full, _) if self.loaded_deltas => {
                Err("--loaded-deltas makes no sense with --record-store full".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Refuses an address cache that the engine does not have.
    pub(super) fn check_addresses(
        &self,
        cache: AddressCache,
        given: &[String],
    ) -> Result<(), String> {
        let is_given = given.iter().any(|flag| flag == "address-cache");
        match (self.engine, cache) {
            (Engine::Lotus, AddressCache::PerThread) => {
                Err("--address-cache per-thread is not for Lotus: the coordinators of a compute \
                     node share one cache"
                    .to_owned())
            }
            (Engine::Motor | Engine::Ford, AddressCache::Cold) if is_given => Err(format!(
                "--address-cache cold is not for --engine {}, whose threads share no cache: say \
                 per-thread",
                self.engine.name()
            )),
            _ => Ok(()),
        }
    }

    /// Returns the address cache that the engine uses.
    pub(super) fn addresses(&self, cache: AddressCache) -> AddressCache {
        match (self.engine, cache) {
            (Engine::Motor | Engine::Ford, AddressCache::Cold) => AddressCache::PerThread,
            _ => cache,
        }
    }

    /// Settings of an engine other than Lotus.
    pub fn config(&self) -> Option<BaselineConfig> {
        let Self { placement: primaries, as_published, unlocked, .. } = *self;
        let Self { loaded_deltas, record_store, commit, item_bytes, flush, .. } = *self;
        let config = BaselineConfig {
            primaries,
            as_published,
            unlocked,
            loaded_deltas,
            record_store,
            commit,
            item_bytes: usize::from(item_bytes),
            flush,
        };
        (self.engine != Engine::Lotus).then_some(config)
    }
}
