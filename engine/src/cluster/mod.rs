//! A process of a cluster: start, coordinators, tables, loading, and figures.
//!
//! Imports from [`crate::upkeep`] and below.

pub(crate) mod builder;
pub(crate) mod capacity;
pub(crate) mod drop_table;
pub(crate) mod ending;
pub(crate) mod figures;
pub(crate) mod handle;
pub(crate) mod load;
pub(crate) mod loaded;
pub(crate) mod memory_status;
pub(crate) mod once;
pub(crate) mod part;
pub(crate) mod plan;
pub(crate) mod rejoin;
pub(crate) mod row_counts;
pub(crate) mod run;
pub(crate) mod shards;
pub(crate) mod tables;
pub(crate) mod threads;
pub(crate) mod trees;
pub(crate) mod watchdog;
