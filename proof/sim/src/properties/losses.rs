//! Memory nodes are lost only for a reason: a fault of the node, or faults on its paths to at least
//! half of the compute nodes.

use lotus::MemoryStanding;
use lotus_fabric::ids::NodeId;

use crate::scenario::format::Scenario;
use crate::scenario::memory_returns;
use crate::verdict::Violation;

/// Property that memory nodes are kept without a reason to lose them.
pub const MISSED: &str = "a memory node that most compute nodes reach is kept";
/// Property that returned memory nodes are used.
pub const FILLED: &str = "a memory node that comes back empty is used again";

/// A memory node among the `lost` nodes that no fault of the scenario explains.
pub fn violations(scenario: &Scenario, lost: &[u16]) -> Option<Violation> {
    let place = lost.iter().find(|place| !scenario.may_be_lost(NodeId(**place)))?;
    let detail = format!("memory node {place} is lost");
    Some(Violation { property: MISSED.to_owned(), detail })
}

/// A memory node that returned for good and is not in use, by the final `standing` of each node.
pub fn unfilled(scenario: &Scenario, standing: &[MemoryStanding]) -> Option<Violation> {
    let is_used = |node: &NodeId| standing[usize::from(node.0)] == MemoryStanding::Serving;
    let node = memory_returns::returned(scenario).find(|node| !is_used(node))?;
    let detail = format!("memory node {} is {:?}", node.0, standing[usize::from(node.0)]);
    Some(Violation { property: FILLED.to_owned(), detail })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
name = \"small\"
storm-us = 2000
calm-us = 9000
workload = { kvs = { keys = 10, update-ratio = 0.5, zipf = 0.0 } }
cluster = { compute-nodes = 5, lease-us = 500 }
schedule = [
    { when = { at-us = 1 }, fault = { crash = { node = 1, memory = \"lost\" } } },
    { when = { at-us = 1 }, fault = { cut = { from = 4, to = 2 } } },
    { when = { at-us = 1 }, fault = { stall = { from = 3, to = 0, lasting-us = 9 } } },
    { when = { at-us = 1 }, fault = { cut = { from = 0, to = 4 } } },
]
";

    #[test]
    fn who_crashed_or_is_cut_off_from_most_may_be_lost() {
        let scenario = Scenario::parse("small", SMALL.as_bytes()).expect("it is right");
        for (lost, right) in [(&[][..], true), (&[1], true), (&[0, 1], true), (&[1, 2], false)] {
            assert_eq!(violations(&scenario, lost).is_none(), right, "{lost:?}");
        }
    }
}
