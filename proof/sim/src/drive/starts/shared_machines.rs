//! Machines of one world, shared by several clusters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{Core, DeliveryModel, Machines, Program, RequestDelivery, Turn};
use lotus_fabric::sim::{MemoryFate, SimError, SimMachines};
use lotus_fabric::transport::Fabric;

/// Shared machines for the clusters that the processes of [`super`] start.
#[derive(Clone)]
pub(super) struct SharedMachines {
    machines: Arc<SimMachines>,
    /// Whether the world runs, and with it the coordinators.
    running: Arc<AtomicBool>,
}

impl SharedMachines {
    pub(super) fn new(machines: SimMachines) -> Self {
        Self { machines: Arc::new(machines), running: Arc::default() }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Reason why the world has stopped for good; `None` while it can run.
    pub(super) fn failure(&self) -> Option<SimError> {
        self.machines.failure()
    }

    /// Crashes a memory node, with loss of the node's memory.
    pub(super) fn lose(&self, node: NodeId) {
        self.machines.world().crash(node, MemoryFate::Lost).expect("it is one of the world's");
    }

    /// Runs the world for `span`.
    pub(super) fn run_for(&self, span: Duration) {
        self.run(|machines| machines.run_for(span));
    }

    fn run<T>(&self, run: impl FnOnce(&SimMachines) -> T) -> T {
        let before = self.running.swap(true, Ordering::Relaxed);
        let outcome = run(&self.machines);
        self.running.store(before, Ordering::Relaxed);
        outcome
    }
}

impl Machines for SharedMachines {
    fn fabric(&self) -> Arc<dyn Fabric> {
        self.machines.fabric()
    }

    fn control_workers(&self) -> usize {
        self.machines.control_workers()
    }

    fn env(&self, node: NodeId) -> Env {
        self.machines.env(node)
    }

    fn outside(&self) -> Env {
        self.machines.outside()
    }

    fn delivery_model(&self) -> Option<Arc<dyn DeliveryModel>> {
        self.machines.delivery_model()
    }

    fn start(&self, node: NodeId, name: &str, program: Program) -> io::Result<Core> {
        self.machines.start(node, name, program)
    }

    fn join(&self, core: Core) -> bool {
        self.run(|machines| machines.join(core))
    }

    fn run_while(&self, goes_on: &mut dyn FnMut() -> bool) -> Turn {
        self.run(|machines| machines.run_while(goes_on))
    }
}

/// Delivery without faults: 20 µs each way, for the questions of coordinators.
pub(super) struct FixedDelay;

impl DeliveryModel for FixedDelay {
    fn carry(&self, _node: NodeId) -> RequestDelivery {
        let way = Duration::from_micros(20);
        RequestDelivery { there: way, arrives: true, back: way, answered: true }
    }
}
