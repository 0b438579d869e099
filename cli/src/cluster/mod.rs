//! Clusters of processes: `lotus mn` and `lotus cn`, and `lotus cluster`, which starts and ends
//! them together (docs/operations.md).
//!
//! # What it is
//! * `file`: the configuration, the same for all nodes; `address`, `key`, `trust`, `load`: its
//!   parts;
//! * `seat`, `in_etcd`: the authority's place; `alive`: whether compute nodes still take part;
//! * `daemon`: one node; `stop`: how it is told to end; `log`: its log lines;
//! * `service`: a compute node's work for applications; `drive`: `lotus bench` on a running
//!   cluster; `errands`: its questions to the nodes;
//! * `shards`: showing and moving shards; `operator`: the nodes' side of that; `ranges`: compact
//!   text for sets of shards; `mailbox`: how nodes are asked;
//! * `snapshots`: files that the cluster begins with; `copier`: asks nodes for a snapshot, and to
//!   rest before they are ended; `rest`: tells nodes that start meanwhile to rest;
//! * `chaos`: kills and pauses processes under load;
//! * `commands`: all nodes of a host; `processes`: this host's list of them; `host`: its
//!   resources; `status`: the state of all nodes of the cluster;
//! * `node`, `records`: names of nodes, and their reports about themselves;
//! * `fuzzing`: entry points for fuzzed files and values.
//!
//! # What it is not
//! Part of the protocol. A node that is started by hand, or by an init system, is as good as one
//! that `lotus cluster up` has started.

mod address;
mod alive;
mod chaos;
mod commands;
mod copier;
mod daemon;
mod drive;
mod errands;
#[cfg(feature = "fault-points")]
mod fault_point;
mod file;
pub(crate) mod fuzzing;
mod host;
#[cfg(feature = "etcd")]
mod in_etcd;
mod key;
mod ledger;
mod load;
mod log;
mod mailbox;
#[cfg(feature = "fault-points")]
mod matrix;
mod memory;
mod namespaces;
mod node;
mod operator;
mod processes;
mod ranges;
mod records;
mod rest;
mod seat;
mod service;
mod shards;
mod snapshots;
mod status;
mod stop;
mod trust;
mod turned_away;

use std::time::Duration;

use crate::Verdict;
use crate::args::{
    BeginningArgs, ChaosArgs, ClusterArgs, ClusterTask, ComputeNodeArgs, NodeArgs, OnOff,
    ShardsArgs, ShardsTask,
};

pub use drive::{drive, shape, sized};
pub use file::ClusterFile;
use namespaces::Namespaces;
use node::{Kind, Node};
use operator::Switch;
use seat::{Seat, Silent};
use snapshots::IfDamaged;

/// The authority that the file names, without connecting.
fn authority(file: &ClusterFile) -> Result<Seat, String> {
    Seat::of(file)
}

/// `lotus cluster`.
///
/// # Errors
/// A sentence.
pub fn run(args: &ClusterArgs) -> Result<Verdict, String> {
    let place = match &args.task {
        ClusterTask::Up { place, .. } | ClusterTask::Down { place, .. } => place,
        ClusterTask::Status { place, .. } | ClusterTask::Snapshot { place, .. } => place,
        #[cfg(feature = "fault-points")]
        ClusterTask::Matrix(args) => return matrix::run(args),
    };
    let file = ClusterFile::read(&place.file, place.state.as_deref());
    let mut file = file.map_err(|error| error.to_string())?;
    match args.task {
        ClusterTask::Up { wait_secs, beginning, .. } => {
            begin(&mut file, beginning)?;
            commands::up(&file, Duration::from_secs(wait_secs))
        }
        ClusterTask::Status { json, .. } => status::show(&file, json),
        ClusterTask::Snapshot { wait_secs, json, .. } => {
            commands::snapshot(&file, Duration::from_secs(wait_secs), json)
        }
        ClusterTask::Down { wait_secs, no_snapshot, others_have_ended, .. } => {
            let snapshot = (!no_snapshot).then(|| Duration::from_secs(wait_secs));
            let silent = if others_have_ended { Silent::HaveEnded } else { Silent::MayLive };
            commands::down(&file, snapshot, silent)
        }
        #[cfg(feature = "fault-points")]
        ClusterTask::Matrix(_) => unreachable!("it has no file"),
    }
}

/// `lotus chaos`.
///
/// # Errors
/// A sentence. Nothing of the cluster runs any more then.
pub fn chaos(args: &ChaosArgs) -> Result<Verdict, String> {
    let file = ClusterFile::read(&args.place.file, args.place.state.as_deref());
    let mut file = file.map_err(|error| error.to_string())?;
    if let Some(name) = &args.namespaces {
        file.namespaces = Some(Namespaces::find(name, Node::all(&file))?);
    }
    chaos::run(&file, args)
}

/// `lotus shards`.
///
/// # Errors
/// A sentence.
pub fn shards(args: &ShardsArgs) -> Result<Verdict, String> {
    let path = args.file.as_ref().ok_or("--file is missing: the description of the cluster")?;
    let file = ClusterFile::read(path, args.state.as_deref());
    let file = file.map_err(|error| error.to_string())?;
    match &args.task {
        None => {
            let filter = shards::Filter { table: args.table.clone(), cn: args.cn };
            shards::show(&file, &filter, args.json)
        }
        Some(ShardsTask::Move { shards, to }) => {
            let to = Node { kind: Kind::Compute, index: *to };
            shards::start_move(&file, &ranges::parse(shards)?, to)
        }
        Some(ShardsTask::Balance { switch: OnOff::On }) => shards::balance(&file, Switch::On),
        Some(ShardsTask::Balance { switch: OnOff::Off }) => shards::balance(&file, Switch::Paused),
    }
}

/// Applies the operator's choice about the snapshot that the cluster begins with.
fn begin(file: &mut ClusterFile, beginning: BeginningArgs) -> Result<(), String> {
    let BeginningArgs { older_snapshot } = beginning;
    match &mut file.snapshots {
        _ if !older_snapshot => {}
        Some(snapshots) => snapshots.if_damaged = IfDamaged::UseOlder,
        None => return Err(format!("{} has no [snapshots] directory", file.path.display())),
    }
    Ok(())
}

/// `lotus mn`.
///
/// # Errors
/// A sentence.
pub fn lend_memory(args: &NodeArgs) -> Result<(), String> {
    serve(Kind::Memory, args, BeginningArgs { older_snapshot: false })
}

/// `lotus cn`.
///
/// # Errors
/// A sentence.
pub fn compute(args: &ComputeNodeArgs) -> Result<(), String> {
    serve(Kind::Compute, &args.node, args.beginning)
}

fn serve(kind: Kind, args: &NodeArgs, beginning: BeginningArgs) -> Result<(), String> {
    let file = ClusterFile::read(&args.place.file, args.place.state.as_deref());
    let mut file = file.map_err(|error| error.to_string())?;
    begin(&mut file, beginning)?;
    daemon::run(&file, Node { kind, index: args.node })
}
