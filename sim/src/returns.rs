//! Starts the processes of compute nodes again that the world has restarted.
//!
//! A restart is a new process on the node: whatever runs there ends, and the node takes part again
//! as soon as the others have settled what it has left ([`Cluster::restart`]).

use lotus::Cluster;
use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::{Fault, SimMachines};

use crate::run::Violation;
use crate::scenario::Scenario;

/// The property's name.
pub const RETURNED: &str = "a compute node that is started again takes part";

/// See the module's essay.
pub(crate) struct Returns {
    first: NodeId,
    /// By compute node: how many restarts it has followed.
    followed: Vec<u64>,
    /// By compute node: whether nothing happens to it but that it dies and is started.
    sound: Vec<bool>,
    /// How often a node has returned.
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

    /// Who was started and does not take part, though nothing else has happened to it.
    pub(crate) fn violations(&self, cluster: &Cluster<SimMachines>) -> Option<Violation> {
        let missing = (0..self.followed.len()).find(|cn| {
            let node = NodeId(self.first.0 + *cn as u16);
            let restarts = cluster.machines().world().restarts(node);
            self.sound[*cn] && restarts.is_some_and(|often| often > 0) && !cluster.takes_part(*cn)
        })?;
        let detail = format!("compute node {missing} does not");
        Some(Violation { property: RETURNED.to_owned(), detail })
    }

    /// Tries to start whoever was restarted; who takes part again now.
    pub(crate) fn take_in(&mut self, cluster: &Cluster<SimMachines>) -> Vec<usize> {
        let mut back = Vec::new();
        for (cn, followed) in self.followed.iter_mut().enumerate() {
            let node = NodeId(self.first.0 + cn as u16);
            let restarts = cluster.machines().world().restarts(node);
            let Some(restarts) = restarts.filter(|restarts| restarts > followed) else { continue };
            // Who does not answer now may do so the next time; the node may crash on the way.
            if let Ok(true) = cluster.restart(cn) {
                *followed = restarts;
                self.done += 1;
                back.push(cn);
            }
        }
        back
    }
}
