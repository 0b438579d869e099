//! Configuration, errors and data types that callers see.
//!
//! The lowest floor: imports nothing of this crate.

pub(crate) mod abort;
pub(crate) mod cache_counters;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod isolation;
pub(crate) mod moves;
pub(crate) mod options;
pub(crate) mod row_name;
pub(crate) mod seat;
