//! Memory that committed transactions leave behind: deleted rows and old versions (H13).
//!
//! Imports from [`crate::membership`] and below.

pub(crate) mod pieces;
pub(crate) mod purge;
pub(crate) mod trim;
