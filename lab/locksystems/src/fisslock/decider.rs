//! The decider: the switch's part of a lock's state, and the switch's decisions (FissLock §4.1,
//! §5.2).
//!
//! [`decide`] is the transition table, a pure function of a lock's state and a packet. [`route`]
//! determines the destination of a decided packet. A [`Decider`] has the state of every lock and of
//! every sender. [`super::Pipeline`] implements the same decisions as a pipeline of register
//! arrays.

use std::collections::{BTreeMap, BTreeSet};

use lotus_locks::word::Mode;

use super::packet::{Carried, Kind, Origin, Packet};
use super::rules::{Numbering, Preference, Rules, WINDOW};

/// State of a lock in the switch: 18 bits, and two bits of preference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Metadata {
    /// The lock is held. The inverse of the paper's free bit, so that zeroes are a free lock.
    pub held: bool,
    /// The lock is held in shared mode.
    pub shared: bool,
    /// Machine of the agent.
    pub machine: u8,
    /// Number of shared requests since the agent was created or moved.
    pub incarnation: u8,
    /// A writer waits; used with [`Preference::Writers`].
    pub write_waiting: bool,
    /// Readers starve a writer, as reported by the agent.
    pub starve: bool,
}

/// Decision on a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// ACQUIRE of a free lock: granted, with an empty agent.
    Fresh = 1,
    /// Shared ACQUIRE of a shared lock: granted, without an agent.
    Joined = 2,
    /// Every other ACQUIRE, and RELEASE: for the agent.
    ToAgent = 3,
    /// FREE, or GRANT with an agent: carried out.
    Accepted = 4,
    /// FREE, or GRANT with an agent, while shared grants are in flight: sent back.
    Refused = 5,
    /// A packet for the task named in the packet.
    ToTask = 6,
    /// A packet that ends at the switch, and is acknowledged there.
    Ends = 7,
}

impl Decision {
    /// Decodes a decision from a register.
    pub(super) const fn of(raw: u8) -> Option<Self> {
        Some(match raw {
            1 => Self::Fresh,
            2 => Self::Joined,
            3 => Self::ToAgent,
            4 => Self::Accepted,
            5 => Self::Refused,
            6 => Self::ToTask,
            7 => Self::Ends,
            _ => return None,
        })
    }
}

/// Decides on a packet of a lock, under the rules that close the holes: returns the new state and
/// the decision. The agent's machine for [`route`] is taken from the new state.
///
/// FREE and GRANT with an agent clear the preference bits even when refused, because the pipeline
/// stage with the bits comes before the stage with the check. The agent sets the bits again.
pub fn decide(lock: Metadata, packet: &Packet, preference: Preference) -> (Metadata, Decision) {
    let mut next = lock;
    let decision = match packet.kind {
        Kind::Acquire => return acquire(lock, packet, preference),
        Kind::Release if lock.held => Decision::ToAgent,
        Kind::Release => Decision::Ends,
        Kind::Starve => {
            next.starve = true;
            Decision::Ends
        }
        Kind::Grant if packet.agent.is_none() => Decision::ToTask,
        Kind::Free | Kind::Grant => {
            (next.write_waiting, next.starve) = (false, false);
            if packet.old_mode == Mode::Shared && packet.incarnation != lock.incarnation {
                return (next, Decision::Refused);
            }
            next = if packet.kind == Kind::Free {
                Metadata::default()
            } else {
                Metadata {
                    held: true,
                    shared: packet.mode == Mode::Shared,
                    machine: packet.who.machine,
                    ..Metadata::default()
                }
            };
            Decision::Accepted
        }
        Kind::Ack | Kind::Refuse => Decision::ToTask,
    };
    (next, decision)
}

fn acquire(mut lock: Metadata, packet: &Packet, preference: Preference) -> (Metadata, Decision) {
    let is_shared = packet.mode == Mode::Shared;
    // A bounced request is granted by the agent, or together with an agent: its GRANT has to be
    // repeated until arrival, whereas a grant of the switch is repeated by the requester.
    let counts = is_shared && packet.tries == 0 && !lock.write_waiting && !lock.starve;
    if counts {
        // Whatever the lock's mode, which the Check stage does not know.
        lock.incarnation = lock.incarnation.wrapping_add(1);
    }
    if !is_shared && preference == Preference::Writers {
        lock.write_waiting = true;
    }
    if !lock.held {
        (lock.held, lock.shared, lock.machine) = (true, is_shared, packet.who.machine);
        (lock, Decision::Fresh)
    } else if counts && lock.shared {
        (lock, Decision::Joined)
    } else {
        (lock, Decision::ToAgent)
    }
}

/// Returns the packets sent for a decision, at most two, with the target machines. `agent_at` is
/// the machine of the agent.
pub fn route(packet: &Packet, decision: Decision, agent_at: u8, rules: Rules) -> Vec<(u8, Packet)> {
    let origin = packet.origin.machine;
    let granted = |agent| Packet { kind: Kind::Grant, granted: true, agent, ..packet.clone() };
    match decision {
        Decision::Fresh => {
            // The Check stage has counted the request unless bounced. A free lock starts without
            // counted requests.
            let counted = packet.mode == Mode::Shared && packet.tries == 0 && rules.first_counts;
            let incarnation = u8::from(counted);
            let agent = Carried { mode: packet.mode, incarnation, waiters: Vec::new() };
            vec![(packet.who.machine, granted(Some(agent)))]
        }
        Decision::Joined => vec![
            (packet.who.machine, granted(None)),
            (agent_at, Packet { granted: true, ..packet.clone() }),
        ],
        Decision::ToAgent => vec![(agent_at, packet.clone())],
        Decision::Accepted if packet.kind == Kind::Grant => {
            vec![(packet.who.machine, packet.clone())]
        }
        Decision::Refused => vec![(agent_at, Packet { refused: true, ..packet.clone() })],
        Decision::ToTask if packet.kind == Kind::Ack => vec![(origin, packet.clone())],
        Decision::ToTask => vec![(packet.who.machine, packet.clone())],
        Decision::Accepted | Decision::Ends => vec![(origin, acknowledgement(packet))],
    }
}

/// Returns the acknowledgement of a packet.
pub fn acknowledgement(packet: &Packet) -> Packet {
    let granted = packet.granted && packet.kind == Kind::Acquire;
    Packet { kind: Kind::Ack, granted, agent: None, ..packet.clone() }
}

/// Position of a packet number relative to the numbers already used by the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Numbered {
    /// To be processed now.
    New,
    /// Processed before; recorded if among the last [`WINDOW`].
    Repeated { recorded: bool },
    /// Ahead of the next number.
    Gap,
}

/// Classifies a number by the sender's last number, so that each packet of a sender is decided on
/// once, in order (I360). Returns the classification and the new last number.
pub(super) const fn arrival(numbering: Numbering, last: u64, sequence: u64) -> (Numbered, u64) {
    match numbering {
        Numbering::Ignored => (Numbered::New, last),
        _ if sequence <= last => {
            (Numbered::Repeated { recorded: last - sequence < WINDOW as u64 && sequence > 0 }, last)
        }
        Numbering::InOrder if sequence - last > 1 => (Numbered::Gap, last),
        _ => (Numbered::New, sequence),
    }
}

/// Last number of a sender, and the decisions on the sender's last packets.
#[derive(Clone, Debug)]
struct Sent {
    last: u64,
    decisions: [Option<(Decision, u8)>; WINDOW as usize],
}

/// Decider for every lock of a switch.
#[derive(Clone, Debug)]
pub struct Decider {
    locks: Vec<Metadata>,
    senders: BTreeMap<Origin, Sent>,
    rules: Rules,
    preference: Preference,
    epoch: u8,
    filtered: BTreeSet<u8>,
}

impl Decider {
    /// Creates a switch with `locks` free locks.
    pub fn new(locks: u32, rules: Rules, preference: Preference) -> Self {
        Self {
            locks: vec![Metadata::default(); locks as usize],
            senders: BTreeMap::new(),
            rules,
            preference,
            epoch: 0,
            filtered: BTreeSet::new(),
        }
    }

    /// Returns the state of a lock.
    ///
    /// # Panics
    /// If the switch has no such lock.
    pub fn lock(&self, lock: u32) -> Metadata {
        self.locks[lock as usize]
    }

    /// Processes a packet and returns the outgoing packets with their target machines. Packets of
    /// another epoch, packets from or to a filtered machine, and packets about locks unknown to the
    /// switch are dropped.
    pub fn process(&mut self, packet: &Packet) -> Vec<(u8, Packet)> {
        let is_known = (packet.lock as usize) < self.locks.len();
        if packet.epoch != self.epoch || !is_known || self.is_filtered(packet) {
            return Vec::new();
        }
        let mut routed = self.numbered(packet);
        routed.retain(|(machine, _)| !self.filtered.contains(machine));
        debug_assert!(routed.len() <= 2, "a packet is multicast to two machines at most");
        routed
    }

    fn is_filtered(&self, packet: &Packet) -> bool {
        // An acknowledgement names the acknowledged packet, origin included.
        packet.kind != Kind::Ack && self.filtered.contains(&packet.origin.machine)
    }

    fn numbered(&mut self, packet: &Packet) -> Vec<(u8, Packet)> {
        if packet.kind == Kind::Ack {
            return route(packet, Decision::ToTask, 0, self.rules);
        }
        let none = Sent { last: 0, decisions: [None; WINDOW as usize] };
        let sent = self.senders.entry(packet.origin).or_insert(none);
        let (arrival, last) = arrival(self.rules.numbering, sent.last, packet.sequence);
        sent.last = last;
        let at = (packet.sequence % u64::from(WINDOW)) as usize;
        match arrival {
            Numbered::New => {
                let (next, decision) = self.decide(packet);
                self.locks[packet.lock as usize] = next;
                if let Some(sent) = self.senders.get_mut(&packet.origin) {
                    sent.decisions[at] = Some((decision, next.machine));
                }
                route(packet, decision, next.machine, self.rules)
            }
            Numbered::Repeated { recorded } if self.rules.replays => {
                let of_record = |(decision, machine)| route(packet, decision, machine, self.rules);
                sent.decisions[at].filter(|_| recorded).map_or_else(Vec::new, of_record)
            }
            Numbered::Repeated { .. } if self.rules.numbering == Numbering::InOrder => {
                route(packet, Decision::Ends, 0, self.rules)
            }
            Numbered::Repeated { .. } => {
                let (next, decision) = self.decide(packet);
                route(packet, decision, next.machine, self.rules)
            }
            Numbered::Gap => Vec::new(),
        }
    }

    fn decide(&self, packet: &Packet) -> (Metadata, Decision) {
        let lock = self.locks[packet.lock as usize];
        let from_agent = lock.held && lock.machine == packet.origin.machine;
        if !self.rules.withdraws && packet.kind == Kind::Release && packet.absent && from_agent {
            return (Metadata::default(), Decision::Ends);
        }
        decide(lock, packet, self.preference)
    }

    /// Rewrites the switch from the surviving agents (FissLock §5.3, S3). From then on, packets of
    /// earlier epochs are dropped, and packets of the `dead` machines: every number not used by a
    /// survivor. A joining machine is excluded from `dead` by the recovery after which the switch
    /// serves the machine.
    pub fn recover(&mut self, epoch: u8, dead: &[u8], locks: &BTreeMap<u32, Metadata>) {
        self.epoch = epoch;
        self.filtered = dead.iter().copied().collect();
        self.senders.clear();
        self.locks.fill(Metadata::default());
        for (&lock, state) in locks {
            self.locks[lock as usize] = *state;
        }
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;
    use crate::fisslock::packet::Participant;

    const FREE: Metadata = Metadata {
        held: false,
        shared: false,
        machine: 0,
        incarnation: 0,
        write_waiting: false,
        starve: false,
    };
    const READ: Metadata =
        Metadata { held: true, shared: true, machine: 4, incarnation: 7, ..FREE };
    const WRITTEN: Metadata = Metadata { held: true, machine: 4, ..FREE };

    fn packet(kind: Kind, mode: Mode) -> Packet {
        Packet::new(kind, 0, Participant { machine: 2, task: 1, nonce: 1 }, mode)
    }

    fn with_agent(mode: Mode, old_mode: Mode, incarnation: u8) -> Packet {
        let agent = Some(Carried { mode, incarnation: 0, waiters: Vec::new() });
        Packet { agent, old_mode, incarnation, ..packet(Kind::Grant, mode) }
    }

    fn freed(old_mode: Mode, incarnation: u8) -> Packet {
        Packet { old_mode, incarnation, ..packet(Kind::Free, old_mode) }
    }

    #[test]
    fn a_request_is_decided_by_the_mode_and_the_bits() {
        use Decision::{Fresh, Joined, ToAgent};
        let (shared, exclusive) =
            (packet(Kind::Acquire, Mode::Shared), packet(Kind::Acquire, Mode::Exclusive));
        let bounced = Packet { tries: 1, ..shared.clone() };
        let starved = Metadata { starve: true, ..READ };
        let waited = Metadata { write_waiting: true, ..READ };
        let mine = Metadata { held: true, machine: 2, ..FREE };
        let counted = |lock: Metadata| Metadata { incarnation: lock.incarnation + 1, ..lock };
        let table = [
            (FREE, &shared, Metadata { shared: true, ..counted(mine) }, Fresh),
            (FREE, &bounced, Metadata { shared: true, ..mine }, Fresh),
            (FREE, &exclusive, mine, Fresh),
            (READ, &shared, counted(READ), Joined),
            (READ, &bounced, READ, ToAgent),
            (READ, &exclusive, READ, ToAgent),
            (starved, &shared, starved, ToAgent),
            (waited, &shared, waited, ToAgent),
            (WRITTEN, &shared, counted(WRITTEN), ToAgent),
            (WRITTEN, &exclusive, WRITTEN, ToAgent),
        ];
        for (lock, packet, next, decision) in table {
            assert_eq!(decide(lock, packet, Preference::Readers), (next, decision), "{packet:?}");
        }
        let (next, _) = decide(READ, &exclusive, Preference::Writers);
        assert_eq!(next, waited, "a writer that waits keeps readers from joining");
    }

    #[test]
    fn an_agent_leaves_when_no_shared_grant_is_under_way() {
        use Decision::{Accepted, Refused};
        let to = |shared| Metadata { held: true, shared, machine: 2, ..FREE };
        let bits = Metadata { starve: true, write_waiting: true, ..READ };
        let table = [
            (READ, freed(Mode::Shared, 7), FREE, Accepted),
            (READ, freed(Mode::Shared, 6), READ, Refused),
            (bits, freed(Mode::Shared, 6), READ, Refused),
            (WRITTEN, freed(Mode::Exclusive, 99), FREE, Accepted),
            (bits, with_agent(Mode::Exclusive, Mode::Shared, 7), to(false), Accepted),
            (READ, with_agent(Mode::Exclusive, Mode::Shared, 8), READ, Refused),
            (WRITTEN, with_agent(Mode::Shared, Mode::Exclusive, 99), to(true), Accepted),
        ];
        for (lock, packet, next, decision) in table {
            assert_eq!(decide(lock, &packet, Preference::Readers), (next, decision), "{packet:?}");
        }
    }

    #[test]
    fn packets_are_routed_by_their_decision() {
        let kinds = |packet: &Packet, decision| -> Vec<(u8, Kind, bool)> {
            let routed = route(packet, decision, 4, Rules::CLOSED);
            routed.into_iter().map(|(to, packet)| (to, packet.kind, packet.granted)).collect()
        };
        let shared = packet(Kind::Acquire, Mode::Shared);
        let release = Packet { granted: true, ..packet(Kind::Release, Mode::Shared) };
        let grant = with_agent(Mode::Shared, Mode::Exclusive, 0);
        let origin = Origin { machine: 9, channel: 1 };
        let free = Packet { origin, ..freed(Mode::Shared, 0) };
        assert_eq!(kinds(&shared, Decision::Fresh), [(2, Kind::Grant, true)]);
        assert_eq!(
            kinds(&shared, Decision::Joined),
            [(2, Kind::Grant, true), (4, Kind::Acquire, true)]
        );
        assert_eq!(kinds(&shared, Decision::ToAgent), [(4, Kind::Acquire, false)]);
        assert_eq!(kinds(&release, Decision::ToAgent), [(4, Kind::Release, true)]);
        assert_eq!(kinds(&release, Decision::Ends), [(0, Kind::Ack, false)]);
        assert_eq!(kinds(&grant, Decision::Accepted), [(2, Kind::Grant, false)]);
        assert_eq!(kinds(&grant, Decision::Refused), [(4, Kind::Grant, false)]);
        assert_eq!(kinds(&free, Decision::Accepted), [(9, Kind::Ack, false)]);
    }

    #[test]
    fn numbers_are_judged_by_the_last() {
        use Numbered::{Gap, New, Repeated};
        let table = [
            (Numbering::InOrder, 5, 6, (New, 6)),
            (Numbering::InOrder, 5, 7, (Gap, 5)),
            (Numbering::InOrder, u64::MAX - 1, u64::MAX, (New, u64::MAX)),
            (Numbering::InOrder, 3, u64::MAX, (Gap, 3)),
            (Numbering::InOrder, 1 << 32, (1 << 32) + 1, (New, (1 << 32) + 1)),
            (Numbering::InOrder, 5, 5, (Repeated { recorded: true }, 5)),
            (Numbering::InOrder, 40, 9, (Repeated { recorded: true }, 40)),
            (Numbering::InOrder, 40, 8, (Repeated { recorded: false }, 40)),
            (Numbering::Largest, 5, 7, (New, 7)),
            (Numbering::Largest, 7, 6, (Repeated { recorded: true }, 7)),
            (Numbering::Ignored, 0, 3, (New, 0)),
        ];
        for (numbering, last, sequence, expected) in table {
            assert_eq!(arrival(numbering, last, sequence), expected, "{last} {sequence}");
        }
    }

    #[test]
    fn a_repeated_request_is_answered_as_the_first_time() {
        let mut decider = Decider::new(1, Rules::CLOSED, Preference::Readers);
        let first = Packet { sequence: 1, ..packet(Kind::Acquire, Mode::Shared) };
        let granted = decider.process(&first);
        let other = Origin { machine: 3, channel: 0 };
        let joins = Packet { origin: other, ..first.clone() };
        assert_eq!(decider.process(&joins).len(), 2);
        let state = decider.lock(0);
        assert_eq!(decider.process(&first), granted);
        assert_eq!(decider.lock(0), state, "and has no effect");
    }

    #[test]
    fn older_epochs_and_dead_machines_are_dropped() {
        let mut decider = Decider::new(1, Rules::CLOSED, Preference::Readers);
        decider.recover(1, &[7], &BTreeMap::new());
        let old = Packet { sequence: 1, ..packet(Kind::Acquire, Mode::Shared) };
        assert_eq!(decider.process(&old), []);
        let dead = Origin { machine: 7, channel: 0 };
        assert_eq!(decider.process(&Packet { epoch: 1, origin: dead, ..old.clone() }), []);
        assert_eq!(decider.lock(0), FREE);
        assert_eq!(decider.process(&Packet { epoch: 1, lock: 1, ..old.clone() }), []);
        assert_eq!(decider.process(&Packet { epoch: 1, ..old }).len(), 1);
    }
}
