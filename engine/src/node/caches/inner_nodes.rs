//! Inner nodes of ordered tables, from a coordinator's last reads.
//!
//! The nodes are hints: a search by a hint ends at a leaf, and the leaf's fences, read under the
//! transaction's own rules, tell whether the leaf is the right one. Entries are never invalidated;
//! an outdated entry costs a search from the root, which replaces the entry.

use std::cell::RefCell;
use std::ops::Range;

use lotus_fabric::ids::TableId;
use lotus_tree::{Inner, Node, ROOT, Seek};

/// Maximum number of remembered nodes.
const PLACES: usize = 8192;
/// Consecutive places available to a node.
const PLACES_OF_A_NODE: usize = 4;

/// Inner nodes of one coordinator; see the module's documentation.
#[derive(Default)]
pub(crate) struct InnerNodes {
    /// By a hash of table and number; empty until an ordered table is used.
    places: RefCell<Vec<Option<Known>>>,
}

struct Known {
    table: TableId,
    number: u64,
    inner: Inner,
}

impl InnerNodes {
    /// Number of the node of this level that is responsible for a place, according to the
    /// remembered nodes above; `None` if those nodes do not lead to the level.
    #[inline]
    pub(crate) fn lead(&self, table: TableId, place: Seek<'_>, level: u8) -> Option<u64> {
        let places = self.places.borrow();
        let (mut number, mut above) = (ROOT, u8::MAX);
        loop {
            let inner = find(&places, table, number)?;
            let own = inner.level();
            if own < level || own >= above {
                return None;
            }
            if own == level {
                return Some(number);
            }
            number = inner.child(place)?;
            if own == level + 1 {
                return Some(number);
            }
            above = own;
        }
    }

    /// Returns a remembered node, if present.
    pub(crate) fn get(&self, table: TableId, number: u64) -> Option<Inner> {
        find(&self.places.borrow(), table, number).cloned()
    }

    /// Gives up the nodes of tables that are not `in_use`.
    pub(crate) fn retain(&self, in_use: impl Fn(TableId) -> bool) {
        for known in self.places.borrow_mut().iter_mut() {
            *known = known.take().filter(|known| in_use(known.table));
        }
    }

    /// Remembers a node in place of an older entry, if the node is an inner node.
    pub(crate) fn keep(&self, table: TableId, number: u64, node: Node<'_>) {
        let mut places = self.places.borrow_mut();
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        let own = &mut places[places_of(table, number)];
        let is_it = |known: &Option<Known>| known.as_ref().is_some_and(|it| it.is(table, number));
        let place = own.iter().position(is_it).or_else(|| own.iter().position(Option::is_none));
        let known = &mut own[place.unwrap_or(number as usize % PLACES_OF_A_NODE)];
        let same = |known: &Known| known.is(table, number) && known.inner.node() == node;
        if !known.as_ref().is_some_and(same) {
            *known = Inner::of(node).map(|inner| Known { table, number, inner });
        }
    }
}

impl Known {
    #[inline]
    fn is(&self, table: TableId, number: u64) -> bool {
        self.number == number && self.table == table
    }
}

#[inline]
fn find(places: &[Option<Known>], table: TableId, number: u64) -> Option<&Inner> {
    let own = places.get(places_of(table, number))?;
    let known = own.iter().flatten().find(|known| known.is(table, number))?;
    Some(&known.inner)
}

/// Places available to a node.
#[inline]
fn places_of(table: TableId, number: u64) -> Range<usize> {
    const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
    // Numbers count up from few bases; the hash spreads neighbours.
    let hash = (number ^ u64::from(table.0)).wrapping_mul(GOLDEN_RATIO) >> SHIFT;
    let first = hash as usize * PLACES_OF_A_NODE;
    first..first + PLACES_OF_A_NODE
}

/// Leaves the highest bits of a hash: one value per group of places.
const SHIFT: u32 = 64 - (PLACES / PLACES_OF_A_NODE).ilog2();

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an inner node with two children.
    fn node(separator: &[u8]) -> Vec<u8> {
        lotus_tree::edit::root_above(0, 7, separator, 8)
    }

    #[test]
    fn a_node_is_known_until_others_take_its_places() {
        let nodes = InnerNodes::default();
        let known = |table, number| {
            nodes.get(TableId(table), number).map(|inner| inner.node().bytes().to_vec())
        };
        let keep = |table, number, bytes: &[u8]| {
            nodes.keep(TableId(table), number, Node::read(bytes).expect("well-formed"));
        };
        assert_eq!(known(1, 0), None);
        keep(1, 0, &node(b"root"));
        keep(2, 0, &node(b"other"));
        assert_eq!((known(1, 0), known(2, 0)), (Some(node(b"root")), Some(node(b"other"))));
        keep(1, 0, &node(b"next"));
        assert_eq!(known(1, 0), Some(node(b"next")));
        let same = |number: &u64| places_of(TableId(1), *number) == places_of(TableId(1), 0);
        let rivals: Vec<u64> = (1..).filter(same).take(PLACES_OF_A_NODE).collect();
        for number in &rivals[1..] {
            keep(1, *number, &node(b"rival"));
        }
        assert_eq!(known(1, 0), Some(node(b"next")), "there is room for all of them");
        keep(1, rivals[0], &node(b"last"));
        assert_eq!(known(1, rivals[0]), Some(node(b"last")));
        let all = || [0].iter().chain(&rivals).filter(|number| known(1, **number).is_some());
        assert_eq!(all().count(), PLACES_OF_A_NODE, "one of them is forgotten");
        keep(1, rivals[0], Node::EMPTY.bytes());
        assert_eq!(known(1, rivals[0]), None, "a leaf leads nowhere");
    }
}
