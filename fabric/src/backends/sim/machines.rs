//! Simulated machines: run a whole cluster in a [`World`].
//!
//! Time passes only during a wait ([`Machines::run_while`], [`Machines::join`]) or on request
//! ([`SimMachines::run_for`]). The control path works outside of time. A limit or a deadlock stops
//! the world and ends every wait; [`SimMachines::failure`] returns the reason.

use std::cell::{RefCell, RefMut};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use send_wrapper::SendWrapper;

use super::{CoreId, Report, SimError, Stop, World};
use crate::contract::ids::NodeId;
use crate::contract::transport::Fabric;
use crate::run::env::Env;
use crate::run::exec::Executor;
use crate::run::machines::{Core, CpuCharge, DeliveryModel, Machines, Program, Turn};

/// The machines of a simulated cluster, for the thread that made the world: on another thread every
/// use of the world panics, waits for the cluster and the drop of its last handle included. A job
/// submitted from another thread is not noticed, and may make runs differ.
pub struct SimMachines {
    world: SendWrapper<RefCell<World>>,
    delivery_model: Option<Arc<dyn DeliveryModel>>,
    failure: Mutex<Option<SimError>>,
}

/// A core of [`SimMachines`].
struct SimCore {
    id: CoreId,
    ended: Arc<AtomicBool>,
}

impl SimMachines {
    /// Makes the machines of a world.
    pub fn new(world: World) -> Self {
        let world = SendWrapper::new(RefCell::new(world));
        Self { world, delivery_model: None, failure: Mutex::default() }
    }

    /// The simulated machines of a cluster.
    ///
    /// # Panics
    /// If the machines are not simulated, or wrapped in a type of their own.
    pub fn of(machines: &dyn Machines) -> &Self {
        machines.downcast().expect("simulated machines")
    }

    /// Adds a model of the network to a service outside of the world.
    #[must_use]
    pub fn with_delivery_model(self, delivery_model: Arc<dyn DeliveryModel>) -> Self {
        Self { delivery_model: Some(delivery_model), ..self }
    }

    /// Borrows the world, for inspection and for injecting faults.
    ///
    /// # Panics
    /// If the world is already borrowed, as it is while it runs.
    pub fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    /// Returns the error that stopped the world for good, if any.
    pub fn failure(&self) -> Option<SimError> {
        self.lock_failure().clone()
    }

    /// Advances time by `span`, or less if a node crashes or restarts. `None` once the world has
    /// stopped for good.
    pub fn run_for(&self, span: Duration) -> Option<Stop> {
        self.run(|world| world.run_for(span))
    }

    fn run(&self, run: impl FnOnce(&mut World) -> Result<Stop, SimError>) -> Option<Stop> {
        if self.lock_failure().is_some() {
            return None;
        }
        let stop = run(&mut self.world.borrow_mut());
        stop.map_err(|error| *self.lock_failure() = Some(error)).ok()
    }

    fn lock_failure(&self) -> MutexGuard<'_, Option<SimError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machines for SimMachines {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.world.borrow().fabric().clone())
    }

    /// One: a world lives on one thread.
    fn control_workers(&self) -> usize {
        1
    }

    fn env(&self, node: NodeId) -> Env {
        self.world.borrow().env(node)
    }

    fn outside(&self) -> Env {
        self.world.borrow().fabric().outside()
    }

    fn delivery_model(&self) -> Option<Arc<dyn DeliveryModel>> {
        self.delivery_model.clone()
    }

    fn utilisation(&self) -> Option<Report> {
        Some(self.world.borrow().report())
    }

    fn cpu_charge(&self) -> Option<CpuCharge> {
        let fabric = self.world().fabric().clone();
        Some(Arc::new(move |cpu| fabric.charge(cpu)))
    }

    fn start(&self, node: NodeId, _name: &str, program: Program) -> io::Result<Core> {
        let mut executor = Executor::new(self.env(node));
        let life = program(&mut executor);
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        executor.handle().spawn(async move {
            life.await;
            end.store(true, Ordering::Relaxed);
        });
        let id = self.world.borrow_mut().add_core(node, executor);
        Ok(Core::new(SimCore { id, ended }))
    }

    fn join(&self, core: Core) -> bool {
        let SimCore { id, ended } = core.into_inner();
        let has_ended = || ended.load(Ordering::Relaxed);
        // No further run while unwinding: the world may be the source of the panic.
        while !has_ended() && !std::thread::panicking() {
            let lives = self.world.borrow_mut().executor(id).is_some();
            if !lives || self.run(|world| world.run_while(|| !has_ended())).is_none() {
                break;
            }
        }
        // Dropped after the borrow of the world has ended: the executor's lanes close themselves.
        let executor = self.world.borrow_mut().remove_core(id);
        drop(executor);
        has_ended()
    }

    fn run_while(&self, goes_on: &mut dyn FnMut() -> bool) -> Turn {
        match self.run(|world| world.run_while(goes_on)) {
            Some(_) => Turn::Ran,
            None => Turn::Stopped,
        }
    }
}
