//! Names of things that cross a network: nodes, addresses, transactions, tables, keys.
//!
//! Every id is a newtype over the integer on the wire, so mixing up two kinds of id does not
//! compile. The module has no behaviour beyond packing and unpacking.

pub use crate::contract::node_set::NodeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A machine (or process) in the cluster. Compute nodes and memory nodes share one number space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NodeId(pub u16);

/// One coordinator's private path into the fabric, numbered from zero on each node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaneId(pub u16);

/// The sender or receiver of a message: a node and a lane on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// The node.
    pub node: NodeId,
    /// The coordinator on that node.
    pub lane: LaneId,
}

/// A registered region on one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(pub u8);

/// Address of a byte in a node's registered memory: 16 bits of node, 48 of offset
/// (`docs/verbs.md`).
///
/// The offset's top 8 bits name the region, the low 40 the byte inside it (1 TiB a region).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteAddr(u64);

impl RemoteAddr {
    /// Bits of an offset inside one region.
    pub const OFFSET_BITS: u32 = 40;
    /// The largest offset inside a region.
    pub const MAX_OFFSET: u64 = (1 << Self::OFFSET_BITS) - 1;

    /// The address of byte `offset` of `region` on `node`.
    ///
    /// # Panics
    /// If `offset` exceeds [`Self::MAX_OFFSET`].
    #[inline]
    pub fn new(node: NodeId, region: RegionId, offset: u64) -> Self {
        assert!(offset <= Self::MAX_OFFSET, "offset {offset:#x} does not fit in 40 bits");
        Self(u64::from(node.0) << 48 | u64::from(region.0) << Self::OFFSET_BITS | offset)
    }

    /// The node that owns the byte.
    #[inline]
    pub fn node(self) -> NodeId {
        NodeId((self.0 >> 48) as u16)
    }

    /// The region that holds the byte.
    #[inline]
    pub fn region(self) -> RegionId {
        RegionId((self.0 >> Self::OFFSET_BITS) as u8)
    }

    /// The byte's offset inside its region.
    #[inline]
    pub fn offset(self) -> u64 {
        self.0 & Self::MAX_OFFSET
    }

    /// The same byte of the region with the same number on another node.
    #[inline]
    pub(crate) fn on(self, node: NodeId) -> Self {
        Self(self.0 & ((1 << 48) - 1) | u64::from(node.0) << 48)
    }

    /// The address `bytes` further on in the same region.
    ///
    /// # Panics
    /// If the new offset leaves the 40-bit offset space.
    #[inline]
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self::new(self.node(), self.region(), self.offset() + bytes)
    }
}

impl fmt::Debug for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}/r{}+{:#x}", self.node().0, self.region().0, self.offset())
    }
}

/// A version of the cluster's configuration. Epochs never decrease.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Epoch(pub u32);

/// One life of a compute node. A restarted node gets a new incarnation, however quick the restart
/// (H2, H4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Incarnation(u16);

impl TryFrom<u16> for Incarnation {
    type Error = &'static str;

    fn try_from(raw: u16) -> Result<Self, Self::Error> {
        Self::new(raw).ok_or("an incarnation has 13 bits")
    }
}

impl From<Incarnation> for u16 {
    fn from(incarnation: Incarnation) -> Self {
        incarnation.0
    }
}

impl Incarnation {
    /// Bits of an incarnation inside a [`TxnId`].
    pub const BITS: u32 = 13;

    /// The incarnation numbered `raw`; `None` if it does not fit in [`Self::BITS`].
    pub const fn new(raw: u16) -> Option<Self> {
        if raw < 1 << Self::BITS { Some(Self(raw)) } else { None }
    }

    /// The number itself.
    pub const fn raw(self) -> u16 {
        self.0
    }
}

/// One attempt of one transaction: incarnation, coroutine slot and attempt number in 63 bits.
///
/// Every retry is a new attempt, so an id is never used twice (H9). The 63 bits are also the writer
/// tag inside an INVISIBLE version word and in a record's header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxnId(u64);

impl TxnId {
    /// Bits of a coroutine slot number: at most 1024 slots on one compute node.
    pub const SLOT_BITS: u32 = 10;
    /// Bits of an attempt number: at a million attempts a second, twelve days in one slot.
    pub const ATTEMPT_BITS: u32 = 40;
    /// The largest slot number.
    pub const MAX_SLOT: u16 = (1 << Self::SLOT_BITS) - 1;
    /// The largest attempt number.
    pub const MAX_ATTEMPT: u64 = (1 << Self::ATTEMPT_BITS) - 1;

    /// The id of attempt `attempt` in slot `slot` of `incarnation`.
    ///
    /// # Panics
    /// If a part does not fit in its bits.
    #[inline]
    pub fn new(incarnation: Incarnation, slot: u16, attempt: u64) -> Self {
        assert!(slot <= Self::MAX_SLOT && attempt <= Self::MAX_ATTEMPT, "transaction id overflow");
        let high = u64::from(incarnation.0) << Self::SLOT_BITS | u64::from(slot);
        Self(high << Self::ATTEMPT_BITS | attempt)
    }

    /// The id whose 63 bits are `raw`.
    ///
    /// # Panics
    /// If the top bit is set.
    #[inline]
    pub fn from_raw(raw: u64) -> Self {
        assert!(raw >> 63 == 0, "a transaction id has 63 bits");
        Self(raw)
    }

    /// The 63 bits.
    #[inline]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The life of the compute node that runs the attempt.
    #[inline]
    pub fn incarnation(self) -> Incarnation {
        Incarnation((self.0 >> (Self::SLOT_BITS + Self::ATTEMPT_BITS)) as u16)
    }

    /// The coroutine slot on the compute node.
    #[inline]
    pub fn slot(self) -> u16 {
        (self.0 >> Self::ATTEMPT_BITS) as u16 & Self::MAX_SLOT
    }

    /// The attempt number in the slot.
    #[inline]
    pub fn attempt(self) -> u64 {
        self.0 & Self::MAX_ATTEMPT
    }
}

impl fmt::Debug for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.incarnation().raw(), self.slot(), self.attempt())
    }
}

/// A table in the catalog.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TableId(pub u16);

/// The unit of lock ownership and of data placement (LOTUS §4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardId(u16);

impl ShardId {
    /// Bits of a shard number.
    pub const BITS: u32 = 12;
    /// Number of shards.
    pub const COUNT: u16 = 1 << Self::BITS;

    /// The shard named by the low 12 bits of `bits`.
    #[inline]
    pub const fn from_low_bits(bits: u64) -> Self {
        Self(bits as u16 & (Self::COUNT - 1))
    }

    /// The number, below [`Self::COUNT`].
    #[inline]
    pub const fn raw(self) -> u16 {
        self.0
    }

    /// Every shard, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }
}

/// A 64-bit LOTUS key: 52 bits of hash above the 12 bits of its shard (LOTUS §4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

impl Key {
    /// The shard that the key belongs to.
    #[inline]
    pub const fn shard(self) -> ShardId {
        ShardId::from_low_bits(self.0)
    }

    /// The 52 bits of hash.
    #[inline]
    pub const fn hash(self) -> u64 {
        self.0 >> ShardId::BITS
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:013x}@{}", self.hash(), self.shard().raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_their_parts() {
        let addr = RemoteAddr::new(NodeId(0xFFFF), RegionId(0xAB), RemoteAddr::MAX_OFFSET - 8);
        assert_eq!(addr.node(), NodeId(0xFFFF));
        assert_eq!(addr.region(), RegionId(0xAB));
        assert_eq!(addr.plus(8).offset(), RemoteAddr::MAX_OFFSET);
    }

    #[test]
    fn transaction_ids_keep_their_parts_and_leave_the_top_bit_free() {
        let inc = Incarnation::new((1 << Incarnation::BITS) - 1).expect("fits");
        let id = TxnId::new(inc, TxnId::MAX_SLOT, TxnId::MAX_ATTEMPT);
        assert_eq!(id.raw(), u64::MAX >> 1);
        assert_eq!(
            (id.incarnation(), id.slot(), id.attempt()),
            (inc, TxnId::MAX_SLOT, TxnId::MAX_ATTEMPT)
        );
        assert_eq!(Incarnation::new(1 << Incarnation::BITS), None);
    }

    #[test]
    fn a_key_carries_its_shard_in_the_low_bits() {
        let key = Key(0xABCD << 12 | 0x123);
        assert_eq!(key.shard().raw(), 0x123);
        assert_eq!(key.hash(), 0xABCD);
    }
}
