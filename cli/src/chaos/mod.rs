//! `lotus chaos`: starts a cluster of processes, drives it while nodes are struck, and audits the
//! result.
//!
//! # What it is
//! * `schedule`, `events`: faults, with their nodes and times; what a cluster survives; `draw`:
//!   random schedules;
//! * `chaos_run`: rounds of load, with a restore between rounds; `round`: a round of load;
//!   `round_checks`: the checks after a round; `restoring`: ends the cluster with a snapshot, and
//!   starts it from that snapshot;
//! * `pacer`: when a strike is due; `striker`: carries strikes out; `copies`: snapshots under
//!   load;
//! * `callers`: the load, which finds out the outcome of every call; `joined_history`: joins the
//!   callers' histories before and after a restore into one history;
//! * `inserters`: applications that put rows into an ordered table, and the check that no row is
//!   missing;
//! * `hostile`: applications with excessive demands; `memory_samples`: memory held by nodes under
//!   attack;
//! * `report`: the output.
//!
//! Processes are killed and paused with signals, as an operator or a kernel would. When the load
//! has ended, paused nodes are resumed, and all nodes that are out must have been recovered. Then
//! every serving compute node audits the data: nothing INVISIBLE, no lock, no open log, replicas
//! alike, balances equal to the effects of the calls. No process of the cluster is left running.
//!
//! `matrix` strikes single processes at single steps, without load.
//!
//! Nodes started in network namespaces have cables that can be pulled and plugged in again, and
//! paths that can be cut. On loopback there are no cables, and a schedule with such faults is
//! refused.
//!
//! # Imports
//! `operate` and the folders below it; not `bench`.

#[cfg(feature = "fault-points")]
pub mod matrix;

mod callers;
mod chaos_run;
mod copies;
mod draw;
mod events;
mod hostile;
mod inserters;
mod joined_history;
mod memory_samples;
mod pacer;
mod report;
mod restoring;
mod round;
mod round_checks;
mod schedule;
mod striker;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use lotus_fabric::env::Env;

use crate::args::ChaosArgs;
use crate::config::load::Load;
use crate::operate::commands::{start, stop};
use chaos_run::ChaosRun;
use events::{Event, rounds};
use lotus_node::agree::cluster_authority::Silent;
use lotus_node::config::file::ClusterFile;
use lotus_node::config::snapshots::IfDamaged;
use lotus_runner::show::outputs::Outputs;
use lotus_runner::show::steps::Steps;
use lotus_runner::show::{Verdict, screen};
use pacer::Pace;
use schedule::Bounds;
use striker::Nodes;

/// Time limit for the start of nodes.
const STARTING: Duration = Duration::from_secs(60);
/// Approximate duration of the load between two restores.
const BETWEEN_RESTORES: Duration = Duration::from_secs(60);
/// Bytes of a row that remembers a call with the most operations of any TPC-C transaction.
const TPCC_CALL_BYTES: u32 = 8192;
/// Argument that selects a drawn schedule.
const RANDOM: &str = "random";

/// Runs a schedule against a cluster that is not running yet, and shows the report.
///
/// # Errors
/// A sentence: the schedule is invalid, the cluster does not start, or the load fails in a way that
/// no fault explains. No process of the cluster is left running.
pub fn run(file: &ClusterFile, args: &ChaosArgs) -> Result<Verdict, String> {
    let load = Load::of(file).map_err(|error| error.to_string())?;
    let load =
        load.as_ref().ok_or_else(|| format!("{} loads nothing to drive", file.path.display()))?;
    if let Some(wanted) = args.workload.as_ref().filter(|wanted| *wanted != load.name()) {
        let path = file.path.display();
        return Err(format!("{path} loads {}, not {wanted}", load.name()));
    }
    let wants_more = matches!(load, Load::Tpcc { .. }) && file.calls.row_bytes < TPCC_CALL_BYTES;
    if args.history.is_some() && wants_more {
        return Err(format!(
            "the history of tpcc needs [calls] with row_bytes = {TPCC_CALL_BYTES}: the record of a \
             call remembers what it did"
        ));
    }
    if !file.serves_applications() {
        return Err(format!("{} gives compute nodes no client address", file.path.display()));
    }
    let outputs = Outputs::check(args.json.as_deref(), args.history.as_deref());
    let outputs = outputs.map_err(|error| error.to_string())?;
    let env = Env::real(0);
    let seed = args.seed.unwrap_or_else(|| env.now().0);
    let span = Duration::from_secs_f64(args.secs);
    let bounds = Bounds {
        memory_nodes: file.settings.memory_nodes,
        replicas: file.settings.replicas,
        cables: file.namespaces.is_some(),
        hosts_authority: !file.authority.outlives_the_cluster(),
        compute_nodes: file.settings.compute_nodes,
        lease: file.settings.lease,
        span,
        snapshots: file.snapshots.is_some(),
    };
    let events = read(args, &bounds, seed)?;
    check_snapshots(file)?;
    announce(&args.schedule, seed, &events);
    let pace = if is_drawn(&args.schedule) { Pace::Careful } else { Pace::Exact };

    let steps = Steps::start("# ");
    start(&afresh(file), STARTING, &steps)?;
    let nodes = Nodes::of(file);
    let chaos_run = ChaosRun {
        file,
        load,
        nodes: &nodes,
        seed,
        bounds,
        pace,
        traced: outputs.history.is_some(),
        hostile: args.hostile,
        steps: &steps,
    };
    let outcome = chaos_run.run(&rounds(&events, span));
    let resumed = nodes.resume_all();
    let stopped = stop(file, Silent::MayLive, &steps);
    drop(steps);
    let (report, history) = outcome?;
    stopped?;
    resumed?;
    if let Some(output) = &outputs.history {
        output.write(|out| history.write(out)).map_err(|error| error.to_string())?;
    }
    if let Some(output) = &outputs.json {
        screen::write_json(output, &report).map_err(|error| error.to_string())?;
    }
    let data = [&outputs.json, &outputs.history];
    screen::show(&report.table(), &data).map_err(|error| error.to_string())?;
    let verdict = report.audit.outcome.into();
    if verdict != Verdict::Unsound {
        // There were no snapshots before the run, and the next run starts with freshly loaded data.
        remove_snapshots(file)?;
    }
    Ok(verdict)
}

/// The cluster file for a fresh start: without the data of an earlier run, whose balances are
/// unknown.
fn afresh(file: &ClusterFile) -> ClusterFile {
    let mut file = file.clone();
    if let Some(snapshots) = &mut file.snapshots {
        snapshots.if_damaged = IfDamaged::Afresh;
    }
    file
}

/// Refuses a cluster that would start from a snapshot: the effects on its balances are unknown.
fn check_snapshots(file: &ClusterFile) -> Result<(), String> {
    let Some(snapshots) = &file.snapshots else { return Ok(()) };
    match snapshots.paths().map_err(|error| error.to_string())?.first() {
        None => Ok(()),
        Some(found) => Err(format!(
            "{} is there, and the cluster would begin with it: move all snapshots away",
            found.display()
        )),
    }
}

fn remove_snapshots(file: &ClusterFile) -> Result<(), String> {
    let Some(snapshots) = &file.snapshots else { return Ok(()) };
    let paths = snapshots.paths().map_err(|error| error.to_string())?;
    let removed = paths.iter().try_for_each(std::fs::remove_file);
    removed.map_err(|error| format!("cannot remove the snapshots of this run: {error}"))
}

/// Default number of restores in a drawn schedule.
fn usual_restores(bounds: &Bounds) -> usize {
    match bounds.snapshots && bounds.lease.is_some() {
        true => bounds.span.as_secs().div_ceil(BETWEEN_RESTORES.as_secs()) as usize,
        false => 0,
    }
}

fn read(args: &ChaosArgs, bounds: &Bounds, seed: u64) -> Result<Vec<Event>, String> {
    let path = &args.schedule;
    if is_drawn(path) {
        let restores = args.restores.unwrap_or_else(|| usual_restores(bounds));
        if restores > 0 && !bounds.snapshots {
            return Err("--restores needs [snapshots] in the cluster's file".to_owned());
        }
        return Ok(bounds.draw_all(seed, restores));
    }
    if args.restores.is_some() {
        return Err("--restores is for drawn schedules; a file says when by itself".to_owned());
    }
    let named = |why: &dyn std::fmt::Display| format!("{}, {why}", path.display());
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    bounds.parse(&text).map_err(|error| named(&error))
}

/// Checks the text of a schedule for three memory nodes and three compute nodes, with cables and
/// snapshots.
///
/// # Errors
/// A sentence with the line.
pub fn check(text: &str) -> Result<(), String> {
    let bounds = Bounds {
        memory_nodes: 3,
        replicas: 2,
        cables: true,
        hosts_authority: true,
        compute_nodes: 3,
        lease: Some(Duration::from_secs(1)),
        span: Duration::from_secs(60),
        snapshots: true,
    };
    bounds.parse(text).map(drop).map_err(|error| error.to_string())
}

/// Prints the schedule, with its seed, in a form that can be read again.
fn announce(path: &Path, seed: u64, events: &[Event]) {
    let head = if is_drawn(path) { format!("# drawn from seed {seed}\n") } else { String::new() };
    // A failed write to standard error is ignored.
    let _ = io::stderr().write_all(format!("{head}{}", schedule::write(events)).as_bytes());
}

fn is_drawn(schedule: &Path) -> bool {
    schedule == Path::new(RANDOM)
}
