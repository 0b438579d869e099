//! Load generation: clients, workers that serve clients, and the harness that runs both.
//!
//! Imports from `contract` and `judge`. Knows no workload and no engine by name.

pub(crate) mod clients;
pub mod harness;
pub mod live;
pub mod progress;
pub(crate) mod worker;
