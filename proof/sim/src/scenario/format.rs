//! A scenario as data: every input of a run besides its seed.
//!
//! Files are TOML. Times are microseconds of virtual time. Memory nodes are numbered first, from 0;
//! compute nodes after them.
//!
//! A run has two parts: a *storm*, in which rates and schedule of faults apply, and a *calm* after
//! everything has healed, in which every client must make progress.

use lotus_benchmarks::config::{
    Inline, LockWait, Locks, ReadRule, Retention, Routing, Timestamps, Visible,
};
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::tpcc::Critical;
use lotus_fabric::sim::{Rates, Scheduled};
use serde::{Deserialize, Serialize};

use crate::scenario::authority::AuthorityDelays;
use crate::scenario::hazard::Hazard;
use crate::scenario::lives::Lives;
use crate::scenario::pairs::SHORTEST;
use crate::scenario::strike::Strike;

/// Cluster, load and faults of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// Name in reports.
    pub name: String,
    /// Description of the scenario, in a sentence or two.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub story: String,
    /// Hazards that the scenario is meant to provoke.
    #[serde(default)]
    pub hazards: Vec<Hazard>,
    /// Length of the storm, in microseconds.
    pub storm_us: u64,
    /// Length of the calm, in microseconds: clients continue after all faults have healed.
    pub calm_us: u64,
    /// Whether only faults change the load, so that balancing must come to rest.
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
    #[serde(default, skip_serializing_if = "AuthorityDelays::is_none")]
    pub authority: AuthorityDelays,
    /// Successive lives of a separate cluster, with growing tables.
    #[serde(default, skip_serializing_if = "Lives::is_none")]
    pub lives: Lives,
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
    /// Place of small records.
    pub inline: Inline,
    /// Shards of each table. The fewer shards, the more rows share a bucket of the index.
    pub shards: u32,
    /// Bits of the names of rows. With fewer than 64, many rows share a name, and thereby a lock
    /// and a chain of buckets.
    pub name_bits: u32,
    /// Seed of the secret in the names of rows. The memory used by rows depends on it.
    pub name_seed: u64,
    /// Bytes of each compute node's lock table.
    pub lock_table_bytes: u64,
    /// Rows in each compute node's version table cache; 0 for none.
    pub version_table_cache: usize,
    /// Lock tables on compute nodes, or spin locks on memory nodes.
    pub locks: Locks,
    /// What a request does when another coordinator holds the lock.
    pub lock_wait: LockWait,
    /// Source of timestamps: a shared clock, or an oracle.
    pub timestamps: Timestamps,
    /// Order in which a commit becomes visible on backups and primaries.
    pub visible: Visible,
    /// Version that serializable transactions read.
    pub read_rule: ReadRule,
    /// Whether displaced versions are kept or overwritten.
    pub retain_versions: Retention,
    /// Interval at which compute nodes exchange horizons, in microseconds.
    pub horizon_us: u64,
    /// Time for which a commit retries, in microseconds.
    pub commit_timeout_us: u64,
    /// Time for which a transaction waits for remote locks, in microseconds.
    pub lock_timeout_us: u64,
    /// Time that a compute node may be silent before the other nodes recover it, in microseconds; 0
    /// for no lease.
    pub lease_us: u64,
    /// Interval at which a random shard is moved during the storm, in microseconds; 0 for never.
    pub moves_us: u64,
    /// Interval at which compute nodes balance their shards by load, in microseconds; 0 for never.
    pub balance_us: u64,
    /// Time that an owner waits for the lock holders of a shard to be given away before it asks
    /// them to give up, in microseconds.
    pub drain_us: u64,
    /// Interval at which a snapshot of all rows is written to a file, in microseconds; 0 for never.
    pub snapshots_us: u64,
    /// Interval at which a further table is dropped, or made, during the storm, in microseconds; 0
    /// for never.
    pub drops_us: u64,
    /// Interval at which an endless transaction begins during the storm, in microseconds; 0 for
    /// never.
    pub endless_us: u64,
    /// Slabs of 256 KiB of each replica group on a memory node, including the header's slab.
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
            inline: Inline::Never,
            shards: 16,
            name_bits: u64::BITS,
            name_seed: 0,
            lock_table_bytes: 1 << 14,
            version_table_cache: 64,
            locks: Locks::Lotus,
            lock_wait: LockWait::None,
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
            drops_us: 0,
            endless_us: 0,
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
    /// Bank accounts: several rows in a transaction, and a sum of money that must not change.
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
    /// Order processing: inserts, deletions, many rows in a transaction, twelve audited conditions.
    #[serde(rename_all = "kebab-case")]
    Tpcc {
        /// Warehouses, each with ten districts.
        warehouses: u32,
        /// Customers of each district, and initial number of orders.
        customers_per_district: u32,
        /// Items, each in stock at every warehouse.
        items: u32,
        /// Part of a key that chooses the shard.
        critical_field: Critical,
        /// Whether access paths are ranges of ordered tables.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        ordered: bool,
    },
    /// Inserts and deletions of rows, at most one of each pair ([`crate::scenario::pairs`]).
    #[serde(rename_all = "kebab-case")]
    Pairs {
        /// Pairs of rows.
        pairs: u64,
        /// Rows that the index is made for; 0 for the number of pairs. A far smaller number makes
        /// the index grow.
        #[serde(default, skip_serializing_if = "is_zero")]
        made_for: u64,
        /// Bytes of each row's value.
        #[serde(default = "shortest", skip_serializing_if = "is_shortest")]
        record_bytes: usize,
    },
    /// Ranges of an ordered table, with splits and merges of its leaves
    /// ([`crate::scenario::bins`]).
    #[serde(rename_all = "kebab-case")]
    Bins {
        /// Bins, each with a limit of rows.
        bins: u32,
    },
}

fn is_zero(number: &u64) -> bool {
    *number == 0
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
    /// Share of transactions in which the client drops the future of an execution or commit (H21).
    pub impatience: f64,
    /// Rule that assigns a transaction to a compute node.
    pub routing: Routing,
    /// Transactions per second; `None` for a closed loop.
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
    /// The scenario is well-formed but impossible. Change the setting that `message` names.
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lotus_fabric::ids::NodeId;
    use lotus_fabric::sim::{Fault, When};

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
