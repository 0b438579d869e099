//! A simulated cluster under the benchmark harness, whose memory is looked at while it runs.

use std::time::Duration;

use lotus::{Cluster, MemoryStanding, Moving, ShardId, ShardStatus, Submitted};
use lotus_benchmarks::deployment::{DeployError, Seat};
use lotus_benchmarks::lotus::Embedded;
use lotus_benchmarks::wrapper::Wrapper;
use lotus_fabric::sim::SimMachines;
use lotus_mvcc::TableSpec;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::copies::Copies;
use crate::impatient::{Client, Patience};
use crate::properties::losses;
use crate::returns::Returns;
use crate::room::with_shards;
use crate::run::{Moves, Violation};
use crate::scenario::Scenario;
use crate::turns::Turns;

/// How often memory is looked at while clients run.
const LOOKS: u32 = 24;

/// How long a node may take to return when all is over: locks' ends and requests whose messages
/// were lost are repeated every 20 ms.
const RETURNING: Duration = Duration::from_millis(100);

/// See the module's essay.
pub(crate) struct Watched {
    cluster: Embedded<SimMachines>,
    patience: Patience,
    /// Of each table, at most.
    shards: u32,
    /// How much virtual time passes between two looks.
    interval: Duration,
    /// What the looks have found, the first of each kind.
    found: Vec<Violation>,
    mover: Mover,
    returns: Returns,
    turns: Turns,
    copies: Copies,
}

/// Orders shards to be given away, at random.
struct Mover {
    /// How often; never if that is no time at all.
    every: Duration,
    /// For how long since the clients began.
    until: Duration,
    rng: SmallRng,
    /// Orders that are being carried out.
    moving: Vec<Moving>,
    outcome: Moves,
}

impl Mover {
    fn new(scenario: &Scenario, seed: u64) -> Self {
        let every = Duration::from_micros(scenario.cluster.moves_us);
        // Apart from all other streams of the same seed.
        let rng = SmallRng::seed_from_u64(seed ^ 0x04A8_D0FE);
        Self { every, until: scenario.storm(), rng, moving: Vec::new(), outcome: Moves::default() }
    }

    /// How long to let the clients alone, if nothing else is to be done for so long.
    fn pause(&self, interval: Duration) -> Duration {
        if self.every.is_zero() { interval } else { self.every.min(interval) }
    }

    /// Orders a shard to be given away, from whomever to whomever.
    fn order(&mut self, cluster: &Cluster<SimMachines>, shards: u32) {
        let shard = ShardId::from_low_bits(self.rng.random_range(0..u64::from(shards)));
        let to = self.rng.random_range(0..cluster.config().compute_nodes);
        match cluster.start_move(&[shard], to) {
            Ok(moving) => self.moving.push(moving),
            Err(_) => self.outcome.failed += 1,
        }
    }

    /// Counts what has come to nothing.
    fn count(&mut self) {
        let outcome = &mut self.outcome;
        self.moving.retain(|moving| match moving.outcome() {
            None => true,
            Some(outcome_of) => {
                outcome.failed += u64::from(outcome_of.is_err());
                false
            }
        });
    }
}

impl Watched {
    /// Looks at memory as long as clients run.
    pub(crate) fn new(cluster: Embedded<SimMachines>, scenario: &Scenario, seed: u64) -> Self {
        let span = scenario.storm() + scenario.calm();
        let interval = (span / LOOKS).max(Duration::from_micros(1));
        let patience = Patience { impatience: scenario.load.impatience, seed };
        let shards = scenario.cluster.shards;
        let mover = Mover::new(scenario, seed);
        let returns = Returns::new(scenario);
        let turns = Turns::new(scenario);
        let copies = Copies::new(scenario, seed);
        let found = Vec::new();
        Self { cluster, patience, shards, interval, found, mover, returns, turns, copies }
    }

    /// What became of shards that were to be moved, by whoever wanted it.
    pub(crate) fn moves(&self) -> Moves {
        let moved = self.cluster.cluster().move_counters();
        Moves { done: moved.shards, stragglers: moved.stragglers, ..self.mover.outcome }
    }

    /// How many snapshots were taken into files.
    pub(crate) fn copies(&self) -> u64 {
        self.copies.taken
    }

    /// Who owns which shard, and since when.
    pub(crate) fn owners(&self) -> Result<Vec<ShardStatus>, DeployError> {
        self.cluster.cluster().shards().map_err(failed)
    }

    /// What becomes of each memory node, by place.
    pub(crate) fn memory(&self) -> Result<Vec<MemoryStanding>, DeployError> {
        Ok(self.cluster.cluster().memory_status().map_err(failed)?.nodes)
    }

    /// Compute nodes that have returned.
    pub(crate) fn returned(&self) -> u64 {
        self.returns.done
    }

    /// Which compute node was started again and takes no part.
    pub(crate) fn missing(&mut self) -> Option<Violation> {
        self.at_last(|watched| watched.returns.violations(watched.cluster.cluster()))
    }

    /// Which memory node has come back and is not used.
    pub(crate) fn unfilled(&mut self, scenario: &Scenario) -> Option<Violation> {
        self.at_last(|watched| losses::unfilled(scenario, &watched.memory().ok()?))
    }

    /// What is violated still when what was lost has been sent once more: clients may have ended
    /// before.
    fn at_last(&mut self, violated: impl Fn(&Self) -> Option<Violation>) -> Option<Violation> {
        let mut waited = Duration::ZERO;
        loop {
            let violation = violated(self)?;
            if waited >= RETURNING || self.machines().run_for(self.interval).is_none() {
                return Some(violation);
            }
            waited += self.interval;
            self.returns.take_in(self.cluster.cluster());
        }
    }

    /// Lets all faults happen that are due: clients may have ended before, with the nodes that
    /// served them.
    fn end_storm(&mut self) {
        let cluster = self.cluster.cluster();
        while self.turns.are_due() && self.turns.run_for(cluster, self.interval) {
            self.returns.take_in(cluster);
        }
    }

    pub(crate) fn machines(&self) -> &SimMachines {
        self.cluster.cluster().machines()
    }

    pub(crate) fn take_found(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.found)
    }

    fn has_found(&self, property: &str) -> bool {
        self.found.iter().any(|known| known.property == property)
    }

    fn look(&mut self) -> Result<(), DeployError> {
        let findings = self.cluster.cluster().inspect().map_err(failed)?;
        let at = self.machines().world().now();
        for finding in findings.into_iter().filter(|finding| !finding.passed) {
            if !self.has_found(finding.name) {
                let detail = format!("at {at:?}: {}", finding.detail);
                self.found.push(Violation { property: finding.name.to_owned(), detail });
            }
        }
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> DeployError {
    DeployError::Failed(error.to_string())
}

impl Wrapper for Watched {
    type Machines = SimMachines;
    type Host = Client;

    fn embedded(&self) -> &Embedded<SimMachines> {
        &self.cluster
    }

    fn embedded_mut(&mut self) -> &mut Embedded<SimMachines> {
        &mut self.cluster
    }

    fn run_tasks<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(Seat, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let patience = self.patience;
        let task = move |seat, slot| task(seat, Client::new(slot, seat, patience));
        let mut submitted = self.cluster.submit(tasks, task.clone());
        let (mut looks, mut passed, mut since) = (0, Duration::ZERO, Duration::ZERO);
        while !submitted.iter().all(Submitted::is_finished) {
            let pause = self.copies.pause(self.mover.pause(self.interval));
            if !self.turns.run_for(self.cluster.cluster(), pause) {
                break;
            }
            (passed, since) = (passed + pause, since + pause);
            for cn in self.returns.take_in(self.cluster.cluster()) {
                submitted.extend(self.cluster.submit_at(cn, tasks, task.clone()));
            }
            let wrong = self.copies.look(self.cluster.cluster(), pause);
            let new = wrong.filter(|wrong| !self.has_found(&wrong.property));
            self.found.extend(new);
            self.mover.count();
            if !self.mover.every.is_zero() && passed < self.mover.until {
                self.mover.order(self.cluster.cluster(), self.shards);
            }
            if since < self.interval {
                continue;
            }
            self.look()?;
            (looks, since) = (looks + 1, Duration::ZERO);
            if looks >= LOOKS {
                // The clients should have ended; whoever waits for a clock may take very long.
                self.interval *= 2;
            }
        }
        self.end_storm();
        let cluster = self.cluster.cluster();
        let ended = self.cluster.outcomes(submitted)?;
        cluster.settle().map_err(failed)?;
        self.look()?;
        Ok(ended)
    }

    fn spec(&self, asked: TableSpec) -> TableSpec {
        with_shards(asked, self.shards)
    }
}
