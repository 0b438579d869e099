//! An operator's commands: `lotus cluster` and `lotus shards`, and those for its data. Imports
//! `apps`, `args`, `host` and `show`.
//!
//! * `commands`: starting, ending and saving the nodes of a host; `consent`: the operator's to what
//!   loses data; `status`: the state of all nodes of the cluster; `memory`: its memory and tables;
//! * `shards`: showing and moving shards; `ranges`: compact text for sets of them;
//! * `rows`: tables and rows; `bytes`: their keys and values as text.
//!
//! Not here: the nodes' side of a request (the crate `lotus-node`).

mod bytes;
pub mod commands;
pub mod consent;
pub mod memory;
pub mod ranges;
pub mod rows;
pub mod shards;
pub mod status;
