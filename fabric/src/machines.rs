//! The machines that a cluster runs on: a fabric, clocks, and cores that turn executors.
//!
//! # What it is
//! [`Machines`] provides everything needed to assemble a cluster, and is the one seam between the
//! real world and a simulated one. [`Threads`] is the real world: every core is a thread of this
//! process, and all share its clock; memory is wherever the fabric has it, by default in this
//! process as well. A simulator turns the executors of its cores itself, on virtual time.
//!
//! # What it is not
//! It knows nothing of nodes as the cluster sees them: the caller decides which cores a node has
//! and what they run.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_channel::Receiver;

use crate::env::Env;
use crate::exec::Executor;
use crate::ids::NodeId;
use crate::local::LocalFabric;
use crate::sim::Report;
use crate::transport::Fabric;

/// The program of a core: sets up its executor and returns its main future. The executor's other
/// tasks run until that future ends.
pub type Program = Box<dyn FnOnce(&mut Executor) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

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

/// Threads of this process on the machine's clock, over a fabric; `LocalFabric` by default.
pub struct Threads<F = LocalFabric> {
    fabric: F,
    env: Env,
}

impl Threads {
    /// Machines for `nodes` nodes, with randomness that derives from `seed`.
    pub fn new(nodes: u16, seed: u64) -> Self {
        Self::over(LocalFabric::new(nodes), Env::real(seed))
    }

    /// The fabric by its concrete type, with its fault injection for tests.
    pub fn local_fabric(&self) -> &LocalFabric {
        &self.fabric
    }
}

impl<F> Threads<F> {
    /// Machines over a fabric that exists already.
    pub fn over(fabric: F, env: Env) -> Self {
        Self { fabric, env }
    }
}

impl<F: Fabric + Clone + 'static> Machines for Threads<F> {
    type Core = JoinHandle<()>;

    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.fabric.clone())
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

    fn start(&self, node: NodeId, name: &str, program: Program) -> io::Result<JoinHandle<()>> {
        let env = self.env(node);
        self.env.spawn(name, move || {
            let mut executor = Executor::new(env);
            let life = program(&mut executor);
            executor.run(life);
        })
    }

    fn join(&self, core: JoinHandle<()>) -> bool {
        // A cluster may be ended on one of its own cores, which cannot wait for itself.
        core.thread().id() == std::thread::current().id() || core.join().is_ok()
    }

    fn wait<T>(&self, receiver: &Receiver<T>) -> Option<T> {
        receiver.recv_blocking().ok()
    }
}
