//! The whole cluster on virtual time: scenarios, faults, and the properties that must survive them.
//!
//! # What it is
//! A [`Scenario`] is data: a cluster, a workload, and faults. [`run::run`] runs a scenario with the
//! production crates on the `sim` fabric, from one seed, and judges the result. Scenarios are
//! generated from a seed ([`swarm`]) or named after the hazards that they provoke ([`named`]). A
//! [`campaign`] runs many; [`shrink`] shortens a failing one. [`locks`] has trials of lock systems
//! without an engine.
//!
//! # Floors
//! `campaigns`, `locks`, `drive`, `properties`, `scenario`, `verdict`: each folder imports only
//! from folders behind it.
//!
//! # What it is not
//! A model of the protocol. The engine checks its memory (audit and inspections), the workloads
//! check their data, and [`properties`] check the results that clients saw. Isolation is judged by
//! `lotus-checker`, which shares no code with the engine.
//!
//! # Ownership and threads
//! A run lives on one thread and owns its world. Runs share no state, so campaigns use all cores.

#![forbid(unsafe_code)]

mod campaigns;
mod drive;
pub mod locks;
pub mod properties;
pub mod scenario;
pub mod verdict;

#[cfg(feature = "fault-points")]
pub use campaigns::matrix;
#[cfg(feature = "sabotage")]
pub use campaigns::sabotage;
pub use campaigns::{campaign, named, shrink, swarm};
pub use drive::{lives, run, starts};
pub use scenario::hazard::{self, Hazard};
pub use scenario::{Scenario, ScenarioError, authority, bins, pairs, room, strike};
pub use verdict::{Outcome, Violation};
