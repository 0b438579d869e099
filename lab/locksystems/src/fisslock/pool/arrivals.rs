//! Packets that arrive at a machine.
//!
//! A packet is acknowledged to its origin when the packet takes effect here, with two exceptions. A
//! packet forwarded because the agent is absent, or parked until the agent arrives, is acknowledged
//! at once: this machine repeats the packet from then on. A shared grant of the switch that waits
//! for an agent is acknowledged when the agent has counted the grant, so that no machine has more
//! than one such grant in flight.

use lotus_locks::word::Mode;

use super::super::decider::acknowledgement;
use super::super::packet::{Kind, Packet, Participant};
use super::super::rules::{MAX_TRIES, Numbering};
use super::{AgentPool, Effects, Hosted, Parked, Progress, TaskNotice, is_stale};

impl AgentPool {
    /// Handles a packet from the switch.
    pub fn receive(&mut self, packet: Packet, now: u64, out: &mut Effects) {
        if packet.epoch != self.epoch {
            return;
        }
        if packet.kind == Kind::Ack {
            return self.acknowledged(&packet, now, out);
        }
        let is_own = packet.origin.machine == self.machine;
        if packet.refused {
            return self.refused(&packet, now, out);
        }
        if is_own && self.under_way(&packet).is_none() {
            // The packet answers a packet that was already acknowledged.
            return;
        }
        let channel = self.channel(packet.lock, packet.origin);
        let is_first = is_own
            || self.rules.numbering == Numbering::Ignored
            || self.inboxes.entry(channel).or_default().is_first(packet.sequence);
        if self.is_parked(&packet) {
            return;
        }
        if !is_first {
            return self.acknowledge(&packet, now, out);
        }
        self.dispatch(packet, now, out);
    }

    fn dispatch(&mut self, packet: Packet, now: u64, out: &mut Effects) {
        match packet.kind {
            Kind::Grant if packet.agent.is_some() => self.install(packet, now, out),
            Kind::Grant => self.granted(&packet, now, out),
            Kind::Refuse => {
                self.acknowledge(&packet, now, out);
                self.refused_task(packet.lock, packet.who, now, out);
            }
            Kind::Acquire | Kind::Release => self.for_agent(packet, now, out),
            // These packets end at the switch.
            Kind::Free | Kind::Starve | Kind::Ack => {}
        }
    }

    /// Handles ACQUIRE or RELEASE for the agent of the packet's lock.
    pub(super) fn for_agent(&mut self, packet: Packet, now: u64, out: &mut Effects) {
        match self.hosted.get_mut(&packet.lock) {
            Some(Hosted::Here(_)) => {
                self.acknowledge(&packet, now, out);
                self.at_agent(&packet, now, out);
            }
            Some(Hosted::Leaving { parked, .. }) => {
                parked.push(Parked { packet: packet.clone(), since: now });
                self.acknowledge_parked(&packet, now, out);
            }
            _ => self.without_agent(packet, now, out),
        }
    }

    /// Handles a packet for an absent agent. If the switch has granted the lock to the packet's
    /// task, the task keeps the agent in place, so the agent is on its way here. Otherwise the
    /// agent may be elsewhere, and the packet goes back to the switch.
    fn without_agent(&mut self, packet: Packet, now: u64, out: &mut Effects) {
        let (lock, is_release) = (packet.lock, packet.kind == Kind::Release);
        if !(packet.granted && self.rules.withdraws) && packet.tries < MAX_TRIES {
            self.acknowledge(&packet, now, out);
            let again = Packet { tries: packet.tries + 1, ..packet };
            self.send_as_agent(out.core, again, now, out);
            return;
        }
        if is_release && !packet.granted {
            // The task will be granted the lock at some time, and will answer the grant.
            return self.acknowledge(&packet, now, out);
        }
        let absent = self.hosted.entry(lock).or_insert(Hosted::Absent { parked: Vec::new() });
        if let Hosted::Absent { parked } = absent {
            self.absent.insert(lock);
            parked.push(Parked { packet: packet.clone(), since: now });
        }
        self.acknowledge_parked(&packet, now, out);
    }

    fn acknowledge_parked(&mut self, packet: &Packet, now: u64, out: &mut Effects) {
        if !is_switch_grant(packet) {
            self.acknowledge(packet, now, out);
        }
    }

    /// Returns whether a packet waits here for its agent, unacknowledged.
    fn is_parked(&self, packet: &Packet) -> bool {
        let (Some(Hosted::Leaving { parked, .. }) | Some(Hosted::Absent { parked })) =
            self.hosted.get(&packet.lock)
        else {
            return false;
        };
        let is_it = |other: &Parked| other.packet.id() == packet.id();
        is_switch_grant(packet) && parked.iter().any(is_it)
    }

    /// Processes an acknowledged packet at its agent.
    pub(super) fn at_agent(&mut self, packet: &Packet, now: u64, out: &mut Effects) {
        let (lock, who) = (packet.lock, packet.who);
        let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock) else { return };
        if packet.kind == Kind::Acquire {
            if packet.granted {
                agent.count(who);
            } else {
                let asked = agent.ask(who, packet.mode, self.preference);
                self.asked(asked, lock, who, packet.mode, now, out);
            }
        } else if packet.absent {
            agent.release_published(who);
        } else if packet.granted {
            agent.release(who);
        } else if agent.withdraw(who) {
            self.refuse(lock, who, packet.mode, now, out);
        }
        self.settle(lock, now, out);
    }

    /// Handles a grant without an agent, from the switch or from the agent.
    fn granted(&mut self, packet: &Packet, now: u64, out: &mut Effects) {
        let (lock, who) = (packet.lock, packet.who);
        // The agent's machine acknowledges grants of the switch; such a grant then comes twice.
        let is_switch = packet.origin.machine == self.machine;
        if !is_switch {
            self.acknowledge(packet, now, out);
        }
        self.granted_elsewhere(lock, who, packet.mode, is_switch, now, out);
    }

    /// Handles the grant of a lock whose agent is elsewhere. A task that no longer wants the lock
    /// answers by RELEASE, once (I312).
    fn granted_elsewhere(
        &mut self,
        lock: u32,
        who: Participant,
        mode: Mode,
        is_switch: bool,
        now: u64,
        out: &mut Effects,
    ) {
        let is_known = self.at_switch.get(&(lock, who)).is_some_and(|state| state.answered);
        if is_switch && is_known {
            return;
        }
        if !self.grant(lock, who, now, out) && self.rules.withdraws {
            self.leave(lock, who, mode, now, out);
        }
    }

    /// Handles the departure of a holder of this machine: the agent is told, through the switch if
    /// the agent is not here.
    pub(super) fn leave(
        &mut self,
        lock: u32,
        who: Participant,
        mode: Mode,
        now: u64,
        out: &mut Effects,
    ) {
        if let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock) {
            agent.release(who);
            return self.settle(lock, now, out);
        }
        let packet = Packet::new(Kind::Release, lock, who, mode);
        self.request(Packet { granted: true, ..packet }, now, out);
    }

    /// Returns the packet of this machine to which an answer belongs, if the packet is in flight.
    fn under_way(&self, answer: &Packet) -> Option<&Packet> {
        self.outboxes.get(&self.channel(answer.lock, answer.origin))?.under_way(answer.sequence)
    }

    /// Removes a packet of this machine from the packets to be repeated.
    pub(super) fn take(&mut self, answer: &Packet, now: u64, out: &mut Effects) -> Option<Packet> {
        let outbox = self.outboxes.get_mut(&self.channel(answer.lock, answer.origin))?;
        outbox.acknowledge(answer.sequence, now, &mut out.packets)
    }

    /// Tells the origin of a packet that the packet has arrived.
    pub(super) fn acknowledge(&mut self, packet: &Packet, now: u64, out: &mut Effects) {
        let acknowledgement = acknowledgement(packet);
        if packet.origin.machine == self.machine {
            self.acknowledged(&acknowledgement, now, out);
        } else {
            out.packets.push(acknowledgement);
        }
    }

    /// Handles the acknowledgement of a packet of this machine.
    fn acknowledged(&mut self, answer: &Packet, now: u64, out: &mut Effects) {
        let Some(packet) = self.take(answer, now, out) else { return };
        let (lock, who) = (packet.lock, packet.who);
        match packet.kind {
            Kind::Acquire if packet.tries == 0 => {
                if answer.granted {
                    self.granted_elsewhere(lock, who, packet.mode, true, now, out);
                } else {
                    self.queued(lock, who, out);
                }
                self.at_switch_is(lock, who, |state| state.acknowledged = true, now, out);
            }
            Kind::Free | Kind::Grant => self.left(lock, packet.id(), now, out),
            _ => {}
        }
    }

    /// Handles the refusal of a request of this machine: the request is in no queue.
    pub(super) fn refused_task(
        &mut self,
        lock: u32,
        who: Participant,
        now: u64,
        out: &mut Effects,
    ) {
        let key = (lock, who);
        match self.wanted.get(&key).map(|wanted| wanted.progress) {
            Some(Progress::Waits) => {
                self.wanted.remove(&key);
                out.told.push(TaskNotice::Refused(lock, who.task));
            }
            Some(Progress::GivenUp) => {
                self.wanted.remove(&key);
            }
            // As published, an earlier request of the task may be meant.
            Some(Progress::Holds | Progress::Local) | None => {}
        }
        self.answered(lock, who, now, out);
    }

    /// Refuses requests that have waited too long for an absent agent.
    pub(super) fn refuse_stale(&mut self, now: u64, out: &mut Effects) {
        let mut stale = Vec::new();
        for lock in std::mem::take(&mut self.absent) {
            let Some(Hosted::Absent { parked }) = self.hosted.get_mut(&lock) else { continue };
            let is_over = |parked: &mut Parked| !parked.packet.granted && is_stale(parked, now);
            stale.extend(parked.extract_if(.., is_over).map(|parked| parked.packet));
            if parked.is_empty() {
                self.hosted.remove(&lock);
            } else {
                self.absent.insert(lock);
            }
        }
        for packet in stale {
            self.refuse(packet.lock, packet.who, packet.mode, now, out);
        }
    }
}

/// Returns whether a packet tells an agent of a grant made by the switch.
const fn is_switch_grant(packet: &Packet) -> bool {
    matches!(packet.kind, Kind::Acquire) && packet.granted
}
