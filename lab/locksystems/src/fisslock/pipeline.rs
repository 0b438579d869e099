//! The decider as a pipeline of a programmable switch (FissLock §5.2).
//!
//! State is in register arrays, one or more per stage. A packet accesses each array at most once,
//! in the order of the stages; a second access panics. A packet is multicast to at most two
//! machines. Consequently, no stage may use the result of a later stage.
//!
//! | stage | arrays | does |
//! |---|---|---|
//! | Order | last number of each origin | tells new packets from repeated ones |
//! | MAU selection | | finds the unit of the lock, and the offset in the unit |
//! | Preference | write-waiting, starve: a bit a lock | closes a shared lock for readers |
//! | Check | incarnation: a byte a lock, in units | counts shared requests, checks FREE and GRANT |
//! | Free | held: a bit a lock | marks the lock, returns the old mark |
//! | R/W | shared: a bit a lock | sets the mode, returns the old mode |
//! | MID | agent's machine: a byte a lock, in units | sets the machine, returns where packets go |
//! | Record | decisions of each origin, 2 bytes each | records new ones, answers repeated packets |
//! | Destination | | routes by [`route`] |
//!
//! Order, Preference and Record are additions to the paper's six stages, and are not included in
//! the paper's count of units ([`super::capacity`]).
//!
//! The published rule that RELEASE frees a lock if sent by the agent's machine cannot be
//! implemented here: Free would need the result of MID, a later stage. The pipeline implements the
//! closed rules only.

use std::collections::{BTreeMap, BTreeSet};

use lotus_locks::word::Mode;
use lotus_sabotage::{Rule, broken};

use super::capacity::UNIT_BITS;
use super::decider::{Decision, Metadata, Numbered, arrival, route};
use super::packet::{Kind, Origin, Packet};
use super::rules::{Numbering, Preference, Rules, WINDOW};

/// Number of locks whose bytes fit one unit.
const BYTES_A_UNIT: u32 = (UNIT_BITS / 8) as u32;

/// Registers of a match-action unit: a packet accesses one register, once.
#[derive(Clone, Debug)]
pub struct RegisterArray<T> {
    name: &'static str,
    cells: Vec<T>,
    last_packet: u64,
}

impl<T: Copy + Default> RegisterArray<T> {
    /// Creates zeroed registers.
    pub fn new(name: &'static str, cells: usize) -> Self {
        Self { name, cells: vec![T::default(); cells], last_packet: 0 }
    }

    /// Reads and writes a register, and returns the old value. Packets are numbered from 1.
    ///
    /// # Panics
    /// If the packet has accessed the array before, which the hardware cannot do.
    pub fn access(&mut self, packet: u64, at: usize, update: impl FnOnce(T) -> T) -> T {
        assert!(self.last_packet != packet, "a packet accesses the array {} twice", self.name);
        self.last_packet = packet;
        let old = self.cells[at];
        self.cells[at] = update(old);
        old
    }
}

/// One byte per lock, in as many units as needed.
#[derive(Clone, Debug)]
struct Bytes(Vec<RegisterArray<u8>>);

impl Bytes {
    fn new(name: &'static str, locks: u32) -> Self {
        let units = locks.div_ceil(BYTES_A_UNIT);
        let cells = |unit: u32| (locks - unit * BYTES_A_UNIT).min(BYTES_A_UNIT) as usize;
        Self((0..units).map(|unit| RegisterArray::new(name, cells(unit))).collect())
    }

    fn access(&mut self, packet: u64, at: UnitOffset, update: impl FnOnce(u8) -> u8) -> u8 {
        self.0[at.unit].access(packet, at.offset, update)
    }
}

/// Position of a lock's byte: the unit, and the offset in the unit.
#[derive(Clone, Copy, Debug)]
struct UnitOffset {
    unit: usize,
    offset: usize,
}

/// A switch for a number of locks, machines and channels.
#[derive(Clone, Debug)]
pub struct Pipeline {
    preference: Preference,
    channels: u16,
    locks: u32,
    packets: u64,
    epoch: u8,
    filtered: BTreeSet<u8>,
    last: RegisterArray<u64>,
    write_waiting: RegisterArray<bool>,
    starve: RegisterArray<bool>,
    incarnation: Bytes,
    held: RegisterArray<bool>,
    shared: RegisterArray<bool>,
    machine: Bytes,
    record: RegisterArray<u16>,
}

impl Pipeline {
    /// Creates a switch with free locks. Origins are channels below `channels` of 256 machines.
    pub fn new(locks: u32, channels: u16, preference: Preference) -> Self {
        let (each, origins) = (locks as usize, 256 * usize::from(channels));
        Self {
            preference,
            channels,
            locks,
            packets: 0,
            epoch: 0,
            filtered: BTreeSet::new(),
            last: RegisterArray::new("last", origins),
            write_waiting: RegisterArray::new("write-waiting", each),
            starve: RegisterArray::new("starve", each),
            incarnation: Bytes::new("incarnation", locks),
            held: RegisterArray::new("held", each),
            shared: RegisterArray::new("shared", each),
            machine: Bytes::new("machine", locks),
            record: RegisterArray::new("record", origins * WINDOW as usize),
        }
    }

    /// Processes a packet, like [`super::Decider::process`].
    pub fn process(&mut self, packet: &Packet) -> Vec<(u8, Packet)> {
        self.packets += 1;
        // Match tables, written by the control plane.
        let is_known = packet.lock < self.locks && u16::from(packet.origin.channel) < self.channels;
        let is_filtered =
            packet.kind != Kind::Ack && self.filtered.contains(&packet.origin.machine);
        if packet.epoch != self.epoch || !is_known || is_filtered {
            return Vec::new();
        }
        let decided = if packet.kind == Kind::Ack {
            Some((Decision::ToTask, 0))
        } else {
            match self.order(packet) {
                Numbered::New => {
                    let decided = self.decide(packet);
                    self.record(packet, Some(decided));
                    Some(decided)
                }
                Numbered::Repeated { recorded: true } => self.record(packet, None),
                Numbered::Repeated { recorded: false } | Numbered::Gap => None,
            }
        };
        let Some((decision, agent_at)) = decided else { return Vec::new() };
        let mut routed = route(packet, decision, agent_at, Rules::CLOSED);
        assert!(routed.len() <= 2, "a packet is multicast to two machines at most");
        routed.retain(|(machine, _)| !self.filtered.contains(machine));
        routed
    }

    fn origin(&self, origin: Origin) -> usize {
        usize::from(origin.machine) * usize::from(self.channels) + usize::from(origin.channel)
    }

    /// Order stage (I360).
    fn order(&mut self, packet: &Packet) -> Numbered {
        let numbering = match broken(Rule::SwitchesCountPackets) {
            true => Numbering::Ignored,
            false => Numbering::InOrder,
        };
        let judged = |last| arrival(numbering, last, packet.sequence);
        let at = self.origin(packet.origin);
        judged(self.last.access(self.packets, at, |last| judged(last).1)).0
    }

    /// The stages with the state of locks.
    fn decide(&mut self, packet: &Packet) -> (Decision, u8) {
        let at = UnitOffset {
            unit: (packet.lock / BYTES_A_UNIT) as usize,
            offset: (packet.lock % BYTES_A_UNIT) as usize,
        };
        let is_open = self.preference(packet);
        let (is_valid, counts) = self.check(packet, at, is_open);
        let was_held = self.free(packet, is_valid);
        let was_shared = self.mode(packet, is_valid, was_held);
        let agent_at = self.mid(packet, at, is_valid, was_held);
        let decision = match packet.kind {
            Kind::Acquire if !was_held => Decision::Fresh,
            Kind::Acquire if counts && was_shared => Decision::Joined,
            Kind::Acquire => Decision::ToAgent,
            Kind::Release if was_held => Decision::ToAgent,
            Kind::Release | Kind::Starve => Decision::Ends,
            Kind::Grant if packet.agent.is_none() => Decision::ToTask,
            Kind::Grant | Kind::Free if is_valid => Decision::Accepted,
            Kind::Grant | Kind::Free => Decision::Refused,
            Kind::Ack | Kind::Refuse => Decision::ToTask,
        };
        (decision, agent_at)
    }

    /// Preference stage: returns whether readers may join.
    fn preference(&mut self, packet: &Packet) -> bool {
        let (lock, number) = (packet.lock as usize, self.packets);
        let waits = packet.kind == Kind::Acquire
            && packet.mode != Mode::Shared
            && self.preference == Preference::Writers;
        let (clears, starves) = (moves_agent(packet), packet.kind == Kind::Starve);
        let waited = self.write_waiting.access(number, lock, |old| (old || waits) && !clears);
        let starved = self.starve.access(number, lock, |old| (old || starves) && !clears);
        !waited && !starved
    }

    /// Check stage: returns whether the packet is valid, and whether the stage has counted a shared
    /// request.
    fn check(&mut self, packet: &Packet, at: UnitOffset, is_open: bool) -> (bool, bool) {
        let is_shared = packet.kind == Kind::Acquire && packet.mode == Mode::Shared;
        let counts = is_shared && packet.tries == 0 && is_open;
        let agrees = |count| packet.old_mode != Mode::Shared || packet.incarnation == count;
        let moves = moves_agent(packet);
        let old = self.incarnation.access(self.packets, at, |count| match (counts, moves) {
            (true, _) => count.wrapping_add(1),
            (_, true) if agrees(count) => 0,
            _ => count,
        });
        (!moves || agrees(old), counts)
    }

    /// Free stage: returns whether the lock was held.
    fn free(&mut self, packet: &Packet, is_valid: bool) -> bool {
        let kind = packet.kind;
        self.held.access(self.packets, packet.lock as usize, |held| match kind {
            Kind::Acquire => true,
            Kind::Grant if moves_agent(packet) && is_valid => true,
            Kind::Free if is_valid => false,
            _ => held,
        })
    }

    /// R/W stage: returns whether the lock was shared.
    fn mode(&mut self, packet: &Packet, is_valid: bool, was_held: bool) -> bool {
        let sets = (packet.kind == Kind::Acquire && !was_held) || (moves_agent(packet) && is_valid);
        let is_shared = packet.kind != Kind::Free && packet.mode == Mode::Shared;
        let lock = packet.lock as usize;
        self.shared.access(self.packets, lock, |old| if sets { is_shared } else { old })
    }

    /// MID stage: returns the agent's machine after the packet.
    fn mid(&mut self, packet: &Packet, at: UnitOffset, is_valid: bool, was_held: bool) -> u8 {
        let new = match packet.kind {
            Kind::Acquire if !was_held => Some(packet.who.machine),
            Kind::Grant if moves_agent(packet) && is_valid => Some(packet.who.machine),
            Kind::Free if is_valid => Some(0),
            _ => None,
        };
        let old = self.machine.access(self.packets, at, |old| new.unwrap_or(old));
        new.unwrap_or(old)
    }

    /// Record stage: writes a new decision, or reads the decision of a repeated packet (I360).
    fn record(&mut self, packet: &Packet, new: Option<(Decision, u8)>) -> Option<(Decision, u8)> {
        let window = WINDOW as usize;
        let at = self.origin(packet.origin) * window + packet.sequence as usize % window;
        let written = new.map(|(decision, machine)| u16::from_be_bytes([decision as u8, machine]));
        let old = self.record.access(self.packets, at, |old| written.unwrap_or(old));
        let [decision, machine] = old.to_be_bytes();
        Some((Decision::of(decision)?, machine))
    }

    /// Rewrites the switch after a recovery, like [`super::Decider::recover`]: the control plane
    /// writes every register. The new filter contains only the `dead` machines of this call.
    ///
    /// # Panics
    /// If the switch does not have one of the locks.
    pub fn recover(&mut self, epoch: u8, dead: &[u8], locks: &BTreeMap<u32, Metadata>) {
        let filtered = dead.iter().copied().collect();
        *self = Self { epoch, filtered, ..Self::new(self.locks, self.channels, self.preference) };
        for (&lock, state) in locks {
            let (unit, offset) = ((lock / BYTES_A_UNIT) as usize, (lock % BYTES_A_UNIT) as usize);
            self.held.cells[lock as usize] = state.held;
            self.shared.cells[lock as usize] = state.shared;
            self.machine.0[unit].cells[offset] = state.machine;
            self.incarnation.0[unit].cells[offset] = state.incarnation;
        }
    }

    /// Returns the state of a lock, as read by the control plane.
    ///
    /// # Panics
    /// If the switch has no such lock.
    pub fn lock(&self, lock: u32) -> Metadata {
        let (unit, offset) = ((lock / BYTES_A_UNIT) as usize, (lock % BYTES_A_UNIT) as usize);
        let at = lock as usize;
        Metadata {
            held: self.held.cells[at],
            shared: self.shared.cells[at],
            machine: self.machine.0[unit].cells[offset],
            incarnation: self.incarnation.0[unit].cells[offset],
            write_waiting: self.write_waiting.cells[at],
            starve: self.starve.cells[at],
        }
    }
}

/// Returns whether a packet would end the agent, or move it.
const fn moves_agent(packet: &Packet) -> bool {
    matches!(packet.kind, Kind::Free)
        || (matches!(packet.kind, Kind::Grant) && packet.agent.is_some())
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fisslock::Decider;
    use crate::fisslock::packet::{Carried, Participant};

    #[test]
    #[should_panic(expected = "a packet accesses the array held twice")]
    fn a_packet_accesses_an_array_once() {
        let mut array = RegisterArray::new("held", 2);
        assert!(!array.access(1, 0, |_| true));
        assert!(array.access(2, 0, |_| true));
        array.access(2, 1, |_| true);
    }

    #[test]
    fn bytes_of_locks_are_split_among_units() {
        let mut bytes = Bytes::new("machine", BYTES_A_UNIT + 1);
        assert_eq!(bytes.0.len(), 2);
        let last = UnitOffset { unit: 1, offset: 0 };
        assert_eq!(bytes.access(1, last, |_| 9), 0);
        assert_eq!(bytes.access(2, last, |old| old), 9);
    }

    /// A packet, and whether it has the next number of its origin, an older or a later one.
    fn packets() -> impl Strategy<Value = (Packet, u32)> {
        let numbers = (0..7u8, 0..3u32, 0..3u8, 0..2u8, 0..3u8, 0..3u8);
        let flags = (any::<bool>(), any::<bool>(), any::<bool>(), 0..2u8, 0..2u8, 0..8u32);
        (numbers, flags).prop_map(|((kind, lock, machine, channel, from, count), flags)| {
            let (is_shared, was_shared, has_agent, tries, epoch, ahead) = flags;
            let mode = |is_shared| if is_shared { Mode::Shared } else { Mode::Exclusive };
            let kinds = [
                Kind::Acquire,
                Kind::Release,
                Kind::Free,
                Kind::Grant,
                Kind::Ack,
                Kind::Starve,
                Kind::Refuse,
            ];
            let kind = kinds[usize::from(kind)];
            let who = Participant { machine, task: 1, nonce: 1 };
            let agent = Carried { mode: mode(is_shared), incarnation: 0, waiters: Vec::new() };
            let packet = Packet {
                old_mode: mode(was_shared),
                incarnation: count,
                tries,
                epoch: epoch & u8::from(ahead == 7),
                origin: Origin { machine: from, channel },
                agent: (has_agent && kind == Kind::Grant).then_some(agent),
                ..Packet::new(kind, lock, who, mode(is_shared))
            };
            // Mostly the next number.
            (packet, [1, 1, 1, 1, 1, 0, 2, 1][ahead as usize])
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        #[test]
        fn the_pipeline_decides_as_the_decider_does(
            packets in prop::collection::vec(packets(), 1..120),
            writers in any::<bool>(),
        ) {
            let preference = if writers { Preference::Writers } else { Preference::Readers };
            let mut decider = Decider::new(3, Rules::CLOSED, preference);
            let mut pipeline = Pipeline::new(3, 2, preference);
            let mut last = std::collections::BTreeMap::<Origin, u64>::new();
            for (packet, ahead) in packets {
                let last = last.entry(packet.origin).or_default();
                let packet = Packet { sequence: *last + u64::from(ahead), ..packet };
                if ahead == 1 && packet.epoch == 0 && packet.kind != Kind::Ack {
                    *last += 1;
                }
                prop_assert_eq!(decider.process(&packet), pipeline.process(&packet));
                for lock in 0..3 {
                    prop_assert_eq!(decider.lock(lock), pipeline.lock(lock));
                }
            }
        }
    }
}
