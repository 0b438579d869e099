//! Verdict on a run: violations of properties, and figures of the run.

use lotus_benchmarks::AbortReason;
use lotus_fabric::sim::FaultCounts;
use std::time::Duration;

/// Property that the run ends within the limits.
pub const ENDS: &str = "the run comes to its end";

/// Property that no thread panics.
pub const NO_PANIC: &str = "nobody panics";

/// Property that lanes are closed; the nodes of open lanes could not be restarted.
pub const LANES_END: &str = "lanes end with whoever has opened them";

/// Property that workloads check during reads.
pub const READS: &str = "transactions see what they must";

/// Properties of lock systems, in trials without an engine.
pub const LOCKS: &str = "locks exclude, and are free in the end";

/// A property that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Name of the property.
    pub property: String,
    /// Finding that contradicts the property.
    pub detail: String,
}

/// Counts of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Attempts that committed.
    pub committed: u64,
    /// Attempts that aborted, by reason.
    pub aborted: [u64; AbortReason::ALL.len()],
    /// Attempts with an unknown outcome.
    pub unknown: u64,
    /// One-sided verbs.
    pub verbs: u64,
    /// Hits in the version table cache.
    pub version_table_hits: u64,
    /// Moves of shards.
    pub moves: Moves,
    /// Snapshots written into files.
    pub snapshots: u64,
    /// Number of dropped tables whose memory was given back.
    pub dropped: u64,
    /// Number of transactions that did not end by themselves, and were ended when their time was
    /// up.
    pub overdue: u64,
    /// Events of the world.
    pub events: u64,
    /// Virtual time.
    pub virtual_time: Duration,
    /// Memory nodes that were lost.
    pub memory_lost: u64,
    /// Memory nodes that restarted with empty memory and serve again.
    pub memory_filled: u64,
    /// Compute nodes that returned as new incarnations.
    pub returned: u64,
    /// Faults that happened.
    pub faults: FaultCounts,
    /// Strikes that happened.
    pub strikes: u64,
}

/// Outcomes of orders to give shards away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// Shards that changed hands.
    pub done: u64,
    /// Orders that failed.
    pub failed: u64,
    /// Attempts asked to give up locks.
    pub stragglers: u64,
}

/// Verdict on a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Violations, the first of each property.
    pub violations: Vec<Violation>,
    /// Counts of the run.
    pub figures: Figures,
    /// Hash of the trace; equal for all runs of a scenario with the same seed.
    pub trace_hash: u64,
}

impl Outcome {
    /// Whether all properties held.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Whether this property did not hold.
    pub fn violates(&self, property: &str) -> bool {
        self.violations.iter().any(|violation| violation.property == property)
    }
}
