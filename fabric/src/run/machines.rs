//! The machines that a cluster runs on: a fabric, clocks, and cores that turn executors.
//!
//! # What it is
//! [`Machines`] provides everything needed to assemble a cluster, and is the one seam between the
//! real world and a simulated one: back ends implement it, with threads of this process, or with
//! a world that turns the executors of its cores itself, on virtual time.
//!
//! # What it is not
//! It knows nothing of nodes as the cluster sees them: the caller decides which cores a node has
//! and what they run.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_channel::Receiver;

use crate::contract::ids::NodeId;
use crate::contract::transport::Fabric;
use crate::run::env::Env;
use crate::run::exec::Executor;
use crate::run::utilisation::Report;

/// The program of a core: sets up its executor and returns its main future. The executor's other
/// tasks run until that future ends.
pub type Program = Box<dyn FnOnce(&mut Executor) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Charges CPU time to the core that calls it.
pub type Toll = Arc<dyn Fn(Duration) + Send + Sync>;

/// Delays and loses requests to an external service, and their answers, as a simulated network
/// does.
pub trait Courier: Send + Sync {
    /// Fate of a request that `node` sends now.
    fn carry(&self, node: NodeId) -> Errand;
}

/// Fate of one request to an external service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errand {
    /// Time until the request arrives, or is lost.
    pub there: Duration,
    /// Whether the request arrives, and so is carried out.
    pub arrives: bool,
    /// Time until the answer arrives, or until the caller stops waiting for it.
    pub back: Duration,
    /// Whether the answer arrives.
    pub answered: bool,
}

/// A fabric, clocks, and cores to run a cluster on.
pub trait Machines {
    /// A core that was started.
    type Core;

    /// The fabric that the cores' lanes belong to.
    fn fabric(&self) -> Arc<dyn Fabric>;

    /// Number of threads that may share one large piece of control-path work.
    fn control_workers(&self) -> usize;

    /// Clock and randomness of a node.
    fn env(&self, node: NodeId) -> Env;

    /// Clock and randomness outside of all nodes, for clients: they record in one order what they
    /// observe of all nodes.
    fn outside(&self) -> Env;

    /// Model of the network to an external service that all nodes ask; `None` where its distance is
    /// not modelled.
    fn courier(&self) -> Option<Arc<dyn Courier>> {
        None
    }

    /// Utilisation of NICs, links and cores, where that is modelled.
    fn utilisation(&self) -> Option<Report> {
        None
    }

    /// Charges CPU time to the core that calls it, beyond what its verbs and messages cost; `None`
    /// where time is real.
    fn toll(&self) -> Option<Toll> {
        None
    }

    /// Starts a core of `node` that runs `program`.
    ///
    /// # Errors
    /// The operating system's error when it has no thread to give.
    fn start(&self, node: NodeId, name: &str, program: Program) -> io::Result<Self::Core>;

    /// Waits for a core to end, unless called on that core. Returns whether it ended without a
    /// panic.
    fn join(&self, core: Self::Core) -> bool;

    /// Lets the cores run until one of them has sent a value, and returns it; `None` once no sender
    /// is left.
    fn wait<T>(&self, receiver: &Receiver<T>) -> Option<T>;
}
