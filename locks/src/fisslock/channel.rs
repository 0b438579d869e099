//! Channels: numbered packets of a core to the switch and beyond, repeated until acknowledged.
//!
//! The switch takes the packets of an origin in order and drops what is ahead of its turn, so after
//! a loss the sender goes back and repeats all that is not acknowledged. Acknowledgements come from
//! where a packet ends: from the switch for FREE, else from the machine that it goes to. As each
//! packet goes elsewhere, they are of single packets.

use std::collections::BTreeMap;

use super::packet::{Origin, Packet};
use super::rules::WINDOW;

/// Packets of one origin.
#[derive(Clone, Debug)]
pub struct Outbox {
    origin: Origin,
    epoch: u8,
    /// Number of the next packet that is added.
    next: u32,
    /// Number of the next packet that is sent for the first time.
    unsent: u32,
    waiting: BTreeMap<u32, Packet>,
    repeat_ns: u64,
    repeat_at: u64,
}

impl Outbox {
    /// An origin that repeats packets after `repeat_ns` nanoseconds without an acknowledgement.
    pub const fn new(origin: Origin, epoch: u8, repeat_ns: u64) -> Self {
        Self {
            origin,
            epoch,
            next: 1,
            unsent: 1,
            waiting: BTreeMap::new(),
            repeat_ns,
            repeat_at: 0,
        }
    }

    /// Adds a packet: its number. It is sent at once if at most [`WINDOW`] are under way with it.
    pub fn send(&mut self, packet: Packet, now: u64, out: &mut Vec<Packet>) -> u32 {
        let sequence = self.next;
        self.next += 1;
        let (origin, epoch) = (self.origin, self.epoch);
        let numbered = Packet { origin, epoch, sequence, repeated: false, ..packet };
        self.waiting.insert(sequence, numbered);
        self.send_more(now, out);
        sequence
    }

    fn send_more(&mut self, now: u64, out: &mut Vec<Packet>) {
        let first = self.waiting.keys().next().map_or(self.next, |first| *first);
        if first == self.unsent {
            // Nothing was under way.
            self.repeat_at = now + self.repeat_ns;
        }
        while self.unsent < self.next && self.unsent - first < WINDOW {
            out.extend(self.waiting.get(&self.unsent).cloned());
            self.unsent += 1;
        }
    }

    /// The packet of that number, if it was sent and is not acknowledged.
    pub fn under_way(&self, sequence: u32) -> Option<&Packet> {
        self.waiting.get(&sequence).filter(|_| sequence < self.unsent)
    }

    /// A packet has arrived: the packet, unless that was known. Later ones are sent if the window
    /// has room for them now.
    pub fn acknowledge(
        &mut self,
        sequence: u32,
        now: u64,
        out: &mut Vec<Packet>,
    ) -> Option<Packet> {
        self.under_way(sequence)?;
        let packet = self.waiting.remove(&sequence);
        self.send_more(now, out);
        packet
    }

    /// Repeats what is under way for too long.
    pub fn tick(&mut self, now: u64, out: &mut Vec<Packet>) {
        let late = self.waiting.range(..self.unsent);
        if self.repeat_at <= now {
            out.extend(late.map(|(_, packet)| Packet { repeated: true, ..packet.clone() }));
            self.repeat_at = now + self.repeat_ns;
        }
    }

    /// Whether every packet was acknowledged.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Packets that have arrived at a machine from one origin. They come in any order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Inbox {
    largest: u32,
    /// Bit i: number `largest - i` has arrived.
    arrived: u32,
}

const _: () = assert!(WINDOW == u32::BITS);

impl Inbox {
    /// Whether a packet arrives for the first time. Numbers further back than the window are
    /// acknowledged already.
    pub const fn is_first(&mut self, sequence: u32) -> bool {
        if sequence > self.largest {
            let ahead = sequence - self.largest;
            self.arrived = if ahead < WINDOW { self.arrived << ahead | 1 } else { 1 };
            self.largest = sequence;
            return true;
        }
        let back = self.largest - sequence;
        if back >= WINDOW || self.arrived >> back & 1 == 1 {
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
    use crate::word::Mode;

    const ORIGIN: Origin = Origin { machine: 1, channel: 2 };

    fn packet() -> Packet {
        let who = Participant { machine: 1, task: 0, nonce: 0 };
        Packet::new(Kind::Release, 0, who, Mode::Shared)
    }

    fn numbers(out: &mut Vec<Packet>) -> Vec<u32> {
        std::mem::take(out).iter().map(|packet| packet.sequence).collect()
    }

    #[test]
    fn a_packet_is_repeated_until_it_is_acknowledged() {
        let (mut outbox, mut out) = (Outbox::new(ORIGIN, 3, 100), Vec::new());
        for _ in 0..3 {
            outbox.send(packet(), 0, &mut out);
        }
        assert!(out.iter().all(|packet| packet.origin == ORIGIN && packet.epoch == 3));
        assert_eq!(numbers(&mut out), [1, 2, 3]);
        outbox.tick(99, &mut out);
        assert_eq!(numbers(&mut out), []);
        assert!(outbox.acknowledge(2, 99, &mut out).is_some());
        assert!(outbox.acknowledge(2, 99, &mut out).is_none(), "that was known");
        outbox.tick(100, &mut out);
        assert_eq!(numbers(&mut out), [1, 3], "all that is not acknowledged, in order");
        outbox.tick(150, &mut out);
        assert_eq!(numbers(&mut out), []);
        assert!(outbox.acknowledge(1, 150, &mut out).is_some());
        assert!(outbox.acknowledge(3, 150, &mut out).is_some());
        assert!(outbox.is_empty());
        outbox.tick(1_000, &mut out);
        assert_eq!(numbers(&mut out), []);
    }

    #[test]
    fn the_window_opens_with_its_first_packet() {
        let (mut outbox, mut out) = (Outbox::new(ORIGIN, 0, 100), Vec::new());
        for _ in 0..WINDOW + 2 {
            outbox.send(packet(), 0, &mut out);
        }
        assert_eq!(numbers(&mut out).len(), WINDOW as usize);
        assert!(outbox.acknowledge(WINDOW + 1, 0, &mut out).is_none(), "it was not sent");
        assert!(outbox.acknowledge(2, 0, &mut out).is_some());
        assert_eq!(numbers(&mut out), []);
        assert!(outbox.acknowledge(1, 0, &mut out).is_some());
        assert_eq!(numbers(&mut out), [WINDOW + 1, WINDOW + 2]);
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
        ];
        for (sequence, expected) in table {
            assert_eq!(inbox.is_first(sequence), expected, "{sequence}");
        }
    }
}
