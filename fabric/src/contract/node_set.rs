//! Sets of nodes, for a WRITE of the same bytes to several of them.

use crate::contract::ids::NodeId;

/// A set of nodes with numbers below [`NodeSet::LIMIT`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeSet {
    bits: Bits,
    /// Number of bits set. Kept, because processors without an instruction for it count slowly.
    count: u8,
}

/// A bit for each node, by its number: two words, because shifts of one of 128 bits are slow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Bits {
    low: u64,
    high: u64,
}

impl Bits {
    /// The bit of a node: of its number modulo [`NodeSet::LIMIT`].
    #[inline]
    pub(crate) fn of(node: NodeId) -> Self {
        let bit = 1 << (node.0 % 64);
        if node.0 & 64 == 0 { Self { low: bit, high: 0 } } else { Self { low: 0, high: bit } }
    }

    #[inline]
    pub(crate) fn or(self, other: Self) -> Self {
        Self { low: self.low | other.low, high: self.high | other.high }
    }

    #[inline]
    fn and(self, other: Self) -> Self {
        Self { low: self.low & other.low, high: self.high & other.high }
    }

    #[inline]
    fn without(self, other: Self) -> Self {
        Self { low: self.low & !other.low, high: self.high & !other.high }
    }

    /// Number of bits set. For few, this is cheaper than `count_ones` where there is no instruction
    /// for it.
    #[inline]
    pub(crate) fn count(self) -> u8 {
        Nodes(self).map(|_| 1).sum()
    }
}

impl NodeSet {
    /// The set without nodes.
    pub const EMPTY: Self = Self { bits: Bits { low: 0, high: 0 }, count: 0 };
    /// Nodes of a set have numbers below this.
    pub const LIMIT: u16 = 128;

    /// Adds a node.
    ///
    /// # Panics
    /// If its number is not below [`Self::LIMIT`].
    #[inline]
    pub fn insert(&mut self, node: NodeId) {
        assert!(node.0 < Self::LIMIT, "node {} is too large for a set", node.0);
        self.count += u8::from(!self.contains(node));
        self.bits = self.bits.or(Bits::of(node));
    }

    /// Whether the node is in the set.
    #[inline]
    pub fn contains(&self, node: NodeId) -> bool {
        node.0 < Self::LIMIT && self.bits.and(Bits::of(node)) != Bits::default()
    }

    /// Number of nodes in the set.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether no node is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Nodes that are in both sets.
    #[inline]
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.with_bits(self.bits.and(other.bits))
    }

    /// Nodes that are in either set.
    #[inline]
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.with_bits(self.bits.or(other.bits))
    }

    /// The set without `node`.
    #[inline]
    #[must_use]
    pub fn without(self, node: NodeId) -> Self {
        if self.contains(node) {
            Self { bits: self.bits.without(Bits::of(node)), count: self.count - 1 }
        } else {
            self
        }
    }

    /// Takes out the node with the lowest number.
    #[inline]
    pub fn take_first(&mut self) -> Option<NodeId> {
        let mut nodes = Nodes(self.bits);
        let first = nodes.next()?;
        *self = Self { bits: nodes.0, count: self.count - 1 };
        Some(first)
    }

    /// The nodes as bits.
    #[inline]
    pub(crate) fn bits(&self) -> Bits {
        self.bits
    }

    #[inline]
    fn with_bits(self, bits: Bits) -> Self {
        if bits == self.bits { self } else { Self { bits, count: bits.count() } }
    }
}

impl IntoIterator for NodeSet {
    type Item = NodeId;
    type IntoIter = Nodes;

    #[inline]
    fn into_iter(self) -> Nodes {
        Nodes(self.bits)
    }
}

/// The nodes of a set, in ascending order.
#[derive(Clone, Debug)]
pub struct Nodes(pub(crate) Bits);

impl Iterator for Nodes {
    type Item = NodeId;

    #[inline]
    fn next(&mut self) -> Option<NodeId> {
        let (half, base) = match &mut self.0 {
            Bits { low: 0, high: 0 } => return None,
            Bits { low: 0, high } => (high, 64),
            Bits { low, .. } => (low, 0),
        };
        let bit = half.trailing_zeros() as u16;
        // Clears the lowest bit.
        *half &= *half - 1;
        Some(NodeId(base + bit))
    }
}

impl From<NodeId> for NodeSet {
    #[inline]
    fn from(node: NodeId) -> Self {
        let mut set = Self::EMPTY;
        set.insert(node);
        set
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::EMPTY;
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(nodes: &[u16]) -> NodeSet {
        nodes.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn a_set_keeps_each_node_once_in_ascending_order() {
        let all = set(&[127, 0, 64, 63, 5, 64]);
        let found: Vec<_> = all.into_iter().map(|node| node.0).collect();
        assert_eq!(found, [0, 5, 63, 64, 127]);
        assert_eq!(all.len(), 5);
        assert_eq!(NodeSet::EMPTY.into_iter().next(), None);
        assert!(NodeSet::EMPTY.is_empty() && !set(&[99]).is_empty());
    }

    #[test]
    fn sets_combine() {
        let (some, others) = (set(&[1, 2, 70]), set(&[2, 70, 71]));
        assert_eq!(some.and(others), set(&[2, 70]));
        assert_eq!(some.or(others), set(&[1, 2, 70, 71]));
        assert_eq!(some.and(some), some);
        assert!(some.contains(NodeId(70)) && !some.contains(NodeId(71)));
        assert!(!some.contains(NodeId(128 + 70)), "a node that no set can hold is in none");
        assert_eq!(some.without(NodeId(70)).without(NodeId(71)), set(&[1, 2]));
        let mut left = some;
        assert_eq!(left.take_first(), Some(NodeId(1)));
        assert_eq!(left, set(&[2, 70]));
    }

    #[test]
    #[should_panic(expected = "too large for a set")]
    fn a_node_beyond_the_limit_is_refused() {
        let _ = NodeSet::from(NodeId(NodeSet::LIMIT));
    }
}
