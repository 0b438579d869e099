//! Trials: clients take and release a few locks for a while, and judges watch them.
//!
//! # What it is
//! The load and the judges of the conformance suite, of simulated campaigns, and of benchmarks'
//! audits. A client that holds a lock to write reads two words beside it, writes the first, then the
//! second; one that reads compares them. So two holders at once show in the words, also where no
//! judge in this process can see them.
//!
//! # What it is not
//! It injects no faults: the caller stops, pauses and expels nodes while the trial runs.
//!
//! `referee`: the judges; `client`: what each client does.

mod client;
mod referee;

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Machines, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::transport::FabricError;

use crate::client::{Client, Identity, Limits, Roster, Wait};
use crate::contract::{Counts, LockSpace, LockSystem, Member, SpaceError};
use crate::word::Mode;
use client::Seat;
pub use referee::Referee;

/// Region that holds the locks, and the words beside them.
pub const REGION: RegionId = RegionId(0);
/// Bytes of a lock object and the two words beside it.
const STRIDE: u64 = 32;
/// Offset of those two words.
const WORDS: u64 = 16;
/// Service by which lanes tell one another of resets.
const SERVICE: Service = Service(0);
/// Time that the audit waits for a lock. Longer than any reset takes.
const AUDIT: Duration = Duration::from_secs(5);

/// Shape of a trial.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The memory node.
    pub memory: NodeId,
    /// Compute nodes; the last one only audits.
    pub nodes: Vec<NodeId>,
    /// Lanes of each compute node.
    pub lanes: u16,
    /// Clients of each lane.
    pub clients: u16,
    /// Number of locks.
    pub locks: u64,
    /// Share of requests that read.
    pub shared: f64,
    /// Requests of each client.
    pub rounds: u32,
    /// Share of requests that do not wait, of those that wait for a short time only, and of those
    /// that are dropped after a random time.
    pub refusing: f64,
    /// See `refusing`.
    pub hurried: f64,
    /// See `refusing`.
    pub dropped: f64,
    /// The longest of those short times.
    pub hurry: Duration,
    /// The longest time for which a lock is held, beside that of the verbs.
    pub hold: Duration,
    /// The longest time between two requests.
    pub think: Duration,
    /// The largest number of lease terms.
    pub terms: u16,
    /// Words with which the locks begin, for counters that are about to be used up.
    pub first_word: u64,
}

impl Settings {
    /// Two compute nodes with one lane of three clients each, and two locks; half of the requests
    /// read, and all of them wait.
    pub fn small(memory: NodeId, nodes: Vec<NodeId>) -> Self {
        Self {
            memory,
            nodes,
            lanes: 1,
            clients: 3,
            locks: 2,
            shared: 0.5,
            rounds: 40,
            refusing: 0.0,
            hurried: 0.0,
            dropped: 0.0,
            hurry: Duration::from_micros(20),
            hold: Duration::from_micros(5),
            think: Duration::from_micros(5),
            terms: 1,
            first_word: 0,
        }
    }
}

/// Reason why a trial could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrialError {
    /// The locks have no place.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The fabric refuses.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system has no thread left.
    #[error("cannot start a core: {0}")]
    Core(#[from] io::Error),
    /// There are more nodes than locks can name.
    #[error("locks name at most {} nodes", crate::Waiter::MAX_NODE)]
    TooManyNodes,
}

/// What became of a trial.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// What must not have been.
    pub violations: Vec<String>,
    /// Counts of all lanes that lived to the end.
    pub counts: Counts,
    /// Locks entered, by all clients.
    pub entered: u64,
    /// Requests that were refused or ended at their deadline.
    pub refused: u64,
    /// Locks that their holder had lost when it released them, according to the release.
    pub lost: u64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { retries, ghosts, resets, .. } = self.counts;
        let (entered, refused) = (self.entered, self.refused);
        write!(f, "{entered} held, {refused} refused, {retries} retries, {ghosts} ghosts, {resets} resets")?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n{violation}"))
    }
}

/// What one lane reports.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    counts: Counts,
    refused: u64,
    lost: u64,
}

/// A trial that runs.
pub struct Trial<M: Machines> {
    settings: Settings,
    space: LockSpace,
    roster: Roster,
    referee: Arc<Referee>,
    members: Vec<Member>,
    cores: Vec<(NodeId, M::Core)>,
    reports: Receiver<(NodeId, Report)>,
    sender: Sender<(NodeId, Report)>,
    is_over: Arc<AtomicBool>,
    lost: Vec<NodeId>,
    make: Arc<dyn std::any::Any + Send + Sync>,
}

/// Constructor of a lock system, for each lane.
pub type Make<S> = Arc<dyn Fn() -> S + Send + Sync>;

impl<M: Machines> Trial<M> {
    /// Registers the memory and starts the clients.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn start<S: LockSystem>(
        machines: &M,
        settings: Settings,
        make: Make<S>,
    ) -> Result<Self, TrialError> {
        let base = RemoteAddr::new(settings.memory, REGION, 0);
        let space = LockSpace::new(base, STRIDE, STRIDE, settings.locks)?;
        let bytes = space.bytes().next_multiple_of(4096);
        machines.fabric().register(settings.memory, REGION, bytes, Rights::ALL)?;
        let (sender, reports) = async_channel::unbounded();
        let mut trial = Self {
            space,
            roster: Roster::default(),
            referee: Arc::new(Referee::new(settings.locks)),
            members: Vec::new(),
            cores: Vec::new(),
            reports,
            sender,
            is_over: Arc::default(),
            lost: Vec::new(),
            make: Arc::new(Arc::clone(&make)),
            settings,
        };
        let clients = trial.settings.nodes.len().saturating_sub(1);
        let nodes = trial.settings.nodes[..clients].to_vec();
        for node in nodes {
            trial.start_node(machines, node, &make)?;
        }
        Ok(trial)
    }

    /// Makes a node a member, and starts its lanes; also one that was expelled before.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn start_node<S: LockSystem>(
        &mut self,
        machines: &M,
        node: NodeId,
        make: &Make<S>,
    ) -> Result<(), TrialError> {
        let member = self.roster.join(node, self.settings.lanes);
        let member = member.ok_or(TrialError::TooManyNodes)?;
        self.members.push(member);
        self.lost.retain(|lost| *lost != node);
        for lane in 0..self.settings.lanes {
            let program = self.program(machines, member, lane, make);
            let core = machines.start(node, &format!("lane-{}-{lane}", node.0), program)?;
            self.cores.push((node, core));
        }
        Ok(())
    }

    fn program<S: LockSystem>(
        &self,
        machines: &M,
        member: Member,
        lane: u16,
        make: &Make<S>,
    ) -> Program {
        let (settings, space) = (self.settings.clone(), self.space);
        let (roster, referee) = (self.roster.clone(), Arc::clone(&self.referee));
        let (sender, is_over) = (self.sender.clone(), Arc::clone(&self.is_over));
        let (fabric, make) = (machines.fabric(), Arc::clone(make));
        Box::new(move |executor| {
            let at = Endpoint { node: member.node, lane: LaneId(lane) };
            let epoch = Epoch(member.life.incarnation());
            let transport = fabric
                .open_lane(at, epoch, executor.handle().waker())
                .unwrap_or_else(|error| panic!("no lane at {at:?}: {error}"));
            let lane = Lane::new(at, executor.handle().clone(), transport);
            executor.add_driver(lane.driver());
            let rpc = Rpc::new(lane.clone());
            let identity = Identity { member, peers: Rc::new(roster), service: SERVICE };
            let client = Client::new(make(), rpc, identity);
            let seat = Seat { client, lane, member, space, referee, settings };
            Box::pin(async move {
                let timer = seat.lane.executor().clone();
                let report = client::run(seat).await;
                // Received by nobody if the trial was given up.
                let _ = sender.send((member.node, report)).await;
                // Its answers to resets are needed until all have ended.
                while !is_over.load(Ordering::Acquire) {
                    timer.sleep(Duration::from_micros(100)).await;
                }
            })
        })
    }

    /// The members that were started, in the order of their starts.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Takes note that a node is out. The caller has made sure that nothing of it reaches the
    /// memory any more: it has fenced it there, at the epoch of [`Self::next_epoch`], if the locks
    /// are fenced.
    pub fn expel(&mut self, node: NodeId) {
        self.roster.settle(node);
        let lives = self.members.iter().filter(|member| member.node == node);
        lives.for_each(|member| self.referee.expel(member.life));
        self.lost.push(node);
    }

    /// Epoch below which an expelled node is refused: above that of all who are members now.
    pub fn next_epoch(&self) -> Epoch {
        let epochs = self.members.iter().map(|member| member.life.incarnation());
        Epoch(epochs.max().unwrap_or(0) + 1)
    }

    /// Whether every lane that is not lost has reported.
    pub fn has_ended(&self) -> bool {
        let lost = |node: &NodeId| self.lost.contains(node);
        let alive = self.cores.iter().filter(|(node, _)| !lost(node)).count();
        self.reports.len() >= alive
    }

    /// Waits for the clients, and audits the locks: each can be taken, what it protects is whole,
    /// and it is free afterwards.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn finish<S: LockSystem>(mut self, machines: &M) -> Result<Verdict, TrialError> {
        let mut verdict = Verdict::default();
        let lost = self.lost.clone();
        let mut awaited = self.cores.iter().filter(|(node, _)| !lost.contains(node)).count();
        while awaited > 0 {
            let Some((node, report)) = machines.wait(&self.reports) else {
                self.referee.violate("the clients do not end".to_owned());
                break;
            };
            awaited -= usize::from(!lost.contains(&node));
            verdict.counts += report.counts;
            verdict.refused += report.refused;
            verdict.lost += report.lost;
        }
        let make = Arc::clone(&self.make);
        let make = make.downcast_ref::<Make<S>>().expect("it is of the system that was started");
        self.audit(machines, make)?;
        self.is_over.store(true, Ordering::Release);
        for (node, core) in self.cores.drain(..) {
            if !machines.join(core) && !lost.contains(&node) {
                self.referee.violate(format!("a client of node {} panicked", node.0));
            }
        }
        verdict.violations = self.referee.violations();
        verdict.entered = self.referee.entered();
        Ok(verdict)
    }

    fn audit<S: LockSystem>(&mut self, machines: &M, make: &Make<S>) -> Result<(), TrialError> {
        let node = *self.settings.nodes.last().expect("there is a node that audits");
        let member = self.roster.join(node, 1).ok_or(TrialError::TooManyNodes)?;
        let auditor = Settings { lanes: 1, clients: 0, ..self.settings.clone() };
        let clients = std::mem::replace(&mut self.settings, auditor);
        let (done, ended) = async_channel::bounded(1);
        let (fabric, make) = (machines.fabric(), Arc::clone(make));
        let (roster, referee) = (self.roster.clone(), Arc::clone(&self.referee));
        let space = self.space;
        let program: Program = Box::new(move |executor| {
            let at = Endpoint { node, lane: LaneId(0) };
            let epoch = Epoch(member.life.incarnation());
            let transport = fabric
                .open_lane(at, epoch, executor.handle().waker())
                .unwrap_or_else(|error| panic!("no lane at {at:?}: {error}"));
            let lane = Lane::new(at, executor.handle().clone(), transport);
            executor.add_driver(lane.driver());
            let rpc = Rpc::new(lane.clone());
            let identity = Identity { member, peers: Rc::new(roster), service: SERVICE };
            let client = Client::new(make(), rpc, identity);
            let seat = Seat { client, lane, member, space, referee, settings: clients };
            Box::pin(async move {
                client::audit(&seat, AUDIT).await;
                let _ = done.send(()).await;
            })
        });
        let core = machines.start(node, "audit", program)?;
        let ended = machines.wait(&ended);
        if !machines.join(core) || ended.is_none() {
            self.referee.violate("the audit did not end".to_owned());
        }
        Ok(())
    }
}

/// Limits of a request of a client.
fn limits(wait: Wait, terms: u16) -> Limits {
    Limits { wait, terms }
}

/// Words beside a lock.
fn words_of(object: RemoteAddr) -> RemoteAddr {
    object.plus(WORDS)
}

/// Mode of a request, from a random number.
fn mode(shared: bool) -> Mode {
    if shared { Mode::Shared } else { Mode::Exclusive }
}
