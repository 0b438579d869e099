//! Numbers of new nodes of ordered tables.
//!
//! A node's number is the key of its row, and stays the key over all lives of the cluster with this
//! row. So a new node gets a number that no existing row can have:
//!
//! ```text
//! 63             51 50          41 40                0
//! +----------------+--------------+------------------+
//! |  incarnation   | coordinator  |      count       |
//! +----------------+--------------+------------------+
//! ```
//!
//! * Within a life of the cluster no two lives of compute nodes share an incarnation, and
//!   incarnation 0 is not used; the coordinators of a node differ; and each coordinator counts up.
//! * Incarnations begin again with each life of the cluster. The nodes of a loaded or restored
//!   table are numbered from 1 on ([`renumber`]), below [`LOADED`]: their incarnation is 0. So
//!   numbers of an earlier life never collide with new numbers.
//!
//! No number is drawn at random, so uniqueness does not depend on luck.

use std::cell::Cell;
use std::collections::BTreeMap;

use lotus_fabric::ids::{Incarnation, TxnId};
use lotus_mvcc::PrimaryKey;
use lotus_tree::{ROOT, edit};

/// Bits of a coordinator: each coordinator has at least one slot of its node.
const COORDINATOR_BITS: u32 = TxnId::SLOT_BITS;
/// Bits of a coordinator's count: at a million new nodes a second, 25 days of one life.
const COUNT_BITS: u32 = u64::BITS - Incarnation::BITS - COORDINATOR_BITS;

/// Upper limit of the numbers of loaded nodes, exclusive.
pub(crate) const LOADED: u64 = 1 << (COORDINATOR_BITS + COUNT_BITS);

/// Numbers for a coordinator's new nodes.
pub(crate) struct NodeNumbers {
    next: Cell<u64>,
    /// First number of the next coordinator.
    end: u64,
}

impl NodeNumbers {
    /// Numbers of the coordinator `thread` in this life of its node.
    pub(crate) fn new(incarnation: Incarnation, thread: usize) -> Self {
        debug_assert!(
            incarnation.raw() > 0 && thread < 1 << COORDINATOR_BITS,
            "I313: the numbers of a life are none of a loaded node's, and no other coordinator's"
        );
        let life = u64::from(incarnation.raw()) << (COORDINATOR_BITS + COUNT_BITS);
        let first = life | (thread as u64) << COUNT_BITS;
        Self { next: Cell::new(first), end: first.saturating_add(1 << COUNT_BITS) }
    }

    /// Draws a number that no node has had; `None` if the numbers are used up.
    pub(crate) fn draw(&self) -> Option<u64> {
        let number = self.next.get();
        (number < self.end).then(|| {
            self.next.set(number + 1);
            number
        })
    }
}

/// Numbers the nodes of a restored tree from 1 on: changes the keys of the rows, and the child
/// numbers in inner nodes. The root keeps its number.
///
/// A child without a row gets a number as well, a number of no row. So damage stays damage, and is
/// found by reads.
pub(crate) fn renumber<'a>(rows: impl Iterator<Item = (&'a mut PrimaryKey, &'a mut [u8])>) {
    let mut numbers = BTreeMap::new();
    let mut next = 1..LOADED;
    let mut number = |before: u64| match before {
        ROOT => ROOT,
        _ => *numbers.entry(before).or_insert_with(|| next.next().expect("there are fewer nodes")),
    };
    for (key, node) in rows {
        // A key of any other length does not belong to a node.
        if let Ok(before) = key.as_bytes().try_into() {
            *key = number(u64::from_be_bytes(before)).into();
        }
        edit::renumber(node, &mut number);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn life(raw: u16) -> Incarnation {
        Incarnation::new(raw).expect("13 bits")
    }

    #[test]
    fn no_two_lives_or_coordinators_share_a_number_and_none_is_a_loaded_nodes() {
        let last = (1 << Incarnation::BITS) - 1;
        let most = usize::from(TxnId::MAX_SLOT);
        let mut seen = BTreeSet::new();
        for incarnation in [1, 2, 3, last - 1, last] {
            for thread in [0, 1, most - 1, most] {
                let numbers = NodeNumbers::new(life(incarnation), thread);
                for _ in 0..3 {
                    let number = numbers.draw().expect("there are many");
                    assert!(number >= LOADED, "{incarnation} {thread}");
                    assert!(seen.insert(number), "{incarnation} {thread}");
                }
            }
        }
    }

    #[test]
    fn numbers_end_before_those_of_the_next_coordinator() {
        let of = |thread| NodeNumbers::new(life(7), thread);
        let (one, next) = (of(4), of(5));
        let first_of_next = next.draw().expect("the first");
        one.next.set(first_of_next - 1);
        assert_eq!([one.draw(), one.draw()], [Some(first_of_next - 1), None]);
        let last = NodeNumbers::new(life((1 << Incarnation::BITS) - 1), TxnId::MAX_SLOT.into());
        last.next.set(u64::MAX - 1);
        assert_eq!([last.draw(), last.draw()], [Some(u64::MAX - 1), None]);
    }

    #[test]
    fn restored_nodes_are_numbered_from_one_on() {
        let far = u64::MAX - 3;
        let mut keys: Vec<PrimaryKey> = vec![ROOT.into(), far.into(), 5.into(), [9; 3].into()];
        let root = edit::root_above(0, 5, b"m", far);
        let dangling = edit::root_above(0, 77, b"x", 5);
        let mut nodes = [root, vec![1; 3], dangling, vec![0xFF; 40]];
        renumber(keys.iter_mut().zip(nodes.iter_mut().map(Vec::as_mut_slice)));
        // Numbers follow the order in which they are met.
        let expected: Vec<PrimaryKey> = vec![ROOT.into(), 2.into(), 1.into(), [9; 3].into()];
        assert_eq!(keys, expected);
        assert_eq!(nodes[0], edit::root_above(0, 1, b"m", 2));
        assert_eq!(nodes[2], edit::root_above(0, 3, b"x", 1), "a number that no row has");
        assert_eq!((&nodes[1][..], &nodes[3][..]), (&[1; 3][..], &[0xFF; 40][..]));
    }
}
