//! The codec of the handshake's messages.
//!
//! A node opens a TCP connection to a peer, sends a request, reads a reply, and closes. Numbers are
//! little-endian. Request and reply begin with the same six bytes in every version, so that nodes
//! of different versions can report the mismatch:
//!
//! ```text
//! magic (4) version (2) | kind or status (1) | body
//! ```

use super::ffi::Gid;
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId};
use crate::contract::region::Rights;

pub(super) const MAGIC: [u8; 4] = *b"LoRD";
/// Version of the handshake; raised whenever a message changes.
pub(super) const VERSION: u16 = 1;
/// Length of magic and version.
pub(super) const PREAMBLE_BYTES: usize = 6;
/// Length of the longest message: a reply with the largest possible number of regions.
pub(super) const MAX_BYTES: usize = 64 + 256 * 22;

/// Parameters that an end of a connection sends to the far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuePairInfo {
    pub queue_pair: u32,
    pub first_packet: u32,
    pub gid: Gid,
    pub lid: u16,
    /// The library's code.
    pub mtu: u8,
    /// READs and atomics in flight that a target serves, or that an initiator will issue.
    pub reads: u8,
}

/// A region from remote nodes' side: address, size, rights and key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub region: RegionId,
    pub rights: Rights,
    pub bytes: u64,
    pub address: u64,
    pub key: u32,
}

/// Address at which a lane receives datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mailbox {
    pub queue_pair: u32,
    pub queue_key: u32,
    pub gid: Gid,
    pub lid: u16,
}

/// A request to node `of`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeRequest {
    /// Asks whether the node answers.
    Greet { of: NodeId },
    /// Asks for a connection for one-sided verbs, in place of the lane's current connection.
    Connect { of: NodeId, from: Endpoint, epoch: Epoch, card: QueuePairInfo },
    /// Asks for the mailbox of the lane.
    Find { lane: Endpoint },
    /// Fences older epochs of a node.
    Fence { of: NodeId, expelled: NodeId, epoch: Epoch },
}

/// Reply to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    /// Done.
    Yes,
    /// The connection is made.
    Connected { card: QueuePairInfo, keys: Vec<Key> },
    /// The lane's mailbox.
    Found(Mailbox),
    /// The initiator's epoch is fenced.
    Revoked,
    /// The node or lane is unknown to the asked node.
    Unknown,
    /// The device returned an error.
    Failed,
}

impl NodeRequest {
    pub fn of(&self) -> NodeId {
        match self {
            Self::Greet { of } | Self::Connect { of, .. } | Self::Fence { of, .. } => *of,
            Self::Find { lane } => lane.node,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Greet { of } => {
                out.u8(0);
                out.u16(of.0);
            }
            Self::Connect { of, from, epoch, card } => {
                out.u8(1);
                out.u16(of.0);
                out.endpoint(*from);
                out.u32(epoch.0);
                out.card(card);
            }
            Self::Find { lane } => {
                out.u8(2);
                out.endpoint(*lane);
            }
            Self::Fence { of, expelled, epoch } => {
                out.u8(3);
                out.u16(of.0);
                out.u16(expelled.0);
                out.u32(epoch.0);
            }
        }
        out.0
    }

    /// Decodes a request, without its preamble.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut body = Reader(body);
        let request = match body.u8()? {
            0 => Self::Greet { of: NodeId(body.u16()?) },
            1 => Self::Connect {
                of: NodeId(body.u16()?),
                from: body.endpoint()?,
                epoch: Epoch(body.u32()?),
                card: body.card()?,
            },
            2 => Self::Find { lane: body.endpoint()? },
            3 => Self::Fence {
                of: NodeId(body.u16()?),
                expelled: NodeId(body.u16()?),
                epoch: Epoch(body.u32()?),
            },
            _ => return None,
        };
        body.0.is_empty().then_some(request)
    }
}

impl Reply {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Yes => out.u8(0),
            Self::Connected { card, keys } => {
                out.u8(1);
                out.card(card);
                out.u16(keys.len() as u16);
                keys.iter().for_each(|key| out.key(key));
            }
            Self::Found(mailbox) => {
                out.u8(2);
                out.u32(mailbox.queue_pair);
                out.u32(mailbox.queue_key);
                out.0.extend_from_slice(&mailbox.gid);
                out.u16(mailbox.lid);
            }
            Self::Revoked => out.u8(3),
            Self::Unknown => out.u8(4),
            Self::Failed => out.u8(5),
        }
        out.0
    }

    /// Decodes a reply, without its preamble.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let mut body = Reader(body);
        let reply = match body.u8()? {
            0 => Self::Yes,
            1 => {
                let card = body.card()?;
                let count = body.u16()?;
                let keys = (0..count).map(|_| body.key()).collect::<Option<_>>()?;
                Self::Connected { card, keys }
            }
            2 => Self::Found(Mailbox {
                queue_pair: body.u32()?,
                queue_key: body.u32()?,
                gid: body.array()?,
                lid: body.u16()?,
            }),
            3 => Self::Revoked,
            4 => Self::Unknown,
            5 => Self::Failed,
            _ => return None,
        };
        body.0.is_empty().then_some(reply)
    }
}

/// Returns the version in a preamble; `None` if the magic is wrong.
pub(super) fn version_of(preamble: [u8; PREAMBLE_BYTES]) -> Option<u16> {
    let [a, b, c, d, low, high] = preamble;
    ([a, b, c, d] == MAGIC).then(|| u16::from_le_bytes([low, high]))
}

struct Writer(Vec<u8>);

impl Writer {
    fn new() -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        Self(bytes)
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn endpoint(&mut self, at: Endpoint) {
        self.u16(at.node.0);
        self.u16(at.lane.0);
    }

    fn card(&mut self, card: &QueuePairInfo) {
        self.u32(card.queue_pair);
        self.u32(card.first_packet);
        self.0.extend_from_slice(&card.gid);
        self.u16(card.lid);
        self.u8(card.mtu);
        self.u8(card.reads);
    }

    fn key(&mut self, key: &Key) {
        let Rights { read, write, atomic } = key.rights;
        self.u8(key.region.0);
        self.u8(u8::from(read) | u8::from(write) << 1 | u8::from(atomic) << 2);
        self.u64(key.bytes);
        self.u64(key.address);
        self.u32(key.key);
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn endpoint(&mut self) -> Option<Endpoint> {
        Some(Endpoint { node: NodeId(self.u16()?), lane: LaneId(self.u16()?) })
    }

    fn card(&mut self) -> Option<QueuePairInfo> {
        Some(QueuePairInfo {
            queue_pair: self.u32()?,
            first_packet: self.u32()?,
            gid: self.array()?,
            lid: self.u16()?,
            mtu: self.u8()?,
            reads: self.u8()?,
        })
    }

    fn key(&mut self) -> Option<Key> {
        let (region, rights) = (RegionId(self.u8()?), self.u8()?);
        Some(Key {
            region,
            rights: Rights {
                read: rights & 1 != 0,
                write: rights & 2 != 0,
                atomic: rights & 4 != 0,
            },
            bytes: self.u64()?,
            address: self.u64()?,
            key: self.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: QueuePairInfo = QueuePairInfo {
        queue_pair: 0x1_0203,
        first_packet: 9,
        gid: [7; 16],
        lid: 3,
        mtu: 5,
        reads: 16,
    };

    fn at(node: u16, lane: u16) -> Endpoint {
        Endpoint { node: NodeId(node), lane: LaneId(lane) }
    }

    fn body(message: &[u8]) -> &[u8] {
        &message[PREAMBLE_BYTES..]
    }

    #[test]
    fn messages_survive_the_wire_and_no_part_of_them_does() {
        let of = NodeId(300);
        let requests = [
            NodeRequest::Greet { of },
            NodeRequest::Connect { of, from: at(2, 70), epoch: Epoch(9), card: CARD },
            NodeRequest::Find { lane: at(1, 2) },
            NodeRequest::Fence { of, expelled: NodeId(4), epoch: Epoch(5) },
        ];
        for request in requests {
            let bytes = request.encode();
            assert_eq!(NodeRequest::decode(body(&bytes)), Some(request));
            for end in PREAMBLE_BYTES..bytes.len() {
                assert_eq!(NodeRequest::decode(&bytes[PREAMBLE_BYTES..end]), None);
            }
        }
        let key = |region| Key {
            region: RegionId(region),
            rights: Rights { read: true, write: false, atomic: true },
            bytes: 1 << 33,
            address: 0xFFFF_8000,
            key: 77,
        };
        let all: Vec<_> = (0..=255).map(key).collect();
        let mailbox = Mailbox { queue_pair: 1, queue_key: 2, gid: [3; 16], lid: 4 };
        let replies = [
            Reply::Yes,
            Reply::Connected { card: CARD, keys: all },
            Reply::Found(mailbox),
            Reply::Revoked,
            Reply::Unknown,
            Reply::Failed,
        ];
        for reply in replies {
            let bytes = reply.encode();
            assert!(bytes.len() <= MAX_BYTES);
            assert_eq!(Reply::decode(body(&bytes)).as_ref(), Some(&reply));
            for end in PREAMBLE_BYTES..bytes.len() {
                assert_eq!(Reply::decode(&bytes[PREAMBLE_BYTES..end]), None);
            }
        }
    }

    #[test]
    fn a_preamble_tells_its_version() {
        let bytes = NodeRequest::Greet { of: NodeId(0) }.encode();
        let mut preamble = *bytes.first_chunk().expect("longer than that");
        assert_eq!(version_of(preamble), Some(VERSION));
        preamble[4] = 0xFF;
        assert_eq!(version_of(preamble), Some(0xFF));
        preamble[0] = b'!';
        assert_eq!(version_of(preamble), None);
    }
}
