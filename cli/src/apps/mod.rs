//! The workloads of `lotus bench` as applications of a running cluster. Imports `config`.
//!
//! * `loaded`: the application that `lotus cn` serves; `ledger`: effects of benchmarks, kept at the
//!   authority; `node_tasks`: requests of benchmarks to nodes;
//! * `connect`: connection to a running cluster.
//!
//! Not here: the load that calls the workloads (`lotus_runner::applications`), the benchmark around
//! the load (`bench`), and load under faults (`chaos`).

pub mod connect;
pub mod ledger;
pub mod loaded;
pub mod node_tasks;
