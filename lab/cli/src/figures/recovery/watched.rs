//! A simulated cluster polled, after the loss of nodes, for the owners of shards and for whole
//! copies.

use std::time::Duration;

use lotus::{MemoryStanding, ShardStatus, Submitted};
use lotus_benchmarks::deployment::{DeployError, TaskPlace};
use lotus_benchmarks::lotus::{Embedded, Slot};
use lotus_benchmarks::wrapper::Wrapper;
use lotus_fabric::sim::SimMachines;

/// Interval between polls, in virtual time.
const LOOK: Duration = Duration::from_micros(200);

/// The losses to watch.
#[derive(Debug)]
pub(super) struct Awaited {
    /// Time of the loss, in milliseconds after the start of the world.
    pub lost_at_ms: f64,
    /// Indices of the lost compute nodes.
    pub dead: Vec<usize>,
    /// Index of the restarted memory node, and the time of the restart in milliseconds, as above.
    pub made_anew: Option<(usize, f64)>,
}

/// Times of the first sighting of each state, in milliseconds after the loss.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Sightings {
    /// Every shard has a live owner.
    pub owned: Option<f64>,
    /// The restarted memory node gets every write.
    pub joined: Option<f64>,
    /// Share of the memory node's shards copied so far, and the time of the last poll.
    pub copied: Option<(f64, f64)>,
    /// The copies of the memory node are whole.
    pub whole: Option<f64>,
}

/// A cluster with its tasks, polled while they run.
pub(super) struct Watched {
    cluster: Embedded,
    awaited: Awaited,
    pub(super) seen: Sightings,
}

impl Watched {
    pub(super) fn new(cluster: Embedded, awaited: Awaited) -> Self {
        Self { cluster, awaited, seen: Sightings::default() }
    }

    /// Polls the cluster once. State that cannot be read now is read at the next poll.
    fn look(&mut self) {
        let cluster = self.cluster.cluster();
        let now_ms = SimMachines::of(cluster.machines()).world().now().as_secs_f64() * 1e3;
        let since_ms = now_ms - self.awaited.lost_at_ms;
        if since_ms <= 0.0 {
            return;
        }
        let Awaited { dead, made_anew, .. } = &self.awaited;
        if self.seen.owned.is_none() && !dead.is_empty() {
            let lives =
                |shard: &ShardStatus| shard.owner.is_some_and(|owner| !dead.contains(&owner));
            let all = cluster.shards().is_ok_and(|shards| shards.iter().all(lives));
            self.seen.owned = all.then_some(since_ms);
        }
        let Some((place, _)) = made_anew.filter(|(_, at_ms)| now_ms > *at_ms) else { return };
        if self.seen.whole.is_some() {
            return;
        }
        let returns = cluster.memory_returns().unwrap_or_default();
        if let Some(one) = returns.iter().find(|one| one.memory_node == place) {
            self.seen.joined.get_or_insert(since_ms);
            self.seen.copied = Some((one.shards as f64 / one.of as f64, since_ms));
            return;
        }
        let status = cluster.memory_status();
        let serves = status.is_ok_and(|all| all.nodes[place] == MemoryStanding::Serving);
        if serves && self.seen.joined.is_some() {
            self.seen.copied = Some((1.0, since_ms));
            self.seen.whole = Some(since_ms);
        }
    }
}

impl Wrapper for Watched {
    type Host = Slot;

    fn embedded(&self) -> &Embedded {
        &self.cluster
    }

    fn embedded_mut(&mut self) -> &mut Embedded {
        &mut self.cluster
    }

    fn run_tasks<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, Slot) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let submitted = self.cluster.submit(tasks, task);
        while !submitted.iter().all(Submitted::is_finished) {
            if SimMachines::of(self.cluster.cluster().machines()).run_for(LOOK).is_none() {
                break;
            }
            self.look();
        }
        let ended = self.cluster.outcomes(submitted)?;
        let settled = self.cluster.cluster().settle();
        settled.map_err(|error| DeployError::Failed(error.to_string()))?;
        Ok(ended)
    }
}
