//! The path of a batch: posted, carried out verb by verb at the targets, completed.
//!
//! When a batch is posted, the verbs queue at the initiator's NIC and get arrival times. The
//! initiator's servers are booked in the order of turns, from the moment at which the turn began: a
//! core posts a little later, by the CPU time used, but so no core's verbs wait for verbs that are
//! posted later.
//!
//! At the target a verb queues at the NIC and takes effect when service begins. `depth` models
//! waiting for the answers of earlier verbs.

use rand::Rng;
use rand::seq::SliceRandom;

use super::connection::{Ends, FlightKind, Leg, Phase};
use super::nic::{Nic, Service};
use super::profile::Costs;
use super::queue::{Event, Picos, picos};
use super::state::{NONE, SimNode, State};
use super::trace::TraceEventKind;
use super::world::Interleaving;
use crate::contract::ids::NodeId;
use crate::contract::masked::MaskedSwap;
use crate::contract::region::WORD_BYTES;
use crate::contract::transport::Token;
use crate::contract::verbs::{Op, VerbError, VerbKind, Work, WorkRequest};
use crate::contract::wide::{SUMMANDS_WORDS, WideSwap};

/// A batch in flight.
pub(super) struct Batch {
    lane: u32,
    token: Token,
    pub(super) work: Box<Work>,
    /// Number of unfinished legs.
    legs: u32,
    /// Latest completion time of the finished legs.
    done: Picos,
}

/// A leg of the batch being posted.
pub(super) struct FreshLeg {
    target: NodeId,
    /// Number of the connection.
    id: u32,
    leg: u32,
}

/// The next verb of a leg.
struct Next {
    /// Arrival at the target.
    arrival: Picos,
    /// Whether the verb left later than directly behind the previous verb.
    waited: bool,
}

/// A torn verb: the order of the words, and the number of landed words.
#[derive(Default)]
pub(super) struct Tear {
    order: Vec<u16>,
    done: usize,
    /// Words that land together, and the longest time between two pieces.
    piece: usize,
    gap: Picos,
}

/// Largest number of pieces of a torn verb.
const MAX_PIECES: usize = 16;

fn payload_sent(request: &WorkRequest) -> usize {
    match (request.op, request.kind()) {
        (Op::MaskedCompareAndSwap, _) => MaskedSwap::WORDS * WORD_BYTES,
        (Op::WideCompareAndSwap, _) => WideSwap::WORDS * WORD_BYTES,
        (Op::WideFetchAndAdd, _) => SUMMANDS_WORDS * WORD_BYTES,
        (_, VerbKind::Read) => 0,
        (_, VerbKind::Write) => request.bytes(),
        (_, VerbKind::CompareAndSwap | VerbKind::FetchAndAdd) => 2 * WORD_BYTES,
    }
}

/// Returns the time between a verb and the previous verb of the same post.
#[inline]
pub(super) fn gap_before(request: &WorkRequest, nic: &Nic, costs: &Costs) -> Picos {
    nic.gap(costs.outbound.issuing(request), costs.transmission(payload_sent(request)))
}

#[cold]
fn fail_once(work: &mut Work, verb: usize, error: VerbError) {
    if !work.has_failed(work.requests()[verb].addr.node()) {
        work.fail(verb, error);
    }
}

impl State {
    /// Posts a batch.
    pub(super) fn post(&mut self, lane: u32, token: Token, mut work: Box<Work>) {
        if self.turn.core.is_none() {
            return self.post_outside(lane, token, work);
        }
        let batch = self.batches.vacant_key() as u32;
        let initiator = self.lanes[lane as usize].at.node;
        let mut fresh = std::mem::take(&mut self.fresh);
        let verbs = work.requests().len();
        self.charge(verbs as u64 * self.costs.cpu.verb);
        for verb in 0..verbs {
            let request = work.requests()[verb];
            let target = request.addr.node();
            // A leg begins with the first verb to the leg's node.
            let begins = !fresh.iter().any(|leg| leg.target == target);
            if begins && let Err(error) = self.admits(lane, target) {
                fail_once(&mut work, verb, error);
                continue;
            }
            self.nodes[usize::from(target.0)].regions.prefetch(&request);
            let service = self.costs.outbound.issuing(&request);
            let transmission = self.costs.transmission(payload_sent(&request));
            let nic = &mut self.nodes[usize::from(initiator.0)].nic;
            let sent = nic.issue(self.now, service, transmission);
            if begins {
                fresh.push(self.begin_leg(lane, target, batch, verb as u32, sent));
            }
        }
        let ready = self.cpu_time();
        let legs = fresh.len() as u32;
        self.batches.insert(Batch { lane, token, work, legs, done: ready });
        fresh.iter().for_each(|leg| self.depart(leg, ready));
        if legs == 0 {
            self.queue.push(ready, Event::Completed(batch));
        }
        fresh.clear();
        self.fresh = fresh;
    }

    /// Checks that the lane's connection takes verbs.
    #[inline]
    fn admits(&self, lane: u32, target: NodeId) -> Result<(), VerbError> {
        let id = self.connection_to(lane, target).ok_or(VerbError::Unreachable)?;
        self.connections[id as usize].refusal.map_or(Ok(()), Err)
    }

    /// Appends a leg of a batch to the leg's connection, which must take verbs.
    #[inline]
    fn begin_leg(
        &mut self,
        lane: u32,
        target: NodeId,
        batch: u32,
        verb: u32,
        arrival: Picos,
    ) -> FreshLeg {
        self.charge(self.costs.cpu.doorbell);
        let id = self.connection_to(lane, target).expect("it takes verbs");
        let (kind, next, first) = (FlightKind::Verbs(batch), NONE, verb);
        let (deadline, answered) = (0, 0);
        let leg = self.append(id, Leg { next, kind, first, verb, arrival, deadline, answered });
        FreshLeg { target, id, leg }
    }

    /// Lets a leg leave the initiator's NIC, at `ready` at the earliest.
    #[inline]
    fn depart(&mut self, &FreshLeg { id, leg, .. }: &FreshLeg, ready: Picos) {
        let travel = self.travel();
        let held_up = self.draw_delay();
        let timeout = self.timeout;
        let entry = &mut self.legs[leg as usize];
        let arrival = entry.arrival.max(ready) + travel;
        entry.arrival = arrival.saturating_add(held_up);
        entry.deadline = arrival.saturating_add(timeout);
        if self.connection(id).head == leg {
            self.start_head(id);
        }
    }

    #[inline]
    fn draw_delay(&mut self) -> Picos {
        if !self.chances.verb_delay.strikes(&mut self.random.verbs) {
            return 0;
        }
        self.counts.verbs_delayed += 1;
        self.random.verbs.random_range(0..=picos(self.chances.rates.verb_delay_max))
    }

    /// Carries out a batch at once, while no world runs and no time passes.
    #[cold]
    fn post_outside(&mut self, lane: u32, token: Token, mut work: Box<Work>) {
        for verb in 0..work.requests().len() {
            let request = work.requests()[verb];
            let target = request.addr.node();
            if !work.has_failed(target)
                && let Err(error) = self.apply_outside(lane, &request, &mut work)
            {
                work.fail(verb, error);
            }
        }
        self.lanes[lane as usize].inbox.completed.push((token, work));
    }

    fn apply_outside(
        &self,
        lane: u32,
        request: &WorkRequest,
        work: &mut Work,
    ) -> Result<(), VerbError> {
        let node = self.reached_outside(lane, request.addr.node())?;
        node.regions.apply(request, work).map(drop)
    }

    /// Returns node `target` as reached by a lane while no world runs. A lane opened before a crash
    /// of the lane's node reaches no node; a lane opened later does, for audits, which act as some
    /// node.
    fn reached_outside(&self, lane: u32, target: NodeId) -> Result<&SimNode, VerbError> {
        let lane = &self.lanes[lane as usize];
        if lane.life != self.nodes[usize::from(lane.at.node.0)].life {
            return Err(VerbError::Unreachable);
        }
        let target = self.nodes.get(usize::from(target.0));
        let node = target.filter(|node| node.up).ok_or(VerbError::Unreachable)?;
        match node.fences[usize::from(lane.at.node.0)] > lane.epoch {
            true => Err(VerbError::Revoked),
            false => Ok(node),
        }
    }

    /// Queues a reconnect behind earlier verbs.
    pub(super) fn reconnect(&mut self, lane: u32, token: Token, target: NodeId) {
        if self.turn.core.is_none() {
            let outcome = self.reached_outside(lane, target).map(drop);
            return self.lanes[lane as usize].inbox.reconnected.push((token, outcome));
        }
        let Some(id) = self.connection_to(lane, target) else {
            let key = self.reconnects.insert((lane, token, Err(VerbError::Unreachable))) as u32;
            return self.queue.push(self.cpu_time(), Event::Reconnected(key));
        };
        self.charge(self.costs.cpu.doorbell);
        let arrival = self.cpu_time() + self.travel();
        let deadline = arrival.saturating_add(self.timeout);
        let kind = FlightKind::Reconnect(token);
        let (next, first, verb, answered) = (NONE, 0, 0, 0);
        let leg = self.append(id, Leg { next, kind, first, verb, arrival, deadline, answered });
        if self.connection(id).head == leg {
            self.start_head(id);
        }
    }

    /// Returns the current verb of the connection's first leg.
    #[inline]
    pub(super) fn current(&mut self, id: u32, batch: u32) -> WorkRequest {
        let verb = self.head(id).verb;
        self.batches[batch as usize].work.requests()[verb as usize]
    }

    /// Passes a verb, or the whole leg, to the target's NIC.
    #[inline]
    pub(super) fn serve_verbs(&mut self, id: u32, batch: u32) {
        let ends = self.ends(id);
        let together = self.interleaving == Interleaving::PerBatch;
        let (mut clock, mut takes_verbs) = (self.now, false);
        loop {
            let request = self.current(id, batch);
            let nic = &mut self.nodes[usize::from(ends.target.0)].nic;
            let Service { start, end } = nic.serve(clock, &request, &self.costs);
            self.connection(id).served = end;
            if start > self.now && !together {
                self.connection(id).phase = Phase::Queued;
                return self.schedule(id, start);
            }
            // Checked only once: no other event happens at this moment.
            takes_verbs = takes_verbs || self.takes_verbs(id, ends);
            if !takes_verbs || !self.take_effect(id, ends, batch, &request) {
                return;
            }
            let Some(Next { arrival, waited }) = self.next_verb(id, ends, batch, &request) else {
                return self.answer(id);
            };
            // If the verb waited, the target serves other verbs in between.
            if (waited || !together) && !self.has_arrived(arrival) {
                return self.travel_on(id, arrival);
            }
            clock = arrival.max(start);
        }
    }

    /// Carries out the current verb at the start of service.
    #[inline]
    pub(super) fn leave_queue(&mut self, id: u32) {
        let FlightKind::Verbs(batch) = self.head(id).kind else { unreachable!("only verbs queue") };
        let (request, ends) = (self.current(id, batch), self.ends(id));
        if self.takes_verbs(id, ends) && self.take_effect(id, ends, batch, &request) {
            self.go_on(id, ends, batch, &request);
        }
    }

    /// Proceeds to the next verb, or to the answer.
    #[inline]
    fn go_on(&mut self, id: u32, ends: Ends, batch: u32, request: &WorkRequest) {
        match self.next_verb(id, ends, batch, request) {
            None => self.answer(id),
            Some(next) if self.has_arrived(next.arrival) => self.serve_verbs(id, batch),
            Some(next) => self.travel_on(id, next.arrival),
        }
    }

    /// Whether the next verb is served at once. False if a fault is due after the previous verb.
    #[inline]
    fn has_arrived(&self, arrival: Picos) -> bool {
        arrival <= self.now && self.interrupted_at != self.now
    }

    #[inline]
    fn travel_on(&mut self, id: u32, arrival: Picos) {
        self.connection(id).phase = Phase::Travelling;
        self.schedule(id, arrival.max(self.now));
    }

    /// Whether the target takes the connection's verbs. Breaks the connection if not.
    #[inline]
    fn takes_verbs(&mut self, id: u32, ends: Ends) -> bool {
        let node = &self.nodes[usize::from(ends.target.0)];
        if !node.up || node.life != self.connections[id as usize].life {
            self.give_up(id, VerbError::Unreachable);
            return false;
        }
        let epoch = self.lanes[ends.lane as usize].epoch;
        if node.fences[usize::from(ends.initiator.0)] > epoch {
            self.break_connection(id, VerbError::Revoked);
            return false;
        }
        true
    }

    /// Carries out the current verb. Returns false if the connection broke or the verb is torn.
    #[inline]
    fn take_effect(&mut self, id: u32, ends: Ends, batch: u32, request: &WorkRequest) -> bool {
        let Ends { lane, initiator, target } = ends;
        if self.draw_tear(request) && node_resolves(self, target, request) {
            self.begin_tear(id, request);
            return false;
        }
        let work = &mut self.batches[batch as usize].work;
        match self.nodes[usize::from(target.0)].regions.apply(request, work) {
            Ok(found) => {
                self.hash.add(request.addr.offset() ^ u64::from(id) << 40);
                self.hash.add(found);
                self.count_verb(initiator);
                let from = self.lanes[lane as usize].at;
                self.trace(TraceEventKind::Applied { from, request });
                true
            }
            Err(error) => {
                self.break_connection(id, error);
                false
            }
        }
    }

    #[inline]
    fn count_verb(&mut self, initiator: NodeId) {
        let node = &mut self.nodes[usize::from(initiator.0)];
        node.verbs += 1;
        if node.verbs >= node.verbs_due {
            self.counted_faults(initiator);
        }
    }

    /// Records the answer time of the current verb and moves on to the leg's next verb. `None`
    /// after the last verb.
    #[inline]
    fn next_verb(
        &mut self,
        id: u32,
        ends: Ends,
        batch: u32,
        request: &WorkRequest,
    ) -> Option<Next> {
        let Ends { initiator, target, .. } = ends;
        let answered = self.answered(id, request, initiator, target);
        self.note_answer(id, request, answered);
        let head = self.connections[id as usize].head as usize;
        let requests = self.batches[batch as usize].work.requests();
        let leg = &mut self.legs[head];
        leg.answered = leg.answered.max(answered);
        let rest = &requests[leg.verb as usize + 1..];
        let ahead = rest.iter().position(|request| request.addr.node() == target)?;
        leg.verb += ahead as u32 + 1;
        let next = &rest[ahead];
        let nic = &self.nodes[usize::from(initiator.0)].nic;
        let gap = gap_before(next, nic, &self.costs);
        leg.arrival = leg.arrival.saturating_add(gap);
        leg.deadline = leg.deadline.saturating_add(gap);
        let waited = self.hold_back(id);
        Some(Next { arrival: self.legs[head].arrival, waited })
    }

    /// Returns the time at which a verb's answer reaches the initiator, without jitter.
    #[inline]
    fn answered(
        &mut self,
        id: u32,
        request: &WorkRequest,
        initiator: NodeId,
        target: NodeId,
    ) -> Picos {
        let served = self.connections[id as usize].served.max(self.now);
        if request.kind() == VerbKind::Write {
            // Acknowledgements are small and coalesced.
            return served + self.costs.delay;
        }
        let transmission = self.costs.transmission(request.bytes());
        let sent = self.nodes[usize::from(target.0)].nic.reply(served, transmission);
        let arrives = sent + self.costs.delay;
        self.nodes[usize::from(initiator.0)].nic.receive(arrives, transmission)
    }

    /// Records that a leg of a batch is done at `at`.
    #[inline]
    pub(super) fn finish_leg(&mut self, batch: u32, at: Picos) {
        let entry = &mut self.batches[batch as usize];
        entry.done = entry.done.max(at);
        entry.legs -= 1;
        if entry.legs == 0 {
            self.queue.push(entry.done, Event::Completed(batch));
        }
    }

    /// Reports a finished batch to the lane.
    #[inline]
    pub(super) fn complete(&mut self, batch: u32) {
        let Batch { lane, token, work, .. } = self.batches.remove(batch as usize);
        let lane = &mut self.lanes[lane as usize];
        if !lane.open {
            return;
        }
        let (at, core) = (lane.at, lane.core);
        let (verbs, failed) = (work.requests().len(), !work.failures().is_empty());
        lane.inbox.completed.push((token, work));
        self.trace(TraceEventKind::Completed { at, verbs, failed });
        self.wake_core(core);
    }
}

/// Torn verbs.
impl State {
    #[inline]
    fn draw_tear(&mut self, request: &WorkRequest) -> bool {
        let chance = match request.op {
            _ if request.bytes() <= WORD_BYTES => return false,
            Op::Write => self.chances.torn_writes,
            // READs stay whole if lanes have declared stable READs.
            Op::Read | Op::ReadStable if self.reads_may_tear => self.chances.torn_reads,
            _ => return false,
        };
        chance.strikes(&mut self.random.tears)
    }

    #[cold]
    fn begin_tear(&mut self, id: u32, request: &WorkRequest) {
        let words = request.bytes() / WORD_BYTES;
        match request.op {
            Op::Write => self.counts.writes_torn += 1,
            _ => self.counts.reads_torn += 1,
        }
        let mut tear = self.connection(id).tear.take().unwrap_or_default();
        tear.order.clear();
        tear.order.extend(0..words as u16);
        tear.order.shuffle(&mut self.random.tears);
        tear.done = 0;
        tear.piece = words.div_ceil(MAX_PIECES);
        tear.gap = picos(self.chances.rates.tear_span) / words.min(MAX_PIECES) as u64;
        let connection = self.connection(id);
        connection.tear = Some(tear);
        connection.phase = Phase::Tearing;
        let from = self.lanes[self.ends(id).lane as usize].at;
        self.trace(TraceEventKind::Torn { from, request });
        self.go_on_tearing(id);
    }

    /// Lands the next piece of the current verb.
    #[cold]
    pub(super) fn go_on_tearing(&mut self, id: u32) {
        let ends = self.ends(id);
        let node = &self.nodes[usize::from(ends.target.0)];
        if !node.up || node.life != self.connection(id).life {
            return self.give_up(id, VerbError::Unreachable);
        }
        let tear = self.connection(id).tear.as_ref().expect("the verb is torn");
        let (piece, gap) = (tear.piece, tear.gap);
        if !self.land(id, piece) {
            let wait = self.random.tears.random_range(0..=gap);
            return self.schedule(id, self.now.saturating_add(wait));
        }
        let FlightKind::Verbs(batch) = self.head(id).kind else {
            unreachable!("only verbs are torn")
        };
        let request = self.current(id, batch);
        let from = self.lanes[ends.lane as usize].at;
        self.count_verb(ends.initiator);
        self.trace(TraceEventKind::Applied { from, request: &request });
        self.go_on(id, ends, batch, &request);
    }

    /// Length of the torn verb, in bytes.
    pub(super) fn landing_bytes(&mut self, id: u32) -> usize {
        let tear = self.connection(id).tear.as_ref();
        tear.map_or(0, |tear| tear.order.len() * WORD_BYTES)
    }

    /// Lands up to `count` further words of a torn verb. Returns whether the whole verb has landed.
    pub(super) fn land(&mut self, id: u32, count: usize) -> bool {
        let FlightKind::Verbs(batch) = self.head(id).kind else {
            unreachable!("only verbs are torn")
        };
        let request = self.current(id, batch);
        let regions = &self.nodes[usize::from(request.addr.node().0)].regions;
        let work = &mut self.batches[batch as usize].work;
        let connection = &mut self.connections[id as usize];
        let tear = connection.tear.as_mut().expect("the verb is torn");
        let landing = tear.order[tear.done..].iter().take(count);
        for word in landing {
            regions.apply_word(&request, work, usize::from(*word));
            tear.done += 1;
        }
        self.hash.add(tear.done as u64);
        tear.done == tear.order.len()
    }
}

/// Whether the verb is allowed and within a region of the target.
fn node_resolves(state: &State, target: NodeId, request: &WorkRequest) -> bool {
    state.nodes[usize::from(target.0)].regions.resolve(request).is_ok()
}
