//! Configuration, errors and data types of the public interface.
//!
//! The lowest floor: imports no other folder of this crate.

pub(crate) mod abort;
pub(crate) mod cache_counters;
pub(crate) mod config;
pub(crate) mod coordinator_id;
pub(crate) mod error;
pub(crate) mod isolation;
pub(crate) mod moves;
pub(crate) mod options;
pub(crate) mod row_name;
