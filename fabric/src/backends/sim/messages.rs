//! Datagrams between lanes.
//!
//! A switch that is a node ([`super::Config::switches`]) sends and takes in packets without a NIC:
//! neither a core nor a server of one is busy with them. What it sends leaves when the pipeline is
//! through with what it sends it for.

use rand::Rng;

use super::queue::{Event, Picos, picos};
use super::state::State;
use super::trace::Happening;
use crate::contract::ids::Endpoint;
use crate::contract::transport::MAX_MESSAGE_BYTES;

/// Messages that may wait at one lane. Further ones are dropped, as by a full receive queue.
const MAX_WAITING: usize = 4096;
/// Message buffers kept for reuse.
const MAX_SPARE: usize = 4096;

/// A message in flight.
pub(super) struct Message {
    from: Endpoint,
    to: Endpoint,
    bytes: Vec<u8>,
    /// Whether the receiver's NIC has placed it.
    placed: bool,
}

impl State {
    pub(super) fn send(&mut self, from: Endpoint, to: Endpoint, bytes: &[u8]) {
        let is_switch = self.nodes[usize::from(from.node.0)].is_switch;
        if !is_switch {
            self.charge(self.costs.cpu.send);
        }
        self.count_message(from);
        if !self.has_node(to.node) {
            return self.trace_message(from, to, bytes.len(), "to nobody");
        }
        let sent = if is_switch { self.forward() } else { self.issue_message(from, bytes.len()) };
        let is_down = !self.nodes[usize::from(from.node.0)].up;
        if is_down || self.is_cut(from.node, to.node) {
            self.counts.messages_cut_off += 1;
            return self.trace_message(from, to, bytes.len(), "cut off");
        }
        if self.chances.message_loss.strikes(&mut self.random.messages) {
            self.counts.messages_lost += 1;
            return self.trace_message(from, to, bytes.len(), "lost");
        }
        let mut delay = 0;
        if self.chances.message_delay.strikes(&mut self.random.messages) {
            self.counts.messages_delayed += 1;
            delay = self.message_delay();
        }
        self.launch(from, to, bytes, sent.saturating_add(delay));
        if self.chances.message_duplication.strikes(&mut self.random.messages) {
            self.counts.messages_duplicated += 1;
            let delay = self.message_delay();
            self.launch(from, to, bytes, sent.saturating_add(delay));
        }
    }

    /// When a message leaves the NIC of a node that sends it now.
    #[inline]
    fn issue_message(&mut self, from: Endpoint, bytes: usize) -> Picos {
        let service = self.costs.outbound.message;
        let transmission = self.costs.transmission(bytes);
        let nic = &mut self.nodes[usize::from(from.node.0)].nic;
        nic.issue(self.now, service, transmission).max(self.cpu_time())
    }

    /// When a message leaves a switch that sends it now.
    fn forward(&self) -> Picos {
        self.now + self.costs.pipeline.unwrap_or(0)
    }

    fn count_message(&mut self, from: Endpoint) {
        let node = &mut self.nodes[usize::from(from.node.0)];
        node.messages += 1;
        if node.messages >= node.messages_due {
            self.counted_faults(from.node);
        }
    }

    fn message_delay(&mut self) -> Picos {
        self.random.messages.random_range(0..=picos(self.chances.rates.message_delay_max))
    }

    /// Delay of a message's trip: between two nodes without memory it may be another than between
    /// one of them and a memory node. To a switch, and from it, it is half of that.
    #[inline]
    fn message_travel(&mut self, from: Endpoint, to: Endpoint) -> Picos {
        let [source, target] = [from, to].map(|at| usize::from(at.node.0));
        let is_half = self.nodes[source].is_switch || self.nodes[target].is_switch;
        let travel = self.path_travel(source, target);
        if is_half { travel / 2 } else { travel }
    }

    #[inline]
    fn path_travel(&mut self, source: usize, target: usize) -> Picos {
        let travel = self.travel();
        let Some(delay) = self.costs.cn_cn_delay else { return travel };
        let is_compute = |node: usize| self.nodes[node].regions.is_empty();
        match is_compute(source) && is_compute(target) {
            true => travel - self.costs.delay + delay,
            false => travel,
        }
    }

    fn launch(&mut self, from: Endpoint, to: Endpoint, bytes: &[u8], sent: Picos) {
        let spare = self.spare.pop();
        let mut copy = spare.unwrap_or_else(|| Vec::with_capacity(MAX_MESSAGE_BYTES / 16));
        copy.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        let message = Message { from, to, bytes: copy, placed: false };
        let key = self.messages.insert(message) as u32;
        let at = sent.saturating_add(self.message_travel(from, to));
        self.queue.push(at, Event::Message(key));
    }

    pub(super) fn message_arrives(&mut self, key: u32) {
        let message = &self.messages[key as usize];
        let (from, to, length) = (message.from, message.to, message.bytes.len());
        if !message.placed {
            let node = &mut self.nodes[usize::from(to.node.0)];
            let placed = match node.is_switch {
                true => self.now,
                false => node.nic.serve_message(self.now, length, &self.costs),
            };
            if placed > self.now {
                self.messages[key as usize].placed = true;
                return self.queue.push(placed, Event::Message(key));
            }
        }
        let Message { bytes, .. } = self.messages.remove(key as usize);
        self.bytes -= length as u64;
        if self.is_cut(from.node, to.node) {
            self.counts.messages_cut_off += 1;
            recycle(&mut self.spare, bytes);
            return self.trace_message(from, to, length, "cut off");
        }
        let lanes = &self.nodes[usize::from(to.node.0)].lanes;
        let lane = lanes.get(usize::from(to.lane.0)).copied();
        let lane = lane.and_then(|lane| self.lanes.get_mut(lane as usize));
        let Some(lane) = lane.filter(|lane| lane.inbox.messages.len() < MAX_WAITING) else {
            recycle(&mut self.spare, bytes);
            return self.trace_message(from, to, length, "not taken in");
        };
        lane.inbox.messages.push((from, bytes));
        let core = lane.core;
        self.hash.add(length as u64);
        self.wake_core(core);
        self.trace_message(from, to, length, "delivered");
    }

    #[inline]
    fn trace_message(&mut self, from: Endpoint, to: Endpoint, bytes: usize, fate: &'static str) {
        self.trace(Happening::Message { from, to, bytes, fate });
    }
}

/// Takes back the buffer of a delivered message.
#[inline]
pub(super) fn recycle(spare: &mut Vec<Vec<u8>>, mut bytes: Vec<u8>) {
    if spare.len() < MAX_SPARE {
        bytes.clear();
        spare.push(bytes);
    }
}
