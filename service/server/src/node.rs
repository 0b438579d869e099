//! State shared by a server's threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lotus::{
    Cluster, CoordinatorId, MemoryStanding, MemoryStatus, Session, ShardId, Submitted, TableId,
};
use lotus_fabric::env::{Env, Nanos};
use lotus_protocol::frame;
use lotus_protocol::link::Budget;
use lotus_protocol::messages::{self, Answer, Directory, Failure, NameSecret, Owner, Procedure};

use crate::call_time::CallTime;
use crate::calls;
use crate::config::{CallRecords, Limits};
use crate::connection::Origin;
use crate::counters::Counters;
use crate::exposition::{Gauge, Process};
use crate::http::{Gathering, MetricsSource};
use crate::log_limiter::LogLimiter;
use crate::metrics;
use crate::queue::Queue;
use crate::registry::Registry;
use crate::table_admin::TableAdmin;
use crate::ticket::Peer;
use crate::worker::{self, WorkerTask};

/// Interval at which a stopping server checks whether connections have ended.
const LOOK: Duration = Duration::from_millis(2);
/// Longest time for which a directory is reused: making a directory costs as much as many calls.
/// Clients learn of later changes of owners from refusals.
const DIRECTORY_AGE: Duration = Duration::from_millis(20);
/// Time for which a transaction's code may hold up a thread before its node counts as unhealthy.
const HELD_UP: Duration = Duration::from_secs(1);

/// A server of one compute node, shared by the server's threads.
pub(crate) struct NodeServer {
    /// Weak: workers hold this node, and dropping the last handle on a cluster waits for the
    /// coordinators; a job on a coordinator must not wait for them.
    cluster: Weak<Cluster>,
    /// Index among the compute nodes.
    pub(crate) index: usize,
    pub(crate) env: Env,
    pub(crate) registry: Registry,
    /// Metrics of the process.
    pub(crate) process: Process,
    /// Further gauges, from the program that runs the server.
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) limits: Limits,
    pub(crate) call_records: CallRecords,
    /// The table of call records.
    pub(crate) calls: TableId,
    pub(crate) call_time: CallTime,
    /// Creates and drops tables for clients; `None` if clients may do neither.
    pub(crate) table_admin: Option<TableAdmin>,
    /// Queue and counters of each coordinator.
    pub(crate) queues: Vec<Queue<WorkerTask>>,
    pub(crate) counters: Vec<Counters>,
    /// Open interactive transactions by coordinator, and the limit per coordinator.
    interactive: Vec<AtomicUsize>,
    interactive_limit: usize,
    /// The addresses of all servers, for clients elsewhere and for clients on this host.
    addresses: Vec<String>,
    local_addresses: Vec<String>,
    /// Whether new requests are refused.
    draining: AtomicBool,
    peers: Mutex<BTreeMap<u64, Arc<Peer>>>,
    /// Budget of the connections of each coordinator.
    pub(crate) budgets: Vec<Arc<Budget>>,
    /// The last directories sent, to clients elsewhere and to clients on this host.
    told: [Mutex<Option<EncodedDirectory>>; 2],
    pub(crate) connection_counters: ConnectionCounters,
    /// Limits log lines about refused or closed clients.
    pub(crate) complaints: LogLimiter,
}

/// An encoded directory.
struct EncodedDirectory {
    made: Nanos,
    /// The cluster's tables when the directory was made.
    tables: Vec<TableId>,
    answer: Arc<[u8]>,
}

/// Counters of connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounters {
    /// Admitted clients.
    pub(crate) admitted: AtomicU64,
    /// Clients refused by this side.
    pub(crate) refused: AtomicU64,
    /// Connections closed without an answer because there were too many guests.
    pub(crate) turned_away: AtomicU64,
    /// Connections ended because of garbage, an oversized frame or a slow client.
    pub(crate) misbehaved: AtomicU64,
}

/// Parts of a [`NodeServer`].
pub(crate) struct Parts {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) index: usize,
    pub(crate) registry: Registry,
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) limits: Limits,
    pub(crate) call_records: CallRecords,
    pub(crate) calls: TableId,
    pub(crate) table_admin: Option<TableAdmin>,
    pub(crate) interactive_limit: usize,
    pub(crate) addresses: Vec<String>,
    pub(crate) local_addresses: Vec<String>,
}

impl NodeServer {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let threads = parts.cluster.config().threads;
        Arc::new(Self {
            env: parts.cluster.machines().outside(),
            cluster: Arc::downgrade(&parts.cluster),
            index: parts.index,
            limits: parts.limits,
            call_records: parts.call_records,
            calls: parts.calls,
            call_time: CallTime::new(parts.call_records.retention),
            table_admin: parts.table_admin,
            queues: (0..threads).map(|_| Queue::new()).collect(),
            counters: (0..threads).map(|_| Counters::new(parts.registry.all().len())).collect(),
            registry: parts.registry,
            process: Process::new(parts.cluster.machines().outside()),
            gauges: parts.gauges,
            interactive: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
            interactive_limit: parts.interactive_limit,
            addresses: parts.addresses,
            local_addresses: parts.local_addresses,
            draining: AtomicBool::new(false),
            peers: Mutex::default(),
            budgets: (0..threads)
                .map(|_| Arc::new(Budget::new(parts.limits.held_in_all_bytes / threads)))
                .collect(),
            told: [const { Mutex::new(None) }; 2],
            connection_counters: ConnectionCounters::default(),
            complaints: LogLimiter::default(),
        })
    }

    /// Returns the cluster; the server keeps the cluster until the server's thread has ended.
    pub(crate) fn cluster(&self) -> Arc<Cluster> {
        self.cluster.upgrade().expect("a server keeps its cluster until its thread has ended")
    }

    /// Puts `workers` workers on each coordinator.
    pub(crate) fn start_workers(self: &Arc<Self>, workers: usize) {
        for thread in 0..self.queues.len() {
            let group = Arc::new(WorkerGroup { node: Arc::clone(self), thread });
            for _ in 0..workers {
                let group = Arc::clone(&group);
                self.submit(thread, |session| async move {
                    worker::work(Arc::clone(&group.node), group.thread, session).await;
                });
            }
        }
    }

    /// Runs a job in a coroutine slot of a coordinator. The job itself reports its end.
    #[track_caller]
    pub(crate) fn submit<F: Future<Output = ()> + 'static>(
        &self,
        thread: usize,
        job: impl FnOnce(Session) -> F + Send + 'static,
    ) {
        let coordinator_id = CoordinatorId { compute_node: self.index, thread };
        let _: Submitted<()> = self.cluster().submit(coordinator_id, |session| async move {
            job(session).await;
            Ok(())
        });
    }

    /// Whether a transaction's code holds up a coordinator of this node, and has for a while.
    fn is_held_up(&self) -> bool {
        let held_up = self.cluster().held_up();
        held_up
            .iter()
            .any(|one| one.coordinator_id.compute_node == self.index && one.since >= HELD_UP)
    }

    /// Returns the directory for a client of this origin.
    pub(crate) fn directory(&self, client: Origin) -> Box<Directory> {
        let tables =
            self.cluster().tables().into_iter().filter(|(_, spec)| spec.name != calls::TABLE);
        let tables = tables.map(|(id, spec)| messages::Table::of(id.0, &spec));
        let addresses = match client {
            Origin::Network(_) => &self.addresses,
            Origin::ThisHost => &self.local_addresses,
        };
        let owners = ShardId::all().map(|shard| {
            let owner = self.cluster().shard_owner(self.index, shard);
            Owner { node: owner.compute_node.map(|node| node as u16), epoch: owner.epoch }
        });
        let procedures = self.registry.all();
        let procedures =
            procedures.map(|(name, stored)| Procedure { name: name.to_owned(), kind: stored.kind });
        Box::new(Directory {
            node: self.index as u16,
            nodes: addresses.clone(),
            tables: tables.collect(),
            procedures: procedures.collect(),
            owners: owners.collect(),
            in_flight: self.limits.in_flight as u32,
            names: self.cluster().naming().map(NameSecret::of),
        })
    }

    /// Returns the directory as an encoded answer, not older than [`DIRECTORY_AGE`] and with all
    /// tables.
    pub(crate) fn encoded_directory(&self, client: Origin) -> Arc<[u8]> {
        let place = match client {
            Origin::Network(_) => 0,
            Origin::ThisHost => 1,
        };
        let tables: Vec<TableId> = self.cluster().tables().into_iter().map(|(id, _)| id).collect();
        let now = self.env.now();
        let mut told = self.told[place].lock().unwrap_or_else(PoisonError::into_inner);
        let known = told
            .as_ref()
            .filter(|told| told.tables == tables && now.since(told.made) < DIRECTORY_AGE);
        if let Some(told) = known {
            return Arc::clone(&told.answer);
        }
        let mut answer = Vec::new();
        frame::write(&mut answer, &Answer::Directory(self.directory(client)));
        let answer: Arc<[u8]> = answer.into();
        *told = Some(EncodedDirectory { made: now, tables, answer: Arc::clone(&answer) });
        answer
    }

    /// Checks that a request may begin on this node; `shard` is the shard whose owner was asked, if
    /// given.
    pub(crate) fn check(&self, shard: Option<u16>) -> Result<(), Failure> {
        // A draining node may outlive the cluster.
        let Some(cluster) = self.cluster.upgrade() else { return Err(Failure::Leaving) };
        if self.draining.load(Ordering::Relaxed) || !cluster.takes_part(self.index) {
            return Err(Failure::Leaving);
        }
        let Some(shard) = shard else { return Ok(()) };
        let known = ShardId::from_low_bits(u64::from(shard));
        let owner = cluster.shard_owner(self.index, known);
        if owner.compute_node == Some(self.index) {
            // The request may write, and a write while a needed memory node is silent ends with an
            // unknown outcome, after a time-out.
            return self.check_memory();
        }
        let node = owner.compute_node.map(|node| node as u16);
        Err(Failure::WrongOwner { shard, owner: node, epoch: owner.epoch })
    }

    /// Returns the participating compute nodes with their lives, as known to this node.
    pub(crate) fn live_nodes(&self) -> Vec<(usize, u16)> {
        self.cluster.upgrade().map_or_else(Vec::new, |cluster| cluster.live_nodes(self.index))
    }

    /// Checks that all memory nodes needed by the cluster answer, as far as known.
    pub(crate) fn check_memory(&self) -> Result<(), Failure> {
        let Some(cluster) = self.cluster.upgrade() else { return Ok(()) };
        let silent = cluster.needed_memory(self.index);
        let failure = |node| Failure::Conflict(format!("memory node {node} does not answer"));
        silent.first().map_or(Ok(()), |node| Err(failure(node)))
    }

    /// Takes a place for an interactive transaction, if one is free, preferably on coordinator
    /// `thread`.
    pub(crate) fn take_place(self: &Arc<Self>, thread: usize) -> Option<InteractivePlace> {
        let threads = self.interactive.len();
        let mut turn = (0..threads).map(|step| (thread + step) % threads);
        let room = |open: usize| (open < self.interactive_limit).then_some(open + 1);
        let thread = turn.find(|thread| {
            let open = &self.interactive[*thread];
            open.fetch_update(Ordering::AcqRel, Ordering::Relaxed, room).is_ok()
        })?;
        Some(InteractivePlace { node: Arc::clone(self), thread })
    }

    /// Number of open interactive transactions.
    pub(crate) fn open_transactions(&self) -> usize {
        self.interactive.iter().map(|open| open.load(Ordering::Relaxed)).sum()
    }

    /// Registers a client; `number` is unique to its connection.
    pub(crate) fn enter(&self, number: u64, peer: &Arc<Peer>) {
        self.peers().insert(number, Arc::clone(peer));
    }

    /// Removes a client.
    pub(crate) fn leave(&self, number: u64) {
        self.peers().remove(&number);
    }

    /// Number of connected clients.
    pub(crate) fn connections(&self) -> usize {
        self.peers().len()
    }

    /// Whether new requests are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Whether some rows have no answering copy left.
    fn has_lost_copies(&self) -> bool {
        let MemoryStatus { nodes, .. } = self.cluster().memory_known(self.index);
        nodes.contains(&MemoryStanding::OutOfReach)
    }

    /// Refuses new requests, waits until all requests are answered or patience ends, and closes all
    /// connections.
    pub(crate) async fn drain(&self, patience: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        self.table_admin.iter().for_each(TableAdmin::close);
        let deadline = self.env.now().after(patience);
        let is_busy = || {
            let answers = self.peers().values().any(|peer| peer.in_flight() > 0);
            answers || self.call_time.is_under_way()
        };
        while is_busy() && self.env.now() < deadline {
            tokio::time::sleep(LOOK).await;
        }
        self.peers().values().for_each(|peer| peer.outbox.close());
        self.queues.iter().for_each(Queue::close);
    }

    /// Waits until no client is connected.
    pub(crate) async fn left(&self) {
        while self.connections() > 0 {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends all connections at once, dropping unwritten answers.
    pub(crate) fn cut(&self) {
        self.peers().values().for_each(|peer| peer.outbox.cut());
    }

    fn peers(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricsSource for NodeServer {
    fn name(&self) -> String {
        format!("cn-{}", self.index)
    }

    fn gather(self: Arc<Self>) -> Gathering {
        Box::pin(metrics::gather(self))
    }

    fn health(&self) -> Result<&'static str, &'static str> {
        let figures = self.cluster().node_figures(self.index);
        if self.is_draining() {
            Err("stopping")
        } else if !figures.takes_part {
            Err("expelled")
        } else if !figures.serves {
            Err("suspended")
        } else if self.is_held_up() {
            Err("a transaction blocks a thread")
        } else if self.has_lost_copies() {
            Err("the last copies of some rows do not answer")
        } else if !self.cluster().silent_memory(self.index).is_empty() {
            Err("a memory node does not answer")
        } else if !figures.is_open {
            Err("waiting for the other nodes")
        } else {
            Ok("serving")
        }
    }
}

/// The workers of one coordinator. When the last worker is gone, the coordinator's queue is
/// abandoned.
struct WorkerGroup {
    node: Arc<NodeServer>,
    thread: usize,
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        self.node.queues[self.thread].abandon();
    }
}

/// A place for one interactive transaction on a coordinator.
pub(crate) struct InteractivePlace {
    node: Arc<NodeServer>,
    pub(crate) thread: usize,
}

impl Drop for InteractivePlace {
    fn drop(&mut self) {
        self.node.interactive[self.thread].fetch_sub(1, Ordering::AcqRel);
    }
}
