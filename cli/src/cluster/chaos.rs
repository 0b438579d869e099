//! `lotus chaos`: a cluster of processes is started, driven and struck, and what is left of it is
//! audited.
//!
//! # What it is
//! * `schedule`: what is done to whom, and when; what a cluster survives; `draw`: a random one;
//! * `keeper`: when a strike is due; `striker`: it is carried out;
//! * `callers`: the load, which knows in the end what became of each of its calls;
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

mod callers;
mod draw;
mod hostile;
mod keeper;
mod report;
mod resident;
mod schedule;
mod striker;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus_benchmarks::audit::{Audit, Check, Effects};
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::history::History;
use lotus_benchmarks::workload::Workload;
use lotus_fabric::env::Env;
use lotus_recovery::Membership;
use lotus_recovery::membership;
use lotus_router::Authority;

use super::commands::{start, stop};
use super::drive::{AUDITING, attach, connect};
use super::errands::{Done, Errand, ask};
use super::file::ClusterFile;
use super::load::{Load, Use};
use super::node::{Kind, Node};
use super::processes::wait_until;
use super::seat::{Seat, Silent};
use crate::applications::failed;
use crate::args::ChaosArgs;
use crate::outputs::Outputs;
use crate::steps::Steps;
use crate::{Verdict, screen};
use callers::{Callers, Seen};
use hostile::{Hostile, Met};
use keeper::{Keeper, Pace};
use report::Report;
use resident::Resident;
use schedule::{Bounds, Fault, Strike};
use striker::{Nodes, Struck};

/// How long nodes may take to start.
const STARTING: Duration = Duration::from_secs(60);
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
    };
    let strikes = read(&args.schedule, &bounds, seed)?;
    announce(&args.schedule, seed, &strikes);

    let pace = if is_drawn(&args.schedule) { Pace::Careful } else { Pace::Exact };
    let keeper = Keeper::new(bounds, pace, &strikes);

    let steps = Steps::start("# ");
    start(file, STARTING, &steps)?;
    let nodes = Nodes::of(file);
    let traced = outputs.history.is_some();
    let hostile = args.hostile;
    let ordeal = Ordeal { file, nodes: &nodes, seed, span, keeper, traced, hostile, steps: &steps };
    let outcome = load.with(ordeal);
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
    Ok(if report.audit.passed { Verdict::Sound } else { Verdict::Unsound })
}

fn read(path: &Path, bounds: &Bounds, seed: u64) -> Result<Vec<Strike>, String> {
    if is_drawn(path) {
        return Ok(bounds.draw(seed));
    }
    let named = |why: &dyn std::fmt::Display| format!("{}, {why}", path.display());
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    bounds.parse(&text).map_err(|error| named(&error))
}

/// Shows the schedule in the form in which it can be read again.
fn announce(path: &Path, seed: u64, strikes: &[Strike]) {
    let head = if is_drawn(path) { format!("# drawn from seed {seed}\n") } else { String::new() };
    // Nobody listens if this fails.
    let _ = io::stderr().write_all(format!("{head}{}", schedule::write(strikes)).as_bytes());
}

fn is_drawn(schedule: &Path) -> bool {
    schedule == Path::new(RANDOM)
}

/// What a cluster goes through, once it serves.
struct Ordeal<'a> {
    file: &'a ClusterFile,
    nodes: &'a Nodes,
    seed: u64,
    span: Duration,
    keeper: Keeper,
    traced: bool,
    /// Clients that ask for more than their share.
    hostile: usize,
    steps: &'a Steps,
}

impl Use for Ordeal<'_> {
    type Outcome = Result<(Report, History), String>;

    fn of<W: Workload>(self, mut workload: W) -> Self::Outcome {
        let Self { file, nodes, seed, span, keeper, traced, hostile, steps } = self;
        steps.say(format!("calls are made, and nodes struck, for {} s", span.as_secs_f64()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let clock = Env::real(seed);
        let authority = super::authority(file)?;
        let stop = AtomicBool::new(false);
        let driven = std::thread::scope(|scope| {
            let _stop = StopOnDrop(&stop);
            let resident = Resident::of(file, nodes);
            let watching = scope.spawn(|| resident.watch(nodes, &stop));
            let driven = runtime.block_on(async {
                let client = connect(file).await?;
                let tables = attach(&client, &mut workload, file)?;
                let workload = Arc::new(workload);
                let until = clock.now().after(span);
                let room = file.calls.rows as f64 * f64::from(file.calls.row_bytes);
                let clock = clock.clone();
                let callers = Callers { workload, clock, until, span, traced, room };
                let struck = scope.spawn(|| striker::strike(nodes, &authority, keeper, span));
                let besieged = Hostile::of(file, hostile, Env::real(seed), until);
                let besieged = besieged.map(|hostile| scope.spawn(|| hostile.beset()));
                let besieged = besieged.map_err(|why| failed(&why))?;
                Ok((callers.call(&client).await?, tables, struck, besieged))
            });
            let driven = driven.map_err(|error: BenchError| error.to_string());
            let (seen, tables, struck, besieged) = driven?;
            let struck = struck.join().map_err(|_| "whoever strikes has panicked".to_owned())?;
            let met = besieged.join().map_err(|_| "a hostile client has panicked".to_owned())?;
            stop.store(true, Ordering::Relaxed);
            let resident = watching.join().map_err(|_| "who looks at memory has panicked")?;
            Ok::<_, String>((seen, tables, struck?, Siege { met: met?, resident }))
        });
        let (mut seen, tables, struck, siege) = driven?;
        let history = History::new(tables, std::mem::take(&mut seen.logs));
        let (struck, siege) = (&struck, &siege);
        let aftermath = Aftermath { file, nodes, seed, span, struck, siege, steps };
        Ok((aftermath.judge::<W>(&authority, seen)?, history))
    }
}

/// What hostile clients have met, and what they have cost.
struct Siege {
    met: Met,
    resident: Resident,
}

/// Lets those who look again and again end, however a run ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What is left when the load and the strikes have ended.
struct Aftermath<'a> {
    file: &'a ClusterFile,
    nodes: &'a Nodes,
    seed: u64,
    span: Duration,
    struck: &'a Struck,
    siege: &'a Siege,
    steps: &'a Steps,
}

impl Aftermath<'_> {
    /// Waits until those who are out have been recovered, and has everybody else look.
    fn judge<W: Workload>(&self, authority: &Seat, seen: Seen) -> Result<Report, String> {
        let mut checks = Vec::new();
        self.steps.say("whoever is out is recovered");
        let members = self.await_recovery(authority);
        let out: Vec<Node> = members.iter().flat_map(|now| self.nodes.out(now)).collect();
        let recovered = members.as_ref().is_some_and(|now| self.is_recovered(now));
        let detail = match &members {
            Some(now) => {
                let lacking = self.nodes.lacking(now);
                format!("epoch {}, out: {}{lacking}", now.epoch().0, names(&out))
            }
            None => "the authority does not answer".to_owned(),
        };
        checks.push(Check::new("whoever is out has been recovered", recovered, detail));
        checks.push(Check::new(
            "what became of every call is known",
            seen.open == 0,
            format!("{} of {} unanswered calls are open", seen.open, seen.unanswered),
        ));
        checks.push(self.siege.resident.check());
        if self.siege.met.admitted > 0 {
            checks.extend(self.siege(&out));
        }
        let serving = Node::all(self.file).filter(|node| node.kind == Kind::Compute);
        for node in serving.filter(|node| !out.contains(node)) {
            self.steps.say(format!("{} looks at all data", node.in_words()));
            checks.extend(audit(authority, node, seen.tally.effects)?);
        }
        Ok(Report {
            file: self.file.path.display().to_string(),
            seed: self.seed,
            secs: self.span.as_secs_f64(),
            workload: W::NAME,
            schedule: self.struck.strikes.clone(),
            starts_struck: self.struck.starts,
            epoch: members.map(|now| now.epoch().0),
            expelled: out,
            committed: seen.tally.all_committed,
            refused: seen.refused,
            unanswered: seen.unanswered,
            found_committed: seen.found,
            longest_silence_ms: seen.silence.as_millis() as u64,
            audit: Audit::new(checks),
        })
    }

    /// What there is to say of hostile clients, when these nodes are out.
    fn siege(&self, out: &[Node]) -> [Check; 2] {
        let Met { admitted, closed, granted } = self.siege.met;
        let refused = Check::new(
            "nobody was given more than his share",
            granted == 0,
            format!("{admitted} hostile connections, {closed} closed, {granted} steps too large"),
        );
        let lease = self.file.lease;
        let untouched = out.iter().filter(|node| self.struck.is_untouched(**node, lease));
        let still_out = untouched.map(|node| (*node, self.nodes.last_words(*node)));
        let unexplained = self.struck.unexplained.iter().cloned().chain(still_out);
        let lost: Vec<String> = unexplained
            .filter(|(node, _)| node.kind == Kind::Compute)
            .map(|(node, words)| format!("{node}: {words}"))
            .collect();
        let detail = if lost.is_empty() { "nobody".to_owned() } else { lost.join("; ") };
        let name = "nobody was expelled for what applications did";
        [refused, Check::new(name, lost.is_empty(), detail)]
    }

    /// The membership, as soon as nothing is left to recover; or as it is when that takes too long.
    fn await_recovery(&self, authority: &dyn Authority) -> Option<Membership> {
        let mut members = None;
        wait_until(&Env::real(0), RECOVERING, || {
            members = membership::read(authority).ok();
            let serve = self.restarted().all(|node| self.nodes.serves(authority, node));
            serve && members.as_ref().is_some_and(|now| self.is_recovered(now))
        });
        members
    }

    /// Whether everybody who has ended is out, and everybody who is out is recovered.
    fn is_recovered(&self, now: &Membership) -> bool {
        let out = self.nodes.out(now);
        let mut ended = self.nodes.all().filter(|node| self.nodes.has_ended(*node));
        let noticed = ended.all(|node| out.contains(&node));
        let back = self.restarted().all(|node| !out.contains(&node));
        let filled = now.joining().next().is_none();
        noticed && back && filled && now.may_resume() && now.may_adopt()
    }

    /// Who was started again, and struck by nothing since.
    fn restarted(&self) -> impl Iterator<Item = Node> {
        let last = |node: &Node| self.struck.strikes.iter().rfind(|strike| strike.node == *node);
        Node::all(self.file)
            .filter(move |node| last(node).is_some_and(|last| last.fault == Fault::Restart))
    }
}

/// What a node finds.
fn audit(
    authority: &dyn Authority,
    node: Node,
    effects: Effects,
) -> Result<impl Iterator<Item = Check>, String> {
    match ask(authority, node, Errand::Audit(effects), AUDITING)? {
        Done::Audited(checks) => Ok(checks
            .into_iter()
            .map(move |check| Check { name: format!("{node}: {}", check.name), ..check })),
        _ => Err(format!("{} has looked at nothing", node.in_words())),
    }
}

fn names(nodes: &[Node]) -> String {
    let names: Vec<String> = nodes.iter().map(Node::to_string).collect();
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}
