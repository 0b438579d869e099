//! Starts processes on compute nodes that the world has restarted.
//!
//! A restart is a new process on the node: the old process ends, and the node takes part again as
//! soon as the other nodes have settled its leftovers ([`Cluster::restart`]).

use lotus::Cluster;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, SimMachines};

use crate::scenario::format::Scenario;
use crate::verdict::Violation;

/// Property that a restarted compute node takes part again.
pub const RETURNED: &str = "a compute node that is started again takes part";

/// Restarts of compute nodes handled so far.
pub(crate) struct Returns {
    first: NodeId,
    /// Number of restarts handled, by compute node.
    followed: Vec<u64>,
    /// Whether a compute node's only faults are crashes and restarts, by compute node.
    sound: Vec<bool>,
    /// Number of returns of compute nodes.
    pub(crate) done: u64,
}

impl Returns {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let (first, count) = (scenario.first_compute_node(), scenario.cluster.compute_nodes);
        let sound = |cn: usize| {
            let node = NodeId(first.0 + cn as u16);
            let mut faults = scenario.schedule.iter().map(|entry| &entry.fault);
            faults.all(|fault| match fault {
                Fault::Crash { .. } | Fault::Restart { .. } => true,
                other => other.nodes().all(|named| named != node),
            })
        };
        let sound = (0..count).map(sound).collect();
        Self { first, followed: vec![0; count], sound, done: 0 }
    }

    /// A compute node that was restarted and does not take part, though it had no other fault.
    pub(crate) fn violations(&self, cluster: &Cluster) -> Option<Violation> {
        let missing = (0..self.followed.len()).find(|cn| {
            let node = NodeId(self.first.0 + *cn as u16);
            let restarts = SimMachines::of(cluster.machines()).world().restarts(node);
            self.sound[*cn] && restarts.is_some_and(|often| often > 0) && !cluster.takes_part(*cn)
        })?;
        let detail = format!("compute node {missing} does not");
        Some(Violation { property: RETURNED.to_owned(), detail })
    }

    /// Tries to start the restarted compute nodes; returns the nodes that now take part again.
    pub(crate) fn take_in(&mut self, cluster: &Cluster) -> Vec<usize> {
        let mut back = Vec::new();
        for (cn, followed) in self.followed.iter_mut().enumerate() {
            let node = NodeId(self.first.0 + cn as u16);
            let restarts = SimMachines::of(cluster.machines()).world().restarts(node);
            let Some(restarts) = restarts.filter(|restarts| restarts > followed) else { continue };
            // An error or `false` now may become `true` the next time; the node may crash on the
            // way.
            if let Ok(true) = cluster.restart(cn) {
                *followed = restarts;
                self.done += 1;
                back.push(cn);
            }
        }
        back
    }
}
