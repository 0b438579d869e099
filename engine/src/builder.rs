//! Choosing the shape of an embedded cluster.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::machines::{Machines, Threads};
use lotus_router::Authority;

use crate::cluster::Cluster;
use crate::config::{
    Config, LockKind, ReadRule, Retention, RoutingPolicy, TimestampKind, VisibleOrder,
};
use crate::error::ClusterError;
use crate::part::{Part, Wait};
use crate::plan::Plan;

/// Collects settings; each method documents its default. See [`Config`] for the whole list.
///
/// ```
/// # fn main() -> Result<(), lotus::ClusterError> {
/// let cluster = lotus::Cluster::embedded().memory_nodes(3).compute_nodes(2).replicas(3).start()?;
/// cluster.stop()
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before `start`"]
pub struct ClusterBuilder {
    config: Config,
    part: Part,
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $kind:ty;)*) => {
        impl ClusterBuilder {
            $($(#[$doc])* pub fn $name(mut self, $name: $kind) -> Self {
                self.config.$name = $name;
                self
            })*
        }
    };
}

settings! {
    /// How many memory nodes; 3 unless told otherwise.
    memory_nodes: usize;
    /// How many compute nodes; 1 unless told otherwise.
    compute_nodes: usize;
    /// Copies of every record; 3 unless told otherwise.
    replicas: usize;
    /// Coordinators (threads) on each compute node; 1 unless told otherwise.
    threads: usize;
    /// Transactions that a coordinator interleaves; 16 unless told otherwise.
    coroutines: usize;
    /// Bytes of each compute node's lock table; 32 MiB unless told otherwise.
    lock_table_bytes: usize;
    /// Rows whose CVTs each compute node caches; 64 K unless told otherwise, 0 for none.
    version_table_cache: usize;
    /// The most bytes that a memory node may hold; 16 GiB unless told otherwise.
    memory_limit: u64;
    /// The most rows that a transaction may write; 512 unless told otherwise.
    max_writes: u16;
    /// How long a commit keeps trying before it reports `Unknown`; 5 s unless told otherwise.
    commit_timeout: Duration;
    /// How long a transaction waits for remote locks; 1 s unless told otherwise.
    lock_timeout: Duration;
    /// Seed of all randomness; 0 unless told otherwise.
    seed: u64;
    /// What serializable transactions read under a lock; the latest version unless told otherwise.
    read_rule: ReadRule;
    /// The order of visible writes; backups first unless told otherwise.
    visible_order: VisibleOrder;
    /// Which locks; LOTUS's unless told otherwise.
    locks: LockKind;
    /// Where timestamps come from; a shared clock unless told otherwise.
    timestamps: TimestampKind;
    /// How transactions find their compute node; hybrid unless told otherwise.
    routing: RoutingPolicy;
    /// What becomes of displaced versions; kept while needed unless told otherwise.
    retention: Retention;
    /// How often compute nodes exchange what they still read; 1 ms unless told otherwise.
    horizon_interval: Duration;
    /// How long a compute node may be silent before the others recover it; for ever unless told
    /// otherwise.
    lease: Option<Duration>;
    /// How long a hand-over waits for transactions before it asks them to give up; 10 ms unless
    /// told otherwise.
    drain_patience: Duration;
    /// How often compute nodes compare their loads and give shards away; never unless told
    /// otherwise.
    balance: Option<Duration>;
}

impl ClusterBuilder {
    /// This process has only these compute nodes of the cluster, by their places, in order; others
    /// have the rest, and all agree by `authority`. The process that has compute node 0 makes the
    /// cluster; the others wait for it, each for at most `patience`.
    ///
    /// The founder makes and fills the tables that there are to be within
    /// [`Cluster::fill`](crate::Cluster::fill). Until it has, no snapshot is taken and the first
    /// life of compute node 0 has no successor.
    ///
    /// All processes must have the same settings, [`TimestampKind::Oracle`] among them, and
    /// machines over the same memory nodes: [`Self::start_on`].
    pub fn part(
        mut self,
        compute_nodes: impl IntoIterator<Item = usize>,
        authority: Arc<dyn Authority>,
        patience: Duration,
    ) -> Self {
        let hosted = compute_nodes.into_iter().collect();
        let waiting = Arc::new(|_| ControlFlow::Continue(()));
        self.part = Part::Share { hosted, authority, patience, waiting };
        self
    }

    /// Calls `look` again and again while a process that has a [part](Self::part) of the cluster
    /// waits for others as it starts. [`ControlFlow::Break`] ends the start with
    /// [`ClusterError::Interrupted`]. Of no effect before [`Self::part`].
    pub fn while_waiting(
        mut self,
        look: impl Fn(Wait) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> Self {
        if let Part::Share { waiting, .. } = &mut self.part {
            *waiting = Arc::new(look);
        }
        self
    }

    /// Starts the cluster.
    ///
    /// # Errors
    /// Settings that do not add up, or memory or threads that cannot be had.
    pub fn start(self) -> Result<Cluster, ClusterError> {
        let machines = Threads::new(self.node_count()?, self.config.seed);
        self.start_on(machines)
    }

    /// Starts the cluster on other machines than threads of this process: a simulator's.
    ///
    /// # Errors
    /// As [`ClusterBuilder::start`].
    pub fn start_on<M: Machines>(self, machines: M) -> Result<Cluster<M>, ClusterError> {
        Cluster::start(self.config, &self.part, machines)
    }

    /// How many machines the cluster takes: memory nodes, which come first, and compute nodes.
    ///
    /// # Errors
    /// Settings that do not add up.
    pub fn node_count(&self) -> Result<u16, ClusterError> {
        let plan = Plan::new(&self.config)?;
        Ok((plan.memory_nodes.len() + plan.compute_nodes.len()) as u16)
    }
}
