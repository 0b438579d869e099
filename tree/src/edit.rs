//! Construction of a node's next state.

use crate::node::HAS_HIGH;
use crate::{CHILD_BYTES, ENTRY_BYTES, HEADER_BYTES, MAX_KEY_BYTES, Node};

/// The two halves of a node that was too large.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Split {
    /// The lower half, which takes the place of the node.
    pub left: Vec<u8>,
    /// Low fence of the upper half.
    pub separator: Vec<u8>,
    /// The upper half, a new node.
    pub right: Vec<u8>,
}

/// Keys that a node is responsible for.
#[derive(Clone, Copy)]
pub(crate) struct Fences<'a> {
    pub(crate) low: &'a [u8],
    pub(crate) high: Option<&'a [u8]>,
}

impl<'a> Fences<'a> {
    fn of(node: Node<'a>) -> Self {
        Self { low: node.low(), high: node.high() }
    }
}

pub(crate) type Entries<'a> = [(&'a [u8], &'a [u8])];

/// Returns a leaf with an entry of `key` added, or replaced if the leaf has one.
///
/// # Panics
/// If the key is longer than [`MAX_KEY_BYTES`], or the node than 64 KiB.
pub fn with(leaf: Node<'_>, key: &[u8], value: &[u8]) -> Vec<u8> {
    debug_assert!(leaf.is_leaf(), "only leaves have values");
    edited(leaf, key, Some(value))
}

/// Returns a node without its entry of `key`, if any.
pub fn without(node: Node<'_>, key: &[u8]) -> Vec<u8> {
    edited(node, key, None)
}

/// Returns an inner node with one child more, responsible for keys from `separator` on, which
/// belonged to the child before.
///
/// # Panics
/// As [`with`].
pub fn with_child(inner: Node<'_>, separator: &[u8], child: u64) -> Vec<u8> {
    debug_assert!(!inner.is_leaf(), "only inner nodes have children");
    edited(inner, separator, Some(&child.to_le_bytes()))
}

/// Returns the root above the halves of a root of level `below`.
pub fn root_above(below: u8, left: u64, separator: &[u8], right: u64) -> Vec<u8> {
    let fences = Fences { low: &[], high: None };
    let (left, right) = (left.to_le_bytes(), right.to_le_bytes());
    written(below + 1, fences, &[(&[], &left), (separator, &right)])
}

/// Gives the children of an inner node new numbers, in the node's bytes. Leaves the bytes unchanged
/// in a leaf, in bytes that are not a node, and at a place where the node is not
/// [sound](Node::is_sound).
pub fn renumber(bytes: &mut [u8], mut number: impl FnMut(u64) -> u64) {
    let Some(node) = Node::read(bytes).filter(|node| !node.is_leaf()) else { return };
    let child = |index: usize| {
        let is_child = node.entry(index).1.len() == CHILD_BYTES;
        is_child.then(|| (node.begin(index + 1) - CHILD_BYTES, node.child(index)))
    };
    let children: Vec<_> = (0..node.len()).filter_map(child).collect();
    for (at, child) in children {
        bytes[at..at + CHILD_BYTES].copy_from_slice(&number(child).to_le_bytes());
    }
}

fn edited(node: Node<'_>, key: &[u8], payload: Option<&[u8]>) -> Vec<u8> {
    let mut entries: Vec<_> = node.entries().collect();
    match (node.find(key), payload) {
        (Ok(found), Some(payload)) => entries[found].1 = payload,
        (Ok(found), None) => drop(entries.remove(found)),
        (Err(next), Some(payload)) => entries.insert(next, (key, payload)),
        (Err(_), None) => {}
    }
    written(node.level(), Fences::of(node), &entries)
}

/// Splits a node of at least two entries, near the middle of its bytes. If the last key was added
/// above all other keys of the tree, the lower half gets as much as `limit` bytes hold: ascending
/// keys fill their nodes.
///
/// # Both halves fit
/// Each half has at most `limit` bytes if the node had no more before one entry was added or
/// replaced, and `limit` is at least [`least_bytes`](crate::least_bytes) of the longest entry. For
/// let an entry have at most `e` bytes and a key `k`, and `limit` be at least a header, `2k` and
/// `2e`. The entries together have no more than `limit`, without header and fences, and `e`. So the
/// places at which both halves fit, whatever separator of `k` bytes lies there, are an interval of
/// `e` bytes or more; and from one end of an entry to the next there are at most `e`.
///
/// # Panics
/// If the node has fewer than two entries.
pub fn split(node: Node<'_>, added: &[u8], limit: usize) -> Split {
    let entries: Vec<_> = node.entries().collect();
    let ascends = node.high().is_none() && entries.last().is_some_and(|(key, _)| *key == added);
    let fits = |at: &usize| {
        let separator = separator(node.is_leaf(), &entries, *at);
        size(Fences { low: node.low(), high: Some(separator) }, &entries[..*at]) <= limit
    };
    let fullest = || (1..entries.len()).rev().find(fits);
    let at = ascends.then(fullest).flatten();
    let at = at.unwrap_or_else(|| balanced(node, &entries, limit));
    let (separator, (lower, upper)) =
        (separator(node.is_leaf(), &entries, at), entries.split_at(at));
    let (below, above) = (
        Fences { low: node.low(), high: Some(separator) },
        Fences { low: separator, high: node.high() },
    );
    Split {
        left: written(node.level(), below, lower),
        separator: separator.to_vec(),
        right: written(node.level(), above, upper),
    }
}

/// Fence between the entries before the place `at` and the entries from it on.
pub(crate) fn separator<'a>(of_leaf: bool, entries: &Entries<'a>, at: usize) -> &'a [u8] {
    match of_leaf {
        true => shortest_between(entries[at - 1].0, entries[at].0),
        false => entries[at].0,
    }
}

/// Place near the middle by bytes; if a half were too large there, the place where the larger half
/// is smallest.
fn balanced(node: Node<'_>, entries: &Entries<'_>, limit: usize) -> usize {
    let larger_half = |at: usize| {
        let separator = separator(node.is_leaf(), entries, at);
        let below = Fences { low: node.low(), high: Some(separator) };
        let above = Fences { low: separator, high: node.high() };
        size(below, &entries[..at]).max(size(above, &entries[at..]))
    };
    match middle(entries) {
        at if larger_half(at) <= limit => at,
        at => (1..entries.len()).min_by_key(|at| larger_half(*at)).unwrap_or(at),
    }
}

/// Place of the first entry of the upper half by bytes; neither half is empty.
fn middle(entries: &Entries<'_>) -> usize {
    let whole: usize = entries.iter().map(entry_bytes).sum();
    let mut below = 0;
    let at = entries.iter().position(|entry| {
        below += entry_bytes(entry);
        2 * below > whole
    });
    at.unwrap_or(0).clamp(1, entries.len() - 1)
}

/// Shortest key above `lower` and up to `upper`.
fn shortest_between<'a>(lower: &[u8], upper: &'a [u8]) -> &'a [u8] {
    let shared = lower.iter().zip(upper).take_while(|(one, other)| one == other).count();
    &upper[..(shared + 1).min(upper.len())]
}

/// Merges two adjacent nodes into one; `None` if it would have more than `limit` bytes.
pub fn merged(left: Node<'_>, right: Node<'_>, limit: usize) -> Option<Vec<u8>> {
    debug_assert_eq!(left.level(), right.level(), "nodes of one level are merged");
    debug_assert_eq!(left.high(), Some(right.low()), "the nodes follow each other");
    let fences = Fences { low: left.low(), high: right.high() };
    let entries: Vec<_> = left.entries().chain(right.entries()).collect();
    (size(fences, &entries) <= limit).then(|| written(left.level(), fences, &entries))
}

/// Bytes that an entry takes in a node.
pub(crate) fn entry_bytes((key, payload): &(&[u8], &[u8])) -> usize {
    key.len() + payload.len() + ENTRY_BYTES
}

/// Bytes of a node with these entries.
pub(crate) fn size(fences: Fences<'_>, entries: &Entries<'_>) -> usize {
    let fence_bytes = fences.low.len() + fences.high.map_or(0, <[u8]>::len);
    HEADER_BYTES + fence_bytes + entries.iter().map(entry_bytes).sum::<usize>()
}

/// Encodes a node with these entries.
pub(crate) fn written(level: u8, fences: Fences<'_>, entries: &Entries<'_>) -> Vec<u8> {
    let Fences { low, high } = fences;
    let keys = entries.iter().map(|(key, _)| key.len());
    let fits = keys.max().unwrap_or(0).max(low.len()) <= MAX_KEY_BYTES;
    assert!(fits, "a key has at most {MAX_KEY_BYTES} bytes");
    debug_assert!(
        level == 0 || entries.iter().all(|(_, child)| child.len() == CHILD_BYTES),
        "the payloads of inner nodes are numbers of children"
    );
    let mut bytes = Vec::with_capacity(size(fences, entries));
    let flags = if high.is_some() { HAS_HIGH } else { 0 };
    let high = high.unwrap_or_default();
    bytes.extend([level, flags]);
    bytes.extend((entries.len() as u16).to_le_bytes());
    bytes.extend([low.len() as u8, high.len() as u8]);
    let mut offset = HEADER_BYTES + 2 * entries.len() + low.len() + high.len();
    for (key, payload) in entries {
        let begins = u16::try_from(offset).expect("a node has less than 64 KiB");
        bytes.extend(begins.to_le_bytes());
        offset += 1 + key.len() + payload.len();
    }
    bytes.extend_from_slice(low);
    bytes.extend_from_slice(high);
    for (key, payload) in entries {
        bytes.push(key.len() as u8);
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(payload);
    }
    bytes
}
