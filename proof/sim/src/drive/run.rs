//! One run: turns a scenario and a seed into a verdict.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use lotus::{ClusterBuilder, MemoryStanding};
use lotus_benchmarks::config::LoadConfig;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::harness::{self, BenchError, Options};
use lotus_benchmarks::history::{History, Status};
use lotus_benchmarks::kvs::Kvs;
use lotus_benchmarks::lotus::{Embedded, builder};
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_benchmarks::tatp::Tatp;
use lotus_benchmarks::tpcc::{Paths, Scale, Tpcc};
use lotus_benchmarks::workload::Workload as _;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::{Config, Interleaving, Limits, SimMachines, Tracer, World};
use lotus_mvcc::layout::region::SLAB_BYTES;

#[cfg(feature = "fault-points")]
use crate::drive::armed::Armed;
use crate::drive::authority::Post;
use crate::drive::turns::Turns;
use crate::drive::watched::Watched;
use crate::drive::{lives, starts};
use crate::properties::{balance, cuts, deletions, durability, isolation, losses, progress};
use crate::scenario::bins::Bins;
use crate::scenario::format::{Scenario, ScenarioError, Workload};
use crate::scenario::pairs::Pairs;
use crate::scenario::{memory_returns, room};
use crate::verdict::{ENDS, Figures, LANES_END, NO_PANIC, Outcome, READS, Violation};

/// Maximum number of rows that a transaction writes: in TPC-C's delivery, and in other workloads.
const MAX_WRITES_OF_TPCC: u16 = 256;
const MAX_WRITES: u16 = 16;
/// Virtual time that a run may take beyond storm, calm and time-outs of the engine.
const SLACK: Duration = Duration::from_secs(20);

/// Limits of a run; a run beyond the limits is stopped with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Events of the world.
    pub events: u64,
    /// Bytes of simulated memory and messages.
    pub bytes: u64,
}

impl Default for Budget {
    /// Limits of some tens of seconds on one core, and of less memory than any machine has.
    fn default() -> Self {
        Self { events: 50_000_000, bytes: 8 << 30 }
    }
}

/// Runs a scenario. `tracer`, if given, is called with every event.
///
/// # Errors
/// `Impossible`, if the scenario cannot be run at all.
pub fn run(
    scenario: &Scenario,
    seed: u64,
    budget: Budget,
    tracer: Option<Tracer>,
) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    let profile = scenario.profile()?;
    #[cfg(feature = "fault-points")]
    let armed = std::cell::Cell::new(None);
    let world = |nodes| {
        let limits = Limits { events: budget.events, bytes: budget.bytes, time: longest(scenario) };
        let config = Config {
            rates: scenario.rates.clone(),
            schedule: Turns::new(scenario).others(scenario.schedule_with_healing()),
            verb_timeout: Duration::from_micros(scenario.network.verb_timeout_us),
            interleaving: Interleaving::PerVerb,
            limits,
            ..Config::new(seed, nodes, profile)
        };
        let world = World::new(config).map_err(|error| DeployError::Refused(error.to_string()))?;
        if let Some(tracer) = tracer {
            world.trace_to(tracer);
        }
        #[cfg(feature = "fault-points")]
        armed.set(Some(Armed::new(scenario, world.fabric().clone())));
        let post = Post::of(scenario, seed, world.fabric().clone());
        let machines = SimMachines::new(world);
        Ok(match post {
            Some(post) => machines.with_delivery_model(Arc::new(post)),
            None => machines,
        })
    };
    let (cluster, load) = (scenario.cluster_config(), scenario.load_config(seed));
    let builder = settings(scenario, &load);
    let embedded =
        Embedded::start_on(builder, world).map_err(|error| scenario.impossible(error))?;
    let mut watched = Watched::new(embedded, scenario, seed);
    let options = Options { cluster, load, audit: true, floor: false, history: true };
    let driven = catch_unwind(AssertUnwindSafe(|| drive(scenario, seed, &mut watched, &options)));
    let (mut violations, mut figures) = match driven {
        Ok(result) => result?,
        Err(panic) => {
            let (property, detail) = (NO_PANIC.to_owned(), message(&*panic));
            (vec![Violation { property, detail }], Figures::default())
        }
    };
    let world = watched.machines().world();
    figures.events = world.events();
    figures.virtual_time = world.now();
    figures.faults = world.faults();
    #[cfg(feature = "fault-points")]
    if let Some(armed) = armed.take() {
        figures.strikes = armed.happened();
    }
    let trace_hash = world.trace_hash();
    drop(world);
    figures.moves = watched.moves();
    figures.returned = watched.returned();
    figures.snapshots = watched.copies();
    figures.dropped = watched.dropped();
    figures.overdue = watched.overdue();
    violations.extend(watched.take_found());
    violations.extend(end(watched));
    violations.extend(apart(|| starts::start(&scenario.authority.starts, seed).violations));
    violations.extend(apart(|| lives::live(&scenario.lives, seed)));
    Ok(Outcome { violations, figures, trace_hash })
}

/// Settings of a scenario's cluster.
pub(crate) fn settings(scenario: &Scenario, load: &LoadConfig) -> ClusterBuilder {
    let cluster = scenario.cluster_config();
    let max_writes = match scenario.workload {
        Workload::Tpcc { .. } => MAX_WRITES_OF_TPCC,
        _ => MAX_WRITES,
    };
    // Clients use all coroutines but the ones for snapshots, scans, further tables, and endless
    // transactions.
    let copiers = 2 * usize::from(scenario.cluster.snapshots_us > 0);
    let writers = usize::from(scenario.cluster.drops_us > 0);
    let endless = usize::from(scenario.cluster.endless_us > 0);
    builder(&cluster, load)
        .coroutines(cluster.coroutines + load.helpers() + copiers + writers + endless)
        .memory_limit(scenario.cluster.group_slabs * SLAB_BYTES * cluster.replicas as u64)
        .max_writes(max_writes)
        .commit_timeout(Duration::from_micros(scenario.cluster.commit_timeout_us))
        .lock_timeout(Duration::from_micros(scenario.cluster.lock_timeout_us))
        .lease(scenario.lease())
        .drain_patience(Duration::from_micros(scenario.cluster.drain_us))
}

/// Violations of a part of the run with separate worlds.
fn apart(part: impl FnOnce() -> Vec<Violation>) -> Vec<Violation> {
    catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|panic| {
        vec![Violation { property: NO_PANIC.to_owned(), detail: message(&*panic) }]
    })
}

/// Ends the coordinators; returns a violation if one panics or leaves a lane open.
fn end(watched: Watched) -> Option<Violation> {
    let fabric = watched.machines().world().fabric().clone();
    let violation = |property: &str, detail| Violation { property: property.to_owned(), detail };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(watched))) {
        return Some(violation(NO_PANIC, message(&*panic)));
    }
    let left = fabric.open_lanes();
    (!left.is_empty()).then(|| violation(LANES_END, format!("open: {left:?}")))
}

/// Maximum virtual time of a run.
fn longest(scenario: &Scenario) -> Duration {
    let timeouts = scenario.cluster.commit_timeout_us + scenario.cluster.lock_timeout_us;
    scenario.storm() + scenario.calm() + Duration::from_micros(timeouts) + SLACK
}

/// Message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    text.or(owned).unwrap_or("a panic without a message").to_owned()
}

/// Runs the clients, and judges their results and the final memory.
fn drive(
    scenario: &Scenario,
    seed: u64,
    watched: &mut Watched,
    options: &Options,
) -> Result<(Vec<Violation>, Figures), ScenarioError> {
    let coordinators = options.cluster.cns * options.cluster.threads;
    let progress = Arc::new(Progress::new(coordinators, |_| ()));
    let started = watched.machines().outside().now();
    let driven = run_workload(scenario, seed, watched, options, &progress);
    let outcome = match driven {
        Ok(outcome) => outcome,
        Err(BenchError::Deploy(DeployError::Refused(why))) => return Err(scenario.impossible(why)),
        Err(error) => {
            let stopped = watched.machines().failure();
            let property = if stopped.is_some() { ENDS } else { READS }.to_owned();
            let detail = stopped.map_or_else(|| error.to_string(), |why| why.to_string());
            return Ok((vec![Violation { property, detail }], Figures::default()));
        }
    };
    let mut violations = Vec::new();
    let audit = outcome.audit.as_ref().expect("it was asked for");
    for check in audit.checks.iter().filter(|check| !check.passed) {
        let (property, detail) = (check.name.clone(), check.detail.clone());
        violations.push(Violation { property, detail });
    }
    let history = outcome.history.as_ref().expect("it was asked for");
    let healed = started.after(scenario.storm());
    violations.extend(isolation::violations(history));
    let settled = healed.after(scenario.aftermath());
    violations.extend(progress::violations(history, settled.0));
    if scenario.waits_are_short() {
        let longest_ns = scenario.cluster.lock_timeout_us * 1_000;
        violations.extend(progress::waits(history, settled.0, longest_ns));
    }
    violations.extend(deletions::violations(transactions(&scenario.workload), &outcome.tally));
    let kept_back = room::kept_back(scenario);
    violations.extend(deletions::without_room(history, &outcome.tally, kept_back, healed.0));
    if scenario.steady {
        let owners = watched.owners().map_err(|error| scenario.impossible(error))?;
        violations.extend(balance::circles(&owners));
        let balanced = healed.after(scenario.calm() / 2);
        let shared = scenario.hotspot().is_some_and(|hot| hot.hot_shards >= 2 * hot.nodes);
        violations.extend(shared.then(|| balance::crowds(history, balanced.0)).flatten());
    }
    violations.extend(cuts::violations(scenario, |node| watched.takes_part(node)));
    violations.extend(watched.missing());
    violations.extend(watched.unfilled(scenario));
    let memory = watched.memory().map_err(|error| scenario.impossible(error))?;
    let lost = (0..).zip(&memory).filter(|(_, node)| **node == MemoryStanding::Lost);
    let lost: Vec<u16> = lost.map(|(place, _)| place).collect();
    violations.extend(losses::violations(scenario, &lost));
    let filled = |node: &NodeId| memory[usize::from(node.0)] == MemoryStanding::Serving;
    let durable = durability::violations(history, watched);
    violations.extend(durable.map_err(|error| scenario.impossible(error))?);
    let mut figures = Figures { verbs: outcome.traffic.verbs(), ..count(history) };
    figures.memory_lost = lost.len() as u64;
    figures.memory_filled = memory_returns::returned(scenario).filter(filled).count() as u64;
    figures.version_table_hits = outcome.caches.version_tables.hits;
    figures.aborted = outcome.tally.total().aborted;
    Ok((violations, figures))
}

/// Runs the scenario's workload.
fn run_workload(
    scenario: &Scenario,
    seed: u64,
    watched: &mut Watched,
    options: &Options,
    progress: &Arc<Progress>,
) -> Result<harness::Outcome, BenchError> {
    match scenario.workload {
        Workload::Kvs { keys, update_ratio, zipf, .. } => {
            let kvs = Kvs::new(keys, update_ratio, zipf).with_hotspot(scenario.hotspot());
            harness::run(watched, kvs, options, progress)
        }
        Workload::Smallbank { accounts, hot_accounts, hot_ratio } => {
            let bank = SmallBank::new(accounts, hot_accounts, hot_ratio, seed);
            harness::run(watched, bank, options, progress)
        }
        Workload::Tatp { subscribers } => {
            harness::run(watched, Tatp::new(subscribers, seed), options, progress)
        }
        Workload::Tpcc {
            warehouses,
            customers_per_district: customers,
            items,
            critical_field,
            ordered,
        } => {
            let scale = Scale { warehouses, customers, items };
            let paths = if ordered { Paths::Ordered } else { Paths::Rows };
            let tpcc = Tpcc::new(scale, critical_field, seed).with_paths(paths);
            harness::run(watched, tpcc, options, progress)
        }
        Workload::Pairs { pairs, made_for, record_bytes } => {
            harness::run(watched, Pairs::new(pairs, made_for, record_bytes), options, progress)
        }
        Workload::Bins { bins } => harness::run(watched, Bins::new(bins), options, progress),
    }
}

fn count(history: &History) -> Figures {
    let mut figures = Figures::default();
    for (attempt, _) in history.attempts() {
        match attempt.status {
            Status::Ok => figures.committed += 1,
            Status::Info => figures.unknown += 1,
            Status::Fail => {}
        }
    }
    figures
}

/// Names of the transactions of a scenario's workload.
pub fn transactions(workload: &Workload) -> &'static [&'static str] {
    match workload {
        Workload::Kvs { .. } => Kvs::TRANSACTIONS,
        Workload::Smallbank { .. } => SmallBank::TRANSACTIONS,
        Workload::Tatp { .. } => Tatp::TRANSACTIONS,
        Workload::Tpcc { .. } => Tpcc::TRANSACTIONS,
        Workload::Pairs { .. } => Pairs::TRANSACTIONS,
        Workload::Bins { .. } => Bins::TRANSACTIONS,
    }
}
