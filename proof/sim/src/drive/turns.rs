//! Memory nodes that are lost in turn: the next node only after the last node has been filled.
//!
//! # What it is
//! The time to fill a returned memory node cannot be planned: it depends on the amount of data, on
//! other work, and on lost messages. A later loss of a memory node therefore waits until the node's
//! rows have a copy elsewhere, and later faults of memory nodes are delayed by the same time.
//! Crashes that have not happened by the end of the storm are dropped, and absent memory nodes then
//! return; clients may have ended earlier.
//!
//! # What it is not
//! A concession to the engine: an engine that never fills a returned memory node violates
//! [`crate::properties::losses::FILLED`].

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use lotus::{Cluster, MemoryStanding};
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, MemoryFate, Scheduled, SimMachines, When};

use crate::scenario::format::Scenario;
use crate::scenario::memory_returns;

/// Losses and returns of memory nodes that wait for copies elsewhere.
pub(crate) struct Turns {
    /// Faults still to happen, with their planned times.
    due: VecDeque<(Duration, Fault)>,
    /// Delay of the remaining faults.
    late: Duration,
    /// End of the storm.
    until: Duration,
    /// Interval at which a waiting fault is tried again.
    every: Duration,
    replicas: usize,
}

impl Turns {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let mut due = Vec::new();
        for (node, from, back) in memory_returns::turns(scenario) {
            due.push((from, Fault::Crash { node, memory: MemoryFate::Lost }));
            due.extend(back.map(|back| (back, Fault::Restart { node })));
        }
        due.sort_by_key(|(at, _)| *at);
        let (late, until) = (Duration::ZERO, scenario.storm());
        // A lease; every scenario with crashes has leases.
        let every = Duration::from_micros(scenario.cluster.lease_us.max(1));
        Self { due: due.into(), late, until, every, replicas: scenario.cluster.replicas }
    }

    /// Entries of a schedule that do not wait, but happen at their planned times.
    pub(crate) fn others(&self, mut schedule: Vec<Scheduled>) -> Vec<Scheduled> {
        let waits = |one: &Scheduled| {
            let due =
                |(at, fault): &(Duration, Fault)| one.when == When::At(*at) && one.fault == *fault;
            self.due.iter().any(due)
        };
        schedule.retain(|one| !waits(one));
        schedule
    }

    /// Whether faults are still to happen; false once the storm is over.
    pub(crate) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Runs the world for `span`, with the faults that are due; false if the world has stopped.
    pub(crate) fn run_for(&mut self, cluster: &Cluster, span: Duration) -> bool {
        let machines = SimMachines::of(cluster.machines());
        let mut left = span;
        while !left.is_zero() {
            let step = self.next(machines.world().now()).map_or(left, |it| it.min(left));
            if machines.run_for(step).is_none() {
                return false;
            }
            left -= step;
            self.take(cluster);
        }
        true
    }

    /// Time until the next fault or the next try; `None` if no fault is left.
    fn next(&self, now: Duration) -> Option<Duration> {
        let (at, _) = self.due.front()?;
        let left = (*at + self.late).saturating_sub(now);
        Some(if left.is_zero() { self.every } else { left })
    }

    /// Injects the faults that are due.
    fn take(&mut self, cluster: &Cluster) {
        let now = SimMachines::of(cluster.machines()).world().now();
        while let Some((at, fault)) = self.due.front().cloned() {
            if now >= self.until {
                return self.end(cluster);
            }
            if at + self.late > now || !self.is_spared(cluster, &fault) {
                return;
            }
            // The next fault keeps its planned distance in time.
            self.late = now - at;
            self.due.pop_front();
            inject(cluster, fault);
        }
    }

    /// Ends the storm: absent memory nodes return, and no other is lost.
    fn end(&mut self, cluster: &Cluster) {
        let mut there = BTreeSet::new();
        for (_, fault) in std::mem::take(&mut self.due) {
            match fault {
                Fault::Crash { node, .. } => _ = there.insert(node),
                Fault::Restart { node } if !there.contains(&node) => inject(cluster, fault),
                _ => {}
            }
        }
    }

    /// Whether all rows of the memory node that a fault crashes have a whole copy elsewhere.
    fn is_spared(&self, cluster: &Cluster, fault: &Fault) -> bool {
        let Fault::Crash { node, .. } = *fault else { return true };
        let status = cluster.memory_status();
        status.is_ok_and(|status| has_copies_elsewhere(&status.nodes, self.replicas, node))
    }
}

fn inject(cluster: &Cluster, fault: Fault) {
    let world = SimMachines::of(cluster.machines()).world();
    world.inject(fault).expect("the scenario names nodes that there are");
}

/// Whether each replica group of a memory node has a different member that serves.
fn has_copies_elsewhere(nodes: &[MemoryStanding], replicas: usize, node: NodeId) -> bool {
    let place = usize::from(node.0);
    (0..nodes.len()).all(|group| {
        let mut members = (group..group + replicas).map(|member| member % nodes.len());
        let serves = |member: usize| member != place && nodes[member] == MemoryStanding::Serving;
        !members.clone().any(|member| member == place) || members.any(serves)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_TURN: &str = "
name = \"in-turn\"
storm-us = 9000
calm-us = 9000
workload = { kvs = { keys = 10, update-ratio = 0.5, zipf = 0.0 } }
cluster = { lease-us = 100, replicas = 2 }
schedule = [
    { when = { at-us = 2000 }, fault = { crash = { node = 2, memory = \"lost\" } } },
    { when = { at-us = 3000 }, fault = { restart = { node = 2 } } },
    { when = { at-us = 100 }, fault = { crash = { node = 1, memory = \"lost\" } } },
    { when = { at-us = 500 }, fault = { restart = { node = 1 } } },
]
";

    #[test]
    fn only_who_is_lost_after_a_return_waits() {
        let scenario = Scenario::parse("in-turn", IN_TURN.as_bytes()).expect("it is right");
        let turns = Turns::new(&scenario);
        let others = turns.others(scenario.schedule.clone());
        assert_eq!(others.len() + turns.due.len(), scenario.schedule.len());
        let held = turns.due.iter().map(|(at, _)| at.as_micros());
        assert_eq!(held.collect::<Vec<_>>(), [2000, 3000]);
    }

    #[test]
    fn what_is_being_filled_is_no_copy() {
        use MemoryStanding::{Joining, Lost, Serving};
        for (nodes, replicas, expected) in [
            (&[Serving, Serving, Serving][..], 2, true),
            (&[Serving, Joining, Serving], 2, false),
            (&[Serving, Serving, Lost], 2, false),
            (&[Serving, Serving, Lost, Serving], 2, true),
            (&[Serving, Joining, Serving], 3, true),
        ] {
            assert_eq!(has_copies_elsewhere(nodes, replicas, NodeId(0)), expected, "{nodes:?}");
        }
    }
}
