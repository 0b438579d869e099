//! Engines that carry out workloads: Lotus, and for tests a simple reference.
//!
//! Imports from `contract` and `judge`. Knows no workload by name.

mod counts;
pub mod lotus;
#[cfg(test)]
pub(crate) mod reference;
pub mod wrapper;
