//! Planned returns of memory nodes with empty memory: whether a schedule may contain them, and the
//! nodes that must be in use again at the end. Independent of a run.

use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, MemoryFate, Scheduled, When};

use crate::scenario::format::Scenario;

/// Leases for filling a returned memory node, before the next node may be lost. If filling takes
/// longer, the next loss waits ([`crate::drive::turns`]).
const LEASES_TO_FILL: u32 = 12;

/// Planned time to fill a returned memory node.
fn to_fill(scenario: &Scenario) -> Duration {
    Duration::from_micros(scenario.cluster.lease_us) * LEASES_TO_FILL
}

/// Whether each memory node restarted by an entry crashed before and lost its memory, and has no
/// other faults.
pub(crate) fn is_made_anew(scenario: &Scenario, entry: &Scheduled) -> bool {
    let restarts = |node: NodeId| absences(scenario, node).is_some();
    entry.fault.nodes().all(restarts)
}

/// Whether the absences of the given nodes, filling included, do not overlap, so that one of the
/// nodes is whole at any time.
pub(crate) fn take_turns(scenario: &Scenario, nodes: &mut dyn Iterator<Item = NodeId>) -> bool {
    let of: Option<Vec<_>> = nodes.map(|node| absences(scenario, node)).collect();
    let Some(of) = of else { return false };
    let mut all = of.concat();
    all.sort_unstable();
    // A single node has no other copy to be filled from.
    let others = of.len() > 1 || all.is_empty();
    others && all.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

/// Periods in which a memory node is not whole, until `Duration::MAX` if it does not come back.
/// `None` if the node has faults other than alternating crashes and restarts.
fn absences(scenario: &Scenario, node: NodeId) -> Option<Vec<(Duration, Duration)>> {
    let mut about: Vec<(Duration, bool)> = Vec::new();
    let entries = scenario.schedule.iter();
    for entry in entries.filter(|entry| entry.fault.nodes().any(|about| about == node)) {
        let When::At(at) = entry.when else { return None };
        match entry.fault {
            Fault::Crash { memory: MemoryFate::Lost, .. } => about.push((at, false)),
            Fault::Restart { .. } => about.push((at, true)),
            _ => return None,
        }
    }
    about.sort_unstable();
    let mut absences = Vec::new();
    for (number, (at, restarts)) in about.into_iter().enumerate() {
        match (number % 2 == 1, restarts) {
            (false, false) => absences.push((at, Duration::MAX)),
            (true, true) => absences.last_mut()?.1 = at + to_fill(scenario),
            _ => return None,
        }
    }
    Some(absences)
}

/// Losses since the first return of a memory node: the node, the time, and the time of its return,
/// if any.
pub(crate) fn turns(scenario: &Scenario) -> Vec<(NodeId, Duration, Option<Duration>)> {
    let to_fill = to_fill(scenario);
    let nodes = (0..scenario.first_compute_node().0).map(NodeId);
    let absences = nodes.filter_map(|node| Some((node, absences(scenario, node)?)));
    let absences = absences.flat_map(|(node, all)| {
        let back = move |whole: Duration| (whole != Duration::MAX).then(|| whole - to_fill);
        all.into_iter().map(move |(from, whole)| (node, from, back(whole)))
    });
    let all: Vec<_> = absences.collect();
    let first = all.iter().filter_map(|(.., back)| *back).min();
    all.into_iter().filter(|(_, from, _)| first.is_some_and(|first| first <= *from)).collect()
}

/// Time of the crash from which a memory node does not return; `None` without such a crash.
pub(crate) fn stays_away(scenario: &Scenario, node: NodeId) -> Option<Duration> {
    let last = absences(scenario, node)?.pop()?;
    (last.1 == Duration::MAX).then_some(last.0)
}

/// Memory nodes that returned for good, early enough to be filled before a run ends.
pub(crate) fn returned(scenario: &Scenario) -> impl Iterator<Item = NodeId> + '_ {
    let end = scenario.storm() + scenario.calm();
    let nodes = (0..scenario.first_compute_node().0).map(NodeId);
    nodes.filter(move |node| {
        let last = absences(scenario, *node).and_then(|all| all.last().copied());
        last.is_some_and(|(_, until)| until <= end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
name = \"small\"
storm-us = 9000
calm-us = 9000
workload = { kvs = { keys = 10, update-ratio = 0.5, zipf = 0.0 } }
cluster = { lease-us = 100, replicas = 2 }
schedule = [
    { when = { at-us = 100 }, fault = { crash = { node = 1, memory = \"lost\" } } },
    { when = { at-us = 500 }, fault = { restart = { node = 1 } } },
    { when = { at-us = 2000 }, fault = { crash = { node = 2, memory = \"lost\" } } },
]
";

    #[test]
    fn who_is_back_may_be_the_last_copy_once_it_is_filled() {
        let parsed = |text: &str| Scenario::parse("small", text.as_bytes());
        let scenario = parsed(SMALL).expect("they take turns");
        assert!(returned(&scenario).eq([NodeId(1)]));
        for (from, to) in [
            ("at-us = 2000", "at-us = 1600"),
            ("replicas = 2", "replicas = 1"),
            ("restart = { node = 1 }", "restart = { node = 0 }"),
            ("restart = { node = 1 }", "rejoin = { node = 1 }"),
            ("at-us = 500", "at-us = 50"),
            (
                "{ crash = { node = 1, memory = \"lost\" }",
                "{ crash = { node = 1, memory = \"kept\" }",
            ),
        ] {
            assert!(parsed(&SMALL.replace(from, to)).is_err(), "{to}");
        }
    }
}
