//! Description of a cluster of processes: its file (docs/operations.md), checked, and the types of
//! its parts. Imports `args`, for the syntax of sizes.
//!
//! * `file`: the cluster file, the same for all nodes; `error`: what can be wrong with it;
//! * `node`: names of nodes; `address`, `authority`, `snapshots`, `load`: places and settings;
//! * `trust`, `key`: credentials; `namespaces`: network namespaces that act as hosts.
//!
//! Not here: connections, processes, or anything else that acts on a description.

pub mod address;
pub mod authority;
pub mod error;
pub mod file;
pub mod key;
pub mod load;
pub mod namespaces;
pub mod node;
pub mod snapshots;
pub mod trust;
