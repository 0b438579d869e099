//! The workloads of `lotus bench` as applications of a cluster: their stored transactions, and
//! callers of the stored transactions. Imports `config` and `host`.
//!
//! * `loaded`: the application that `lotus cn` serves; `ledger`: effects of benchmarks, kept at the
//!   authority; `errands`: requests of benchmarks to nodes;
//! * `load`: registration of the transactions, and the load that calls them; `traced`: operations
//!   of a call, for histories;
//! * `connect`: connection to a running cluster.
//!
//! Not here: the benchmark around the load (`bench`), and load under faults (`chaos`).

pub mod connect;
pub mod errands;
pub mod ledger;
pub mod load;
pub mod loaded;
pub mod traced;
