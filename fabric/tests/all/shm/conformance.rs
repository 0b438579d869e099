//! The contract, with all nodes in one process, and with a process or a fabric of its own for each
//! node.

use std::sync::Arc;

use lotus_fabric::conformance::{self, Harness, NODES};
use lotus_fabric::ids::{Endpoint, Epoch, NodeId, RegionId};
use lotus_fabric::region::Rights;
use lotus_fabric::shm::ShmFabric;
use lotus_fabric::transport::{Fabric, FabricError, Transport, Wake};

use super::children::{Child, Role};
use super::{Directory, env, join};

/// All nodes in this process, in one fabric object.
struct OneProcess {
    fabric: ShmFabric,
    _directory: Directory,
}

impl OneProcess {
    fn new() -> Self {
        let directory = Directory::new();
        let fabric = ShmFabric::join(directory.path(), NODES, &env()).expect("joins");
        (0..NODES).for_each(|node| fabric.host(NodeId(node)).expect("hosts"));
        Self { fabric, _directory: directory }
    }
}

impl Harness for OneProcess {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.fabric.clone())
    }

    fn set_reachable(&self, node: NodeId, reachable: bool) {
        self.fabric.set_reachable(node, reachable).expect("the node exists");
    }
}

#[test]
fn one_process_keeps_the_contract() {
    conformance::run(OneProcess::new);
}

/// Memory nodes are processes that share nothing with the compute nodes but the directory. The
/// compute nodes share nothing with each other either, though the suite's coroutines are threads of
/// one process.
struct Processes {
    nodes: Shares,
    _memory: [Child; 2],
    _directory: Directory,
}

/// Fabrics of the two compute nodes, 2 and 3.
#[derive(Clone)]
struct Shares([ShmFabric; 2]);

impl Processes {
    fn new() -> Self {
        let directory = Directory::new();
        let path = directory.path();
        let memory = [0, 1].map(|node| Child::start(Role::Memory, path, node, NODES));
        let nodes = Shares([2, 3].map(|node| join(path, node, NODES)));
        Self { nodes, _memory: memory, _directory: directory }
    }
}

impl Harness for Processes {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.nodes.clone())
    }

    fn set_reachable(&self, node: NodeId, reachable: bool) {
        for share in &self.nodes.0 {
            share.set_reachable(node, reachable).expect("the node exists");
        }
    }
}

impl Fabric for Shares {
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError> {
        self.0[0].register(node, region, bytes, rights)
    }

    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError> {
        self.0[usize::from(at.node == NodeId(3))].open_lane(at, epoch, wake)
    }

    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError> {
        self.0[0].fence(target, expelled, epoch)
    }
}

#[test]
fn processes_keep_the_contract() {
    conformance::run(Processes::new);
}
