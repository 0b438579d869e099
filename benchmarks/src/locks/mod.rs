//! Load on a lock system alone: clients draw locks by popularity, hold each for some verbs, and
//! release it.
//!
//! # The audit
//! Every client notes in a word of this process that it holds a lock, so that two holders meet
//! there. A writer writes the number of writers so far beside the lock, counted in this process
//! under the lock; in the end the two numbers are equal, unless a write was lost, or came too late.
//! A reader finds that number, and nothing else, in all of what it reads. In the end every lock is
//! free.
//!
//! `lane`: what each lane does; `ledger`: what is noted in this process.

mod lane;
mod ledger;

use std::sync::Arc;
use std::time::Duration;

use async_channel::{Receiver, Sender};
use hdrhistogram::Histogram;
use lotus_fabric::counters::VerbCounters;
use lotus_fabric::env::Nanos;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{NodeId, RegionId, RemoteAddr};
use lotus_fabric::machines::{Machines, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::sim::Report;
use lotus_fabric::transport::Fabric;
use lotus_locks::local::{Access, Counters, LocalClient, LocalTable, Policy, Transfers};
use lotus_locks::systems::{Choice, Kind, Visitor};
use lotus_locks::{Client, Counts, LockSpace, LockSystem, Member, NotHeld, Recovery, Roster};

use crate::contract::deployment::DeployError;
use crate::drive::progress::{Phase, Progress};
use crate::workloads::zipf::KeyChooser;
use lane::Seat;
use ledger::Ledger;

/// The memory node.
const MEMORY: NodeId = NodeId(0);
const REGION: RegionId = RegionId(0);
/// Bytes of a lock object, whichever the system.
const OBJECT: u64 = 16;
/// Counters by which nodes set their clocks, one for each epoch; more than a run has.
const CLOCKS: u32 = 128;
/// Longest latency that is told from longer ones, in nanoseconds.
const MAX_LATENCY_NS: u64 = 60_000_000_000;
/// Time from the start of the machines until clients begin, for lanes to start.
pub const START: Duration = Duration::from_millis(20);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct LockLoad {
    /// The lock system.
    pub choice: Choice,
    /// The way in which the clients of a node share its locks, if they do.
    pub policy: Option<Policy>,
    /// Number of locks.
    pub count: u64,
    /// Skew of their popularity; 0 is uniform.
    pub zipf: f64,
    /// Share of requests that read.
    pub read_ratio: f64,
    /// Share of the other requests that take an update lock, and upgrade it in the middle of their
    /// verbs.
    pub update_ratio: f64,
    /// Verbs while a lock is held: READs of a reader, WRITEs of a writer; READs, then WRITEs with
    /// an update lock.
    pub section: u32,
    /// Bytes of each of them.
    pub object_bytes: u64,
    /// Time after which a request is given up; `None` for never.
    pub patience: Option<Duration>,
    /// What clients do beside taking a lock and releasing it.
    pub habits: Habits,
    /// Time after [`START`] at which the last compute node is lost, and taken off the membership;
    /// the machines have to end it then.
    pub loses: Option<Duration>,
    /// Compute nodes.
    pub cns: u16,
    /// Lanes of each compute node.
    pub threads: u16,
    /// Clients of each lane.
    pub coroutines: u16,
    /// Time before requests count, in seconds.
    pub warmup: f64,
    /// Time in which they count, in seconds.
    pub secs: f64,
    /// Whether the run is judged.
    pub audit: bool,
}

/// What clients do beside taking a lock, using it and releasing it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Habits {
    /// Time between a release and the next request.
    pub think: Duration,
    /// Share of holders that fail: they neither release the lock nor ask for it again.
    pub failing: f64,
    /// Readers that hold the lock for long.
    pub long_reads: LongReads,
}

/// Readers that hold a lock for long (DSLR §6.4).
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LongReads {
    /// Their share of all requests.
    pub share: f64,
    /// Time for which each holds the lock.
    pub time: Duration,
    /// Lease terms that they ask for.
    pub terms: u16,
}

impl LockLoad {
    /// Number of nodes that the machines must have: the memory node, the compute nodes, and one
    /// that audits.
    pub const fn nodes(&self) -> u16 {
        self.cns + 2
    }

    /// Refuses options that make no sense together.
    ///
    /// # Errors
    /// A sentence that says which.
    pub fn check(&self) -> Result<(), String> {
        self.choice.kind.check(self.choice.recovery).map_err(|error| error.to_string())?;
        if let Some(policy) = self.policy {
            policy.check(self.choice).map_err(|error| error.to_string())?;
        }
        // Those that ask the memory node.
        let clients = match self.policy {
            Some(_) => u32::from(self.cns),
            None => u32::from(self.cns) * u32::from(self.threads) * u32::from(self.coroutines),
        };
        let Habits { failing, long_reads, .. } = self.habits;
        let kind = self.choice.kind;
        if failing > 0.0 {
            let goes_on =
                matches!(kind, Kind::Dslr | Kind::DslrPlus | Kind::ShiftLock | Kind::ShiftLockWide);
            if !goes_on || self.choice.recovery != Recovery::Paper {
                let systems = "only dslr and shiftlock as published";
                return Err(format!("{systems} go on after holders that fail"));
            }
            if self.policy.is_some() {
                return Err("holders that fail do so alone, and share no lock".to_owned());
            }
            if self.audit {
                return Err("holders that fail keep locks, which no audit can pass".to_owned());
            }
        }
        if self.loses.is_some() && (self.cns < 2 || self.audit) {
            return Err("a lost node keeps locks, which no audit can pass; others go on".to_owned());
        }
        let terms = if long_reads.share > 0.0 { u32::from(long_reads.terms.max(1)) } else { 1 };
        match self.choice.capacity() {
            Some(most) if clients * terms > most => Err(format!(
                "{clients} clients are more than a lock of {kind} can count: at most {}",
                most / terms
            )),
            _ => Ok(()),
        }
    }

    /// The compute node that is lost, if one is.
    pub const fn lost_node(&self) -> Option<NodeId> {
        match self.loses {
            Some(_) => Some(NodeId(self.cns)),
            None => None,
        }
    }

    /// Bytes from one lock object, of so many bytes, to the next, which is on a multiple of
    /// `alignment`.
    const fn stride(&self, object: u64, alignment: u64) -> u64 {
        (object + self.object_bytes).next_multiple_of(alignment)
    }
}

/// Latencies in nanoseconds.
pub type Latencies = Histogram<u64>;

/// How unevenly a lock has treated requests, over the whole run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fairness {
    /// The most writers that have held a lock one after another, without a reader in between.
    pub longest_run: u64,
    /// The most requests that came later than a request for the same lock and were granted before
    /// it. Where requests are given up, there may have been more.
    pub largest_bypass: u64,
}

impl Fairness {
    /// The worse of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            longest_run: self.longest_run.max(other.longest_run),
            largest_bypass: self.largest_bypass.max(other.largest_bypass),
        }
    }
}

/// Sum of times, of which the mean is wanted alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimeSum {
    /// Number of times.
    pub count: u64,
    /// Their sum, in nanoseconds.
    pub ns: u64,
}

impl TimeSum {
    fn record(&mut self, ns: u64) {
        *self += Self { count: 1, ns };
    }

    /// The mean in nanoseconds; 0 of none.
    pub fn mean_ns(&self) -> f64 {
        self.ns as f64 / self.count.max(1) as f64
    }
}

impl std::ops::AddAssign for TimeSum {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.ns += other.ns;
    }
}

/// What one lane, or all of them, have done.
#[derive(Clone, Debug)]
pub struct LockTally {
    /// Locks held and released in the time that counts.
    pub operations: u64,
    /// Requests given up at their deadlines, and locks that were lost before their release.
    pub refused: u64,
    /// Holders that failed.
    pub failed: u64,
    /// Time from the request to the lock, in nanoseconds.
    pub acquire_ns: Latencies,
    /// Time from the request to the end of the release, in nanoseconds.
    pub operation_ns: Latencies,
    /// The same of requests that read.
    pub reader_ns: Latencies,
    /// The same of all other requests.
    pub writer_ns: Latencies,
    /// Time from the request of a reader to the lock.
    pub reader_acquire: TimeSum,
    /// The same of the others.
    pub writer_acquire: TimeSum,
    /// Time from the beginning of the release to its end.
    pub released: TimeSum,
    /// Time from the request to the most popular lock, in nanoseconds; empty if all are drawn as
    /// often.
    pub hottest_ns: Latencies,
    /// Counts of the lock system in the time that counts.
    pub counts: Counts,
    /// Locks that clients had from their nodes, and from the memory node, in the time that counts.
    pub transfers: Transfers,
    /// Verbs and messages in the time that counts.
    pub verbs: VerbCounters,
    /// Treatment of the requests; zeroes without an audit, which takes note of them.
    pub fairness: Fairness,
    /// Reason why a client has ended before its time.
    pub ended: Option<NotHeld>,
}

impl Default for LockTally {
    fn default() -> Self {
        let histogram = || {
            let made = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3);
            made.expect("the bounds are sound constants")
        };
        Self {
            operations: 0,
            refused: 0,
            failed: 0,
            acquire_ns: histogram(),
            operation_ns: histogram(),
            reader_ns: histogram(),
            writer_ns: histogram(),
            reader_acquire: TimeSum::default(),
            writer_acquire: TimeSum::default(),
            released: TimeSum::default(),
            hottest_ns: histogram(),
            counts: Counts::default(),
            transfers: Transfers::default(),
            verbs: VerbCounters::default(),
            fairness: Fairness::default(),
            ended: None,
        }
    }
}

impl std::ops::AddAssign for LockTally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.refused += other.refused;
        self.failed += other.failed;
        let adds = "histograms of the same bounds add up";
        self.acquire_ns.add(other.acquire_ns).expect(adds);
        self.operation_ns.add(other.operation_ns).expect(adds);
        self.reader_ns.add(other.reader_ns).expect(adds);
        self.writer_ns.add(other.writer_ns).expect(adds);
        self.reader_acquire += other.reader_acquire;
        self.writer_acquire += other.writer_acquire;
        self.released += other.released;
        self.hottest_ns.add(other.hottest_ns).expect(adds);
        self.counts += other.counts;
        self.transfers += other.transfers;
        self.verbs += &other.verbs;
        self.fairness = self.fairness.max(other.fairness);
        self.ended = self.ended.or(other.ended);
    }
}

/// Distribution of latencies: for shares of the requests, from one percent to all, the time within
/// which they ended, in nanoseconds. Empty if there were none.
pub fn distribution(latencies: &Latencies) -> Vec<(f64, u64)> {
    let percents = (1..=99_u32).map(f64::from).chain([99.5, 99.9, 99.99, 100.0]);
    let shares = percents.map(|percent| percent / 100.0).filter(|_| !latencies.is_empty());
    shares.map(|share| (share, latencies.value_at_quantile(share))).collect()
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct LockOutcome {
    /// What all lanes have done.
    pub tally: LockTally,
    /// What the audit has found, if there was one; empty if all is well.
    pub findings: Option<Vec<String>>,
    /// Utilisation of NICs, links and cores, in simulation.
    pub utilisation: Option<Report>,
}

/// Runs the load. `progress` counts locks held and released, with one coordinator for each lane;
/// its failure ends the run.
///
/// # Errors
/// [`DeployError`] if the machines refuse, or a client or a lane ends before its time.
pub fn run<M: Machines>(
    machines: &M,
    load: &LockLoad,
    progress: &Arc<Progress>,
) -> Result<LockOutcome, DeployError> {
    load.choice.visit(Run { machines, load, progress })
}

/// Offset of what a lock protects, behind the lock object.
fn offset_of_data<S: LockSystem>(system: &S) -> u64 {
    system.object_bytes().max(OBJECT)
}

struct Run<'a, M> {
    machines: &'a M,
    load: &'a LockLoad,
    progress: &'a Arc<Progress>,
}

fn refused(error: impl std::fmt::Display) -> DeployError {
    DeployError::Refused(error.to_string())
}

impl<M: Machines> Visitor for Run<'_, M> {
    type Output = Result<LockOutcome, DeployError>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let threads = self.load.threads;
        match self.load.policy {
            None => self.run::<Client<S>, _>(make, || ()),
            Some(policy) => {
                let table = move || Arc::new(LocalTable::new(policy, threads));
                self.run::<LocalClient<S>, _>(make, table)
            }
        }
    }
}

/// Registers memory for lock objects of so many bytes, so aligned, and what they protect, and for
/// the counters of clocks behind them.
fn register<M: Machines>(
    machines: &M,
    load: &LockLoad,
    (object, alignment): (u64, u64),
) -> Result<(LockSpace, Counters), DeployError> {
    let base = RemoteAddr::new(MEMORY, REGION, 0);
    let space = LockSpace::new(base, object, load.stride(object, alignment), load.count);
    let space = space.map_err(refused)?;
    let clocks = Counters { base: base.plus(space.bytes()), count: CLOCKS };
    let bytes = (space.bytes() + clocks.bytes()).next_multiple_of(4096);
    machines.fabric().register(MEMORY, REGION, bytes, Rights::ALL).map_err(refused)?;
    Ok((space, clocks))
}

impl<M: Machines> Run<'_, M> {
    /// Runs the load on clients of this kind; `table` makes what the lanes of a node share.
    fn run<A, F>(self, make: F, table: impl Fn() -> A::Table) -> Result<LockOutcome, DeployError>
    where
        A: Access,
        F: Fn() -> A::System + Send + Sync + 'static,
    {
        let Self { machines, load, progress } = self;
        let place = (offset_of_data(&make()), A::System::ALIGNMENT);
        let (space, clocks) = register(machines, load, place)?;
        let roster = Roster::default();
        let chooser = KeyChooser::new(load.count, load.zipf);
        let ledger = load.audit.then(|| Ledger::new(load.count));
        let begins = machines.outside().now().after(START);
        let counts_from = begins.after(Duration::from_secs_f64(load.warmup));
        let ends = counts_from.after(Duration::from_secs_f64(load.secs));
        let (load, progress) = (load.clone(), Arc::clone(progress));
        progress.set_span(begins.0, ends.0);
        progress.enter(Phase::Running);
        let hottest = chooser.most_popular();
        let times = Times { begins, counts_from, ends };
        let shared = Arc::new(Shared {
            load,
            space,
            clocks,
            chooser,
            hottest,
            ledger,
            progress,
            times,
            make,
        });
        let load = &shared.load;
        let (sender, reports) = async_channel::unbounded();
        let (stop, stopped) = async_channel::bounded::<()>(1);
        // All are members before the first of them uses a lock.
        let members: Option<Vec<Member>> =
            (1..=load.cns).map(|node| roster.join(NodeId(node), load.threads)).collect();
        let members = members.ok_or_else(|| refused("locks name fewer compute nodes"))?;
        let mut cores = Vec::new();
        for member in members {
            let table = table();
            for lane in 0..load.threads {
                let (fabric, table) = (machines.fabric(), table.clone());
                let open = open::<A, F>(fabric, member, lane, roster.clone(), table, &shared);
                let program = clients(open, sender.clone(), stopped.clone());
                let name = format!("locks-{}-{lane}", member.node.0);
                let core = machines.start(member.node, &name, program).map_err(refused)?;
                cores.push((member.node, core));
            }
        }
        drop(sender);
        let mut outcome = LockOutcome::default();
        for _ in &cores {
            let Some(tally) = machines.wait(&reports) else { break };
            outcome.tally += tally;
        }
        outcome.utilisation = machines.utilisation().map(since_start);
        drop(stop);
        let ended = join_all(machines, cores, shared.load.lost_node());
        if let Some(why) = shared.progress.failure() {
            return Err(DeployError::Failed(why.clone()));
        }
        if !ended {
            return Err(DeployError::Failed("a lane broke".to_owned()));
        }
        if let Some(why) = outcome.tally.ended {
            return Err(DeployError::Failed(format!("a client has ended before its time: {why}")));
        }
        if load.audit {
            shared.progress.enter(Phase::Auditing);
            outcome.findings = Some(audit(machines, &roster, &shared)?);
        }
        Ok(outcome)
    }
}

/// Waits for all cores; returns whether they have ended well, but for those of a lost node.
fn join_all<M: Machines>(
    machines: &M,
    cores: Vec<(NodeId, M::Core)>,
    lost: Option<NodeId>,
) -> bool {
    let joined = cores.into_iter().map(|(node, core)| machines.join(core) | (lost == Some(node)));
    joined.fold(true, |all, one| all & one)
}

/// Utilisation since the clients have begun: before that, lanes were opened, and nothing was used.
fn since_start(mut report: Report) -> Report {
    let all = report.elapsed;
    report.elapsed = all.saturating_sub(START);
    let longer = all.as_secs_f64() / report.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
    report.resources.iter_mut().for_each(|entry| entry.busy = (entry.busy * longer).min(1.0));
    report
}

/// Opens a lane on the core that will turn it; a failure to do so is that of the run.
fn open<A, F>(
    fabric: Arc<dyn Fabric>,
    member: Member,
    lane: u16,
    roster: Roster,
    table: A::Table,
    shared: &Arc<Shared<F>>,
) -> impl FnOnce(&mut Executor) -> Option<Seat<A, F>> + Send + use<A, F>
where
    A: Access,
    F: Fn() -> A::System + Send + Sync + 'static,
{
    let shared = Arc::clone(shared);
    move |executor| {
        let progress = Arc::clone(&shared.progress);
        let seat = Seat::open(executor, &*fabric, member, lane, roster, table, shared);
        seat.map_err(|error| progress.fail(error.to_string())).ok()
    }
}

/// The program of a lane: runs its clients, and sends what they have done.
fn clients<A, F>(
    open: impl FnOnce(&mut Executor) -> Option<Seat<A, F>> + Send + 'static,
    sender: Sender<LockTally>,
    stopped: Receiver<()>,
) -> Program
where
    A: Access,
    F: Fn() -> A::System + Send + Sync + 'static,
{
    Box::new(move |executor| {
        let Some(seat) = open(executor) else { return Box::pin(async {}) };
        Box::pin(async move {
            let client = seat.client();
            // Received by nobody if another lane broke.
            let _ = sender.send(seat.run().await).await;
            // The reports end with the last lane that runs.
            drop(sender);
            // Its answers to resets are needed until all have ended.
            let _ = stopped.recv().await;
            drop(client);
        })
    })
}

/// Looks at every lock when nothing runs.
fn audit<M: Machines, F, S>(
    machines: &M,
    roster: &Roster,
    shared: &Arc<Shared<F>>,
) -> Result<Vec<String>, DeployError>
where
    F: Fn() -> S + Send + Sync + 'static,
    S: LockSystem,
{
    let node = NodeId(shared.load.cns + 1);
    let member = roster.join(node, 1).ok_or_else(|| refused("locks name fewer nodes"))?;
    let (sender, found) = async_channel::bounded(1);
    let open = open::<Client<S>, F>(machines.fabric(), member, 0, roster.clone(), (), shared);
    let program: Program = Box::new(move |executor| {
        let Some(seat) = open(executor) else { return Box::pin(async {}) };
        Box::pin(async move {
            // It is awaited.
            let _ = sender.send(seat.audit().await).await;
        })
    });
    let core = machines.start(node, "audit", program).map_err(refused)?;
    let found = machines.wait(&found);
    machines.join(core);
    let broke = || shared.progress.failure().map_or("the audit broke", String::as_str);
    let found = found.unwrap_or_else(|| Err(broke().to_owned()));
    let mut found = found.map_err(DeployError::Failed)?;
    let clashes = shared.ledger.as_ref().map_or(0, Ledger::clashes);
    if clashes > 0 {
        found.push(format!("{clashes} times two held a lock who must not"));
    }
    let misread = shared.ledger.as_ref().map_or(0, Ledger::misread);
    if misread > 0 {
        found.push(format!("{misread} times a reader found what the last writer had not written"));
    }
    Ok(found)
}

/// What all lanes share.
struct Shared<F> {
    load: LockLoad,
    space: LockSpace,
    clocks: Counters,
    chooser: KeyChooser,
    /// The most popular lock, if there is one.
    hottest: Option<u64>,
    ledger: Option<Ledger>,
    progress: Arc<Progress>,
    times: Times,
    make: F,
}

/// When clients begin, when their requests begin to count, and when they end.
#[derive(Clone, Copy)]
struct Times {
    begins: Nanos,
    counts_from: Nanos,
    ends: Nanos,
}

#[cfg(test)]
mod tests;
