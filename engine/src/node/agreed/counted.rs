//! Row counts from a compute node's last count: counting reads a part of each index, so metrics and
//! operators share a count.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TableId;

/// A count is reused for at least this many times its duration: counting takes at most a tenth of
/// coordinator 0's work.
const REST: u32 = 10;

/// Row count of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableRows {
    /// The table.
    pub table: TableId,
    /// Number of rows; for an ordered table the rows in its leaves, not the nodes of its tree.
    pub rows: u64,
    /// Whether only a sample was counted, making the number an estimate.
    pub is_estimate: bool,
}

/// Row counts of all tables, and their age.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowCounts {
    /// The counts, in the order of the tables.
    pub tables: Vec<TableRows>,
    /// Time since counting began.
    pub age: Duration,
}

/// The last count.
#[derive(Default)]
pub(crate) struct LastCount(Mutex<CountState>);

#[derive(Default)]
struct CountState {
    last: Option<Counted>,
    /// Number of counts under way.
    counting: usize,
}

struct Counted {
    /// Moment at which counting began.
    at: Nanos,
    /// Duration of the count.
    took: Duration,
    tables: Vec<TableRows>,
}

impl LastCount {
    fn state(&self) -> MutexGuard<'_, CountState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a count.
    pub(crate) fn begin(&self, now: Nanos) -> Counting<'_> {
        self.state().counting += 1;
        Counting { of: self, at: now }
    }

    /// The last count, if younger than `limit`, or than [`REST`] times its duration, or if another
    /// count is under way.
    pub(crate) fn within(&self, limit: Duration, now: Nanos) -> Option<RowCounts> {
        let state = self.state();
        let Counted { at, took, tables } = state.last.as_ref()?;
        let age = now.since(*at);
        let is_young = age < limit.max(*took * REST) || state.counting > 0;
        is_young.then(|| RowCounts { tables: tables.clone(), age })
    }
}

/// A count under way.
pub(crate) struct Counting<'a> {
    of: &'a LastCount,
    at: Nanos,
}

impl Counting<'_> {
    /// Keeps the count's result.
    pub(crate) fn keep(self, now: Nanos, tables: &[TableRows]) {
        let (at, took) = (self.at, now.since(self.at));
        self.of.state().last = Some(Counted { at, took, tables: tables.to_vec() });
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.of.state().counting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_count_is_used_until_it_is_too_old() {
        let last = LastCount::default();
        let at = |ms| Nanos(0).after(Duration::from_millis(ms));
        assert_eq!(last.within(SECOND, at(5)), None);
        let tables = vec![TableRows { table: TableId(3), rows: 7, is_estimate: false }];
        last.begin(at(5)).keep(at(5), &tables);
        let kept =
            |age| Some(RowCounts { tables: tables.clone(), age: Duration::from_millis(age) });
        assert_eq!(last.within(SECOND, at(14)), kept(9));
        assert_eq!(last.within(SECOND, at(1_005)), None);
        // While another is under way, the last one has to do.
        let next = last.begin(at(1_005));
        assert_eq!(last.within(SECOND, at(1_006)), kept(1_001));
        drop(next);
        assert_eq!(last.within(SECOND, at(1_006)), None, "it was given up");
        // One that took long is used longer.
        last.begin(at(2_000)).keep(at(2_500), &tables);
        assert_eq!(last.within(SECOND, at(6_999)), kept(4_999));
        assert_eq!(last.within(SECOND, at(7_000)), None);
    }
}
