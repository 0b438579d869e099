//! A simulated cluster under the benchmark harness, whose memory is looked at while it runs.

use std::time::Duration;

use lotus::Submitted;
use lotus_benchmarks::audit::Check;
use lotus_benchmarks::deployment::{
    Caches, DeployError, Deployment, Memory, Replay, RowSource, RowVisitor, Seat, Traffic,
};
use lotus_benchmarks::lotus::Embedded;
use lotus_fabric::ids::TableId;
use lotus_fabric::machines::Machines;
use lotus_fabric::sim::SimMachines;
use lotus_mvcc::TableSpec;

use crate::impatient::{Client, Patience};
use crate::run::Violation;
use crate::scenario::Scenario;

/// How often memory is looked at while clients run.
const LOOKS: u32 = 24;

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
}

impl Watched {
    /// Looks at memory as long as clients run.
    pub(crate) fn new(cluster: Embedded<SimMachines>, scenario: &Scenario, seed: u64) -> Self {
        let span = scenario.storm() + scenario.calm();
        let interval = (span / LOOKS).max(Duration::from_micros(1));
        let patience = Patience { impatience: scenario.load.impatience, seed };
        let shards = scenario.cluster.shards;
        Self { cluster, patience, shards, interval, found: Vec::new() }
    }

    pub(crate) fn machines(&self) -> &SimMachines {
        self.cluster.cluster().machines()
    }

    pub(crate) fn into_found(self) -> Vec<Violation> {
        self.found
    }

    fn look(&mut self) -> Result<(), DeployError> {
        let findings = self.cluster.cluster().inspect().map_err(failed)?;
        let at = self.machines().world().now();
        for finding in findings.into_iter().filter(|finding| !finding.passed) {
            if self.found.iter().all(|known| known.property != finding.name) {
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

impl Deployment for Watched {
    type Host = Client;

    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(Seat, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let patience = self.patience;
        let submitted = self
            .cluster
            .submit(tasks, move |seat, slot| task(seat, Client::new(slot, seat, patience)));
        let mut looks = 0;
        while !submitted.iter().all(Submitted::is_finished) {
            if self.machines().run_for(self.interval).is_none() {
                break;
            }
            self.look()?;
            looks += 1;
            if looks >= LOOKS {
                // The clients should have ended; whoever waits for a clock may take very long.
                self.interval *= 2;
            }
        }
        let cluster = self.cluster.cluster();
        let ended = self.cluster.outcomes(submitted)?;
        cluster.settle().map_err(failed)?;
        self.look()?;
        Ok(ended)
    }

    fn create_table(&mut self, spec: TableSpec) -> Result<TableId, DeployError> {
        let shards = spec.shards.min(self.shards);
        self.cluster.create_table(spec.shards(shards))
    }

    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError> {
        self.cluster.load(table, rows, row)
    }

    fn traffic(&self) -> Traffic {
        self.cluster.traffic()
    }

    fn caches(&self) -> Caches {
        self.cluster.caches()
    }

    fn memory(&self) -> Memory {
        self.cluster.memory()
    }

    fn utilisation(&self) -> Option<lotus_fabric::sim::Report> {
        self.machines().utilisation()
    }

    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError> {
        self.cluster.scan(table, visit)
    }

    fn audit(&mut self) -> Result<Vec<Check>, DeployError> {
        self.cluster.audit()
    }

    fn record_verbs(&mut self) {
        self.cluster.record_verbs();
    }

    fn replay(&mut self, secs: f64) -> Result<Replay, DeployError> {
        self.cluster.replay(secs)
    }
}
