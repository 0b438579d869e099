//! Simulated machines: run a whole cluster in a [`World`].
//!
//! Time passes only during a wait ([`Machines::wait`], [`Machines::join`]) or on request
//! ([`SimMachines::run_for`]). The control path works outside of time. A limit or a deadlock stops
//! the world and ends every wait; [`SimMachines::failure`] returns the reason.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;

use super::{CoreId, Report, SimError, Stop, World};
use crate::contract::ids::NodeId;
use crate::contract::transport::Fabric;
use crate::run::env::Env;
use crate::run::exec::Executor;
use crate::run::machines::{CpuCharge, DeliveryModel, Machines, Program};

/// The machines of a simulated cluster.
pub struct SimMachines {
    world: RefCell<World>,
    delivery_model: Option<Arc<dyn DeliveryModel>>,
    failure: RefCell<Option<SimError>>,
}

/// A core of [`SimMachines`].
pub struct SimCore {
    id: CoreId,
    ended: Rc<Cell<bool>>,
}

impl SimMachines {
    /// Makes the machines of a world.
    pub fn new(world: World) -> Self {
        Self { world: RefCell::new(world), delivery_model: None, failure: RefCell::new(None) }
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
        self.failure.borrow().clone()
    }

    /// Advances time by `span`, or less if a node crashes or restarts. `None` once the world has
    /// stopped for good.
    pub fn run_for(&self, span: Duration) -> Option<Stop> {
        self.run(|world| world.run_for(span))
    }

    fn run(&self, run: impl FnOnce(&mut World) -> Result<Stop, SimError>) -> Option<Stop> {
        if self.failure.borrow().is_some() {
            return None;
        }
        let stop = run(&mut self.world.borrow_mut());
        stop.map_err(|error| *self.failure.borrow_mut() = Some(error)).ok()
    }
}

impl Machines for SimMachines {
    type Core = SimCore;

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

    fn start(&self, node: NodeId, _name: &str, program: Program) -> io::Result<SimCore> {
        let mut executor = Executor::new(self.env(node));
        let life = program(&mut executor);
        let ended = Rc::new(Cell::new(false));
        let end = Rc::clone(&ended);
        executor.handle().spawn(async move {
            life.await;
            end.set(true);
        });
        let id = self.world.borrow_mut().add_core(node, executor);
        Ok(SimCore { id, ended })
    }

    fn join(&self, core: SimCore) -> bool {
        // No further run while unwinding: the world may be the source of the panic.
        while !core.ended.get() && !std::thread::panicking() {
            let lives = self.world.borrow_mut().executor(core.id).is_some();
            if !lives || self.run(|world| world.run_while(|| !core.ended.get())).is_none() {
                break;
            }
        }
        // Dropped after the borrow of the world has ended: the executor's lanes close themselves.
        let executor = self.world.borrow_mut().remove_core(core.id);
        drop(executor);
        core.ended.get()
    }

    fn wait<T>(&self, receiver: &Receiver<T>) -> Option<T> {
        loop {
            if let Ok(received) = receiver.try_recv() {
                return Some(received);
            }
            if receiver.is_closed() {
                return None;
            }
            let nothing_yet = || receiver.is_empty() && !receiver.is_closed();
            self.run(|world| world.run_while(nothing_yet))?;
        }
    }
}
