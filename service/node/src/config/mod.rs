//! Description of a cluster of processes: the checked file (docs/operations.md), and the types of
//! its parts.
//!
//! * `file`: the cluster file, the same for all nodes; `error`: errors in the file; `section`: the
//!   table that the nodes' program interprets;
//! * `name`: names of nodes; `address`, `authority`, `settings`, `snapshots`, `tables`: places,
//!   settings and tables;
//! * `trust`, `key`: credentials; `namespaces`: network namespaces that act as hosts.
//!
//! Not in this folder: connections, processes, or other actions on a description.

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
