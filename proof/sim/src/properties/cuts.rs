//! Of two compute nodes without a path between them, one gives way.

use std::time::Duration;

use lotus_benchmarks::config::{Locks, Routing};
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, When};

use crate::scenario::format::Scenario;
use crate::verdict::Violation;

/// Property that compute nodes do not wait for a cut path between them.
pub const GAVE_WAY: &str = "of two compute nodes that do not reach each other one gives way";

/// Leases until the decision: one to notice the cut, one to be sure, the rest for concurrent
/// faults.
const LEASES: u32 = 8;

/// Two compute nodes that both take part, by place, despite a long cut of a path between them.
pub fn violations(scenario: &Scenario, takes_part: impl Fn(usize) -> bool) -> Option<Violation> {
    let first = scenario.first_compute_node().0;
    let place = |node: NodeId| usize::from(node.0 - first);
    let (from, to) = long_cut(scenario)?;
    let detail = || format!("compute nodes {} and {} both take part", place(from), place(to));
    (takes_part(place(from)) && takes_part(place(to)))
        .then(|| Violation { property: GAVE_WAY.to_owned(), detail: detail() })
}

/// A long cut of a path used by two compute nodes, in a scenario without other faults.
fn long_cut(scenario: &Scenario) -> Option<(NodeId, NodeId)> {
    let cluster = &scenario.cluster;
    let sends = cluster.locks == Locks::Lotus && scenario.load.routing == Routing::Random;
    if cluster.lease_us == 0 || !sends || !scenario.strikes.is_empty() {
        return None;
    }
    let first = scenario.first_compute_node();
    let [cut] = &scenario.schedule[..] else { return None };
    let (Fault::Cut { from, to }, When::At(at)) = (&cut.fault, cut.when) else { return None };
    let long = Duration::from_micros(cluster.lease_us) * LEASES;
    let lasts = scenario.storm() >= at + long;
    (lasts && *from >= first && *to >= first && from != to).then_some((*from, *to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
name = \"small\"
storm-us = 6000
calm-us = 9000
workload = { kvs = { keys = 10, update-ratio = 0.5, zipf = 0.0 } }
cluster = { compute-nodes = 3, lease-us = 500 }
load = { routing = \"random\" }
schedule = [{ when = { at-us = AT }, fault = { cut = { from = FROM, to = 4 } } }]
";

    #[test]
    fn a_long_cut_between_compute_nodes_leaves_one_of_them() {
        for (at, from, lasts) in [(1_000, 5, true), (3_000, 5, false), (1_000, 0, false)] {
            let text = SMALL.replace("AT", &at.to_string()).replace("FROM", &from.to_string());
            let scenario = Scenario::parse("small", text.as_bytes()).expect("it is right");
            assert_eq!(violations(&scenario, |_| true).is_some(), lasts, "{at}, {from}");
            assert_eq!(violations(&scenario, |node| node != 2), None);
        }
    }
}
