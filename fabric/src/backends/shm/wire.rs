//! The protocol between a process and the host of a node: each request and each reply is a packet.
//!
//! A packet is six little-endian words, and may carry file descriptors. The first word is the kind,
//! the remaining words are the fields. `Hello` and the refusal of a version keep their layout in
//! all future versions; everything else may change with [`VERSION`].

use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId};
use crate::contract::region::Rights;

/// Version of the protocol; raised with each change of packets, mailboxes, gates or boards.
pub(super) const VERSION: u16 = 2;
/// Distinguishes a process of this fabric from foreign clients of the socket.
const MAGIC: u64 = u64::from_le_bytes(*b"lotusshm");

pub(super) const PACKET_BYTES: usize = 48;
pub(super) type Packet = [u8; PACKET_BYTES];
type Words = [u64; PACKET_BYTES / 8];

/// Requests of a process to a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostRequest {
    /// First packet; carries the file of the process's gates.
    Hello { version: u16, nodes: u16, node: NodeId },
    /// Registers a region.
    Register { region: RegionId, bytes: u64, rights: Rights },
    /// Asks for the first region with number `from` or higher.
    NextRegion { from: u16 },
    /// Opens a lane of the node; carries the bell to ring while the lane sleeps.
    OpenLane { lane: LaneId },
    /// Asks for the ring in which `from` puts messages for `lane` of the node.
    FindLane { lane: LaneId, from: Endpoint },
    /// Closes the process's lane, which no longer sends or receives at this node.
    CloseLane { at: Endpoint },
    /// Fences a node's older epochs.
    Fence { expelled: NodeId, epoch: Epoch },
    /// Says that the process has unmapped everything. Not answered.
    Goodbye,
}

/// Replies of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// Attached; carries the board.
    Welcome,
    /// Carried out.
    Done,
    /// A region; carries its file.
    Region { region: RegionId, bytes: u64, rights: Rights },
    /// No further regions.
    NoMoreRegions,
    /// The lane is open; carries its mailbox.
    Lane,
    /// A ring of a lane; carries its mailbox and bell.
    Ring { index: u16 },
    /// Not carried out.
    Refused(HostRefusal),
}

/// Reason why a host refuses a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostRefusal {
    Version { theirs: u16 },
    OtherCluster,
    OtherUser,
    Crowded,
    RegionTaken,
    LaneTaken,
    NoLane,
    NoRoom,
    NotFenced,
    System { errno: i32 },
}

fn rights_word(rights: Rights) -> u64 {
    u64::from(rights.read) | u64::from(rights.write) << 1 | u64::from(rights.atomic) << 2
}

fn rights_of(word: u64) -> Option<Rights> {
    let bit = |index: u32| word >> index & 1 == 1;
    (word < 8).then(|| Rights { read: bit(0), write: bit(1), atomic: bit(2) })
}

fn endpoint_word(at: Endpoint) -> u64 {
    u64::from(at.node.0) << 16 | u64::from(at.lane.0)
}

fn endpoint_of(word: u64) -> Option<Endpoint> {
    let node = NodeId(u16::try_from(word >> 16).ok()?);
    Some(Endpoint { node, lane: LaneId(word as u16) })
}

fn short(word: u64) -> Option<u16> {
    u16::try_from(word).ok()
}

fn region_of(word: u64) -> Option<RegionId> {
    u8::try_from(word).ok().map(RegionId)
}

fn pack(words: Words) -> Packet {
    let mut packet = [0; PACKET_BYTES];
    for (bytes, word) in packet.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    packet
}

fn unpack(packet: &Packet) -> Words {
    let (words, _) = packet.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

impl HostRequest {
    pub(super) fn encode(self) -> Packet {
        pack(match self {
            Self::Hello { version, nodes, node } => {
                [1, MAGIC, version.into(), nodes.into(), node.0.into(), 0]
            }
            Self::Register { region, bytes, rights } => {
                [2, region.0.into(), bytes, rights_word(rights), 0, 0]
            }
            Self::NextRegion { from } => [3, from.into(), 0, 0, 0, 0],
            Self::OpenLane { lane } => [4, lane.0.into(), 0, 0, 0, 0],
            Self::FindLane { lane, from } => [5, lane.0.into(), endpoint_word(from), 0, 0, 0],
            Self::CloseLane { at } => [6, endpoint_word(at), 0, 0, 0, 0],
            Self::Fence { expelled, epoch } => [7, expelled.0.into(), epoch.0.into(), 0, 0, 0],
            Self::Goodbye => [8, 0, 0, 0, 0, 0],
        })
    }

    /// Decodes a request; `None` if it is malformed.
    pub(super) fn decode(packet: &Packet) -> Option<Self> {
        let [kind, one, two, three, four, _] = unpack(packet);
        Some(match kind {
            1 if one == MAGIC => {
                let (version, nodes) = (short(two)?, short(three)?);
                Self::Hello { version, nodes, node: NodeId(short(four)?) }
            }
            2 => Self::Register { region: region_of(one)?, bytes: two, rights: rights_of(three)? },
            3 => Self::NextRegion { from: short(one)? },
            4 => Self::OpenLane { lane: LaneId(short(one)?) },
            5 => Self::FindLane { lane: LaneId(short(one)?), from: endpoint_of(two)? },
            6 => Self::CloseLane { at: endpoint_of(one)? },
            7 => {
                let epoch = Epoch(u32::try_from(two).ok()?);
                Self::Fence { expelled: NodeId(short(one)?), epoch }
            }
            8 => Self::Goodbye,
            _ => return None,
        })
    }
}

impl Reply {
    pub(super) fn encode(self) -> Packet {
        pack(match self {
            Self::Welcome => [1, MAGIC, 0, 0, 0, 0],
            Self::Done => [2, 0, 0, 0, 0, 0],
            Self::Region { region, bytes, rights } => {
                [3, region.0.into(), bytes, rights_word(rights), 0, 0]
            }
            Self::NoMoreRegions => [4, 0, 0, 0, 0, 0],
            Self::Lane => [5, 0, 0, 0, 0, 0],
            Self::Ring { index } => [6, index.into(), 0, 0, 0, 0],
            Self::Refused(refusal) => {
                let (code, detail) = refusal.code();
                [7, MAGIC, code, detail, 0, 0]
            }
        })
    }

    /// Decodes a reply; `None` if it is malformed.
    pub(super) fn decode(packet: &Packet) -> Option<Self> {
        let [kind, one, two, three, ..] = unpack(packet);
        Some(match kind {
            1 if one == MAGIC => Self::Welcome,
            2 => Self::Done,
            3 => Self::Region { region: region_of(one)?, bytes: two, rights: rights_of(three)? },
            4 => Self::NoMoreRegions,
            5 => Self::Lane,
            6 => Self::Ring { index: short(one)? },
            7 if one == MAGIC => Self::Refused(HostRefusal::of_code(two, three)?),
            _ => return None,
        })
    }
}

impl HostRefusal {
    fn code(self) -> (u64, u64) {
        match self {
            Self::Version { theirs } => (1, theirs.into()),
            Self::OtherCluster => (2, 0),
            Self::OtherUser => (3, 0),
            Self::Crowded => (4, 0),
            Self::RegionTaken => (5, 0),
            Self::LaneTaken => (6, 0),
            Self::NoLane => (7, 0),
            Self::NoRoom => (8, 0),
            Self::NotFenced => (9, 0),
            Self::System { errno } => (10, errno.unsigned_abs().into()),
        }
    }

    fn of_code(code: u64, detail: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Version { theirs: short(detail)? },
            2 => Self::OtherCluster,
            3 => Self::OtherUser,
            4 => Self::Crowded,
            5 => Self::RegionTaken,
            6 => Self::LaneTaken,
            7 => Self::NoLane,
            8 => Self::NoRoom,
            9 => Self::NotFenced,
            10 => Self::System { errno: i32::try_from(detail).ok()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: Endpoint = Endpoint { node: NodeId(0xFFFF), lane: LaneId(0xABCD) };

    #[test]
    fn requests_and_replies_survive_the_way() {
        let (region, rights) = (RegionId(255), Rights::READ_ONLY);
        let requests = [
            HostRequest::Hello { version: VERSION, nodes: 9, node: AT.node },
            HostRequest::Register { region, bytes: 1 << 40, rights },
            HostRequest::NextRegion { from: 256 },
            HostRequest::OpenLane { lane: AT.lane },
            HostRequest::FindLane { lane: LaneId(0), from: AT },
            HostRequest::CloseLane { at: AT },
            HostRequest::Fence { expelled: AT.node, epoch: Epoch(u32::MAX) },
            HostRequest::Goodbye,
        ];
        for request in requests {
            assert_eq!(HostRequest::decode(&request.encode()), Some(request));
        }
        let refusals = [
            HostRefusal::Version { theirs: 7 },
            HostRefusal::OtherCluster,
            HostRefusal::OtherUser,
            HostRefusal::Crowded,
            HostRefusal::RegionTaken,
            HostRefusal::LaneTaken,
            HostRefusal::NoLane,
            HostRefusal::NoRoom,
            HostRefusal::NotFenced,
            HostRefusal::System { errno: 12 },
        ];
        let replies = [
            Reply::Welcome,
            Reply::Done,
            Reply::Region { region, bytes: 64, rights: Rights::ALL },
            Reply::NoMoreRegions,
            Reply::Lane,
            Reply::Ring { index: 3 },
        ];
        for reply in replies.into_iter().chain(refusals.map(Reply::Refused)) {
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
    }

    proptest! {
        /// Decoded packets encode to the same meaning; all others are refused.
        #[test]
        fn garbage_never_panics(kind in 0u64..12, fields in any::<[u64; 5]>(), magic: bool) {
            let [one, two, three, four, five] = fields;
            let packet = pack([kind, if magic { MAGIC } else { one }, two, three, four, five]);
            if let Some(request) = HostRequest::decode(&packet) {
                prop_assert_eq!(HostRequest::decode(&request.encode()), Some(request));
            }
            if let Some(reply) = Reply::decode(&packet) {
                prop_assert_eq!(Reply::decode(&reply.encode()), Some(reply));
            }
        }
    }
}
