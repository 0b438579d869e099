//! What must be true of what clients saw, one property a file.
//!
//! Each looks at the history and, where it needs to, at the data that is left. All are pure: they
//! say what is wrong, never what to do about it.

pub mod balance;
pub mod deletions;
pub mod durability;
pub mod isolation;
pub mod losses;
pub mod progress;
