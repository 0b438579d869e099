//! The data path of the `tcp` back end, on the initiator's side.
//!
//! A batch is encoded when posted and sent when the lane is polled, after every other coroutine has
//! run: a turn's posts to a node leave together, and are answered together. Between two polls the
//! thread may sleep until a socket of the lane is ready.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Receiver;

use crate::backends::tcp::initiator::batches::Batches;
use crate::backends::tcp::initiator::common::Common;
use crate::backends::tcp::initiator::link::Link;
use crate::backends::tcp::initiator::mail::Mail;
use crate::backends::tcp::inner::Inner;
use crate::backends::tcp::server::target::MessageConnection;
use crate::backends::tcp::socket::{BELL, OTHERS, Ready, SocketWatch};
use crate::contract::ids::{Endpoint, Epoch, NodeId};
use crate::contract::transport::{Sink, Sleep, Token, Transport};
use crate::contract::verbs::{Capabilities, VerbError, Work};

/// Polls of a busy lane between checks of its time-outs.
const POLLS_PER_CHECK: u32 = 256;

/// A lane with its connections.
pub(crate) struct TcpLane {
    common: Common,
    /// By target node.
    links: Box<[Link]>,
    mail: Mail,
    ready: Ready,
    polls: u32,
}

impl TcpLane {
    pub(crate) fn new(
        inner: Arc<Inner>,
        at: Endpoint,
        epoch: Epoch,
        session: u64,
        inbox: Receiver<MessageConnection>,
        watch: SocketWatch,
    ) -> Self {
        let links = (0..inner.nodes).map(|node| Link::new(NodeId(node))).collect();
        let common = Common {
            inner,
            watch: Arc::new(watch),
            at,
            epoch,
            session,
            batches: Batches::default(),
            reconnected: Vec::new(),
        };
        Self { common, links, mail: Mail::new(inbox), ready: Ready::new(), polls: 0 }
    }

    #[inline]
    fn flush(&mut self) {
        for link in &mut self.links {
            if link.has_output() {
                link.flush(&mut self.common);
            }
        }
        self.mail.flush(&self.common);
    }

    /// Receives from ready sockets. Returns whether any socket was ready.
    #[inline]
    fn receive(&mut self, sink: &mut dyn Sink) -> bool {
        self.common.watch.wait(&mut self.ready, Duration::ZERO);
        for event in &self.ready {
            let tag = event.data.u64();
            if let Some(link) = self.links.get_mut(tag as usize) {
                link.turn(&mut self.common);
            } else if tag == BELL {
                self.common.watch.silence();
            } else if tag != OTHERS {
                self.mail.turn(tag, &self.common, sink);
            }
        }
        !self.ready.is_empty()
    }

    /// Fails connections that exceeded a time-out.
    fn check(&mut self) {
        let now = self.common.inner.env.now();
        for link in &mut self.links {
            link.check(now, &mut self.common);
        }
        self.mail.check(now, &self.common);
    }
}

impl Transport for TcpLane {
    fn capabilities(&self) -> Capabilities {
        Capabilities { stable_reads: true, masked_atomics: true, ..Capabilities::default() }
    }

    #[inline]
    fn post(&mut self, token: Token, mut work: Box<Work>) {
        let (known, unknown) = nodes_of(&mut work, self.links.len());
        let batch = self.common.batches.add(token, work, known.count_ones() as usize);
        let mut left = known;
        while left != 0 {
            let node = left.trailing_zeros() as usize;
            left &= left - 1;
            self.links[node].post(batch, &mut self.common);
        }
        debug_assert!(known != 0 || unknown, "a batch has verbs");
    }

    fn reconnect(&mut self, token: Token, node: NodeId) {
        match self.links.get_mut(usize::from(node.0)) {
            Some(link) => link.reconnect(token, &mut self.common),
            None => self.common.reconnected.push((token, Err(VerbError::Unreachable))),
        }
    }

    fn send(&mut self, to: Endpoint, bytes: &[u8]) {
        self.mail.send(to, bytes, &self.common);
    }

    #[inline]
    fn poll(&mut self, sink: &mut dyn Sink) {
        self.flush();
        let busy = self.receive(sink);
        self.mail.welcome(&self.common, sink);
        self.polls = self.polls.wrapping_add(1);
        if !busy || self.polls.is_multiple_of(POLLS_PER_CHECK) {
            self.check();
        }
        self.common.batches.deliver(sink);
        for (token, result) in self.common.reconnected.drain(..) {
            sink.reconnected(token, result);
        }
    }

    fn has_input(&self) -> bool {
        self.common.batches.has_news()
            || !self.common.reconnected.is_empty()
            || self.mail.has_news()
            || self.links.iter().any(Link::has_output)
            || self.common.watch.is_ready_within(Duration::ZERO)
    }

    fn sleeper(&self) -> Option<Arc<dyn Sleep>> {
        Some(Arc::clone(&self.common.watch) as Arc<dyn Sleep>)
    }
}

impl Drop for TcpLane {
    fn drop(&mut self) {
        let Common { inner, at, .. } = &self.common;
        if let Some(target) = inner.target(at.node) {
            target.close(at.lane);
        }
    }
}

/// Returns the target nodes of a batch, as bits, and whether the batch has verbs to unknown nodes.
/// Fails the verbs to unknown nodes.
#[inline]
fn nodes_of(work: &mut Work, nodes: usize) -> (u128, bool) {
    let (mut known, mut unknown) = (0_u128, false);
    for verb in 0..work.requests().len() {
        let node = work.requests()[verb].addr.node();
        if usize::from(node.0) < nodes {
            known |= 1 << node.0;
        } else {
            unknown = true;
            if !work.has_failed(node) {
                work.fail(verb, VerbError::Unreachable);
            }
        }
    }
    (known, unknown)
}
