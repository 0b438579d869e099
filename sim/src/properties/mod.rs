//! Properties of the clients' observations, one a file.
//!
//! Each checks the history and, if it needs to, the data that is left. All are pure: they report
//! what is wrong and change nothing.

pub mod balance;
pub mod deletions;
pub mod durability;
pub mod isolation;
pub mod losses;
pub mod progress;
