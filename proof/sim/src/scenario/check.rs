//! Checks of a scenario: a scenario that no cluster could run is refused, with the reason.

use crate::scenario::format::{Hot, Scenario, ScenarioError, Topology, Workload};
use crate::scenario::memory_returns;
use crate::scenario::pairs::SHORTEST;
use crate::scenario::room::FEWEST_SLABS;
use crate::scenario::strike::Strike;
use lotus_benchmarks::config::Locks;
use lotus_benchmarks::engine::Isolation;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, MAX_CLOCK_PPM, Rates, Scheduled, When};
use lotus_mvcc::table::MAX_RECORD_BYTES;
use std::collections::BTreeSet;
use std::time::Duration;

fn share(share: f64) -> bool {
    (0.0..=1.0).contains(&share)
}

fn all_rates(rates: &Rates) -> bool {
    let Rates { message_loss, message_duplication, message_delay, .. } = *rates;
    let Rates { verb_delay, torn_writes, torn_reads, .. } = *rates;
    [message_loss, message_duplication, message_delay, verb_delay, torn_writes, torn_reads]
        .into_iter()
        .all(share)
}

impl Scenario {
    /// Error `Impossible` for this scenario.
    pub(crate) fn impossible(&self, message: impl ToString) -> ScenarioError {
        ScenarioError::Impossible { name: self.name.clone(), message: message.to_string() }
    }

    /// Whether all transactions that write are serializable.
    fn is_pure(&self) -> bool {
        self.load.isolation == Isolation::Serializable && self.load.other_isolation == 0.0
    }

    /// Checks values and their combinations; the cluster and the world check the rest when created.
    ///
    /// # Errors
    /// `Impossible`.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let must = |holds: bool, message: &str| {
            if holds { Ok(()) } else { Err(self.impossible(message)) }
        };
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
            Workload::Pairs { pairs, made_for, record_bytes } => {
                must((1..=1 << 20).contains(&pairs), "pairs are not from 1 to 2^20")?;
                must(made_for <= 1 << 20, "made-for is above 2^20")?;
                let fits = (SHORTEST..=MAX_RECORD_BYTES as usize).contains(&record_bytes);
                must(fits, "record-bytes are not from 16 to 15360")?;
            }
            Workload::Bins { bins } => {
                must((1..=10_000).contains(&bins), "bins are not from 1 to 10000")?;
            }
        }
        // Snapshot isolation allows write skew, which breaks the limits of both workloads.
        let limited = matches!(self.workload, Workload::Pairs { .. } | Workload::Bins { .. });
        must(self.is_pure() || !limited, "pairs and bins are for serializability (sr) only")?;
        must((2..=8).contains(&self.cluster.versions), "versions are not from 2 to 8")?;
        let slabs = self.cluster.group_slabs;
        must((FEWEST_SLABS..=1 << 12).contains(&slabs), "group-slabs are not from 4 to 2^12")?;
        let cached = self.cluster.version_table_cache;
        must(cached <= 1 << 20, "version-table-cache is more than 2^20")?;
        must(self.cluster.horizon_us > 0, "the horizon's interval is zero")?;
        must((1..=4096).contains(&self.cluster.shards), "shards are not from 1 to 4096")?;
        let excludes = self.cluster.locks.why_not_judged().is_none();
        must(excludes, "its locks exclude nothing, so nothing could be judged")?;
        let moves = self.cluster.moves_us + self.cluster.balance_us == 0
            || self.cluster.locks == Locks::Lotus;
        must(moves, "shards move, and only LOTUS's locks have owners")?;
        let balanced = self.cluster.balance_us > 0 && self.cluster.moves_us == 0;
        must(balanced || !self.steady, "steady loads are for balancing alone")?;
        must(share(self.load.other_isolation), "other-isolation is not from 0 to 1")?;
        must(share(self.load.impatience), "impatience is not from 0 to 1")?;
        let rate = self.load.rate_tps.is_none_or(|tps| tps > 0.0 && tps <= 1e7);
        must(rate, "rate-tps is not more than 0 and at most 10^7")?;
        must(all_rates(&self.rates), "a rate is not from 0 to 1")?;
        must(self.authority.has_shares(), "a share of the authority's is not from 0 to 1")?;
        must(self.lives.is_sound(), "its lives take too long, or their values are too long")?;
        let can_strike = cfg!(feature = "fault-points") || self.strikes.is_empty();
        must(can_strike, "it has strikes, and this build has no fault points")?;
        self.check_survivors()?;
        for entry in &self.planned() {
            self.check_size(entry)?;
            self.check_loss(entry)?;
        }
        Ok(())
    }

    /// Whether a memory node crashes, or may be cut off for a while from at least half of the
    /// participating compute nodes.
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

    /// Checks the numbers of a fault.
    fn check_size(&self, entry: &Scheduled) -> Result<(), ScenarioError> {
        let (holds, message) = match &entry.fault {
            Fault::SetRates(rates) => (all_rates(rates), "a rate is not from 0 to 1"),
            Fault::ClockRate { ppm, .. } => {
                let within = ppm.unsigned_abs() <= MAX_CLOCK_PPM.unsigned_abs();
                (within, "a clock gains or loses more than a tenth")
            }
            _ => return Ok(()),
        };
        if holds { Ok(()) } else { Err(self.impossible(message)) }
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
    /// recover the other nodes.
    fn check_survivors(&self) -> Result<(), ScenarioError> {
        if self.cluster.lease_us == 0 {
            return Ok(());
        }
        let first = self.first_compute_node().0;
        let nodes = first..first + self.cluster.compute_nodes as u16;
        let planned = self.planned();
        let struck: usize = self.strikes.iter().map(Strike::unknown_victims).sum();
        let unknown = struck + self.cut_pairs().len();
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
                    // One of the two nodes gives way.
                    Fault::Cut { from, to } | Fault::Mend { from, to } => {
                        from.min(to).0 < first || from == to
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

    /// Schedule and strikes; strikes are placed at the end of the storm, as their time is unknown.
    pub(crate) fn planned(&self) -> Vec<Scheduled> {
        let struck = self.strikes.iter().flat_map(|one| one.faults(self.first_compute_node()));
        let when = When::At(self.storm());
        let struck = struck.map(|fault| Scheduled { when, fault });
        self.schedule.iter().cloned().chain(struck).collect()
    }

    /// Pairs of compute nodes with a path between them that is cut for a while.
    fn cut_pairs(&self) -> BTreeSet<(NodeId, NodeId)> {
        let pair = |entry: &Scheduled| match entry.fault {
            Fault::Cut { from, to } => Some((from.min(to), from.max(to))),
            _ => None,
        };
        let pairs = self.schedule.iter().filter_map(pair);
        let first = self.first_compute_node();
        pairs.filter(|(one, other)| *one >= first && one != other).collect()
    }

    /// Compute nodes separated from a memory node for a while by a cut or stalled path.
    fn cut_off_from(&self, memory: NodeId) -> BTreeSet<NodeId> {
        let cut = |entry: &Scheduled| match entry.fault {
            Fault::Cut { from, to } | Fault::Stall { from, to, .. } => Some([from, to]),
            _ => None,
        };
        let ways = self.schedule.iter().filter_map(cut);
        let touching = ways.filter(|way| way.contains(&memory)).flatten();
        touching.filter(|node| *node >= self.first_compute_node()).collect()
    }
}

/// Longest virtual time of a run, storm and calm together.
const LONGEST: Duration = Duration::from_secs(60);

/// Minimum length of the calm, in leases: one to notice a loss, the rest to recover from it.
const CALM_LEASES: u64 = 5;
