//! An operator's commands: `lotus cluster`, `lotus shards`, and the commands for the cluster's
//! data. Imports `apps` and `args`.
//!
//! * `commands`: starting, ending and saving the nodes of a host; `consent`: the operator's consent
//!   to a loss of data; `status`: the state of all nodes of the cluster; `memory`: the cluster's
//!   memory and tables;
//! * `shards`: showing and moving shards; `ranges`: compact text for sets of shards;
//! * `rows`: tables and rows; `bytes`: keys and values as text.
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
