//! Settings of a cluster, its load and its network, derived from a scenario.

use crate::scenario::format::{Scenario, ScenarioError, Topology, Workload};
use lotus_benchmarks::config::{
    Aborted, AddressCache, ClusterConfig, Engine, Fabric, LoadConfig, LockWait, Sharding,
};
use lotus_benchmarks::hotspot::Hotspot;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, Profile, Rates, Scheduled, When};
use std::time::Duration;

/// Time for which a transaction of TPC-C may delay others of its warehouse: with twelve clients of
/// one warehouse, waits reach 500 us, but not 2,000.
const TPCC_US: u64 = 100;

impl Scenario {
    /// Length of the storm.
    pub fn storm(&self) -> Duration {
        Duration::from_micros(self.storm_us)
    }

    /// Hotspot of a key-value store; `None` without one.
    pub(crate) fn hotspot(&self) -> Option<Hotspot> {
        let Workload::Kvs { hotspot, .. } = self.workload else { return None };
        hotspot.map(|hot| Hotspot {
            hot_shards: hot.shards,
            ratio: hot.ratio,
            every: Duration::from_micros(hot.jump_us),
            nodes: self.cluster.compute_nodes as u64,
            shards: u64::from(self.cluster.shards),
        })
    }

    /// Length of the calm.
    pub fn calm(&self) -> Duration {
        Duration::from_micros(self.calm_us)
    }

    /// Longest time limit of an endless transaction. One that begins at the end of the storm still
    /// ends long before the clients do.
    pub(crate) fn endless_limit(&self) -> Duration {
        (self.storm() / 4).min(self.calm() / 2)
    }

    /// Time after the storm in which its faults may still be felt: verbs that were held up land or
    /// time out, delayed messages arrive, and endless transactions give their locks back. At most
    /// half of the calm.
    pub(crate) fn aftermath(&self) -> Duration {
        let Rates { message_delay, message_duplication, verb_delay, .. } = self.rates;
        let timeout = Duration::from_micros(self.network.verb_timeout_us);
        let felt = [
            (verb_delay > 0.0, self.rates.verb_delay_max.max(timeout)),
            (message_delay.max(message_duplication) > 0.0, self.rates.message_delay_max),
            (self.cluster.endless_us > 0, self.endless_limit()),
        ];
        let felt = felt.into_iter().filter(|(is_drawn, _)| *is_drawn).map(|(_, time)| time);
        felt.max().unwrap_or_default().min(self.calm() / 2)
    }

    /// Whether transactions wait for locks, in order, and never long once the faults have healed.
    /// Spin locks have no order. In full memory an update holds its locks while it waits for a
    /// slot, longer than a lock request may wait. And the clients of TPC-C may all queue at one
    /// warehouse.
    pub(crate) fn waits_are_short(&self) -> bool {
        let has_room = self.cluster.group_slabs >= Topology::default().group_slabs;
        let Topology { compute_nodes, threads, coroutines, lock_timeout_us, .. } = self.cluster;
        let clients = (compute_nodes * threads * coroutines) as u64;
        let is_longest = matches!(self.workload, Workload::Tpcc { .. });
        let fits = !is_longest || clients * TPCC_US <= lock_timeout_us;
        self.cluster.lock_wait == LockWait::Ordered && has_room && fits && self.loses_nothing()
    }

    /// Lease of compute nodes; `None` without one.
    pub(crate) fn lease(&self) -> Option<Duration> {
        (self.cluster.lease_us > 0).then(|| Duration::from_micros(self.cluster.lease_us))
    }

    /// Whether no message and no node is lost, so that no lock is held longer than its transaction
    /// takes. A lost end of an attempt is repeated only after milliseconds.
    pub(crate) fn loses_nothing(&self) -> bool {
        let undisturbed = self.schedule.is_empty() && self.strikes.is_empty();
        undisturbed && self.lease().is_none() && self.rates.message_loss == 0.0
    }

    /// The benchmark harness's view of the cluster.
    pub(crate) fn cluster_config(&self) -> ClusterConfig {
        let Topology { compute_nodes, threads, coroutines, memory_nodes, .. } = self.cluster;
        let Topology { replicas, versions, lock_table_bytes, locks, lock_wait, .. } = self.cluster;
        let Topology { timestamps, .. } = self.cluster;
        ClusterConfig {
            engine: Engine::Lotus,
            baseline: None,
            fabric: Fabric::Sim,
            profile: Some(self.network.profile.clone()),
            cns: compute_nodes,
            threads,
            coroutines,
            mns: memory_nodes,
            replicas,
            versions,
            inline: self.cluster.inline,
            read_rule: self.cluster.read_rule,
            lock_table_bytes,
            vt_cache: self.cluster.version_table_cache,
            address_cache: AddressCache::Cold,
            sharding: Sharding::App,
            locks,
            lock_wait,
            timestamps,
            visible: self.cluster.visible,
            retain_versions: self.cluster.retain_versions,
            name_bits: self.cluster.name_bits,
            name_seed: self.cluster.name_seed,
            horizon_us: self.cluster.horizon_us,
            balance_us: (self.cluster.balance_us > 0).then_some(self.cluster.balance_us),
            lease_us: (self.cluster.lease_us > 0).then_some(self.cluster.lease_us),
            memory_limit_bytes: None,
        }
    }

    /// The benchmark harness's view of the clients.
    pub(crate) fn load_config(&self, seed: u64) -> LoadConfig {
        LoadConfig {
            isolation: self.load.isolation,
            other_isolation: self.load.other_isolation,
            routing: self.load.routing,
            aborted: Aborted::Retry,
            secs: (self.storm() + self.calm()).as_secs_f64(),
            warmup_secs: 0.0,
            rate_tps: self.load.rate_tps,
            seed,
            in_flight: None,
            move_us: None,
            timeline_us: None,
            txns: None,
        }
    }

    /// The network profile.
    ///
    /// # Errors
    /// `Impossible`, if no built-in profile has the name.
    pub(crate) fn profile(&self) -> Result<Profile, ScenarioError> {
        Profile::named(&self.network.profile).map_err(|error| self.impossible(error))
    }

    /// The schedule, and at the storm's end the opposite of every lasting fault. Entries that still
    /// wait for a count of verbs or messages are dropped, so that none strikes in the calm or the
    /// audit.
    pub(crate) fn schedule_with_healing(&self) -> Vec<Scheduled> {
        let opposite = |entry: &Scheduled| match entry.fault {
            Fault::Cut { from, to } => Some(Fault::Mend { from, to }),
            Fault::Isolate { node } => Some(Fault::Rejoin { node }),
            Fault::SlowNic { node, .. } => Some(Fault::SlowNic { node, percent: 100 }),
            Fault::SlowCores { node, .. } => Some(Fault::SlowCores { node, percent: 100 }),
            Fault::ClockRate { node, .. } => Some(Fault::ClockRate { node, ppm: 0 }),
            // A clock that was set back stands still; a clock that was set forward goes on.
            Fault::ClockJump { node, nanos } if nanos < 0 => {
                Some(Fault::ClockJump { node, nanos: -nanos })
            }
            _ => None,
        };
        let planned = self.planned();
        let healing = planned.iter().filter_map(opposite);
        let healing = healing.chain([Fault::SetRates(Rates::default()), Fault::Disarm]);
        let when = When::At(self.storm());
        let healing = healing.map(|fault| Scheduled { when, fault });
        self.schedule.iter().cloned().chain(healing).collect()
    }

    /// Node id of the first compute node.
    pub fn first_compute_node(&self) -> NodeId {
        NodeId(self.cluster.memory_nodes as u16)
    }
}
