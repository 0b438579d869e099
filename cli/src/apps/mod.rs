//! Applications outside of the compute nodes: stored transactions of the workload, and their
//! callers. Imports `config` and `host`.
//!
//! * `load`: registration of the transactions, and the load that calls them; `traced`: operations
//!   of a call, for histories;
//! * `connect`: connection to a running cluster.
//!
//! Not here: the benchmark around the load (`bench`), and load under faults (`chaos`).

pub mod connect;
pub mod load;
pub mod traced;
