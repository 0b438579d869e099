//! Utilisation of a simulated cluster, and its bottleneck.

use std::collections::BTreeMap;

use lotus_fabric::sim::{NodeUse, Resource, Utilisation};
use serde::Serialize;

/// Utilisation of one NIC's server, link or core over the clients' run, warm-up included.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Busy {
    /// Name of the resource.
    pub resource: String,
    /// Share of virtual time in which the resource was busy, in 0..=1.
    pub busy: f64,
}

impl Busy {
    fn new(entry: &Utilisation) -> Self {
        Self { resource: entry.resource.to_string(), busy: entry.busy }
    }
}

/// Work of one node's NIC for other nodes over the clients' run, warm-up included: shares of
/// virtual time in which its parts were busy, in 0..=1, and the verbs that it served.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct NodeLoad {
    /// Number of the node.
    pub node: u16,
    /// `memory` or `compute`.
    pub kind: &'static str,
    /// Busy share of the inbound server.
    pub inbound_busy: f64,
    /// Busy share of the atomic unit.
    pub atomic_unit_busy: f64,
    /// Busy share of the link away from the node.
    pub sending_busy: f64,
    /// Busy share of the link towards the node.
    pub receiving_busy: f64,
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps.
    pub compare_and_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_and_adds: u64,
}

const MEMORY: &str = "memory";
const COMPUTE: &str = "compute";

impl NodeLoad {
    /// Loads of all nodes; nodes numbered below `memory_nodes` are memory nodes.
    pub fn all(used: &lotus_fabric::sim::Report, memory_nodes: usize) -> Vec<Self> {
        let load = |node: NodeUse| Self {
            node: node.node.0,
            kind: if usize::from(node.node.0) < memory_nodes { MEMORY } else { COMPUTE },
            inbound_busy: node.inbound,
            atomic_unit_busy: node.atomic_unit,
            sending_busy: node.sending,
            receiving_busy: node.receiving,
            reads: node.served.reads,
            writes: node.served.writes,
            compare_and_swaps: node.served.compare_and_swaps,
            fetch_and_adds: node.served.fetch_and_adds,
        };
        used.nodes().map(load).collect()
    }

    /// Returns whether the node is a memory node.
    pub fn is_memory(&self) -> bool {
        self.kind == MEMORY
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
    /// Work of each node's NIC for other nodes.
    pub nodes: Vec<NodeLoad>,
    /// Mean and maximum for each kind of resource on each kind of node.
    #[serde(skip)]
    pub kinds: Vec<(&'static str, f64, f64)>,
}

impl Simulation {
    /// Summarises `used`; nodes numbered below `memory_nodes` are memory nodes.
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
            nodes: NodeLoad::all(used, memory_nodes),
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
    use lotus_fabric::sim::{Report, Served};

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
            served: vec![Served::default(); 3],
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

    #[test]
    fn each_node_has_its_own_shares_and_counts() {
        let entry = |resource, busy| Utilisation { resource, busy };
        let served = Served { reads: 12, writes: 34, compare_and_swaps: 5, fetch_and_adds: 6 };
        let used = Report {
            elapsed: Duration::from_secs(1),
            resources: vec![
                entry(Resource::Inbound(NodeId(1)), 0.5),
                entry(Resource::AtomicUnit(NodeId(1)), 0.25),
                entry(Resource::Sending(NodeId(1)), 0.125),
                entry(Resource::Receiving(NodeId(1)), 0.0625),
            ],
            served: vec![Served::default(), served],
        };
        let nodes = Simulation::new(&used, 1, 0, 0.0).nodes;
        assert!(nodes[0].is_memory() && !nodes[1].is_memory());
        let json = serde_json::to_value(&nodes[1]).expect("plain values");
        let expected = serde_json::json!({
            "node": 1,
            "kind": "compute",
            "inbound_busy": 0.5,
            "atomic_unit_busy": 0.25,
            "sending_busy": 0.125,
            "receiving_busy": 0.0625,
            "reads": 12,
            "writes": 34,
            "compare_and_swaps": 5,
            "fetch_and_adds": 6,
        });
        assert_eq!(json, expected);
    }
}
