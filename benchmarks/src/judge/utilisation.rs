//! Utilisation of a simulated cluster, and its bottleneck.

use std::collections::BTreeMap;

use lotus_fabric::sim::{Resource, Utilisation};
use serde::Serialize;

/// Utilisation of one NIC's server, link or core over the clients' run, warm-up included.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Busy {
    /// Name of the resource.
    pub resource: String,
    /// Share of virtual time in which it was busy, in 0..=1.
    pub busy: f64,
}

impl Busy {
    fn new(entry: &Utilisation) -> Self {
        Self { resource: entry.resource.to_string(), busy: entry.busy }
    }
}

/// Wall time, and utilisation in virtual time, of a simulated run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Simulation {
    /// Wall time of the run on this machine, in seconds.
    pub wall_s: f64,
    /// One-sided verbs simulated per second of wall time.
    pub verbs_per_wall_s: f64,
    /// The busiest resource, which bounded the throughput; absent if nothing was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bottleneck: Option<Busy>,
    /// All resources with any use, node by node, cores last.
    pub resources: Vec<Busy>,
    /// Mean and maximum for each kind of resource on each kind of node.
    #[serde(skip)]
    pub kinds: Vec<(&'static str, f64, f64)>,
}

impl Simulation {
    /// Summarises `used`, where the nodes numbered below `memory_nodes` are memory nodes.
    pub fn new(
        used: &lotus_fabric::sim::Report,
        memory_nodes: usize,
        verbs: u64,
        wall_s: f64,
    ) -> Self {
        let mut kinds: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        for entry in &used.resources {
            kinds.entry(kind(entry.resource, memory_nodes)).or_default().push(entry.busy);
        }
        let kinds = kinds.into_iter().map(|(kind, busy)| {
            let mean = busy.iter().sum::<f64>() / busy.len() as f64;
            (kind, mean, busy.into_iter().fold(0.0, f64::max))
        });
        let used_at_all = used.resources.iter().filter(|entry| entry.busy > 0.0);
        Self {
            wall_s,
            verbs_per_wall_s: if wall_s > 0.0 { verbs as f64 / wall_s } else { 0.0 },
            bottleneck: used.bound().as_ref().map(Busy::new),
            resources: used_at_all.map(Busy::new).collect(),
            kinds: kinds.filter(|(_, _, most)| *most > 0.0).collect(),
        }
    }
}

/// Name of a resource's kind, for display.
fn kind(resource: Resource, memory_nodes: usize) -> &'static str {
    let on = |node: lotus_fabric::ids::NodeId, memory, compute| {
        if usize::from(node.0) < memory_nodes { memory } else { compute }
    };
    match resource {
        Resource::Outbound(node) => on(node, "MN outbound requests", "CN outbound requests"),
        Resource::Inbound(node) => on(node, "MN inbound requests", "CN inbound requests"),
        Resource::AtomicUnit(node) => on(node, "MN atomic unit", "CN atomic unit"),
        Resource::HottestWord(node) => on(node, "MN hottest word", "CN hottest word"),
        Resource::Sending(node) => on(node, "MN link, sending", "CN link, sending"),
        Resource::Receiving(node) => on(node, "MN link, receiving", "CN link, receiving"),
        Resource::Core { node, .. } => on(node, "MN cores", "CN cores"),
        _ => "others",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lotus_fabric::ids::NodeId;
    use lotus_fabric::sim::Report;

    use super::*;

    #[test]
    fn resources_are_summed_up_by_kind_and_the_busiest_named() {
        let entry = |resource, busy| Utilisation { resource, busy };
        let used = Report {
            elapsed: Duration::from_secs(1),
            resources: vec![
                entry(Resource::Inbound(NodeId(0)), 0.5),
                entry(Resource::Inbound(NodeId(1)), 0.0),
                entry(Resource::AtomicUnit(NodeId(0)), 0.0),
                entry(Resource::Inbound(NodeId(2)), 0.75),
                entry(Resource::Core { node: NodeId(2), index: 3 }, 0.25),
            ],
        };
        let simulation = Simulation::new(&used, 2, 3_000, 1.5);
        assert_eq!(simulation.verbs_per_wall_s, 2_000.0);
        let busiest = simulation.bottleneck.expect("something was used");
        assert_eq!(busiest, Busy { resource: "inbound requests of node 2".to_owned(), busy: 0.75 });
        assert_eq!(simulation.resources.len(), 3);
        let kinds = [
            ("CN cores", 0.25, 0.25),
            ("CN inbound requests", 0.75, 0.75),
            ("MN inbound requests", 0.25, 0.5),
        ];
        assert_eq!(simulation.kinds, kinds);
    }
}
