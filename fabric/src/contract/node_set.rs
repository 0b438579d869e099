//! Sets of nodes, for a WRITE of the same bytes to several nodes.

use crate::contract::ids::NodeId;

/// A set of nodes with numbers below [`NodeSet::LIMIT`]: one bit per node number. Two words,
/// because shifts of a 128-bit integer are slow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeSet {
    low: u64,
    high: u64,
}

impl NodeSet {
    /// The empty set.
    pub const EMPTY: Self = Self { low: 0, high: 0 };
    /// Upper bound (exclusive) of node numbers in a set.
    pub const LIMIT: u16 = 128;

    /// The set with one node: the number of `node` modulo [`Self::LIMIT`].
    #[inline]
    pub(crate) fn of_low_bits(node: NodeId) -> Self {
        let bit = 1 << (node.0 % 64);
        if node.0 & 64 == 0 { Self { low: bit, high: 0 } } else { Self { low: 0, high: bit } }
    }

    /// Adds a node.
    ///
    /// # Panics
    /// If its number is not below [`Self::LIMIT`].
    #[inline]
    pub fn insert(&mut self, node: NodeId) {
        assert!(node.0 < Self::LIMIT, "node {} is too large for a set", node.0);
        *self = self.or(Self::of_low_bits(node));
    }

    /// Returns whether the node is in the set.
    #[inline]
    pub fn contains(&self, node: NodeId) -> bool {
        node.0 < Self::LIMIT && !self.and(Self::of_low_bits(node)).is_empty()
    }

    /// Number of nodes in the set. For few nodes, cheaper than `count_ones` on processors without a
    /// popcount instruction.
    #[inline]
    pub fn len(&self) -> usize {
        self.into_iter().count()
    }

    /// Returns whether no node is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.low | self.high == 0
    }

    /// Intersection of both sets.
    #[inline]
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { low: self.low & other.low, high: self.high & other.high }
    }

    /// Union of both sets.
    #[inline]
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self { low: self.low | other.low, high: self.high | other.high }
    }

    /// The set without `node`.
    #[inline]
    #[must_use]
    pub fn without(self, node: NodeId) -> Self {
        if node.0 >= Self::LIMIT {
            return self;
        }
        let out = Self::of_low_bits(node);
        Self { low: self.low & !out.low, high: self.high & !out.high }
    }

    /// Takes out the node with the lowest number.
    #[inline]
    pub fn take_first(&mut self) -> Option<NodeId> {
        // Most numbers are below 64: one comparison is enough.
        if self.low != 0 {
            return Some(NodeId(take_lowest(&mut self.low)));
        }
        (self.high != 0).then(|| NodeId(64 + take_lowest(&mut self.high)))
    }
}

/// Clears the lowest set bit and returns its number.
#[inline]
fn take_lowest(bits: &mut u64) -> u16 {
    let lowest = bits.trailing_zeros() as u16;
    *bits &= *bits - 1;
    lowest
}

impl IntoIterator for NodeSet {
    type Item = NodeId;
    type IntoIter = Nodes;

    #[inline]
    fn into_iter(self) -> Nodes {
        Nodes(self)
    }
}

/// The nodes of a set, in ascending order.
#[derive(Clone, Debug)]
pub struct Nodes(NodeSet);

impl Iterator for Nodes {
    type Item = NodeId;

    #[inline]
    fn next(&mut self) -> Option<NodeId> {
        self.0.take_first()
    }

    /// Goes through one word after the other; `for_each` and `count` use `fold`.
    #[inline]
    fn fold<B, F: FnMut(B, NodeId) -> B>(self, init: B, mut visit: F) -> B {
        let NodeSet { mut low, mut high } = self.0;
        let mut folded = init;
        while low != 0 {
            folded = visit(folded, NodeId(take_lowest(&mut low)));
        }
        while high != 0 {
            folded = visit(folded, NodeId(64 + take_lowest(&mut high)));
        }
        folded
    }
}

impl From<NodeId> for NodeSet {
    #[inline]
    fn from(node: NodeId) -> Self {
        assert!(node.0 < Self::LIMIT, "node {} is too large for a set", node.0);
        Self::of_low_bits(node)
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
        assert_eq!(some.without(NodeId(128 + 70)), some);
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
