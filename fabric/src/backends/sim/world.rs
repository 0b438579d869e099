//! The world: the nodes' cores, and the loop that advances time.
//!
//! A [`World`] is made from a [`Config`], which is data; two worlds with equal configurations,
//! whose cores run the same programs, have the same history and the same [`World::trace_hash`].
//!
//! # Cores
//! A core is an [`Executor`] that the world turns when a completion, a message, a timer or a
//! foreign wake gives the executor work. A turn happens at one moment: the node's clock does not
//! move during the turn. The turn's work is charged as CPU time; a verb is posted after the CPU
//! time charged so far, and the core's next turn comes after the whole charged time.
//!
//! # Outside of time
//! Only the world's own methods advance time. For a lane that is used outside of these methods, by
//! [`Executor::run`] on the caller's thread, verbs take effect and reconnects are answered at once,
//! without faults: for loading data before a run, and checking data afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::fabric::SimFabric;
use super::faults::{Fault, FaultCounts, MemoryFate, Rates, Scheduled, When};
use super::profile::Profile;
use super::queue::picos;
use super::report;
use super::state::{Next, State};
use super::trace::Tracer;
use crate::contract::ids::NodeId;
use crate::contract::transport::Wake;
use crate::run::env::{Env, Nanos};
use crate::run::exec::Executor;
use crate::run::utilisation::Report;

/// Granularity at which the verbs of different lanes interleave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Interleaving {
    /// Every verb takes effect at a separate moment. For finding bugs.
    #[default]
    PerVerb,
    /// A batch's verbs to one node take effect together with the first verb; durations are counted
    /// as in `PerVerb`. Fewer events, for measuring.
    PerBatch,
}

/// Limits of a run; a run that exceeds a limit is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of events.
    pub events: u64,
    /// Bytes of regions, and of messages in flight.
    pub bytes: u64,
    /// Virtual time since the world began.
    pub time: Duration,
}

impl Default for Limits {
    /// No limits.
    fn default() -> Self {
        Self { events: u64::MAX, bytes: u64::MAX, time: Duration::MAX }
    }
}

/// The complete input of a world: equal configurations give equal runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of nodes, numbered from zero.
    pub nodes: u16,
    /// Nodes that are switches: their programs stand for packet pipelines. None by default. A
    /// message to or from a switch takes half of the delay between two nodes; messages occupy
    /// neither core nor NIC of the switch; and a switch's messages leave after the time of the
    /// profile's pipeline ([`Profile::switch_pipeline`]), or at once if the profile has none. Loss,
    /// duplication and delay apply to a switch's messages as usual. A switch registers no memory,
    /// and posts no verbs.
    pub switches: Vec<NodeId>,
    /// Model of NICs, links and cores.
    pub profile: Profile,
    /// Rates of random faults. None by default.
    pub rates: Rates,
    /// Scheduled faults. None by default.
    pub schedule: Vec<Scheduled>,
    /// Time for which an initiator waits for a held-up verb: 4 ms by default, about the limit of a
    /// reliable connection with small retry counts.
    pub verb_timeout: Duration,
    /// `PerVerb` by default.
    pub interleaving: Interleaving,
    /// No limits by default.
    pub limits: Limits,
}

impl Config {
    /// Configures a world without faults or limits.
    pub fn new(seed: u64, nodes: u16, profile: Profile) -> Self {
        Self {
            seed,
            nodes,
            switches: Vec::new(),
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

    /// Returns the nodes named in the schedule, and the switches.
    fn named_nodes(&self) -> impl Iterator<Item = NodeId> {
        let scheduled = self.schedule.iter().flat_map(|entry| {
            let counted = match entry.when {
                When::At(_) => None,
                When::AfterVerbs { node, .. } | When::AfterMessages { node, .. } => Some(node),
            };
            entry.fault.nodes().chain(counted)
        });
        scheduled.chain(self.switches.iter().copied())
    }
}

/// Reason why a world cannot be made or go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The schedule, a fault, or the list of switches names an unknown node; correct the name.
    #[error("there is no node {0:?} in this world")]
    UnknownNode(NodeId),
    /// The run was stopped; raise [`Limits::events`], or look for an endless loop.
    #[error("stopped after {limit} events, at {at:?}")]
    TooManyEvents {
        /// The configured limit.
        limit: u64,
        /// Virtual time of the stop.
        at: Duration,
    },
    /// The run was stopped; raise [`Limits::bytes`], or look for data that piles up.
    #[error("stopped because more than {limit} bytes are in use, at {at:?}")]
    TooMuchMemory {
        /// The configured limit.
        limit: u64,
        /// Virtual time of the stop.
        at: Duration,
    },
    /// The run was stopped; raise [`Limits::time`], or look for a task that makes no progress.
    #[error("stopped after {limit:?} of virtual time")]
    TooLong {
        /// The configured limit.
        limit: Duration,
    },
    /// Nothing is in flight, no timer is armed and every core sleeps: the caller's condition can no
    /// longer change.
    #[error("deadlock at {at:?}: nothing will ever happen")]
    Deadlock {
        /// Virtual time of the stop.
        at: Duration,
    },
}

/// Reason why a run has ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The time has been reached, or the condition no longer holds.
    Done,
    /// A node has crashed, and the node's executors are gone. React, then run on.
    Crashed(NodeId),
    /// A node is up again, without cores: add new executors, then run on.
    Restarted(NodeId),
}

/// Identifies a core of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CoreId(u32);

/// A simulated cluster on virtual time. Lives on one thread.
pub struct World {
    fabric: SimFabric,
    /// By core number minus `first_core`.
    executors: Vec<Option<Executor>>,
    first_core: u32,
    woken: Arc<Woken>,
}

/// Cores woken by foreign wakers.
#[derive(Default)]
struct Woken {
    cores: Mutex<Vec<u32>>,
    /// Whether `cores` may be non-empty.
    any: AtomicBool,
}

/// State of a core after its turn.
struct Rest {
    /// No task is ready.
    idle: bool,
    timer: Option<Nanos>,
}

/// Listener for the foreign wakes of a core's executor.
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
    /// Makes a world at time zero, without cores.
    ///
    /// # Errors
    /// `UnknownNode`, if the schedule or the list of switches names an unknown node.
    pub fn new(config: Config) -> Result<Self, SimError> {
        if let Some(node) = config.named_nodes().find(|node| node.0 >= config.nodes) {
            return Err(SimError::UnknownNode(node));
        }
        Ok(Self::over(SimFabric::new(config)))
    }

    /// Makes a world over the fabric of an earlier world, whose cores are gone. Time continues.
    pub fn over(fabric: SimFabric) -> Self {
        let first_core = fabric.state().cores.len() as u32;
        Self { fabric, executors: Vec::new(), first_core, woken: Arc::default() }
    }

    /// Returns the fabric, which registers memory, opens lanes, and lets simulated code inject
    /// faults.
    pub fn fabric(&self) -> &SimFabric {
        &self.fabric
    }

    /// Returns the clock and randomness of a node.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn env(&self, node: NodeId) -> Env {
        self.fabric.env(node)
    }

    /// Makes `executor` a core of `node`. The core's first turn comes when the world runs.
    ///
    /// # Panics
    /// If the node does not exist.
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

    /// Returns the executor of a core, for spawning tasks. `None` once the core's node has crashed.
    pub fn executor(&mut self, core: CoreId) -> Option<&mut Executor> {
        self.executors.get_mut(core.0.checked_sub(self.first_core)? as usize)?.as_mut()
    }

    /// Removes a core and returns the core's executor. Verbs in flight on the executor's lanes
    /// still complete. `None` if the core's node has crashed.
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

    /// Runs as long as `condition` holds; checked before the first turn and after each turn.
    ///
    /// # Errors
    /// A limit is exceeded, or `Deadlock`.
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

    /// Returns the result of a run without further turns.
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

    /// Wakes the cores that got tasks since the world last ran.
    fn wake_all(&mut self) {
        for (core, executor) in (self.first_core..).zip(&self.executors) {
            // Checked without the state's lock, because the executors' lanes take the lock.
            if executor.as_ref().is_some_and(|executor| !executor.is_idle()) {
                self.fabric.state().wake_core(core);
            }
        }
    }

    /// Runs a turn of a core; `None` if the core is gone.
    #[inline]
    fn turn(&mut self, core: u32) -> Option<Rest> {
        let executor = self.executors.get_mut((core - self.first_core) as usize)?.as_mut()?;
        // First takes in completions and messages, then runs the waiting tasks.
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

    /// Crashes a node now, between two events: the node's processes end. The node's executors are
    /// dropped; the seed decides which verbs in flight still land. The node answers no other node
    /// until restarted.
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
        state.crash(node, memory);
        drop(state);
        // Dropped without the lock: the executors' lanes close themselves. Verbs that tasks post
        // while being dropped come from a node that is down.
        drop(gone);
        Ok(())
    }

    /// Makes a crashed node reachable again. Older connections stay broken. Give the node new
    /// executors with [`World::add_core`]; register regions again if the memory was lost.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn restart(&mut self, node: NodeId) -> Result<(), SimError> {
        self.fabric.known(node)?.restart(node);
        Ok(())
    }

    /// Returns the number of restarts of a node; `None` while the node is down.
    ///
    /// # Panics
    /// If the node does not exist.
    pub fn restarts(&self, node: NodeId) -> Option<u64> {
        let mut state = self.fabric.state();
        let node = state.node(node);
        node.up.then_some(node.restarts)
    }

    /// Injects a fault; crashes and restarts happen when the world next runs.
    ///
    /// # Errors
    /// `UnknownNode`.
    pub fn inject(&self, fault: Fault) -> Result<(), SimError> {
        self.fabric.inject(fault)
    }

    /// Calls `tracer` for every event from now on. The tracer must not use the fabric.
    pub fn trace_to(&self, tracer: Tracer) {
        self.fabric.state().tracer = Some(tracer);
    }

    /// Returns the hash over the run so far.
    pub fn trace_hash(&self) -> u64 {
        self.fabric.state().hash.value()
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.fabric.state().events
    }

    /// Counts of the faults so far.
    pub fn faults(&self) -> FaultCounts {
        self.fabric.state().counts.clone()
    }

    /// Starts a new measuring period for [`World::report`], for instance after a warm-up.
    pub fn start_measuring(&self) {
        report::start(&mut self.fabric.state());
    }

    /// Returns the utilisation of all resources in the current measuring period.
    pub fn report(&self) -> Report {
        report::of(&mut self.fabric.state())
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

/// Whether only the world can carry out the fault.
pub(super) fn waits_for_the_world(fault: &Fault) -> bool {
    matches!(fault, Fault::Crash { .. } | Fault::Restart { .. })
}

/// Schedules a fault for the world's next run.
pub(super) fn schedule_now(state: &mut State, fault: Fault) {
    let entry = state.schedule.len() as u32;
    let when = When::At(state.time());
    state.schedule.push(Scheduled { when, fault });
    state.queue.push(state.now, super::queue::Event::Fault(entry));
}
