//! A lane's connection to one node: queued verbs, verbs in flight, failure and reconnect.
//!
//! ```text
//! Fresh ──first verb──▶ Dialing ──welcome──▶ Open
//!                        ▲    └─refused─▶ Down ◀─a verb failed, time-out, closed─┘
//!                        └────reconnect────┘
//! ```
//!
//! Batches and reconnects share a queue, which keeps their order: a batch is encoded at the front
//! of the queue as soon as there is room for the frames; a reconnect waits at the front until
//! nothing is in flight, and later items wait for the new connection. A target's welcome means that
//! the target has closed the older connection (H22).

use std::collections::VecDeque;

use crate::backends::tcp::handshake::{Hello, Purpose, Refusal};
use crate::backends::tcp::initiator::batches::{BatchId, Batches};
use crate::backends::tcp::initiator::common::Common;
use crate::backends::tcp::initiator::dial::{Dial, DialError};
use crate::backends::tcp::limits::{INPUT_WORDS, OUTPUT_WORDS};
use crate::backends::tcp::socket::{Fill, Input, Interest, Output, Tag};
use crate::backends::tcp::wire::{
    self, Frame, FrameKind, Header, MAX_BODY_WORDS, MAX_FRAME_WORDS, WireError,
};
use crate::contract::ids::{Endpoint, LaneId, NodeId};
use crate::contract::transport::Token;
use crate::contract::verbs::{Op, VerbError};
use crate::run::env::Nanos;
use lotus_security::Stream;

/// A lane's connection to one node.
pub(crate) struct Link {
    node: NodeId,
    state: LinkState,
    /// Number of connections made so far.
    number: u64,
    queue: VecDeque<Item>,
    in_flight: VecDeque<Flight>,
    input: Input,
    output: Output,
    interest: Interest,
    /// Whether anything was received since the last [`Link::check`].
    heard: bool,
    heard_at: Nanos,
}

enum LinkState {
    Fresh,
    Dialing(Box<Dial>),
    Open(Stream),
    /// Broken; verbs fail with the error until a reconnect.
    Down(VerbError),
}

enum Item {
    /// A batch's verbs to the node, from request `next` on.
    Part {
        batch: BatchId,
        next: usize,
    },
    Reconnect(Token),
}

/// An unanswered frame of verbs.
struct Flight {
    batch: BatchId,
    /// Index of the frame's first verb in the batch.
    first: usize,
    verbs: u16,
    result_words: usize,
    /// Whether the batch has no further verbs to the node.
    last: bool,
}

impl Link {
    pub(crate) fn new(node: NodeId) -> Self {
        Self {
            node,
            state: LinkState::Fresh,
            number: 0,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            // No memory before the first connection.
            input: Input::new(0),
            output: Output::default(),
            interest: Interest::READ,
            heard: false,
            heard_at: Nanos(0),
        }
    }

    fn tag(&self) -> Tag {
        Tag::from(self.node.0)
    }

    /// Queues a batch's verbs to the node; the batch has at least one.
    #[inline]
    pub(crate) fn post(&mut self, batch: BatchId, common: &mut Common) {
        self.queue.push_back(Item::Part { batch, next: 0 });
        self.proceed(common);
    }

    pub(crate) fn reconnect(&mut self, token: Token, common: &mut Common) {
        self.queue.push_back(Item::Reconnect(token));
        self.proceed(common);
    }

    /// Whether `flush` has output to send.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty() && self.interest == Interest::READ
    }

    /// Works through the queue as far as possible now.
    #[inline]
    fn proceed(&mut self, common: &mut Common) {
        if common.is_cut(self.node) && !matches!(self.state, LinkState::Down(_)) {
            self.lose(VerbError::Unreachable, common);
        }
        while let Some(item) = self.queue.front() {
            match (&self.state, item) {
                (LinkState::Dialing(_), _) => return,
                (LinkState::Fresh, _) => self.dial(common),
                (LinkState::Open(_), &Item::Part { batch, next }) => {
                    if self.output.len() + MAX_FRAME_WORDS > OUTPUT_WORDS {
                        return;
                    }
                    self.encode(batch, next, &common.batches);
                }
                (LinkState::Open(_), Item::Reconnect(_)) => {
                    if !self.in_flight.is_empty() {
                        return;
                    }
                    self.dial(common);
                }
                (LinkState::Down(_), Item::Reconnect(_)) => self.dial(common),
                (&LinkState::Down(error), &Item::Part { batch, next }) => {
                    self.queue.pop_front();
                    common.batches.fail(batch, self.node, next, 0, error);
                    common.batches.part_over(batch);
                }
            }
        }
    }

    /// Encodes a frame of the batch at the front of the queue.
    #[inline]
    fn encode(&mut self, batch: BatchId, from: usize, batches: &Batches) {
        let (work, out) = (batches.work(batch), &mut self.output.words);
        let header = out.len();
        out.push(0);
        let (mut verbs, mut result_words, mut first, mut next) = (0, 0, from, None);
        for (index, request) in work.requests().iter().enumerate().skip(from) {
            if request.addr.node() != self.node {
                continue;
            }
            let bytes = request.bytes();
            let (words, results) = wire::sizes(request.op, bytes);
            let body_words = out.len() - header - 1;
            if body_words + words > MAX_BODY_WORDS || result_words + results > MAX_BODY_WORDS {
                next = Some(index);
                break;
            }
            if verbs == 0 {
                first = index;
            }
            let data = match request.op {
                Op::Write | Op::MaskedCompareAndSwap => work.words(request.local),
                _ => &[],
            };
            wire::encode_verb(out, request.addr, request.op, bytes, data);
            verbs += 1;
            result_words += results;
        }
        out[header] = Header::new(FrameKind::Verbs, verbs, out.len() - header - 1).pack();
        match next {
            Some(next) => self.queue[0] = Item::Part { batch, next },
            None => _ = self.queue.pop_front(),
        }
        if self.in_flight.is_empty() {
            // The wait for the first answer begins now.
            self.heard = true;
        }
        let (verbs, last) = (verbs as u16, next.is_none());
        self.in_flight.push_back(Flight { batch, first, verbs, result_words, last });
    }

    /// Sends the encoded frames.
    #[inline]
    pub(crate) fn flush(&mut self, common: &mut Common) {
        if self.output.is_empty() {
            return;
        }
        let LinkState::Open(stream) = &mut self.state else { return };
        if self.output.flush(stream).is_err() {
            self.lose(VerbError::Unreachable, common);
        }
        self.watch_on(common);
        if !self.queue.is_empty() {
            self.proceed(common);
        }
    }

    /// Watches the socket for the next possible operation.
    #[inline]
    fn watch_on(&mut self, common: &mut Common) {
        let LinkState::Open(stream) = &self.state else { return };
        let interest = Interest { read: true, write: !self.output.is_empty() };
        if interest != self.interest {
            self.interest = interest;
            let changed = common.watch.change(stream, self.tag(), interest);
            if changed.is_err() {
                self.lose(VerbError::Unreachable, common);
            }
        }
    }

    /// Handles readiness of the socket.
    #[inline]
    pub(crate) fn turn(&mut self, common: &mut Common) {
        match &self.state {
            LinkState::Open(_) => {
                self.receive(common);
                self.flush(common);
            }
            LinkState::Dialing(_) => self.advance(common),
            LinkState::Fresh | LinkState::Down(_) => {}
        }
        self.proceed(common);
    }

    /// Receives answers.
    #[inline]
    fn receive(&mut self, common: &mut Common) {
        while let LinkState::Open(stream) = &mut self.state {
            let Ok(fill) = self.input.fill(stream) else {
                return self.lose(VerbError::Unreachable, common);
            };
            match self.settle(&mut common.batches) {
                Ok(()) => {}
                Err(LinkError::Refused(error)) => return self.refused(error, common),
                // Not an answer to the oldest frame in flight: the peer is unreliable.
                Err(LinkError::Nonsense) => return self.lose(VerbError::Unreachable, common),
            }
            match fill {
                Fill::Full => {}
                Fill::Drained | Fill::Nothing => return,
                Fill::Closed => return self.lose(VerbError::Unreachable, common),
            }
        }
    }

    /// Processes the answers received.
    #[inline]
    fn settle(&mut self, batches: &mut Batches) -> Result<(), LinkError> {
        let mut taken = 0;
        while let Some(frame) = wire::decode(&self.input.words()[taken..])? {
            taken += frame.words();
            let flight = self.in_flight.pop_front().ok_or(LinkError::Nonsense)?;
            flight.settle(self.node, &frame, batches)?;
        }
        self.input.take(taken);
        self.heard |= taken > 0;
        Ok(())
    }

    /// Closes the connection after the target has refused a verb and, with it, every later verb.
    fn refused(&mut self, error: VerbError, common: &mut Common) {
        let behind = if error == VerbError::Revoked { error } else { VerbError::Broken };
        self.go_down(behind, behind, common);
    }

    /// Closes a lost connection. The outcome of verbs in flight is unknown.
    fn lose(&mut self, error: VerbError, common: &mut Common) {
        let idle = self.in_flight.is_empty();
        self.go_down(error, VerbError::Broken, common);
        if idle {
            // If nothing was in flight, the front of the queue gets the error.
            self.fail_front(error, common);
        }
    }

    /// Closes the connection. Verbs in flight fail with the first error, queued and later ones with
    /// the second.
    fn go_down(&mut self, in_flight: VerbError, behind: VerbError, common: &mut Common) {
        for Flight { batch, first, last, .. } in self.in_flight.drain(..) {
            common.batches.fail(batch, self.node, first, 0, in_flight);
            if last {
                common.batches.part_over(batch);
            }
        }
        self.input.clear();
        self.output.clear();
        self.state = LinkState::Down(behind);
    }

    /// Fails the front of the queue, for lack of a connection.
    fn fail_front(&mut self, error: VerbError, common: &mut Common) {
        if let Some(&Item::Part { batch, next }) = self.queue.front() {
            self.queue.pop_front();
            common.batches.fail(batch, self.node, next, 0, error);
            return common.batches.part_over(batch);
        }
        while let Some(&Item::Reconnect(token)) = self.queue.front() {
            self.queue.pop_front();
            common.reconnected.push((token, Err(error)));
        }
    }

    /// Starts a new connection; replaces the current connection, if any.
    fn dial(&mut self, common: &mut Common) {
        debug_assert!(self.in_flight.is_empty(), "they would be forgotten");
        self.number += 1;
        let hello = Hello {
            purpose: Purpose::Verbs,
            from: common.at,
            to: Endpoint { node: self.node, lane: LaneId(0) },
            epoch: common.epoch,
            session: common.session,
            number: self.number,
        };
        // Closes the older socket, if any.
        self.state = LinkState::Fresh;
        self.input.clear();
        self.output.clear();
        match common.dial(hello) {
            Ok(dial) => {
                self.interest = dial.interest();
                if common.watch.add(dial.stream(), self.tag(), self.interest).is_err() {
                    return self.dial_failed(VerbError::Unreachable, common);
                }
                self.state = LinkState::Dialing(Box::new(dial));
            }
            Err(_) => self.dial_failed(VerbError::Unreachable, common),
        }
    }

    fn advance(&mut self, common: &mut Common) {
        let LinkState::Dialing(dial) = &mut self.state else { return };
        match dial.advance() {
            Ok(true) => self.open(common),
            Ok(false) => {
                let interest = dial.interest();
                if interest != self.interest {
                    self.interest = interest;
                    let tag = Tag::from(self.node.0);
                    if common.watch.change(dial.stream(), tag, interest).is_err() {
                        self.dial_failed(VerbError::Unreachable, common);
                    }
                }
            }
            Err(DialError::Refused(Refusal::Fenced)) => {
                self.dial_failed(VerbError::Revoked, common);
            }
            Err(_) => self.dial_failed(VerbError::Unreachable, common),
        }
    }

    fn open(&mut self, common: &mut Common) {
        let LinkState::Dialing(dial) = std::mem::replace(&mut self.state, LinkState::Fresh) else {
            return;
        };
        if self.input.capacity() == 0 {
            self.input = Input::new(INPUT_WORDS);
        }
        self.state = LinkState::Open(dial.into_stream());
        self.watch_on(common);
        while let Some(&Item::Reconnect(token)) = self.queue.front() {
            self.queue.pop_front();
            common.reconnected.push((token, Ok(())));
        }
    }

    fn dial_failed(&mut self, error: VerbError, common: &mut Common) {
        let behind = if error == VerbError::Revoked { error } else { VerbError::Broken };
        self.state = LinkState::Down(behind);
        self.fail_front(error, common);
    }

    /// Fails the connection if it exceeded a time-out.
    pub(crate) fn check(&mut self, now: Nanos, common: &mut Common) {
        if std::mem::take(&mut self.heard) {
            self.heard_at = now;
        }
        match &self.state {
            LinkState::Dialing(dial) if now > dial.deadline => {
                self.dial_failed(VerbError::Unreachable, common);
            }
            LinkState::Open(_) if self.in_flight.is_empty() => return,
            LinkState::Open(_) if now.since(self.heard_at) > common.limits().verb => {
                self.lose(VerbError::TimedOut, common);
            }
            _ => return,
        }
        self.proceed(common);
    }
}

/// Reason why a connection cannot go on.
enum LinkError {
    /// The target refused a verb.
    Refused(VerbError),
    /// The received frame is not the expected answer.
    Nonsense,
}

impl From<WireError> for LinkError {
    fn from(_: WireError) -> Self {
        Self::Nonsense
    }
}

impl Flight {
    /// Copies the results of the answer into the batch, or records the error.
    #[inline]
    fn settle(
        self,
        node: NodeId,
        answer: &Frame<'_>,
        batches: &mut Batches,
    ) -> Result<(), LinkError> {
        let settled = match self.results(answer) {
            Ok(results) => {
                let verbs = usize::from(self.verbs);
                batches.work_mut(self.batch).scatter(node, self.first, verbs, results);
                Ok(())
            }
            Err(trouble) => {
                let (verb, error) = match trouble {
                    LinkError::Refused(error) => (usize::from(answer.header.count), error),
                    LinkError::Nonsense => (0, VerbError::Unreachable),
                };
                batches.fail(self.batch, node, self.first, verb, error);
                Err(trouble)
            }
        };
        if self.last {
            batches.part_over(self.batch);
        }
        settled
    }

    /// Returns the answer's results, if the answer is for this frame.
    #[inline]
    fn results<'a>(&self, answer: &Frame<'a>) -> Result<&'a [u64], LinkError> {
        let Header { kind, status, count, .. } = answer.header;
        match kind {
            FrameKind::Results if status != 0 && count < self.verbs => {
                Err(LinkError::Refused(wire::error_of(status)?))
            }
            FrameKind::Results
                if status == 0 && count == self.verbs && answer.body.len() == self.result_words =>
            {
                Ok(answer.body)
            }
            _ => Err(LinkError::Nonsense),
        }
    }
}
