//! The properties to check, one file each.
//!
//! The first group checks single reads and writes; each file has a function from the trace to
//! findings. The second group is about cycles: each file states the steps of a kind of cycle, and
//! [`search`](crate::search) finds the cycles. Without a cycle an order of the transactions
//! explains every read (I55).

pub(crate) mod aborted_read;
pub(crate) mod duplicate_version;
pub(crate) mod interference;
pub(crate) mod intermediate_read;
pub(crate) mod internal;
pub(crate) mod lost_update;
pub(crate) mod snapshot_read;
pub(crate) mod unwritten_read;
pub(crate) mod version_order;

pub(crate) mod anti_dependency_cycle;
pub(crate) mod circular_information_flow;
pub(crate) mod real_time;
pub(crate) mod session_order;
pub(crate) mod single_anti_dependency;
pub(crate) mod write_cycle;

use crate::search::Search;

/// Kinds of cycles, ordered from few allowed links to many.
pub(crate) const CYCLES: [Search; 6] = [
    write_cycle::SEARCH,
    circular_information_flow::SEARCH,
    single_anti_dependency::SEARCH,
    anti_dependency_cycle::SEARCH,
    session_order::SEARCH,
    real_time::SEARCH,
];
