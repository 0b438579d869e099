//! State that a lane's connections share, and the start of a connection.

use std::io;
use std::sync::Arc;

use super::batches::Batches;
use super::dial::Dial;
use super::handshake::Hello;
use super::inner::Inner;
use super::limits::Limits;
use super::socket::SocketWatch;
use crate::contract::ids::{Endpoint, Epoch, NodeId};
use crate::contract::transport::Token;
use crate::contract::verbs::VerbError;

/// State shared by all connections of a lane.
pub(super) struct Common {
    pub(super) inner: Arc<Inner>,
    pub(super) watch: Arc<SocketWatch>,
    pub(super) at: Endpoint,
    pub(super) epoch: Epoch,
    /// Identifies this life of the lane.
    pub(super) session: u64,
    pub(super) batches: Batches,
    pub(super) reconnected: Vec<(Token, Result<(), VerbError>)>,
}

impl Common {
    pub(super) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Whether a test has made this node, or the lane's own, unreachable.
    #[inline]
    pub(super) fn is_cut(&self, node: NodeId) -> bool {
        self.inner.is_cut(node) || self.inner.is_cut(self.at.node)
    }

    /// Starts a connection.
    pub(super) fn dial(&self, hello: Hello) -> io::Result<Dial> {
        let address = self.inner.address(hello.to.node);
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        if self.is_cut(hello.to.node) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        let deadline = self.inner.env.now().after(self.limits().handshake);
        Dial::start(address, hello, &self.inner.security, deadline)
    }
}
