//! Judging a run: histories for an isolation checker, and the bottleneck of a simulated run.
//!
//! Imports from `contract` only. Audits of the data belong to the workloads.

pub mod history;
pub mod utilisation;
