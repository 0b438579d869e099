//! A scenario: a cluster, a workload and faults, as data.
//!
//! [`mod@format`] is its form in files, [`check`](self) refuses impossible scenarios, and
//! `settings` derives the settings of the cluster. Imports from [`crate::verdict`] alone.

pub mod authority;
pub mod bins;
mod check;
pub mod format;
pub mod hazard;
pub mod lives;
pub(crate) mod memory_returns;
pub mod pairs;
pub mod room;
mod settings;
pub mod strike;

pub use format::{Hot, Load, Network, Scenario, ScenarioError, Topology, Workload};
