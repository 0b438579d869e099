//! Messages of a lane: a connection to each receiving peer, and a connection from each sending
//! peer.
//!
//! The first message to a peer starts a connection. Until admission messages wait, within bounds; a
//! refused or broken connection loses waiting messages, and further messages for a short time.
//! Losing messages is allowed, blocking is not (docs/verbs.md).

use std::collections::BTreeMap;

use crossbeam_channel::Receiver;
use slab::Slab;

use crate::backends::tcp::handshake::{Hello, Purpose};
use crate::backends::tcp::initiator::common::Common;
use crate::backends::tcp::initiator::dial::Dial;
use crate::backends::tcp::limits::{PEER_WORDS, VISITOR_WORDS, VISITORS};
use crate::backends::tcp::server::target::MessageConnection;
use crate::backends::tcp::socket::{Fill, Input, Interest, Output, Tag};
use crate::backends::tcp::wire::{self, WireError};
use crate::contract::ids::Endpoint;
use crate::contract::transport::Sink;
use crate::run::env::Nanos;
use lotus_security::Stream;

/// First tag of connections to peers, then of connections from peers. Smaller tags are links.
const PEERS: Tag = 1 << 32;
const FROM_PEERS: Tag = 1 << 33;
/// Reads in a row from one connection before other sockets get a turn.
const READS: usize = 4;

/// Message connections of one lane.
pub(crate) struct Mail {
    peers: Vec<PeerLane>,
    known: BTreeMap<Endpoint, usize>,
    /// Peers with unsent messages.
    dirty: Vec<usize>,
    inbox: Receiver<MessageConnection>,
    visitors: Slab<Inbound>,
}

/// A lane that this lane sends to.
struct PeerLane {
    at: Endpoint,
    state: MailState,
    /// Number of connections made so far.
    number: u64,
    output: Output,
    interest: Interest,
}

enum MailState {
    /// No connection; the next attempt is not before `until`.
    Down {
        until: Nanos,
    },
    Dialing(Box<Dial>),
    Open(Stream),
}

/// A lane that this lane receives from.
struct Inbound {
    from: Endpoint,
    stream: Stream,
    input: Input,
}

impl Mail {
    pub(crate) fn new(inbox: Receiver<MessageConnection>) -> Self {
        Self {
            peers: Vec::new(),
            known: BTreeMap::new(),
            dirty: Vec::new(),
            inbox,
            visitors: Slab::new(),
        }
    }

    /// Whether `flush` or `welcome` has work.
    pub(crate) fn has_news(&self) -> bool {
        !self.dirty.is_empty() || !self.inbox.is_empty()
    }

    /// Queues or drops a message.
    #[inline]
    pub(crate) fn send(&mut self, to: Endpoint, bytes: &[u8], common: &Common) {
        if common.is_cut(to.node) {
            return;
        }
        let index = self.known.get(&to).copied().unwrap_or_else(|| self.add(to));
        let peer = &mut self.peers[index];
        if let MailState::Down { until } = peer.state
            && (common.inner.env.now() < until || !peer.dial(index, common))
        {
            return;
        }
        if peer.output.len() + wire::MAX_MESSAGE_WORDS > PEER_WORDS {
            return;
        }
        let waits = !peer.output.is_empty() || matches!(peer.state, MailState::Dialing(_));
        wire::encode_message(&mut peer.output.words, bytes);
        if !waits {
            self.dirty.push(index);
        }
    }

    fn add(&mut self, at: Endpoint) -> usize {
        let (number, output, interest) = (0, Output::default(), Interest::READ);
        let state = MailState::Down { until: Nanos(0) };
        self.peers.push(PeerLane { at, state, number, output, interest });
        self.known.insert(at, self.peers.len() - 1);
        self.peers.len() - 1
    }

    /// Sends the queued messages.
    #[inline]
    pub(crate) fn flush(&mut self, common: &Common) {
        for index in self.dirty.drain(..) {
            self.peers[index].flush(index, common);
        }
    }

    /// Takes over new connections from peers, and delivers the peers' messages.
    pub(crate) fn welcome(&mut self, common: &Common, sink: &mut dyn Sink) {
        while let Ok(MessageConnection { from, stream }) = self.inbox.try_recv() {
            // A peer has one connection at a time, and the new connection replaces the old.
            self.visitors.retain(|_, known| known.from != from);
            if self.visitors.len() >= VISITORS {
                continue;
            }
            let entry = self.visitors.vacant_entry();
            let tag = FROM_PEERS + entry.key() as Tag;
            if common.watch.add(&stream, tag, Interest::READ).is_ok() {
                entry.insert(Inbound { from, stream, input: Input::new(VISITOR_WORDS) });
                self.turn(tag, common, sink);
            }
        }
    }

    /// Handles readiness of a socket.
    #[inline]
    pub(crate) fn turn(&mut self, tag: Tag, common: &Common, sink: &mut dyn Sink) {
        if tag >= FROM_PEERS {
            let key = (tag - FROM_PEERS) as usize;
            // The key may be vacant, if the connection was replaced earlier in the round.
            let Some(visitor) = self.visitors.get_mut(key) else { return };
            if !visitor.receive(sink) {
                self.visitors.remove(key);
            }
        } else if let Some(peer) = self.peers.get_mut((tag - PEERS) as usize) {
            peer.turn((tag - PEERS) as usize, common);
        }
    }

    /// Gives up connections that exceeded the handshake time-out.
    pub(crate) fn check(&mut self, now: Nanos, common: &Common) {
        for peer in &mut self.peers {
            if let MailState::Dialing(dial) = &peer.state
                && now > dial.deadline
            {
                common.inner.paths.fails(peer.at.node, now);
                peer.hang_up(now);
            }
        }
    }
}

impl PeerLane {
    /// Starts a connection. Returns whether the start succeeded.
    fn dial(&mut self, index: usize, common: &Common) -> bool {
        self.number += 1;
        let hello = Hello {
            purpose: Purpose::Messages,
            from: common.at,
            to: self.at,
            epoch: common.epoch,
            session: common.session,
            number: self.number,
        };
        let Ok(dial) = common.dial(hello) else {
            self.fail(common);
            return false;
        };
        self.interest = dial.interest();
        let watched = common.watch.add(dial.stream(), PEERS + index as Tag, self.interest);
        self.state = MailState::Dialing(Box::new(dial));
        if watched.is_err() {
            self.fail(common);
        }
        watched.is_ok()
    }

    fn fail(&mut self, common: &Common) {
        let now = common.inner.env.now();
        common.inner.paths.fails(self.at.node, now);
        self.hang_up(now.after(common.limits().redial));
    }

    fn hang_up(&mut self, until: Nanos) {
        self.output.clear();
        self.state = MailState::Down { until };
    }

    fn turn(&mut self, index: usize, common: &Common) {
        match &mut self.state {
            MailState::Down { .. } => {}
            MailState::Dialing(dial) => match dial.advance() {
                Ok(true) => self.open(index, common),
                Ok(false) => {
                    let interest = dial.interest();
                    if interest != self.interest {
                        self.interest = interest;
                        let tag = PEERS + index as Tag;
                        if common.watch.change(dial.stream(), tag, interest).is_err() {
                            self.fail(common);
                        }
                    }
                }
                Err(_) => self.fail(common),
            },
            MailState::Open(stream) => {
                // The peer never sends on this connection, so readability means the end.
                let fill = Input::new(1).fill(stream);
                if !fill.is_ok_and(|fill| fill == Fill::Nothing) {
                    return self.fail(common);
                }
                self.flush(index, common);
            }
        }
    }

    fn open(&mut self, index: usize, common: &Common) {
        let down = MailState::Down { until: Nanos(0) };
        if let MailState::Dialing(dial) = std::mem::replace(&mut self.state, down) {
            self.state = MailState::Open(dial.into_stream());
            common.inner.paths.holds(self.at.node);
            self.flush(index, common);
        }
    }

    fn flush(&mut self, index: usize, common: &Common) {
        let MailState::Open(stream) = &mut self.state else { return };
        if self.output.flush(stream).is_err() {
            return self.fail(common);
        }
        let interest = Interest { read: true, write: !self.output.is_empty() };
        if interest != self.interest {
            self.interest = interest;
            if common.watch.change(stream, PEERS + index as Tag, interest).is_err() {
                self.fail(common);
            }
        }
    }
}

impl Inbound {
    /// Delivers the messages received. Returns whether the connection is still usable.
    fn receive(&mut self, sink: &mut dyn Sink) -> bool {
        let mut reads = 0;
        while reads < READS || self.stream.hides_input() {
            reads += 1;
            let Ok(fill) = self.input.fill(&mut self.stream) else { return false };
            if self.deliver(sink).is_err() {
                return false;
            }
            match fill {
                Fill::Full => {}
                Fill::Drained | Fill::Nothing => return true,
                Fill::Closed => return false,
            }
        }
        true
    }

    fn deliver(&mut self, sink: &mut dyn Sink) -> Result<(), WireError> {
        let mut taken = 0;
        while let Some(frame) = wire::decode(&self.input.words()[taken..])? {
            sink.message(self.from, wire::message(&frame)?);
            taken += frame.words();
        }
        self.input.take(taken);
        Ok(())
    }
}
