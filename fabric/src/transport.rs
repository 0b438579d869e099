//! What a back end implements: one object per cluster, one per lane.
//!
//! [`Fabric`] is the control path (register memory, fence, open a lane), [`Transport`] the data
//! path of one lane. Both are object-safe, so that the engine is compiled once for all back ends;
//! the dynamic call is paid once per doorbell, not once per verb.
//!
//! How the planned back ends map onto it:
//!
//! | | `post` | `poll` | `reconnect` | `fence` |
//! |---|---|---|---|---|
//! | local | queue | prefetch, copy, complete | clear the broken mark | epoch, wait for lanes |
//! | shm | queue | prefetch, copy, drain rings | attach anew | epoch, wait for lanes, kill |
//! | tcp | encode | send, read replies | new socket, acknowledged | all workers acknowledge |
//! | rdma | linked work requests, doorbell | poll CQ | new queue pair | destroy queue pairs |
//! | sim | schedule arrivals | take what is due | new connection number | epoch on arrival |

use crate::ids::{Endpoint, Epoch, NodeId, RegionId, RemoteAddr};
use crate::region::Rights;
use crate::verbs::{Capabilities, VerbError, Work};

/// The most bytes in one message (DESIGN §3).
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Names a posted batch (or a reconnect) until it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub u32);

/// Where [`Transport::poll`] puts what has happened.
pub trait Sink {
    /// A batch is complete: no verb of it is in flight any more, and its failures are recorded.
    fn completed(&mut self, token: Token, work: Box<Work>);
    /// A reconnect is done: no verb of the old connection can take effect any more.
    fn reconnected(&mut self, token: Token, result: Result<(), VerbError>);
    /// A message has come. It may be a duplicate, late, or out of order.
    fn message(&mut self, from: Endpoint, bytes: &[u8]);
}

/// The data path of one lane. Used by one thread.
pub trait Transport {
    /// What this back end can do beyond the common contract.
    fn capabilities(&self) -> Capabilities;

    /// Starts a batch: one doorbell for each connection in it. Verbs to one node take effect in
    /// order, also across batches; nothing is promised between nodes.
    fn post(&mut self, token: Token, work: Box<Work>);

    /// Closes the connection to `node` and makes a new one; completes when no verb of the old one
    /// can still take effect (H22).
    fn reconnect(&mut self, token: Token, node: NodeId);

    /// Sends a datagram of at most [`MAX_MESSAGE_BYTES`]. It may be lost, silently.
    fn send(&mut self, to: Endpoint, bytes: &[u8]);

    /// Reports what has happened since the last call. Never blocks.
    fn poll(&mut self, sink: &mut dyn Sink);

    /// Whether `poll` would find something now; asked before the thread goes to sleep.
    fn has_input(&self) -> bool;

    /// How the thread sleeps until there is input, where that comes through the operating system
    /// and nobody would wake it.
    fn sleeper(&self) -> Option<std::sync::Arc<dyn Sleep>> {
        None
    }
}

/// Wakes the thread that polls a lane. Handed to the back end when the lane is opened.
pub trait Wake: Send + Sync {
    /// The lane has something to poll.
    fn wake(&self);
}

/// A way to sleep that input of a lane ends by itself. [`Wake::wake`] ends it, too: the sleep that
/// is going on, or else the next one.
pub trait Sleep: Wake {
    /// How long the thread looks again before it sleeps.
    fn spin(&self) -> std::time::Duration;

    /// Sleeps for `at_most`.
    fn sleep(&self, at_most: std::time::Duration);

    /// Lets the readiness of `other` for reading end a sleep as well, until it is closed.
    ///
    /// # Errors
    /// The system is out of memory.
    fn watch(&self, other: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()>;
}

/// Why the control path refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The node is not part of this fabric; correct the configuration.
    #[error("node {0:?} is not part of this fabric")]
    UnknownNode(NodeId),
    /// A region of that number exists on the node already; choose another.
    #[error("region {1:?} is already registered on node {0:?}")]
    RegionTaken(NodeId, RegionId),
    /// The endpoint is open already; each lane has one owner.
    #[error("lane {0:?} is already open")]
    LaneTaken(Endpoint),
    /// The memory could not be had; ask for less.
    #[error("could not map {bytes} bytes: {source}")]
    OutOfMemory {
        /// How much was asked for.
        bytes: u64,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The device, the machine or a peer is not as the configuration says.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Rdma(#[from] crate::rdma::SetupError),
    /// The node could not be asked, or did not do it: the source says why, and what to do.
    #[error("node {}: {source}", node.0)]
    Control {
        /// The node.
        node: NodeId,
        /// The back end's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The lane belongs to a node that another process serves; open it there.
    #[error("node {0:?} is served by another process")]
    Elsewhere(NodeId),
    /// The node does not answer. Whether it did what was asked is unknown.
    #[error("node {node:?} cannot be reached: {source}")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The node answers, but not to us; correct the configuration.
    #[error("node {node:?} refuses: {reason}")]
    Refused {
        /// The node.
        node: NodeId,
        /// What it said.
        reason: String,
    },
    /// The operating system has no more files, or no randomness.
    #[error("the operating system refuses: {0}")]
    System(#[source] std::io::Error),
}

/// The control path of a back end.
pub trait Fabric: Send + Sync {
    /// Registers `bytes` of zeroed memory as `region` of `node`.
    ///
    /// # Errors
    /// Unknown node, region taken, or no memory.
    fn register(
        &self,
        node: NodeId,
        region: RegionId,
        bytes: u64,
        rights: Rights,
    ) -> Result<(), FabricError>;

    /// Opens the lane `at`, whose verbs carry the access epoch `epoch`.
    ///
    /// # Errors
    /// Unknown node, or the lane is open already.
    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: std::sync::Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError>;

    /// Makes `target` refuse every later verb of `expelled` whose epoch is below `epoch`; returns
    /// only when none admitted earlier is still running (H2).
    ///
    /// # Errors
    /// Unknown node.
    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError>;

    /// The epoch below which `target` refuses verbs of `initiator`; `None` where nobody outside of
    /// the target can tell, which is what the provided body stands for. For inspections, which look
    /// at all nodes at once.
    fn refused_below(&self, _target: NodeId, _initiator: NodeId) -> Option<Epoch> {
        None
    }

    /// A hint: the `bytes` from `at` on will soon be used for the first time. Memory that is
    /// pinned when it is registered needs none, which is what the provided body stands for.
    fn prefault(&self, _at: RemoteAddr, _bytes: u64) {}
}
