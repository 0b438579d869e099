//! Trials: clients take and release a few locks for a while, under the eyes of judges.
//!
//! # What it is
//! The load and the judges of the conformance suite and of simulated campaigns. A writer reads two
//! words beside the lock, writes the first, then the second. A reader compares the words. The
//! holder of an update lock compares the words first, and then writes or leaves. Two simultaneous
//! holders therefore show in the words, even where no judge in this process can see both.
//!
//! # What it is not
//! A trial injects no faults: the caller stops, pauses and expels nodes while the trial runs, as
//! [`simulate`] does.
//!
//! `referee`: the judges; `client`: the work of each client; `losses`: what clients do when the
//! memory is lost; `simulated`: trials on virtual time, with faults; `server_locks`: trials of
//! locks that switches and servers keep.

mod client;
mod losses;
mod referee;
pub mod server_locks;
mod simulated;

use std::fmt;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::ids::{Epoch, NodeId, RegionId, RemoteAddr};
use lotus_fabric::machines::{Core, Machines, MachinesExt, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::Service;
use lotus_fabric::transport::FabricError;
use lotus_locks::word::Claimant;
use lotus_locks::{
    Client, Counts, Identity, LockSpace, LockSystem, Member, Peers, Roster, SpaceError,
};

use crate::local::{Access, Counters, LocalClient, LocalTable, Policy, Transfers};
use client::LaneContext;
use losses::Losses;
pub use referee::Referee;
pub use simulated::{Faults, Struck, StruckAfter, simulate};

/// Region with the locks and the words beside them.
pub const REGION: RegionId = RegionId(0);
/// Least offset of the two words beside a lock.
const WORDS: u64 = 16;
/// Bytes of the two words.
const WORDS_BYTES: u64 = 16;
/// Service by which lanes announce resets.
const SERVICE: Service = Service(0);
/// Number of counters for the nodes' clocks, one per epoch; more than a trial has.
const CLOCKS: u32 = 64;
/// Time that the audit waits for a lock. Longer than any reset takes.
const AUDIT: Duration = Duration::from_millis(500);

/// Shape of a trial.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The memory node.
    pub memory: NodeId,
    /// Compute nodes; the last node only audits.
    pub nodes: Vec<NodeId>,
    /// Lanes of each compute node.
    pub lanes: u16,
    /// Clients of each lane.
    pub clients: u16,
    /// Number of locks.
    pub locks: u64,
    /// Policy of lock sharing among a node's clients, if any.
    pub policy: Option<Policy>,
    /// Share of requests that read.
    pub shared: f64,
    /// Share of update locks among the other requests; most update locks are upgraded later.
    pub updates: f64,
    /// Requests of each client.
    pub rounds: u32,
    /// Shares of requests that do not wait, that wait for a short time only, and that are dropped
    /// after a random time.
    pub refusing: f64,
    /// See `refusing`.
    pub hurried: f64,
    /// See `refusing`.
    pub dropped: f64,
    /// The longest short wait.
    pub hurry: Duration,
    /// The longest hold of a lock, besides the verbs.
    pub hold: Duration,
    /// The longest time between two requests.
    pub think: Duration,
    /// The largest number of lease terms.
    pub terms: u16,
    /// Time that the audit waits for a lock: longer than any reset takes, and than threads may
    /// stand still.
    pub audit: Duration,
    /// Whether the trial is without faults, so that only a request's own limits make the request
    /// fail.
    pub is_calm: bool,
    /// Whether locks may be reset without faults, because the requests exceed the lock's capacity.
    pub may_reset: bool,
    /// Virtual time after which the trial counts as stuck.
    pub limit: Duration,
    /// Initial value of the locks' words, or of the second words if the counters are there, to test
    /// counters that are nearly used up.
    pub first_word: u64,
}

impl Settings {
    /// Returns two compute nodes with a lane of three clients on each, and two locks; half of the
    /// requests read, and every request waits.
    pub fn small(memory: NodeId, nodes: Vec<NodeId>) -> Self {
        Self {
            memory,
            nodes,
            lanes: 1,
            clients: 3,
            locks: 2,
            policy: None,
            shared: 0.5,
            updates: 0.0,
            rounds: 40,
            refusing: 0.0,
            hurried: 0.0,
            dropped: 0.0,
            hurry: Duration::from_micros(20),
            hold: Duration::from_micros(5),
            think: Duration::from_micros(5),
            terms: 1,
            audit: AUDIT,
            is_calm: false,
            may_reset: false,
            limit: Duration::from_secs(1),
            first_word: 0,
        }
    }
}

/// Reason why a trial could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// The locks do not fit.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The fabric refuses an operation.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The operating system has no thread left.
    #[error("cannot start a core: {0}")]
    Core(#[from] io::Error),
    /// There are more nodes than locks can name.
    #[error("locks name at most {} nodes", lotus_locks::Waiter::MAX_NODE)]
    TooManyNodes,
}

/// Result of a trial.
#[derive(Clone, Debug, Default)]
pub struct TrialResult {
    /// Violations found.
    pub violations: Vec<String>,
    /// Counts of all lanes that survived to the end.
    pub counts: Counts,
    /// Number of acquisitions by all clients.
    pub entered: u64,
    /// Requests that were refused or ended at their deadline.
    pub refused: u64,
    /// Largest number of simultaneous holders of a lock.
    pub together: usize,
    /// Number of times that a lock had an update holder beside readers.
    pub beside: u64,
    /// Number of upgrades of update locks.
    pub upgraded: u64,
    /// The longest time between a deadline and its refusal.
    pub late: Duration,
    /// Number of locks that were lost by the holder before the release, according to the release.
    pub lost: u64,
    /// Transfers from nodes and from the memory node.
    pub transfers: Transfers,
}

impl std::ops::AddAssign for TrialResult {
    fn add_assign(&mut self, other: Self) {
        self.violations.extend(other.violations);
        self.counts += other.counts;
        self.entered += other.entered;
        self.refused += other.refused;
        self.lost += other.lost;
        self.transfers += other.transfers;
        self.beside += other.beside;
        self.upgraded += other.upgraded;
        self.together = self.together.max(other.together);
        self.late = self.late.max(other.late);
    }
}

impl fmt::Display for TrialResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { retries, ghosts, resets, .. } = self.counts;
        let (entered, refused) = (self.entered, self.refused);
        write!(
            f,
            "{entered} held, {refused} refused, {retries} retries, {ghosts} ghosts, {resets} resets"
        )?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))
    }
}

/// Report of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneReport {
    counts: Counts,
    transfers: Transfers,
    refused: u64,
    lost: u64,
    late: Duration,
}

/// A running trial.
pub struct Trial {
    settings: Settings,
    space: LockSpace,
    roster: Roster,
    referee: Arc<Referee>,
    losses: Arc<Losses>,
    members: Vec<Member>,
    /// Tables that the lanes of a node share, by the life of the node.
    tables: Vec<(Claimant, Arc<LocalTable>)>,
    /// Cores with outstanding reports, by the life of their node.
    cores: Vec<(Claimant, Core)>,
    reports: Receiver<(Claimant, LaneReport)>,
    sender: Sender<(Claimant, LaneReport)>,
    is_over: Arc<AtomicBool>,
    make: Arc<dyn std::any::Any + Send + Sync>,
}

/// Constructor of a lock system, called for each lane.
pub type Make<S> = Arc<dyn Fn() -> S + Send + Sync>;

impl Trial {
    /// Registers the memory and starts the clients.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn start<S: LockSystem>(
        machines: &dyn Machines,
        settings: Settings,
        make: Make<S>,
    ) -> Result<Self, TrialError> {
        let base = RemoteAddr::new(settings.memory, REGION, 0);
        let stride = offset_of_words(&make()) + WORDS_BYTES;
        let space = LockSpace::new(base, stride, stride, settings.locks)?;
        let (sender, reports) = async_channel::unbounded();
        let mut trial = Self {
            space,
            roster: Roster::default(),
            referee: Arc::new(Referee::new(settings.locks)),
            losses: Arc::default(),
            members: Vec::new(),
            tables: Vec::new(),
            cores: Vec::new(),
            reports,
            sender,
            is_over: Arc::default(),
            make: Arc::new(Arc::clone(&make)),
            settings,
        };
        trial.register_memory(machines)?;
        if trial.settings.first_word != 0 {
            trial.run_aside(machines, &make, async |context| client::prepare(&context).await)?;
        }
        let clients = trial.settings.nodes.len().saturating_sub(1);
        let nodes = trial.settings.nodes[..clients].to_vec();
        for node in nodes {
            trial.start_node(machines, node, &make)?;
        }
        Ok(trial)
    }

    /// Counters behind the locks.
    fn clocks(&self) -> Counters {
        let base = RemoteAddr::new(self.settings.memory, REGION, self.space.bytes());
        Counters { base, count: CLOCKS }
    }

    fn register_memory(&self, machines: &dyn Machines) -> Result<(), FabricError> {
        let bytes = (self.space.bytes() + self.clocks().bytes()).next_multiple_of(4096);
        machines.fabric().register(self.settings.memory, REGION, bytes, Rights::ALL)
    }

    /// Makes a node a member, even after an expulsion, and starts the node's lanes.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn start_node<S: LockSystem>(
        &mut self,
        machines: &dyn Machines,
        node: NodeId,
        make: &Make<S>,
    ) -> Result<(), TrialError> {
        let member = self.roster.join(node, self.settings.lanes);
        let member = member.ok_or(TrialError::TooManyNodes)?;
        self.members.push(member);
        let lanes = self.settings.lanes;
        match self.settings.policy {
            None => self.start_lanes::<Client<S>>(machines, member, &(), make),
            Some(policy) => {
                let table = Arc::new(LocalTable::new(policy, lanes));
                self.tables.push((member.life, Arc::clone(&table)));
                self.start_lanes::<LocalClient<S>>(machines, member, &table, make)
            }
        }
    }

    fn start_lanes<A: Access>(
        &mut self,
        machines: &dyn Machines,
        member: Member,
        table: &A::Table,
        make: &Make<A::System>,
    ) -> Result<(), TrialError> {
        let (node, clocks) = (member.node, self.clocks());
        for lane in 0..self.settings.lanes {
            let (sender, is_over) = (self.sender.clone(), Arc::clone(&self.is_over));
            let life = move |context: LaneContext<A>| async move {
                let (timer, client) = (context.lane.executor().clone(), context.client.clone());
                let (losses, memory) = (Arc::clone(&context.losses), context.settings.memory);
                let (follower, clock) = (client.client().clone(), timer.clone());
                client.keep_time(clocks);
                timer.spawn(async move {
                    losses.follow(follower, clock, member.life, memory).await;
                });
                let report = client::run(context).await;
                // Not received if the trial was given up.
                let _ = sender.send((member.life, report)).await;
                // The lane must answer resets until all lanes have ended.
                while !is_over.load(Ordering::Acquire) {
                    timer.sleep(Duration::from_micros(100)).await;
                }
                drop(client);
            };
            let program = self.program(machines, member, lane, table.clone(), make, life);
            let core = machines.start(node, &format!("lane-{}-{lane}", node.0), program)?;
            self.cores.push((member.life, core));
        }
        Ok(())
    }

    /// Returns the program of a lane, which runs `life`.
    fn program<A: Access, F: Future<Output = ()> + 'static>(
        &self,
        machines: &dyn Machines,
        member: Member,
        lane: u16,
        table: A::Table,
        make: &Make<A::System>,
        life: impl FnOnce(LaneContext<A>) -> F + Send + 'static,
    ) -> Program {
        let (settings, space) = (self.settings.clone(), self.space);
        let (roster, referee) = (self.roster.clone(), Arc::clone(&self.referee));
        let losses = Arc::clone(&self.losses);
        let (fabric, make) = (machines.fabric(), Arc::clone(make));
        Box::new(move |executor| {
            let peers = Rc::new(roster.clone());
            let identity = Identity { member, peers, service: SERVICE };
            let opened = Client::open(make(), executor, &*fabric, lane, identity);
            let (client, lane) =
                opened.unwrap_or_else(|error| panic!("no lane of {:?}: {error}", member.node));
            client.resume(settings.memory, losses.ended());
            let client = A::of(client, table);
            Box::pin(life(LaneContext {
                client,
                lane,
                member,
                roster,
                space,
                referee,
                losses,
                settings,
            }))
        })
    }

    /// Runs `life` to its end on a lane of the auditing node, which is a member meanwhile.
    fn run_aside<S: LockSystem, F: Future<Output = ()> + 'static>(
        &self,
        machines: &dyn Machines,
        make: &Make<S>,
        life: impl FnOnce(LaneContext<Client<S>>) -> F + Send + 'static,
    ) -> Result<(), TrialError> {
        let node = *self.settings.nodes.last().expect("there is a node that audits");
        let member = self.roster.join(node, 1).ok_or(TrialError::TooManyNodes)?;
        let (done, ended) = async_channel::bounded(1);
        let life = move |context| async move {
            life(context).await;
            // Not received if the trial was given up.
            let _ = done.send(()).await;
        };
        let program = self.program(machines, member, 0, (), make, life);
        let core = machines.start(node, "aside", program)?;
        let ended = machines.wait(&ended);
        if !machines.join(core) || ended.is_none() {
            self.referee.violate(format!("node {} does not end", node.0));
        }
        self.roster.leave(member);
        Ok(())
    }

    /// The members, in the order of their starts.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The memory node.
    pub fn memory(&self) -> NodeId {
        self.settings.memory
    }

    /// Records that a node's clients will not report.
    pub fn is_out(&mut self, node: NodeId) {
        let lives = self.members.iter().filter(|member| member.node == node);
        let lives: Vec<_> = lives.map(|member| member.life).collect();
        self.cores.retain(|(life, _)| !lives.contains(life));
    }

    /// Records that a node is expelled. The caller must ensure that the node's verbs reach the
    /// memory no longer: it has fenced the node at the memory, at the epoch of
    /// [`Self::next_epoch`], if the locks are fenced.
    pub fn expel(&mut self, node: NodeId) {
        self.roster.settle(node);
        let lives = self.members.iter().filter(|member| member.node == node);
        lives.for_each(|member| self.referee.expel(member.life));
    }

    /// Epoch below which an expelled node is refused: above every present member's epoch.
    pub fn next_epoch(&self) -> Epoch {
        let epochs = self.members.iter().map(|member| member.life.incarnation());
        Epoch(epochs.max().unwrap_or(0) + 1)
    }

    /// Whether the memory is lost and not yet regained.
    pub fn is_memory_lost(&self) -> bool {
        self.losses.is_on()
    }

    /// Records the loss of the memory node's memory: all lanes abandon the memory node.
    pub fn lose_memory(&self) {
        self.losses.begin();
    }

    /// Nodes, with lives, that have not abandoned the memory node: live nodes that are not
    /// expelled, and dead nodes that are not expelled yet.
    pub fn use_memory_still(&self) -> Vec<Member> {
        let uses = |member: &&Member| {
            !self.roster.is_settled(member.life)
                && self.losses.abandoned_by(member.life) < usize::from(member.lanes)
        };
        self.members.iter().filter(uses).copied().collect()
    }

    /// Gives the memory node its memory again, zeroed. The caller must ensure that no member still
    /// uses the memory, and that expelled nodes' verbs do not reach the memory.
    ///
    /// # Errors
    /// If the fabric refuses.
    pub fn regain_memory(&self, machines: &dyn Machines) -> Result<(), FabricError> {
        self.register_memory(machines)?;
        self.referee.forget_words();
        self.losses.end();
        Ok(())
    }

    /// Records a reason why the trial cannot end.
    pub fn gives_up(&self, why: String) {
        self.referee.violate(why);
    }

    /// Waits for the clients, and audits the locks: every lock can be taken, has intact words, and
    /// is free afterwards.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn finish<S: LockSystem>(
        mut self,
        machines: &dyn Machines,
    ) -> Result<TrialResult, TrialError> {
        let mut verdict = TrialResult::default();
        let mut awaited: Vec<Claimant> = self.cores.iter().map(|(life, _)| *life).collect();
        while !awaited.is_empty() {
            let Some((life, report)) = machines.wait(&self.reports) else {
                self.referee.violate(format!("the clients do not end: {awaited:?}"));
                break;
            };
            // A node may have reported before its crash.
            if let Some(index) = awaited.iter().position(|other| *other == life) {
                awaited.swap_remove(index);
            }
            verdict.counts += report.counts;
            verdict.transfers += report.transfers;
            verdict.refused += report.refused;
            verdict.lost += report.lost;
            verdict.late = verdict.late.max(report.late);
        }
        if awaited.is_empty() {
            let make = Arc::clone(&self.make);
            let make = make.downcast_ref::<Make<S>>().expect("it is of the system that began");
            self.run_aside(machines, make, async |context| client::audit(&context).await)?;
            self.check_tables();
        }
        self.is_over.store(true, Ordering::Release);
        for (member, core) in self.cores.drain(..) {
            if awaited.is_empty() && !machines.join(core) {
                self.referee.violate(format!("a client of {member:?} panicked"));
            }
        }
        verdict.violations = self.referee.violations();
        verdict.entered = self.referee.entered();
        verdict.together = self.referee.together();
        verdict.beside = self.referee.beside();
        verdict.upgraded = self.referee.upgraded();
        Ok(verdict)
    }

    /// Checks that in the end no client of a surviving node wants or holds a lock.
    fn check_tables(&self) {
        for (life, table) in &self.tables {
            let is_awaited = self.cores.iter().any(|(other, _)| other == life);
            let count = table.count();
            if is_awaited && count > 0 && !self.roster.is_settled(*life) {
                self.referee.violate(format!("{count} locks are in the table of {life:?}"));
            }
        }
    }
}

/// Offset of the two words beside a lock.
fn offset_of_words<S: LockSystem>(system: &S) -> u64 {
    system.object_bytes().max(WORDS)
}
