//! The data path of the `local` back end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, TrySendError};

use super::{Gate, Mailbox, Message, Region, Shared};
use crate::ids::{Endpoint, Epoch, NodeId};
use crate::region::WORD_BYTES;
use crate::transport::{MAX_MESSAGE_BYTES, Sink, Token, Transport};
use crate::verbs::{Buffers, Capabilities, Op, VerbError, VerbKind, Work, WorkRequest};

/// Message buffers kept for reuse.
const SPARE_BUFFERS: usize = 64;

/// One lane: batches that were started, in order, and the messages that came.
pub(super) struct LocalLane {
    initiator: Initiator,
    gate: Arc<Gate>,
    started: Vec<(Token, Box<Work>)>,
    reconnects: Vec<(Token, NodeId)>,
    inbox: Receiver<Message>,
    peers: Vec<(Endpoint, Mailbox)>,
    spare: Vec<Vec<u8>>,
}

/// Whoever issues the verbs, and its connections.
struct Initiator {
    shared: Arc<Shared>,
    at: Endpoint,
    epoch: Epoch,
    /// By node: a verb failed and the connection has not been re-made.
    broken: Vec<bool>,
}

impl LocalLane {
    pub(super) fn new(
        shared: Arc<Shared>,
        at: Endpoint,
        epoch: Epoch,
        inbox: Receiver<Message>,
        gate: Arc<Gate>,
    ) -> Self {
        let broken = vec![false; shared.nodes.len()];
        Self {
            initiator: Initiator { shared, at, epoch, broken },
            gate,
            started: Vec::new(),
            reconnects: Vec::new(),
            inbox,
            peers: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn mailbox(&mut self, to: Endpoint) -> Option<usize> {
        let known = self.peers.iter().position(|(peer, _)| *peer == to);
        known.or_else(|| {
            let mailboxes = self.initiator.shared.mailboxes.read().ok()?;
            self.peers.push((to, mailboxes.get(&to)?.clone()));
            Some(self.peers.len() - 1)
        })
    }
}

impl Initiator {
    /// Whether the connection to `node` admits verbs. Only inside a round.
    fn admit(&self, node: NodeId) -> Result<(), VerbError> {
        let index = usize::from(node.0);
        let Some(target) = self.shared.nodes.get(index) else {
            return Err(VerbError::Unreachable);
        };
        if target.fences[usize::from(self.at.node.0)].load(Ordering::SeqCst) > self.epoch.0 {
            return Err(VerbError::Revoked);
        }
        if self.broken[index] {
            return Err(VerbError::Broken);
        }
        if !target.reachable.load(Ordering::Relaxed) {
            return Err(VerbError::Unreachable);
        }
        Ok(())
    }

    /// Lets every verb of a batch take effect, up to the first failure on each connection. Only
    /// inside a round; `admitted` is the node last found to admit verbs in the same round.
    #[inline]
    fn execute(&mut self, work: &mut Work, admitted: &mut Option<NodeId>) {
        work.execute(|request, buffers| {
            let node = request.addr.node();
            if *admitted != Some(node) {
                self.admit(node).inspect_err(|_| self.set_broken(node, true))?;
                *admitted = Some(node);
            }
            apply(&self.shared, request, buffers).inspect_err(|_| {
                self.set_broken(node, true);
                *admitted = None;
            })
        });
    }

    /// Makes a new connection. No verb of the old one is left: each has taken effect or failed.
    fn reconnect(&mut self, node: NodeId) -> Result<(), VerbError> {
        self.set_broken(node, false);
        let result = self.admit(node);
        self.set_broken(node, result.is_err());
        result
    }

    fn set_broken(&mut self, node: NodeId, broken: bool) {
        if let Some(known) = self.broken.get_mut(usize::from(node.0)) {
            *known = broken;
        }
    }
}

/// The region behind a request, and the index of its first word there.
#[inline]
fn resolve<'a>(
    shared: &'a Shared,
    request: &WorkRequest,
) -> Result<(&'a Region, usize), VerbError> {
    let region = shared.region(request.addr).ok_or(VerbError::OutOfBounds)?;
    Ok((region, request.first_word(region.bytes, region.rights)?))
}

#[inline]
fn apply(shared: &Shared, request: &WorkRequest, buffers: &mut Buffers) -> Result<(), VerbError> {
    let (region, word) = resolve(shared, request)?;
    let memory = &region.memory;
    match request.op {
        Op::Read => memory.read(word, buffers.words_mut(request.local)),
        Op::ReadStable => memory.read_stable(word, buffers.words_mut(request.local)),
        Op::Write => memory.write(word, buffers.words(request.local)),
        Op::WriteWord { value } => memory.write(word, &[value]),
        Op::CompareAndSwap { expected, new } => {
            buffers.words_mut(request.local)[0] = memory.compare_and_swap(word, expected, new);
        }
        Op::FetchAndAdd { addend } => {
            buffers.words_mut(request.local)[0] = memory.fetch_and_add(word, addend);
        }
    }
    Ok(())
}

/// Brings the lines that `work` touches closer.
#[inline]
fn prefetch(shared: &Shared, work: &Work) {
    for request in work.requests() {
        let Some(region) = shared.region(request.addr) else { continue };
        let word = request.addr.offset() as usize / WORD_BYTES;
        let words = request.bytes() / WORD_BYTES;
        match request.kind() {
            VerbKind::Read => region.memory.prefetch(word, words),
            _ => region.memory.prefetch_for_write(word, words),
        }
    }
}

impl Transport for LocalLane {
    fn capabilities(&self) -> Capabilities {
        Capabilities { stable_reads: true, ..Capabilities::default() }
    }

    #[inline]
    fn post(&mut self, token: Token, work: Box<Work>) {
        self.started.push((token, work));
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        self.reconnects.push((token, node));
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        let Some(index) = self.mailbox(to) else { return };
        let reachable = |node: NodeId| {
            let node = self.initiator.shared.nodes.get(usize::from(node.0));
            node.is_some_and(|node| node.reachable.load(Ordering::Relaxed))
        };
        if !reachable(to.node) || !reachable(self.initiator.at.node) {
            return;
        }
        let mut copy = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(MAX_MESSAGE_BYTES));
        copy.clear();
        copy.extend_from_slice(bytes);
        let peer = &self.peers[index].1;
        match peer.sender.try_send(Message { from: self.initiator.at, bytes: copy }) {
            Ok(()) => peer.wake.wake(),
            // A full receive queue loses datagrams, on a NIC as well.
            Err(TrySendError::Full(message)) => self.spare.push(message.bytes),
            // The lane was closed; it may have been opened again since.
            Err(TrySendError::Disconnected(_)) => drop(self.peers.swap_remove(index)),
        }
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) {
        if !self.started.is_empty() || !self.reconnects.is_empty() {
            let _round = self.gate.enter();
            // All of them first: translations and cache misses overlap only if nothing is between
            // them, and one that misses the TLB holds up whatever follows.
            for (_, work) in &self.started {
                prefetch(&self.initiator.shared, work);
            }
            // The fencer waits until the round is over, so one look at its epoch is enough.
            let mut admitted = None;
            for (token, mut work) in self.started.drain(..) {
                self.initiator.execute(&mut work, &mut admitted);
                sink.completed(token, work);
            }
            for (token, node) in self.reconnects.drain(..) {
                sink.reconnected(token, self.initiator.reconnect(node));
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
        !self.started.is_empty() || !self.reconnects.is_empty() || !self.inbox.is_empty()
    }
}

impl Drop for LocalLane {
    fn drop(&mut self) {
        if let Ok(mut mailboxes) = self.initiator.shared.mailboxes.write() {
            mailboxes.remove(&self.initiator.at);
        }
        self.gate.closed.store(true, Ordering::Release);
    }
}
