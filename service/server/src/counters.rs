//! Counters of a server's transactions: separate per coordinator, so that a coordinator never
//! writes a counter often read by another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lotus::TxnError;

/// Upper bounds of the latency histogram, in microseconds; the last bucket has no bound.
pub(crate) const LATENCY_BOUNDS_US: [u64; 18] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000,
];

/// Outcome of a request for a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Committed,
    Rejected,
    Failed,
    Unknown,
}

impl Ending {
    pub(crate) const ALL: [Self; 4] =
        [Self::Committed, Self::Rejected, Self::Failed, Self::Unknown];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// Names of the reasons for aborts, at the indices of [`abort_reason`].
pub(crate) const ABORT_REASONS: [&str; 8] = [
    "conflict",
    "in_doubt",
    "snapshot_too_old",
    "lock_table_full",
    "timeout",
    "unavailable",
    "suspected",
    "other",
];

/// Index of an error in [`ABORT_REASONS`].
const fn abort_reason(error: &TxnError) -> usize {
    match error {
        TxnError::Conflict { .. } => 0,
        TxnError::InDoubt { .. } => 1,
        TxnError::SnapshotTooOld { .. } => 2,
        TxnError::LockTableFull => 3,
        TxnError::Timeout => 4,
        TxnError::Unavailable { .. } => 5,
        TxnError::Suspected { .. } => 6,
        _ => 7,
    }
}

/// A histogram of latencies, and their sum.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    pub(crate) buckets: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    pub(crate) sum_us: AtomicU64,
}

impl Latencies {
    fn add(&self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        add(&self.buckets[LATENCY_BOUNDS_US.partition_point(|bound| *bound < us)], 1);
        add(&self.sum_us, us);
    }
}

/// The counters of one coordinator. Only the coordinator's thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) endings: [AtomicU64; Ending::ALL.len()],
    pub(crate) aborts: [AtomicU64; ABORT_REASONS.len()],
    pub(crate) latencies: Latencies,
    /// Latencies of each stored transaction, by place in the registry.
    pub(crate) by_procedure: Box<[Latencies]>,
}

impl Counters {
    /// Creates counters at zero, for this many stored transactions.
    pub(crate) fn new(procedures: usize) -> Self {
        let by_procedure = (0..procedures).map(|_| Latencies::default()).collect();
        Self { by_procedure, ..Self::default() }
    }

    /// Counts an ended request and the request's latency; `procedure` is the place of the stored
    /// transaction called, if any.
    pub(crate) fn end(&self, ending: Ending, latency: Duration, procedure: Option<usize>) {
        add(&self.endings[ending as usize], 1);
        self.latencies.add(latency);
        if let Some(procedure) = procedure {
            self.by_procedure[procedure].add(latency);
        }
    }

    /// Counts an aborted attempt.
    pub(crate) fn abort(&self, error: &TxnError) {
        add(&self.aborts[abort_reason(error)], 1);
    }
}

/// Adds without locking the bus: with a single writer, nothing is lost between the two steps.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_the_bucket_that_bounds_them() {
        let counters = Counters::new(2);
        for us in [0, 10, 11, 5_000_000, 5_000_001] {
            counters.end(Ending::Committed, Duration::from_micros(us), Some(1));
        }
        counters.end(Ending::Failed, Duration::from_micros(7), None);
        let found = |of: &Latencies| {
            let found = of.buckets.each_ref().map(|count| count.load(Ordering::Relaxed));
            (found[0], found[1], found[17], found[18])
        };
        assert_eq!(found(&counters.latencies), (3, 1, 1, 1));
        assert_eq!(found(&counters.by_procedure[1]), (2, 1, 1, 1));
        assert_eq!(found(&counters.by_procedure[0]), (0, 0, 0, 0));
        assert_eq!(counters.endings[0].load(Ordering::Relaxed), 5);
    }
}
