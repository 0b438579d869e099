//! The world: the cores of all nodes, and the loop that lets time pass.
//!
//! A [`World`] is made from a [`Config`], which is data; two worlds of equal configurations whose
//! cores run the same programs have the same history, and the same [`World::trace_hash`].
//!
//! # Cores
//! Each core is an [`Executor`] that the world turns when a completion, a message, a timer or a
//! foreign wake gives it something to do. A turn happens at one moment: the node's clock does not
//! move during it. What the turn did is charged as CPU time, verbs are posted when that much has
//! passed, and the core has its next turn when all has.
//!
//! # Outside of time
//! Only the world's own methods let time pass. A lane that is used while none of them runs, by
//! [`Executor::run`] on the caller's thread, sees its verbs take effect at once, free of faults:
//! that is for loading data before, and for checking it after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::fabric::SimFabric;
use super::faults::{Fault, FaultCounts, MemoryFate, Rates, Scheduled, When};
use super::profile::Profile;
use super::queue::picos;
use super::report::Report;
use super::state::{Next, State};
use super::trace::Tracer;
use crate::env::{Env, Nanos};
use crate::exec::Executor;
use crate::ids::NodeId;
use crate::transport::Wake;

/// How finely the verbs of different lanes interleave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Interleaving {
    /// Every verb takes effect at a moment of its own. For finding bugs.
    #[default]
    PerVerb,
    /// The verbs of one batch to one node take effect together, when the first one does; their
    /// times are counted as before. Fewer events, for measuring.
    PerBatch,
}

/// How much a run may take before it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Events.
    pub events: u64,
    /// Bytes of regions, and of messages in flight.
    pub bytes: u64,
    /// Virtual time since the world began.
    pub time: Duration,
}

impl Default for Limits {
    /// None.
    fn default() -> Self {
        Self { events: u64::MAX, bytes: u64::MAX, time: Duration::MAX }
    }
}

/// Everything that a world depends on.
#[derive(Clone, Debug)]
pub struct Config {
    /// Decides whatever is left to chance.
    pub seed: u64,
    /// How many nodes there are, numbered from zero.
    pub nodes: u16,
    /// NICs, links and cores.
    pub profile: Profile,
    /// What goes wrong by chance. Nothing by default.
    pub rates: Rates,
    /// What goes wrong by plan. Nothing by default.
    pub schedule: Vec<Scheduled>,
    /// How long an initiator waits for a verb that is held up: 4 ms by default, about what a
    /// reliable connection takes with small retry counts.
    pub verb_timeout: Duration,
    /// Verb by verb by default.
    pub interleaving: Interleaving,
    /// None by default.
    pub limits: Limits,
}

impl Config {
    /// A world without faults or limits.
    pub fn new(seed: u64, nodes: u16, profile: Profile) -> Self {
        Self {
            seed,
            nodes,
            profile,
            rates: Rates::default(),
            schedule: Vec::new(),
            verb_timeout: Duration::from_millis(4),
            interleaving: Interleaving::default(),
            limits: Limits::default(),
        }
    }

    /// Whether READs may be torn at any time.
    pub(super) fn tears_reads(&self) -> bool {
        let scheduled = self.schedule.iter().map(|entry| match &entry.fault {
            Fault::SetRates(rates) => rates.torn_reads,
            _ => 0.0,
        });
        scheduled.chain([self.rates.torn_reads]).any(|rate| rate > 0.0)
    }

    /// The nodes that the schedule names.
    fn scheduled_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.schedule.iter().flat_map(|entry| {
            let counted = match entry.when {
                When::At(_) => None,
                When::AfterVerbs { node, .. } | When::AfterMessages { node, .. } => Some(node),
            };
            entry.fault.nodes().chain(counted)
        })
    }
}

/// Why a world cannot be made or go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The schedule, or a fault, names a node that there is not; correct it.
    #[error("there is no node {0:?} in this world")]
    UnknownNode(NodeId),
    /// The run was stopped; raise [`Limits::events`], or look for what goes round in circles.
    #[error("stopped after {limit} events, at {at:?}")]
    TooManyEvents {
        /// As configured.
        limit: u64,
        /// The virtual time.
        at: Duration,
    },
    /// The run was stopped; raise [`Limits::bytes`], or look for what piles up.
    #[error("stopped because more than {limit} bytes are in use, at {at:?}")]
    TooMuchMemory {
        /// As configured.
        limit: u64,
        /// The virtual time.
        at: Duration,
    },
    /// The run was stopped; raise [`Limits::time`], or look for who makes no progress.
    #[error("stopped after {limit:?} of virtual time")]
    TooLong {
        /// As configured.
        limit: Duration,
    },
    /// Nothing is in flight, no timer is armed and every core sleeps: what is waited for will
    /// never happen.
    #[error("deadlock at {at:?}: nothing will ever happen")]
    Deadlock {
        /// The virtual time.
        at: Duration,
    },
}

/// Why a run has ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The time has come, or the condition has ceased to hold.
    Done,
    /// A node has crashed: its executors are gone. Run on when whoever cares has been told.
    Crashed(NodeId),
    /// A node is up again, without cores: give it new executors, then run on.
    Restarted(NodeId),
}

/// Names a core of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CoreId(u32);

/// See the module's essay. Lives on one thread.
pub struct World {
    fabric: SimFabric,
    /// By core number, less the number of the first.
    executors: Vec<Option<Executor>>,
    first_core: u32,
    woken: Arc<Woken>,
}

/// Cores whose executors were woken from outside.
#[derive(Default)]
struct Woken {
    cores: Mutex<Vec<u32>>,
    /// Whether there are any.
    any: AtomicBool,
}

/// What a core has left after its turn.
struct Rest {
    /// No task is ready.
    idle: bool,
    timer: Option<Nanos>,
}

/// Told by an executor of its foreign wakes.
struct CoreWake {
    woken: Arc<Woken>,
    core: u32,
}

impl Wake for CoreWake {
    fn wake(&self) {
        self.woken.cores.lock().unwrap_or_else(PoisonError::into_inner).push(self.core);
        self.woken.any.store(true, Ordering::Relaxed);
    }
}

impl World {
    /// A world at its beginning, without cores.
    ///
    /// # Errors
    /// `UnknownNode`, if the schedule names one.
    pub fn new(config: Config) -> Result<Self, SimError> {
        if let Some(node) = config.scheduled_nodes().find(|node| node.0 >= config.nodes) {
            return Err(SimError::UnknownNode(node));
        }
        Ok(Self::over(SimFabric::new(config)))
    }

    /// New cores for the fabric of an earlier world, whose cores are gone: time goes on.
    pub fn over(fabric: SimFabric) -> Self {
        let first_core = fabric.state().cores.len() as u32;
        Self { fabric, executors: Vec::new(), first_core, woken: Arc::default() }
    }

    /// The fabric: to register memory and open lanes, and for code inside to inject faults.
    pub fn fabric(&self) -> &SimFabric {
        &self.fabric
    }

    /// The clock and the randomness of a node.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn env(&self, node: NodeId) -> Env {
        self.fabric.env(node)
    }

    /// Makes `executor` a core of `node`. It has its first turn when the world runs.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn add_core(&mut self, node: NodeId, executor: Executor) -> CoreId {
        let mut state = self.fabric.state();
        assert!(state.has_node(node), "there is no node {node:?}");
        let core = state.add_core(node);
        drop(state);
        let woken = Arc::clone(&self.woken);
        executor.on_foreign_wake(Arc::new(CoreWake { woken, core }));
        self.executors.push(Some(executor));
        CoreId(core)
    }

    /// The executor of a core, to spawn tasks on. `None` once its node has crashed.
    pub fn executor(&mut self, core: CoreId) -> Option<&mut Executor> {
        self.executors.get_mut(core.0.checked_sub(self.first_core)? as usize)?.as_mut()
    }

    /// Takes a core away, with its executor. What its lanes have in flight runs to its end.
    /// `None` if its node has crashed.
    pub fn remove_core(&mut self, core: CoreId) -> Option<Executor> {
        let index = core.0.checked_sub(self.first_core)? as usize;
        let executor = self.executors.get_mut(index)?.take()?;
        self.fabric.state().cores[core.0 as usize].alive = false;
        Some(executor)
    }

    /// Virtual time since the world began.
    pub fn now(&self) -> Duration {
        self.fabric.now()
    }

    /// Runs until `time` since the world began.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn run_until(&mut self, time: Duration) -> Result<Stop, SimError> {
        self.run(time, || true)
    }

    /// Runs for `span` from now on.
    ///
    /// # Errors
    /// A limit is exceeded.
    pub fn run_for(&mut self, span: Duration) -> Result<Stop, SimError> {
        self.run_until(self.now().saturating_add(span))
    }

    /// Runs as long as `condition` holds; it is asked before every turn of a core.
    ///
    /// # Errors
    /// A limit is exceeded, or nothing will ever happen.
    pub fn run_while(&mut self, condition: impl FnMut() -> bool) -> Result<Stop, SimError> {
        self.run(Duration::MAX, condition)
    }

    fn run(
        &mut self,
        until: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<Stop, SimError> {
        self.wake_all();
        if !condition() {
            return Ok(Stop::Done);
        }
        let limit = self.fabric.state().limits.time;
        let end = picos(until.min(limit));
        let mut next = self.fabric.state().run(end)?;
        while let Next::Turn(core) = next {
            let rest = self.turn(core);
            let go_on = condition();
            let mut state = self.fabric.state();
            self.end_turn(&mut state, core, rest);
            if !go_on {
                return Ok(Stop::Done);
            }
            next = state.run(end)?;
        }
        self.stop(next, until, limit)
    }

    /// Why there is no further turn.
    fn stop(&mut self, next: Next, until: Duration, limit: Duration) -> Result<Stop, SimError> {
        match next {
            Next::Crash(node, memory) => {
                self.crash(node, memory)?;
                return Ok(Stop::Crashed(node));
            }
            Next::Restart(node) => {
                self.restart(node)?;
                return Ok(Stop::Restarted(node));
            }
            Next::Nothing if until == Duration::MAX => {
                return Err(SimError::Deadlock { at: self.now() });
            }
            Next::Nothing => self.fabric.state().set_time(picos(until.min(limit))),
            Next::Reached | Next::Turn(_) => {}
        }
        if until <= limit { Ok(Stop::Done) } else { Err(SimError::TooLong { limit }) }
    }

    /// Executors may have been given tasks since the world last ran.
    fn wake_all(&mut self) {
        for (core, executor) in (self.first_core..).zip(&self.executors) {
            // Asked without the lock: their lanes take it.
            if executor.as_ref().is_some_and(|executor| !executor.is_idle()) {
                self.fabric.state().wake_core(core);
            }
        }
    }

    /// Gives a core its turn, if it has not gone.
    #[inline]
    fn turn(&mut self, core: u32) -> Option<Rest> {
        let executor = self.executors.get_mut((core - self.first_core) as usize)?.as_mut()?;
        // Once to take in what has come, once to run the tasks that waited for it.
        if executor.turn() {
            executor.turn_of_tasks();
        }
        Some(Rest { idle: executor.tasks_are_idle(), timer: executor.next_timer() })
    }

    #[inline]
    fn end_turn(&self, state: &mut State, core: u32, rest: Option<Rest>) {
        let Some(Rest { idle, timer }) = rest else { return };
        state.end_turn(core, idle, timer);
        if self.woken.any.swap(false, Ordering::Relaxed) {
            let mut woken = self.woken.cores.lock().unwrap_or_else(PoisonError::into_inner);
            woken.drain(..).for_each(|core| state.wake_core(core));
        }
    }

    /// Ends the processes of a node now, between two events. Its executors are dropped; of the
    /// verbs that they have in flight some land and some do not, as the seed says. Until it is
    /// restarted the node answers nobody.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn crash(&mut self, node: NodeId, memory: MemoryFate) -> Result<(), SimError> {
        let mut state = self.fabric.known(node)?;
        let mut gone = Vec::new();
        for (executor, core) in self.executors.iter_mut().zip(self.first_core..) {
            let core = &mut state.cores[core as usize];
            if core.node == node {
                core.alive = false;
                gone.push(executor.take());
            }
        }
        drop(state);
        // Without the lock: their lanes close themselves.
        drop(gone);
        self.fabric.state().crash(node, memory);
        Ok(())
    }

    /// Lets a crashed node be reached again. Connections from before stay broken. Give it new
    /// executors with [`World::add_core`]; register its regions again if its memory was lost.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn restart(&mut self, node: NodeId) -> Result<(), SimError> {
        self.fabric.known(node)?.restart(node);
        Ok(())
    }

    /// How often a node was restarted; `None` while it is down.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn restarts(&self, node: NodeId) -> Option<u64> {
        let mut state = self.fabric.state();
        let node = state.node(node);
        node.up.then_some(node.restarts)
    }

    /// Lets a fault happen; crashes and restarts when the world runs next.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn inject(&self, fault: Fault) -> Result<(), SimError> {
        self.fabric.inject(fault)
    }

    /// Calls `tracer` for everything that happens from now on. It must not use the fabric.
    pub fn trace_to(&self, tracer: Tracer) {
        self.fabric.state().tracer = Some(tracer);
    }

    /// A hash over everything that has happened so far.
    pub fn trace_hash(&self) -> u64 {
        self.fabric.state().hash.value()
    }

    /// How many events there have been.
    pub fn events(&self) -> u64 {
        self.fabric.state().events
    }

    /// What has gone wrong so far.
    pub fn faults(&self) -> FaultCounts {
        self.fabric.state().counts.clone()
    }

    /// Starts what [`World::report`] covers anew, after a warm-up for instance.
    pub fn start_measuring(&self) {
        Report::start(&mut self.fabric.state());
    }

    /// How busy everything was since the world began, or was last told to start measuring.
    pub fn report(&self) -> Report {
        Report::of(&mut self.fabric.state())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let mut state = self.fabric.state();
        let cores = self.executors.len();
        let mine = state.cores.iter_mut().skip(self.first_core as usize).take(cores);
        mine.for_each(|core| core.alive = false);
    }
}

/// For the fabric: whether a fault has to wait for the world.
pub(super) fn waits_for_the_world(fault: &Fault) -> bool {
    matches!(fault, Fault::Crash { .. } | Fault::Restart { .. })
}

/// For the fabric: lets a fault happen as soon as the world runs.
pub(super) fn schedule_now(state: &mut State, fault: Fault) {
    let entry = state.schedule.len() as u32;
    let when = When::At(state.time());
    state.schedule.push(Scheduled { when, fault });
    state.queue.push(state.now, super::queue::Event::Fault(entry));
}
