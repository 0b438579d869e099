//! Builder of a cluster, with its settings.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use lotus_authority::Authority;
use lotus_fabric::machines::{Machines, Threads};
use lotus_mvcc::Secret;

use crate::api::config::{
    Addresses, Config, LockKind, LockWait, ReadRule, Retention, RoutingPolicy, TimestampKind,
    VisibleOrder,
};
use crate::api::error::ClusterError;
use crate::cluster::handle::Cluster;
use crate::cluster::part::{Part, Wait};
use crate::cluster::plan::Plan;

/// Settings of a cluster; the methods document the defaults. [`Config`] has the whole list.
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
    /// Number of memory nodes; default 3.
    memory_nodes: usize;
    /// Number of compute nodes; default 1.
    compute_nodes: usize;
    /// Copies of every record; default 3.
    replicas: usize;
    /// Coordinators (threads) on each compute node; default 1.
    threads: usize;
    /// Transactions interleaved by a coordinator; default 16.
    coroutines: usize;
    /// Bytes of each compute node's lock table; default 32 MiB.
    lock_table_bytes: usize;
    /// CVTs cached by each compute node; default 64 K, 0 for no cache.
    version_table_cache: usize;
    /// Limit of a memory node's memory, in bytes; default 16 GiB.
    memory_limit: u64;
    /// Limit of the rows written by one transaction; default 512.
    max_writes: u16;
    /// Time for which a commit retries before it reports `Unknown`; default 5 s.
    commit_timeout: Duration;
    /// Time for which an execution of a transaction waits for locks; default 1 s.
    lock_timeout: Duration;
    /// Time within which a transaction must begin its commit; default 60 s, `None` for ever.
    transaction_timeout: Option<Duration>;
    /// Time within which transactions must end when the cluster is stopped or dropped; default
    /// 10 s.
    stop_timeout: Duration;
    /// Time for which code of a transaction may block a thread before the node gives itself up;
    /// default 10 s.
    block_limit: Duration;
    /// Seed of all randomness; default 0.
    seed: u64;
    /// Bits of the names of rows; default 64. For tests of rows that share a name.
    name_bits: u32;
    /// Secret of the names of rows, for repeatable runs; default to draw a secret.
    name_secret: Option<Secret>;
    /// Version read by serializable transactions under a lock; default the latest.
    read_rule: ReadRule;
    /// Order in which a commit's versions become visible; default backups first.
    visible_order: VisibleOrder;
    /// Kind of locks; default LOTUS's lock tables.
    locks: LockKind;
    /// Treatment of requests for held locks; default to refuse the request, as in the paper.
    lock_wait: LockWait;
    /// Source of timestamps; default a shared clock.
    timestamps: TimestampKind;
    /// Policy that chooses a transaction's compute node; default hybrid.
    routing: RoutingPolicy;
    /// Treatment of displaced versions; default to keep a version while a snapshot needs it.
    retention: Retention;
    /// Contents of the address caches at the start; default empty.
    addresses: Addresses;
    /// Interval at which compute nodes publish their oldest snapshots in use; default 1 ms.
    horizon_interval: Duration;
    /// Time for which a compute node may be silent before the other nodes expel and recover it;
    /// default for ever.
    lease: Option<Duration>;
    /// Time for which a hand-over waits for transactions before it asks them to give up; default
    /// 10 ms.
    drain_patience: Duration;
    /// Interval at which compute nodes compare their loads and give shards away; default never.
    balance: Option<Duration>;
}

impl ClusterBuilder {
    /// Makes this process one of several. This process hosts only the given compute nodes, named by
    /// their places, in order. Other processes host the rest, and the processes agree through
    /// `authority`. The process of compute node 0 founds the cluster; every other process waits for
    /// the founder for at most `patience`.
    ///
    /// The founder creates and fills the initial tables within
    /// [`Cluster::fill`](crate::Cluster::fill). Until the load is done, no snapshot is taken and
    /// the first life of compute node 0 has no successor.
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

    /// Calls `look` repeatedly while a process with a [part](Self::part) of the cluster waits for
    /// other processes during its start. [`ControlFlow::Break`] ends the start with
    /// [`ClusterError::Interrupted`]. Has no effect if called before [`Self::part`].
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
    /// Inconsistent settings, or not enough memory or threads.
    pub fn start(self) -> Result<Cluster, ClusterError> {
        let machines = Threads::new(self.node_count()?, self.config.seed);
        self.start_on(machines)
    }

    /// Starts the cluster on machines other than threads of this process, for example a
    /// simulator's.
    ///
    /// # Errors
    /// As [`ClusterBuilder::start`].
    pub fn start_on(self, machines: impl Machines) -> Result<Cluster, ClusterError> {
        Cluster::start(self.config, &self.part, Box::new(machines))
    }

    /// Returns the number of machines of the cluster: memory nodes, which come first, and compute
    /// nodes.
    ///
    /// # Errors
    /// Inconsistent settings.
    pub fn node_count(&self) -> Result<u16, ClusterError> {
        let plan = Plan::new(&self.config)?;
        Ok((plan.memory_nodes.len() + plan.compute_nodes.len()) as u16)
    }
}
