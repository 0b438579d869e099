//! Inner nodes unpacked, for searches that cost no READ.

use std::rc::Rc;

use crate::node::{HEAD_BYTES, head, is_before};
use crate::{CHILD_BYTES, Node, Seek};

/// Bytes of a key's beginning that are compared at once.
const BEGIN_BYTES: usize = size_of::<u64>();
/// Number of heads that are counted rather than searched: one comparison of all heads takes less
/// time than dependent steps.
const COUNTED: usize = 64;

/// An inner node, as a compute node remembers it. Clones share memory.
///
/// Beside the node's bytes it has the first bytes of each key and the number of each child, in one
/// allocation: most searches look at nothing else, and at few cache lines and one page of memory.
///
/// ```
/// use lotus_tree::{Inner, Node, Seek, edit};
///
/// let bytes = edit::root_above(0, 7, b"bea", 8);
/// let inner = Inner::of(Node::read(&bytes).expect("well-formed")).expect("it has children");
/// assert_eq!(inner.child(Seek::At(b"ada")), Some(7));
/// assert_eq!(inner.child(Seek::At(b"bea")), Some(8));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inner {
    level: u8,
    entries: usize,
    /// Length of the common prefix of all keys within the fences, and the first bytes of the
    /// prefix.
    shared: usize,
    begin: [u8; BEGIN_BYTES],
    /// Heads of the entries' keys after the prefix; the numbers of the children; the node.
    packed: Rc<[u8]>,
}

impl Inner {
    /// Unpacks a node; `None` if it is a leaf or has no entries.
    pub fn of(node: Node<'_>) -> Option<Self> {
        if node.is_leaf() || node.is_empty() {
            return None;
        }
        let (entries, shared) = (node.len(), node.shared());
        let heads = (0..entries).flat_map(|index| node.head(index, shared).to_ne_bytes());
        let children = (0..entries).flat_map(|index| node.child(index).to_ne_bytes());
        Some(Self {
            level: node.level(),
            entries,
            shared,
            begin: begin(&node.low()[..shared], shared),
            packed: heads.chain(children).chain(node.bytes().iter().copied()).collect(),
        })
    }

    /// Number of levels below the node.
    #[inline]
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// The node.
    pub fn node(&self) -> Node<'_> {
        Node::of_read(&self.packed[self.entries * (HEAD_BYTES + CHILD_BYTES)..])
    }

    /// Number of the child that is responsible for a place; `None` if the node does not cover the
    /// place. Agrees with [`Node::covers`] and [`Node::child_place`], in a fraction of the time.
    #[inline]
    pub fn child(&self, place: Seek<'_>) -> Option<u64> {
        let entries = match place {
            Seek::At(key) | Seek::Below(key) => self.entries_before(key, place)?,
            Seek::Last => self.entries,
        };
        let index = entries.checked_sub(1)?;
        let ends_after = || self.node().ends_after(place);
        let is_its = index + 1 < self.entries || ends_after();
        is_its.then(|| {
            let children = &self.packed[self.entries * HEAD_BYTES..];
            u64::from_ne_bytes(children.as_chunks::<CHILD_BYTES>().0[index])
        })
    }

    /// Number of entries that begin at or before `place`, the place of `key`; `None` if `key` lacks
    /// the common prefix of the keys within the fences.
    #[inline]
    fn entries_before(&self, key: &[u8], place: Seek<'_>) -> Option<usize> {
        let is_short = self.shared <= BEGIN_BYTES;
        if key.len() < self.shared
            || begin(key, self.shared) != self.begin
            || (!is_short && key[..self.shared] != self.node().low()[..self.shared])
        {
            return None;
        }
        let heads = &self.packed.as_chunks::<HEAD_BYTES>().0[..self.entries];
        let wanted = head(key, self.shared);
        let same = |head: &[u8; HEAD_BYTES]| u32::from_ne_bytes(*head) == wanted;
        let mut from = less(heads, wanted);
        if heads.get(from).is_some_and(same) {
            let mut until = from + heads[from..].partition_point(same);
            while from < until {
                let middle = from.midpoint(until);
                match is_before(self.node().key(middle), place) {
                    true => from = middle + 1,
                    false => until = middle,
                }
            }
        }
        Some(from)
    }
}

/// The first bytes of a key, zero from byte `length` on.
#[inline]
fn begin(key: &[u8], length: usize) -> [u8; BEGIN_BYTES] {
    let bytes = match key.first_chunk() {
        Some(bytes) => *bytes,
        None => std::array::from_fn(|index| key.get(index).copied().unwrap_or_default()),
    };
    let others = 8 * BEGIN_BYTES.saturating_sub(length) as u32;
    let mask = u64::MAX.checked_shl(others).unwrap_or(0);
    (u64::from_be_bytes(bytes) & mask).to_be_bytes()
}

/// Number of heads, in ascending order, that are less than `wanted`.
#[inline]
fn less(heads: &[[u8; HEAD_BYTES]], wanted: u32) -> usize {
    let is_less = |head: &[u8; HEAD_BYTES]| u32::from_ne_bytes(*head) < wanted;
    let (mut passed, mut heads) = (0, heads);
    while heads.len() > COUNTED {
        let (lower, upper) = heads.split_at(heads.len() / 2);
        match lower.last().is_some_and(is_less) {
            true => (passed, heads) = (passed + lower.len(), upper),
            false => heads = lower,
        }
    }
    passed + heads.iter().map(|head| u32::from(is_less(head))).sum::<u32>() as usize
}
