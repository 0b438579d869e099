//! One node of a cluster of processes, as a library: `lotus cn` and `lotus mn`, for programs with
//! tables and stored transactions of their own.
//!
//! # What it is
//! [`Node`] reads the description of a cluster (docs/operations.md), lends memory or runs
//! transactions as one node of the cluster, and ends on a signal. All compute nodes of a cluster
//! run the same program and file; `lotus cluster up` starts the program that the file names.
//!
//! ```no_run
//! use lotus::{TableSpec, Transaction};
//! use lotus_node::Node;
//! use lotus_server::{Abort, Registry};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     Node::from_command_line()?
//!         .tables([TableSpec::new("orders").record_bytes(16).capacity(10_000)])
//!         .procedures(|tables| {
//!             let orders = tables["orders"];
//!             let mut registry = Registry::new();
//!             registry.register_read_only(
//!                 "order",
//!                 async move |txn: &mut Transaction, number: u64| {
//!                     let order = txn.add_ro(orders, number)?;
//!                     txn.execute().await?;
//!                     Ok::<_, Abort>(txn.value(order).map(<[u8]>::to_vec))
//!                 },
//!             );
//!             registry
//!         })
//!         .run()?;
//!     Ok(())
//! }
//! ```
//!
//! # What it is not
//! The protocol, which the engine carries out, or a supervisor: an operator must restart a node
//! that has ended. The modules below [`Node`] are shared between the `lotus` command and the nodes
//! that it starts, asks and strikes; programs do not need them.
//!
//! # Floors
//! A room imports only from rooms on lower floors:
//! * `program`: [`Node`], from a file and an application to a running process;
//! * `command_line`: the arguments of a program that runs nodes;
//! * `daemon`: the process of a node, from its start to its end;
//! * `requests`: requests of operators and snapshots to a node, each with the asking side;
//! * `snapshots`: files of snapshots, with which a cluster begins;
//! * `application`: tables and stored transactions of a node's program;
//! * `agree`: values at the authority, by which the processes of a cluster agree;
//! * `host`: processes, signals, memory and sockets of this host;
//! * `config`: the description of a cluster.

#![forbid(unsafe_code)]

pub mod agree;
pub mod application;
pub mod command_line;
pub mod config;
pub mod daemon;
pub mod host;
mod program;
pub mod requests;
pub mod snapshots;

pub use application::{Application, TableIds, Tables};
pub use config::error::FileError;
pub use config::file::ClusterFile;
pub use config::name::NodeName;
pub use program::{Node, NodeError};
