//! Traits of a back end: one object per cluster, one per lane.
//!
//! [`Fabric`] is the control path (register memory, fence, open a lane), [`Transport`] the data
//! path of one lane. Both are object-safe, so the engine is compiled once for every back end; the
//! cost of dynamic dispatch is paid once per doorbell, not once per verb.
//!
//! Implementation in each back end:
//!
//! | | `post` | `poll` | `reconnect` | `fence` |
//! |---|---|---|---|---|
//! | local | queue | prefetch, copy, complete | clear the broken mark | epoch, wait for lanes |
//! | shm | queue | prefetch, copy, drain rings | attach anew | epoch, wait for lanes, kill |
//! | tcp | encode | send, read replies | new socket, acknowledged | all workers acknowledge |
//! | rdma | linked work requests, doorbell | poll CQ | new queue pair | destroy queue pairs |
//! | sim | schedule arrivals | take what is due | new connection number | epoch on arrival |

use std::any::Any;
use std::time::Duration;

use crate::contract::ids::{Endpoint, Epoch, NodeId, RegionId, RemoteAddr};
use crate::contract::region::Rights;
use crate::contract::verbs::{Capabilities, VerbError, Work};

/// Largest message in bytes (`docs/verbs.md`).
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Identifies a posted batch (or a reconnect) until it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token(pub u32);

/// Receiver of the events that [`Transport::poll`] reports.
pub trait Sink {
    /// Called when a batch is complete: its verbs are no longer in flight, and its failures are
    /// recorded.
    fn completed(&mut self, token: Token, work: Box<Work>);
    /// Called when a reconnect is done: verbs of the old connection can no longer take effect.
    fn reconnected(&mut self, token: Token, result: Result<(), VerbError>);
    /// Called when a message has arrived, which may be a duplicate, late, or out of order.
    fn message(&mut self, from: Endpoint, bytes: &[u8]);
}

/// The data path of one lane. Used by one thread.
pub trait Transport {
    /// Optional abilities of the back end beyond the common contract.
    fn capabilities(&self) -> Capabilities;

    /// Starts a batch: one doorbell per connection. Verbs to one node take effect in order, also
    /// across batches (I29); the order between nodes is undefined.
    fn post(&mut self, token: Token, work: Box<Work>);

    /// Closes the connection to `node` and makes a new connection; completes once verbs of the old
    /// connection can no longer take effect (H22).
    fn reconnect(&mut self, token: Token, node: NodeId);

    /// Sends a datagram of at most [`MAX_MESSAGE_BYTES`], which may be lost without notice.
    fn send(&mut self, to: Endpoint, bytes: &[u8]);

    /// Reports the events since the last call. Never blocks.
    fn poll(&mut self, sink: &mut dyn Sink);

    /// Returns whether `poll` would report an event now; called before the thread goes to sleep.
    fn has_input(&self) -> bool;

    /// The sleeper of the thread, for back ends whose input comes through the operating system
    /// without a call of [`Wake::wake`]. `None` if the back end calls `wake`.
    fn sleeper(&self) -> Option<std::sync::Arc<dyn Sleep>> {
        None
    }
}

/// Wakes the thread that polls a lane. Handed to the back end when the lane is opened.
pub trait Wake: Send + Sync {
    /// The lane has something to poll.
    fn wake(&self);
}

/// A sleep that ends when a lane has input. [`Wake::wake`] also ends the current sleep, or the next
/// sleep if the thread is awake.
pub trait Sleep: Wake {
    /// Time for which an idle thread keeps polling before it sleeps.
    fn spin(&self) -> std::time::Duration;

    /// Sleeps for `at_most`.
    fn sleep(&self, at_most: std::time::Duration);

    /// Watches a descriptor: until `other` is closed, its becoming readable also ends a sleep.
    ///
    /// # Errors
    /// The system is out of memory.
    fn watch(&self, other: std::os::fd::BorrowedFd<'_>) -> std::io::Result<()>;
}

/// Reason why the control path refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The node is not part of this fabric; correct the configuration.
    #[error("node {0:?} is not part of this fabric")]
    UnknownNode(NodeId),
    /// The node already has a region with the number; choose another number.
    #[error("region {1:?} is already registered on node {0:?}")]
    RegionTaken(NodeId, RegionId),
    /// The endpoint is open already; each lane has one owner.
    #[error("lane {0:?} is already open")]
    LaneTaken(Endpoint),
    /// Mapping the memory failed; request less.
    #[error("could not map {bytes} bytes: {source}")]
    OutOfMemory {
        /// Bytes requested.
        bytes: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The device, the machine or a peer does not match the configuration; the back end's own error
    /// (`rdma::SetupError`) tells the remedy.
    #[cfg(feature = "rdma")]
    #[error(transparent)]
    Rdma(Box<dyn std::error::Error + Send + Sync>),
    /// The request to the node failed; the source tells the reason and the remedy.
    #[error("node {}: {source}", node.0)]
    Control {
        /// The node.
        node: NodeId,
        /// The back end's own error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The lane belongs to a node that another process serves; open the lane in that process.
    #[error("node {0:?} is served by another process")]
    Elsewhere(NodeId),
    /// The node does not answer. Whether it carried out the request is unknown.
    #[error("node {node:?} cannot be reached: {source}")]
    Unreachable {
        /// The node.
        node: NodeId,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The node answers, but refuses the process; correct the configuration.
    #[error("node {node:?} refuses: {reason}")]
    Refused {
        /// The node.
        node: NodeId,
        /// The node's reason.
        reason: String,
    },
    /// The operating system has no more files, or no randomness.
    #[error("the operating system refuses: {0}")]
    System(#[source] std::io::Error),
}

/// The control path of a back end.
pub trait Fabric: Any + Send + Sync {
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
    /// Unknown node, or the lane is already open.
    fn open_lane(
        &self,
        at: Endpoint,
        epoch: Epoch,
        wake: std::sync::Arc<dyn Wake>,
    ) -> Result<Box<dyn Transport>, FabricError>;

    /// Makes `target` refuse every later verb of `expelled` with an epoch below `epoch`. Returns
    /// once no verb admitted earlier is still running (H2).
    ///
    /// # Errors
    /// Unknown node.
    fn fence(&self, target: NodeId, expelled: NodeId, epoch: Epoch) -> Result<(), FabricError>;

    /// Epoch below which `target` refuses verbs of `initiator`. The default, `None`, is for back
    /// ends where only the target knows the epoch. Used by inspections, which look at the whole
    /// cluster at once.
    fn refused_below(&self, _target: NodeId, _initiator: NodeId) -> Option<Epoch> {
        None
    }

    /// Nodes that messages from node `at` have not reached for at least `patience` despite repeated
    /// sending, with the time since the last failure: a node may have begun a new life since. A
    /// delivered message, read or not, takes its target off the list. The default, an empty list,
    /// is for back ends without paths that can be cut.
    fn unreached(&self, _at: NodeId, _patience: Duration) -> Vec<(NodeId, Duration)> {
        Vec::new()
    }

    /// Returns whether node `from`, served by the calling process, and node `to` reach each other
    /// now. May block for seconds. The default is for back ends without paths that can be cut.
    fn reaches(&self, _from: NodeId, _to: NodeId) -> bool {
        true
    }

    /// Hints that the `bytes` from `at` on will soon be used for the first time. The default does
    /// nothing, which suits memory pinned at registration.
    fn prefault(&self, _at: RemoteAddr, _bytes: u64) {}
}
