//! A simulated cluster under the benchmark harness, with inspections of its memory while it runs.

use std::time::Duration;

use lotus::{Cluster, MemoryStanding, Moving, ShardId, ShardStatus, Submitted};
use lotus_benchmarks::deployment::{DeployError, TaskPlace};
use lotus_benchmarks::lotus::Embedded;
use lotus_benchmarks::wrapper::Wrapper;
use lotus_fabric::sim::SimMachines;
use lotus_mvcc::TableSpec;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::drive::impatient::{Client, Impatience};
use crate::drive::turns::Turns;
use crate::properties::copies::Copies;
use crate::properties::drops::Drops;
use crate::properties::endless::Endless;
use crate::properties::losses;
use crate::properties::returns::Returns;
use crate::scenario::format::Scenario;
use crate::scenario::room::with_shards;
use crate::verdict::{Moves, Violation};

/// Number of inspections while clients run.
const LOOKS: u32 = 24;

/// Longest wait for a node's return at the end: lost ends of locks and lost requests are repeated
/// every 20 ms.
const RETURNING: Duration = Duration::from_millis(100);

/// Cluster with inspections, and with the faults of a scenario that need the cluster's API.
pub(crate) struct Watched {
    cluster: Embedded,
    behaviour: Impatience,
    /// Maximum number of shards of a table.
    shards: u32,
    /// Virtual time between two inspections.
    interval: Duration,
    /// Violations found by inspections, the first of each property.
    found: Vec<Violation>,
    mover: Mover,
    returns: Returns,
    turns: Turns,
    copies: Copies,
    drops: Drops,
    endless: Endless,
}

/// Orders moves of random shards.
struct Mover {
    /// Interval between orders; zero for never.
    every: Duration,
    /// Time since the clients began after which no more moves are ordered.
    until: Duration,
    rng: SmallRng,
    /// Orders in progress.
    moving: Vec<Moving>,
    outcome: Moves,
}

impl Mover {
    fn new(scenario: &Scenario, seed: u64) -> Self {
        let every = Duration::from_micros(scenario.cluster.moves_us);
        // A separate random stream; the other streams of the seed are unchanged.
        let rng = SmallRng::seed_from_u64(seed ^ 0x04A8_D0FE);
        Self { every, until: scenario.storm(), rng, moving: Vec::new(), outcome: Moves::default() }
    }

    /// Time until the next order, at most `interval`.
    fn pause(&self, interval: Duration) -> Duration {
        if self.every.is_zero() { interval } else { self.every.min(interval) }
    }

    /// Orders the move of a random shard to a random compute node.
    fn order(&mut self, cluster: &Cluster, shards: u32) {
        let shard = ShardId::from_low_bits(self.rng.random_range(0..u64::from(shards)));
        let to = self.rng.random_range(0..cluster.config().compute_nodes);
        match cluster.start_move(&[shard], to) {
            Ok(moving) => self.moving.push(moving),
            Err(_) => self.outcome.failed += 1,
        }
    }

    /// Removes finished orders, and counts the failed orders.
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
    /// Prepares inspections and faults for a cluster that clients will use.
    pub(crate) fn new(cluster: Embedded, scenario: &Scenario, seed: u64) -> Self {
        let span = scenario.storm() + scenario.calm();
        let interval = (span / LOOKS).max(Duration::from_micros(1));
        let behaviour = Impatience { impatience: scenario.load.impatience, seed };
        let shards = scenario.cluster.shards;
        let mover = Mover::new(scenario, seed);
        let returns = Returns::new(scenario);
        let turns = Turns::new(scenario);
        Self {
            cluster,
            behaviour,
            shards,
            interval,
            found: Vec::new(),
            mover,
            returns,
            turns,
            copies: Copies::new(scenario, seed),
            drops: Drops::new(scenario, seed),
            endless: Endless::new(scenario, seed),
        }
    }

    /// Outcomes of moves, ordered here or by balancing.
    pub(crate) fn moves(&self) -> Moves {
        let moved = self.cluster.cluster().move_counters();
        Moves { done: moved.shards, stragglers: moved.stragglers, ..self.mover.outcome }
    }

    /// Number of snapshots written into files.
    pub(crate) fn copies(&self) -> u64 {
        self.copies.taken
    }

    /// Number of dropped tables whose memory was given back.
    pub(crate) fn dropped(&self) -> u64 {
        self.cluster.cluster().tables_cleared()
    }

    /// Number of transactions ended because their time was up.
    pub(crate) fn overdue(&self) -> u64 {
        self.endless.ended()
    }

    /// A dropped table that still has memory, after time to give it back.
    fn left_of_drops(&mut self) -> Option<Violation> {
        self.at_last(|watched| watched.drops.left(watched.cluster.cluster()))
    }

    /// Owner and epoch of every shard.
    pub(crate) fn owners(&self) -> Result<Vec<ShardStatus>, DeployError> {
        self.cluster.cluster().shards().map_err(failed)
    }

    /// Standing of each memory node, by place.
    pub(crate) fn memory(&self) -> Result<Vec<MemoryStanding>, DeployError> {
        Ok(self.cluster.cluster().memory_status().map_err(failed)?.nodes)
    }

    /// Whether the compute node at a place takes part.
    pub(crate) fn takes_part(&self, node: usize) -> bool {
        self.cluster.cluster().takes_part(node)
    }

    /// Number of returns of compute nodes.
    pub(crate) fn returned(&self) -> u64 {
        self.returns.done
    }

    /// A compute node that was restarted and does not take part, after time to return.
    pub(crate) fn missing(&mut self) -> Option<Violation> {
        self.at_last(|watched| watched.returns.violations(watched.cluster.cluster()))
    }

    /// A memory node that came back and is not in use, after time to be filled.
    pub(crate) fn unfilled(&mut self, scenario: &Scenario) -> Option<Violation> {
        self.at_last(|watched| losses::unfilled(scenario, &watched.memory().ok()?))
    }

    /// Violation that remains after [`RETURNING`]: clients may have ended before lost messages were
    /// repeated.
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

    /// Injects the remaining faults of memory nodes: clients may have ended earlier, with the nodes
    /// that served them.
    fn end_storm(&mut self) {
        let cluster = self.cluster.cluster();
        while self.turns.are_due() && self.turns.run_for(cluster, self.interval) {
            self.returns.take_in(cluster);
        }
    }

    pub(crate) fn machines(&self) -> &SimMachines {
        SimMachines::of(self.cluster.cluster().machines())
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
    type Host = Client;

    fn embedded(&self) -> &Embedded {
        &self.cluster
    }

    fn embedded_mut(&mut self) -> &mut Embedded {
        &mut self.cluster
    }

    fn run_tasks<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let behaviour = self.behaviour;
        let task =
            move |task_place, slot| task(task_place, Client::new(slot, task_place, behaviour));
        let mut submitted = self.cluster.submit(tasks, task.clone());
        self.drops.start(self.cluster.cluster(), |_| true);
        let (mut looks, mut passed, mut since) = (0, Duration::ZERO, Duration::ZERO);
        while !submitted.iter().all(Submitted::is_finished) {
            let pause = self.mover.pause(self.interval);
            let pause = self.endless.pause(self.drops.pause(self.copies.pause(pause)));
            if !self.turns.run_for(self.cluster.cluster(), pause) {
                break;
            }
            (passed, since) = (passed + pause, since + pause);
            for cn in self.returns.take_in(self.cluster.cluster()) {
                submitted.extend(self.cluster.submit_at(cn, tasks, task.clone()));
                self.drops.start(self.cluster.cluster(), |node| node == cn);
            }
            if passed < self.mover.until {
                self.drops.look(self.cluster.cluster(), pause);
                self.endless.look(self.cluster.cluster(), pause);
            }
            let wrong = self.copies.look(self.cluster.cluster(), pause);
            for wrong in wrong {
                if !self.has_found(&wrong.property) {
                    self.found.push(wrong);
                }
            }
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
                // The clients should have ended; a client waiting for a clock may take very long.
                self.interval *= 2;
            }
        }
        self.end_storm();
        let ended = self.cluster.outcomes(submitted)?;
        let writers = self.drops.end();
        self.cluster.outcomes(writers)?;
        self.found.extend(self.drops.wrong_row());
        // Locks of an endless transaction that were lost would be found by the audit.
        let running = self.at_last(|watched| watched.endless.left());
        self.found.extend(running);
        self.endless.note_ended(self.cluster.cluster());
        // Dropped tables must not be cleared in the middle of an audit.
        let left = self.left_of_drops();
        self.found.extend(left);
        let cluster = self.cluster.cluster();
        cluster.settle().map_err(failed)?;
        self.look()?;
        Ok(ended)
    }

    fn spec(&self, asked: TableSpec) -> TableSpec {
        with_shards(asked, self.shards)
    }
}
