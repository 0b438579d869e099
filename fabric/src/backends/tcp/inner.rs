//! State of a fabric, shared by clones and lanes: nodes, targets of this process, and control
//! requests to any node.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::config::Waiting;
use super::handshake::{Hello, Purpose};
use super::limits::Limits;
use super::paths::Paths;
use crate::backends::tcp::server::control::{self, CallError, ControlRequest};
use crate::backends::tcp::server::target::TargetNode;
use crate::backends::tcp::server::targets::Targets;
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId};
use crate::contract::transport::FabricError;
use crate::run::env::Env;
use lotus_security::Security;

/// State of a fabric.
pub(super) struct Inner {
    pub(super) nodes: u16,
    pub(super) addresses: BTreeMap<NodeId, SocketAddr>,
    pub(super) targets: Targets,
    pub(super) security: Security,
    pub(super) limits: Limits,
    pub(super) waiting: Waiting,
    pub(super) env: Env,
    /// Outcome of message connections to each node.
    pub(super) paths: Paths,
    /// Nodes that a test has made unreachable.
    pub(super) cut: Box<[AtomicBool]>,
}

impl Inner {
    /// Returns the address at which peers reach a node.
    pub(super) fn address(&self, node: NodeId) -> Option<SocketAddr> {
        self.addresses.get(&node).copied()
    }

    /// Returns the target of a node served by this process.
    pub(super) fn target(&self, node: NodeId) -> Option<&TargetNode> {
        self.targets.node(node)
    }

    #[inline]
    pub(super) fn is_cut(&self, node: NodeId) -> bool {
        self.cut.get(usize::from(node.0)).is_some_and(|cut| cut.load(Ordering::Relaxed))
    }

    pub(super) fn check(&self, node: NodeId) -> Result<(), FabricError> {
        if node.0 < self.nodes { Ok(()) } else { Err(FabricError::UnknownNode(node)) }
    }

    /// Sends a control request to `node` and waits for the answer.
    pub(super) fn call(
        &self,
        node: NodeId,
        request: ControlRequest,
    ) -> Result<control::Done, FabricError> {
        self.call_within(self.limits.control, node, request)
    }

    /// As [`Self::call`], but no step takes longer than `patience`.
    pub(super) fn call_within(
        &self,
        patience: Duration,
        node: NodeId,
        request: ControlRequest,
    ) -> Result<control::Done, FabricError> {
        self.check(node)?;
        let unreachable = |source| FabricError::Unreachable { node, source };
        let cut_off = || unreachable(io::ErrorKind::HostUnreachable.into());
        let address = self.address(node).ok_or_else(cut_off)?;
        if self.is_cut(node) {
            return Err(cut_off());
        }
        // Control belongs to no lane.
        let at = |node| Endpoint { node, lane: LaneId(0) };
        let hello = Hello {
            purpose: Purpose::Control,
            from: at(node),
            to: at(node),
            epoch: Epoch(0),
            session: 0,
            number: 0,
        };
        let done = control::call(address, hello, &self.security, patience, request);
        done.map_err(|error| match error {
            CallError::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
                unreachable(source)
            }
            other => FabricError::Refused { node, reason: other.to_string() },
        })
    }
}
