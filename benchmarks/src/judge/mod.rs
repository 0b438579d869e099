//! Judging a run: histories for an isolation checker, and the bottleneck of a simulated one.
//!
//! Imports from `contract` only. Audits of the data are the workloads' own.

pub mod history;
pub mod utilisation;
