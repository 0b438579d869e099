//! Properties that must survive a run, a file for each.
//!
//! Each property checks the history and, if needed, the data left in memory. The properties are
//! pure: they report violations without changes. Imports from [`crate::scenario`] and below.

pub mod balance;
pub(crate) mod copies;
pub mod cuts;
pub mod deletions;
pub(crate) mod drops;
pub mod durability;
pub(crate) mod endless;
pub mod isolation;
pub mod losses;
pub mod progress;
pub(crate) mod returns;
