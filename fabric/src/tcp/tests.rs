use std::sync::Arc;

use super::*;
use crate::conformance::{self, Harness};

struct Tcp(TcpFabric);

impl Harness for Tcp {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.0.clone())
    }
    fn node_count(&self) -> u16 {
        self.0.inner.nodes
    }
    fn set_reachable(&self, node: NodeId, reachable: bool) {
        self.0.set_reachable(node, reachable).expect("the node exists");
    }
}

fn start(config: Config) -> Tcp {
    Tcp(TcpFabric::start(config, Env::real(0)).expect("loopback has free ports"))
}

#[test]
fn passes_the_conformance_suite() {
    conformance::run(|| start(Config::loopback(conformance::NODES + 1)));
}
