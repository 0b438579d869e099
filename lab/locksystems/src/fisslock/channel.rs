//! Channels: numbered packets of a core to the switch and beyond, repeated until acknowledged.
//!
//! The switch accepts the packets of an origin in order and drops packets ahead of their turn.
//! After a loss, the sender therefore goes back and repeats every unacknowledged packet. A packet
//! is acknowledged at its final destination: the switch for FREE, otherwise the target machine.
//! Because destinations differ from packet to packet, acknowledgements are for single packets.

use std::collections::BTreeMap;

use super::packet::{Origin, Packet};
use super::rules::WINDOW;

/// Maximum time before packets are repeated, as a multiple of the minimum. The limit keeps
/// repetitions from delaying cores that are already late with acknowledgements.
const MOST_PATIENCE: u64 = 8;

/// An unacknowledged packet, and the time of its last transmission.
#[derive(Clone, Debug)]
struct Unacknowledged {
    packet: Packet,
    sent_at: u64,
}

/// Packets of one origin.
#[derive(Clone, Debug)]
pub struct Outbox {
    origin: Origin,
    epoch: u8,
    /// Number of the next packet added.
    next: u64,
    /// Number of the next packet to be sent for the first time.
    unsent: u64,
    waiting: BTreeMap<u64, Unacknowledged>,
    repeat_ns: u64,
    /// Nanoseconds without an acknowledgement of the first packet in flight before repetition:
    /// doubled by every repetition, halved when the first packet is acknowledged.
    patience: u64,
}

impl Outbox {
    /// Creates the outbox of an origin. Packets are repeated after `repeat_ns` nanoseconds without
    /// an acknowledgement of the first packet, or later while acknowledgements are late.
    pub const fn new(origin: Origin, epoch: u8, repeat_ns: u64) -> Self {
        Self {
            origin,
            epoch,
            next: 1,
            unsent: 1,
            waiting: BTreeMap::new(),
            repeat_ns,
            patience: repeat_ns,
        }
    }

    /// Adds a packet and returns its number. The packet is sent at once if at most [`WINDOW`]
    /// packets, this one included, are in flight.
    pub fn send(&mut self, packet: Packet, now: u64, out: &mut Vec<Packet>) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let (origin, epoch) = (self.origin, self.epoch);
        let packet = Packet { origin, epoch, sequence, repeated: false, ..packet };
        self.waiting.insert(sequence, Unacknowledged { packet, sent_at: 0 });
        self.send_more(now, out);
        sequence
    }

    fn send_more(&mut self, now: u64, out: &mut Vec<Packet>) {
        let first = self.waiting.keys().next().map_or(self.next, |first| *first);
        while self.unsent < self.next && self.unsent - first < u64::from(WINDOW) {
            if let Some(sent) = self.waiting.get_mut(&self.unsent) {
                sent.sent_at = now;
                out.push(sent.packet.clone());
            }
            self.unsent += 1;
        }
    }

    /// Returns the packet with a number, if the packet was sent and is not acknowledged.
    pub fn under_way(&self, sequence: u64) -> Option<&Packet> {
        let sent = self.waiting.get(&sequence).filter(|_| sequence < self.unsent);
        sent.map(|sent| &sent.packet)
    }

    /// Notes the acknowledgement of a packet, and returns the packet unless the acknowledgement was
    /// known. Later packets are sent if the window now has room.
    pub fn acknowledge(
        &mut self,
        sequence: u64,
        now: u64,
        out: &mut Vec<Packet>,
    ) -> Option<Packet> {
        self.under_way(sequence)?;
        if self.waiting.keys().next() == Some(&sequence) {
            self.patience = (self.patience / 2).max(self.repeat_ns);
        }
        let sent = self.waiting.remove(&sequence)?;
        self.send_more(now, out);
        Some(sent.packet)
    }

    /// Repeats every packet in flight, in order, if the first of them has been in flight for too
    /// long: the switch has dropped the packets behind a lost packet.
    pub fn tick(&mut self, now: u64, out: &mut Vec<Packet>) {
        let mut under_way = self.waiting.range_mut(..self.unsent).map(|(_, sent)| sent).peekable();
        if under_way.peek().is_none_or(|first| now.saturating_sub(first.sent_at) < self.patience) {
            return;
        }
        for sent in under_way {
            sent.sent_at = now;
            out.push(Packet { repeated: true, ..sent.packet.clone() });
        }
        let most = self.repeat_ns.saturating_mul(MOST_PATIENCE);
        self.patience = self.patience.saturating_mul(2).min(most);
    }

    /// Returns whether every packet was acknowledged.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Record of the packets that have arrived at a machine from one origin, in any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inbox {
    largest: u64,
    /// Bit i: packet number `largest - i` has arrived.
    arrived: u32,
}

const _: () = assert!(WINDOW == u32::BITS);

impl Inbox {
    /// Returns whether a packet arrives for the first time. Numbers further back than the window
    /// are already acknowledged.
    pub const fn is_first(&mut self, sequence: u64) -> bool {
        if sequence > self.largest {
            let ahead = sequence - self.largest;
            self.arrived = if ahead < WINDOW as u64 { self.arrived << ahead | 1 } else { 1 };
            self.largest = sequence;
            return true;
        }
        let back = self.largest - sequence;
        if back >= WINDOW as u64 || self.arrived >> back & 1 == 1 {
            return false;
        }
        self.arrived |= 1 << back;
        true
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use crate::fisslock::packet::{Kind, Participant};
    use lotus_locks::word::Mode;

    const ORIGIN: Origin = Origin { machine: 1, channel: 2 };

    fn packet() -> Packet {
        let who = Participant { machine: 1, task: 0, nonce: 0 };
        Packet::new(Kind::Release, 0, who, Mode::Shared)
    }

    fn numbers(out: &mut Vec<Packet>) -> Vec<u64> {
        std::mem::take(out).iter().map(|packet| packet.sequence).collect()
    }

    /// Numbers of the packets that are repeated at a time.
    fn repeated(outbox: &mut Outbox, now: u64) -> Vec<u64> {
        let mut out = Vec::new();
        outbox.tick(now, &mut out);
        assert!(out.iter().all(|packet| packet.repeated));
        numbers(&mut out)
    }

    #[test]
    fn a_packet_is_repeated_until_it_is_acknowledged() {
        let (mut outbox, mut out) = (Outbox::new(ORIGIN, 3, 100), Vec::new());
        for now in [0, 0, 30] {
            outbox.send(packet(), now, &mut out);
        }
        let is_so = |packet: &Packet| packet.origin == ORIGIN && packet.epoch == 3;
        assert!(out.iter().all(|packet| is_so(packet) && !packet.repeated));
        assert_eq!(numbers(&mut out), [1, 2, 3]);
        assert_eq!(repeated(&mut outbox, 99), []);
        assert!(outbox.acknowledge(2, 99, &mut out).is_some());
        assert!(outbox.acknowledge(2, 99, &mut out).is_none(), "that was known");
        assert_eq!(repeated(&mut outbox, 100), [1, 3], "all, in order");
        assert_eq!(repeated(&mut outbox, 299), []);
        assert_eq!(repeated(&mut outbox, 300), [1, 3], "after twice the time");
        assert!(outbox.acknowledge(1, 400, &mut out).is_some());
        assert_eq!(repeated(&mut outbox, 499), []);
        assert_eq!(repeated(&mut outbox, 500), [3], "half of 400 after it was sent");
        assert!(outbox.acknowledge(3, 601, &mut out).is_some());
        assert!(outbox.is_empty() && out.is_empty());
        assert_eq!(repeated(&mut outbox, 100_000), []);
    }

    #[test]
    fn cores_that_are_late_are_asked_more_and_more_seldom() {
        let (mut outbox, mut out) = (Outbox::new(ORIGIN, 0, 100), Vec::new());
        outbox.send(packet(), 0, &mut out);
        let late: usize =
            (0..1_000_000).step_by(50).map(|now| repeated(&mut outbox, now).len()).sum();
        // After 100, 200 and 400, and then after 800 each.
        assert_eq!(late, 3 + (1_000_000 - 700 - 1) / 800);
        assert!(outbox.acknowledge(1, 1_000_000, &mut out).is_some());
    }

    #[test]
    fn the_window_opens_with_its_first_packet() {
        let (mut outbox, mut out) = (Outbox::new(ORIGIN, 0, 100), Vec::new());
        for _ in 0..WINDOW + 2 {
            outbox.send(packet(), 0, &mut out);
        }
        assert_eq!(numbers(&mut out).len(), WINDOW as usize);
        assert!(
            outbox.acknowledge(u64::from(WINDOW) + 1, 0, &mut out).is_none(),
            "it was not sent"
        );
        assert!(outbox.acknowledge(2, 0, &mut out).is_some());
        assert_eq!(numbers(&mut out), []);
        assert!(outbox.acknowledge(1, 0, &mut out).is_some());
        assert_eq!(numbers(&mut out), [1, 2].map(|ahead| u64::from(WINDOW) + ahead));
    }

    #[test]
    fn a_packet_arrives_once() {
        let mut inbox = Inbox::default();
        let table = [
            (2, true),
            (1, true),
            (2, false),
            (1, false),
            (40, true),
            (9, true),
            (9, false),
            (8, false),
            (39, true),
            (40, false),
            (200, true),
            (40, false),
            (u64::MAX, true),
            (u64::MAX - 1, true),
            (u64::MAX, false),
        ];
        for (sequence, expected) in table {
            assert_eq!(inbox.is_first(sequence), expected, "{sequence}");
        }
    }
}
