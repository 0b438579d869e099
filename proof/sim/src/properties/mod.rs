//! Properties that must survive a run, one a file.
//!
//! Each checks the history and, if it needs to, the data that is left. All are pure: they report
//! what is wrong and change nothing. Imports from [`crate::scenario`] and below.

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
