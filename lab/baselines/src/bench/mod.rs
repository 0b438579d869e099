//! An engine under the harness: memory nodes and compute nodes on given machines, loading, runs of
//! clients, and audits.
//!
//! Each thread of a compute node is a core with its own lane, opened for a run and closed at its
//! end. Before closing, a READ of every memory node waits for all verbs that were posted and not
//! awaited. Loading and audits are outside of time, on lanes of the first compute node.

mod host;

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use async_channel::Sender;
use lotus_benchmarks::audit::Check;
use lotus_benchmarks::deployment::{
    Caches, DeployError, Deployment, Hits, Memory, Replay, RowSource, RowVisitor, TaskPlace,
    Traffic,
};
use lotus_fabric::counters::VerbCounters;
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RemoteAddr, TableId};
use lotus_fabric::lane::Lane;
use lotus_fabric::machines::{Machines, MachinesExt, Program};
use lotus_fabric::region::Rights;
use lotus_fabric::sim::Report;
use lotus_fabric::transport::Fabric;
use lotus_mvcc::TableSpec;

use crate::store::attempt::Protocol;
use crate::store::placement::Placement;
use crate::store::sight::Leftovers;
use crate::store::thread_context::{Harm, ThreadContext};
use crate::store::{Options, SHARED_BYTES, SHARED_REGION, Store, StoredTable, failed, refused};
pub(crate) use host::TaskHost;

/// First lane for loading and audits, above the lanes of all threads.
const FIRST_CONTROL_LANE: u16 = 4096;
const EPOCH: Epoch = Epoch(1);

/// Numbers of nodes, threads and copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Memory nodes, numbered from zero.
    pub memory_nodes: u16,
    /// Compute nodes, numbered after them.
    pub compute_nodes: u16,
    /// Threads of each compute node.
    pub threads: u16,
    /// Copies of each row.
    pub replicas: u16,
}

impl Size {
    /// All nodes.
    pub const fn nodes(&self) -> u16 {
        self.memory_nodes + self.compute_nodes
    }
}

/// An engine deployed on machines.
pub(crate) struct Deployed<S: Protocol> {
    machines: Box<dyn Machines>,
    size: Size,
    store: Arc<Store<S>>,
    /// Tables that were created and not loaded yet.
    specs: Vec<TableSpec>,
    next_lane: AtomicU16,
    used: Used,
}

/// Counters summed over all threads.
#[derive(Clone, Default)]
struct Used {
    verbs: VerbCounters,
    lookups: Hits,
    harm: Harm,
    /// Bytes of shared memory that threads had allocated and not used when they ended.
    spare_bytes: u64,
}

impl<S: Protocol> Deployed<S> {
    /// An engine with no tables.
    ///
    /// # Errors
    /// [`DeployError::Refused`] if the sizes make no sense, or the machines have no memory.
    pub(crate) fn new(
        machines: Box<dyn Machines>,
        size: Size,
        options: Options,
    ) -> Result<Self, DeployError> {
        if size.replicas > size.memory_nodes || size.replicas == 0 {
            let Size { replicas, memory_nodes, .. } = size;
            return Err(refused(format!("{replicas} copies on {memory_nodes} memory nodes")));
        }
        options.check()?;
        let Size { memory_nodes, replicas, .. } = size;
        let placement = Placement::new(memory_nodes, replicas, options.primaries);
        let store = Arc::new(Store::new(options, placement, size.compute_nodes));
        for node in store.placement.nodes() {
            let fabric = machines.fabric();
            fabric.register(node, SHARED_REGION, SHARED_BYTES, Rights::ALL).map_err(refused)?;
        }
        let (specs, next_lane) = (Vec::new(), AtomicU16::new(0));
        Ok(Self { machines, size, store, specs, next_lane, used: Used::default() })
    }

    /// Harm that the engine as published would have done to other transactions, or has done.
    pub(crate) fn harm(&self) -> Harm {
        self.used.harm
    }

    /// Bytes in use on each memory node.
    fn bytes_per_node(&self) -> Vec<u64> {
        let of_node = |node| {
            let has = |table: &&StoredTable<S>| self.store.nodes(table).contains(node);
            let here = self.store.tables.iter().filter(has);
            here.map(StoredTable::bytes_in_use).sum::<u64>() + self.shared_in_use()
        };
        self.store.placement.nodes().map(of_node).collect()
    }

    /// Bytes of shared memory in use on each memory node.
    fn shared_in_use(&self) -> u64 {
        self.store.taken().saturating_sub(self.used.spare_bytes)
    }

    fn compute_node(&self, cn: u16) -> NodeId {
        NodeId(self.size.memory_nodes + cn)
    }

    /// Runs `work` on this thread, outside of time, with its own lane.
    fn control<T, Fut: Future<Output = T>>(
        &self,
        work: impl FnOnce(Lane) -> Fut,
    ) -> Result<T, DeployError> {
        let number = self.next_lane.fetch_add(1, Ordering::Relaxed) % FIRST_CONTROL_LANE;
        let node = self.compute_node(0);
        let at = Endpoint { node, lane: LaneId(FIRST_CONTROL_LANE + number) };
        let mut executor = Executor::new(self.machines.env(node));
        let lane = open(&*self.machines.fabric(), at, &mut executor)?;
        Ok(executor.run(work(lane)))
    }

    fn store_mut(&mut self) -> Result<&mut Store<S>, DeployError> {
        Arc::get_mut(&mut self.store).ok_or_else(|| failed("a thread is still running"))
    }
}

/// Opens a lane that an executor drives.
fn open(fabric: &dyn Fabric, at: Endpoint, executor: &mut Executor) -> Result<Lane, DeployError> {
    let handle = executor.handle().clone();
    let transport = fabric.open_lane(at, EPOCH, handle.waker()).map_err(refused)?;
    let lane = Lane::new(at, handle, transport);
    executor.add_driver(lane.driver());
    Ok(lane)
}

impl<S: Protocol> Deployment for Deployed<S> {
    type Host = TaskHost<S>;

    fn create_table(&mut self, spec: TableSpec) -> Result<TableId, DeployError> {
        spec.validate().map_err(refused)?;
        if spec.ordered {
            let name = &spec.name;
            return Err(refused(format!("this engine has no ordered tables, and {name} is one")));
        }
        self.specs.push(spec);
        Ok(TableId(self.specs.len() as u16 - 1))
    }

    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError> {
        // Regions are numbered in the order of loading.
        let number = usize::from(table.0);
        if number != self.store.tables.len() {
            return Err(refused("tables are loaded in the order of their creation"));
        }
        let spec = self.specs.get(number).ok_or_else(|| refused("there is no such table"))?;
        let longest = self.specs.iter().map(|spec| spec.record_bytes as usize).max();
        let (table, image) = self.store.lay_out((spec, longest.unwrap_or(0)), rows, row)?;
        let fabric = self.machines.fabric();
        for node in self.store.placement.nodes() {
            let bytes = table.geometry.bytes().next_multiple_of(4096);
            fabric.register(node, table.region, bytes, Rights::ALL).map_err(refused)?;
        }
        let store = Arc::clone(&self.store);
        self.control(
            |lane| async move { store.write(&lane, &table, &image).await.map(|()| table) },
        )?
        .and_then(|table| {
            self.store_mut()?.tables.push(table);
            Ok(())
        })
    }

    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, TaskHost<S>) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let (sender, results) = async_channel::unbounded();
        let Size { memory_nodes, compute_nodes, threads, .. } = self.size;
        let mut cores = Vec::new();
        for (cn, thread) in (0..compute_nodes).flat_map(|cn| (0..threads).map(move |t| (cn, t))) {
            let (fabric, store) = (self.machines.fabric(), Arc::clone(&self.store));
            let (task, sender) = (task.clone(), sender.clone());
            let at = Endpoint { node: self.compute_node(cn), lane: LaneId(thread) };
            let clock = self.machines.outside();
            let start = Start { at, cn, thread, tasks, memory_nodes, clock };
            let program: Program = Box::new(move |executor| {
                let context = open(&*fabric, at, executor);
                Box::pin(async move {
                    let outcome = match context {
                        Ok(lane) => start.run(store, lane, task).await,
                        Err(error) => Err(error),
                    };
                    // The receiver waits for all outcomes.
                    let _ = sender.send(outcome).await;
                })
            });
            let name = format!("cn-{cn}-{thread}");
            cores.push(self.machines.start(at.node, &name, program).map_err(failed)?);
        }
        drop(sender);
        let mut all = Vec::new();
        let mut broken = None;
        for _ in 0..cores.len() {
            match self.machines.wait(&results) {
                Some(Ok((outcomes, used))) => {
                    all.extend(outcomes);
                    self.used.verbs += &used.verbs;
                    self.used.lookups.lookups += used.lookups.lookups;
                    self.used.lookups.hits += used.lookups.hits;
                    self.used.harm += used.harm;
                    self.used.spare_bytes += used.spare_bytes;
                }
                Some(Err(error)) => broken = Some(error),
                None => broken = broken.or_else(|| Some(failed("a thread has panicked"))),
            }
        }
        for core in cores {
            if !self.machines.join(core) {
                broken = broken.or_else(|| Some(failed("a thread has panicked")));
            }
        }
        broken.map_or(Ok(all), Err)
    }

    fn traffic(&self) -> Traffic {
        let verbs = &self.used.verbs;
        Traffic {
            reads: verbs.reads,
            writes: verbs.writes,
            compare_and_swaps: verbs.compare_and_swaps,
            fetch_and_adds: verbs.fetch_and_adds,
            doorbells: verbs.doorbells,
            messages: verbs.messages,
        }
    }

    fn caches(&self) -> Caches {
        Caches { addresses: self.used.lookups, ..Caches::default() }
    }

    fn memory(&self) -> Memory {
        let tables = &self.store.tables;
        let bytes: u64 = tables.iter().map(StoredTable::bytes_in_use).sum();
        let rows: u64 = tables.iter().map(|table| table.rows).sum();
        let bytes = bytes + self.shared_in_use();
        Memory {
            bytes_per_record_and_replica: bytes as f64 / rows.max(1) as f64,
            bytes_per_node: self.bytes_per_node(),
            ..Memory::default()
        }
    }

    fn memory_loaded(&self) -> Vec<u64> {
        self.bytes_per_node()
    }

    fn utilisation(&self) -> Option<Report> {
        self.machines.utilisation()
    }

    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError> {
        let store = &self.store;
        let table = store.tables.get(usize::from(table.0));
        let table = table.ok_or_else(|| refused("there is no such table"))?;
        self.control(|lane| async move { store.scan(&lane, table, visit).await })?
    }

    fn audit(&mut self) -> Result<Vec<Check>, DeployError> {
        let store = &self.store;
        let found = self.control(|lane| async move {
            let mut found = Leftovers::default();
            for table in &store.tables {
                store.inspect(&lane, table, &mut found).await?;
            }
            Ok(found)
        })?;
        found.map(|found| found.checks())
    }

    fn record_verbs(&mut self) {}

    fn replay(&mut self, _secs: f64) -> Result<Replay, DeployError> {
        Err(refused("the floor is measured of LOTUS only"))
    }
}

/// A thread that is about to run.
struct Start {
    at: Endpoint,
    cn: u16,
    thread: u16,
    tasks: usize,
    memory_nodes: u16,
    clock: Env,
}

impl Start {
    /// Runs all tasks of the thread, and waits for the verbs they have posted.
    async fn run<S, F, Fut, T>(
        self,
        store: Arc<Store<S>>,
        lane: Lane,
        task: F,
    ) -> Result<(Vec<T>, Used), DeployError>
    where
        S: Protocol,
        F: Fn(TaskPlace, TaskHost<S>) -> Fut,
        Fut: Future<Output = T> + 'static,
        T: 'static,
    {
        let (cn, thread) = (usize::from(self.cn), usize::from(self.thread));
        let context = Rc::new(ThreadContext::new(store, lane.clone(), (cn, thread, self.tasks)));
        let (sender, ended) = async_channel::unbounded();
        for number in 0..self.tasks {
            let place = TaskPlace { cn, thread, task: number };
            let host = TaskHost::new(Rc::clone(&context), number, self.clock.clone());
            let (future, sender) = (task(place, host), sender.clone());
            lane.executor().spawn(async move { send(sender, future.await).await });
        }
        drop(sender);
        let mut outcomes = Vec::new();
        while let Ok(outcome) = ended.recv().await {
            outcomes.push(outcome);
        }
        if outcomes.len() < self.tasks {
            return Err(failed(format!("a task of {:?} has panicked", self.at)));
        }
        for node in 0..self.memory_nodes {
            let mut batch = lane.batch();
            batch.read(RemoteAddr::new(NodeId(node), SHARED_REGION, 0), 8);
            batch.post().await.map_err(failed)?;
        }
        let (lookups, hits) = context.addresses.borrow().counts();
        let (lookups, harm) = (Hits { lookups, hits }, context.harm());
        let (verbs, spare_bytes) = (lane.counters(), context.spare_bytes());
        Ok((outcomes, Used { verbs, lookups, harm, spare_bytes }))
    }
}

async fn send<T>(sender: Sender<T>, outcome: T) {
    // The receiver waits for all outcomes.
    let _ = sender.send(outcome).await;
}
