//! Errors between a process and the host of a node.

use std::io;
use std::path::PathBuf;

use crate::contract::ids::{Endpoint, NodeId};
use crate::contract::transport::FabricError;

/// Reason why a node could not be hosted, attached to, or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// Another process hosts the node already. End the other process, or choose another directory.
    #[error("{} is in use: another process hosts that node", .0.display())]
    InUse(PathBuf),
    /// The socket could not be created. Correct the directory, or its permissions.
    #[error("cannot serve {}: {source}", path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// No process hosts the node now. Start the host; try again.
    #[error("no process serves {}: {source}", path.display())]
    Absent {
        /// Path of the socket.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The host speaks a different version. Run one version everywhere.
    #[error("the host speaks version {theirs} of the handshake, this process {ours}")]
    Version {
        /// Version of this process.
        ours: u16,
        /// Version of the host.
        theirs: u16,
    },
    /// The host serves a different node, or a cluster of a different size. Correct the
    /// configuration.
    #[error("the host belongs to another cluster: it serves another node, or knows more or fewer")]
    OtherCluster,
    /// The host serves only processes of its own user.
    #[error("the host belongs to another user")]
    OtherUser,
    /// The host has reached its limit of attached processes.
    #[error("the host takes no more processes")]
    Crowded,
    /// The host hung up before answering: the host ended, or did not understand the request. The
    /// request may have been carried out.
    #[error("the host hung up")]
    HungUp,
    /// The host did not answer in time, and may be stopped. The request may have been carried out.
    #[error("the host did not answer in time")]
    Silent,
    /// The socket does not belong to a host of this fabric. Correct the path.
    #[error("the answer makes no sense: this is no host of a node")]
    Nonsense,
    /// A process may still access the node's memory, and could not be killed.
    #[error("a process of the expelled node does not end")]
    NotFenced,
    /// This process has reached its limit of open lanes.
    #[error("no room for lane {0:?}: this process has too many")]
    TooManyLanes(Endpoint),
    /// The operating system refused a file, a mapping or a thread.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl ShmError {
    /// Converts this error to the control path's error.
    pub(super) fn at(self, node: NodeId) -> FabricError {
        FabricError::Control { node, source: Box::new(self) }
    }
}

impl From<rustix::io::Errno> for ShmError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.into())
    }
}
