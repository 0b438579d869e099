//! Numbers of rows as a compute node has counted them last: counting reads a part of each index, so
//! metrics and operators share one count.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_fabric::env::Nanos;
use lotus_fabric::ids::TableId;

/// Row count of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableRows {
    /// The table.
    pub table: TableId,
    /// Number of rows; of an ordered table those of its leaves, not the nodes of its tree.
    pub rows: u64,
    /// Whether only a sample was counted, so that the number is an estimate.
    pub is_estimate: bool,
}

/// Row counts of all tables, and their age.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RowCounts {
    /// The counts, in the order of the tables.
    pub tables: Vec<TableRows>,
    /// Time since they were counted.
    pub age: Duration,
}

/// The last count.
#[derive(Default)]
pub(crate) struct LastCount(Mutex<Option<(Nanos, Vec<TableRows>)>>);

impl LastCount {
    pub(crate) fn keep(&self, now: Nanos, counts: &[TableRows]) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((now, counts.to_vec()));
    }

    /// The last count, if it is younger than `limit`.
    pub(crate) fn within(&self, limit: Duration, now: Nanos) -> Option<RowCounts> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (counted, tables) = last.as_ref()?;
        let age = now.since(*counted);
        (age < limit).then(|| RowCounts { tables: tables.clone(), age })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_used_until_it_is_too_old() {
        let (last, second) = (LastCount::default(), Duration::from_secs(1));
        assert_eq!(last.within(second, Nanos(5)), None);
        let counts = [TableRows { table: TableId(3), rows: 7, is_estimate: false }];
        last.keep(Nanos(5), &counts);
        let kept = RowCounts { tables: counts.to_vec(), age: Duration::from_nanos(9) };
        assert_eq!(last.within(second, Nanos(14)), Some(kept));
        assert_eq!(last.within(second, Nanos(5).after(second)), None);
    }
}
