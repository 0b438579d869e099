//! Commands over clusters of processes, from their arguments to the folders that carry them out:
//! `lotus cluster`, `shards` and `chaos`; `lotus tables`, `get`, `put`, `del` and `scan`; and the
//! nodes themselves, `lotus mn` and `cn` (docs/operations.md).

use std::time::Duration;

use crate::apps::loaded::Loaded;
use crate::args::{
    ChaosArgs, ClusterArgs, ClusterTask, DelArgs, GetArgs, OnOff, PutArgs, ScanArgs, ShardsArgs,
    ShardsTask, TablesArgs,
};
use crate::chaos;
use crate::config::{self, load::Load};
use crate::operate::consent::Others;
use crate::operate::{commands, ranges, rows, shards, status};
use lotus_node::Node;
use lotus_node::agree::cluster_authority::Silent;
use lotus_node::command_line::{ClusterPlace, NodeCommand};
use lotus_node::config::file::ClusterFile;
use lotus_node::config::name::{NodeKind, NodeName};
use lotus_node::config::namespaces::Namespaces;
use lotus_node::requests::operator::Switch;
use lotus_runner::show::Verdict;

/// `lotus cluster`.
///
/// # Errors
/// A sentence.
pub fn run(args: &ClusterArgs) -> Result<Verdict, String> {
    let place = match &args.task {
        ClusterTask::Up { place, .. } | ClusterTask::Down { place, .. } => place,
        ClusterTask::Status { place, .. } | ClusterTask::Snapshot { place, .. } => place,
        #[cfg(feature = "fault-points")]
        ClusterTask::Matrix(args) => return chaos::matrix::run(args),
    };
    let mut file = read(place)?;
    match args.task {
        ClusterTask::Up { wait_secs, beginning, .. } => {
            beginning.choose(&mut file)?;
            commands::up(&file, Duration::from_secs(wait_secs))
        }
        ClusterTask::Status { json, .. } => status::show(&file, json),
        ClusterTask::Snapshot { wait_secs, json, .. } => {
            commands::snapshot(&file, Duration::from_secs(wait_secs), json)
        }
        ClusterTask::Down { wait_secs, no_snapshot, discard, others_have_ended, force, .. } => {
            let discards = no_snapshot || discard;
            let snapshot = (!discards).then(|| Duration::from_secs(wait_secs));
            let silent = if others_have_ended { Silent::HaveEnded } else { Silent::MayLive };
            let others = if force { Others::MayLose } else { Others::LoseNothing };
            commands::down(&file, snapshot, silent, others)
        }
        #[cfg(feature = "fault-points")]
        ClusterTask::Matrix(_) => unreachable!("it has no file"),
    }
}

/// `lotus chaos`.
///
/// # Errors
/// A sentence. No process of the cluster is left running.
pub fn chaos(args: &ChaosArgs) -> Result<Verdict, String> {
    let mut file = read(&args.place)?;
    if let Some(name) = &args.namespaces {
        file.namespaces = Some(Namespaces::find(name, NodeName::all(&file))?);
    }
    chaos::run(&file, args)
}

/// `lotus shards`.
///
/// # Errors
/// A sentence.
pub fn shards(args: &ShardsArgs) -> Result<Verdict, String> {
    let path = args.file.as_ref().ok_or("--file is missing: the description of the cluster")?;
    let file = config::read(path, args.state.as_deref());
    let file = file.map_err(|error| error.to_string())?;
    match &args.task {
        None => {
            let filter = shards::Filter { table: args.table.clone(), cn: args.cn };
            shards::show(&file, &filter, args.json)
        }
        Some(ShardsTask::Move { shards, to }) => {
            let to = NodeName { kind: NodeKind::Compute, index: *to };
            shards::start_move(&file, &ranges::parse(shards)?, to)
        }
        Some(ShardsTask::Balance { switch: OnOff::On }) => shards::balance(&file, Switch::On),
        Some(ShardsTask::Balance { switch: OnOff::Off }) => shards::balance(&file, Switch::Paused),
    }
}

/// `lotus tables`.
///
/// # Errors
/// A sentence.
pub fn tables(args: &TablesArgs) -> Result<Verdict, String> {
    let file = read(&args.place)?;
    match &args.drop {
        Some(table) => rows::drop_table(&file, table),
        None => rows::tables(&file, args.json),
    }
}

/// `lotus get`.
///
/// # Errors
/// A sentence.
pub fn get(args: &GetArgs) -> Result<Verdict, String> {
    rows::get(&read(&args.place)?, args)
}

/// `lotus put`.
///
/// # Errors
/// A sentence.
pub fn put(args: &PutArgs) -> Result<Verdict, String> {
    rows::put(&read(&args.place)?, args)
}

/// `lotus del`.
///
/// # Errors
/// A sentence.
pub fn del(args: &DelArgs) -> Result<Verdict, String> {
    rows::del(&read(&args.place)?, args)
}

/// `lotus scan`.
///
/// # Errors
/// A sentence.
pub fn scan(args: &ScanArgs) -> Result<Verdict, String> {
    rows::scan(&read(&args.place)?, args)
}

/// `lotus mn` and `lotus cn`.
///
/// # Errors
/// A sentence.
pub fn serve(command: &NodeCommand) -> Result<(), String> {
    let mut file = read(command.place())?;
    command.beginning().choose(&mut file)?;
    let name = command.name();
    if let (NodeKind::Compute, Some(program)) = (name.kind, &file.program) {
        let (path, program) = (file.path.display(), program.display());
        return Err(format!("the compute nodes of {path} are run by {program}, not by lotus cn"));
    }
    let loaded = Loaded(Load::of(&file).map_err(|error| error.to_string())?);
    Node::new(file, name, loaded).run().map_err(|error| error.to_string())
}

fn read(place: &ClusterPlace) -> Result<ClusterFile, String> {
    config::read(&place.file, place.state.as_deref()).map_err(|error| error.to_string())
}
