//! Real machines: threads and clock of this process, over any fabric.
//!
//! Every core is a thread, and the threads share one clock. The fabric decides where memory is, by
//! default in this process as well.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::local::LocalFabric;
use crate::contract::ids::NodeId;
use crate::contract::transport::Fabric;
use crate::run::env::Env;
use crate::run::exec::Executor;
use crate::run::machines::{Core, Machines, Program, Turn};

/// Threads of this process on the machine's clock, over a fabric. One type for all fabrics: code
/// that runs on threads is compiled once.
pub struct Threads {
    fabric: Arc<dyn Fabric>,
    env: Env,
}

impl Threads {
    /// Machines for `nodes` nodes with memory in this process, and with randomness that derives
    /// from `seed`.
    pub fn new(nodes: u16, seed: u64) -> Self {
        Self::over(LocalFabric::new(nodes), Env::real(seed))
    }

    /// Machines over an existing fabric.
    pub fn over(fabric: impl Fabric, env: Env) -> Self {
        Self { fabric: Arc::new(fabric), env }
    }

    /// Returns a fabric with memory in this process by its concrete type, which has fault injection
    /// for tests; `None` over another fabric.
    pub fn local_fabric(&self) -> Option<&LocalFabric> {
        let fabric: &dyn Any = &*self.fabric;
        fabric.downcast_ref()
    }
}

impl Machines for Threads {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::clone(&self.fabric)
    }

    fn control_workers(&self) -> usize {
        self.env.parallelism()
    }

    fn env(&self, _node: NodeId) -> Env {
        self.env.clone()
    }

    fn outside(&self) -> Env {
        self.env.clone()
    }

    fn start(&self, node: NodeId, name: &str, program: Program) -> io::Result<Core> {
        let env = self.env(node);
        let thread = self.env.spawn(name, move || {
            let mut executor = Executor::new(env);
            let life = program(&mut executor);
            executor.run(life);
        });
        thread.map(Core::new)
    }

    fn join(&self, core: Core) -> bool {
        let core: JoinHandle<()> = core.into_inner();
        // One of the cluster's own cores may end the cluster, and a core cannot wait for itself.
        core.thread().id() == std::thread::current().id() || core.join().is_ok()
    }

    fn run_while(&self, _goes_on: &mut dyn FnMut() -> bool) -> Turn {
        Turn::ByThemselves
    }
}
