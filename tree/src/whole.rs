//! Whole trees: built from sorted rows, and checked.

use std::collections::BTreeMap;

use crate::edit::{Fences, entry_bytes, separator, size, written};
use crate::{Node, ROOT, Seek};

/// Share of a node, in percent, that is filled when a tree is built: the first new rows split no
/// node.
const FILL_PERCENT: usize = 90;

/// Builds the nodes of a tree of sorted rows, in nodes of at most `limit` bytes. `number` gives
/// each node but the root a unique number.
///
/// # Panics
/// If keys do not ascend, or `limit` is less than [`least_bytes`](crate::least_bytes) of the
/// longest row.
pub fn build(
    rows: &[(&[u8], &[u8])],
    limit: usize,
    mut number: impl FnMut() -> u64,
) -> Vec<(u64, Vec<u8>)> {
    assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "keys ascend");
    above(0, parts(0, rows, limit), limit, &mut number)
}

/// Builds the inner nodes of a tree whose leaves are elsewhere, given the low fence and number of
/// each leaf. `number` and the result are as in [`build`].
///
/// # Panics
/// If there are no leaves or their fences do not ascend, or `limit` is less than
/// [`least_bytes`](crate::least_bytes) of the longest fence.
pub fn build_above(
    leaves: &[(&[u8], u64)],
    limit: usize,
    mut number: impl FnMut() -> u64,
) -> Vec<(u64, Vec<u8>)> {
    assert!(!leaves.is_empty(), "a tree has a leaf");
    assert!(leaves.windows(2).all(|pair| pair[0].0 < pair[1].0), "fences ascend");
    let children: Vec<_> = leaves.iter().map(|(low, id)| (*low, id.to_le_bytes())).collect();
    let entries: Vec<_> = children.iter().map(|(low, id)| (*low, &id[..])).collect();
    above(1, parts(1, &entries, limit), limit, &mut number)
}

/// Numbers the nodes of a level, given with their low fences, and builds the levels above it.
fn above(
    level: u8,
    mut made: Vec<(Vec<u8>, Vec<u8>)>,
    limit: usize,
    number: &mut dyn FnMut() -> u64,
) -> Vec<(u64, Vec<u8>)> {
    let mut nodes = Vec::new();
    for level in level + 1.. {
        if made.len() == 1 {
            nodes.extend(made.into_iter().map(|(_, bytes)| (ROOT, bytes)));
            break;
        }
        let mut children = Vec::with_capacity(made.len());
        for (low, bytes) in made {
            let id = number();
            children.push((low, id.to_le_bytes()));
            nodes.push((id, bytes));
        }
        let entries: Vec<_> = children.iter().map(|(low, id)| (&**low, &id[..])).collect();
        made = parts(level, &entries, limit);
    }
    nodes
}

/// Divides the entries of a level into nodes; returns each node with its low fence.
fn parts(level: u8, entries: &[(&[u8], &[u8])], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let filled = limit * FILL_PERCENT / 100;
    let (mut parts, mut first, mut low) = (Vec::new(), 0, &[][..]);
    loop {
        let fence = |end: usize| match end < entries.len() {
            true => Some(separator(level == 0, entries, end)),
            false => None,
        };
        let mut end = (first + 1).min(entries.len());
        let mut bytes = size(Fences { low, high: None }, &entries[first..end]);
        while end < entries.len() {
            bytes += entry_bytes(&entries[end]);
            if bytes + fence(end + 1).map_or(0, <[u8]>::len) > filled {
                break;
            }
            end += 1;
        }
        let high = fence(end);
        parts.push((low.to_vec(), written(level, Fences { low, high }, &entries[first..end])));
        let Some(next) = high else { return parts };
        (first, low) = (end, next);
    }
}

/// Facts about a sound tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Number of rows.
    pub rows: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of levels.
    pub levels: u8,
}

/// First reason why nodes do not form a tree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Defect {
    /// The bytes of a node are invalid or not in order.
    #[error("node {0} is no node")]
    Malformed(u64),
    /// A child has no node.
    #[error("node {child} is missing below node {parent}")]
    Missing {
        /// The parent.
        parent: u64,
        /// The number named by the parent.
        child: u64,
    },
    /// A child is not one level lower, or its fences differ from the fences of its entry.
    #[error("node {child} does not fit below node {parent}")]
    Misplaced {
        /// The parent.
        parent: u64,
        /// The child.
        child: u64,
    },
    /// Nodes that no parent names.
    #[error("no parent names {0} of the nodes")]
    Unreached(u64),
}

/// Checks that nodes form a tree: every key lies in one leaf, in order, and each node occurs once.
///
/// # Errors
/// The first [`Defect`] found.
pub fn check(nodes: &BTreeMap<u64, Vec<u8>>) -> Result<Summary, Defect> {
    let mut summary = Summary::default();
    let Some(root) = nodes.get(&ROOT) else {
        let unreached = nodes.len() as u64;
        return if unreached == 0 { Ok(summary) } else { Err(Defect::Unreached(unreached)) };
    };
    let sound = |id, bytes: &'_ Vec<u8>| match Node::read(bytes) {
        Some(node) if node.is_sound() => Ok(()),
        _ => Err(Defect::Malformed(id)),
    };
    sound(ROOT, root)?;
    // Levels descend, so the loop ends; intervals differ, so no node is met twice.
    let mut left = vec![(ROOT, root)];
    while let Some((id, bytes)) = left.pop() {
        let node = Node::read(bytes).ok_or(Defect::Malformed(id))?;
        if id == ROOT {
            summary.levels = node.level() + 1;
            if !node.covers(Seek::At(&[])) || !node.covers(Seek::Last) {
                return Err(Defect::Malformed(ROOT));
            }
        }
        summary.nodes += 1;
        if node.is_leaf() {
            summary.rows += node.len() as u64;
            continue;
        }
        for index in 0..node.len() {
            let child = node.child(index);
            let bytes = nodes.get(&child).ok_or(Defect::Missing { parent: id, child })?;
            sound(child, bytes)?;
            let below = Node::read(bytes).ok_or(Defect::Malformed(child))?;
            let high = if index + 1 < node.len() { Some(node.key(index + 1)) } else { node.high() };
            let fits = below.low() == node.key(index) && below.high() == high;
            if !fits || below.level() + 1 != node.level() {
                return Err(Defect::Misplaced { parent: id, child });
            }
            left.push((child, bytes));
        }
    }
    match nodes.len() as u64 - summary.nodes {
        0 => Ok(summary),
        unreached => Err(Defect::Unreached(unreached)),
    }
}
