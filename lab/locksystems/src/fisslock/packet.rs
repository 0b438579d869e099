//! Packets of the protocol, and their byte encoding.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind, from 1 |
//! | 1 | 1 | flags: shared (bit 0), old mode shared, granted, agent, refused, absent, repeated |
//! | 2 | 1 | epoch |
//! | 3 | 1 | incarnation |
//! | 4 | 1 | machine of the requester |
//! | 5 | 1 | machine of the origin |
//! | 6 | 1 | channel of the origin |
//! | 7 | 1 | bounces so far |
//! | 8 | 4 | lock |
//! | 12 | 4 | task of the requester |
//! | 16 | 2 | nonce |
//! | 18 | 2 | number of the agent's waiters |
//! | 20 | 8 | sequence number |
//! | 28 | 2 | an agent: flags (bit 0 shared), incarnation |
//! | 30 | 8 each | waiters: flags (bit 0 shared), machine, nonce, task |
//!
//! Numbers are little-endian. Every packet has the same header, as in FissLock §5.2; Table 2 of the
//! paper lists the fields used by each type. Nonce, epoch and sequence number are additions. A
//! 32-bit sequence number would be used up within hours on a busy channel.

use lotus_locks::word::Mode;
use thiserror::Error;

/// Type of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A request for a lock.
    Acquire = 1,
    /// The end of a hold, or of a wait, sent to an agent on another machine.
    Release = 2,
    /// The end of an agent without waiters.
    Free = 3,
    /// A grant of a lock. If the packet carries an agent, the receiving machine hosts the agent
    /// from then on.
    Grant = 4,
    /// The acknowledgement that a packet has reached its destination. Names the origin and the
    /// number of the acknowledged packet.
    Ack = 5,
    /// Readers starve a writer: the switch grants no further shared requests until the lock is
    /// drained.
    Starve = 6,
    /// The request is in no queue; a task that still wants the lock has to ask again.
    Refuse = 7,
}

/// A task that holds or wants a lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Participant {
    /// Machine of the task.
    pub machine: u8,
    /// Number of the task on its machine; the highest 8 bits are the core's number.
    pub task: u32,
    /// Number of the request.
    pub nonce: u16,
}

/// A waiter in a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queued {
    /// The waiting task.
    pub who: Participant,
    /// Wanted mode.
    pub mode: Mode,
}

/// Sender of numbered packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// Sending machine.
    pub machine: u8,
    /// Channel of the machine: two for each core.
    pub channel: u8,
}

/// An agent as carried in a packet. The agent has no holders: a lock moves when the last holder has
/// left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    /// Mode in which the lock is granted.
    pub mode: Mode,
    /// Incarnation from which the agent starts counting.
    pub incarnation: u8,
    /// Waiters in queue order: at most [`MAX_WAITERS`].
    pub waiters: Vec<Queued>,
}

/// Maximum number of an agent's waiters, limited by the size of a datagram.
pub const MAX_WAITERS: usize = 500;
/// Bytes of a packet without an agent.
pub const HEADER_BYTES: usize = 28;
const AGENT_BYTES: usize = 2;
const WAITER_BYTES: usize = 8;

const _: () = assert!(HEADER_BYTES + AGENT_BYTES + MAX_WAITERS * WAITER_BYTES <= 4096);

/// A packet. [`Mode::Update`] is sent as exclusive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Type.
    pub kind: Kind,
    /// Number of the lock.
    pub lock: u32,
    /// Wanted or granted mode.
    pub mode: Mode,
    /// The task that requests, releases, or is granted the lock.
    pub who: Participant,
    /// In FREE and in GRANT with an agent: number of shared requests counted by the agent.
    pub incarnation: u8,
    /// In FREE and in GRANT with an agent: mode of the lock before the packet.
    pub old_mode: Mode,
    /// In ACQUIRE and its ACK: the switch has granted the request. In RELEASE: the task has had the
    /// lock.
    pub granted: bool,
    /// The switch has refused the packet, and sent it back.
    pub refused: bool,
    /// In RELEASE, as published: no agent has arrived with a grant.
    pub absent: bool,
    /// The packet is a repetition, or results from one.
    pub repeated: bool,
    /// Period between recoveries; packets of another epoch are dropped.
    pub epoch: u8,
    /// Sender that numbered the packet.
    pub origin: Origin,
    /// Number of the packet within its origin, from 1.
    pub sequence: u64,
    /// Number of times the packet was bounced because the agent was absent.
    pub tries: u8,
    /// In GRANT: the lock's agent.
    pub agent: Option<Carried>,
}

/// Reason why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Fewer bytes than the packet needs.
    #[error("a packet of {bytes} bytes is too short: it needs {needed}")]
    TooShort {
        /// Bytes present.
        bytes: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// Extra bytes behind the packet.
    #[error("a packet has {0} bytes too many")]
    TooLong(usize),
    /// The type is not a [`Kind`].
    #[error("{0} is no type of a packet")]
    UnknownKind(u8),
    /// An undefined flag is set.
    #[error("a packet has the unknown flags {0:#x}")]
    UnknownFlags(u8),
    /// An agent has more waiters than a packet may carry, or a packet without an agent has waiters.
    #[error("a packet has {0} waiters, which it cannot carry")]
    Waiters(u16),
}

const SHARED: u8 = 1;
const OLD_SHARED: u8 = 2;
const GRANTED: u8 = 4;
const AGENT: u8 = 8;
const REFUSED: u8 = 16;
const ABSENT: u8 = 32;
const REPEATED: u8 = 64;
const FLAGS: u8 = SHARED | OLD_SHARED | GRANTED | AGENT | REFUSED | ABSENT | REPEATED;

impl Packet {
    /// Creates a packet about a request, without a number, an epoch or an agent.
    pub const fn new(kind: Kind, lock: u32, who: Participant, mode: Mode) -> Self {
        Self {
            kind,
            lock,
            mode,
            who,
            incarnation: 0,
            old_mode: Mode::Exclusive,
            granted: false,
            refused: false,
            absent: false,
            repeated: false,
            epoch: 0,
            origin: Origin { machine: 0, channel: 0 },
            sequence: 0,
            tries: 0,
            agent: None,
        }
    }

    /// Channel and number of the packet, which identify the packet.
    pub(crate) const fn id(&self) -> (Origin, u64) {
        (self.origin, self.sequence)
    }

    /// Encodes the packet.
    ///
    /// # Panics
    /// If an agent has more than [`MAX_WAITERS`] waiters.
    pub fn encode(&self) -> Vec<u8> {
        let waiters = self.agent.as_ref().map_or(0, |agent| agent.waiters.len());
        assert!(waiters <= MAX_WAITERS, "an agent has at most {MAX_WAITERS} waiters");
        let mut flags = mode_bit(self.mode);
        for (is_set, flag) in [
            (mode_bit(self.old_mode) != 0, OLD_SHARED),
            (self.granted, GRANTED),
            (self.agent.is_some(), AGENT),
            (self.refused, REFUSED),
            (self.absent, ABSENT),
            (self.repeated, REPEATED),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let mut bytes = vec![self.kind as u8, flags, self.epoch, self.incarnation];
        bytes.extend([self.who.machine, self.origin.machine, self.origin.channel, self.tries]);
        bytes.extend(self.lock.to_le_bytes());
        bytes.extend(self.who.task.to_le_bytes());
        bytes.extend(self.who.nonce.to_le_bytes());
        bytes.extend((waiters as u16).to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        if let Some(agent) = &self.agent {
            bytes.extend([mode_bit(agent.mode), agent.incarnation]);
            for waiter in &agent.waiters {
                bytes.extend([mode_bit(waiter.mode), waiter.who.machine]);
                bytes.extend(waiter.who.nonce.to_le_bytes());
                bytes.extend(waiter.who.task.to_le_bytes());
            }
        }
        bytes
    }

    /// Decodes a packet.
    pub fn decode(bytes: &[u8]) -> Result<Self, PacketError> {
        let needed = |needed| PacketError::TooShort { bytes: bytes.len(), needed };
        let header: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(needed(HEADER_BYTES))?;
        let flags = known(header[1], FLAGS)?;
        let mut packet = Self::new(
            kind(header[0])?,
            word(&header[8..]),
            Participant {
                machine: header[4],
                task: word(&header[12..]),
                nonce: half(&header[16..]),
            },
            mode(flags & SHARED),
        );
        packet.epoch = header[2];
        packet.incarnation = header[3];
        packet.origin = Origin { machine: header[5], channel: header[6] };
        packet.tries = header[7];
        packet.old_mode = mode(flags & OLD_SHARED);
        packet.granted = flags & GRANTED != 0;
        packet.refused = flags & REFUSED != 0;
        packet.absent = flags & ABSENT != 0;
        packet.repeated = flags & REPEATED != 0;
        packet.sequence = u64::from(word(&header[20..])) | u64::from(word(&header[24..])) << 32;

        let count = half(&header[18..]);
        let (body, has_agent) = (&bytes[HEADER_BYTES..], flags & AGENT != 0);
        if usize::from(count) > MAX_WAITERS || (count > 0 && !has_agent) {
            return Err(PacketError::Waiters(count));
        }
        let length = if has_agent { AGENT_BYTES + usize::from(count) * WAITER_BYTES } else { 0 };
        if body.len() < length {
            return Err(needed(HEADER_BYTES + length));
        }
        if body.len() > length {
            return Err(PacketError::TooLong(body.len() - length));
        }
        packet.agent = if has_agent { Some(carried(body)?) } else { None };
        Ok(packet)
    }
}

/// Decodes the agent of a packet whose length was checked.
fn carried(body: &[u8]) -> Result<Carried, PacketError> {
    let waiter = |bytes: &[u8]| {
        let who =
            Participant { machine: bytes[1], nonce: half(&bytes[2..]), task: word(&bytes[4..]) };
        Ok(Queued { who, mode: mode(known(bytes[0], SHARED)?) })
    };
    Ok(Carried {
        mode: mode(known(body[0], SHARED)?),
        incarnation: body[1],
        waiters: body[AGENT_BYTES..]
            .chunks_exact(WAITER_BYTES)
            .map(waiter)
            .collect::<Result<_, _>>()?,
    })
}

fn kind(raw: u8) -> Result<Kind, PacketError> {
    use Kind::{Ack, Acquire, Free, Grant, Refuse, Release, Starve};
    let kinds = [Acquire, Release, Free, Grant, Ack, Starve, Refuse];
    kinds.into_iter().find(|kind| *kind as u8 == raw).ok_or(PacketError::UnknownKind(raw))
}

fn known(flags: u8, all: u8) -> Result<u8, PacketError> {
    if flags & !all == 0 { Ok(flags) } else { Err(PacketError::UnknownFlags(flags & !all)) }
}

const fn mode_bit(mode: Mode) -> u8 {
    matches!(mode, Mode::Shared) as u8
}

const fn mode(bit: u8) -> Mode {
    if bit == 0 { Mode::Exclusive } else { Mode::Shared }
}

fn half(bytes: &[u8]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn participants() -> impl Strategy<Value = Participant> {
        any::<(u8, u32, u16)>().prop_map(|(machine, task, nonce)| Participant {
            machine,
            task,
            nonce,
        })
    }

    fn agents() -> impl Strategy<Value = Carried> {
        let waiter =
            (participants(), 0..2u8).prop_map(|(who, bit)| Queued { who, mode: mode(bit) });
        (0..2u8, any::<u8>(), prop::collection::vec(waiter, 0..20)).prop_map(
            |(bit, incarnation, waiters)| Carried { mode: mode(bit), incarnation, waiters },
        )
    }

    fn packets() -> impl Strategy<Value = Packet> {
        let numbers = any::<(u32, u64, u8, u8, u8, u8, u8)>();
        (1..=7u8, numbers, participants(), 0..64u8, prop::option::of(agents())).prop_map(
            |(
                raw,
                (lock, sequence, epoch, incarnation, tries, machine, channel),
                who,
                flags,
                agent,
            )| {
                let kind = kind(raw).expect("a kind");
                Packet {
                    incarnation,
                    old_mode: mode(flags & 2),
                    granted: flags & 4 != 0,
                    refused: flags & 8 != 0,
                    absent: flags & 16 != 0,
                    repeated: flags & 32 != 0,
                    epoch,
                    origin: Origin { machine, channel },
                    sequence,
                    tries,
                    agent,
                    ..Packet::new(kind, lock, who, mode(flags & 1))
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_packet_is_what_its_bytes_say(packet in packets()) {
            prop_assert_eq!(Packet::decode(&packet.encode()), Ok(packet));
        }

        #[test]
        fn no_bytes_are_decoded_to_a_packet_of_other_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            if let Ok(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(packet.encode(), bytes);
            }
        }
    }

    fn small() -> Packet {
        let who = Participant { machine: 3, task: 70_000, nonce: 9 };
        let waiters = vec![Queued { who, mode: Mode::Shared }];
        let agent = Some(Carried { mode: Mode::Exclusive, incarnation: 5, waiters });
        Packet { agent, ..Packet::new(Kind::Grant, 11, who, Mode::Exclusive) }
    }

    #[test]
    fn garbage_is_refused_with_its_reason() {
        let good = small().encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Packet::decode(&bytes).expect_err("garbage")
        };
        let short = |bytes, needed| PacketError::TooShort { bytes, needed };
        assert_eq!(Packet::decode(&[]), Err(short(0, HEADER_BYTES)));
        assert_eq!(Packet::decode(&good[..37]), Err(short(37, 38)));
        assert_eq!(Packet::decode(&[&good[..], &[0]].concat()), Err(PacketError::TooLong(1)));
        assert_eq!(with(0, 0), PacketError::UnknownKind(0));
        assert_eq!(with(0, 8), PacketError::UnknownKind(8));
        assert_eq!(with(1, AGENT | 128), PacketError::UnknownFlags(128));
        assert_eq!(with(18, 2), short(38, 46), "more waiters than its length says");
        assert_eq!(with(19, 2), PacketError::Waiters(513));
        assert_eq!(with(1, 0), PacketError::Waiters(1), "waiters without an agent");
        assert_eq!(with(28, 2), PacketError::UnknownFlags(2));
        assert_eq!(with(30, 4), PacketError::UnknownFlags(4));
    }

    #[test]
    fn the_largest_agent_fits_a_packet() {
        let mut packet = small();
        let agent = packet.agent.as_mut().expect("an agent");
        agent.waiters = vec![agent.waiters[0]; MAX_WAITERS];
        let bytes = packet.encode();
        assert_eq!(bytes.len(), 4030);
        assert_eq!(Packet::decode(&bytes), Ok(packet));
    }
}
