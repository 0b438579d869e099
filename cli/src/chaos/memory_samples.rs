//! Memory held by the nodes' processes, sampled throughout a run.
//!
//! Only anonymous memory counts: memory that a process has allocated and touched. Memory shared by
//! nodes over `shm` belongs to the cluster, and its size is set in the cluster's file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus_benchmarks::audit::Check;
use lotus_fabric::env::Env;

use super::striker::Nodes;
use lotus_node::config::file::{ClusterFile, Net};
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::host::polling::wait_until;
use lotus_node::host::usage::anonymous_bytes;

/// Sampling interval.
const LOOKING: Duration = Duration::from_millis(250);
/// Permitted growth of a process under load: caches that fill, state of clients, memory kept by the
/// allocator. A client answered without limit takes this much in seconds.
const GROWTH_BYTES: u64 = 256 << 20;

/// Samples of a run.
pub struct MemorySamples {
    /// Maximum over the processes of each kind at the start of the load.
    first: BTreeMap<NodeKind, u64>,
    /// Maximum of each node since the start.
    most: BTreeMap<NodeName, u64>,
    /// Memory limit of a memory node on `tcp`, all of which may come into use; 0 on `shm`.
    lent: u64,
}

impl MemorySamples {
    /// Takes the first sample.
    pub fn of(file: &ClusterFile, nodes: &Nodes) -> Self {
        let lent = match file.net {
            Net::Tcp { .. } => file.settings.memory_bytes,
            Net::Shm { .. } => 0,
        };
        let mut memory_samples = Self { first: BTreeMap::new(), most: BTreeMap::new(), lent };
        memory_samples.look(nodes);
        for (node, bytes) in &memory_samples.most {
            let first = memory_samples.first.entry(node.kind).or_default();
            *first = (*first).max(*bytes);
        }
        memory_samples
    }

    /// Samples repeatedly until `stop` is set.
    pub fn watch(mut self, nodes: &Nodes, stop: &AtomicBool) -> Self {
        let env = Env::real(0);
        while !stop.load(Ordering::Relaxed) {
            self.look(nodes);
            wait_until(&env, LOOKING, || stop.load(Ordering::Relaxed));
        }
        self
    }

    fn look(&mut self, nodes: &Nodes) {
        for node in nodes.all() {
            let bytes = nodes.process(node).and_then(anonymous_bytes).unwrap_or(0);
            let most = self.most.entry(node).or_default();
            *most = (*most).max(bytes);
        }
    }

    /// Checks that the processes stayed below the bounds.
    pub fn check(&self) -> Check {
        let bound = |kind: NodeKind| {
            let lent = if kind == NodeKind::Memory { self.lent } else { 0 };
            self.first.get(&kind).copied().unwrap_or(0) + lent + GROWTH_BYTES
        };
        let stayed = self.most.iter().all(|(node, bytes)| *bytes < bound(node.kind));
        let mut detail = String::new();
        for (node, bytes) in &self.most {
            // Writing to a string cannot fail.
            let _ = write!(detail, "{node} {}, ", bytes >> 20);
        }
        let (memory, compute) = (bound(NodeKind::Memory) >> 20, bound(NodeKind::Compute) >> 20);
        let _ = write!(detail, "of {memory} MiB for memory nodes and {compute} for compute nodes");
        Check::new("resident memory stayed below its bound", stayed, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_grows_beyond_the_bound_of_its_kind_is_a_finding() {
        let (mn, cn) = (NodeName { kind: NodeKind::Memory, index: 0 }, NodeName::compute(1));
        let first = [(NodeKind::Memory, 10 << 20), (NodeKind::Compute, 100 << 20)].into();
        let check = |memory: u64, compute: u64| {
            let most = [(mn, memory << 20), (cn, compute << 20)].into();
            MemorySamples { first: BTreeMap::clone(&first), most, lent: 64 << 20 }.check()
        };
        let sound = check(329, 355);
        assert!(sound.passed, "{}", sound.detail);
        assert_eq!(
            sound.detail,
            "mn-0 329, cn-1 355, of 330 MiB for memory nodes and 356 for compute nodes"
        );
        assert!(!check(331, 100).passed && !check(10, 357).passed);
        assert!(anonymous_bytes(std::process::id()).is_some_and(|bytes| bytes > 0));
    }
}
