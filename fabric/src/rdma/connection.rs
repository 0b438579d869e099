//! One lane's connection to one node: what waits, what the device has, and what became of it.
//!
//! Verbs of one connection complete in posting order, so a completion says that all verbs before
//! it are complete as well, and few of them need to report (*selective signalling*). What was
//! posted for one batch with one doorbell is a [`Segment`]; the queue of segments mirrors the
//! device's send queue.
//!
//! # Breaking and re-making
//! A refused verb breaks the connection for those behind it. If this side refused it, what was
//! posted before completes normally. If the device reports an error, the queue pair is destroyed
//! at once: then the device touches no buffer any more, and every batch can be given back.
//! Batches and requests to reconnect wait in one queue, so a connection is re-made exactly between
//! the verbs before and behind the request (H22).

use std::collections::VecDeque;

use super::chain::{Action, Chain, Local, Remote};
use super::ffi::{QueuePair, ibv_wc_status};
use super::lane::Arena;
use super::rules::{Order, Ordering, meaning};
use super::wire::Key;
use crate::ids::NodeId;
use crate::region::WORD_BYTES;
use crate::transport::Token;
use crate::verbs::{Op, VerbError, Work, WorkRequest};

/// A batch that is with the lane, by its place in [`Flights`].
pub(super) type FlightId = u32;

/// The batches of a lane that are not complete.
#[derive(Default)]
pub(super) struct Flights {
    slots: Vec<Flight>,
    free: Vec<FlightId>,
    /// Complete, to be handed back.
    pub landed: Vec<FlightId>,
}

struct Flight {
    token: Token,
    /// Taken out when the batch is complete.
    work: Option<Box<Work>>,
    /// Nodes with verbs that have not ended.
    open_parts: u32,
}

impl Flights {
    /// Takes a batch with verbs to so many nodes.
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

    /// All verbs to one more node have ended.
    #[inline]
    pub fn end_part(&mut self, id: FlightId) {
        let flight = &mut self.slots[id as usize];
        flight.open_parts -= 1;
        if flight.open_parts == 0 {
            self.landed.push(id);
        }
    }

    /// Gives a complete batch back.
    #[inline]
    pub fn take(&mut self, id: FlightId) -> (Token, Box<Work>) {
        let flight = &mut self.slots[id as usize];
        self.free.push(id);
        (flight.token, flight.work.take().expect("a batch lands once"))
    }
}

/// What a connection works on, lent by the lane.
pub(super) struct Tools<'a> {
    pub flights: &'a mut Flights,
    pub arena: &'a mut Arena,
    pub chain: &'a mut Chain,
}

/// An established connection, and what may be done with it.
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

    /// Where a request goes, if the region admits it.
    #[inline]
    fn resolve(&self, request: &WorkRequest) -> Result<Remote, VerbError> {
        let key = &self.keys[usize::from(request.addr.region().0)];
        let key = key.as_ref().ok_or(VerbError::OutOfBounds)?;
        let word = request.first_word(key.bytes, key.rights)?;
        Ok(Remote { address: key.address + (word * WORD_BYTES) as u64, key: key.key })
    }

    /// Changes what this side believes of the regions. For tests of what the device refuses.
    #[cfg(test)]
    pub fn distort(&mut self, change: impl Fn(&mut Key)) {
        self.keys.iter_mut().flatten().for_each(change);
    }
}

/// What waits its turn.
enum Item {
    /// The verbs of a batch to this node, from request `next` on.
    Part { flight: FlightId, next: usize },
    /// To be answered when a new connection stands.
    Reconnect(Token),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// Nobody has asked for it yet.
    New,
    /// The other node is being asked.
    Connecting,
    Sound,
    /// A verb failed, or the other node refused. Verbs fail with this.
    Broken(VerbError),
}

/// Verbs of one batch that were posted together.
struct Segment {
    flight: FlightId,
    /// The batch's requests from here on that go to this node.
    first: usize,
    verbs: u32,
    /// The first request that this side refused, behind the posted ones.
    refused: Option<(usize, VerbError)>,
    /// Nothing of the batch's verbs to this node comes behind.
    ends_part: bool,
}

/// See the module's essay.
pub(super) struct Connection {
    node: NodeId,
    pub link: Option<Link>,
    condition: Condition,
    /// Tells this life's completions from those of earlier ones.
    generation: u16,
    waiting: VecDeque<Item>,
    segments: VecDeque<Segment>,
    depth: u32,
    unsignalled_most: u32,
    /// Verbs that the device has.
    posted: u32,
    /// The number of the next verb, in all lives.
    next: u32,
    /// Verbs since the last one that reports.
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
            // A full queue has one that reports, whatever is at its head.
            unsignalled_most: unsignalled.min(depth),
            posted: 0,
            next: 0,
            unsignalled: 0,
            order: Order::default(),
            ordering,
        }
    }

    /// Queues the verbs of a batch to this node, of which `first` is the first.
    #[inline]
    pub fn push(&mut self, flight: FlightId, first: usize) {
        self.waiting.push_back(Item::Part { flight, next: first });
    }

    /// Queues a request to re-make the connection.
    pub fn push_reconnect(&mut self, token: Token) {
        self.waiting.push_back(Item::Reconnect(token));
    }

    /// Does what can be done now. Whether the other node has to be asked for a connection.
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
                        // If the device has refused what was posted, nothing will come back, and
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
        // Destroys the old queue pair, which has nothing left to do.
        self.link = None;
        true
    }

    /// Takes what came of asking; calls `reconnected` for those who wait for just that.
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

    /// Posts the verbs of a batch to this node from `next` on, with one doorbell. Where to go on
    /// when others are complete, if there is not room enough, or a verb has to wait for them.
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

    /// Rings the doorbell for what is in the chain, the verbs of `segment`.
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
        // ended, and those end by a completion or after the queue pair was destroyed; words that
        // travel inside requests are copied by the call. The arena keeps registrations for good.
        let posted = unsafe { link.pair.post(tools.chain) };
        self.posted += verbs;
        self.segments.push_back(segment);
        if posted.is_err() {
            // Nobody knows which of those before have taken effect.
            self.broke(tools.flights, self.oldest(), VerbError::Flushed);
        }
    }

    /// Takes the completion of verb `number`: it and all before it are complete.
    #[inline]
    pub fn completed(&mut self, flights: &mut Flights, id: u64, status: ibv_wc_status::Type) {
        // What an earlier life left in the queue says nothing any more.
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
                // The rest of it is still with the device.
                segment.first = nth_to(self.node, flights.work(segment.flight), segment, verbs);
                segment.verbs -= verbs;
                return;
            }
            self.end_front(flights);
        }
        // Refused ones right behind have nothing else to wait for.
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

    /// The number of the oldest verb that the device has.
    #[inline]
    fn oldest(&self) -> u32 {
        self.next.wrapping_sub(self.posted)
    }

    /// All verbs of a segment took effect; one behind may have been refused.
    #[inline]
    fn end(&self, flights: &mut Flights, segment: &Segment) {
        if let Some((verb, error)) = segment.refused {
            fail(flights.work(segment.flight), self.node, verb, error);
        }
        if segment.ends_part {
            flights.end_part(segment.flight);
        }
    }

    /// Verb `number` failed, and with it the connection.
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

    /// Fails a batch's verbs to this node, but for the first `skip` from request `first` on.
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

    /// What an error of the device says about verb `number`.
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

/// The request number `skip` to `node`, counted from request `first` on.
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
    }
}

/// Node, life of the connection, number of the verb.
#[inline]
fn verb_id(node: NodeId, generation: u16, number: u32) -> u64 {
    u64::from(node.0) << 48 | u64::from(generation) << 32 | u64::from(number)
}

/// The node whose connection a completion belongs to.
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

/// The local side of a request whose data is a word in the request itself.
#[inline]
pub(super) fn word_of(request: &WorkRequest) -> Option<Local> {
    let Op::WriteWord { value } = &request.op else { return None };
    Some(Local { address: std::ptr::from_ref(value) as u64, bytes: WORD_BYTES as u32, key: 0 })
}

#[cfg(test)]
mod tests;
