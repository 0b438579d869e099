//! The effect of each fault on the state.

use super::connection::Phase;
use super::faults::{Chances, Fault, MAX_CLOCK_PPM, MemoryFate, When};
use super::queue::{Event, picos};
use super::state::{NONE, Next, SimNode, State};
use super::trace::TraceEventKind;
use crate::contract::ids::{Epoch, NodeId};

/// Payload of a packet of a reliable connection, for a common packet size.
const PACKET_BYTES: usize = 1024;

impl State {
    /// Arms the schedule: events for fixed times, and thresholds for counts.
    pub(super) fn arm_schedule(&mut self) {
        for entry in 0..self.schedule.len() {
            if let When::At(at) = self.schedule[entry].when {
                self.queue.push(picos(at), Event::Fault(entry as u32));
            }
        }
        for node in 0..self.nodes.len() {
            self.arm_counts(NodeId(node as u16));
        }
    }

    /// Sets the counts of a node at which the next faults are due.
    fn arm_counts(&mut self, of: NodeId) {
        let schedule = &self.schedule;
        let node = &mut self.nodes[usize::from(of.0)];
        let next = |count_of: &dyn Fn(When) -> Option<u64>, passed: u64| {
            let counts = schedule.iter().filter_map(|entry| count_of(entry.when));
            counts.filter(|count| *count > passed).min().unwrap_or(u64::MAX)
        };
        node.verbs_due = next(&|when| verbs_of(when, of), node.verbs);
        node.messages_due = next(&|when| messages_of(when, of), node.messages);
    }

    /// Schedules the faults due at a count just reached by a node.
    #[cold]
    pub(super) fn counted_faults(&mut self, of: NodeId) {
        let SimNode { verbs, messages, verbs_due, messages_due, .. } =
            self.nodes[usize::from(of.0)];
        let reached = |count: Option<u64>, due: u64, now: u64| count == Some(due) && due <= now;
        for (entry, scheduled) in self.schedule.iter().enumerate() {
            let when = scheduled.when;
            if reached(verbs_of(when, of), verbs_due, verbs)
                || reached(messages_of(when, of), messages_due, messages)
            {
                self.queue.push(self.now, Event::Fault(entry as u32));
            }
        }
        self.interrupted_at = self.now;
        self.arm_counts(of);
    }

    /// Carries out a fault. Returns crashes and restarts to the world, which carries them out.
    pub(super) fn inject(&mut self, fault: &Fault) -> Option<Next> {
        self.trace(TraceEventKind::Fault(fault));
        let counts = &mut self.counts;
        match *fault {
            Fault::Cut { from, to } => {
                counts.cuts += 1;
                self.node(from).paths[usize::from(to.0)].cut = true;
            }
            Fault::Mend { from, to } => self.node(from).paths[usize::from(to.0)].cut = false,
            Fault::Isolate { node } => {
                counts.cuts += 1;
                self.node(node).isolated = true;
            }
            Fault::Rejoin { node } => self.node(node).isolated = false,
            Fault::Stall { from, to, lasting } => {
                counts.stalls += 1;
                let until = self.now.saturating_add(picos(lasting));
                let stalled = &mut self.node(from).paths[usize::from(to.0)].stalled_until;
                *stalled = until.max(*stalled);
            }
            Fault::Pause { node, lasting } => {
                counts.pauses += 1;
                let until = self.now.saturating_add(picos(lasting));
                let paused = &mut self.node(node).paused_until;
                *paused = until.max(*paused);
            }
            Fault::SlowNic { node, percent } => {
                counts.slowdowns += 1;
                self.node(node).nic.percent = percent;
            }
            Fault::SlowCores { node, percent } => {
                counts.slowdowns += 1;
                let node = self.node(node);
                // A switch's pipeline has no core to slow down.
                node.core_percent = if node.is_switch { 0 } else { percent };
            }
            Fault::ClockJump { node, nanos } => {
                counts.clock_jumps += 1;
                self.set_time(self.now);
                self.node(node).clock.jump(nanos);
                // The jump changes the world times at which the cores' timers are due.
                self.wake_cores_of(node);
            }
            Fault::ClockRate { node, ppm } => {
                counts.clock_rates += 1;
                self.set_time(self.now);
                self.node(node).clock.set_rate(ppm.clamp(-MAX_CLOCK_PPM, MAX_CLOCK_PPM));
                self.wake_cores_of(node);
            }
            Fault::SetRates(ref rates) => self.chances = Chances::new(rates.clone()),
            Fault::Disarm => {
                for node in &mut self.nodes {
                    (node.verbs_due, node.messages_due) = (u64::MAX, u64::MAX);
                }
            }
            Fault::Crash { node, memory } => return Some(Next::Crash(node, memory)),
            Fault::Restart { node } => return Some(Next::Restart(node)),
        }
        None
    }

    fn wake_cores_of(&mut self, node: NodeId) {
        for core in 0..self.cores.len() {
            if self.cores[core].node == node {
                self.wake_core(core as u32);
            }
        }
    }

    /// Crashes a node after its executors were dropped.
    pub(super) fn crash(&mut self, id: NodeId, memory: MemoryFate) {
        self.counts.crashes += 1;
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].at.node == id && self.lanes[lane].core != NONE {
                let nodes = self.nodes.len();
                let first = lane * nodes;
                for conn in first as u32..(first + nodes) as u32 {
                    self.finish_packet(conn);
                    self.abandon_connection(conn);
                }
                self.lanes[lane].core = NONE;
            }
        }
        let node = self.node(id);
        node.up = false;
        node.life += 1;
        if memory == MemoryFate::Lost {
            let lost = node.regions.lose();
            // Fences are state of the process, like memory (I183).
            node.fences.fill(Epoch(0));
            self.bytes -= lost;
        }
    }

    /// Completes a torn verb of a crashing sender, unless the verb is longer than a packet: a NIC
    /// places the data of a packet as a whole, or not at all.
    fn finish_packet(&mut self, conn: u32) {
        if self.connection(conn).phase == Phase::Tearing && self.landing_bytes(conn) <= PACKET_BYTES
        {
            self.land(conn, usize::MAX);
        }
    }

    pub(super) fn restart(&mut self, id: NodeId) {
        self.counts.restarts += 1;
        let node = self.node(id);
        node.up = true;
        node.restarts += 1;
        node.paused_until = 0;
    }

    /// Refuses older epochs of `expelled` at `target` from now on. On return a verb that was
    /// landing at `target` in pieces has landed completely (H2).
    pub(super) fn fence(&mut self, target: NodeId, expelled: NodeId, epoch: Epoch) {
        let fence = &mut self.node(target).fences[usize::from(expelled.0)];
        *fence = epoch.max(*fence);
        for lane in 0..self.lanes.len() as u32 {
            if self.lanes[lane as usize].at.node != expelled {
                continue;
            }
            let Some(id) = self.connection_to(lane, target) else { continue };
            if self.connection(id).phase == Phase::Tearing {
                self.land(id, usize::MAX);
            }
        }
        self.trace(TraceEventKind::Fenced { target, expelled, epoch: epoch.0 });
    }

    /// Returns an existing node.
    pub(super) fn node(&mut self, id: NodeId) -> &mut SimNode {
        &mut self.nodes[usize::from(id.0)]
    }
}

fn verbs_of(when: When, of: NodeId) -> Option<u64> {
    match when {
        When::AfterVerbs { node, count } if node == of => Some(count),
        _ => None,
    }
}

fn messages_of(when: When, of: NodeId) -> Option<u64> {
    match when {
        When::AfterMessages { node, count } if node == of => Some(count),
        _ => None,
    }
}
