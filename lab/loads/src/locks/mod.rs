//! Load on a lock system alone: clients draw locks by popularity, hold each lock for some verbs,
//! and release it.
//!
//! # The audit
//! Every client notes in a word of this process that it holds a lock, so that conflicting holders
//! are detected. A writer writes the number of writers so far beside the lock, counted in this
//! process under the lock; at the end the two numbers are equal, unless a write was lost or came
//! too late. All words that a reader reads have to equal this number. At the end every lock is
//! free.
//!
//! `lane`: work of each lane; `server_locks`: load on locks that a service keeps; `switched`: the
//! service of a switch; `redis`: the service of RedLock; `operation`: tally of an operation;
//! `ledger`: notes in this process.

mod hot;
mod lane;
mod ledger;
mod operation;
mod redis;
pub(crate) mod server_locks;
mod switched;

use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::zipf::KeyChooser;
use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::Report;
use lotus_locks::systems::Visitor;
use lotus_locks::{LockSpace, LockSystem, Recovery};
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::switched::Recovered;
use lotus_locksystems::systems::Kind;

use crate::lanes::{
    self, Clients, Latencies, MEMORY, REGION, Run, Used, latencies, offset_of_data, refused,
};
pub use hot::HotLocks;
use lane::Locking;
use ledger::Ledger;

/// Options of a run.
#[derive(Clone, Debug)]
pub struct LockLoad {
    /// The clients, and the lock system.
    pub clients: Clients,
    /// Number of locks.
    pub count: u64,
    /// Skew of the locks' popularity; 0 is uniform.
    pub zipf: f64,
    /// Locks that are hot in turn, in place of the skew.
    pub hot: Option<HotLocks>,
    /// Share of requests that read.
    pub read_ratio: f64,
    /// Share of the other requests that take an update lock, and upgrade the lock in the middle of
    /// their verbs.
    pub update_ratio: f64,
    /// Verbs while a lock is held: READs of a reader, WRITEs of a writer; READs, then WRITEs with
    /// an update lock.
    pub section: u32,
    /// Bytes of each verb.
    pub object_bytes: u64,
    /// Time after which a client gives up a request; `None` for never.
    pub patience: Option<Duration>,
    /// Behaviour of clients beside taking and releasing locks.
    pub behaviour: ClientBehaviour,
    /// Time after [`lanes::START`] at which the last compute node is lost and removed from the
    /// membership; the machines have to end the node then.
    pub loses: Option<Duration>,
    /// Whether the run is audited.
    pub audit: bool,
}

/// Behaviour of clients beside taking, using and releasing locks.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct ClientBehaviour {
    /// Time between a release and the next request.
    pub think: Duration,
    /// Share of holders that fail: failed holders neither release the lock nor ask for it again.
    pub failing: f64,
    /// Readers that hold a lock for a long time.
    pub long_reads: LongReads,
    /// Number of locks, the last ones, that lanes take when clients begin, and hold to the end.
    /// Clients ask for the other locks.
    pub held_locks: u64,
}

/// Readers that hold a lock for a long time (DSLR §6.4).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LongReads {
    /// Share of long reads among all requests.
    pub share: f64,
    /// Time for which a long read holds the lock.
    pub time: Duration,
    /// Lease terms that a long read asks for.
    pub terms: u16,
}

impl LockLoad {
    /// Refuses contradictory options.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub fn check(&self) -> Result<(), String> {
        let ClientBehaviour { failing, long_reads, .. } = self.behaviour;
        let terms = if long_reads.share > 0.0 { u32::from(long_reads.terms.max(1)) } else { 1 };
        self.clients.check(terms)?;
        let Clients { choice, server_lock, policy, cns, .. } = self.clients;
        if let Some(server_lock) = server_lock {
            self.check_server_lock(server_lock)?;
        }
        if failing > 0.0 {
            let goes_on = matches!(
                choice.kind,
                Kind::Dslr | Kind::DslrPlus | Kind::ShiftLock | Kind::ShiftLockWide
            );
            if server_lock.is_some() || !goes_on || choice.recovery != Recovery::Paper {
                let systems = "only dslr and shiftlock as published";
                return Err(format!("{systems} go on after holders that fail"));
            }
            if policy.is_some() {
                return Err("holders that fail do so alone, and share no lock".to_owned());
            }
            if self.audit {
                return Err("holders that fail keep locks, which no audit can pass".to_owned());
            }
        }
        if self.hot.is_some_and(|hot| hot.count >= self.count) {
            return Err(format!("fewer than all {} locks can be hot", self.count));
        }
        if self.behaviour.held_locks > 0 {
            self.check_held()?;
        }
        if self.loses.is_some() && (cns < 2 || self.audit) {
            return Err("a lost node keeps locks, which no audit can pass; others go on".to_owned());
        }
        Ok(())
    }

    /// Refuses locks held to the end if they contradict other options.
    fn check_held(&self) -> Result<(), String> {
        if self.behaviour.held_locks >= self.count {
            return Err(format!("fewer than all {} locks can be held to the end", self.count));
        }
        if self.clients.server_lock.is_none() || self.hot.is_some() {
            let sentence =
                "locks are held to the end only of servers and switches, without hot ones";
            return Err(sentence.to_owned());
        }
        match self.audit {
            true => Err("locks that are held to the end can pass no audit".to_owned()),
            false => Ok(()),
        }
    }

    /// Number of locks that clients ask for.
    pub const fn drawn(&self) -> u64 {
        self.count.saturating_sub(self.behaviour.held_locks)
    }

    /// Refuses options that locks of a service do not have.
    fn check_server_lock(&self, server_lock: ServerLock) -> Result<(), String> {
        if self.update_ratio > 0.0 {
            return Err(format!("{server_lock} has no update locks"));
        }
        if self.behaviour.long_reads.terms > 1 {
            return Err(format!("{server_lock} has no leases, so requests ask for no terms"));
        }
        self.clients.check_room(self.count)?;
        if self.loses.is_some() && !server_lock.outlasts_clients() {
            return Err(format!(
                "a lost node takes its locks of {server_lock} with it, and the run ends"
            ));
        }
        Ok(())
    }

    /// Returns the compute node that is lost, if the run loses a node.
    pub const fn lost_node(&self) -> Option<NodeId> {
        match self.loses {
            Some(_) => Some(NodeId(self.clients.cns)),
            None => None,
        }
    }
}

/// Unevenness of a lock's treatment of requests, over the whole run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fairness {
    /// Largest number of writers that held a lock one after another, without a reader in between.
    pub longest_run: u64,
    /// Largest number of requests that were granted before an earlier request for the same lock. If
    /// requests are given up, the true number may be larger.
    pub largest_bypass: u64,
}

impl Fairness {
    /// The larger value of each field.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            longest_run: self.longest_run.max(other.longest_run),
            largest_bypass: self.largest_bypass.max(other.largest_bypass),
        }
    }
}

/// Sum of times, for computing the mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeSum {
    /// Number of times.
    pub count: u64,
    /// Sum of the times, in nanoseconds.
    pub ns: u64,
}

impl TimeSum {
    fn record(&mut self, ns: u64) {
        *self += Self { count: 1, ns };
    }

    /// Mean in nanoseconds; 0 without times.
    pub fn mean_ns(&self) -> f64 {
        self.ns as f64 / self.count.max(1) as f64
    }
}

impl AddAssign for TimeSum {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.ns += other.ns;
    }
}

/// Counts of a lane, or sums over lanes.
#[derive(Clone, Debug)]
pub struct LockTally {
    /// Locks held and released in the measured time.
    pub operations: u64,
    /// Requests given up at their deadlines, and locks that were lost before their release.
    pub refused: u64,
    /// Holders that failed.
    pub failed: u64,
    /// Time from the request to the lock, in nanoseconds.
    pub acquire_ns: Latencies,
    /// Time from the request to the end of the release, in nanoseconds.
    pub operation_ns: Latencies,
    /// Time of requests that read, from the request to the end of the release, in nanoseconds.
    pub reader_ns: Latencies,
    /// Time of all other requests, from the request to the end of the release, in nanoseconds.
    pub writer_ns: Latencies,
    /// Time from the request of a reader to the lock.
    pub reader_acquire: TimeSum,
    /// Time from the request of a writer, or for an update lock, to the lock.
    pub writer_acquire: TimeSum,
    /// Time from the beginning of the release to its end.
    pub released: TimeSum,
    /// Time from the request to the most popular lock, in nanoseconds; empty if all locks are drawn
    /// equally often.
    pub hottest_ns: Latencies,
    /// Treatment of the requests, noted by the audit; zeroes without an audit.
    pub fairness: Fairness,
}

impl Default for LockTally {
    fn default() -> Self {
        Self {
            operations: 0,
            refused: 0,
            failed: 0,
            acquire_ns: latencies(),
            operation_ns: latencies(),
            reader_ns: latencies(),
            writer_ns: latencies(),
            reader_acquire: TimeSum::default(),
            writer_acquire: TimeSum::default(),
            released: TimeSum::default(),
            hottest_ns: latencies(),
            fairness: Fairness::default(),
        }
    }
}

impl LockTally {
    /// Adds up the operations of readers and of all other clients.
    fn put_together(&mut self) {
        lanes::add(&mut self.operation_ns, &self.reader_ns);
        lanes::add(&mut self.operation_ns, &self.writer_ns);
    }
}

impl AddAssign for LockTally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.refused += other.refused;
        self.failed += other.failed;
        lanes::add(&mut self.acquire_ns, &other.acquire_ns);
        lanes::add(&mut self.operation_ns, &other.operation_ns);
        lanes::add(&mut self.reader_ns, &other.reader_ns);
        lanes::add(&mut self.writer_ns, &other.writer_ns);
        self.reader_acquire += other.reader_acquire;
        self.writer_acquire += other.writer_acquire;
        self.released += other.released;
        lanes::add(&mut self.hottest_ns, &other.hottest_ns);
        self.fairness = self.fairness.max(other.fairness);
    }
}

/// Distribution of latencies: for shares of the requests, from one percent to all, the time within
/// which the share ended, in nanoseconds. Empty without latencies.
pub fn distribution(latencies: &Latencies) -> Vec<(f64, u64)> {
    let percents = (1..=99_u32).map(f64::from).chain([99.5, 99.9, 99.99, 100.0]);
    let shares = percents.map(|percent| percent / 100.0).filter(|_| !latencies.is_empty());
    shares.map(|share| (share, latencies.value_at_quantile(share))).collect()
}

/// A completed recovery of FissLock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossRecovery {
    /// Steps of the recovery, and the restored state.
    pub over: Recovered,
    /// Time from the detection of the loss until all surviving machines had gone on.
    pub took: Duration,
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct LockOutcome {
    /// Counts of all lanes.
    pub tally: LockTally,
    /// Resources used by the lanes in the measured time.
    pub used: Used,
    /// Findings of the audit, if the run was audited; empty if the audit passed.
    pub findings: Option<Vec<String>>,
    /// Utilisation of NICs, links and cores since the clients have begun, in simulation.
    pub utilisation: Option<Report>,
    /// The last recovery from a lost node, of FissLock.
    pub recovery: Option<LossRecovery>,
}

/// Runs the load. `progress` counts locks held and released, with one coordinator for each lane; a
/// failure of `progress` ends the run.
///
/// # Errors
/// [`DeployError`] if the machines refuse, or a client or a lane ends early.
pub fn run(
    machines: &dyn Machines,
    load: &LockLoad,
    progress: &Arc<Progress>,
) -> Result<LockOutcome, DeployError> {
    match load.clients.server_lock {
        Some(server_lock) => server_locks::run(machines, load, progress, server_lock),
        None => run_in_words(machines, load, progress),
    }
}

/// Runs the load on the lock system, in words of the memory node, even if a service is named.
///
/// # Errors
/// See [`run`].
pub fn run_in_words(
    machines: &dyn Machines,
    load: &LockLoad,
    progress: &Arc<Progress>,
) -> Result<LockOutcome, DeployError> {
    load.clients.choice.visit(Visit { machines, load, progress })
}

struct Visit<'a> {
    machines: &'a dyn Machines,
    load: &'a LockLoad,
    progress: &'a Arc<Progress>,
}

impl Visitor for Visit<'_> {
    type Output = Result<LockOutcome, DeployError>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let Self { machines, load, progress } = self;
        let object = offset_of_data(&make());
        let stride = (object + load.object_bytes).next_multiple_of(S::ALIGNMENT);
        let base = RemoteAddr::new(MEMORY, REGION, 0);
        let space = LockSpace::new(base, object, stride, load.count).map_err(refused)?;
        let clocks = lanes::register(machines, space.bytes())?;
        let run = Run::new(machines, load.clients.clone(), progress, clocks, Arc::new(make));
        let shared = Arc::new(Shared::new(load, space));
        let done = run.run(machines, &shared, shared.load.lost_node())?;
        let findings = match shared.load.audit {
            true => Some(audit(machines, &run, &shared)?),
            false => None,
        };
        let lanes::Done { tally, used, utilisation, .. } = done;
        Ok(LockOutcome { tally, used, findings, utilisation, recovery: None })
    }
}

/// Looks at every lock when nothing runs.
fn audit<S: LockSystem>(
    machines: &dyn Machines,
    run: &Arc<Run<S>>,
    shared: &Arc<Shared>,
) -> Result<Vec<String>, DeployError> {
    let noted = Arc::clone(shared);
    let look = async move |context| Locking::new(context, noted).audit().await;
    let found = run.audit(machines, look)?;
    Ok(with_noted(found, shared))
}

/// Adds the conflicts noted in this process to the findings.
fn with_noted(mut found: Vec<String>, shared: &Shared) -> Vec<String> {
    let clashes = shared.ledger.as_ref().map_or(0, Ledger::clashes);
    if clashes > 0 {
        found.push(format!("{clashes} times two held a lock who must not"));
    }
    let misread = shared.ledger.as_ref().map_or(0, Ledger::misread);
    if misread > 0 {
        found.push(format!("{misread} times a reader found what the last writer had not written"));
    }
    found
}

/// State shared by all lanes.
struct Shared {
    load: LockLoad,
    space: LockSpace,
    chooser: KeyChooser,
    /// The most popular lock, if there is one.
    hottest: Option<u64>,
    ledger: Option<Ledger>,
}

impl Shared {
    fn new(load: &LockLoad, space: LockSpace) -> Self {
        let chooser = KeyChooser::new(load.drawn(), load.zipf);
        let ledger = load.audit.then(|| Ledger::new(load.count));
        let hottest = chooser.most_popular().filter(|_| load.hot.is_none());
        Self { load: load.clone(), space, hottest, chooser, ledger }
    }
}

#[cfg(test)]
mod tests;
