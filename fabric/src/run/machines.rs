//! The machines of a cluster: a fabric, clocks, and cores that turn executors.
//!
//! # What it is
//! [`Machines`] provides everything needed to assemble a cluster, and is the only seam between real
//! and simulated clusters. Back ends implement the trait with threads of the process, or with a
//! simulator that turns the executors of the cores on virtual time.
//!
//! # What it is not
//! The trait does not know a cluster's nodes: the caller decides which cores a node has, and their
//! programs.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, TryRecvError};

use crate::contract::ids::NodeId;
use crate::contract::transport::Fabric;
use crate::run::env::Env;
use crate::run::exec::Executor;
use crate::run::utilisation::Report;

/// The program of a core: sets up the executor and returns the main future. The executor's
/// remaining tasks run until the main future ends.
pub type Program = Box<dyn FnOnce(&mut Executor) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Charges CPU time to the calling core.
pub type CpuCharge = Arc<dyn Fn(Duration) + Send + Sync>;

/// Delays and loses requests to an external service, and their answers, like a simulated network.
pub trait DeliveryModel: Send + Sync {
    /// Returns the delivery of a request that `node` sends now.
    fn carry(&self, node: NodeId) -> RequestDelivery;
}

/// Delivery of one request to an external service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestDelivery {
    /// Time until the request arrives, or is lost.
    pub there: Duration,
    /// Whether the request arrives, and is therefore carried out.
    pub arrives: bool,
    /// Time until the answer arrives, or until the caller stops waiting.
    pub back: Duration,
    /// Whether the answer arrives.
    pub answered: bool,
}

/// A started core, to be [joined](Machines::join). What it holds is known to the machines that
/// started it.
pub struct Core(Box<dyn Any + Send + Sync>);

impl Core {
    /// Wraps the machines' own handle of a core.
    pub fn new(core: impl Any + Send + Sync) -> Self {
        Self(Box::new(core))
    }

    /// Unwraps the handle.
    ///
    /// # Panics
    /// If machines of another kind have started the core.
    pub fn into_inner<C: Any>(self) -> C {
        *self.0.downcast().unwrap_or_else(|_| panic!("other machines have started the core"))
    }
}

/// Outcome of [`Machines::run_while`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The cores run by themselves; nothing was done.
    ByThemselves,
    /// The cores have run.
    Ran,
    /// The cores have stopped for good.
    Stopped,
}

/// A fabric, clocks, and cores to run a cluster on.
pub trait Machines: Any + Send + Sync {
    /// The fabric of the cores' lanes.
    fn fabric(&self) -> Arc<dyn Fabric>;

    /// Number of threads that may share a large piece of control-path work.
    fn control_workers(&self) -> usize;

    /// Clock and randomness of a node.
    fn env(&self, node: NodeId) -> Env;

    /// Clock and randomness outside of the nodes, for clients, which record observations of
    /// different nodes in one order.
    fn outside(&self) -> Env;

    /// Model of the network between the nodes and an external service; `None` if not modelled.
    fn delivery_model(&self) -> Option<Arc<dyn DeliveryModel>> {
        None
    }

    /// Utilisation of NICs, links and cores; `None` if not modelled.
    fn utilisation(&self) -> Option<Report> {
        None
    }

    /// Function that charges CPU time to the calling core, beyond the cost of verbs and messages;
    /// `None` if time is real.
    fn cpu_charge(&self) -> Option<CpuCharge> {
        None
    }

    /// Starts a core of `node` that runs `program`.
    ///
    /// # Errors
    /// The operating system's error when it has no thread to give.
    fn start(&self, node: NodeId, name: &str, program: Program) -> io::Result<Core>;

    /// Waits for a core to end, unless called on `core` itself. Returns whether the core ended
    /// without a panic.
    fn join(&self, core: Core) -> bool;

    /// Runs the cores while `goes_on` returns true, on machines whose cores run only during such
    /// calls; elsewhere does nothing. May return earlier, as after a crash of a node.
    fn run_while(&self, goes_on: &mut dyn FnMut() -> bool) -> Turn;
}

impl dyn Machines {
    /// Returns the machines as `M`; `None` if they are of another type.
    pub fn downcast<M: Machines>(&self) -> Option<&M> {
        let machines: &dyn Any = self;
        machines.downcast_ref()
    }
}

/// Waits on machines of any kind. A trait of its own, because a generic method would make
/// [`Machines`] not object-safe.
pub trait MachinesExt: Machines {
    /// Lets the cores run until a value arrives at `receiver`, and returns the value; `None` once
    /// no sender is left, or the cores have stopped for good.
    fn wait<T>(&self, receiver: &Receiver<T>) -> Option<T> {
        loop {
            match receiver.try_recv() {
                Ok(received) => return Some(received),
                Err(TryRecvError::Closed) => return None,
                Err(TryRecvError::Empty) => {}
            }
            match self.run_while(&mut || receiver.is_empty() && !receiver.is_closed()) {
                Turn::ByThemselves => return receiver.recv_blocking().ok(),
                Turn::Ran => {}
                Turn::Stopped => return None,
            }
        }
    }
}

impl<M: Machines + ?Sized> MachinesExt for M {}
