//! State of a coordinator's requests for slots of other nodes ([`crate::space::lending`]).

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::{Incarnation, NodeId, TableId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Bits of an ask's number below the incarnation.
pub(crate) const COUNT_BITS: u32 = 48;

/// State of a coordinator's requests for slots.
#[derive(Default)]
pub(crate) struct SlotRequests {
    pub(crate) under_way: Cell<bool>,
    /// Number of the last ask.
    last: Cell<u64>,
    /// Last answered ask, by giver.
    pub(crate) answered: RefCell<BTreeMap<NodeId, AnsweredRequest>>,
    /// Time of the last ask that brought no slots, by kind of slot.
    pub(crate) fruitless: RefCell<BTreeMap<(TableId, u16, usize), Nanos>>,
}

impl SlotRequests {
    pub(crate) fn next(&self, incarnation: Incarnation) -> u64 {
        let first = u64::from(incarnation.raw()) << COUNT_BITS;
        self.last.set(self.last.get().max(first) + 1);
        debug_assert!(
            self.last.get() >> COUNT_BITS == u64::from(incarnation.raw()),
            "I201: an ask has a number of its life"
        );
        self.last.get()
    }
}

/// A coordinator's last ask answered by a given node; zeroes for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AnsweredRequest {
    pub(crate) number: u64,
    /// Incarnation of the answering node.
    pub(crate) life: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_later_lives_are_larger() {
        let [first, second] = [1, 2].map(|raw| Incarnation::new(raw).expect("small"));
        let slot_requests = SlotRequests::default();
        let numbers = [
            slot_requests.next(first),
            slot_requests.next(first),
            SlotRequests::default().next(second),
        ];
        assert!(numbers.is_sorted() && numbers[0] < numbers[1], "{numbers:?}");
    }
}
