//! Updated rows with older versions that may be trimmed ([`crate::upkeep::trim`]).

use lotus_fabric::ids::TableId;
use lotus_mvcc::slab::Purpose;
use lotus_mvcc::{PrimaryKey, Timestamp};
use std::cell::RefCell;
use std::collections::VecDeque;

/// Maximum of rows noted per kind of slots.
const MOST_NOTED: usize = 1 << 16;

/// A row that has taken a slot in a full group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) slots: Purpose,
    pub(crate) bytes: u64,
    pub(crate) key: PrimaryKey,
    /// Timestamp of the successor of the version to take away: the version in the noted slot, or a
    /// later version if the row has been written since.
    pub(crate) successor: Timestamp,
}

/// Rows updated in full groups by one coordinator's transactions.
#[derive(Default)]
pub(crate) struct Trims {
    /// One queue per kind of slots, in commit order.
    noted: RefCell<Vec<VecDeque<Noted>>>,
}

impl Trims {
    pub(crate) fn note(&self, row: Noted) {
        debug_assert!(row.bytes > 0, "I203: a row to trim has slots");
        let mut noted = self.noted.borrow_mut();
        let same = |queue: &VecDeque<Noted>| queue[0].slots == row.slots;
        match noted.iter_mut().find(|queue| same(queue)) {
            Some(queue) if queue.len() < MOST_NOTED => queue.push_back(row),
            Some(_) => {}
            None => noted.push([row].into()),
        }
    }

    /// Notes rows again that are `needed` until a later time.
    pub(crate) fn note_again(&self, rows: &[Noted], needed: &[(TableId, PrimaryKey, Timestamp)]) {
        for (table, key, until) in needed {
            let same = |row: &&Noted| row.slots.table == *table && row.key == *key;
            if let Some(row) = rows.iter().find(same) {
                self.note(Noted { successor: *until, ..*row });
            }
        }
    }

    /// Gives up the rows of tables that are not `in_use`.
    pub(crate) fn retain(&self, in_use: impl Fn(TableId) -> bool) {
        self.noted.borrow_mut().retain(|queue| in_use(queue[0].slots.table));
    }

    /// Takes up to `limit` rows with scarce slots and older versions not needed at `horizon`.
    pub(crate) fn take_due(
        &self,
        horizon: Timestamp,
        limit: usize,
        is_scarce: impl Fn(&Noted) -> bool,
    ) -> Vec<Noted> {
        let mut noted = self.noted.borrow_mut();
        let mut due = Vec::new();
        for queue in noted.iter_mut().filter(|queue| is_scarce(&queue[0])) {
            let ready = queue.iter().take_while(|row| row.successor <= horizon).count();
            due.extend(queue.drain(..ready.min(limit - due.len())));
        }
        noted.retain(|queue| !queue.is_empty());
        due
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::TableId;
    use lotus_mvcc::slab::{Purpose, SlotKind};

    use super::*;

    fn row(number: u64, written_at: u64) -> Noted {
        let slots = Purpose { table: TableId(0), group: 0, slots: SlotKind::Record };
        let successor = Timestamp::new(written_at).expect("63 bits");
        Noted { slots, bytes: 64, key: number.into(), successor }
    }

    #[test]
    fn rows_are_due_in_their_order_once_the_horizon_has_reached_them_and_slots_are_scarce() {
        let trims = Trims::default();
        for (number, written_at) in [(1, 10), (2, 11), (3, 12), (4, 13)] {
            trims.note(row(number, written_at));
        }
        let elsewhere = Purpose { group: 1, ..row(0, 1).slots };
        trims.note(Noted { slots: elsewhere, ..row(5, 10) });
        let horizon = Timestamp::new(12).expect("63 bits");
        let keys = |due: Vec<Noted>| due.into_iter().map(|row| row.key).collect::<Vec<_>>();
        assert_eq!(keys(trims.take_due(horizon, 9, |_| false)), []);
        assert_eq!(keys(trims.take_due(horizon, 2, |_| true)), [1.into(), 2.into()]);
        let here = |row: &Noted| row.slots != elsewhere;
        assert_eq!(keys(trims.take_due(horizon, 9, here)), [3.into()]);
        assert_eq!(keys(trims.take_due(Timestamp::MAX, 9, |_| true)), [4.into(), 5.into()]);
        assert_eq!(keys(trims.take_due(Timestamp::MAX, 9, |_| true)), []);
    }
}
