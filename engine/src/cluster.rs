//! A cluster in this process: memory nodes and compute nodes on some [`Machines`], by default
//! threads and the `local` fabric.
//!
//! [`Cluster`] is a `Send + Sync` handle: any thread, with or without an async runtime, may submit
//! whole transactions to the coordinators. Set-up, loading and auditing run on the calling thread,
//! with a lane of their own.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_channel::Sender;
use lotus_fabric::counters::VerbCounters;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::TableId;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::machines::{Machines, Threads};
use lotus_fabric::region::WORD_BYTES;
use lotus_mvcc::address_cache::AddressCache;
use lotus_mvcc::index::IndexShape;
use lotus_mvcc::layout::region::{SlabEntry, SlabKind};
use lotus_mvcc::retention;
use lotus_mvcc::{PrimaryKey, TableDef, TableSpec};
use lotus_router::Intent;

use crate::builder::ClusterBuilder;
use crate::cache_counters::CacheCounters;
use crate::config::Config;
use crate::coordinator::{self, Job};
use crate::error::{ClusterError, TxnError};
use crate::load::{Loader, RowSource};
use crate::memory::{self, SlabError};
use crate::plan::Plan;
use crate::session::{Isolation, Session};
use crate::shared::{ComputeNode, NodeTable, Shared};
use crate::submit::{Kind, Submitted, catch_panics, retry};
use crate::txn::Transaction;

/// See the module's essay. Dropping it stops the cluster.
pub struct Cluster<M: Machines = Threads> {
    machines: M,
    pub(crate) shared: Arc<Shared>,
    coordinators: Vec<CoordinatorHandle<M::Core>>,
    /// Spreads transactions that name no row over the coordinators.
    next: AtomicU64,
}

struct CoordinatorHandle<C> {
    node: usize,
    jobs: Sender<Job>,
    core: Option<C>,
}

/// Which coordinator a job runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The compute node, from zero.
    pub compute_node: usize,
    /// The coordinator on that node, from zero.
    pub thread: usize,
}

impl Cluster {
    /// Sets up an embedded cluster; see [`ClusterBuilder`] for what can be chosen.
    pub fn embedded() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Ends a compute node on the spot, as if its process had died: no commit is finished, no lock
    /// released, nobody told. What was submitted to it ends with `Fenced`.
    ///
    /// With a [lease](ClusterBuilder::lease) the others notice, settle what it was doing and take
    /// its shards over; what it had reported as committed stays. Without one, its rows stay as they
    /// are: locked.
    ///
    /// # Panics
    /// If there is no such compute node.
    pub fn kill(&self, compute_node: usize) {
        self.shared.nodes[compute_node].kill();
    }

    /// The fabric underneath, for tests that let nodes fail. Memory nodes are numbered from zero,
    /// compute nodes after them.
    #[doc(hidden)]
    pub fn local_fabric(&self) -> &LocalFabric {
        self.machines.local_fabric()
    }
}

impl<M: Machines> Cluster<M> {
    pub(crate) fn start(config: Config, machines: M) -> Result<Self, ClusterError> {
        let plan = Plan::new(&config)?;
        let shared = Arc::new(plan.carry_out(config, &machines)?);
        let mut cluster = Self {
            machines,
            shared: Arc::clone(&shared),
            coordinators: Vec::new(),
            next: AtomicU64::new(0),
        };
        cluster.format()?;
        for node in &shared.nodes {
            for thread in 0..shared.config.threads {
                let handle = cluster.start_coordinator(node, thread)?;
                cluster.coordinators.push(handle);
            }
        }
        Ok(cluster)
    }

    /// The settings it was started with.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Makes a table on every node.
    ///
    /// # Errors
    /// An invalid specification, a name that is taken, or no room under the memory limit.
    pub fn create_table(&self, spec: TableSpec) -> Result<TableId, ClusterError> {
        let shared = &self.shared;
        let groups = shared.placement.group_count();
        let shape = IndexShape::of(&spec, groups)?;
        let mut tables = shared.tables.write().unwrap_or_else(PoisonError::into_inner);
        if tables.iter().any(|table| table.spec().name == spec.name) {
            return Err(ClusterError::TableExists(spec.name.into_owned()));
        }
        let id = TableId(tables.len() as u16);
        let mut bases = Vec::new();
        for (group, replicas) in shared.placement.groups() {
            let needed = shape.index_bytes(usize::from(group.0));
            if needed == 0 {
                bases.push(shared.region.first_slab());
                continue;
            }
            let owner = shared.nodes[0].incarnation;
            let entry = SlabEntry { kind: SlabKind::Index, table: id, owner };
            let taken = self.shared.control.with_lane(|lane| async move {
                memory::take_slabs(&lane, replicas, &shared.region, needed, entry).await
            })?;
            bases.push(taken.map_err(|error| match error {
                SlabError::Full => ClusterError::OutOfMemory { table: id, needed },
                SlabError::Fabric(error) => ClusterError::Unreachable(error.to_string()),
            })?);
        }
        let table = Arc::new(TableDef::new(id, spec, bases)?);
        let capacity = table.spec().capacity;
        let sharers = shared.config.compute_nodes * shared.config.threads;
        let sharers = (sharers * shared.placement.group_count()) as u64;
        let retired_limit = retention::limit(capacity, sharers, table.slot_bytes());
        for node in &shared.nodes {
            // A quarter more than there are rows, so that few of them compete for a line.
            let entries = capacity + capacity / 4;
            let addresses = AddressCache::with_entries(entries as usize)?;
            let known = Arc::new(NodeTable { def: Arc::clone(&table), addresses, retired_limit });
            node.tables.write().unwrap_or_else(PoisonError::into_inner).push(known);
        }
        tables.push(table);
        Ok(id)
    }

    /// The table named `name`.
    pub fn table(&self, name: &str) -> Option<TableId> {
        let tables = self.shared.tables.read().unwrap_or_else(PoisonError::into_inner);
        tables.iter().find(|table| table.spec().name == name).map(|table| table.id())
    }

    /// Fills an empty table with rows `0..rows`, in parallel; `loaded` counts them. No transaction
    /// may use the table meanwhile.
    ///
    /// # Errors
    /// An unknown table, an invalid or duplicate row, or no room. The table is then in no state to
    /// be used.
    pub fn load(
        &self,
        table: TableId,
        rows: u64,
        source: &RowSource<'_>,
        loaded: &AtomicU64,
    ) -> Result<(), ClusterError> {
        let def = self.shared.table(table).ok_or(ClusterError::UnknownTable(table))?;
        let shared = &*self.shared;
        let workers = shared.control.workers();
        let loads = shared.control.in_parallel(workers, |worker| {
            let table = Arc::clone(&def);
            shared.control.with_lane(|lane| async move {
                Loader { shared, lane, table, source, loaded }.run(rows, worker, workers).await
            })?
        });
        loads.into_iter().collect()
    }

    /// Runs `job` in one of the coroutine slots of the coordinator at `seat`. It occupies the slot
    /// until it ends.
    ///
    /// # Panics
    /// If there is no such coordinator.
    pub fn submit<T, F, Fut>(&self, seat: Seat, job: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: FnOnce(Session) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, TxnError>> + 'static,
    {
        let Config { compute_nodes, threads, .. } = self.shared.config;
        let exists = seat.compute_node < compute_nodes && seat.thread < threads;
        assert!(exists, "there is no coordinator at {seat:?}");
        let index = seat.compute_node * threads + seat.thread;
        let (reply, submitted) = Submitted::channel();
        let job: Job = Box::new(move |session| {
            Box::pin(async move {
                let outcome = catch_panics(move || job(session)).await;
                reply.send(outcome);
            })
        });
        // A coordinator that has failed takes nothing; the reply is then dropped, and says so.
        let _ = self.coordinators[index].jobs.try_send(job);
        submitted
    }

    /// Every coordinator.
    pub fn seats(&self) -> impl Iterator<Item = Seat> + use<M> {
        let threads = self.shared.config.threads;
        (0..self.shared.config.compute_nodes).flat_map(move |compute_node| {
            (0..threads).map(move |thread| Seat { compute_node, thread })
        })
    }

    /// Every coordinator of a compute node that has not failed, as far as this process knows.
    fn serving_seats(&self) -> impl Iterator<Item = Seat> + '_ {
        self.seats().filter(|seat| !self.shared.nodes[seat.compute_node].has_failed())
    }

    /// This seat, or the one with the same number on the next compute node that has not failed.
    fn serving(&self, seat: Seat) -> Seat {
        let nodes = &self.shared.nodes;
        let turn = (0..nodes.len()).map(|step| (seat.compute_node + step) % nodes.len());
        let serving = turn.into_iter().find(|index| !nodes[*index].has_failed());
        Seat { compute_node: serving.unwrap_or(seat.compute_node), ..seat }
    }

    /// Runs a read-write transaction on some coordinator, and again as long as it fails for a
    /// reason that a retry may cure.
    ///
    /// The closure gets the transaction and must commit it; it runs anew in each attempt. Await
    /// the result or [`Submitted::wait`] for it.
    pub fn run<T, F, Fut>(&self, isolation: Isolation, body: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: Fn(Transaction) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, TxnError>> + 'static,
    {
        self.submit(self.any_seat(), move |session| retry(session, Kind::Write(isolation), body))
    }

    /// Like [`Cluster::run`], on the compute node that owns the locks of a row, where they cost no
    /// message (LOTUS §4.3).
    ///
    /// # Errors
    /// `UnknownTable`.
    pub fn run_at<T, F, Fut>(
        &self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        isolation: Isolation,
        body: F,
    ) -> Result<Submitted<T>, TxnError>
    where
        T: Send + 'static,
        F: Fn(Transaction) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, TxnError>> + 'static,
    {
        let def = self.shared.table(table).ok_or(TxnError::UnknownTable(table))?;
        let first = def.key(&key.into()).shard();
        let intent = Intent::ReadWrite { first };
        let node = self.shared.router.route(intent, self.random());
        let compute_node = self.shared.index_of(node).unwrap_or(0);
        let seat = self.serving(Seat { compute_node, ..self.any_seat() });
        Ok(self.submit(seat, move |session| retry(session, Kind::Write(isolation), body)))
    }

    /// Like [`Cluster::run`], for a transaction that only reads: one snapshot, no locks.
    pub fn run_read_only<T, F, Fut>(&self, body: F) -> Submitted<T>
    where
        T: Send + 'static,
        F: Fn(Transaction) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, TxnError>> + 'static,
    {
        self.submit(self.any_seat(), move |session| retry(session, Kind::Read, body))
    }

    /// Which compute node, by its place, the router would send a transaction to.
    pub fn route(&self, intent: Intent, random: u64) -> usize {
        self.shared.index_of(self.shared.router.route(intent, random)).unwrap_or(0)
    }

    /// Verbs and messages of all coordinators since the start, but for those of nodes that failed.
    ///
    /// # Errors
    /// `Fenced` if a coordinator fails meanwhile.
    pub fn counters(&self) -> Result<VerbCounters, TxnError> {
        let mut all = VerbCounters::default();
        for seat in self.serving_seats() {
            let counted = self.submit(seat, |session| async move { Ok(session.counters()) });
            all += &self.wait(counted)?;
        }
        Ok(all)
    }

    /// Look-ups of all coordinators in their nodes' caches since the start, but for those of nodes
    /// that failed.
    ///
    /// # Errors
    /// `Fenced` if a coordinator fails meanwhile.
    pub fn cache_counters(&self) -> Result<CacheCounters, TxnError> {
        let mut all = CacheCounters::default();
        for seat in self.serving_seats() {
            let counted = self.submit(seat, |session| async move { Ok(session.cache_counters()) });
            all += self.wait(counted)?;
        }
        Ok(all)
    }

    /// Waits until what was reported is also over: a commit is reported when it is certain, which
    /// is before its primaries are visible and its remote locks released (H3). With a lease, waits
    /// for the recovery of nodes that have failed as well. Gives up a second after the configured
    /// time-outs of commits and locks, time enough for what has to be repeated; an audit then finds
    /// what is left.
    ///
    /// # Errors
    /// `Fenced` if a coordinator fails meanwhile, or if there is no lease and one has failed.
    pub fn settle(&self) -> Result<(), TxnError> {
        let config = &self.shared.config;
        let patience = config.commit_timeout + config.lock_timeout + Duration::from_secs(1);
        let wait = move |session: Session| async move {
            session.settle(patience).await;
            Ok(())
        };
        let seats: Vec<Seat> = match config.lease {
            Some(_) => self.serving_seats().collect(),
            None => self.seats().collect(),
        };
        let settled: Vec<_> = seats.into_iter().map(|seat| self.submit(seat, wait)).collect();
        settled.into_iter().try_for_each(|settled| self.wait(settled))
    }

    /// The machines that it runs on.
    pub fn machines(&self) -> &M {
        &self.machines
    }

    /// Waits for the outcome of a job. On threads [`Submitted::wait`] does the same; elsewhere the
    /// cores run only while somebody waits like this.
    ///
    /// # Errors
    /// As [`Submitted::wait`].
    pub fn wait<T>(&self, submitted: Submitted<T>) -> Result<T, TxnError> {
        submitted.wait_on(&self.machines)
    }

    fn any_seat(&self) -> Seat {
        let threads = self.shared.config.threads;
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize % self.coordinators.len();
        self.serving(Seat { compute_node: next / threads, thread: next % threads })
    }

    fn random(&self) -> u64 {
        // Weyl's sequence: as even as routing needs, and no state but a counter.
        self.next.load(Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    fn start_coordinator(
        &self,
        node: &Arc<ComputeNode>,
        thread: usize,
    ) -> Result<CoordinatorHandle<M::Core>, ClusterError> {
        let (jobs, inbox) = async_channel::unbounded();
        let (ready, started) = async_channel::bounded(1);
        let name = format!("lotus-cn{}-{thread}", node.index);
        let (shared, of) = (Arc::clone(&self.shared), Arc::clone(node));
        let program = move |executor: &mut Executor| -> Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(coordinator::run(shared, of, thread, inbox, &ready, executor))
        };
        let core = self.machines.start(node.id, &name, Box::new(program))?;
        let failed = ClusterError::CoordinatorFailed { node: node.index };
        self.machines.wait(&started).ok_or(failed)??;
        Ok(CoordinatorHandle { node: node.index, jobs, core: Some(core) })
    }

    /// Writes the header page of every replica of every group.
    fn format(&self) -> Result<(), ClusterError> {
        let shared = &self.shared;
        let formatted = self.shared.control.with_lane(|lane| async move {
            let mut batch = lane.batch();
            for (_, replicas) in shared.placement.groups() {
                for replica in replicas.members() {
                    for (index, word) in shared.region.encode().into_iter().enumerate() {
                        batch.write_word(replica.at((index * WORD_BYTES) as u64), word);
                    }
                }
            }
            shared.write_first_owners(&mut batch);
            batch.post().await.map(drop)
        })?;
        formatted.map_err(|error| ClusterError::Unreachable(error.to_string()))
    }

    /// Stops all coordinators once their jobs have ended.
    ///
    /// # Errors
    /// `CoordinatorFailed` if one has panicked.
    pub fn stop(mut self) -> Result<(), ClusterError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), ClusterError> {
        let mut outcome = Ok(());
        self.coordinators.iter().for_each(|coordinator| _ = coordinator.jobs.close());
        for coordinator in &mut self.coordinators {
            let Some(core) = coordinator.core.take() else { continue };
            if !self.machines.join(core) {
                let node = coordinator.node;
                outcome = outcome.and(Err(ClusterError::CoordinatorFailed { node }));
            }
        }
        outcome
    }
}

impl<M: Machines> Drop for Cluster<M> {
    fn drop(&mut self) {
        // A failure was, or will be, reported to whoever waits for a transaction.
        let _ = self.join();
    }
}
