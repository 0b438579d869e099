//! Deleted rows waiting to be purged ([`crate::upkeep::purge`]).

use lotus_fabric::ids::TableId;
use lotus_mvcc::{PrimaryKey, Timestamp};
use lotus_router::GroupId;
use std::cell::RefCell;
use std::collections::VecDeque;

/// Maximum of deleted rows waiting while a snapshot holds the horizon back; later rows are not
/// noted.
const MOST_WAITING: usize = 1 << 20;

/// A deleted row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tombstone {
    pub(crate) table: TableId,
    pub(crate) key: PrimaryKey,
    pub(crate) deleted_at: Timestamp,
}

/// Deletions by one coordinator's transactions.
#[derive(Default)]
pub(crate) struct Tombstones {
    /// Rows to purge, in commit order, which is nearly the order of timestamps.
    waiting: RefCell<VecDeque<Tombstone>>,
    /// Known purge times, by group.
    purge_times: RefCell<Vec<Timestamp>>,
}

impl Tombstones {
    pub(crate) fn note(&self, table: TableId, key: PrimaryKey, deleted_at: Timestamp) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() < MOST_WAITING {
            waiting.push_back(Tombstone { table, key, deleted_at });
        }
    }

    /// Takes up to `limit` rows deleted at or before the horizon.
    pub(crate) fn take_due(&self, horizon: Timestamp, limit: usize) -> Vec<Tombstone> {
        let mut waiting = self.waiting.borrow_mut();
        let due = |row: &Tombstone| row.deleted_at <= horizon;
        let count = waiting.iter().take(limit).take_while(|row| due(row)).count();
        waiting.drain(..count).collect()
    }

    /// Gives up the rows of tables that are not `in_use`.
    pub(crate) fn retain(&self, in_use: impl Fn(TableId) -> bool) {
        self.waiting.borrow_mut().retain(|row| in_use(row.table));
    }

    pub(crate) fn put_back(&self, rows: &[Tombstone]) {
        self.waiting.borrow_mut().extend(rows);
    }

    pub(crate) fn purge_time(&self, group: GroupId) -> Timestamp {
        let known = self.purge_times.borrow();
        known.get(usize::from(group.0)).copied().unwrap_or_default()
    }

    pub(crate) fn learn_purge_time(&self, group: GroupId, time: Timestamp) {
        let mut known = self.purge_times.borrow_mut();
        let index = usize::from(group.0);
        if index >= known.len() {
            known.resize(index + 1, Timestamp::ZERO);
        }
        debug_assert!(known[index] <= time, "I60: a purge time only rises");
        known[index] = time;
    }
}
