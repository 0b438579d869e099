//! Clusters of processes: `lotus mn` and `lotus cn`, and `lotus cluster`, which starts and ends
//! them together (docs/operations.md).
//!
//! # What it is
//! * `file`: the configuration, the same for all nodes; `key`, `load`: what it names;
//! * `daemon`: one node;
//! * `service`: what a compute node does for applications; `drive`: `lotus bench` on a running
//!   cluster; `errands`: what it asks of the nodes;
//! * `commands`: all nodes of a host; `processes`: what this host remembers of them;
//! * `node`, `records`: names of nodes, and what they say of themselves.
//!
//! # What it is not
//! Part of the protocol. A node that is started by hand, or by an init system, is as good as one
//! that `lotus cluster up` has started.

mod commands;
mod daemon;
mod drive;
mod errands;
mod file;
mod key;
mod ledger;
mod load;
mod node;
mod processes;
mod records;
mod service;

use std::time::Duration;

use lotus_router::remote::RemoteAuthority;

use crate::Verdict;
use crate::args::{ClusterArgs, ClusterTask, NodeArgs};

pub use drive::{drive, shape, sized};
pub use file::ClusterFile;
pub use node::Kind;
use node::Node;

/// How long the authority may take to answer once.
const AUTHORITY_PATIENCE: Duration = Duration::from_secs(2);

/// The authority that the file names; nobody has been asked yet.
fn authority(file: &ClusterFile) -> Result<RemoteAuthority, String> {
    let security = file.security().map_err(|error| error.to_string())?;
    Ok(RemoteAuthority::new(file.authority(), security, AUTHORITY_PATIENCE))
}

/// `lotus cluster`.
///
/// # Errors
/// A sentence.
pub fn run(args: &ClusterArgs) -> Result<Verdict, String> {
    let place = match &args.task {
        ClusterTask::Up { place, .. } | ClusterTask::Down { place } => place,
        ClusterTask::Status { place, .. } => place,
    };
    let file = ClusterFile::read(&place.file, place.state.as_deref());
    let file = file.map_err(|error| error.to_string())?;
    match args.task {
        ClusterTask::Up { wait_secs, .. } => commands::up(&file, Duration::from_secs(wait_secs)),
        ClusterTask::Status { json, .. } => commands::status(&file, json),
        ClusterTask::Down { .. } => commands::down(&file),
    }
}

/// `lotus mn` and `lotus cn`.
///
/// # Errors
/// A sentence.
pub fn serve(kind: Kind, args: &NodeArgs) -> Result<(), String> {
    let file = ClusterFile::read(&args.place.file, args.place.state.as_deref());
    let file = file.map_err(|error| error.to_string())?;
    daemon::run(&file, Node { kind, index: args.node })
}
