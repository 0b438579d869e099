//! Load on a tree in remote memory, an application of lock systems: Sherman's B+tree, with
//! nodes that clients reach by one-sided verbs (DecLock §6, "Database index").
//!
//! Inner nodes and the search in them are those of crate `lotus-tree`, as in the engine's ordered
//! tables. Leaves are Sherman's. The lock system is that of [`TreeLoad::choice`], of which nothing
//! is known here but [`LockSystem`].
//!
//! # The audit
//! The value of a key is the number of its updates, counted in this process under the lock of its
//! leaf. So a search may find what is between two numbers (`ledger`), and in the end each key has
//! the last one. Then each level is one chain of pages, with fences that follow each other and keys
//! in order; the level above names all of them; and every lock is free.
//!
//! Pure: `page`, `leaf`, `inner`. `tree`: searches and updates, by verbs; `lane`: what each lane
//! does; `ledger`: what is noted in this process; `audit`: the tree in the end.

mod audit;
mod inner;
mod lane;
mod leaf;
mod ledger;
mod page;
mod tree;

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
use lotus_locks::systems::{Choice, Visitor};
use lotus_locks::{Counts, LockSpace, LockSystem, Member, Roster};

use crate::contract::deployment::DeployError;
use crate::drive::progress::{Phase, Progress};
use crate::locks::Latencies;
use crate::workloads::zipf::KeyChooser;
use lane::Seat;
use ledger::Ledger;
use page::Image;
use tree::Places;
pub use tree::TreeCounts;

/// The memory node.
const MEMORY: NodeId = NodeId(0);
const REGION: RegionId = RegionId(0);
/// Offset of the word that counts pages.
const COUNT: u64 = 0;
/// Offset of the pages.
const PAGES: u64 = 64;
/// Least bytes of a lock object, whichever the system.
const OBJECT: u64 = 16;
/// Longest latency that is told from longer ones, in nanoseconds.
const MAX_LATENCY_NS: u64 = 60_000_000_000;
/// Time until the end of a run for lanes to start.
const START: Duration = Duration::from_millis(20);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct TreeLoad {
    /// The lock system.
    pub choice: Choice,
    /// Number of keys that are drawn.
    pub keys: u64,
    /// Share of them that the tree has at the beginning. The others are added by their first
    /// update.
    pub loaded: f64,
    /// Skew of their popularity; 0 is uniform.
    pub zipf: f64,
    /// Share of requests that update; the others search.
    pub update_ratio: f64,
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

impl TreeLoad {
    /// Most keys: their first pages are made in this process.
    pub const MAX_KEYS: u64 = 1 << 26;

    /// Number of nodes that the machines must have: the memory node, the compute nodes, and one
    /// that loads and audits.
    pub const fn nodes(&self) -> u16 {
        self.cns + 2
    }

    /// Refuses options that make no sense together.
    ///
    /// # Errors
    /// A sentence that says which.
    pub fn check(&self) -> Result<(), String> {
        self.choice.kind.check(self.choice.recovery).map_err(|error| error.to_string())?;
        let clients = u32::from(self.cns) * u32::from(self.threads) * u32::from(self.coroutines);
        match self.choice.capacity() {
            Some(most) if clients > most => Err(format!(
                "{clients} clients are more than a lock of {} can count: at most {most}",
                self.choice.kind
            )),
            _ => Ok(()),
        }
    }

    /// Whether the tree has a key at the beginning.
    fn is_loaded(&self, key: u64) -> bool {
        let scattered = page::mix(1, key) >> 11;
        (scattered as f64) < self.loaded * (1_u64 << 53) as f64
    }

    /// Pages of the tree at the beginning, and number of pages that it may come to have.
    fn pages(&self) -> (Vec<(u64, Image)>, u64) {
        let keys = (0..self.keys).filter(|key| self.is_loaded(*key));
        let entries: Vec<_> = keys.map(|key| (key, 1)).collect();
        let added = self.keys - entries.len() as u64;
        let pages = inner::pages(&entries);
        // A leaf is split when as many keys were added as it had room for, and then each half has
        // at least half of a leaf. Inner nodes have more children than a hundredth of their bytes.
        let room = (leaf::SLOTS - leaf::FILLED + 1) as u64;
        let leaves = (added / room).min(self.keys / (leaf::SLOTS as u64 / 2)) + 1;
        let most = pages.len() as u64 + leaves + leaves / 8 + 8;
        (pages, most)
    }
}

/// What one lane, or all of them, have done.
#[derive(Clone, Debug)]
pub struct TreeTally {
    /// Searches and updates that ended in the time that counts.
    pub operations: u64,
    /// Time of all of them, in nanoseconds.
    pub operation_ns: Latencies,
    /// Time of searches, in nanoseconds.
    pub search_ns: Latencies,
    /// Time of updates, in nanoseconds.
    pub update_ns: Latencies,
    /// Counts of the tree in the time that counts; of pages that were mended, in all of the run.
    pub tree: TreeCounts,
    /// Counts of the lock system in the time that counts.
    pub counts: Counts,
    /// Verbs and messages in the time that counts.
    pub verbs: VerbCounters,
    /// Reason why a client has ended before its time.
    pub ended: Option<String>,
}

impl Default for TreeTally {
    fn default() -> Self {
        let histogram = || {
            let made = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3);
            made.expect("the bounds are sound constants")
        };
        Self {
            operations: 0,
            operation_ns: histogram(),
            search_ns: histogram(),
            update_ns: histogram(),
            tree: TreeCounts::default(),
            counts: Counts::default(),
            verbs: VerbCounters::default(),
            ended: None,
        }
    }
}

impl std::ops::AddAssign for TreeTally {
    fn add_assign(&mut self, other: Self) {
        let adds = "histograms of the same bounds add up";
        self.operations += other.operations;
        self.operation_ns.add(other.operation_ns).expect(adds);
        self.search_ns.add(other.search_ns).expect(adds);
        self.update_ns.add(other.update_ns).expect(adds);
        self.tree += other.tree;
        self.counts += other.counts;
        self.verbs += &other.verbs;
        self.ended = self.ended.take().or(other.ended);
    }
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct TreeOutcome {
    /// What all lanes have done.
    pub tally: TreeTally,
    /// What the audit has found, if there was one; empty if all is well.
    pub findings: Option<Vec<String>>,
    /// Pages and levels of the tree in the end, if there was an audit.
    pub shape: Option<Shape>,
    /// Utilisation of NICs, links and cores, in simulation.
    pub utilisation: Option<Report>,
}

/// Size of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Keys.
    pub keys: u64,
    /// Pages.
    pub pages: u64,
    /// Levels.
    pub levels: u8,
}

/// Runs the load. `progress` counts searches and updates, with one coordinator for each lane; its
/// failure ends the run.
///
/// # Errors
/// [`DeployError`] if the machines refuse, or a client or a lane ends before its time.
pub fn run<M: Machines>(
    machines: &M,
    load: &TreeLoad,
    progress: &Arc<Progress>,
) -> Result<TreeOutcome, DeployError> {
    load.choice.visit(Run { machines, load, progress })
}

struct Run<'a, M> {
    machines: &'a M,
    load: &'a TreeLoad,
    progress: &'a Arc<Progress>,
}

fn refused(error: impl std::fmt::Display) -> DeployError {
    DeployError::Refused(error.to_string())
}

impl<M: Machines> Visitor for Run<'_, M> {
    type Output = Result<TreeOutcome, DeployError>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let Self { machines, load, progress } = self;
        let shared = prepare(machines, load, progress, make)?;
        let roster = Roster::default();
        let mut outcome = run_lanes(machines, &roster, &shared)?;
        if shared.load.audit {
            shared.progress.enter(Phase::Auditing);
            let (shape, findings) = audit(machines, &roster, &shared)?;
            (outcome.shape, outcome.findings) = (Some(shape), Some(findings));
        }
        Ok(outcome)
    }
}

/// Makes the tree, and what all lanes share.
fn prepare<M, S, F>(
    machines: &M,
    load: &TreeLoad,
    progress: &Arc<Progress>,
    make: F,
) -> Result<Arc<Shared<F>>, DeployError>
where
    M: Machines,
    S: LockSystem,
    F: Fn() -> S,
{
    let (pages, most) = load.pages();
    let lock_bytes = make().object_bytes().max(OBJECT);
    let at = |offset| RemoteAddr::new(MEMORY, REGION, offset);
    let stride = lock_bytes + Places::BEHIND;
    let space = LockSpace::new(at(PAGES), lock_bytes, stride, most).map_err(refused)?;
    let places = Places { space, lock_bytes, count: at(COUNT) };
    let bytes = (PAGES + space.bytes()).next_multiple_of(4096);
    machines.fabric().register(MEMORY, REGION, bytes, Rights::ALL).map_err(refused)?;
    progress.enter(Phase::Loading);
    put_pages(machines, load, places, pages)?;
    let chooser = KeyChooser::new(load.keys, load.zipf);
    let ledger = load.audit.then(|| Ledger::new(load.keys, |key| load.is_loaded(key)));
    let begins = machines.outside().now().after(START);
    let counts_from = begins.after(Duration::from_secs_f64(load.warmup));
    let ends = counts_from.after(Duration::from_secs_f64(load.secs));
    progress.set_span(begins.0, ends.0);
    progress.enter(Phase::Running);
    let (load, progress) = (load.clone(), Arc::clone(progress));
    let times = Times { begins, counts_from, ends };
    Ok(Arc::new(Shared { load, places, chooser, ledger, progress, times, make }))
}

/// Writes the first pages of the tree.
fn put_pages<M: Machines>(
    machines: &M,
    load: &TreeLoad,
    places: Places,
    pages: Vec<(u64, Image)>,
) -> Result<(), DeployError> {
    let (sender, done) = async_channel::bounded(1);
    let fabric = machines.fabric();
    let node = NodeId(load.cns + 1);
    let program: Program = Box::new(move |executor| {
        let lane = lane::open(executor, &*fabric, node);
        Box::pin(async move {
            let put = match lane {
                Ok(lane) => lane::put_pages(&lane, places, &pages).await,
                Err(error) => Err(error.to_string()),
            };
            // It is awaited.
            let _ = sender.send(put).await;
        })
    });
    let core = machines.start(node, "load", program).map_err(refused)?;
    let put = machines.wait(&done);
    machines.join(core);
    put.unwrap_or_else(|| Err("the loading lane broke".to_owned())).map_err(DeployError::Failed)
}

/// Lanes that run.
struct Lanes<C> {
    cores: Vec<C>,
    reports: Receiver<TreeTally>,
    /// Lanes end when it is dropped.
    stop: Sender<()>,
}

/// Starts all lanes.
fn start_lanes<M, S, F>(
    machines: &M,
    roster: &Roster,
    shared: &Arc<Shared<F>>,
) -> Result<Lanes<M::Core>, DeployError>
where
    M: Machines,
    S: LockSystem,
    F: Fn() -> S + Send + Sync + 'static,
{
    let load = &shared.load;
    let (sender, reports) = async_channel::unbounded();
    let (stop, stopped) = async_channel::bounded::<()>(1);
    // All are members before the first of them uses a lock.
    let members: Option<Vec<Member>> =
        (1..=load.cns).map(|node| roster.join(NodeId(node), load.threads)).collect();
    let members = members.ok_or_else(|| refused("locks name fewer compute nodes"))?;
    let mut cores = Vec::new();
    for member in members {
        for lane in 0..load.threads {
            let open = open(machines.fabric(), member, lane, roster.clone(), Arc::clone(shared));
            let program = clients(open, sender.clone(), stopped.clone());
            let name = format!("tree-{}-{lane}", member.node.0);
            cores.push(machines.start(member.node, &name, program).map_err(refused)?);
        }
    }
    Ok(Lanes { cores, reports, stop })
}

/// Runs all lanes until their time is over.
fn run_lanes<M, S, F>(
    machines: &M,
    roster: &Roster,
    shared: &Arc<Shared<F>>,
) -> Result<TreeOutcome, DeployError>
where
    M: Machines,
    S: LockSystem,
    F: Fn() -> S + Send + Sync + 'static,
{
    let Lanes { cores, reports, stop } = start_lanes(machines, roster, shared)?;
    let mut outcome = TreeOutcome::default();
    for _ in &cores {
        let Some(tally) = machines.wait(&reports) else { break };
        outcome.tally += tally;
    }
    outcome.utilisation = machines.utilisation();
    drop(stop);
    let ended = cores.into_iter().map(|core| machines.join(core)).fold(true, |all, one| all & one);
    if let Some(why) = shared.progress.failure() {
        return Err(DeployError::Failed(why.clone()));
    }
    if !ended {
        return Err(DeployError::Failed("a lane broke".to_owned()));
    }
    match outcome.tally.ended.take() {
        Some(why) => Err(DeployError::Failed(format!("a client has ended before its time: {why}"))),
        None => Ok(outcome),
    }
}

/// Opens a lane on the core that will turn it; a failure to do so is that of the run.
fn open<S, F>(
    fabric: Arc<dyn Fabric>,
    member: Member,
    lane: u16,
    roster: Roster,
    shared: Arc<Shared<F>>,
) -> impl FnOnce(&mut Executor) -> Option<Seat<S, F>> + Send
where
    S: LockSystem,
    F: Fn() -> S + Send + Sync + 'static,
{
    move |executor| {
        let progress = Arc::clone(&shared.progress);
        let seat = Seat::open(executor, &*fabric, member, lane, roster, shared);
        seat.map_err(|error| progress.fail(error.to_string())).ok()
    }
}

/// The program of a lane: runs its clients, and sends what they have done.
fn clients<S, F>(
    open: impl FnOnce(&mut Executor) -> Option<Seat<S, F>> + Send + 'static,
    sender: Sender<TreeTally>,
    stopped: Receiver<()>,
) -> Program
where
    S: LockSystem,
    F: Fn() -> S + Send + Sync + 'static,
{
    Box::new(move |executor| {
        let Some(seat) = open(executor) else { return Box::pin(async {}) };
        Box::pin(async move {
            let client = seat.client();
            // Not received if another lane broke.
            let _ = sender.send(seat.run().await).await;
            // The reports end with the last lane that runs.
            drop(sender);
            // Its answers to resets are needed until all have ended.
            let _ = stopped.recv().await;
            drop(client);
        })
    })
}

/// Looks at the whole tree when nothing runs.
fn audit<M, S, F>(
    machines: &M,
    roster: &Roster,
    shared: &Arc<Shared<F>>,
) -> Result<(Shape, Vec<String>), DeployError>
where
    M: Machines,
    S: LockSystem,
    F: Fn() -> S + Send + Sync + 'static,
{
    let node = NodeId(shared.load.cns + 1);
    let member = roster.join(node, 1).ok_or_else(|| refused("locks name fewer nodes"))?;
    let (sender, found) = async_channel::bounded(1);
    let open = open(machines.fabric(), member, 0, roster.clone(), Arc::clone(shared));
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
    let (shape, mut findings) = found.map_err(DeployError::Failed)?;
    let wrong = shared.ledger.as_ref().map_or(0, Ledger::wrong);
    if wrong > 0 {
        findings.push(format!("{wrong} searches found a value that was not there while they ran"));
    }
    Ok((shape, findings))
}

/// What all lanes share.
struct Shared<F> {
    load: TreeLoad,
    places: Places,
    chooser: KeyChooser,
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
