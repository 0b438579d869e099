//! Trials on virtual time, with faults drawn from the seed.

use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::{
    Config, Fault, Limits, MAX_CLOCK_PPM, MemoryFate, Profile, Rates, Scheduled, SimMachines, Stop,
    When, World,
};
use lotus_fabric::transport::FabricError;
use lotus_locks::LockSystem;
use lotus_sabotage::{Rule, broken};
use rand::Rng;
use rand::rngs::SmallRng;

use super::{Make, Settings, Trial, TrialError, TrialResult};

/// Pause before a node is fenced again, if the memory node did not answer.
const AGAIN: Duration = Duration::from_micros(50);
/// Stream of the world's randomness from which faults are drawn.
const STREAM: u64 = u64::MAX;

/// Faults of a trial.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// Rates of random faults of messages and verbs.
    pub rates: Rates,
    /// Number of crashes of compute nodes.
    pub crashes: u32,
    /// Number of pauses of compute nodes.
    pub pauses: u32,
    /// The longest pause.
    pub pause: Duration,
    /// Number of compute nodes that are cut off for a while, and expelled meanwhile.
    pub partitions: u32,
    /// Number of outages in which the memory node is unreachable, but keeps its memory.
    pub outages: u32,
    /// Number of crashes of the memory node, which returns with zeroed memory once abandoned by all
    /// members.
    pub losses: u32,
    /// Time within which the faults begin.
    pub span: Duration,
    /// The longest time until an unresponsive node is expelled.
    pub detection: Duration,
    /// Share of paused nodes that are expelled meanwhile.
    pub expelled: f64,
    /// Whether a node is fenced when it is expelled.
    pub fences: bool,
    /// Whether crashed nodes return in another life.
    pub returns: bool,
    /// Bound of the clock drift, in parts per million.
    pub drift_ppm: i32,
    /// A node struck at a given step, besides the nodes struck at random times.
    pub struck: Option<Struck>,
}

/// A compute node struck at a given count of its verbs or messages: trials with every count cover
/// the gaps between any two verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Struck {
    /// The node.
    pub node: NodeId,
    /// Number of the node's verbs, or else messages, before the strike.
    pub after: StruckAfter,
    /// Time for which the node stands still, and is expelled meanwhile; without a pause, the node
    /// dies.
    pub pause: Option<Duration>,
}

/// Progress of a node up to its strike; from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StruckAfter {
    /// Number of verbs that take effect.
    Verbs(u64),
    /// Number of messages sent.
    Messages(u64),
}

impl Struck {
    fn scheduled(self) -> Scheduled {
        let Self { node, after, pause } = self;
        let when = match after {
            StruckAfter::Verbs(count) => When::AfterVerbs { node, count },
            StruckAfter::Messages(count) => When::AfterMessages { node, count },
        };
        let fault = match pause {
            Some(lasting) => Fault::Pause { node, lasting },
            None => Fault::Crash { node, memory: MemoryFate::Lost },
        };
        Scheduled { when, fault }
    }
}

/// Returns `rates` with a fifth of the messages lost, and further messages duplicated, late, or
/// reordered.
pub(super) fn lossy(rates: Rates) -> Rates {
    Rates {
        message_loss: 0.2,
        message_duplication: 0.1,
        message_delay: 0.2,
        message_delay_max: Duration::from_micros(100),
        ..rates
    }
}

impl Faults {
    /// Returns no faults.
    pub fn none() -> Self {
        Self {
            rates: Rates::default(),
            crashes: 0,
            pauses: 0,
            pause: Duration::from_millis(2),
            partitions: 0,
            outages: 0,
            losses: 0,
            span: Duration::from_micros(500),
            detection: Duration::from_millis(1),
            expelled: 0.5,
            fences: true,
            returns: false,
            drift_ppm: 0,
            struck: None,
        }
    }

    /// Loses a fifth of the messages; duplicates, delays and reorders further messages.
    pub fn lossy(self) -> Self {
        Self { rates: lossy(self.rates), ..self }
    }

    /// Delays verbs, in part beyond the initiator's timeout.
    pub fn doubtful(self) -> Self {
        let rates =
            Rates { verb_delay: 0.01, verb_delay_max: Duration::from_micros(300), ..self.rates };
        Self { rates, ..self }
    }
}

/// A scheduled fault or return.
#[derive(Clone, Copy, Debug)]
enum FaultEvent {
    Crash(NodeId),
    Return(NodeId),
    Pause(NodeId, Duration),
    Isolate(NodeId),
    Rejoin(NodeId),
    Expel(NodeId),
    /// The memory node crashes. The lanes notice after the first time, and the node returns after
    /// the second.
    Lose(Duration, Duration),
    Miss(Duration),
    Regain,
}

/// Draws the faults of a trial: a node is struck at most once, and at least one node is spared.
fn draw(faults: &Faults, settings: &Settings, rng: &mut SmallRng) -> Vec<(Duration, FaultEvent)> {
    let clients = settings.nodes.len() - 1;
    let mut nodes = settings.nodes[..clients].to_vec();
    let mut events = Vec::new();
    let random_span = |rng: &mut SmallRng| rng.random_range(Duration::ZERO..faults.span);
    let kinds = [faults.crashes, faults.pauses, faults.partitions];
    for (kind, count) in kinds.into_iter().enumerate() {
        for _ in 0..count {
            if nodes.len() < 2 {
                break;
            }
            let node = nodes.swap_remove(rng.random_range(0..nodes.len()));
            let at = random_span(rng);
            let noticed = at + rng.random_range(Duration::ZERO..=faults.detection);
            match kind {
                0 => {
                    events.extend([
                        (at, FaultEvent::Crash(node)),
                        (noticed, FaultEvent::Expel(node)),
                    ]);
                    if faults.returns {
                        let later = random_span(rng);
                        events.push((noticed + later, FaultEvent::Return(node)));
                    }
                }
                1 => {
                    let lasting = rng.random_range(Duration::ZERO..=faults.pause);
                    events.push((at, FaultEvent::Pause(node, lasting)));
                    if rng.random_bool(faults.expelled) {
                        events.push((at + lasting.mul_f64(rng.random()), FaultEvent::Expel(node)));
                    }
                }
                _ => {
                    let healed = noticed + random_span(rng);
                    events.extend([
                        (at, FaultEvent::Isolate(node)),
                        (noticed, FaultEvent::Expel(node)),
                        (healed, FaultEvent::Rejoin(node)),
                    ]);
                }
            }
        }
    }
    for _ in 0..faults.outages {
        let (at, lasting) = (random_span(rng), random_span(rng));
        let memory = settings.memory;
        events.extend([
            (at, FaultEvent::Isolate(memory)),
            (at + lasting, FaultEvent::Rejoin(memory)),
        ]);
    }
    for _ in 0..faults.losses {
        let missed = rng.random_range(Duration::ZERO..=faults.detection);
        events.push((random_span(rng), FaultEvent::Lose(missed, random_span(rng))));
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

/// Runs a trial in a new world.
///
/// # Errors
/// [`TrialError`].
pub fn simulate<S: LockSystem>(
    seed: u64,
    profile: Profile,
    settings: &Settings,
    faults: &Faults,
    make: &Make<S>,
) -> Result<TrialResult, TrialError> {
    let highest = settings.nodes.iter().chain([&settings.memory]).map(|node| node.0).max();
    let config = Config {
        rates: faults.rates.clone(),
        limits: Limits { time: settings.limit, ..Limits::default() },
        // The initiator gives up on some delayed verbs, which land nevertheless.
        verb_timeout: Duration::from_micros(150),
        schedule: faults.struck.into_iter().map(Struck::scheduled).collect(),
        ..Config::new(seed, highest.unwrap_or(0) + 1, profile)
    };
    let world = World::new(config).unwrap_or_else(|error| panic!("a world: {error}"));
    let machines = SimMachines::new(world);
    let mut rng = machines.outside().rng(STREAM);
    for node in &settings.nodes {
        let ppm = rng.random_range(-faults.drift_ppm..=faults.drift_ppm);
        if ppm.abs() <= MAX_CLOCK_PPM && ppm != 0 {
            inject(&machines, Fault::ClockRate { node: *node, ppm });
        }
    }
    let trial = Trial::start(&machines, settings.clone(), make.clone())?;
    let mut struck = Strikes { machines, trial, make, fences: faults.fences, fenced: Vec::new() };
    if let Some(step) = faults.struck {
        struck.wait_for(step, faults)?;
    }
    let mut events = draw(faults, settings, &mut rng);
    while !events.is_empty() {
        let (at, event) = events.remove(0);
        let now = struck.machines.world().now();
        if struck.machines.run_for(at.saturating_sub(now)).is_none() {
            struck.trial.gives_up(format!("{event:?} cannot happen"));
            break;
        }
        if let Some((after, next)) = struck.strike(event)? {
            events.push((at + after, next));
            events.sort_by_key(|(at, _)| *at);
        }
    }
    let Strikes { machines, trial, .. } = struck;
    trial.finish::<S>(&machines)
}

fn inject(machines: &SimMachines, fault: Fault) {
    machines.world().inject(fault).unwrap_or_else(|error| panic!("a fault: {error}"));
}

/// A trial with its machines and past strikes.
struct Strikes<'a, S: LockSystem> {
    machines: SimMachines,
    trial: Trial,
    make: &'a Make<S>,
    /// See [`Faults::fences`].
    fences: bool,
    /// Expelled nodes, with the epochs below which the memory node refuses them.
    fenced: Vec<(NodeId, Epoch)>,
}

impl<S: LockSystem> Strikes<'_, S> {
    /// Runs the trial until the node is struck, or the time for the strike is over; then expels the
    /// node.
    fn wait_for(&mut self, struck: Struck, faults: &Faults) -> Result<(), TrialError> {
        let has_crashed = matches!(self.machines.run_for(faults.span), Some(Stop::Crashed(_)));
        inject(&self.machines, Fault::Disarm);
        if has_crashed {
            self.trial.is_out(struck.node);
            self.machines.run_for(faults.detection);
        }
        if has_crashed || struck.pause.is_some() {
            while !self.expel(struck.node)? {
                self.machines.run_for(AGAIN);
            }
        }
        Ok(())
    }

    fn crash(&self, node: NodeId) {
        let crashed = self.machines.world().crash(node, MemoryFate::Lost);
        crashed.unwrap_or_else(|error| panic!("a crash: {error}"));
    }

    fn restart(&self, node: NodeId) {
        let returned = self.machines.world().restart(node);
        returned.unwrap_or_else(|error| panic!("a return: {error}"));
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.machines.world().restarts(node).is_some()
    }

    /// Returns a later event and its delay: the consequence, or the same event again.
    fn strike(&mut self, now: FaultEvent) -> Result<Option<(Duration, FaultEvent)>, TrialError> {
        let memory = self.trial.memory();
        let has_happened = match now {
            FaultEvent::Crash(node) => {
                self.crash(node);
                self.trial.is_out(node);
                true
            }
            FaultEvent::Return(node) => {
                self.restart(node);
                self.trial.start_node(&self.machines, node, self.make)?;
                true
            }
            FaultEvent::Pause(node, lasting) => self.inject(Fault::Pause { node, lasting }),
            FaultEvent::Isolate(node) => self.inject(Fault::Isolate { node }),
            FaultEvent::Rejoin(node) => self.inject(Fault::Rejoin { node }),
            FaultEvent::Expel(node) => self.expel(node)?,
            // Losses do not overlap.
            FaultEvent::Lose(..) if self.trial.is_memory_lost() || !self.is_up(memory) => false,
            FaultEvent::Lose(missed, regained) => {
                self.crash(memory);
                return Ok(Some((missed, FaultEvent::Miss(regained))));
            }
            FaultEvent::Miss(regained) => {
                self.trial.lose_memory();
                return Ok(Some((regained, FaultEvent::Regain)));
            }
            FaultEvent::Regain => self.regain()?,
        };
        Ok((!has_happened).then_some((AGAIN, now)))
    }

    fn inject(&self, fault: Fault) -> bool {
        inject(&self.machines, fault);
        true
    }

    fn expel(&mut self, node: NodeId) -> Result<bool, TrialError> {
        let (memory, epoch) = (self.trial.memory(), self.trial.next_epoch());
        if self.fences && !broken(Rule::LostHoldersAreFenced) {
            // A memory node that is down is fenced on its return.
            if self.is_up(memory) && !self.fence(node, epoch)? {
                return Ok(false);
            }
            self.fenced.push((node, epoch));
        }
        self.trial.expel(node);
        Ok(true)
    }

    /// Makes the memory node refuse a node. Returns whether the memory node answered.
    fn fence(&self, node: NodeId, epoch: Epoch) -> Result<bool, TrialError> {
        is_reached(self.machines.fabric().fence(self.trial.memory(), node, epoch))
    }

    /// Lets the memory node return, if all members have abandoned it.
    fn regain(&self) -> Result<bool, TrialError> {
        if !self.trial.use_memory_still().is_empty() {
            return Ok(false);
        }
        if !self.is_up(self.trial.memory()) {
            self.restart(self.trial.memory());
        }
        // The memory node has forgotten its fences.
        for (node, epoch) in &self.fenced {
            if !self.fence(*node, *epoch)? {
                return Ok(false);
            }
        }
        is_reached(self.trial.regain_memory(&self.machines))
    }
}

/// Whether the memory node has answered.
fn is_reached(answer: Result<(), FabricError>) -> Result<bool, TrialError> {
    match answer {
        Err(FabricError::Unreachable { .. }) => Ok(false),
        answer => Ok(answer.map(|()| true)?),
    }
}
