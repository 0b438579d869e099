//! Load on a tree in remote memory, an application of lock systems: Sherman's B+tree, whose nodes
//! clients access by one-sided verbs (DecLock §6, "Database index").
//!
//! Inner nodes and the search in them come from crate `lotus-tree`, as in the engine's ordered
//! tables. Leaves are Sherman's. The lock system is the one chosen by [`Clients::choice`]; this
//! module knows only [`LockSystem`].
//!
//! # The audit
//! The value of a key is the number of its updates, counted in this process under the lock of its
//! leaf. A search may therefore find any value between two counts (`ledger`), and at the end each
//! key has the last count. The audit also checks that each level is one chain of pages, with
//! consecutive fences and keys in order; that the level above names all pages of the level; and
//! that every lock is free.
//!
//! Pure: `page`, `leaf`, `inner`. `tree`: searches and updates, by verbs; `lane`: work of each
//! lane; `ledger`: notes in this process; `audit`: the tree at the end.

mod audit;
mod inner;
mod lane;
mod leaf;
mod ledger;
mod page;
mod tree;

use std::ops::AddAssign;
use std::sync::Arc;

use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::progress::{Phase, Progress};
use lotus_benchmarks::zipf::KeyChooser;
use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::machines::{Machines, MachinesExt, Program};
use lotus_fabric::sim::Report;
use lotus_locks::systems::Visitor;
use lotus_locks::{LockSpace, LockSystem};

use crate::lanes::{
    self, Clients, Done, Latencies, MEMORY, REGION, Run, Used, latencies, offset_of_data, refused,
};
use lane::Visits;
use ledger::Ledger;
use page::Image;
use tree::Places;
pub use tree::TreeCounts;

/// Offset of the word that counts pages.
const COUNT: u64 = 0;
/// Offset of the pages.
const PAGES: u64 = 64;
/// Options of a run.
#[derive(Clone, Debug)]
pub struct TreeLoad {
    /// The clients, and the lock system.
    pub clients: Clients,
    /// Number of keys from which requests draw.
    pub keys: u64,
    /// Share of the keys that the tree has at the beginning. The other keys are added by their
    /// first update.
    pub loaded: f64,
    /// Skew of the keys' popularity; 0 is uniform.
    pub zipf: f64,
    /// Share of requests that update; the other requests search.
    pub update_ratio: f64,
    /// Whether the run is audited.
    pub audit: bool,
}

impl TreeLoad {
    /// Largest number of keys: the first pages of all keys are built in this process.
    pub const MAX_KEYS: u64 = 1 << 26;

    /// Refuses contradictory options.
    ///
    /// # Errors
    /// A sentence that names the contradiction.
    pub fn check(&self) -> Result<(), String> {
        self.clients.check(1)
    }

    /// Returns whether the tree has a key at the beginning.
    fn is_loaded(&self, key: u64) -> bool {
        let scattered = page::mix(1, key) >> 11;
        (scattered as f64) < self.loaded * (1_u64 << 53) as f64
    }

    /// Pages of the tree at the beginning, and the largest number of pages that the tree may need.
    fn pages(&self) -> (Vec<(u64, Image)>, u64) {
        let keys = (0..self.keys).filter(|key| self.is_loaded(*key));
        let entries: Vec<_> = keys.map(|key| (key, 1)).collect();
        let added = self.keys - entries.len() as u64;
        let pages = inner::pages(&entries);
        // A leaf is split when more keys were added than the leaf had room for, and then each half
        // has at least half of a leaf. Inner nodes have more children than a hundredth of their
        // bytes.
        let room = (leaf::SLOTS - leaf::FILLED + 1) as u64;
        let leaves = (added / room).min(self.keys / (leaf::SLOTS as u64 / 2)) + 1;
        let most = pages.len() as u64 + leaves + leaves / 8 + 8;
        (pages, most)
    }
}

/// Counts of a lane, or sums over lanes.
#[derive(Clone, Debug)]
pub struct TreeTally {
    /// Searches and updates that ended in the measured time.
    pub operations: u64,
    /// Time of searches and updates together, in nanoseconds.
    pub operation_ns: Latencies,
    /// Time of searches, in nanoseconds.
    pub search_ns: Latencies,
    /// Time of updates, in nanoseconds.
    pub update_ns: Latencies,
    /// Counts of the tree in the measured time; mended pages are counted over the whole run.
    pub tree: TreeCounts,
}

impl Default for TreeTally {
    fn default() -> Self {
        Self {
            operations: 0,
            operation_ns: latencies(),
            search_ns: latencies(),
            update_ns: latencies(),
            tree: TreeCounts::default(),
        }
    }
}

impl AddAssign for TreeTally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        lanes::add(&mut self.operation_ns, &other.operation_ns);
        lanes::add(&mut self.search_ns, &other.search_ns);
        lanes::add(&mut self.update_ns, &other.update_ns);
        self.tree += other.tree;
    }
}

/// Results of a run.
#[derive(Debug, Default)]
pub struct TreeOutcome {
    /// Counts of all lanes.
    pub tally: TreeTally,
    /// Resources used by the lanes in the measured time.
    pub used: Used,
    /// Findings of the audit, if the run was audited; empty if the audit passed.
    pub findings: Option<Vec<String>>,
    /// Pages and levels of the tree at the end, if the run was audited.
    pub shape: Option<Shape>,
    /// Utilisation of NICs, links and cores since the clients have begun, in simulation.
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

/// Runs the load. `progress` counts searches and updates, with one coordinator for each lane; a
/// failure of `progress` ends the run.
///
/// # Errors
/// [`DeployError`] if the machines refuse, or a client or a lane ends early.
pub fn run(
    machines: &dyn Machines,
    load: &TreeLoad,
    progress: &Arc<Progress>,
) -> Result<TreeOutcome, DeployError> {
    load.clients.choice.visit(Visit { machines, load, progress })
}

struct Visit<'a> {
    machines: &'a dyn Machines,
    load: &'a TreeLoad,
    progress: &'a Arc<Progress>,
}

impl Visitor for Visit<'_> {
    type Output = Result<TreeOutcome, DeployError>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let Self { machines, load, progress } = self;
        let (run, shared) = prepare(machines, load, progress, make)?;
        let Done { tally, used, utilisation, .. } = run.run(machines, &shared, None)?;
        let mut outcome = TreeOutcome { tally, used, utilisation, ..TreeOutcome::default() };
        if shared.load.audit {
            let (shape, findings) = audit(machines, &run, &shared)?;
            (outcome.shape, outcome.findings) = (Some(shape), Some(findings));
        }
        Ok(outcome)
    }
}

/// Makes the tree, the run of its clients, and the state shared by all lanes.
fn prepare<S: LockSystem>(
    machines: &dyn Machines,
    load: &TreeLoad,
    progress: &Arc<Progress>,
    make: impl Fn() -> S + Send + Sync + 'static,
) -> Result<(Arc<Run<S>>, Arc<Shared>), DeployError> {
    let (pages, most) = load.pages();
    let lock_bytes = offset_of_data(&make());
    let at = |offset| RemoteAddr::new(MEMORY, REGION, offset);
    let stride = lock_bytes + Places::BEHIND;
    let space = LockSpace::new(at(PAGES), lock_bytes, stride, most).map_err(refused)?;
    let places = Places { space, lock_bytes, count: at(COUNT) };
    let clocks = lanes::register(machines, PAGES + space.bytes())?;
    progress.enter(Phase::Loading);
    put_pages(machines, load, places, pages)?;
    let chooser = KeyChooser::new(load.keys, load.zipf);
    let ledger = load.audit.then(|| Ledger::new(load.keys, |key| load.is_loaded(key)));
    let run = Run::new(machines, load.clients.clone(), progress, clocks, Arc::new(make));
    Ok((run, Arc::new(Shared { load: load.clone(), places, chooser, ledger })))
}

/// Writes the first pages of the tree.
fn put_pages(
    machines: &dyn Machines,
    load: &TreeLoad,
    places: Places,
    pages: Vec<(u64, Image)>,
) -> Result<(), DeployError> {
    let (sender, done) = async_channel::bounded(1);
    let fabric = machines.fabric();
    let node = load.clients.outsider();
    let program: Program = Box::new(move |executor| {
        let lane = lane::open(executor, &*fabric, node);
        Box::pin(async move {
            let put = match lane {
                Ok(lane) => lane::put_pages(&lane, places, &pages).await,
                Err(error) => Err(error.to_string()),
            };
            // The receiver waits for this message.
            let _ = sender.send(put).await;
        })
    });
    let core = machines.start(node, "load", program).map_err(refused)?;
    let put = machines.wait(&done);
    machines.join(core);
    put.unwrap_or_else(|| Err("the loading lane broke".to_owned())).map_err(DeployError::Failed)
}

/// Looks at the whole tree when nothing runs.
fn audit<S: LockSystem>(
    machines: &dyn Machines,
    run: &Arc<Run<S>>,
    shared: &Arc<Shared>,
) -> Result<(Shape, Vec<String>), DeployError> {
    let noted = Arc::clone(shared);
    let look = async move |context| Visits::new(context, noted).audit().await;
    let (shape, mut findings) = run.audit(machines, look)?;
    let wrong = shared.ledger.as_ref().map_or(0, Ledger::wrong);
    if wrong > 0 {
        findings.push(format!("{wrong} searches found a value that was not there while they ran"));
    }
    Ok((shape, findings))
}

/// State shared by all lanes.
struct Shared {
    load: TreeLoad,
    places: Places,
    chooser: KeyChooser,
    ledger: Option<Ledger>,
}

#[cfg(test)]
mod tests;
