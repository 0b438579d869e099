//! An operator's commands: `lotus cluster` and `lotus shards`. Imports `host` and `show`.
//!
//! * `commands`: starting, ending and saving the nodes of a host; `status`: the state of all nodes
//!   of the cluster;
//! * `shards`: showing and moving shards; `ranges`: compact text for sets of them.
//!
//! Not here: the nodes' side of a request (the crate `lotus-node`).

pub mod commands;
pub mod ranges;
pub mod shards;
pub mod status;
