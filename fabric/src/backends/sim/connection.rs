//! A lane's connection to a node: a queue of legs, of which only the first makes progress.
//!
//! A *leg* is the part of a batch that goes to one node. Legs of one connection take effect in
//! sequence, despite delays: the contract promises the order. So a connection has at most one
//! pending event, for the next verb of the first leg:
//!
//! ```text
//! travelling → queued at the NIC → (in pieces, if torn) → next verb … → answering → next leg
//! ```
//!
//! A failed leg flushes all later legs. Verbs in flight when the initiator gives up become
//! *stragglers*: stragglers land later, unless the connection has been re-made, the node fenced or
//! the target restarted meanwhile (H2, H22).

use lotus_sabotage::{Rule, broken};
use rand::Rng;

use super::depth::Unanswered;
use super::memory::Effect;
use super::queue::{Event, NEVER, Picos};
use super::state::{NONE, State};
use super::trace::TraceEventKind;
use super::verbs::Tear;
use crate::contract::ids::NodeId;
use crate::contract::transport::Token;
use crate::contract::verbs::{VerbError, WorkRequest};

/// Retries of a NIC within the verb time-out.
const TRIES: Picos = 16;

/// State of a connection's first leg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Travelling to the target, or held up on the way.
    Travelling,
    /// Waiting in the queue of the target's NIC.
    Queued,
    /// Landing (WRITE) or being sampled (READ) in pieces.
    Tearing,
    /// Every verb took effect; the answer is under way.
    Answering,
}

pub(super) struct Connection {
    ends: Ends,
    /// Incremented by each reconnect; verbs sent under an older number are refused.
    pub(super) number: u32,
    /// Life of the target that the connection belongs to.
    pub(super) life: u32,
    /// Error of new verbs while the connection is broken.
    pub(super) refusal: Option<VerbError>,
    /// First and last leg.
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) phase: Phase,
    /// Time of the pending event; events at other times are stale.
    pub(super) due: Picos,
    /// Time at which the target's NIC finishes the current verb.
    pub(super) served: Picos,
    /// Unanswered READs and atomics; only if the profile limits the number.
    pub(super) unanswered: Option<Box<Unanswered>>,
    /// State of the torn verb while `Tearing`; otherwise kept for reuse.
    pub(super) tear: Option<Box<Tear>>,
}

impl Connection {
    pub(super) fn new(ends: Ends, life: u32) -> Self {
        Self {
            ends,
            number: 0,
            life,
            refusal: None,
            head: NONE,
            tail: NONE,
            phase: Phase::Travelling,
            due: NEVER,
            served: 0,
            unanswered: None,
            tear: None,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum FlightKind {
    /// Verbs of the batch.
    Verbs(u32),
    /// A request to close the connection and make a new one.
    Reconnect(Token),
}

#[derive(Clone, Copy)]
pub(super) struct Leg {
    pub(super) next: u32,
    pub(super) kind: FlightKind,
    /// First and next verb, as indices into the batch.
    pub(super) first: u32,
    pub(super) verb: u32,
    /// Arrival time of the next verb at the target.
    pub(super) arrival: Picos,
    /// Time at which the initiator gives up on a held-up leg.
    pub(super) deadline: Picos,
    /// Time at which the answers so far reach the initiator.
    pub(super) answered: Picos,
}

/// A verb still in flight after the initiator gave up.
pub(super) struct Straggler {
    connection: u32,
    number: u32,
    request: WorkRequest,
    effect: Effect,
    /// Whether the initiator was told `Flushed`, because an earlier verb failed.
    flushed: bool,
}

/// Result of checking whether a leg can go on.
enum Way {
    Clear,
    HeldUpUntil(Picos),
    GivenUp(VerbError),
}

/// Lane, initiator and target of a connection.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) lane: u32,
    pub(super) initiator: NodeId,
    pub(super) target: NodeId,
}

impl State {
    #[inline]
    pub(super) fn ends(&self, id: u32) -> Ends {
        self.connections[id as usize].ends
    }

    /// Returns the number of the connection from a lane to a node; `None` if the node does not
    /// exist.
    #[inline]
    pub(super) fn connection_to(&self, lane: u32, target: NodeId) -> Option<u32> {
        self.has_node(target).then(|| lane * self.nodes.len() as u32 + u32::from(target.0))
    }

    #[inline]
    pub(super) fn connection(&mut self, id: u32) -> &mut Connection {
        &mut self.connections[id as usize]
    }

    /// Returns the first leg of a connection with a non-empty queue.
    #[inline]
    pub(super) fn head(&mut self, id: u32) -> &mut Leg {
        let head = self.connections[id as usize].head;
        &mut self.legs[head as usize]
    }

    #[inline]
    pub(super) fn schedule(&mut self, id: u32, at: Picos) {
        self.connection(id).due = at;
        self.queue.push(at, Event::Connection(id));
    }

    /// Appends a leg to the connection's queue; returns the leg's number.
    #[inline]
    pub(super) fn append(&mut self, id: u32, leg: Leg) -> u32 {
        let key = self.legs.insert(leg) as u32;
        self.link(id, key);
        key
    }

    #[inline]
    fn link(&mut self, id: u32, key: u32) {
        let connection = &mut self.connections[id as usize];
        if connection.tail == NONE {
            connection.head = key;
        } else {
            self.legs[connection.tail as usize].next = key;
        }
        connection.tail = key;
    }

    /// Schedules the first leg, if any.
    #[inline]
    pub(super) fn start_head(&mut self, id: u32) {
        let connection = self.connection(id);
        connection.phase = Phase::Travelling;
        if connection.head != NONE {
            self.hold_back(id);
            let head = self.head(id);
            let at = head.arrival.min(head.deadline);
            self.schedule(id, at.max(self.now));
        }
    }

    /// Removes the finished first leg and starts the next.
    #[inline]
    fn pop_head(&mut self, id: u32) -> Leg {
        let connection = &mut self.connections[id as usize];
        let leg = self.legs.remove(connection.head as usize);
        connection.head = leg.next;
        if leg.next == NONE {
            connection.tail = NONE;
        }
        self.start_head(id);
        leg
    }

    /// Handles the connection's due event.
    #[inline]
    pub(super) fn step(&mut self, id: u32) {
        let connection = &mut self.connections[id as usize];
        connection.due = NEVER;
        match connection.phase {
            Phase::Travelling => self.arrive(id),
            Phase::Queued => self.leave_queue(id),
            Phase::Tearing => self.go_on_tearing(id),
            Phase::Answering => self.answer(id),
        }
    }

    /// Delivers the first leg to the target, unless the leg is held up.
    fn arrive(&mut self, id: u32) {
        let Ends { initiator, target, .. } = self.ends(id);
        let Leg { kind, arrival, deadline, .. } = *self.head(id);
        match self.way(initiator, target, arrival, deadline) {
            Way::HeldUpUntil(at) => return self.schedule(id, at),
            Way::GivenUp(error) => return self.give_up(id, error),
            Way::Clear => {}
        }
        match kind {
            FlightKind::Verbs(batch) => self.serve_verbs(id, batch),
            FlightKind::Reconnect(_) => self.answer(id),
        }
    }

    #[inline]
    fn way(&self, from: NodeId, to: NodeId, arrival: Picos, deadline: Picos) -> Way {
        let path = &self.nodes[usize::from(from.0)].paths[usize::from(to.0)];
        let due = arrival.max(path.stalled_until);
        if due > self.now {
            return if self.now >= deadline {
                Way::GivenUp(VerbError::TimedOut)
            } else {
                Way::HeldUpUntil(due.min(deadline))
            };
        }
        if !self.is_cut(from, to) {
            return Way::Clear;
        }
        if self.now >= deadline {
            return Way::GivenUp(VerbError::Unreachable);
        }
        Way::HeldUpUntil(deadline.min(self.now.saturating_add(self.timeout / TRIES + 1)))
    }

    /// Sends the answer of the first leg, after its effect, unless the path back is closed.
    pub(super) fn answer(&mut self, id: u32) {
        self.connection(id).phase = Phase::Answering;
        let Ends { lane, initiator, target } = self.ends(id);
        let Leg { kind, deadline, answered, .. } = *self.head(id);
        match self.way(target, initiator, 0, deadline) {
            Way::HeldUpUntil(at) => return self.schedule(id, at),
            Way::GivenUp(error) => return self.give_up(id, error),
            Way::Clear => {}
        }
        match kind {
            FlightKind::Verbs(batch) => {
                // A held-up answer leaves only now.
                let at = answered.max(self.now) + self.jitter();
                self.pop_head(id);
                self.finish_leg(batch, at);
            }
            FlightKind::Reconnect(token) => {
                let result = self.renew(id, target, initiator);
                self.pop_head(id);
                self.report_reconnect(id, lane, token, result);
            }
        }
    }

    /// Re-makes the connection.
    fn renew(&mut self, id: u32, target: NodeId, initiator: NodeId) -> Result<(), VerbError> {
        let node = &self.nodes[usize::from(target.0)];
        let (life, fence) = (node.life, node.fences[usize::from(initiator.0)]);
        let epoch = self.lanes[self.ends(id).lane as usize].epoch;
        let connection = self.connection(id);
        if fence > epoch {
            connection.refusal = Some(VerbError::Revoked);
            return Err(VerbError::Revoked);
        }
        if !broken(Rule::OldConnectionsAreClosed) {
            connection.number += 1;
        }
        connection.life = life;
        connection.refusal = None;
        Ok(())
    }

    fn report_reconnect(
        &mut self,
        id: u32,
        lane: u32,
        token: Token,
        result: Result<(), VerbError>,
    ) {
        let (from, to) = (self.lanes[lane as usize].at, self.ends(id).target);
        self.trace(TraceEventKind::Reconnected { from, to, result });
        let key = self.reconnects.insert((lane, token, result)) as u32;
        let at = self.now + self.travel();
        self.queue.push(at, Event::Reconnected(key));
    }

    pub(super) fn reconnected(&mut self, key: u32) {
        let (lane, token, result) = self.reconnects.remove(key as usize);
        let lane = &mut self.lanes[lane as usize];
        if lane.open {
            lane.inbox.reconnected.push((token, result));
            let core = lane.core;
            self.wake_core(core);
        }
    }

    /// Breaks the connection after the initiator's time-out. Verbs still in flight land later.
    #[cold]
    pub(super) fn give_up(&mut self, id: u32, error: VerbError) {
        self.counts.connections_timed_out += 1;
        let Ends { initiator, target, .. } = self.ends(id);
        let life = self.nodes[usize::from(target.0)].life;
        let gone = self.is_cut(initiator, target) || self.connection(id).life != life;
        let answering = self.connection(id).phase == Phase::Answering;
        let head = self.connection(id).head;
        let mut key = head;
        let mut due = self
            .now
            .max(self.nodes[usize::from(initiator.0)].paths[usize::from(target.0)].stalled_until);
        let mut landed_already = answering;
        while key != NONE && !gone {
            let leg = self.legs[key as usize];
            due = due.max(leg.arrival);
            if !landed_already {
                self.strand(id, &leg, due, usize::MAX, key != head);
            }
            landed_already = false;
            key = leg.next;
        }
        self.break_connection(id, error);
    }

    /// Lets up to `count` of the leg's remaining verbs land at `due` as stragglers, after the batch
    /// is gone. Returns the number of stragglers. `flushed`: whether the initiator was told
    /// `Flushed`.
    fn strand(&mut self, id: u32, leg: &Leg, due: Picos, count: usize, flushed: bool) -> usize {
        let FlightKind::Verbs(batch) = leg.kind else { return 0 };
        let (number, target) = (self.connection(id).number, self.ends(id).target);
        let work = &self.batches[batch as usize].work;
        let rest = work.requests()[leg.verb as usize..].iter();
        let mut stranded = 0;
        for request in rest.filter(|request| request.addr.node() == target).take(count) {
            stranded += 1;
            let Some(effect) = Effect::of(request, work) else { continue };
            let straggler =
                Straggler { connection: id, number, request: *request, effect, flushed };
            let key = self.stragglers.insert(straggler) as u32;
            self.queue.push(due, Event::Straggler(key));
        }
        stranded
    }

    pub(super) fn straggler_arrives(&mut self, key: u32) {
        let straggler = self.stragglers.remove(key as usize);
        let id = straggler.connection;
        let Ends { lane, initiator, target } = self.ends(id);
        let (from, epoch) = (self.lanes[lane as usize].at, self.lanes[lane as usize].epoch);
        let connection = &self.connections[id as usize];
        let node = &self.nodes[usize::from(target.0)];
        let admitted = connection.number == straggler.number
            && connection.life == node.life
            && node.fences[usize::from(initiator.0)] <= epoch
            && !self.is_cut(initiator, target);
        let landed = match node.regions.resolve(&straggler.request) {
            Ok((memory, word)) if admitted => {
                straggler.effect.apply(memory, word);
                self.counts.stragglers_landed += 1;
                self.counts.flushed_landed += u64::from(straggler.flushed);
                true
            }
            _ => {
                self.counts.stragglers_refused += 1;
                false
            }
        };
        self.hash.add(u64::from(landed));
        self.trace(TraceEventKind::Straggler { from, to: target, landed });
    }

    /// Fails the first leg with `error` and flushes later legs. Queued reconnects stay.
    #[cold]
    pub(super) fn break_connection(&mut self, id: u32, error: VerbError) {
        let Ends { lane, target: to, .. } = self.ends(id);
        let from = self.lanes[lane as usize].at;
        self.trace(TraceEventKind::Broken { from, to, error });
        let connection = self.connection(id);
        let mut key = connection.head;
        (connection.head, connection.tail, connection.due) = (NONE, NONE, NEVER);
        let revoked = error == VerbError::Revoked;
        connection.refusal = Some(if revoked { VerbError::Revoked } else { VerbError::Broken });
        let at = self.now + self.costs.delay;
        let mut error = Some(error);
        while key != NONE {
            let leg = self.legs[key as usize];
            let first_error = error.take();
            match (leg.kind, first_error) {
                (FlightKind::Verbs(batch), _) => {
                    self.legs.remove(key as usize);
                    let error = first_error.unwrap_or(VerbError::Flushed);
                    let verb = if error.outcome_unknown() { leg.first } else { leg.verb };
                    self.batches[batch as usize].work.fail(verb as usize, error);
                    self.finish_leg(batch, at);
                }
                (FlightKind::Reconnect(token), Some(error)) => {
                    self.legs.remove(key as usize);
                    self.report_reconnect(id, lane, token, Err(error));
                }
                (FlightKind::Reconnect(_), None) => {
                    self.legs[key as usize].next = NONE;
                    self.link(id, key);
                }
            }
            key = leg.next;
        }
        self.start_head(id);
    }

    /// Drops a crashed initiator's connection. The seed decides how many verbs in flight still
    /// land.
    pub(super) fn abandon_connection(&mut self, id: u32) {
        let mut key = self.connection(id).head;
        let Ends { initiator, target, .. } = self.ends(id);
        let life = self.nodes[usize::from(target.0)].life;
        let gone = self.is_cut(initiator, target) || self.connection(id).life != life;
        let mut landing = if gone { 0 } else { self.random.crashes.random_range(0..=16) };
        let mut due = self.now;
        if self.connection(id).phase == Phase::Answering {
            // The leg's verbs have taken effect already.
            self.head(id).verb = u32::MAX;
        }
        while key != NONE {
            let leg = self.legs.remove(key as usize);
            due = due.max(leg.arrival);
            if leg.verb != u32::MAX {
                landing -= self.strand(id, &leg, due, landing, false);
            }
            if let FlightKind::Verbs(batch) = leg.kind {
                self.finish_leg(batch, self.now);
            }
            key = leg.next;
        }
        let Connection { ends, number, life, .. } = *self.connection(id);
        *self.connection(id) = Connection { number, ..Connection::new(ends, life) };
    }
}
