//! Arrival and departure of a machine's agents.

use lotus_locks::word::Mode;

use super::super::agent::{Agent, NextOwner};
use super::super::packet::{Kind, Origin, Packet, Participant};
use super::super::rules::Preference;
use super::{AGENT_CORE, AgentPool, Effects, Hosted, Parked};

impl AgentPool {
    /// Handles a grant with an agent: the agent is hosted here, packets parked for the agent are
    /// processed, and readers share the lock.
    pub(super) fn install(&mut self, packet: Packet, now: u64, out: &mut Effects) {
        let (lock, who) = (packet.lock, packet.who);
        if !self.rules.withdraws && !self.wanted.contains_key(&(lock, who)) {
            // As published: the task has sent RELEASE.
            return self.acknowledge(&packet, now, out);
        }
        let parked = match self.hosted.remove(&lock) {
            Some(Hosted::Leaving { parked, .. } | Hosted::Absent { parked }) => parked,
            Some(Hosted::Here(_)) | None => Vec::new(),
        };
        // The agent is installed first, so that the effects of the acknowledgement find the agent.
        if let Some(carried) = packet.agent.clone() {
            self.hosted.insert(lock, Hosted::Here(Agent::arrived(carried, who)));
            self.note_waiters(lock);
        }
        self.acknowledge(&packet, now, out);
        // If the first holder reads, other readers may join, although the switch has the lock as
        // exclusive.
        if self.is_home(lock)
            && let Some(wanted) = self.wanted.get(&(lock, who))
            && let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock)
        {
            agent.mode = wanted.mode;
        }
        self.hear_parked(parked, now, out);
        if !self.grant(lock, who, now, out)
            && let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock)
        {
            agent.release(who);
        }
        self.share(lock, now, out);
        self.ask_local(lock, now, out);
        self.prefer_writers(lock, now, out);
        self.settle(lock, now, out);
    }

    /// Processes packets parked for an agent that has arrived. The agent cannot leave in the
    /// meantime: its first holder stays until every packet is counted.
    fn hear_parked(&mut self, parked: Vec<Parked>, now: u64, out: &mut Effects) {
        for Parked { packet, .. } in parked {
            if packet.kind == Kind::Acquire && packet.granted {
                self.acknowledge(&packet, now, out);
            }
            self.at_agent(&packet, now, out);
        }
    }

    /// Shares a lock held in shared mode with the waiting readers.
    fn share(&mut self, lock: u32, now: u64, out: &mut Effects) {
        let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock) else { return };
        for who in agent.share(self.preference) {
            self.grant_holder(lock, who, now, out);
        }
    }

    /// Tells a task that the agent has admitted it as a holder.
    pub(super) fn grant_holder(
        &mut self,
        lock: u32,
        who: Participant,
        now: u64,
        out: &mut Effects,
    ) {
        if who.machine != self.machine {
            let mode = self.agent(lock).map_or(Mode::Shared, |agent| agent.mode);
            let packet = Packet::new(Kind::Grant, lock, who, mode);
            self.send_as_agent(out.core, packet, now, out);
        } else if !self.grant(lock, who, now, out)
            && let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock)
        {
            agent.release(who);
        }
    }

    /// Tells a task that its request is in no queue.
    pub(super) fn refuse(
        &mut self,
        lock: u32,
        who: Participant,
        mode: Mode,
        now: u64,
        out: &mut Effects,
    ) {
        if who.machine == self.machine {
            return self.refused_task(lock, who, now, out);
        }
        self.send_as_agent(out.core, Packet::new(Kind::Refuse, lock, who, mode), now, out);
    }

    /// Lets the agent go if the last holder has left: to the next waiter, or nowhere. The agent is
    /// kept until the switch has agreed.
    pub(super) fn settle(&mut self, lock: u32, now: u64, out: &mut Effects) {
        let is_home = self.is_home(lock);
        let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock) else { return };
        if is_home {
            let holders = agent.stay(self.preference);
            if agent.is_resting() {
                return;
            }
            if !holders.is_empty() {
                for who in holders {
                    self.grant_holder(lock, who, now, out);
                }
                self.prefer_writers(lock, now, out);
                // Every new holder may have given up.
                return self.settle(lock, now, out);
            }
        }
        let Some(Hosted::Here(agent)) = self.hosted.get(&lock) else { return };
        let (next, agent) = (agent.next(), agent.clone());
        let (old_mode, incarnation) = (agent.at_switch, agent.incarnation);
        let packet = match next {
            NextOwner::Stays => return,
            NextOwner::Free => {
                let nobody = Participant { machine: self.machine, task: 0, nonce: 0 };
                Packet::new(Kind::Free, lock, nobody, old_mode)
            }
            NextOwner::Moves(first, carried) => {
                let packet = Packet::new(Kind::Grant, lock, first.who, first.mode);
                Packet { agent: Some(carried), ..packet }
            }
        };
        let is_free = packet.kind == Kind::Free;
        let packet = Packet { old_mode, incarnation, ..packet };
        // On the channel of an earlier STARVE, so that the packet stays behind the STARVE.
        let core = if agent.starving { AGENT_CORE } else { out.core };
        let by = self.send_as_agent(core, packet, now, out);
        if is_free && !self.rules.keeps_freed {
            self.hosted.remove(&lock);
        } else {
            self.hosted.insert(lock, Hosted::Leaving { agent, by, parked: Vec::new() });
        }
    }

    /// Returns whether the agent of a lock is about to leave by a given packet.
    fn leaves_by(&self, lock: u32, packet: (Origin, u64)) -> bool {
        match self.hosted.get(&lock) {
            Some(Hosted::Leaving { by, .. }) => *by == packet,
            _ => false,
        }
    }

    /// Handles the switch's consent to an agent's departure by a given packet. Packets parked for
    /// the agent are sent after the agent.
    pub(super) fn left(&mut self, lock: u32, packet: (Origin, u64), now: u64, out: &mut Effects) {
        if !self.leaves_by(lock, packet) {
            return;
        }
        if let Some(Hosted::Leaving { parked, .. }) = self.hosted.remove(&lock) {
            for Parked { packet, .. } in parked {
                self.for_agent(packet, now, out);
            }
        }
        self.ask_local(lock, now, out);
    }

    /// Handles the switch's refusal to let an agent go: shared grants are in flight to the agent.
    pub(super) fn refused(&mut self, answer: &Packet, now: u64, out: &mut Effects) {
        if self.take(answer, now, out).is_none() {
            return;
        }
        let lock = answer.lock;
        if !self.leaves_by(lock, answer.id()) {
            return;
        }
        if let Some(Hosted::Leaving { mut agent, parked, .. }) = self.hosted.remove(&lock) {
            agent.refused_at = Some(agent.incarnation);
            // The switch has cleared the preference bits.
            agent.starving = false;
            self.hosted.insert(lock, Hosted::Here(agent));
            self.note_waiters(lock);
            for Parked { packet, .. } in parked {
                self.for_agent(packet, now, out);
            }
        }
        self.ask_local(lock, now, out);
        self.prefer_writers(lock, now, out);
        self.settle(lock, now, out);
    }

    /// Makes the switch stop granting shared requests of a lock while a writer waits.
    pub(super) fn look_for_writers(&mut self, lock: u32, now: u64, out: &mut Effects) {
        let Some(Hosted::Here(agent)) = self.hosted.get_mut(&lock) else { return };
        if agent.mode != Mode::Shared || agent.starving || !agent.has_writer() {
            return;
        }
        agent.starving = true;
        if agent.at_switch != Mode::Shared {
            // The switch grants no shared requests anyway.
            return;
        }
        let nobody = Participant { machine: self.machine, task: 0, nonce: 0 };
        let packet = Packet::new(Kind::Starve, lock, nobody, Mode::Shared);
        self.send_as_agent(AGENT_CORE, packet, now, out);
    }

    /// Does the same as [`Self::look_for_writers`] for an agent that has just come, if writers are
    /// preferred.
    pub(super) fn prefer_writers(&mut self, lock: u32, now: u64, out: &mut Effects) {
        if self.preference == Preference::Writers {
            self.look_for_writers(lock, now, out);
        }
    }
}
