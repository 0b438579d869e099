//! A cluster, or this process's part of a cluster: compute nodes on some [`Machines`], by default
//! threads and the `local` fabric, with memory nodes in the same process.
//!
//! [`Cluster`] is a `Send + Sync` handle: any thread, with or without an async runtime, may submit
//! whole transactions to the coordinators. (A simulated cluster is for the thread of its world.)
//! Set-up, loading and auditing run on the calling thread, with a separate lane.

use std::future::Future;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use lotus_fabric::counters::VerbCounters;
use lotus_fabric::ids::TableId;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::machines::{Core, Machines, MachinesExt, Threads};
use lotus_fabric::region::WORD_BYTES;
use lotus_mvcc::PrimaryKey;
use lotus_points::point_here;
use lotus_recovery::Beat;
use lotus_router::Intent;

use crate::api::cache_counters::CacheCounters;
use crate::api::config::Config;
use crate::api::coordinator_id::CoordinatorId;
use crate::api::error::{ClusterError, TxnError, unreachable_nodes};
use crate::cluster::builder::ClusterBuilder;
use crate::cluster::load::{Loader, RowSource};
use crate::cluster::part::{self, Arrival, Part};
use crate::cluster::plan::Plan;
use crate::cluster::threads::{self, settle};
use crate::cluster::trees;
use crate::cluster::watchdog::Watchdog;
use crate::membership::members;
use crate::node::shared::{ComputeNode, Shared};
use crate::node::threads::home::{FORKED, Name};
use crate::node::threads::label::Label;
use crate::txn::session::{Job, Session};
use crate::txn::submit::{Submitted, catch_panics};

/// Handle of a cluster; see the module docs. Dropping the handle stops the cluster, like
/// [`Cluster::stop`].
pub struct Cluster {
    pub(super) machines: Box<dyn Machines>,
    pub(crate) shared: Arc<Shared>,
    pub(super) coordinators: RwLock<Vec<CoordinatorHandle>>,
    /// Counter that spreads transactions without a named row over the coordinators.
    next: AtomicU64,
    /// Whether this process has founded the cluster.
    founded: bool,
    /// Whether this process's nodes had been started before.
    returned: bool,
    /// Whether the cluster has no other processes.
    alone: bool,
    name: Name,
    /// Watch for code that holds up coordinators, if coordinators are threads.
    pub(super) watchdog: Option<Watchdog>,
}

pub(super) struct CoordinatorHandle {
    pub(super) coordinator_id: CoordinatorId,
    pub(super) jobs: Sender<Job>,
    pub(super) core: Option<Core>,
    /// Closed when the coordinator has ended.
    pub(super) ended: Receiver<()>,
}

impl Cluster {
    /// Returns the default settings of an embedded cluster; see [`ClusterBuilder`].
    pub fn embedded() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Ends a compute node on the spot, as if its process had died: commits stay unfinished, locks
    /// are not released, no other node is notified. Jobs submitted to the node end with `Fenced`.
    ///
    /// With a [lease](ClusterBuilder::lease) the other nodes notice, resolve the node's
    /// transactions and take over its shards; reported commits are kept. Without a lease, the rows
    /// that the node was writing stay locked.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn kill(&self, compute_node: usize) {
        self.shared.hosted(compute_node).expect("a compute node of this process").kill();
    }

    /// Returns the fabric, for tests that make nodes fail. Memory nodes are numbered from zero,
    /// compute nodes follow.
    ///
    /// # Panics
    /// If the memory is not in this process.
    #[doc(hidden)]
    pub fn local_fabric(&self) -> &LocalFabric {
        let threads = self.machines.downcast::<Threads>();
        threads.and_then(Threads::local_fabric).expect("memory in this process")
    }

    pub(crate) fn start(
        config: Config,
        part: &Part,
        machines: Box<dyn Machines>,
    ) -> Result<Self, ClusterError> {
        let plan = Plan::new(&config)?;
        let (shared, entry) = plan.carry_out(config, part, &*machines)?;
        let shared = Arc::new(shared);
        let mut cluster = Self {
            name: Name::of(Arc::as_ptr(&shared)),
            watchdog: None,
            machines,
            shared: Arc::clone(&shared),
            coordinators: RwLock::default(),
            next: AtomicU64::new(0),
            founded: entry.founds(),
            returned: entry.is_announced(),
            alone: part.is_whole(),
        };
        if !entry.is_announced() {
            cluster.write_headers(&entry)?;
            point_here!(shared.nodes.first().id.0, FirstBeat);
        }
        if entry.founds() {
            let (control, authority) = (&shared.control, shared.async_authority.authority());
            part::found(&shared.config, part, entry.members(), control, authority)?;
            point_here!(shared.nodes.first().id.0, Chartered);
        }
        // From now on other processes count on these nodes: a lost answer ends nothing (I209).
        part.ask(&shared.control, || shared.learn_tables())?;
        part.ask(&shared.control, || shared.learn_losses())?;
        for node in &shared.nodes {
            cluster.start_coordinators(&node)?;
        }
        if shared.has_threads {
            cluster.watchdog = Some(Watchdog::start(&shared)?);
        }
        Ok(cluster)
    }

    /// Whether this process has founded the cluster, which then has no tables yet. False for a
    /// process with a returned incarnation of compute node 0.
    pub fn has_founded(&self) -> bool {
        self.founded
    }

    /// Whether the compute nodes of this process have returned, as new incarnations.
    pub fn has_returned(&self) -> bool {
        self.returned
    }

    /// Whether all compute nodes are, and always will be, in this process.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Returns the settings that the cluster was started with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Fills an empty table with rows `0..rows`, in parallel; `loaded` counts the rows. No
    /// transaction may use the table meanwhile. The rows of an ordered table are sorted in memory
    /// first. While a memory node is lost or filled, or a table dropped, the load waits, and then
    /// goes on.
    ///
    /// # Errors
    /// An unknown table, which may have been dropped meanwhile; an invalid or duplicate row; no
    /// room; or memory nodes that have not answered, or have been changing, for a minute. The table
    /// is unusable afterwards.
    pub fn load(
        &self,
        table: TableId,
        rows: u64,
        source: &RowSource<'_>,
        loaded: &AtomicU64,
    ) -> Result<(), ClusterError> {
        let def = self.shared.table(table).ok_or(ClusterError::UnknownTable(table))?;
        if !def.is_ordered() {
            return self.load_stored(table, rows, source, loaded);
        }
        let nodes = trees::nodes(&def, rows, source)?;
        let node = |number: u64, value: &mut Vec<u8>| {
            let (id, bytes) = &nodes[number as usize];
            value.extend_from_slice(bytes);
            PrimaryKey::from(*id)
        };
        self.load_stored(table, nodes.len() as u64, &node, loaded)
    }

    /// Fills an empty table with rows in their stored form.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) fn load_stored(
        &self,
        table: TableId,
        rows: u64,
        source: &RowSource<'_>,
        loaded: &AtomicU64,
    ) -> Result<(), ClusterError> {
        let def = self.shared.table(table).ok_or(ClusterError::UnknownTable(table))?;
        let shared = &*self.shared;
        let workers = shared.control.workers();
        let told = &shared.told_of_rows(table);
        let loads = shared.control.in_parallel(workers, |worker| {
            let table = Arc::clone(&def);
            shared.control.with_lane(|lane| async move {
                Loader { shared, lane, table, source, loaded, told }
                    .run(rows, worker, workers)
                    .await
            })?
        });
        loads.into_iter().collect::<Result<(), _>>()?;
        if def.is_ordered() {
            shared.note_nodes(table, rows);
        }
        Ok(())
    }

    /// Runs `job` in one of the coroutine slots of the coordinator `coordinator_id`. The job
    /// occupies the slot until it ends, and drives its transactions by hand; [`Cluster::run`]
    /// drives a transaction's body.
    ///
    /// A job has no time limit. A job may submit a further job to the same cluster, but must not
    /// wait for its outcome.
    ///
    /// # Panics
    /// If the coordinator is not in this process.
    #[track_caller]
    pub fn submit<T, F, Fut>(&self, coordinator_id: CoordinatorId, job: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: FnOnce(Session) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, TxnError>> + 'static,
    {
        self.assign(coordinator_id, Label::Site(Location::caller()), job)
    }

    /// As [`Cluster::submit`], with any type of error.
    pub(crate) fn assign<T, E, F, Fut>(
        &self,
        coordinator_id: CoordinatorId,
        label: Label,
        job: F,
    ) -> Submitted<T, E>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: FnOnce(Session) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, E>> + 'static,
    {
        if self.name.is_forked() {
            return Submitted::refused(self.name, TxnError::Misuse(FORKED));
        }
        let coordinators = self.coordinators.read().unwrap_or_else(PoisonError::into_inner);
        let coordinator = coordinators.iter().find(|known| known.coordinator_id == coordinator_id);
        let coordinator = coordinator.expect("the coordinator is one of this process's");
        let (reply, submitted) = Submitted::channel(self.name);
        let job: Job = Box::new(move |session| {
            session.slot().name_job(Some(label));
            Box::pin(async move {
                reply.send(catch_panics(move || job(session)).await);
            })
        });
        // A failed coordinator takes no jobs; the dropped reply then tells the caller.
        let _ = coordinator.jobs.try_send(job);
        submitted
    }

    /// Returns the cluster's name among the clusters of this process.
    pub(crate) fn name(&self) -> Name {
        self.name
    }

    /// Whether any compute node of this process still takes part: has neither failed nor been
    /// expelled.
    pub fn is_serving(&self) -> bool {
        self.shared.nodes.iter().any(|node| !node.has_failed())
    }

    /// Returns the ids of all coordinators of this process.
    pub fn coordinators(&self) -> impl Iterator<Item = CoordinatorId> + '_ {
        let coordinators = self.coordinators.read().unwrap_or_else(PoisonError::into_inner);
        let coordinator_ids: Vec<CoordinatorId> =
            coordinators.iter().map(|coordinator| coordinator.coordinator_id).collect();
        coordinator_ids.into_iter()
    }

    /// Returns the ids of the coordinators on compute nodes that have not failed.
    pub(crate) fn serving_coordinators(&self) -> impl Iterator<Item = CoordinatorId> + '_ {
        let serves = |coordinator_id: &CoordinatorId| {
            let node = self.shared.hosted(coordinator_id.compute_node);
            node.is_some_and(|node| !node.has_failed())
        };
        self.coordinators().filter(serves)
    }

    /// Returns `coordinator_id`, or the same thread's coordinator on the next node of this process
    /// that has not failed.
    pub(crate) fn serving(&self, coordinator_id: CoordinatorId) -> CoordinatorId {
        let nodes: Vec<_> = self.shared.nodes.iter().collect();
        let first =
            nodes.iter().position(|node| node.index >= coordinator_id.compute_node).unwrap_or(0);
        let mut turn = (0..nodes.len()).map(|step| &nodes[(first + step) % nodes.len()]);
        let serving = turn.find(|node| !node.has_failed()).unwrap_or(&nodes[first]);
        CoordinatorId { compute_node: serving.index, ..coordinator_id }
    }

    /// Returns the place of the compute node that the router chooses for a transaction.
    pub fn route(&self, intent: Intent, random: u64) -> usize {
        self.shared.index_of(self.shared.router.route(intent, random)).unwrap_or(0)
    }

    /// Returns the verbs and messages of all coordinators since the start, except on failed nodes.
    ///
    /// # Errors
    /// `Fenced` if a coordinator fails meanwhile.
    pub fn counters(&self) -> Result<VerbCounters, TxnError> {
        let mut all = VerbCounters::default();
        for coordinator_id in self.serving_coordinators() {
            let counted =
                self.submit(coordinator_id, |session| async move { Ok(session.counters()) });
            all += &self.wait(counted)?;
        }
        Ok(all)
    }

    /// Returns the look-ups of all coordinators in their nodes' caches since the start, except on
    /// failed nodes.
    ///
    /// # Errors
    /// `Fenced` if a coordinator fails meanwhile.
    pub fn cache_counters(&self) -> Result<CacheCounters, TxnError> {
        let mut all = CacheCounters::default();
        for coordinator_id in self.serving_coordinators() {
            let counted =
                self.submit(coordinator_id, |session| async move { Ok(session.cache_counters()) });
            all += self.wait(counted)?;
        }
        Ok(all)
    }

    /// Waits until reported commits are complete: a commit is reported when every copy shows it,
    /// before its remote locks are released (H3). Also waits for purges and trims, which
    /// coordinators run some time after the commits that cause them; no new ones begin before a
    /// client's next transaction at the coordinator. With a lease, also waits for the recovery of
    /// failed nodes. Gives up one second after the configured time-outs of commits and locks,
    /// enough for repeated messages; an audit then finds the unfinished work. Does not wait for
    /// returning memory nodes to be filled.
    ///
    /// # Errors
    /// `Fenced` if a coordinator fails meanwhile, or has failed before in a cluster without a
    /// lease.
    pub fn settle(&self) -> Result<(), TxnError> {
        let config = &self.shared.config;
        let patience = config.commit_timeout + config.lock_timeout + Duration::from_secs(1);
        let wait = move |session: Session| async move {
            settle(session.coordinator(), patience).await;
            Ok(())
        };
        let coordinator_ids: Vec<CoordinatorId> = match config.lease {
            Some(_) => self.serving_coordinators().collect(),
            None => self.coordinators().collect(),
        };
        let settled: Vec<_> = coordinator_ids
            .into_iter()
            .map(|coordinator_id| self.submit(coordinator_id, wait))
            .collect();
        settled.into_iter().try_for_each(|settled| self.wait(settled))
    }

    /// Returns the machines of the cluster.
    pub fn machines(&self) -> &dyn Machines {
        &*self.machines
    }

    /// Waits for the outcome of a job. On threads this is [`Submitted::wait`]; on other machines
    /// the cores run only during such a wait.
    ///
    /// # Errors
    /// As [`Submitted::wait`].
    pub fn wait<T, E: From<TxnError>>(&self, submitted: Submitted<T, E>) -> Result<T, E> {
        submitted.wait_on(&*self.machines)
    }

    /// Returns the places of the compute nodes that some coordinator of compute node `compute_node`
    /// suspects of being dead.
    ///
    /// # Panics
    /// If the compute node is not in this process.
    pub fn suspects(&self, compute_node: usize) -> Vec<usize> {
        let node = self.shared.hosted(compute_node).expect("a compute node of this process");
        node.suspects.nodes().filter_map(|suspect| self.shared.index_of(suspect)).collect()
    }

    pub(crate) fn any_coordinator(&self) -> CoordinatorId {
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let coordinator_id = {
            let coordinators = self.coordinators.read().unwrap_or_else(PoisonError::into_inner);
            coordinators[next % coordinators.len()].coordinator_id
        };
        self.serving(coordinator_id)
    }

    pub(crate) fn random(&self) -> u64 {
        // Weyl's sequence: even enough for routing, and its only state is a counter.
        self.next.load(Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// Starts all coordinators of a node.
    pub(crate) fn start_coordinators(&self, node: &Arc<ComputeNode>) -> Result<(), ClusterError> {
        for thread in 0..self.shared.config.threads {
            let handle = self.start_coordinator(node, thread)?;
            let mut all = self.coordinators.write().unwrap_or_else(PoisonError::into_inner);
            match all.iter_mut().find(|known| known.coordinator_id == handle.coordinator_id) {
                Some(before) => *before = handle,
                None => all.push(handle),
            }
        }
        Ok(())
    }

    fn start_coordinator(
        &self,
        node: &Arc<ComputeNode>,
        thread: usize,
    ) -> Result<CoordinatorHandle, ClusterError> {
        let (jobs, inbox) = async_channel::unbounded();
        let (ready, started) = async_channel::bounded(1);
        let (ending, ended) = async_channel::bounded(1);
        let name = format!("lotus-cn{}-{thread}", node.index);
        let (shared, of) = (Arc::clone(&self.shared), Arc::clone(node));
        let program = threads::program(shared, of, thread, inbox, ready, ending);
        let core = self.machines.start(node.id, &name, program)?;
        let failed = ClusterError::CoordinatorFailed { node: node.index };
        self.machines.wait(&started).ok_or(failed)??;
        let coordinator_id = CoordinatorId { compute_node: node.index, thread };
        Ok(CoordinatorHandle { coordinator_id, jobs, core: Some(core), ended })
    }

    /// Writes the first beats of this process's nodes. The founder first writes the header page of
    /// every replica of every group.
    fn write_headers(&self, entry: &Arrival) -> Result<(), ClusterError> {
        let (shared, founds) = (&self.shared, entry.founds());
        let placement = entry.members().kept(&shared.placement);
        let written = self.shared.control.with_lane(|lane| async move {
            let mut batch = lane.batch();
            let replicas = placement.groups().flat_map(|(_, replicas)| replicas.members());
            for replica in replicas.filter(|_| founds) {
                for (index, word) in shared.region.encode().into_iter().enumerate() {
                    batch.write_word(replica.at((index * WORD_BYTES) as u64), word);
                }
            }
            if founds {
                shared.write_first_owners(&mut batch);
            }
            let left = placement.nodes();
            let places = shared.placement.primaries().enumerate();
            for (memory, _) in places.filter(|(_, node)| left.contains(*node)) {
                for node in &shared.nodes {
                    let word = members::beat_word(&shared.placement, memory, node.index);
                    batch.write_word(word, Beat::first(node.epoch).word());
                }
            }
            batch.post().await.map(drop)
        })?;
        written.map_err(unreachable_nodes)
    }
}
