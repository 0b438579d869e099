//! Load on a lock system alone: clients draw locks by popularity, hold each for some verbs, and
//! release it.
//!
//! # The audit
//! Every client notes in a word of this process that it holds a lock, so that two holders meet
//! there. A writer writes the number of writers so far beside the lock, counted in this process
//! under the lock; in the end the two numbers are equal, unless a write was lost, or came too late.
//! And every lock is free.
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
/// Time until the end of a run for lanes to start.
const START: Duration = Duration::from_millis(20);

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
            let passes_over = matches!(kind, Kind::Dslr | Kind::DslrPlus);
            if !passes_over || self.choice.recovery != Recovery::Paper {
                return Err("only dslr as published goes on after holders that fail".to_owned());
            }
            if self.policy.is_some() {
                return Err("holders that fail do so alone, and share no lock".to_owned());
            }
            if self.audit {
                return Err("holders that fail keep locks, which no audit can pass".to_owned());
            }
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

    /// Bytes from one lock object, of so many bytes, to the next.
    const fn stride(&self, object: u64) -> u64 {
        object + self.object_bytes
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

impl<M: Machines> Run<'_, M> {
    /// Runs the load on clients of this kind; `table` makes what the lanes of a node share.
    fn run<A, F>(self, make: F, table: impl Fn() -> A::Table) -> Result<LockOutcome, DeployError>
    where
        A: Access,
        F: Fn() -> A::System + Send + Sync + 'static,
    {
        let Self { machines, load, progress } = self;
        let base = RemoteAddr::new(MEMORY, REGION, 0);
        let object = offset_of_data(&make());
        let space = LockSpace::new(base, object, load.stride(object), load.count);
        let space = space.map_err(refused)?;
        let base = RemoteAddr::new(MEMORY, REGION, space.bytes());
        let clocks = Counters { base, count: CLOCKS };
        let bytes = (space.bytes() + clocks.bytes()).next_multiple_of(4096);
        machines.fabric().register(MEMORY, REGION, bytes, Rights::ALL).map_err(refused)?;
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
                cores.push(machines.start(member.node, &name, program).map_err(refused)?);
            }
        }
        drop(sender);
        let mut outcome = LockOutcome::default();
        for _ in &cores {
            let Some(tally) = machines.wait(&reports) else { break };
            outcome.tally += tally;
        }
        outcome.utilisation = machines.utilisation();
        drop(stop);
        let ended =
            cores.into_iter().map(|core| machines.join(core)).fold(true, |all, one| all & one);
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
mod tests {
    use std::sync::Mutex;

    use lotus_fabric::ids::{Endpoint, Epoch, LaneId};
    use lotus_fabric::machines::Threads;
    use lotus_fabric::sim::{Config, Profile, SimMachines, World};
    use lotus_locks::systems::Kind;

    use super::*;

    fn short() -> LockLoad {
        LockLoad {
            choice: Choice::of(Kind::Dslr),
            policy: None,
            count: 20,
            zipf: 0.99,
            read_ratio: 0.5,
            update_ratio: 0.0,
            section: 1,
            object_bytes: 8,
            patience: None,
            habits: Habits::default(),
            cns: 2,
            threads: 2,
            coroutines: 2,
            warmup: 0.01,
            secs: 0.05,
            audit: true,
        }
    }

    #[test]
    fn a_failure_outside_ends_the_run_long_before_its_time() {
        let load = LockLoad { secs: 1e6, ..short() };
        let progress = Arc::new(Progress::new(4, |_| ()));
        progress.fail("a memory node has ended".to_owned());
        let outcome = run(&Threads::new(load.nodes(), 1), &load, &progress);
        let failed = DeployError::Failed("a memory node has ended".to_owned());
        assert_eq!(outcome.expect_err("it has failed"), failed);
    }

    #[test]
    fn lanes_that_cannot_be_opened_end_the_run_with_a_sentence() {
        let (load, machines) = (LockLoad { secs: 1e6, ..short() }, Threads::new(4, 1));
        let progress = Arc::new(Progress::new(4, |_| ()));
        let taken = Endpoint { node: NodeId(2), lane: LaneId(1) };
        let executor = Executor::new(machines.outside());
        let lane = machines.fabric().open_lane(taken, Epoch(1), executor.handle().waker());
        let Err(DeployError::Failed(why)) = run(&machines, &load, &progress) else {
            panic!("the lane is taken")
        };
        assert!(why.contains("lane"), "{why}");
        drop(lane);
    }

    #[test]
    fn progress_counts_what_is_done_on_all_lanes() {
        for audit in [true, false] {
            let load = LockLoad { audit, ..short() };
            let phases = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&phases);
            let enter = move |phase| seen.lock().expect("no panic").push(phase);
            let progress = Arc::new(Progress::new(4, enter));
            let outcome = run(&Threads::new(load.nodes(), 1), &load, &progress).expect("it runs");
            // Those of the warm-up do not count in the outcome.
            assert!(progress.committed() >= outcome.tally.operations, "{outcome:?}");
            assert!(outcome.tally.operations > 0 && progress.fraction() > 0.0);
            assert_eq!(outcome.findings, audit.then(Vec::new));
            let expected = [Phase::Running, Phase::Auditing];
            assert_eq!(*phases.lock().expect("no panic"), expected[..1 + usize::from(audit)]);
        }
    }

    #[test]
    fn a_distribution_rises_to_the_slowest() {
        let mut tally = LockTally::default();
        assert_eq!(distribution(&tally.hottest_ns), []);
        for ns in 1..=1000 {
            tally.hottest_ns.saturating_record(ns);
        }
        let points = distribution(&tally.hottest_ns);
        assert!(points.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1), "{points:?}");
        assert_eq!((points[0], points[49]), ((0.01, 10), (0.5, 500)));
        assert_eq!(points.last(), Some(&(1.0, 1000)));
    }

    /// One lock and as many requests as fit: writers follow each other, and what is noted of all
    /// lanes is put together.
    #[test]
    fn the_hottest_lock_and_the_treatment_of_requests_are_noted() {
        let run = |load: LockLoad| {
            let world = Config::new(1, load.nodes(), Profile::named("cx3-56g").expect("built in"));
            let machines = SimMachines::new(World::new(world).expect("a valid world"));
            let progress = Arc::new(Progress::new(4, |_| ()));
            run(&machines, &load, &progress).expect("it runs").tally
        };
        let short = LockLoad { warmup: 0.0005, secs: 0.002, coroutines: 4, ..short() };
        let one = LockLoad { count: 1, read_ratio: 0.2, ..short.clone() };
        let (queue, retries) =
            (run(one.clone()), run(LockLoad { choice: Choice::of(Kind::Cas), ..one.clone() }));
        // There is one lock, so it is the hottest.
        assert_eq!(queue.hottest_ns, queue.acquire_ns);
        assert!(queue.fairness.longest_run > 2, "{:?}", queue.fairness);
        // Requests may change places on the way to the lock, but not in its queue.
        let clients = 2 * 2 * 4;
        assert!(queue.fairness.largest_bypass < clients, "{:?}", queue.fairness);
        assert!(retries.fairness.largest_bypass > clients, "{:?}", retries.fairness);
        let unseen = run(LockLoad { audit: false, ..one });
        assert_eq!(unseen.fairness, Fairness::default());
        assert_eq!(unseen.operations, queue.operations, "an audit takes no time of the clients");
        let readers = run(LockLoad { read_ratio: 1.0, ..short.clone() });
        assert_eq!(readers.fairness.longest_run, 0);
        assert!(!readers.hottest_ns.is_empty());
        assert!(readers.hottest_ns.len() < readers.operations);
        let uniform = run(LockLoad { zipf: 0.0, ..short });
        assert!(uniform.hottest_ns.is_empty());
    }
}
