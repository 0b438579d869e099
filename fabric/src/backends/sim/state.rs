//! The state of a world: nodes, lanes, connections, everything in flight, and the event loop up to
//! a core's turn.
//!
//! # Ownership
//! The state is one value behind one lock, shared by the world, the fabric and the lanes. Only
//! executors are outside, in the world, and stay on the world's thread. The lock is never held
//! while an executor runs, and never contended: a world has one thread.
//!
//! Verbs are handled in `verbs` and `connection`, messages in `messages`, faults in `inject`, in
//! separate `impl State` blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rand::Rng;
use slab::Slab;

use super::SimError;
use super::connection::{Connection, Leg, Straggler};
use super::faults::{Chances, FaultCounts, MemoryFate, Scheduled};
use super::memory::Regions;
use super::messages::Message;
use super::nic::{NORMAL_PERCENT, Nic, slowed};
use super::profile::Costs;
use super::queue::{Event, NEVER, PICOS_PER_NANO, Picos, Queue, TraceHash, duration, picos};
use super::trace::{TraceEvent, TraceEventKind, Tracer};
use super::verbs::{Batch, FreshLeg};
use super::world::{Config, Interleaving, Limits};
use crate::contract::ids::{Endpoint, Epoch, NodeId};
use crate::contract::transport::Token;
use crate::contract::verbs::{VerbError, Work};
use crate::run::env::{Clock, Env, Nanos, SmallRng};

/// Index for "no core, lane, leg ...".
pub(super) const NONE: u32 = u32::MAX;
/// Reading of every clock at time zero. Not zero, because zero means "never" in many places.
const CLOCK_AT_START: u64 = 1_000_000_000;

const MILLION: u64 = 1_000_000;

/// The clock of one node.
pub(super) struct NodeClock {
    /// Nanoseconds since the world began, in a word shared by all nodes.
    world: Arc<AtomicU64>,
    offset: AtomicI64,
    /// Nanoseconds gained in a millisecond, and the world's time at which the rate was set.
    ppm: AtomicI64,
    rated: AtomicU64,
    /// Reading before the last jump: a clock that was set back stands still until it is reached.
    floor: AtomicU64,
    /// Transactions begun in the current turn.
    transactions: AtomicU64,
}

// Relaxed throughout: a world has one thread.
impl Clock for NodeClock {
    #[inline]
    fn now(&self) -> Nanos {
        let world = self.world.load(Ordering::Relaxed);
        let offset = self.offset.load(Ordering::Relaxed).saturating_add(self.gained(world));
        let shown = (CLOCK_AT_START + world).saturating_add_signed(offset);
        Nanos(shown.max(self.floor.load(Ordering::Relaxed)))
    }

    #[inline]
    fn transaction_begins(&self) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
    }
}

impl NodeClock {
    fn new(world: Arc<AtomicU64>) -> Self {
        let (offset, floor, transactions) = <(AtomicI64, AtomicU64, AtomicU64)>::default();
        let (ppm, rated) = <(AtomicI64, AtomicU64)>::default();
        Self { world, offset, ppm, rated, floor, transactions }
    }

    /// Nanoseconds gained since the rate was set.
    #[inline]
    fn gained(&self, world: u64) -> i64 {
        let ppm = self.ppm.load(Ordering::Relaxed);
        if ppm == 0 {
            return 0;
        }
        let elapsed = world - self.rated.load(Ordering::Relaxed);
        (i128::from(elapsed) * i128::from(ppm) / i128::from(MILLION)) as i64
    }

    pub(super) fn set_rate(&self, ppm: i32) {
        let world = self.world.load(Ordering::Relaxed);
        self.offset.fetch_add(self.gained(world), Ordering::Relaxed);
        self.rated.store(world, Ordering::Relaxed);
        self.ppm.store(ppm.into(), Ordering::Relaxed);
    }

    pub(super) fn jump(&self, nanos: i64) {
        self.floor.store(self.now().0, Ordering::Relaxed);
        let offset = self.offset.load(Ordering::Relaxed).saturating_add(nanos);
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// World time at which the clock will show `reading`.
    fn shows(&self, reading: Nanos) -> Picos {
        let offset = self.offset.load(Ordering::Relaxed);
        let gaining = reading.0.saturating_sub(CLOCK_AT_START).saturating_add_signed(-offset);
        let (ppm, rated) = (self.ppm.load(Ordering::Relaxed), self.rated.load(Ordering::Relaxed));
        let left = gaining.saturating_sub(rated);
        if ppm == 0 || left == 0 {
            return gaining.saturating_mul(PICOS_PER_NANO);
        }
        let rate = MILLION.saturating_add_signed(ppm);
        let left = (u128::from(left) * u128::from(MILLION)).div_ceil(u128::from(rate));
        let world = rated.saturating_add(u64::try_from(left).unwrap_or(u64::MAX));
        world.saturating_mul(PICOS_PER_NANO)
    }
}

/// Network path from one node to another.
#[derive(Clone, Default)]
pub(super) struct Path {
    pub(super) cut: bool,
    pub(super) stalled_until: Picos,
    /// Times of the first and last message that could not be acknowledged; `None` while messages
    /// can be acknowledged.
    pub(super) broken: Option<(Picos, Picos)>,
}

pub(super) struct SimNode {
    /// See [`Config::switches`].
    pub(super) is_switch: bool,
    pub(super) clock: Arc<NodeClock>,
    pub(super) nic: Nic,
    pub(super) regions: Regions,
    /// By initiating node: epoch below which verbs are refused.
    pub(super) fences: Vec<Epoch>,
    /// By target node.
    pub(super) paths: Vec<Path>,
    /// By lane number: index of the open lane.
    pub(super) lanes: Vec<u32>,
    pub(super) up: bool,
    pub(super) isolated: bool,
    /// Incremented by every crash: connections of an earlier life no longer work.
    pub(super) life: u32,
    /// Number of restarts.
    pub(super) restarts: u64,
    pub(super) paused_until: Picos,
    pub(super) core_percent: u32,
    /// Verbs that took effect, and messages sent.
    pub(super) verbs: u64,
    pub(super) messages: u64,
    /// Next counts at which a scheduled fault is due.
    pub(super) verbs_due: u64,
    pub(super) messages_due: u64,
}

/// Events that wait for a lane to be polled.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) completed: Vec<(Token, Box<Work>)>,
    pub(super) reconnected: Vec<(Token, Result<(), VerbError>)>,
    pub(super) messages: Vec<(Endpoint, Vec<u8>)>,
}

impl Inbox {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.completed.is_empty() && self.reconnected.is_empty() && self.messages.is_empty()
    }
}

pub(super) struct Lane {
    pub(super) at: Endpoint,
    pub(super) epoch: Epoch,
    /// The node's life in which the lane was opened.
    pub(super) life: u32,
    /// The core that polls the lane; known after the first poll.
    pub(super) core: u32,
    pub(super) open: bool,
    pub(super) inbox: Inbox,
}

/// The state's part of a core; the executor is in the world.
pub(super) struct Core {
    pub(super) node: NodeId,
    pub(super) alive: bool,
    /// Time of the next turn.
    due: Picos,
    /// Time of the pending event that checks whether the core's timer is due. Timers are seldom
    /// moved earlier, so one event serves all turns until then.
    alarm: Picos,
    busy_until: Picos,
    pub(super) busy: Picos,
}

/// The current turn, if any.
#[derive(Clone, Copy, Default)]
pub(super) struct Turn {
    pub(super) core: Option<u32>,
    /// CPU time charged so far.
    charged: Picos,
}

impl Turn {
    /// Charges CPU time to the core of the current turn.
    #[inline]
    pub(super) fn charge(&mut self, cpu: Picos) {
        self.charged += cpu;
    }
}

/// Separate streams of random numbers by purpose, so that an additional fault does not change the
/// jitter.
pub(super) struct Random {
    pub(super) jitter: SmallRng,
    pub(super) messages: SmallRng,
    pub(super) verbs: SmallRng,
    pub(super) tears: SmallRng,
    pub(super) crashes: SmallRng,
}

impl Random {
    fn new(env: &Env) -> Self {
        Self {
            jitter: env.rng(1),
            messages: env.rng(2),
            verbs: env.rng(3),
            tears: env.rng(4),
            crashes: env.rng(5),
        }
    }
}

/// All of a world's state except the executors.
pub(super) struct State {
    pub(super) now: Picos,
    pub(super) queue: Queue,
    pub(super) hash: TraceHash,
    pub(super) costs: Costs,
    pub(super) timeout: Picos,
    pub(super) interleaving: Interleaving,
    pub(super) nodes: Vec<SimNode>,
    /// Whether any node is a switch.
    pub(super) has_switches: bool,
    pub(super) lanes: Vec<Lane>,
    /// By lane, then by target node.
    pub(super) connections: Vec<Connection>,
    pub(super) cores: Vec<Core>,
    pub(super) turn: Turn,
    pub(super) batches: Slab<Batch>,
    pub(super) legs: Slab<Leg>,
    pub(super) stragglers: Slab<Straggler>,
    pub(super) reconnects: Slab<(u32, Token, Result<(), VerbError>)>,
    pub(super) messages: Slab<Message>,
    /// Message buffers for reuse.
    pub(super) spare: Vec<Vec<u8>>,
    /// Legs of the batch being posted.
    pub(super) fresh: Vec<FreshLeg>,
    pub(super) random: Random,
    pub(super) chances: Chances,
    pub(super) reads_may_tear: bool,
    pub(super) schedule: Vec<Scheduled>,
    /// Time at which a count last triggered a fault: the fault comes before the next verb.
    pub(super) interrupted_at: Picos,
    pub(super) counts: FaultCounts,
    pub(super) tracer: Option<Tracer>,
    pub(super) limits: Limits,
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) measured_since: Picos,
    world_clock: Arc<AtomicU64>,
}

/// Reason why the event loop returns to the world.
pub(super) enum Next {
    /// The core's turn has begun.
    Turn(u32),
    /// The end of the run is reached.
    Reached,
    /// No event is left.
    Nothing,
    /// A node crashes: the world must drop the node's cores.
    Crash(NodeId, MemoryFate),
    /// A node is up again.
    Restart(NodeId),
}

impl State {
    pub(super) fn new(config: Config) -> Self {
        let world_clock = Arc::new(AtomicU64::new(0));
        let nodes = usize::from(config.nodes);
        let node = |number| SimNode {
            is_switch: config.switches.contains(&NodeId(number)),
            clock: Arc::new(NodeClock::new(Arc::clone(&world_clock))),
            nic: Nic::new(),
            regions: Regions::new(),
            fences: vec![Epoch(0); nodes],
            paths: vec![Path::default(); nodes],
            lanes: Vec::new(),
            up: true,
            isolated: false,
            life: 0,
            restarts: 0,
            paused_until: 0,
            core_percent: match config.switches.contains(&NodeId(number)) {
                // CPU time charged to a switch takes no time.
                true => 0,
                false => NORMAL_PERCENT,
            },
            verbs: 0,
            messages: 0,
            verbs_due: u64::MAX,
            messages_due: u64::MAX,
        };
        let nodes = (0..config.nodes).map(node).collect();
        // Only the environment's randomness is used, not the clock.
        let env = Env::with_clock(Arc::new(NodeClock::new(Arc::clone(&world_clock))), config.seed);
        let reads_may_tear = config.tears_reads();
        let mut state = Self {
            now: 0,
            queue: Queue::default(),
            hash: TraceHash::new(config.seed),
            costs: config.profile.costs,
            timeout: picos(config.verb_timeout),
            interleaving: config.interleaving,
            nodes,
            has_switches: !config.switches.is_empty(),
            lanes: Vec::new(),
            connections: Vec::new(),
            cores: Vec::new(),
            turn: Turn::default(),
            batches: Slab::new(),
            legs: Slab::new(),
            stragglers: Slab::new(),
            reconnects: Slab::new(),
            messages: Slab::new(),
            spare: Vec::new(),
            fresh: Vec::new(),
            random: Random::new(&env),
            chances: Chances::new(config.rates),
            reads_may_tear,
            schedule: config.schedule,
            interrupted_at: NEVER,
            counts: FaultCounts::default(),
            tracer: None,
            limits: config.limits,
            events: 0,
            bytes: 0,
            measured_since: 0,
            world_clock,
        };
        state.arm_schedule();
        state
    }

    /// Processes events until a core has its turn, or time `until` is reached.
    pub(super) fn run(&mut self, until: Picos) -> Result<Next, SimError> {
        loop {
            match self.queue.next_at() {
                None => return Ok(Next::Nothing),
                Some(at) if at > until => {
                    self.set_time(until);
                    return Ok(Next::Reached);
                }
                Some(_) => {}
            }
            self.check_budgets()?;
            let (at, event) = self.queue.pop().expect("there is a next event");
            self.now = at;
            if let Event::Core(id) = event {
                self.rearm(id);
            }
            if self.is_stale(event) {
                continue;
            }
            self.events += 1;
            self.hash.add(at);
            self.hash.add(event.code());
            match event {
                Event::Core(core) if self.begin_turn(core) => return Ok(Next::Turn(core)),
                Event::Core(_) => {}
                Event::Connection(connection) => self.step(connection),
                Event::Completed(batch) => self.complete(batch),
                Event::Reconnected(reconnect) => self.reconnected(reconnect),
                Event::Message(message) => self.message_arrives(message),
                Event::Straggler(straggler) => self.straggler_arrives(straggler),
                Event::Fault(entry) => {
                    let fault = self.schedule[entry as usize].fault.clone();
                    if let Some(next) = self.inject(&fault) {
                        return Ok(next);
                    }
                }
            }
        }
    }

    /// Whether the event's subject has had an earlier event instead, or is gone. Neither the trace
    /// hash nor the event count includes stale events.
    #[inline]
    fn is_stale(&self, event: Event) -> bool {
        match event {
            Event::Core(id) => {
                let core = &self.cores[id as usize];
                core.due != self.now || !core.alive
            }
            Event::Connection(id) => self.connections[id as usize].due != self.now,
            _ => false,
        }
    }

    /// Sets a new alarm if the event is the core's alarm and the timer was since moved later.
    #[inline]
    fn rearm(&mut self, id: u32) {
        let core = &mut self.cores[id as usize];
        if core.alarm != self.now {
            return;
        }
        core.alarm = NEVER;
        if core.alive && core.due > self.now && core.due != NEVER {
            core.alarm = core.due;
            self.queue.push(core.due, Event::Core(id));
        }
    }

    #[inline]
    fn check_budgets(&self) -> Result<(), SimError> {
        if self.events >= self.limits.events {
            return Err(SimError::TooManyEvents { limit: self.limits.events, at: self.time() });
        }
        if self.bytes > self.limits.bytes {
            return Err(SimError::TooMuchMemory { limit: self.limits.bytes, at: self.time() });
        }
        Ok(())
    }

    /// Advances time without processing events.
    pub(super) fn set_time(&mut self, now: Picos) {
        self.now = self.now.max(now);
        self.world_clock.store(self.now / PICOS_PER_NANO, Ordering::Relaxed);
    }

    /// Time since the world began.
    pub(super) fn time(&self) -> std::time::Duration {
        duration(self.now)
    }

    pub(super) fn add_core(&mut self, node: NodeId) -> u32 {
        let (due, alarm, busy_until, busy) = (NEVER, NEVER, 0, 0);
        self.cores.push(Core { node, alive: true, due, alarm, busy_until, busy });
        let core = self.cores.len() as u32 - 1;
        self.wake_core(core);
        core
    }

    /// Schedules a turn of the core for the moment when the core is free.
    #[inline]
    pub(super) fn wake_core(&mut self, id: u32) {
        let Some(core) = self.cores.get_mut(id as usize) else { return };
        let at = core.busy_until.max(self.now);
        if core.alive && at < core.due {
            core.due = at;
            self.queue.push(at, Event::Core(id));
        }
    }

    /// Begins the turn of a due core. Returns false if the core's node is paused.
    #[inline]
    fn begin_turn(&mut self, id: u32) -> bool {
        let core = &mut self.cores[id as usize];
        let paused_until = self.nodes[usize::from(core.node.0)].paused_until;
        if paused_until > self.now {
            core.due = paused_until;
            self.queue.push(paused_until, Event::Core(id));
            return false;
        }
        core.due = NEVER;
        self.turn = Turn { core: Some(id), charged: self.costs.cpu.poll };
        self.set_time(self.now);
        true
    }

    /// Ends the turn: the core is busy for the charged time, then goes on, or sleeps until the next
    /// timer or a wake.
    #[inline]
    pub(super) fn end_turn(&mut self, id: u32, idle: bool, timer: Option<Nanos>) {
        let done = self.cpu_time().max(self.now + PICOS_PER_NANO);
        self.turn = Turn::default();
        self.clock_of(id).transactions.store(0, Ordering::Relaxed);
        self.hash.add(done);
        let core = &mut self.cores[id as usize];
        core.busy += done - self.now;
        core.busy_until = done;
        let node = &self.nodes[usize::from(core.node.0)];
        let due = match timer {
            _ if !idle => done,
            Some(timer) => node.clock.shows(timer).max(done),
            None => return,
        };
        if due >= core.due {
            return;
        }
        core.due = due;
        if idle {
            if due >= core.alarm {
                return;
            }
            core.alarm = due;
        }
        self.queue.push(due, Event::Core(id));
    }

    /// Charges CPU time to the core of the current turn.
    #[inline]
    pub(super) fn charge(&mut self, cpu: Picos) {
        self.turn.charge(cpu);
    }

    /// Returns the time in the current turn, the start plus the CPU time charged: the departure
    /// time of verbs posted now.
    #[inline]
    pub(super) fn cpu_time(&self) -> Picos {
        let Some(core) = self.turn.core else { return self.now };
        let node = &self.nodes[usize::from(self.cores[core as usize].node.0)];
        let begun = node.clock.transactions.load(Ordering::Relaxed);
        let charged = self.turn.charged + begun * self.costs.cpu.transaction;
        self.now + slowed(charged, node.core_percent)
    }

    fn clock_of(&self, core: u32) -> &NodeClock {
        &self.nodes[usize::from(self.cores[core as usize].node.0)].clock
    }

    /// Returns a clock that no fault affects.
    pub(super) fn outside(&self) -> Arc<dyn Clock> {
        Arc::new(NodeClock::new(Arc::clone(&self.world_clock)))
    }

    /// Draws the delay of a trip through the network.
    #[inline]
    pub(super) fn travel(&mut self) -> Picos {
        self.costs.delay + self.jitter()
    }

    #[inline]
    pub(super) fn jitter(&mut self) -> Picos {
        match self.costs.jitter {
            0 => 0,
            most => self.random.jitter.random_range(0..=most),
        }
    }

    /// Whether the path from `from` to `to` is cut.
    #[inline]
    pub(super) fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        let [source, target] = [from, to].map(|node| &self.nodes[usize::from(node.0)]);
        let path = &source.paths[usize::from(to.0)];
        path.cut || source.isolated || target.isolated || !target.up
    }

    /// Whether other nodes can reach the node.
    pub(super) fn is_reachable(&self, node: NodeId) -> bool {
        let node = &self.nodes[usize::from(node.0)];
        node.up && !node.isolated
    }

    pub(super) fn has_node(&self, node: NodeId) -> bool {
        usize::from(node.0) < self.nodes.len()
    }

    #[inline]
    pub(super) fn trace(&mut self, what: TraceEventKind<'_>) {
        if let Some(tracer) = &mut self.tracer {
            tracer(&TraceEvent { at: duration(self.now), what });
        }
    }
}
