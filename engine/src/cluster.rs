//! An embedded cluster: memory nodes and compute nodes in this process, on the `local` fabric.
//!
//! [`Cluster`] is a `Send + Sync` handle: any thread, with or without an async runtime, may submit
//! whole transactions to the coordinators. Set-up, loading and auditing run on the calling thread,
//! with a lane of their own.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use async_channel::Sender;
use lotus_fabric::counters::VerbCounters;
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, TableId};
use lotus_fabric::lane::Lane;
use lotus_fabric::local::LocalFabric;
use lotus_fabric::region::{Rights, WORD_BYTES};
use lotus_fabric::transport::Fabric;
use lotus_locktable::{LockTable, LockTableConfig};
use lotus_mvcc::address_cache::AddressCache;
use lotus_mvcc::index::IndexShape;
use lotus_mvcc::layout::region::{RegionLayout, SlabEntry, SlabKind};
use lotus_mvcc::timestamp::SharedClock;
use lotus_mvcc::{PrimaryKey, TableDef, TableSpec, Timestamp};
use lotus_recovery::LogGeometry;
use lotus_router::placement::LOG_REGION;
use lotus_router::{EmbeddedAuthority, Intent, Placement, Router, ShardMap, allocate_incarnation};

use crate::builder::ClusterBuilder;
use crate::config::{Config, LockKind};
use crate::coordinator::{self, Job};
use crate::error::{ClusterError, TxnError};
use crate::load::{Loader, RowSource};
use crate::memory::{self, SlabError};
use crate::session::{Isolation, Session};
use crate::shared::{ComputeNode, LOCK_REGION, LOCK_REGION_BYTES, NodeTable, Shared};
use crate::submit::{Kind, Submitted, catch_panics, retry};
use crate::txn::Transaction;

/// The configuration epoch of a cluster whose nodes never change.
const FIRST_EPOCH: Epoch = Epoch(1);
/// Lanes of the control path are numbered from here, above those of any coordinator.
const FIRST_ADMIN_LANE: u16 = 4096;
const ADMIN_LANES: u16 = 1 << 15;

/// See the module's essay. Dropping it stops the cluster.
pub struct Cluster {
    pub(crate) shared: Arc<Shared>,
    coordinators: Vec<CoordinatorHandle>,
    next_admin_lane: AtomicU16,
    /// Spreads transactions that name no row over the coordinators.
    next: AtomicU64,
}

struct CoordinatorHandle {
    node: usize,
    jobs: Sender<Job>,
    thread: Option<JoinHandle<()>>,
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

    pub(crate) fn start(config: Config) -> Result<Self, ClusterError> {
        config.check()?;
        let shared = Arc::new(set_up(config)?);
        let mut cluster = Self {
            shared: Arc::clone(&shared),
            coordinators: Vec::new(),
            next_admin_lane: AtomicU16::new(0),
            next: AtomicU64::new(0),
        };
        cluster.format()?;
        for node in &shared.nodes {
            for thread in 0..shared.config.threads {
                let handle = CoordinatorHandle::start(&shared, node, thread)?;
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
            let taken = self.with_lane(|lane| async move {
                memory::take_slabs(&lane, replicas, &shared.region, needed, entry).await
            })?;
            bases.push(taken.map_err(|error| match error {
                SlabError::Full => ClusterError::OutOfMemory { table: id, needed },
                SlabError::Fabric(error) => ClusterError::Unreachable(error.to_string()),
            })?);
        }
        let table = Arc::new(TableDef::new(id, spec, bases)?);
        for node in &shared.nodes {
            // A quarter more than there are rows, so that few of them compete for a line.
            let entries = table.spec().capacity + table.spec().capacity / 4;
            let addresses = AddressCache::with_entries(entries as usize)?;
            let known = Arc::new(NodeTable { def: Arc::clone(&table), addresses });
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
        let env = &self.shared.env;
        let workers = env.parallelism();
        let loads = env.in_parallel(workers, |worker| {
            let (shared, table) = (&*self.shared, Arc::clone(&def));
            self.with_lane(|lane| async move {
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
    pub fn seats(&self) -> impl Iterator<Item = Seat> + use<> {
        let threads = self.shared.config.threads;
        (0..self.shared.config.compute_nodes).flat_map(move |compute_node| {
            (0..threads).map(move |thread| Seat { compute_node, thread })
        })
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
        let seat = Seat { compute_node, ..self.any_seat() };
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

    /// Verbs and messages of all coordinators since the start.
    ///
    /// # Errors
    /// `Fenced` if a coordinator has failed.
    pub fn counters(&self) -> Result<VerbCounters, TxnError> {
        let mut all = VerbCounters::default();
        for seat in self.seats() {
            let counted = self.submit(seat, |session| async move { Ok(session.counters()) });
            all += &counted.wait()?;
        }
        Ok(all)
    }

    /// The fabric underneath, for tests that let nodes fail. Memory nodes are numbered from zero,
    /// compute nodes after them.
    #[doc(hidden)]
    pub fn local_fabric(&self) -> &LocalFabric {
        &self.shared.local
    }

    fn any_seat(&self) -> Seat {
        let threads = self.shared.config.threads;
        let next = self.next.fetch_add(1, Ordering::Relaxed) as usize % self.coordinators.len();
        Seat { compute_node: next / threads, thread: next % threads }
    }

    fn random(&self) -> u64 {
        // Weyl's sequence: as even as routing needs, and no state but a counter.
        self.next.load(Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// Runs `work` on this thread, with a lane of the first compute node's own.
    pub(crate) fn with_lane<T, Fut: Future<Output = T>>(
        &self,
        work: impl FnOnce(Lane) -> Fut,
    ) -> Result<T, ClusterError> {
        let shared = &self.shared;
        let node = &shared.nodes[0];
        // Lanes are closed after use, so their numbers come round again.
        let number = self.next_admin_lane.fetch_add(1, Ordering::Relaxed) % ADMIN_LANES;
        let at = Endpoint { node: node.id, lane: LaneId(FIRST_ADMIN_LANE + number) };
        let mut executor = Executor::new(shared.env.clone());
        let handle = executor.handle().clone();
        let transport = shared.fabric.open_lane(at, node.epoch, handle.waker())?;
        let lane = Lane::new(at, handle, transport);
        executor.add_driver(lane.driver());
        Ok(executor.run(work(lane)))
    }

    /// Writes the header page of every replica of every group.
    fn format(&self) -> Result<(), ClusterError> {
        let shared = &self.shared;
        let formatted = self.with_lane(|lane| async move {
            let mut batch = lane.batch();
            for (_, replicas) in shared.placement.groups() {
                for replica in replicas.members() {
                    for (index, word) in shared.region.encode().into_iter().enumerate() {
                        batch.write_word(replica.at((index * WORD_BYTES) as u64), word);
                    }
                }
            }
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
            let Some(thread) = coordinator.thread.take() else { continue };
            if thread.join().is_err() {
                let node = coordinator.node;
                outcome = outcome.and(Err(ClusterError::CoordinatorFailed { node }));
            }
        }
        outcome
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A failure was, or will be, reported to whoever waits for a transaction.
        let _ = self.join();
    }
}

impl CoordinatorHandle {
    fn start(
        shared: &Arc<Shared>,
        node: &Arc<ComputeNode>,
        thread: usize,
    ) -> Result<Self, ClusterError> {
        let (jobs, inbox) = async_channel::unbounded();
        let (ready, started) = async_channel::bounded(1);
        let name = format!("lotus-cn{}-{thread}", node.index);
        let (env, index) = (shared.env.clone(), node.index);
        let (shared, node) = (Arc::clone(shared), Arc::clone(node));
        let body = move || coordinator::run(shared, node, thread, inbox, &ready);
        let thread = env.spawn(&name, body)?;
        let failed = ClusterError::CoordinatorFailed { node: index };
        started.recv_blocking().map_err(|_| failed)??;
        Ok(Self { node: index, jobs, thread: Some(thread) })
    }
}

/// Nodes, memory and everything that they share. Memory nodes are numbered first.
fn set_up(config: Config) -> Result<Shared, ClusterError> {
    // However many are asked for: the topology refuses more than a few, but counts the list.
    let numbered = |from: usize, count: usize| -> Vec<NodeId> {
        let end = from.saturating_add(count).min(usize::from(u16::MAX));
        (from..end).map(|node| NodeId(node as u16)).collect()
    };
    let memory_nodes = numbered(0, config.memory_nodes);
    let compute_nodes = numbered(config.memory_nodes, config.compute_nodes);
    let placement = Placement::new(&memory_nodes, config.replicas)?;
    let shards = Arc::new(ShardMap::even(&compute_nodes)?);
    let router = Router::new(Arc::clone(&shards), &compute_nodes, config.routing)?;
    let slots = config.slots() as u16;
    let log = LogGeometry::new(config.compute_nodes as u16, slots, config.max_writes)?;
    // Every memory node stores as many groups as there are replicas.
    let group_bytes = config.memory_limit / config.replicas as u64;
    let region = RegionLayout::new(group_bytes).map_err(|_| {
        let (limit, groups) = (config.memory_limit, config.replicas);
        let sentence = format!(
            "a memory limit of {limit} bytes leaves {group_bytes} for each of a memory node's \
             {groups} groups, which must be from 1 MiB to 1 TiB"
        );
        ClusterError::Setting(sentence)
    })?;
    let fabric = LocalFabric::new((config.memory_nodes + config.compute_nodes) as u16);
    for node in &memory_nodes {
        for group in placement.hosted_by(*node) {
            fabric.register(*node, group.region(), region.bytes(), Rights::ALL)?;
        }
        fabric.register(*node, LOG_REGION, log.region_bytes(), Rights::ALL)?;
        if config.locks == LockKind::CasSpin {
            fabric.register(*node, LOCK_REGION, LOCK_REGION_BYTES, Rights::ALL)?;
        }
    }
    let authority = EmbeddedAuthority::new();
    let node = |(index, id): (usize, &NodeId)| -> Result<Arc<ComputeNode>, ClusterError> {
        let locks = LockTable::new(LockTableConfig::with_bytes(config.lock_table_bytes))?;
        Ok(Arc::new(ComputeNode {
            id: *id,
            index,
            incarnation: allocate_incarnation(&authority)?,
            epoch: FIRST_EPOCH,
            locks: Arc::new(locks),
            shards: Arc::clone(&shards),
            tables: RwLock::default(),
            failed: AtomicBool::new(false),
        }))
    };
    let nodes = compute_nodes.iter().enumerate().map(node).collect::<Result<_, _>>()?;
    Ok(Shared {
        env: Env::real(config.seed),
        fabric: Arc::new(fabric.clone()),
        local: fabric,
        placement,
        shards,
        router,
        log,
        region,
        clock: SharedClock::after(Timestamp::LOADED),
        tables: RwLock::default(),
        nodes,
        config,
    })
}
