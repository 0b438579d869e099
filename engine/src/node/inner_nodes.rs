//! Inner nodes of ordered tables, as a coordinator has read them last.
//!
//! They are hints: a search that follows one ends at a leaf, and that leaf's fences, read under the
//! transaction's own rules, say whether it is the right one. So nothing invalidates an entry; an
//! outdated one costs a search from the root, which replaces it.

use std::cell::RefCell;
use std::rc::Rc;

use lotus_fabric::ids::TableId;

/// Number of nodes that are remembered. Each has a place of its own, which it shares with others.
const PLACES: usize = 4096;

/// Inner nodes of one coordinator; see the module's documentation.
#[derive(Default)]
pub(crate) struct InnerNodes {
    /// By a hash of table and number; empty until an ordered table is used.
    places: RefCell<Vec<Option<Known>>>,
}

struct Known {
    table: TableId,
    node: u64,
    bytes: Rc<[u8]>,
}

impl InnerNodes {
    /// Returns the bytes of a node, if it is remembered.
    pub(crate) fn get(&self, table: TableId, node: u64) -> Option<Rc<[u8]>> {
        let places = self.places.borrow();
        let known = places.get(place(table, node))?.as_ref()?;
        (known.table == table && known.node == node).then(|| Rc::clone(&known.bytes))
    }

    /// Gives up the nodes of tables that are not `in_use`.
    pub(crate) fn retain(&self, in_use: impl Fn(TableId) -> bool) {
        for known in self.places.borrow_mut().iter_mut() {
            *known = known.take().filter(|known| in_use(known.table));
        }
    }

    /// Remembers a node in place of another one.
    pub(crate) fn keep(&self, table: TableId, node: u64, bytes: &[u8]) {
        let mut places = self.places.borrow_mut();
        if places.is_empty() {
            places.resize_with(PLACES, || None);
        }
        let known = &mut places[place(table, node)];
        let same =
            |known: &Known| known.table == table && known.node == node && *known.bytes == *bytes;
        if !known.as_ref().is_some_and(same) {
            *known = Some(Known { table, node, bytes: bytes.into() });
        }
    }
}

fn place(table: TableId, node: u64) -> usize {
    const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
    // Numbers are random, except for the root's.
    ((node ^ u64::from(table.0)).wrapping_mul(GOLDEN_RATIO) >> 52) as usize
}

const _: () = assert!(PLACES == 1 << (64 - 52), "a place for each value of the hash");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_known_until_another_takes_its_place() {
        let nodes = InnerNodes::default();
        let known = |table, node| nodes.get(TableId(table), node).map(|bytes| bytes.to_vec());
        assert_eq!(known(1, 0), None);
        nodes.keep(TableId(1), 0, b"root");
        nodes.keep(TableId(2), 0, b"other");
        assert_eq!((known(1, 0), known(2, 0)), (Some(b"root".into()), Some(b"other".into())));
        nodes.keep(TableId(1), 0, b"next");
        assert_eq!(known(1, 0), Some(b"next".into()));
        let twin = (1..).find(|node| place(TableId(1), *node) == place(TableId(1), 0));
        let twin = twin.expect("places are few");
        assert_eq!(known(1, twin), None);
        nodes.keep(TableId(1), twin, b"twin");
        assert_eq!((known(1, 0), known(1, twin)), (None, Some(b"twin".into())));
    }
}
