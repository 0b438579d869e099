//! The engine under test, and what engines other than Lotus can do.

use clap::Args;
use lotus_benchmarks::config::{BaselineConfig, Engine, Fabric, Primaries};

use super::values::one_of;

/// Engines by their names.
const ENGINES: &[(&str, Engine)] = &[("lotus", Engine::Lotus), ("motor", Engine::Motor)];
const PRIMARIES: &[(&str, Primaries)] =
    &[("table", Primaries::Table), ("shard", Primaries::Shard)];

/// Flags that other engines have no use for.
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
/// Flags that Lotus has no use for.
const OF_OTHERS: &[&str] = &["placement", "as-published"];

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
    /// Leaves the faults of the published program in: locks of others freed by aborts, reads and
    /// validation that heed no locks (not for lotus).
    #[arg(long)]
    pub as_published: bool,
}

impl EngineArgs {
    /// Refuses flags and fabrics that the engine cannot do.
    pub(super) fn check(&self, fabric: Fabric, given: &[String]) -> Result<(), String> {
        let engine = self.engine.name();
        let (wrong, only) = match self.engine {
            Engine::Lotus => (OF_OTHERS, "engines other than lotus"),
            _ => (OF_LOTUS, "--engine lotus"),
        };
        if let Some(flag) = given.iter().find(|flag| wrong.contains(&flag.as_str())) {
            return Err(format!("--{flag} makes sense with {only} only"));
        }
        match (self.engine, fabric) {
            (Engine::Lotus, _) | (_, Fabric::Local | Fabric::Sim) => Ok(()),
            (_, other) => Err(format!(
                "--engine {engine} runs on the fabrics local and sim, not {}",
                other.name()
            )),
        }
    }

    pub(super) fn config(&self) -> Option<BaselineConfig> {
        let (primaries, as_published) = (self.placement, self.as_published);
        (self.engine != Engine::Lotus).then_some(BaselineConfig { primaries, as_published })
    }
}
