//! Engine settings derived from the settings of a benchmark.

use std::time::Duration;

use lotus::{Cluster, ClusterBuilder, Secret};

use crate::contract::config::{
    AddressCache, ClusterConfig, LoadConfig, LockWait, Locks, ReadRule, Retention, Routing,
    Timestamps, Visible,
};

/// Engine settings for a cluster configured as `config` under the load `load`.
pub fn builder(config: &ClusterConfig, load: &LoadConfig) -> ClusterBuilder {
    let builder = Cluster::embedded()
        .memory_nodes(config.mns)
        .compute_nodes(config.cns)
        .replicas(config.replicas)
        .threads(config.threads)
        .coroutines(config.coroutines + load.helpers())
        .lock_table_bytes(config.lock_table_bytes as usize)
        .version_table_cache(config.vt_cache)
        .seed(load.seed)
        .read_rule(match config.read_rule {
            ReadRule::Latest => lotus::ReadRule::Latest,
            ReadRule::Snapshot => lotus::ReadRule::Snapshot,
        })
        .locks(match config.locks {
            Locks::Lotus => lotus::LockKind::Lotus,
            Locks::Cas => lotus::LockKind::Cas,
            Locks::Dslr => lotus::LockKind::Dslr,
            Locks::ShiftLock => lotus::LockKind::ShiftLock,
            Locks::Declock => lotus::LockKind::Declock,
            Locks::IdealRdma => lotus::LockKind::IdealRdma,
        })
        .lock_wait(match config.lock_wait {
            LockWait::Ordered => lotus::LockWait::Ordered,
            LockWait::None => lotus::LockWait::None,
        })
        .timestamps(match config.timestamps {
            Timestamps::Clock => lotus::TimestampKind::Clock,
            Timestamps::Oracle => lotus::TimestampKind::Oracle,
        })
        .visible_order(match config.visible {
            Visible::BackupsFirst => lotus::VisibleOrder::BackupsFirst,
            Visible::AllAtOnce => lotus::VisibleOrder::AllAtOnce,
        })
        .name_bits(config.name_bits)
        .name_secret(Some(Secret::from_seed(config.name_seed)))
        .retention(match config.retain_versions {
            Retention::On => lotus::Retention::UntilUnneeded,
            Retention::Off => lotus::Retention::None,
        })
        .addresses(match config.address_cache {
            AddressCache::Warm => lotus::Addresses::Warm,
            // Coordinators of a compute node share a cache, so the command line refuses
            // `PerThread`.
            AddressCache::Cold | AddressCache::PerThread => lotus::Addresses::Cold,
        })
        .balance(config.balance_us.map(Duration::from_micros))
        .lease(config.lease_us.map(Duration::from_micros))
        .horizon_interval(Duration::from_micros(config.horizon_us))
        .routing(match load.routing {
            Routing::Hybrid => lotus::RoutingPolicy::Hybrid,
            Routing::Random => lotus::RoutingPolicy::Random,
        });
    match config.memory_limit_bytes {
        Some(bytes) => builder.memory_limit(bytes),
        None => builder,
    }
}
