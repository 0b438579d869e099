//! Load generation: clients, the workers that serve them, and the harness that runs both.
//!
//! Imports from `contract` and `judge`. It knows no workload and no engine by name.

pub(crate) mod clients;
pub mod harness;
pub mod live;
pub mod progress;
pub(crate) mod worker;
