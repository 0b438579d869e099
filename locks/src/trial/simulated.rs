//! Trials on virtual time, with faults drawn from the seed.

use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::{
    Config, Fault, Limits, MAX_CLOCK_PPM, MemoryFate, Profile, Rates, Scheduled, SimMachines, Stop,
    When, World,
};
use lotus_fabric::transport::FabricError;
use lotus_sabotage::{Rule, broken};
use rand::Rng;
use rand::rngs::SmallRng;

use super::{Judgement, Make, Settings, Trial, TrialError};
use crate::contract::LockSystem;

/// Time after which a node is fenced again, if the memory node did not answer.
const AGAIN: Duration = Duration::from_micros(50);
/// Stream of the world's randomness from which faults are drawn.
const STREAM: u64 = u64::MAX;

/// Faults of a trial.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// Rates of random faults of messages and verbs.
    pub rates: Rates,
    /// Number of compute nodes that crash.
    pub crashes: u32,
    /// Number of pauses of compute nodes.
    pub pauses: u32,
    /// The longest of them.
    pub pause: Duration,
    /// Number of compute nodes that are cut off for a while, and expelled meanwhile.
    pub partitions: u32,
    /// Number of times that nothing reaches the memory node, which keeps its memory.
    pub outages: u32,
    /// Time within which those begin.
    pub span: Duration,
    /// The longest time until a node that stands still is expelled.
    pub detection: Duration,
    /// Share of paused nodes that are expelled meanwhile.
    pub expelled: f64,
    /// Whether a node is fenced when it is expelled.
    pub fences: bool,
    /// Whether nodes that crashed come back, in another life.
    pub returns: bool,
    /// Bound of the rates at which clocks gain or lose time, in parts per million.
    pub drift_ppm: i32,
    /// A node that is struck at a step of its own, beside those that are struck at random times.
    pub struck: Option<Struck>,
}

/// A compute node that is struck when it has come so far: between any two of its verbs, if a trial
/// is made for each count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Struck {
    /// The node.
    pub node: NodeId,
    /// Number of its verbs, or else of its messages, that come before.
    pub after: StruckAfter,
    /// Time for which it stands still, and is expelled meanwhile; it dies if there is none.
    pub pause: Option<Duration>,
}

/// What a node does before it is struck; from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StruckAfter {
    /// Verbs that take effect.
    Verbs(u64),
    /// Messages that are sent.
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

impl Faults {
    /// None.
    pub fn none() -> Self {
        Self {
            rates: Rates::default(),
            crashes: 0,
            pauses: 0,
            pause: Duration::from_millis(2),
            partitions: 0,
            outages: 0,
            span: Duration::from_micros(500),
            detection: Duration::from_millis(1),
            expelled: 0.5,
            fences: true,
            returns: false,
            drift_ppm: 0,
            struck: None,
        }
    }

    /// A fifth of all messages is lost, others come twice, late, or in another order.
    pub fn lossy(self) -> Self {
        let rates = Rates {
            message_loss: 0.2,
            message_duplication: 0.1,
            message_delay: 0.2,
            message_delay_max: Duration::from_micros(100),
            ..self.rates
        };
        Self { rates, ..self }
    }

    /// Verbs are held up; some for so long that the initiator gives up on them.
    pub fn doubtful(self) -> Self {
        let rates =
            Rates { verb_delay: 0.01, verb_delay_max: Duration::from_micros(300), ..self.rates };
        Self { rates, ..self }
    }
}

/// What happens at a time.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Crash(NodeId),
    Return(NodeId),
    Pause(NodeId, Duration),
    Isolate(NodeId),
    Rejoin(NodeId),
    Expel(NodeId),
}

/// Draws the faults of a trial: each node is struck once at most, and one is spared.
fn draw(faults: &Faults, settings: &Settings, rng: &mut SmallRng) -> Vec<(Duration, Happening)> {
    let clients = settings.nodes.len() - 1;
    let mut nodes = settings.nodes[..clients].to_vec();
    let mut happenings = Vec::new();
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
                    happenings
                        .extend([(at, Happening::Crash(node)), (noticed, Happening::Expel(node))]);
                    if faults.returns {
                        let later = random_span(rng);
                        happenings.push((noticed + later, Happening::Return(node)));
                    }
                }
                1 => {
                    let lasting = rng.random_range(Duration::ZERO..=faults.pause);
                    happenings.push((at, Happening::Pause(node, lasting)));
                    if rng.random_bool(faults.expelled) {
                        happenings
                            .push((at + lasting.mul_f64(rng.random()), Happening::Expel(node)));
                    }
                }
                _ => {
                    let healed = noticed + random_span(rng);
                    happenings.extend([
                        (at, Happening::Isolate(node)),
                        (noticed, Happening::Expel(node)),
                        (healed, Happening::Rejoin(node)),
                    ]);
                }
            }
        }
    }
    for _ in 0..faults.outages {
        let (at, lasting) = (random_span(rng), random_span(rng));
        let memory = settings.memory;
        happenings
            .extend([(at, Happening::Isolate(memory)), (at + lasting, Happening::Rejoin(memory))]);
    }
    happenings.sort_by_key(|(at, _)| *at);
    happenings
}

/// Runs a trial in a world of its own.
///
/// # Errors
/// [`TrialError`].
pub fn simulate<S: LockSystem>(
    seed: u64,
    profile: Profile,
    settings: &Settings,
    faults: &Faults,
    make: &Make<S>,
) -> Result<Judgement, TrialError> {
    let highest = settings.nodes.iter().chain([&settings.memory]).map(|node| node.0).max();
    let config = Config {
        rates: faults.rates.clone(),
        limits: Limits { time: settings.limit, ..Limits::default() },
        // Some verbs that are held up are given up on, and land all the same.
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
    let mut trial = Trial::start(&machines, settings.clone(), make.clone())?;
    if let Some(struck) = faults.struck {
        wait_for(&machines, &mut trial, struck, faults, make)?;
    }
    let mut happenings = draw(faults, settings, &mut rng);
    while !happenings.is_empty() {
        let (at, happening) = happenings.remove(0);
        let now = machines.world().now();
        machines.run_for(at.saturating_sub(now));
        if !strike(&machines, &mut trial, happening, faults.fences, make)? {
            happenings.push((at + AGAIN, happening));
            happenings.sort_by_key(|(at, _)| *at);
        }
    }
    trial.finish::<S>(&machines)
}

/// Lets the trial go on until a node was struck, or has had the time to be; then it is expelled.
fn wait_for<S: LockSystem>(
    machines: &SimMachines,
    trial: &mut Trial<SimMachines>,
    struck: Struck,
    faults: &Faults,
    make: &Make<S>,
) -> Result<(), TrialError> {
    let has_crashed = matches!(machines.run_for(faults.span), Some(Stop::Crashed(_)));
    inject(machines, Fault::Disarm);
    if has_crashed {
        trial.is_out(struck.node);
        machines.run_for(faults.detection);
    }
    if has_crashed || struck.pause.is_some() {
        let expel = Happening::Expel(struck.node);
        while !strike(machines, trial, expel, faults.fences, make)? {
            machines.run_for(AGAIN);
        }
    }
    Ok(())
}

fn inject(machines: &SimMachines, fault: Fault) {
    machines.world().inject(fault).unwrap_or_else(|error| panic!("a fault: {error}"));
}

/// Returns whether it has happened.
fn strike<S: LockSystem>(
    machines: &SimMachines,
    trial: &mut Trial<SimMachines>,
    happening: Happening,
    fences: bool,
    make: &Make<S>,
) -> Result<bool, TrialError> {
    match happening {
        Happening::Crash(node) => {
            let crashed = machines.world().crash(node, MemoryFate::Lost);
            crashed.unwrap_or_else(|error| panic!("a crash: {error}"));
            trial.is_out(node);
        }
        Happening::Return(node) => {
            let returned = machines.world().restart(node);
            returned.unwrap_or_else(|error| panic!("a return: {error}"));
            trial.start_node(machines, node, make)?;
        }
        Happening::Pause(node, lasting) => inject(machines, Fault::Pause { node, lasting }),
        Happening::Isolate(node) => inject(machines, Fault::Isolate { node }),
        Happening::Rejoin(node) => inject(machines, Fault::Rejoin { node }),
        Happening::Expel(node) => {
            if fences && !broken(Rule::LostHoldersAreFenced) {
                match machines.fabric().fence(trial.memory(), node, trial.next_epoch()) {
                    Err(FabricError::Unreachable { .. }) => return Ok(false),
                    fenced => fenced?,
                }
            }
            trial.expel(node);
        }
    }
    Ok(true)
}
