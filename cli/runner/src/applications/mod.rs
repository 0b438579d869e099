//! Load from applications: calls of stored transactions through the client library. Imports `args`
//! and `host`.
//!
//! * `requests`: calls that a workload draws;
//! * `load`: registration of a workload's transactions at a server, and the load that calls them;
//! * `traced`: operations of a call, for histories.

pub mod load;
pub mod requests;
pub mod traced;
