//! `lotus chaos`: a cluster of processes is started, driven and struck, and what is left of it is
//! audited.
//!
//! # What it is
//! * `schedule`, `events`: what is done to whom, and when; what a cluster survives; `draw`: a
//!   random one;
//! * `ordeal`: rounds of load, with a restore between two; `round`: one of them; `aftermath`: what
//!   is left of it; `restoring`: the cluster is ended with a snapshot, and starts from it;
//! * `keeper`: when a strike is due; `striker`: it is carried out; `copies`: snapshots meanwhile;
//! * `callers`: the load, which knows in the end what became of each of its calls; `lives`: what
//!   they saw before and after a restore, as one history;
//! * `hostile`: applications that ask for more than their share; `resident`: what they cost;
//! * `report`: what is said about it.
//!
//! Processes are killed and paused with signals, as an operator or a kernel would. When the load
//! has ended, whoever is paused goes on, and everybody who is out must have been recovered. Then
//! each compute node that serves still audits all data: nothing INVISIBLE, no lock, no open log,
//! replicas alike, balances as the calls have made them. Nothing of the cluster is left running.
//!
//! Nodes that were started in network namespaces have cables, which are pulled and plugged in
//! again; on loopback there are none, and a schedule that asks for it is refused.

mod aftermath;
mod callers;
mod copies;
mod draw;
mod events;
mod hostile;
mod keeper;
mod lives;
mod ordeal;
mod report;
mod resident;
mod restoring;
mod round;
mod schedule;
mod striker;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use lotus_fabric::env::Env;

use super::commands::{start, stop};
use super::file::ClusterFile;
use super::load::Load;
use super::seat::Silent;
use crate::args::ChaosArgs;
use crate::outputs::Outputs;
use crate::steps::Steps;
use crate::{Verdict, screen};
use events::{Event, rounds};
use keeper::Pace;
use ordeal::Ordeal;
use schedule::Bounds;
use striker::Nodes;

/// How long nodes may take to start.
const STARTING: Duration = Duration::from_secs(60);
/// How much load there is between two restores, about.
const BETWEEN_RESTORES: Duration = Duration::from_secs(60);
/// How long recovery may take when the load has ended.
const RECOVERING: Duration = Duration::from_secs(60);
/// What the record of a call takes that does as much as any of TPC-C.
const TPCC_CALL_BYTES: u32 = 8192;
/// The name of the schedule that is drawn.
const RANDOM: &str = "random";

/// Runs a schedule against a cluster that does not run yet, and says what came of it.
///
/// # Errors
/// A sentence: the schedule makes no sense, the cluster does not start, or the load fails in a way
/// that no fault explains. Then nothing runs any more.
pub fn run(file: &ClusterFile, args: &ChaosArgs) -> Result<Verdict, String> {
    let load = file.load.as_ref();
    let load = load.ok_or_else(|| format!("{} loads nothing to drive", file.path.display()))?;
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
        memory_nodes: file.settings.mns,
        replicas: file.settings.replicas,
        cables: file.namespaces.is_some(),
        hosts_authority: !file.authority.outlives_the_cluster(),
        compute_nodes: file.settings.cns,
        lease: file.lease,
        span,
        snapshots: file.snapshots.is_some(),
    };
    let events = read(args, &bounds, seed)?;
    check_snapshots(file)?;
    announce(&args.schedule, seed, &events);
    let pace = if is_drawn(&args.schedule) { Pace::Careful } else { Pace::Exact };

    let steps = Steps::start("# ");
    start(file, STARTING, &steps)?;
    let nodes = Nodes::of(file);
    let ordeal = Ordeal {
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
    let outcome = ordeal.undergo(&rounds(&events, span));
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
    if !report.audit.passed {
        return Ok(Verdict::Unsound);
    }
    // There were none before, and the next run begins with what is loaded.
    remove_snapshots(file)?;
    Ok(Verdict::Sound)
}

/// Refuses a cluster that would begin with a snapshot: what was done to its balances is not known.
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

/// How many restores a drawn schedule has, unless somebody says otherwise.
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

/// Shows the schedule in the form in which it can be read again.
fn announce(path: &Path, seed: u64, events: &[Event]) {
    let head = if is_drawn(path) { format!("# drawn from seed {seed}\n") } else { String::new() };
    // Nobody listens if this fails.
    let _ = io::stderr().write_all(format!("{head}{}", schedule::write(events)).as_bytes());
}

fn is_drawn(schedule: &Path) -> bool {
    schedule == Path::new(RANDOM)
}
