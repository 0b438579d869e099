//! The contract between workloads, engines and the harness: traits, configuration, effects, counts.
//!
//! The lowest room: imports from no other room, and knows no workload and no engine.

pub mod audit;
pub mod config;
pub mod deployment;
pub mod engine;
pub mod stats;
pub mod workload;
