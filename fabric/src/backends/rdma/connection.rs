//! A lane's connection to a node: queued verbs, verbs with the device, and outcomes.
//!
//! Verbs of one connection complete in posting order, so a completion covers all earlier verbs as
//! well, and few verbs need to report (*selective signalling*). The verbs of a batch that were
//! posted with one doorbell are a [`Segment`]; the queue of segments mirrors the device's send
//! queue.
//!
//! # Breaking and re-making
//! A refused verb breaks the connection for later verbs. If the initiator's software refused the
//! verb, earlier posted verbs complete normally. If the device reports an error, the queue pair is
//! destroyed at once: then the device touches no buffer any more, and every batch can be returned.
//! Batches and reconnects wait in one queue, so a connection is re-made exactly between the verbs
//! before and after the request (H22).

use std::collections::VecDeque;

use super::chain::{Action, Chain, Local, Remote};
use super::ffi::{QueuePair, ibv_wc_status};
use super::lane::Arena;
use super::rules::{Order, Ordering, meaning};
use super::wire::Key;
use crate::contract::ids::NodeId;
use crate::contract::region::WORD_BYTES;
use crate::contract::transport::Token;
use crate::contract::verbs::{Op, VerbError, Work, WorkRequest, not_declared};

/// Index of a batch in [`Flights`].
pub(super) type FlightId = u32;

/// The incomplete batches of a lane.
#[derive(Default)]
pub(super) struct Flights {
    slots: Vec<Flight>,
    free: Vec<FlightId>,
    /// Complete batches, to be returned.
    pub landed: Vec<FlightId>,
}

struct Flight {
    token: Token,
    /// `None` once the batch was returned.
    work: Option<Box<Work>>,
    /// Number of nodes with unfinished verbs.
    open_parts: u32,
}

impl Flights {
    /// Adds a batch with verbs to `parts` nodes.
    #[inline]
    pub fn add(&mut self, token: Token, work: Box<Work>, parts: u32) -> FlightId {
        let flight = Flight { token, work: Some(work), open_parts: parts };
        match self.free.pop() {
            Some(id) => {
                self.slots[id as usize] = flight;
                id
            }
            None => {
                self.slots.push(flight);
                self.slots.len() as FlightId - 1
            }
        }
    }

    #[inline]
    fn work(&mut self, id: FlightId) -> &mut Work {
        self.slots[id as usize].work.as_mut().expect("the batch has verbs that have not ended")
    }

    /// Records that all verbs to one more node have ended.
    #[inline]
    pub fn end_part(&mut self, id: FlightId) {
        let flight = &mut self.slots[id as usize];
        flight.open_parts -= 1;
        if flight.open_parts == 0 {
            self.landed.push(id);
        }
    }

    /// Returns a complete batch.
    #[inline]
    pub fn take(&mut self, id: FlightId) -> (Token, Box<Work>) {
        let flight = &mut self.slots[id as usize];
        self.free.push(id);
        (flight.token, flight.work.take().expect("a batch lands once"))
    }
}

/// A lane's state that the lane's connections share.
pub(super) struct Tools<'a> {
    pub flights: &'a mut Flights,
    pub arena: &'a mut Arena,
    pub chain: &'a mut Chain,
}

/// An established connection, with the reachable regions.
pub(super) struct Link {
    pub pair: QueuePair,
    /// By region number.
    keys: Vec<Option<Key>>,
}

impl Link {
    pub fn new(pair: QueuePair, keys: &[Key]) -> Self {
        let mut by_number = vec![None; 256];
        keys.iter().for_each(|key| by_number[usize::from(key.region.0)] = Some(*key));
        Self { pair, keys: by_number }
    }

    /// Returns the remote address and key of a request, if the region admits the request.
    #[inline]
    fn resolve(&self, request: &WorkRequest) -> Result<Remote, VerbError> {
        let key = &self.keys[usize::from(request.addr.region().0)];
        let key = key.as_ref().ok_or(VerbError::OutOfBounds)?;
        let word = request.first_word(key.bytes, key.rights)?;
        Ok(Remote { address: key.address + (word * WORD_BYTES) as u64, key: key.key })
    }

    /// Changes the initiator's knowledge of the regions. For tests of refusals by the device.
    #[cfg(test)]
    pub fn distort(&mut self, change: impl Fn(&mut Key)) {
        self.keys.iter_mut().flatten().for_each(change);
    }
}

/// A queued item.
enum Item {
    /// The verbs of a batch to the node, from request `next` on.
    Part { flight: FlightId, next: usize },
    /// A reconnect, to be answered when the new connection is established.
    Reconnect(Token),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// Not used yet.
    New,
    /// A connection request is in progress.
    Connecting,
    Sound,
    /// A verb failed, or the target refused. New verbs fail with the error.
    Broken(VerbError),
}

/// Verbs of a batch that were posted together.
struct Segment {
    flight: FlightId,
    /// Index in the batch from which requests to the node belong to the segment.
    first: usize,
    verbs: u32,
    /// The first request refused by the initiator's software, after the posted requests.
    refused: Option<(usize, VerbError)>,
    /// Whether the batch has no further verbs to the node.
    ends_part: bool,
}

/// A lane's connection to one node.
pub(super) struct Connection {
    node: NodeId,
    pub link: Option<Link>,
    condition: Condition,
    /// Distinguishes completions of the current life from completions of earlier lives.
    generation: u16,
    waiting: VecDeque<Item>,
    segments: VecDeque<Segment>,
    depth: u32,
    unsignalled_most: u32,
    /// Number of verbs that the device has.
    posted: u32,
    /// Number of the next verb, counted over all lives.
    next: u32,
    /// Number of verbs since the last signalled verb.
    unsignalled: u32,
    order: Order,
    ordering: Ordering,
}

impl Connection {
    pub fn new(node: NodeId, depth: u32, unsignalled: u32, ordering: Ordering) -> Self {
        Self {
            node,
            link: None,
            condition: Condition::New,
            generation: 0,
            waiting: VecDeque::new(),
            segments: VecDeque::new(),
            depth,
            // A full queue then always has a signalled verb.
            unsignalled_most: unsignalled.min(depth),
            posted: 0,
            next: 0,
            unsignalled: 0,
            order: Order::default(),
            ordering,
        }
    }

    /// Queues the verbs of a batch to this node; `first` is the index of the first verb.
    #[inline]
    pub fn push(&mut self, flight: FlightId, first: usize) {
        self.waiting.push_back(Item::Part { flight, next: first });
    }

    /// Queues a reconnect.
    pub fn push_reconnect(&mut self, token: Token) {
        self.waiting.push_back(Item::Reconnect(token));
    }

    /// Processes the queue as far as possible. Returns whether the caller must request a connection
    /// from the target.
    #[inline]
    #[must_use]
    pub fn pump(&mut self, tools: &mut Tools<'_>) -> bool {
        while let Some(item) = self.waiting.front() {
            match (self.condition, item) {
                (Condition::Connecting, _) => return false,
                (Condition::New, Item::Part { .. }) => return self.start_connecting(),
                (_, Item::Reconnect(_)) => {
                    return self.segments.is_empty() && self.start_connecting();
                }
                (Condition::Broken(error), &Item::Part { flight, next }) => {
                    self.fail_verbs(tools.flights, flight, next, 0, error);
                    tools.flights.end_part(flight);
                }
                (Condition::Sound, &Item::Part { flight, next }) => {
                    if let Some(next) = self.post(tools, flight, next) {
                        self.waiting[0] = Item::Part { flight, next };
                        // If the device has refused the posted verbs, no completion arrives, and
                        // the rest fails now.
                        if self.condition == Condition::Sound {
                            return false;
                        }
                        continue;
                    }
                }
            }
            self.waiting.pop_front();
        }
        false
    }

    fn start_connecting(&mut self) -> bool {
        self.condition = Condition::Connecting;
        // Destroys the old queue pair, which has no verbs left.
        self.link = None;
        true
    }

    /// Takes the result of a connection request; calls `reconnected` for the reconnects at the
    /// front.
    pub fn connected(
        &mut self,
        result: Result<Link, VerbError>,
        mut reconnected: impl FnMut(Token, Result<(), VerbError>),
    ) {
        self.generation = self.generation.wrapping_add(1);
        self.order = Order::default();
        self.unsignalled = 0;
        let outcome = result.as_ref().map(|_| ()).map_err(|error| *error);
        self.condition = match outcome {
            Ok(()) => Condition::Sound,
            Err(VerbError::Revoked) => Condition::Broken(VerbError::Revoked),
            Err(_) => Condition::Broken(VerbError::Broken),
        };
        self.link = result.ok();
        while let Some(&Item::Reconnect(token)) = self.waiting.front() {
            self.waiting.pop_front();
            reconnected(token, outcome);
        }
    }

    /// Posts the verbs of a batch to the node from `next` on, with one doorbell. Returns the index
    /// to continue from after completions, if room is lacking or a verb must wait for earlier
    /// verbs.
    #[inline]
    fn post(&mut self, tools: &mut Tools<'_>, flight: FlightId, next: usize) -> Option<usize> {
        let Some(link) = &self.link else { return None };
        let room = (self.depth - self.posted) as usize;
        let work = &*tools.flights.work(flight);
        let (mut refused, mut rest) = (None, None);
        tools.chain.clear();
        if self.posted == 0 {
            self.order = Order::default();
        }
        for (index, request) in work.requests().iter().enumerate().skip(next) {
            if request.addr.node() != self.node {
                continue;
            }
            let fence = self.order.could_overtake(request.kind());
            if tools.chain.len() == room || fence && self.ordering == Ordering::Wait {
                rest = Some(index);
                break;
            }
            let resolved = link.resolve(request);
            let local = resolved.and_then(|remote| Ok((remote, tools.arena.local(work, request)?)));
            let (remote, local) = match local {
                Ok(both) => both,
                Err(error) => {
                    refused = Some((index, error));
                    break;
                }
            };
            let id = verb_id(self.node, self.generation, self.next);
            let inline = local.bytes <= link.pair.inline_bytes();
            tools.chain.verb(id, action(request, inline), remote, local);
            self.next = self.next.wrapping_add(1);
            self.order.add(request.kind(), fence);
            if fence {
                tools.chain.fence_last();
            }
            self.unsignalled += 1;
            if self.unsignalled == self.unsignalled_most {
                tools.chain.signal_last();
                self.unsignalled = 0;
            }
        }
        self.ring(
            tools,
            Segment {
                flight,
                first: next,
                verbs: tools.chain.len() as u32,
                refused,
                ends_part: rest.is_none(),
            },
        );
        rest
    }

    /// Posts the chain, the verbs of `segment`, with one doorbell.
    #[inline]
    fn ring(&mut self, tools: &mut Tools<'_>, segment: Segment) {
        let Some(link) = &self.link else { return };
        let (verbs, refused) = (segment.verbs, segment.refused);
        if refused.is_some() {
            self.condition = Condition::Broken(VerbError::Broken);
        }
        if verbs == 0 && self.segments.is_empty() {
            self.end(tools.flights, &segment);
            return;
        }
        if verbs == 0 && refused.is_none() {
            return;
        }
        if verbs > 0 {
            tools.chain.signal_last();
            self.unsignalled = 0;
        }
        // SAFETY: the buffers belong to batches that `flights` holds until their segments have
        // ended, and segments end by a completion or after the queue pair was destroyed; the call
        // copies words inside requests. The arena keeps registrations for good.
        let posted = unsafe { link.pair.post(tools.chain) };
        self.posted += verbs;
        self.segments.push_back(segment);
        if posted.is_err() {
            // Which earlier verbs have taken effect is unknown.
            self.broke(tools.flights, self.oldest(), VerbError::Flushed);
        }
    }

    /// Takes the completion of a verb: the verb and all earlier verbs are complete.
    #[inline]
    pub fn completed(&mut self, flights: &mut Flights, id: u64, status: ibv_wc_status::Type) {
        // Completions of an earlier life are ignored.
        if generation_of(id) != self.generation || self.link.is_none() {
            return;
        }
        let number = number_of(id);
        if status != ibv_wc_status::IBV_WC_SUCCESS {
            let error = self.meaning(flights, number, status);
            return self.broke(flights, number, error);
        }
        let mut done = number.wrapping_sub(self.oldest()).wrapping_add(1);
        while done > 0 {
            let Some(segment) = self.segments.front_mut() else { return };
            let (ended, verbs) = (segment.verbs <= done, segment.verbs.min(done));
            done -= verbs;
            self.posted -= verbs;
            if !ended {
                // The rest of the segment is still with the device.
                segment.first = nth_to(self.node, flights.work(segment.flight), segment, verbs);
                segment.verbs -= verbs;
                return;
            }
            self.end_front(flights);
        }
        // Segments with only a refused verb have nothing further to wait for.
        while self.segments.front().is_some_and(|segment| segment.verbs == 0) {
            self.end_front(flights);
        }
    }

    #[inline]
    fn end_front(&mut self, flights: &mut Flights) {
        if let Some(segment) = self.segments.pop_front() {
            self.end(flights, &segment);
        }
    }

    /// Returns the number of the oldest verb with the device.
    #[inline]
    fn oldest(&self) -> u32 {
        self.next.wrapping_sub(self.posted)
    }

    /// Ends a segment: every verb took effect; the following verb may have been refused.
    #[inline]
    fn end(&self, flights: &mut Flights, segment: &Segment) {
        if let Some((verb, error)) = segment.refused {
            fail(flights.work(segment.flight), self.node, verb, error);
        }
        if segment.ends_part {
            flights.end_part(segment.flight);
        }
    }

    /// Fails verb `number` and the connection.
    #[cold]
    fn broke(&mut self, flights: &mut Flights, number: u32, error: VerbError) {
        self.condition = Condition::Broken(VerbError::Broken);
        let mut before = number.wrapping_sub(self.oldest());
        // Destroys the queue pair: from here on the device touches no buffer of these batches.
        self.link = None;
        let mut error = Some(error);
        for segment in std::mem::take(&mut self.segments) {
            if segment.verbs <= before && error.is_some() {
                before -= segment.verbs;
                self.end(flights, &segment);
                continue;
            }
            let error = error.take().unwrap_or(VerbError::Flushed);
            self.fail_verbs(flights, segment.flight, segment.first, before, error);
            before = 0;
            if segment.ends_part {
                flights.end_part(segment.flight);
            }
        }
        self.posted = 0;
    }

    /// Fails a batch's verbs to the node, except the first `skip` from request `first` on.
    #[cold]
    fn fail_verbs(
        &self,
        flights: &mut Flights,
        flight: FlightId,
        first: usize,
        skip: u32,
        error: VerbError,
    ) {
        let work = flights.work(flight);
        if let Some(verb) = nth(self.node, work, first, skip) {
            fail(work, self.node, verb, error);
        }
    }

    /// Translates an error of the device about verb `number`.
    #[cold]
    fn meaning(
        &self,
        flights: &mut Flights,
        number: u32,
        status: ibv_wc_status::Type,
    ) -> VerbError {
        let mut before = number.wrapping_sub(self.oldest());
        for segment in &self.segments {
            if before < segment.verbs {
                let work = flights.work(segment.flight);
                let verb = nth(self.node, work, segment.first, before);
                return meaning(status, verb.map(|verb| work.requests()[verb].kind()));
            }
            before -= segment.verbs;
        }
        meaning(status, None)
    }
}

/// Records a failure, unless an earlier verb to the node has failed.
fn fail(work: &mut Work, node: NodeId, verb: usize, error: VerbError) {
    if !work.has_failed(node) {
        work.fail(verb, error);
    }
}

/// Returns the index of request number `skip` to `node`, counted from request `first` on.
fn nth(node: NodeId, work: &Work, first: usize, skip: u32) -> Option<usize> {
    let requests = work.requests().iter().enumerate().skip(first);
    let mut to_node = requests.filter(|(_, request)| request.addr.node() == node);
    to_node.nth(skip as usize).map(|(index, _)| index)
}

fn nth_to(node: NodeId, work: &Work, segment: &Segment, skip: u32) -> usize {
    nth(node, work, segment.first, skip).unwrap_or(segment.first)
}

#[inline]
fn action(request: &WorkRequest, fits_inline: bool) -> Action {
    match request.op {
        Op::Read | Op::ReadStable => Action::Read,
        Op::Write => Action::Write { inline: fits_inline },
        Op::WriteWord { .. } => Action::Write { inline: true },
        Op::CompareAndSwap { expected, new } => Action::CompareAndSwap { expected, new },
        Op::FetchAndAdd { addend } => Action::FetchAndAdd { addend },
        Op::MaskedCompareAndSwap
        | Op::MaskedFetchAndAdd { .. }
        | Op::WideCompareAndSwap
        | Op::WideFetchAndAdd => not_declared(request.op),
    }
}

/// Makes the id of a verb: node, life of the connection, number of the verb.
#[inline]
fn verb_id(node: NodeId, generation: u16, number: u32) -> u64 {
    u64::from(node.0) << 48 | u64::from(generation) << 32 | u64::from(number)
}

/// Returns the node of a completion's connection.
#[inline]
pub(super) fn node_of(id: u64) -> NodeId {
    NodeId((id >> 48) as u16)
}

#[inline]
fn generation_of(id: u64) -> u16 {
    (id >> 32) as u16
}

#[inline]
fn number_of(id: u64) -> u32 {
    id as u32
}

/// Returns the local side of a request that carries its word inline.
#[inline]
pub(super) fn word_of(request: &WorkRequest) -> Option<Local> {
    let Op::WriteWord { value } = &request.op else { return None };
    Some(Local { address: std::ptr::from_ref(value) as u64, bytes: WORD_BYTES as u32, key: 0 })
}

#[cfg(test)]
mod tests;
