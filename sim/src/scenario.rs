//! A scenario as data: everything that a run depends on besides its seed.
//!
//! Files are TOML. Times are microseconds of virtual time. Memory nodes are numbered first, from 0;
//! compute nodes after them.
//!
//! A run has two parts: a *storm*, in which rates and schedule of faults apply, and a *calm* after
//! everything has healed, in which every client must make progress.

use std::collections::BTreeSet;
use std::time::Duration;

use lotus_benchmarks::config::{
    ClusterConfig, Fabric, LoadConfig, Locks, ReadRule, Retention, Routing, Sharding, Timestamps,
    Visible,
};
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::hotspot::Hotspot;
use lotus_benchmarks::tpcc::Critical;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, Profile, Rates, Scheduled, When};
use lotus_mvcc::table::MAX_RECORD_BYTES;
use serde::{Deserialize, Serialize};

use crate::authority::Distance;
use crate::hazard::Hazard;
use crate::memory_returns;
use crate::pairs::SHORTEST;
use crate::room::FEWEST_SLABS;
use crate::strike::Strike;

/// Longest virtual time of a run, storm and calm together.
const LONGEST: Duration = Duration::from_secs(60);
/// Minimum length of the calm, in leases: one until a loss is noticed, the rest to recover from it.
const CALM_LEASES: u64 = 5;

/// A cluster, its load, and the faults of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// Description of what happens, in a sentence or two.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub story: String,
    /// Hazards that the scenario is meant to provoke.
    #[serde(default)]
    pub hazards: Vec<Hazard>,
    /// Length of the storm, in microseconds.
    pub storm_us: u64,
    /// Length of the calm, in microseconds: clients continue after all faults have healed.
    pub calm_us: u64,
    /// Whether nothing but faults changes the load, so that balancing must come to rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steady: bool,
    /// The cluster.
    #[serde(default)]
    pub cluster: Topology,
    /// Transactions that clients run.
    pub workload: Workload,
    /// Isolation, routing and pace of the clients' transactions.
    #[serde(default)]
    pub load: Load,
    /// Network profile and time-out of verbs.
    #[serde(default)]
    pub network: Network,
    /// Probabilities of random faults during the storm.
    #[serde(default)]
    pub rates: Rates,
    /// Delays and losses on the way to the authority, during the storm.
    #[serde(default, skip_serializing_if = "Distance::is_none")]
    pub authority: Distance,
    /// Faults at fixed times, or after a number of verbs or messages.
    #[serde(default)]
    pub schedule: Vec<Scheduled>,
    /// Faults at named steps of the protocol. They need the feature `fault-points`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strikes: Vec<Strike>,
}

/// Numbers of nodes, and the engine's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Topology {
    /// Number of compute nodes.
    pub compute_nodes: usize,
    /// Coordinators of each compute node.
    pub threads: usize,
    /// Coroutines of each coordinator.
    pub coroutines: usize,
    /// Number of memory nodes.
    pub memory_nodes: usize,
    /// Copies of each row.
    pub replicas: usize,
    /// Versions of each row.
    pub versions: u32,
    /// Shards of each table. The fewer, the more rows share a bucket of the index.
    pub shards: u32,
    /// Bytes of each compute node's lock table.
    pub lock_table_bytes: u64,
    /// Rows in each compute node's version table cache; 0 for none.
    pub version_table_cache: usize,
    /// Lock tables on compute nodes, or spin locks on memory nodes.
    pub locks: Locks,
    /// Source of timestamps: a shared clock, or an oracle.
    pub timestamps: Timestamps,
    /// Order in which a commit becomes visible on backups and primaries.
    pub visible: Visible,
    /// Version that serializable transactions read.
    pub read_rule: ReadRule,
    /// Whether displaced versions are kept or overwritten.
    pub retain_versions: Retention,
    /// Interval at which compute nodes exchange their horizons, in microseconds.
    pub horizon_us: u64,
    /// Time for which a commit retries, in microseconds.
    pub commit_timeout_us: u64,
    /// Time for which a transaction waits for remote locks, in microseconds.
    pub lock_timeout_us: u64,
    /// Time that a compute node may be silent before the others recover it, in microseconds; 0 for
    /// no lease.
    pub lease_us: u64,
    /// Interval at which a random shard is moved during the storm, in microseconds; 0 for never.
    pub moves_us: u64,
    /// Interval at which compute nodes balance their shards by load, in microseconds; 0 for never.
    pub balance_us: u64,
    /// Time that an owner waits for lock holders of a shard that it gives away before it asks them
    /// to give up, in microseconds.
    pub drain_us: u64,
    /// Interval at which a snapshot of all rows is written to a file, in microseconds; 0 for never.
    pub snapshots_us: u64,
    /// Slabs of 256 KiB that each replica group has on a memory node, the header's among them.
    pub group_slabs: u64,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            compute_nodes: 2,
            threads: 1,
            coroutines: 3,
            memory_nodes: 3,
            replicas: 3,
            versions: 2,
            shards: 16,
            lock_table_bytes: 1 << 14,
            version_table_cache: 64,
            locks: Locks::Lotus,
            timestamps: Timestamps::Clock,
            visible: Visible::BackupsFirst,
            read_rule: ReadRule::Latest,
            retain_versions: Retention::On,
            horizon_us: 100,
            commit_timeout_us: 20_000,
            lock_timeout_us: 2_000,
            lease_us: 0,
            moves_us: 0,
            balance_us: 0,
            drain_us: 200,
            snapshots_us: 0,
            group_slabs: 256,
        }
    }
}

/// Workload of the clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Workload {
    /// Reads and updates of single rows (LOTUS §8.2).
    #[serde(rename_all = "kebab-case")]
    Kvs {
        /// Number of rows.
        keys: u64,
        /// Share of transactions that update.
        update_ratio: f64,
        /// Skew; 0 is uniform.
        zipf: f64,
        /// Moving hotspot, which replaces the skew; `None` for the skew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hotspot: Option<Hot>,
    },
    /// Bank accounts: several rows a transaction, and a sum of money that must not change.
    #[serde(rename_all = "kebab-case")]
    Smallbank {
        /// Customers, at least 2.
        accounts: u64,
        /// Customers in the hot set; 0 for none.
        hot_accounts: u64,
        /// Share of transactions on the hot set.
        hot_ratio: f64,
    },
    /// Subscriber registry: reads by several keys, a secondary access path, inserts, deletions.
    #[serde(rename_all = "kebab-case")]
    Tatp {
        /// Number of subscribers.
        subscribers: u64,
    },
    /// Order processing: inserts, deletions, many rows a transaction, twelve audited conditions.
    #[serde(rename_all = "kebab-case")]
    Tpcc {
        /// Warehouses, each with ten districts.
        warehouses: u32,
        /// Customers of each district, and its initial number of orders.
        customers_per_district: u32,
        /// Items, each in stock at every warehouse.
        items: u32,
        /// Part of a key that chooses the shard.
        critical_field: Critical,
    },
    /// Inserts and deletions of rows, at most one of each pair ([`crate::pairs`]).
    #[serde(rename_all = "kebab-case")]
    Pairs {
        /// Pairs of rows.
        pairs: u64,
        /// Bytes of each row's value.
        #[serde(default = "shortest", skip_serializing_if = "is_shortest")]
        record_bytes: usize,
    },
}

fn shortest() -> usize {
    SHORTEST
}

fn is_shortest(bytes: &usize) -> bool {
    *bytes == SHORTEST
}

/// Shards of one compute node that take most of the load, for a while.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Hot {
    /// Number of shards that are hot at a time.
    pub shards: u64,
    /// Share of requests on the hot shards.
    pub ratio: f64,
    /// Interval at which the hotspot moves to the next compute node, in microseconds; 0 for never.
    pub jump_us: u64,
}

/// Isolation, routing and pace of the clients' transactions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Load {
    /// Isolation level of read-write transactions.
    pub isolation: Isolation,
    /// Share of read-write transactions at the other isolation level.
    pub other_isolation: f64,
    /// Share of transactions in which the client drops an execution's or a commit's future (H21).
    pub impatience: f64,
    /// Rule by which a transaction gets its compute node.
    pub routing: Routing,
    /// Transactions a second; `None` for a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_tps: Option<f64>,
}

impl Default for Load {
    fn default() -> Self {
        Self {
            isolation: Isolation::Serializable,
            other_isolation: 0.0,
            impatience: 0.0,
            routing: Routing::Hybrid,
            rate_tps: None,
        }
    }
}

/// Network of verbs and messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Network {
    /// Name of a built-in profile.
    pub profile: String,
    /// Time for which an initiator waits for a verb, in microseconds.
    pub verb_timeout_us: u64,
}

impl Default for Network {
    fn default() -> Self {
        Self { profile: "cx3-56g".to_owned(), verb_timeout_us: 400 }
    }
}

/// Error for a scenario that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The file is not a scenario. Correct the line.
    #[error("{name}, line {line}: {message}")]
    Malformed {
        /// Name of the file, as the caller gave it.
        name: String,
        /// Line number, from 1.
        line: usize,
        /// Description of the error.
        message: String,
    },
    /// The scenario is well-formed but impossible. Change what `message` names.
    #[error("scenario {name}: {message}")]
    Impossible {
        /// Name of the scenario.
        name: String,
        /// Description of the conflict.
        message: String,
    },
}

impl Scenario {
    /// Parses a scenario; `name` stands for the file in errors.
    ///
    /// # Errors
    /// `Malformed`, naming the line, or `Impossible`.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, ScenarioError> {
        let malformed = |at: usize, message: String| {
            let line = 1 + bytes[..at.min(bytes.len())].iter().filter(|b| **b == b'\n').count();
            ScenarioError::Malformed { name: name.to_owned(), line, message }
        };
        let text = std::str::from_utf8(bytes)
            .map_err(|error| malformed(error.valid_up_to(), "not text (UTF-8)".to_owned()))?;
        let scenario: Self = toml::from_str(text).map_err(|error| {
            malformed(error.span().map_or(0, |span| span.start), error.message().to_owned())
        })?;
        scenario.check()?;
        Ok(scenario)
    }

    /// The scenario as TOML, which [`parse`](Self::parse) reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a scenario is plain data")
    }

    /// Error `Impossible` for this scenario.
    pub(crate) fn impossible(&self, message: impl ToString) -> ScenarioError {
        ScenarioError::Impossible { name: self.name.clone(), message: message.to_string() }
    }

    /// Checks values and their combinations; cluster and world check the rest when they are made.
    ///
    /// # Errors
    /// `Impossible`.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let must = |holds: bool, message: &str| {
            if holds { Ok(()) } else { Err(self.impossible(message)) }
        };
        let share = |share: f64| (0.0..=1.0).contains(&share);
        must(self.storm() + self.calm() <= LONGEST, "it lasts more than a minute")?;
        must(self.storm_us + self.calm_us > 0, "it lasts no time at all")?;
        match self.workload {
            Workload::Kvs { keys, update_ratio, zipf, hotspot } => {
                must((1..=1 << 20).contains(&keys), "keys are not from 1 to 2^20")?;
                must(share(update_ratio), "update-ratio is not from 0 to 1")?;
                must((0.0..=10.0).contains(&zipf), "zipf is not from 0 to 10")?;
                let sane = |hot: Hot| (1..=64).contains(&hot.shards) && share(hot.ratio);
                must(hotspot.is_none_or(sane), "the hotspot has no shards, or no share")?;
            }
            Workload::Smallbank { accounts, hot_accounts, hot_ratio } => {
                must((2..=1 << 20).contains(&accounts), "accounts are not from 2 to 2^20")?;
                let hot = hot_accounts != 1 && hot_accounts <= accounts;
                must(hot, "hot-accounts are 1, or more than accounts")?;
                must(share(hot_ratio), "hot-ratio is not from 0 to 1")?;
            }
            Workload::Tatp { subscribers } => {
                let allowed = (1..=1 << 20).contains(&subscribers);
                must(allowed, "subscribers are not from 1 to 2^20")?;
            }
            Workload::Tpcc { warehouses, customers_per_district, items, .. } => {
                must((1..=10).contains(&warehouses), "warehouses are not from 1 to 10")?;
                let few = (1..=300).contains(&customers_per_district);
                must(few, "customers-per-district are not from 1 to 300")?;
                must((1..=10_000).contains(&items), "items are not from 1 to 10000")?;
            }
            Workload::Pairs { pairs, record_bytes } => {
                must((1..=1 << 20).contains(&pairs), "pairs are not from 1 to 2^20")?;
                let fits = (SHORTEST..=MAX_RECORD_BYTES as usize).contains(&record_bytes);
                must(fits, "record-bytes are not from 16 to 8192")?;
                let pure = self.load.isolation == Isolation::Serializable
                    && self.load.other_isolation == 0.0;
                // Write skew is allowed under snapshot isolation, and breaks pairs.
                must(pure, "pairs stay pairs under serializability (sr) only")?;
            }
        }
        must((2..=8).contains(&self.cluster.versions), "versions are not from 2 to 8")?;
        let slabs = self.cluster.group_slabs;
        must((FEWEST_SLABS..=1 << 12).contains(&slabs), "group-slabs are not from 4 to 2^12")?;
        let cached = self.cluster.version_table_cache;
        must(cached <= 1 << 20, "version-table-cache is more than 2^20")?;
        must(self.cluster.horizon_us > 0, "the horizon's interval is zero")?;
        must((1..=4096).contains(&self.cluster.shards), "shards are not from 1 to 4096")?;
        let moves = self.cluster.moves_us + self.cluster.balance_us == 0
            || self.cluster.locks == Locks::Lotus;
        must(moves, "shards move, and only LOTUS's locks have owners")?;
        let balanced = self.cluster.balance_us > 0 && self.cluster.moves_us == 0;
        must(balanced || !self.steady, "steady loads are for balancing alone")?;
        must(share(self.load.other_isolation), "other-isolation is not from 0 to 1")?;
        must(share(self.load.impatience), "impatience is not from 0 to 1")?;
        let rate = self.load.rate_tps.is_none_or(|tps| tps > 0.0 && tps <= 1e7);
        must(rate, "rate-tps is not more than 0 and at most 10^7")?;
        let all_rates = |rates: &Rates| {
            let Rates { message_loss, message_duplication, message_delay, .. } = *rates;
            let Rates { verb_delay, torn_writes, torn_reads, .. } = *rates;
            [message_loss, message_duplication, message_delay, verb_delay, torn_writes, torn_reads]
                .into_iter()
                .all(share)
        };
        must(all_rates(&self.rates), "a rate is not from 0 to 1")?;
        must(self.authority.has_shares(), "a share of the authority's is not from 0 to 1")?;
        let can_strike = cfg!(feature = "fault-points") || self.strikes.is_empty();
        must(can_strike, "it has strikes, and this build has no fault points")?;
        self.check_survivors()?;
        for entry in &self.planned() {
            if let Fault::SetRates(rates) = &entry.fault {
                must(all_rates(rates), "a rate is not from 0 to 1")?;
            }
            self.check_loss(entry)?;
        }
        Ok(())
    }

    /// Checks that a fault leaves a copy of every row, and has the lease that it needs.
    fn check_loss(&self, entry: &Scheduled) -> Result<(), ScenarioError> {
        let must = |holds: bool, message: &str| {
            if holds { Ok(()) } else { Err(self.impossible(message)) }
        };
        match &entry.fault {
            Fault::Crash { node, .. } => {
                let memory = *node < self.first_compute_node();
                must(!memory || self.keeps_copies(), "all copies of some rows may be lost")?;
                must(self.cluster.lease_us > 0, "a node crashes, and there is no lease")
            }
            Fault::Restart { node } => {
                must(self.cluster.lease_us > 0, "a node is restarted, and there is no lease")?;
                let compute = *node >= self.first_compute_node();
                let back = compute || memory_returns::is_made_anew(self, entry);
                must(back, "a memory node restarts that has not lost its memory")
            }
            _ => Ok(()),
        }
    }

    /// Checks, with a lease, that a compute node survives, and that the calm is long enough to
    /// recover the others.
    fn check_survivors(&self) -> Result<(), ScenarioError> {
        if self.cluster.lease_us == 0 {
            return Ok(());
        }
        let first = self.first_compute_node().0;
        let nodes = first..first + self.cluster.compute_nodes as u16;
        let planned = self.planned();
        let unknown: usize = self.strikes.iter().map(Strike::unknown_victims).sum();
        let harmed = |node: &u16| {
            planned.iter().any(|entry| {
                let hard = match entry.fault {
                    Fault::SlowNic { .. } | Fault::SlowCores { .. } | Fault::SetRates(_) => false,
                    Fault::Pause { lasting, .. } => {
                        lasting.as_micros() as u64 >= self.cluster.lease_us / 2
                    }
                    Fault::ClockJump { nanos, .. } => {
                        nanos.unsigned_abs() / 1000 >= self.cluster.lease_us / 2
                    }
                    // A node that alone complains of a memory node expels itself.
                    Fault::Stall { to, .. } => to < self.first_compute_node(),
                    _ => true,
                };
                hard && entry.fault.nodes().any(|harmed| harmed.0 == *node)
            })
        };
        if nodes.clone().filter(|node| !harmed(node)).count() <= unknown {
            return Err(self.impossible("every compute node may be lost"));
        }
        if self.calm_us < CALM_LEASES * self.cluster.lease_us {
            return Err(self.impossible("the calm is shorter than five leases"));
        }
        Ok(())
    }

    /// Whether every replica group has a copy on a memory node that cannot be lost.
    fn keeps_copies(&self) -> bool {
        let Topology { memory_nodes, replicas, .. } = self.cluster;
        let node = |place: usize| NodeId((place % memory_nodes) as u16);
        let kept = |place: usize| !self.may_be_lost(node(place));
        (0..memory_nodes).all(|group| {
            let mut members = (group..group + replicas).map(node);
            (group..group + replicas).any(kept) || memory_returns::take_turns(self, &mut members)
        })
    }

    /// Whether a memory node crashes, or may be cut off for a while from at least half of the
    /// compute nodes that take part.
    pub(crate) fn may_be_lost(&self, memory: NodeId) -> bool {
        let strikes = |entry: &Scheduled, node: NodeId| {
            let about_this = entry.fault.nodes().any(|struck| struck == memory);
            !about_this && entry.fault.nodes().any(|struck| struck == node)
        };
        let is_struck = |node: NodeId| self.schedule.iter().any(|entry| strikes(entry, node));
        let is_harmed = |entry: &Scheduled| match entry.fault {
            Fault::Crash { node, .. } | Fault::Isolate { node } => node == memory,
            _ => false,
        };
        let first = self.first_compute_node().0;
        let compute = (first..first + self.cluster.compute_nodes as u16).map(NodeId);
        // A node that is struck, or alone complains of another memory node, may be expelled by
        // then.
        let members = compute.filter(|node| !is_struck(*node)).count();
        let cut_off = self.cut_off_from(memory).len();
        self.planned().iter().any(is_harmed) || (cut_off > 0 && 2 * cut_off >= members)
    }

    /// Schedule and strikes; strikes stand at the end of the storm, as their time is not known.
    fn planned(&self) -> Vec<Scheduled> {
        let struck = self.strikes.iter().flat_map(|one| one.faults(self.first_compute_node()));
        let when = When::At(self.storm());
        let struck = struck.map(|fault| Scheduled { when, fault });
        self.schedule.iter().cloned().chain(struck).collect()
    }

    /// Compute nodes that a cut or stalled path separates from a memory node for a while.
    fn cut_off_from(&self, memory: NodeId) -> BTreeSet<NodeId> {
        let cut = |entry: &Scheduled| match entry.fault {
            Fault::Cut { from, to } | Fault::Stall { from, to, .. } => Some([from, to]),
            _ => None,
        };
        let ways = self.schedule.iter().filter_map(cut);
        let touching = ways.filter(|way| way.contains(&memory)).flatten();
        touching.filter(|node| *node >= self.first_compute_node()).collect()
    }

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

    /// Lease of compute nodes; `None` without one.
    pub(crate) fn lease(&self) -> Option<Duration> {
        (self.cluster.lease_us > 0).then(|| Duration::from_micros(self.cluster.lease_us))
    }

    /// The benchmark harness's view of the cluster.
    pub(crate) fn cluster_config(&self) -> ClusterConfig {
        let Topology { compute_nodes, threads, coroutines, memory_nodes, .. } = self.cluster;
        let Topology { replicas, versions, lock_table_bytes, locks, timestamps, .. } = self.cluster;
        ClusterConfig {
            fabric: Fabric::Sim,
            profile: Some(self.network.profile.clone()),
            cns: compute_nodes,
            threads,
            coroutines,
            mns: memory_nodes,
            replicas,
            versions,
            read_rule: self.cluster.read_rule,
            lock_table_bytes,
            vt_cache: self.cluster.version_table_cache,
            sharding: Sharding::App,
            locks,
            timestamps,
            visible: self.cluster.visible,
            retain_versions: self.cluster.retain_versions,
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
            secs: (self.storm() + self.calm()).as_secs_f64(),
            warmup_secs: 0.0,
            rate_tps: self.load.rate_tps,
            seed,
            in_flight: None,
            move_us: None,
            timeline_us: None,
        }
    }

    /// The network profile.
    ///
    /// # Errors
    /// `Impossible`, if no built-in profile has that name.
    pub(crate) fn profile(&self) -> Result<Profile, ScenarioError> {
        Profile::named(&self.network.profile).map_err(|error| self.impossible(error))
    }

    /// The schedule, and at the storm's end the opposite of every lasting fault; entries that still
    /// wait for a count of verbs or messages are dropped, so that none strikes in the calm or the
    /// audit.
    pub(crate) fn schedule_with_healing(&self) -> Vec<Scheduled> {
        let opposite = |entry: &Scheduled| match entry.fault {
            Fault::Cut { from, to } => Some(Fault::Mend { from, to }),
            Fault::Isolate { node } => Some(Fault::Rejoin { node }),
            Fault::SlowNic { node, .. } => Some(Fault::SlowNic { node, percent: 100 }),
            Fault::SlowCores { node, .. } => Some(Fault::SlowCores { node, percent: 100 }),
            // A clock that was set back stands still; one that was set forward goes on.
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

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
name = \"small\"
hazards = [\"H9\", \"H10\"]
storm-us = 2000
calm-us = 1000
workload = { kvs = { keys = 10, update-ratio = 0.5, zipf = 0.0 } }

[rates]
message-loss = 0.1

[[schedule]]
when = { at-us = 100 }
fault = { pause = { node = 3, lasting-us = 500.5 } }
";

    #[test]
    fn a_file_is_read_as_it_is_written() {
        let scenario = Scenario::parse("small.toml", SMALL.as_bytes()).expect("it is right");
        assert_eq!(scenario.cluster, Topology::default());
        assert_eq!(scenario.hazards.len(), 2);
        let again = Scenario::parse("again", scenario.to_toml().as_bytes());
        assert_eq!(again, Ok(scenario));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to, expected) in [
            ("calm-us = 1000", "calm-us = -1", "bad.toml, line 5: "),
            ("calm-us = 1000", "calm_us = 1000", "bad.toml, line 5: unknown field `calm_us`"),
            ("\"H9\"", "\"H99\"", "bad.toml, line 3: \"H99\" is no hazard"),
            ("message-loss = 0.1", "message-loss = 1.5", "scenario small: a rate"),
            ("pause =", "paus =", "bad.toml, line 13: unknown variant `paus`"),
            ("calm-us = 1000", "calm-us = 100000000", "scenario small: it lasts more"),
            ("keys = 10", "keys = 0", "scenario small: keys are not"),
            (
                "{ kvs = { keys = 10, update-ratio = 0.5, zipf = 0.0 } }",
                "{ tatp = { subscribers = 0 } }",
                "scenario small: subscribers are not",
            ),
        ] {
            let text = SMALL.replace(from, to);
            let error = Scenario::parse("bad.toml", text.as_bytes()).expect_err(to).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = Scenario::parse("bad.toml", b"name = \"x\"\n\xFF\xFE").expect_err("garbage");
        assert_eq!(error.to_string(), "bad.toml, line 2: not text (UTF-8)");
    }

    #[test]
    fn whatever_lasts_is_healed_when_the_storm_ends() {
        let mut scenario = Scenario::parse("", SMALL.as_bytes()).expect("it is right");
        let node = NodeId(1);
        let when = When::At(Duration::ZERO);
        scenario.schedule.push(Scheduled { when, fault: Fault::Isolate { node } });
        let all = scenario.schedule_with_healing();
        let healing: Vec<_> = all.iter().filter(|e| e.when == When::At(scenario.storm())).collect();
        assert_eq!(healing.len(), 3);
        assert_eq!(healing[0].fault, Fault::Rejoin { node });
        assert_eq!(healing[2].fault, Fault::Disarm);
    }
}
