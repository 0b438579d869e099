//! One run of a scenario: the cluster on virtual time, its clients, its faults, and its end.
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
