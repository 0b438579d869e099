//! Transactions of a trace under strict two-phase locking, without their data.
//!
//! A client takes the locks of a transaction one after another, executes the transaction for a
//! time, and releases all locks. The client gives up an acquisition after a time, since other
//! clients may wait for the locks already taken: it then releases these locks, and begins the
//! transaction again (FissLock §7.1, ShiftLock §4.4). Any [`Locker`](lotus_locksystems::Locker) can
//! provide the locks.
//!
//! # The audit
//! Every client notes in a word of this process that it holds a lock, so that conflicting holders
//! are detected. At the end no holder is noted, and every lock is free.
//!
//! `strict`: the two phases, for any locks; `holders`: notes of holders; `lane`: work of each lane;
//! `audit`: the locks at the end. `bank` uses the same phases for another purpose.

pub(crate) mod audit;
mod holders;
mod lane;
mod strict;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::Progress;
use lotus_fabric::env::SmallRng;
use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::machines::Machines;
use lotus_fabric::region::Rights;
use lotus_fabric::sim::Report;
use lotus_locks::systems::Visitor;
use lotus_locks::{LockSpace, LockSystem};
use lotus_locksystems::redlock::rules::Times;
use lotus_locksystems::servers::SWITCH_SLOTS;
use lotus_locksystems::systems::Kind;
use rand::SeedableRng;

use crate::lanes::{
    self, Clients, LaneClient, Latencies, MEMORY, REGION, Run, RunContext, ServerLane, Used,
    latencies, offset_of_data, refused,
};
use crate::locks::server_locks::{self, Popular, Service, ServiceVisitor};
use crate::traces::{MAX_LOCKS, Origin, Trace};
pub(crate) use holders::Holders;
use lane::Transacting;
pub(crate) use strict::{Failed, PAUSES, Phases};

/// Number of transactions from which a switch learns the hot locks, and the seed of their draw.
const SAMPLED: u64 = 200_000;
const SAMPLE_SEED: u64 = 1;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct TraceLoad {
    /// The clients, and the lock system.
    pub clients: Clients,
    /// Number of memory nodes, which share the locks: each node has a part of the numbers.
    pub mns: u16,
    /// The transactions.
    pub trace: Arc<Trace>,
    /// Whether locks are taken in ascending order, not in the order of the trace.
    pub sorted: bool,
    /// Time for which a transaction executes once it has its locks.
    pub execution: Duration,
    /// Whether a lane executes one transaction at a time; otherwise its clients execute
    /// concurrently.
    pub busy: bool,
    /// Time after which the client gives up an acquisition and begins its transaction again.
    pub patience: Duration,
    /// Whether the run is audited.
    pub audit: bool,
}

impl TraceLoad {
    /// Number of nodes that the machines must have.
    pub fn nodes(&self) -> u16 {
        self.clients.nodes() + self.mns - 1
    }

    /// Refuses contradictory options.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub fn check(&self) -> Result<(), String> {
        self.clients.check(1)?;
        self.clients.check_room(self.trace.locks())?;
        if self.trace.locks() > MAX_LOCKS {
            let locks = self.trace.locks();
            return Err(format!("{locks} locks are too many: at most {MAX_LOCKS}"));
        }
        let is_drtm = self.clients.server_lock.is_none() && self.clients.choice.kind == Kind::Drtm;
        if self.audit && is_drtm {
            let why = "readers of drtm have leases, which end while transactions go on";
            return Err(format!("{why}: no audit can pass"));
        }
        Ok(())
    }

    /// The most wanted locks, found by a sample, with their shares of the requests.
    fn popular(&self) -> Vec<(u64, f64)> {
        let mut rng = SmallRng::seed_from_u64(SAMPLE_SEED);
        let nodes = u64::from(self.clients.cns);
        let mut wanted: BTreeMap<u64, u64> = BTreeMap::new();
        for turn in 0..SAMPLED {
            let origin = Origin { node: turn % nodes, nodes };
            for want in self.trace.draw(&mut rng, origin, turn).wants {
                *wanted.entry(want.lock).or_default() += 1;
            }
        }
        let all = wanted.values().sum::<u64>() as f64;
        let mut popular: Vec<_> = wanted.into_iter().collect();
        popular.sort_unstable_by_key(|(lock, times)| (Reverse(*times), *lock));
        popular.truncate(SWITCH_SLOTS as usize);
        popular.into_iter().map(|(lock, times)| (lock, times as f64 / all)).collect()
    }

    /// The memory nodes: the first node, and the nodes after the nodes of `clients`.
    fn memory_nodes(&self) -> impl Iterator<Item = NodeId> {
        let (all, others) = (self.nodes(), self.clients.nodes());
        std::iter::once(MEMORY).chain((others..all).map(NodeId))
    }
}

/// Counts of a lane, or sums over lanes, in the measured time.
#[derive(Clone, Debug)]
pub struct TraceTally {
    /// Transactions that have ended.
    pub transactions: u64,
    /// Locks taken by the transactions that have ended.
    pub locks: u64,
    /// Attempts that gave up an acquisition.
    pub aborts: u64,
    /// Attempts that lost a lock before its release.
    pub lost: u64,
    /// Time of each acquisition, in nanoseconds.
    pub acquire_ns: Latencies,
    /// Time from the beginning of a transaction until it has all its locks, in nanoseconds,
    /// attempts that failed included.
    pub growing_ns: Latencies,
    /// Time from the beginning of a transaction to the end of its execution, in nanoseconds. Its
    /// releases follow.
    pub transaction_ns: Latencies,
    /// Time of a transaction by type, in nanoseconds.
    pub of_kind_ns: Vec<Latencies>,
}

impl Default for TraceTally {
    fn default() -> Self {
        Self {
            transactions: 0,
            locks: 0,
            aborts: 0,
            lost: 0,
            acquire_ns: latencies(),
            growing_ns: latencies(),
            transaction_ns: latencies(),
            of_kind_ns: Vec::new(),
        }
    }
}

impl TraceTally {
    /// Latencies of a type of transactions.
    fn of_kind(&mut self, kind: usize) -> &mut Latencies {
        let count = self.of_kind_ns.len().max(kind + 1);
        self.of_kind_ns.resize_with(count, latencies);
        &mut self.of_kind_ns[kind]
    }
}

impl AddAssign for TraceTally {
    fn add_assign(&mut self, other: Self) {
        self.transactions += other.transactions;
        self.locks += other.locks;
        self.aborts += other.aborts;
        self.lost += other.lost;
        lanes::add(&mut self.acquire_ns, &other.acquire_ns);
        lanes::add(&mut self.growing_ns, &other.growing_ns);
        lanes::add(&mut self.transaction_ns, &other.transaction_ns);
        for (kind, ns) in other.of_kind_ns.iter().enumerate() {
            lanes::add(self.of_kind(kind), ns);
        }
    }
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct TraceOutcome {
    /// Counts of all lanes.
    pub tally: TraceTally,
    /// Verbs, messages and locks used in the measured time.
    pub used: Used,
    /// Findings of the audit, if the run was audited; empty if the audit passed.
    pub findings: Option<Vec<String>>,
    /// Utilisation of NICs, links and cores since the clients have begun, in simulation.
    pub utilisation: Option<Report>,
}

/// Runs the load. `progress` counts transactions, with one coordinator for each lane; a failure of
/// `progress` ends the run.
///
/// # Errors
/// [`DeployError`] if the machines refuse, or a client or a lane ends early.
pub fn run(
    machines: &dyn Machines,
    load: &TraceLoad,
    progress: &Arc<Progress>,
) -> Result<TraceOutcome, DeployError> {
    let visit = Visit { machines, load, progress };
    match load.clients.server_lock {
        Some(server_lock) => {
            let (clients, locks) = (&load.clients, load.trace.locks());
            let popular = || Popular::each_with_all_clients(load.popular());
            server_locks::visit(machines, server_lock, clients, locks, Times::LOCKS, popular, visit)
        }
        None => load.clients.choice.visit(visit),
    }
}

struct Visit<'a> {
    machines: &'a dyn Machines,
    load: &'a TraceLoad,
    progress: &'a Arc<Progress>,
}

impl Visitor for Visit<'_> {
    type Output = Result<TraceOutcome, DeployError>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let Self { machines, load, progress } = self;
        let memory_nodes: Vec<_> = load.memory_nodes().collect();
        let spaces = spaces_of(&make(), load.trace.locks(), &memory_nodes)?;
        let clocks = lanes::register(machines, spaces[0].bytes())?;
        for (node, space) in memory_nodes.into_iter().zip(&*spaces).skip(1) {
            let bytes = space.bytes().next_multiple_of(4096);
            machines.fabric().register(node, REGION, bytes, Rights::ALL).map_err(refused)?;
        }
        let run = Run::new(machines, load.clients.clone(), progress, clocks, Arc::new(make));
        let holders = load.audit.then(|| Holders::new(load.trace.locks()));
        let shared = Arc::new(Shared { load: load.clone(), spaces, holders });
        let done = run.run(machines, &shared, None)?;
        let findings = match load.audit {
            true => Some(judge(machines, &run, &shared)?),
            false => None,
        };
        let lanes::Done { tally, used, utilisation, .. } = done;
        Ok(TraceOutcome { tally, used, findings, utilisation })
    }
}

impl ServiceVisitor for Visit<'_> {
    type Output = Result<TraceOutcome, DeployError>;

    fn visit<S: Service>(self, service: S) -> Self::Output {
        let Self { machines, load, progress } = self;
        let holders = load.audit.then(|| Holders::new(load.trace.locks()));
        let shared = Arc::new(Shared { load: load.clone(), spaces: Arc::new([]), holders });
        let (service, run_context) =
            (Arc::new(service), RunContext::new(machines, load.clients.clone(), progress));
        let noted = Arc::clone(&shared);
        let work = move |context: LaneClient<ServerLane<S::Locker>>| {
            let locks = context.client().0.clone();
            Transacting::new(context, Arc::clone(&noted), locks)
        };
        let done = server_locks::run_lanes(machines, &run_context, &service, work, None)?;
        let lanes::Done { tally, used, utilisation, .. } = done;
        let findings = shared.holders.as_ref().map(|holders| {
            let left = server_locks::used(&*service);
            left.into_iter().chain(holders.findings()).collect()
        });
        Ok(TraceOutcome { tally, used, findings, utilisation })
    }
}

/// Splits the numbers of `locks` locks into parts, one for each memory node.
pub(crate) fn spaces_of<S: LockSystem>(
    system: &S,
    locks: u64,
    memory_nodes: &[NodeId],
) -> Result<Arc<[LockSpace]>, DeployError> {
    let object = offset_of_data(system);
    let stride = object.next_multiple_of(S::ALIGNMENT);
    let each = locks.div_ceil(memory_nodes.len() as u64);
    let space = |node| LockSpace::new(RemoteAddr::new(node, REGION, 0), object, stride, each);
    memory_nodes.iter().map(|node| space(*node).map_err(refused)).collect()
}

/// Audits every lock when nothing runs.
fn judge<S: LockSystem>(
    machines: &dyn Machines,
    run: &Arc<Run<S>>,
    shared: &Arc<Shared>,
) -> Result<Vec<String>, DeployError> {
    let spaces = Arc::clone(&shared.spaces);
    let look = async move |context| audit::not_free(&context, &spaces).await;
    let mut found = run.audit(machines, look)?;
    found.extend(shared.holders.as_ref().into_iter().flat_map(Holders::findings));
    Ok(found)
}

/// State shared by all lanes.
struct Shared {
    load: TraceLoad,
    spaces: Arc<[LockSpace]>,
    holders: Option<Holders>,
}

#[cfg(test)]
mod tests;
