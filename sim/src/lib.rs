//! The whole cluster on virtual time: scenarios, faults, and the properties that must survive them.
//!
//! # What it is
//! A [`Scenario`] is data: a cluster, a workload, and its faults. [`run::run`] runs one with the
//! production crates on the `sim` fabric, from one seed, and judges the result. Scenarios are
//! generated from a seed ([`swarm`]) or named after the hazards that they provoke ([`named`]). A
//! [`campaign`] runs many; [`shrink`] makes a failing one short.
//!
//! # What it is not
//! A model of the protocol. The engine checks its memory (audit and inspections), the workloads
//! check their data, and [`properties`] check what clients saw; isolation is judged by
//! `lotus-checker`, which shares no code with the engine.
//!
//! # Ownership and threads
//! One run lives on one thread and owns its world. Runs share nothing, so campaigns use all cores.

#![forbid(unsafe_code)]

pub mod authority;
pub mod campaign;
mod copies;
pub mod hazard;
mod impatient;
#[cfg(feature = "fault-points")]
pub mod matrix;
mod memory_returns;
pub mod named;
pub mod pairs;
pub mod properties;
mod returns;
pub mod room;
pub mod run;
#[cfg(feature = "sabotage")]
pub mod sabotage;
pub mod scenario;
pub mod shrink;
pub mod starts;
pub mod strike;
pub mod swarm;
mod turns;
mod watched;

pub use hazard::Hazard;
pub use run::{Outcome, Violation};
pub use scenario::{Scenario, ScenarioError};
