//! The engine's integration tests, as one program; `no_alloc` needs an allocator of its own.

mod api;
mod bodies;
mod capacity;
mod churn;
mod common;
mod endings;
mod extremes;
mod faults;
mod isolation;
mod large_values;
mod limits;
mod locks_that_wait;
mod memory_loss;
mod memory_returns;
mod moves;
mod ordered;
mod ordered_scans;
mod path;
mod processes;
mod recovery;
mod returns;
mod row_counts;
mod scans;
mod snapshots;
mod verb_counts;
mod version_tables;
