//! Simulated machines: what a whole cluster runs on when it runs in a [`World`].
//!
//! Time passes only while somebody waits ([`Machines::wait`], [`Machines::join`]) or asks for it
//! ([`SimMachines::run_for`]). Control works outside of time. What stops the world, a limit or a
//! deadlock, ends every wait, and [`SimMachines::failure`] tells what it was.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;

use super::{CoreId, Report, SimError, Stop, World};
use crate::env::Env;
use crate::exec::Executor;
use crate::ids::NodeId;
use crate::machines::{Courier, Machines, Program};
use crate::transport::Fabric;

/// See the module's essay.
pub struct SimMachines {
    world: RefCell<World>,
    courier: Option<Arc<dyn Courier>>,
    failure: RefCell<Option<SimError>>,
}

/// A core of [`SimMachines`].
pub struct SimCore {
    id: CoreId,
    ended: Rc<Cell<bool>>,
}

impl SimMachines {
    /// The machines of a world.
    pub fn new(world: World) -> Self {
        Self { world: RefCell::new(world), courier: None, failure: RefCell::new(None) }
    }

    /// The same, with what carries questions to a service outside of the world.
    #[must_use]
    pub fn with_courier(self, courier: Arc<dyn Courier>) -> Self {
        Self { courier: Some(courier), ..self }
    }

    /// The world, to look at and to inject faults.
    ///
    /// # Panics
    /// If it is borrowed already, as it is while it runs.
    pub fn world(&self) -> RefMut<'_, World> {
        self.world.borrow_mut()
    }

    /// Why the world has stopped for good, if it has.
    pub fn failure(&self) -> Option<SimError> {
        self.failure.borrow().clone()
    }

    /// Lets that much time pass, or less if a node crashes or restarts. `None` once the world has
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

    fn courier(&self) -> Option<Arc<dyn Courier>> {
        self.courier.clone()
    }

    fn utilisation(&self) -> Option<Report> {
        Some(self.world.borrow().report())
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
        // Whoever unwinds has no use for more of the world, which may be what panicked.
        while !core.ended.get() && !std::thread::panicking() {
            let lives = self.world.borrow_mut().executor(core.id).is_some();
            if !lives || self.run(|world| world.run_while(|| !core.ended.get())).is_none() {
                break;
            }
        }
        // Without the world: the executor's lanes close themselves.
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
