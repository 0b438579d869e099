//! Datagrams between lanes.
//!
//! A switch node ([`super::Config::switches`]) sends and receives packets without a NIC: a packet
//! occupies no NIC server and takes no core time. A packet sent by a switch leaves when the
//! pipeline has finished with the packet that caused it.

use std::time::Duration;

use rand::Rng;

use super::queue::{Event, Picos, picos};
use super::state::State;
use super::trace::TraceEventKind;
use crate::contract::ids::Endpoint;
use crate::contract::transport::MAX_MESSAGE_BYTES;

/// Messages that may wait at one lane. Further messages are dropped, as by a full receive queue.
const MAX_WAITING: usize = 4096;
/// Longest time between two messages lost to the same break of a path.
const GAP: Duration = Duration::from_millis(10);
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
        self.charge(self.costs.cpu.send);
        self.count_message(from);
        if !self.has_node(to.node) {
            return self.trace_message(from, to, bytes.len(), "to nobody");
        }
        let service = self.costs.outbound.message;
        let transmission = self.costs.transmission(bytes.len());
        let node = &mut self.nodes[usize::from(from.node.0)];
        let sent = match node.is_switch {
            true => self.forward(),
            false => node.nic.issue(self.now, service, transmission).max(self.cpu_time()),
        };
        self.note_path(from, to);
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

    /// Records whether a message can be acknowledged, which needs both directions open.
    #[inline]
    fn note_path(&mut self, from: Endpoint, to: Endpoint) {
        let is_open = !self.is_cut(from.node, to.node) && !self.is_cut(to.node, from.node);
        let now = self.now;
        let path = &mut self.nodes[usize::from(from.node.0)].paths[usize::from(to.node.0)];
        path.broken = match path.broken {
            _ if is_open => None,
            Some((since, last)) if now - last < picos(GAP) => Some((since, now)),
            _ => Some((now, now)),
        };
    }

    /// Returns the time at which a message sent now leaves a switch.
    #[cold]
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

    /// Draws the delay of a message's trip: the delay between two nodes without memory may differ
    /// from the delay to or from a memory node.
    #[inline]
    fn message_travel(&mut self, from: Endpoint, to: Endpoint) -> Picos {
        let travel = self.travel();
        let Some(delay) = self.costs.cn_cn_delay else { return travel };
        let is_compute = |at: Endpoint| self.nodes[usize::from(at.node.0)].regions.is_empty();
        match is_compute(from) && is_compute(to) {
            true => travel - self.costs.delay + delay,
            false => travel,
        }
    }

    /// Returns the delay of a trip in a world with switches: to or from a switch, half of the
    /// path's delay.
    #[cold]
    fn switched_travel(&self, travel: Picos, from: Endpoint, to: Endpoint) -> Picos {
        let is_switch = |at: Endpoint| self.nodes[usize::from(at.node.0)].is_switch;
        if is_switch(from) || is_switch(to) { travel / 2 } else { travel }
    }

    fn launch(&mut self, from: Endpoint, to: Endpoint, bytes: &[u8], sent: Picos) {
        let spare = self.spare.pop();
        let mut copy = spare.unwrap_or_else(|| Vec::with_capacity(MAX_MESSAGE_BYTES / 16));
        copy.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        let message = Message { from, to, bytes: copy, placed: false };
        let key = self.messages.insert(message) as u32;
        let mut travel = self.message_travel(from, to);
        if self.has_switches {
            travel = self.switched_travel(travel, from, to);
        }
        let at = sent.saturating_add(travel);
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
        self.trace(TraceEventKind::Message { from, to, bytes, fate });
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
