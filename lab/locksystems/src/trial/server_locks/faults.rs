//! The faults of a trial and their times.

use std::collections::BTreeSet;
use std::time::Duration;

use lotus_fabric::sim::Rates;
use rand::Rng;
use rand::rngs::SmallRng;

use super::super::simulated::lossy;
use super::ServerTrial;

/// Faults of a trial of locks kept outside memory words.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerFaults {
    /// Rates of random faults of messages.
    pub rates: Rates,
    /// Number of crashes of machines.
    pub crashes: u32,
    /// Number of pauses of machines.
    pub pauses: u32,
    /// The longest pause.
    pub pause: Duration,
    /// Share of paused machines that are expelled meanwhile.
    pub expelled: f64,
    /// Number of machines that are cut off for a while, and expelled meanwhile.
    pub partitions: u32,
    /// Whether crashed machines return in another life.
    pub returns: bool,
    /// Number of crashes of a switch, which returns without its state.
    pub switch_losses: u32,
    /// Number of crashes of servers; a trial has one server.
    pub server_losses: u32,
    /// Whether the crashed server returns, without its locks; with NetLock, the switch crashes and
    /// returns.
    pub server_returns: bool,
    /// Least time for which the server stays down.
    pub server_down: Duration,
    /// Number of recoveries that begin without a loss.
    pub recoveries: u32,
    /// Share of recoveries that an unfinished recovery precedes.
    pub unfinished: f64,
    /// Time within which the faults begin.
    pub span: Duration,
    /// The longest time until a loss is found.
    pub detection: Duration,
}

impl ServerFaults {
    /// Returns no faults.
    pub fn none() -> Self {
        Self {
            rates: Rates::default(),
            crashes: 0,
            pauses: 0,
            pause: Duration::from_millis(2),
            expelled: 0.5,
            partitions: 0,
            returns: false,
            switch_losses: 0,
            server_losses: 0,
            server_returns: false,
            server_down: Duration::ZERO,
            recoveries: 0,
            unfinished: 0.3,
            span: Duration::from_micros(500),
            detection: Duration::from_micros(300),
        }
    }

    /// Loses a fifth of the messages; duplicates, delays and reorders further messages.
    #[must_use]
    pub fn lossy(self) -> Self {
        Self { rates: lossy(self.rates), ..self }
    }

    /// Whether a machine may be cut off from the memory, or its verbs may be refused.
    pub(super) const fn may_cut_off(&self) -> bool {
        self.partitions > 0 || self.pauses > 0
    }

    /// Draws the faults: a machine is struck at most once, and at least one machine is spared.
    pub(super) fn draw(&self, trial: &ServerTrial, rng: &mut SmallRng) -> FaultPlan {
        let mut machines: Vec<u16> = (0..trial.plan.machines).collect();
        let mut fault_plan = FaultPlan::default();
        let strikes = [self.crashes, self.pauses, self.partitions];
        for (kind, count) in strikes.into_iter().enumerate() {
            for _ in 0..count {
                if machines.len() < 2 {
                    break;
                }
                let machine = machines.swap_remove(rng.random_range(0..machines.len()));
                self.strike(kind, machine, &mut fault_plan, rng);
            }
        }
        // Losses do not overlap.
        let mut before = Duration::ZERO;
        for _ in 0..self.switch_losses {
            let at = before + self.within(rng);
            let back = at + rng.random_range(Duration::ZERO..=self.detection);
            before = back + Duration::from_nanos(1);
            let rack = match trial.plan.racks {
                1 => 0,
                racks => rng.random_range(0..racks),
            };
            let (lost, regained) = (FaultEvent::LoseSwitch(rack), FaultEvent::RegainSwitch(rack));
            fault_plan.happens([(at, lost), (back, regained)]);
        }
        if self.server_losses > 0 {
            let at = self.within(rng);
            fault_plan.happens([(at, FaultEvent::LoseServer)]);
            if self.server_returns {
                let back = rng.random_range(Duration::ZERO..=self.detection);
                fault_plan.happens([(at + self.server_down + back, FaultEvent::RegainServer)]);
            }
        }
        for _ in 0..self.recoveries {
            let at = self.within(rng);
            fault_plan.happens([(at, FaultEvent::Recover)]);
        }
        fault_plan.events.sort_by_key(|(at, _)| *at);
        fault_plan
    }

    fn strike(&self, kind: usize, machine: u16, fault_plan: &mut FaultPlan, rng: &mut SmallRng) {
        let at = self.within(rng);
        let noticed = at + rng.random_range(Duration::ZERO..=self.detection);
        match kind {
            0 => {
                fault_plan.lost.insert(machine);
                fault_plan.happens([
                    (at, FaultEvent::Crash(machine)),
                    (noticed, FaultEvent::Expel(machine)),
                ]);
                if self.returns {
                    let back = noticed + self.within(rng);
                    fault_plan
                        .happens([(back, FaultEvent::Return(machine, fault_plan.returns.len()))]);
                    fault_plan.returns.push(machine);
                }
            }
            1 => {
                let lasting = rng.random_range(Duration::ZERO..=self.pause);
                fault_plan.happens([(at, FaultEvent::Pause(machine, lasting))]);
                if rng.random_bool(self.expelled) {
                    fault_plan.lost.insert(machine);
                    let found = at + lasting.mul_f64(rng.random());
                    fault_plan.happens([(found, FaultEvent::Expel(machine))]);
                }
            }
            _ => {
                fault_plan.lost.insert(machine);
                fault_plan.happens([
                    (at, FaultEvent::Isolate(machine)),
                    (noticed, FaultEvent::Expel(machine)),
                    (noticed + self.within(rng), FaultEvent::Rejoin(machine)),
                ]);
            }
        }
    }

    fn within(&self, rng: &mut SmallRng) -> Duration {
        rng.random_range(Duration::ZERO..self.span)
    }
}

/// A scheduled fault or return, with its machine's index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FaultEvent {
    Crash(u16),
    /// The machine returns in another life; the second number is the index in
    /// [`FaultPlan::returns`].
    Return(u16, usize),
    Pause(u16, Duration),
    Isolate(u16),
    Rejoin(u16),
    Expel(u16),
    /// The switch of a rack is lost.
    LoseSwitch(u16),
    RegainSwitch(u16),
    LoseServer,
    RegainServer,
    /// A recovery begins without a loss.
    Recover,
}

/// All scheduled events of a trial.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultPlan {
    /// In order of time.
    pub(super) events: Vec<(Duration, FaultEvent)>,
    /// Returning machines, each once.
    pub(super) returns: Vec<u16>,
    /// Machines lost in their first life.
    pub(super) lost: BTreeSet<u16>,
}

impl FaultPlan {
    fn happens(&mut self, events: impl IntoIterator<Item = (Duration, FaultEvent)>) {
        self.events.extend(events);
    }
}
