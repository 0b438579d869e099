//! The machines that a cluster runs on: a fabric, clocks, and cores that turn executors.
//!
//! # What it is
//! [`Machines`] is all that a cluster needs to be assembled, and the one seam between the real
//! world and a simulated one. [`Threads`] is the real world: every core is a thread of this
//! process, and all share its clock; memory is wherever the fabric has it, by default in this
//! process as well. A simulator turns the executors of its cores itself, on virtual time.
//!
//! # What it is not
//! It knows nothing of nodes as the cluster sees them: which cores a node has, and what they do,
//! is said by whoever starts them.

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

/// What a core does: sets up its executor, and returns the future that it lives for. The
/// executor's other tasks run as long as that does.
pub type Program = Box<dyn FnOnce(&mut Executor) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Carries questions to a service that is elsewhere, and answers back.
pub trait Courier: Send + Sync {
    /// What becomes of a question that a node asks now.
    fn carry(&self, node: NodeId) -> Errand;
}

/// What becomes of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errand {
    /// How long it is on its way.
    pub there: Duration,
    /// Whether it arrives. What it asks for is done then.
    pub arrives: bool,
    /// How long the answer takes, or until nobody waits for it any more.
    pub back: Duration,
    /// Whether the answer arrives.
    pub answered: bool,
}

/// See the module's essay.
pub trait Machines {
    /// A core that was started.
    type Core;

    /// The fabric that the cores' lanes belong to.
    fn fabric(&self) -> Arc<dyn Fabric>;

    /// How many threads may share a large piece of control's work.
    fn control_workers(&self) -> usize;

    /// A node's clock and randomness.
    fn env(&self, node: NodeId) -> Env;

    /// The clock and the randomness of those who are outside of all nodes: clients, who write
    /// down in one order what they saw of all of them.
    fn outside(&self) -> Env;

    /// What carries questions to a service that all nodes ask and that is none of them, where its
    /// distance is modelled.
    fn courier(&self) -> Option<Arc<dyn Courier>> {
        None
    }

    /// How busy NICs, links and cores were, where that is modelled.
    fn utilisation(&self) -> Option<Report> {
        None
    }

    /// Starts a core of `node` that runs `program`.
    ///
    /// # Errors
    /// What the operating system says when it has no thread to give.
    fn start(&self, node: NodeId, name: &str, program: Program) -> io::Result<Self::Core>;

    /// Waits for a core to end, unless this runs on it. Whether it did so without a panic.
    fn join(&self, core: Self::Core) -> bool;

    /// Lets the cores run until one of them has sent something, and returns that; `None` if
    /// nobody can send any more.
    fn wait<T>(&self, receiver: &Receiver<T>) -> Option<T>;
}

/// Threads of this process on the machine's clock, and a fabric; `local` unless told otherwise.
pub struct Threads<F = LocalFabric> {
    fabric: F,
    env: Env,
}

impl Threads {
    /// Machines for `nodes` nodes, with randomness that derives from `seed`.
    pub fn new(nodes: u16, seed: u64) -> Self {
        Self::over(LocalFabric::new(nodes), Env::real(seed))
    }

    /// The fabric as what it is, with its faults for tests.
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
        // Whoever ends a cluster may do so on one of its cores, which cannot wait for itself.
        core.thread().id() == std::thread::current().id() || core.join().is_ok()
    }

    fn wait<T>(&self, receiver: &Receiver<T>) -> Option<T> {
        receiver.recv_blocking().ok()
    }
}
