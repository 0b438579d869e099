//! One run of a scenario: cluster on virtual time, clients, faults, and end.
//!
//! Imports from [`crate::properties`] and below.

#[cfg(feature = "fault-points")]
mod armed;
pub(crate) mod authority;
pub(crate) mod impatient;
pub mod lives;
pub mod run;
pub mod starts;
pub(crate) mod turns;
pub(crate) mod watched;
