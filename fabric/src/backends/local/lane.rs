//! The data path of the `local` back end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, TrySendError};

use super::{Gate, LocalNode, LocalState, Mailbox, Message};
use crate::backends::copies::{Initiator, Region, Round, Target, Targets};
use crate::contract::ids::{Endpoint, Epoch, NodeId, RegionId};
use crate::contract::transport::{MAX_MESSAGE_BYTES, Sink, Token, Transport};
use crate::contract::verbs::{Capabilities, Work};

/// Message buffers kept for reuse.
const SPARE_BUFFERS: usize = 64;

/// One lane: verbs and received messages.
pub(super) struct LocalLane {
    at: Endpoint,
    verbs: Initiator<Arc<LocalState>>,
    gate: Arc<Gate>,
    reconnects: Vec<(Token, NodeId)>,
    inbox: Receiver<Message>,
    peers: Vec<(Endpoint, Mailbox)>,
    spare: Vec<Vec<u8>>,
}

impl LocalLane {
    pub(super) fn new(
        shared: Arc<LocalState>,
        at: Endpoint,
        epoch: Epoch,
        inbox: Receiver<Message>,
        gate: Arc<Gate>,
    ) -> Self {
        let nodes = shared.nodes.len();
        Self {
            at,
            verbs: Initiator::new(shared, at.node, epoch, nodes),
            gate,
            reconnects: Vec::new(),
            inbox,
            peers: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn mailbox(&mut self, to: Endpoint) -> Option<usize> {
        let known = self.peers.iter().position(|(peer, _)| *peer == to);
        known.or_else(|| {
            let mailboxes = self.verbs.targets.mailboxes.read().ok()?;
            self.peers.push((to, mailboxes.get(&to)?.clone()));
            Some(self.peers.len() - 1)
        })
    }
}

impl Targets for Arc<LocalState> {
    type Target = LocalNode;

    #[inline]
    fn target(&self, node: NodeId) -> Option<&LocalNode> {
        self.nodes.get(usize::from(node.0))
    }
}

impl Target for LocalNode {
    fn fence(&self, initiator: NodeId) -> Epoch {
        Epoch(self.fences[usize::from(initiator.0)].load(Ordering::SeqCst))
    }

    fn answers(&self) -> bool {
        self.reachable.load(Ordering::Relaxed)
    }

    #[inline]
    fn region(&self, region: RegionId) -> Option<&Arc<Region>> {
        self.regions[usize::from(region.0)].get()
    }
}

impl Transport for LocalLane {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            stable_reads: true,
            masked_atomics: true,
            several_nodes: true,
            ..Capabilities::default()
        }
    }

    #[inline]
    fn post(&mut self, token: Token, work: Box<Work>) {
        self.verbs.post(token, work);
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        self.reconnects.push((token, node));
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        let Some(index) = self.mailbox(to) else { return };
        let answers = |node| self.verbs.targets.target(node).is_some_and(Target::answers);
        if !answers(to.node) || !answers(self.at.node) {
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(MAX_MESSAGE_BYTES));
        copy.clear();
        copy.extend_from_slice(bytes);
        let peer = &self.peers[index].1;
        match peer.sender.try_send(Message { from: self.at, bytes: copy }) {
            Ok(()) => peer.wake.wake(),
            // A full receive queue drops datagrams, as on a NIC.
            Err(TrySendError::Full(message)) => self.spare.push(message.bytes),
            // The receiving lane was closed, and may have been reopened since.
            Err(TrySendError::Disconnected(_)) => drop(self.peers.swap_remove(index)),
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) {
        if !self.verbs.is_idle() || !self.reconnects.is_empty() {
            let _round = Round::enter(&self.gate.round);
            self.verbs.carry_out(sink);
            for (token, node) in self.reconnects.drain(..) {
                sink.reconnected(token, self.verbs.reconnect(node));
            }
        }
        while let Ok(message) = self.inbox.try_recv() {
            sink.message(message.from, &message.bytes);
            if self.spare.len() < SPARE_BUFFERS {
                self.spare.push(message.bytes);
            }
        }
    }

    fn has_input(&self) -> bool {
        !self.verbs.is_idle() || !self.reconnects.is_empty() || !self.inbox.is_empty()
    }
}

impl Drop for LocalLane {
    fn drop(&mut self) {
        if let Ok(mut mailboxes) = self.verbs.targets.mailboxes.write() {
            mailboxes.remove(&self.at);
        }
        self.gate.closed.store(true, Ordering::Release);
    }
}
