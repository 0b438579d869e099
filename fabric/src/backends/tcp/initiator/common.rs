//! State shared by a lane's connections, and the start of a connection.

use std::io;
use std::sync::Arc;

use crate::backends::tcp::handshake::Hello;
use crate::backends::tcp::initiator::batches::Batches;
use crate::backends::tcp::initiator::dial::Dial;
use crate::backends::tcp::inner::Inner;
use crate::backends::tcp::limits::Limits;
use crate::backends::tcp::socket::SocketWatch;
use crate::contract::ids::{Endpoint, Epoch, NodeId};
use crate::contract::transport::Token;
use crate::contract::verbs::VerbError;

/// State shared by a lane's connections.
pub(crate) struct Common {
    pub(crate) inner: Arc<Inner>,
    pub(crate) watch: Arc<SocketWatch>,
    pub(crate) at: Endpoint,
    pub(crate) epoch: Epoch,
    /// Identifies this life of the lane.
    pub(crate) session: u64,
    pub(crate) batches: Batches,
    pub(crate) reconnected: Vec<(Token, Result<(), VerbError>)>,
}

impl Common {
    pub(crate) fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Whether a test has made `node`, or the lane's own node, unreachable.
    #[inline]
    pub(crate) fn is_cut(&self, node: NodeId) -> bool {
        self.inner.is_cut(node) || self.inner.is_cut(self.at.node)
    }

    /// Starts a connection.
    pub(crate) fn dial(&self, hello: Hello) -> io::Result<Dial> {
        let address = self.inner.address(hello.to.node);
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        if self.is_cut(hello.to.node) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        let deadline = self.inner.env.now().after(self.limits().handshake);
        let unacknowledged = self.limits().unacknowledged;
        Dial::start(address, hello, &self.inner.security, unacknowledged, deadline)
    }
}
