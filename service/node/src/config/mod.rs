//! Description of a cluster of processes: its file (docs/operations.md), checked, and the types of
//! its parts.
//!
//! * `file`: the cluster file, the same for all nodes; `error`: what can be wrong with it;
//!   `section`: the table that the nodes' program understands;
//! * `name`: names of nodes; `address`, `authority`, `settings`, `snapshots`, `tables`: places,
//!   settings and tables;
//! * `trust`, `key`: credentials; `namespaces`: network namespaces that act as hosts.
//!
//! Not here: connections, processes, or anything else that acts on a description.

pub mod address;
pub mod authority;
pub mod error;
pub mod file;
pub mod key;
pub mod name;
pub mod namespaces;
pub mod section;
pub mod settings;
pub mod snapshots;
mod tables;
pub mod trust;
