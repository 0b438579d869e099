//! Flags of `lotus-lab bench tree`.

use clap::Args;
use lotus_loads::index::TreeLoad;

use super::locks::{LockRunArgs, SystemArgs};
use lotus_runner::args::values::{ratio, skew};

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct TreeArgs {
    #[command(flatten)]
    pub system: SystemArgs,
    /// Number of keys to draw from.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=TreeLoad::MAX_KEYS))]
    pub keys: u64,
    /// Share of the keys in the tree at the start; every other key is added by its first update.
    #[arg(long, value_name = "RATIO", default_value_t = 0.8, value_parser = ratio)]
    pub loaded: f64,
    /// Skew of the keys' popularity; 0 is uniform.
    #[arg(long, value_name = "THETA", default_value_t = 0.99, value_parser = skew)]
    pub zipf: f64,
    /// Share of requests that update; the others search.
    #[arg(long, value_name = "RATIO", default_value_t = 0.5, value_parser = ratio)]
    pub update_ratio: f64,
    #[command(flatten)]
    pub run: LockRunArgs,
}
