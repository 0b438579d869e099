//! Lotus under the harness: a thin adapter from [`Deployment`] to an embedded cluster.
//!
//! Every task of the harness is a job in a coroutine slot of a coordinator. The adapter takes no
//! decisions and adds nothing to the path of a transaction but the mapping of errors.

use std::borrow::BorrowMut;
use std::cell::RefCell;
use std::fmt::Display;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lotus::{
    Cluster, ClusterBuilder, Machines, PrimaryKey, Session, SessionView, Submitted, TableSpec,
    Threads, Trace, Transaction,
};
use lotus_fabric::env::Env;
use lotus_fabric::ids::{TableId, TxnId};

use crate::contract::audit::Check;
use crate::contract::config::{ClusterConfig, LoadConfig};
use crate::contract::deployment::{
    Activity, Caches, DeployError, Deployment, Host, Memory, Ownership, Replay, RowSource,
    RowVisitor, TaskPlace, Traffic,
};
use crate::contract::engine::{
    AbortReason, Finish, Isolation, Item, KeyRange, Ordered, Receipt, StoredRow, Txn, TxnEngine,
    TxnError, TxnKind,
};
use crate::contract::workload::Workload;
use crate::engines::counts;
use crate::judge::history::{Log, Operation, Recorded};

mod settings;

pub use settings::builder;

/// Limit of verbs that each coordinator records for the floor.
const MAX_RECORDED_VERBS: usize = 4_000_000;

/// An embedded cluster as the harness sees it.
pub struct Embedded {
    cluster: Arc<Cluster>,
    rows: u64,
    recording: bool,
}

impl Embedded {
    /// Starts a cluster configured as `config` for the load `load`.
    ///
    /// # Errors
    /// [`DeployError::Refused`] if the configuration does not allow the cluster.
    pub fn start(config: &ClusterConfig, load: &LoadConfig) -> Result<Self, DeployError> {
        Self::start_on(builder(config, load), |nodes| Ok(Threads::new(nodes, load.seed)))
    }

    /// Starts a cluster on the machines made by `machines`, given the number of nodes needed.
    ///
    /// # Errors
    /// [`DeployError::Refused`] if the configuration does not allow the cluster, or the error of
    /// `machines`.
    pub fn start_on<M: Machines>(
        builder: ClusterBuilder,
        machines: impl FnOnce(u16) -> Result<M, DeployError>,
    ) -> Result<Self, DeployError> {
        let machines = machines(builder.node_count().map_err(refused)?)?;
        let cluster = builder.start_on(machines).map_err(refused)?;
        Ok(Self::around(Arc::new(cluster)))
    }

    /// Wraps a cluster that is running already.
    pub fn around(cluster: Arc<Cluster>) -> Self {
        Self { cluster, rows: 0, recording: false }
    }

    /// Shared handle to the cluster.
    pub fn shared(&self) -> Arc<Cluster> {
        Arc::clone(&self.cluster)
    }

    /// The wrapped cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Waits for submitted tasks and collects their results. In a cluster with leases, tasks whose
    /// compute node was lost during the run are left out.
    ///
    /// # Errors
    /// [`DeployError::Failed`] if a task panicked, or its node was lost for good.
    pub fn outcomes<T>(&self, submitted: Vec<Submitted<T>>) -> Result<Vec<T>, DeployError> {
        let recovers = self.cluster.config().lease.is_some();
        let ended = submitted.into_iter().filter_map(|task| match self.cluster.wait(task) {
            Err(lotus::TxnError::Fenced) if recovers => None,
            outcome => Some(outcome.map_err(failed)),
        });
        ended.collect()
    }

    /// Submits `tasks` tasks to every coordinator, coordinator by coordinator.
    pub fn submit<F, Fut, T>(&self, tasks: usize, task: F) -> Vec<Submitted<T>>
    where
        F: Fn(TaskPlace, Slot) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        self.submit_to(self.cluster.coordinators(), tasks, task)
    }

    /// As [`Self::submit`], but only to the coordinators of compute node `cn`, which has returned.
    pub fn submit_at<F, Fut, T>(&self, cn: usize, tasks: usize, task: F) -> Vec<Submitted<T>>
    where
        F: Fn(TaskPlace, Slot) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let coordinator_ids =
            self.cluster.coordinators().filter(|coordinator_id| coordinator_id.compute_node == cn);
        self.submit_to(coordinator_ids, tasks, task)
    }

    fn submit_to<F, Fut, T>(
        &self,
        coordinator_ids: impl Iterator<Item = lotus::CoordinatorId>,
        tasks: usize,
        task: F,
    ) -> Vec<Submitted<T>>
    where
        F: Fn(TaskPlace, Slot) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let recording = self.recording;
        let outside = self.cluster.machines().outside();
        let mut submitted = Vec::new();
        for coordinator_id in coordinator_ids {
            for number in 0..tasks {
                let place = TaskPlace {
                    cn: coordinator_id.compute_node,
                    thread: coordinator_id.thread,
                    task: number,
                };
                let (body, clock) = (task.clone(), outside.clone());
                submitted.push(self.cluster.submit(coordinator_id, move |session| async move {
                    if recording && number == 0 {
                        session.start_recording(MAX_RECORDED_VERBS);
                    }
                    Ok(body(place, Slot::new(session, clock)).await)
                }));
            }
        }
        submitted
    }
}

fn failed(error: impl Display) -> DeployError {
    DeployError::Failed(error.to_string())
}

fn refused(error: impl Display) -> DeployError {
    DeployError::Refused(error.to_string())
}

impl Deployment for Embedded {
    type Host = Slot;

    fn create_table(&mut self, spec: TableSpec) -> Result<TableId, DeployError> {
        self.cluster.create_table(spec).map_err(refused)
    }

    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError> {
        let loaded = AtomicU64::new(0);
        let done = self.cluster.load(table, rows, row, &loaded);
        self.rows += loaded.load(Ordering::Relaxed);
        done.map_err(refused)
    }

    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, Self::Host) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let submitted = self.submit(tasks, task);
        let ended = self.outcomes(submitted)?;
        self.cluster.settle().map_err(failed)?;
        Ok(ended)
    }

    fn traffic(&self) -> Traffic {
        // A coordinator that has failed has already reported the failure to its tasks.
        let counted = self.cluster.counters().unwrap_or_default();
        Traffic {
            reads: counted.reads,
            writes: counted.writes,
            compare_and_swaps: counted.compare_and_swaps,
            fetch_and_adds: counted.fetch_and_adds,
            doorbells: counted.doorbells,
            messages: counted.messages,
        }
    }

    fn caches(&self) -> Caches {
        counts::caches(self.cluster.cache_counters().unwrap_or_default())
    }

    fn ownership(&self) -> Ownership {
        let counted = self.cluster.cache_counters().unwrap_or_default();
        let moves = self.cluster.move_counters();
        Ownership {
            locks: counts::hits(counted.locks),
            hand_overs: moves.hand_overs,
            shards: moves.shards,
            stragglers: moves.stragglers,
            interrupted: moves.interrupted,
            longest: moves.longest,
            too_hot: self.cluster.too_hot().first().map(|shard| shard.raw()),
        }
    }

    fn memory(&self) -> Memory {
        let Ok(used) = self.cluster.memory_use() else { return Memory::default() };
        Memory {
            bytes_per_record_and_replica: used.replica_bytes as f64 / self.rows.max(1) as f64,
            resident_bytes: resident_bytes().unwrap_or(0),
            bytes_per_node: self.cluster.memory_in_use().unwrap_or_default(),
            ..Memory::default()
        }
    }

    fn memory_loaded(&self) -> Vec<u64> {
        self.cluster.memory_loaded().unwrap_or_default()
    }

    fn utilisation(&self) -> Option<lotus_fabric::sim::Report> {
        self.cluster.machines().utilisation()
    }

    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError> {
        self.cluster.audit_scan(table, visit).map_err(failed)
    }

    fn scan_ordered(
        &mut self,
        table: TableId,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DeployError> {
        self.cluster.audit_ordered(table, visit).map_err(failed)
    }

    fn audit(&mut self) -> Result<Vec<Check>, DeployError> {
        let findings = self.cluster.audit().map_err(failed)?;
        let check =
            |found: lotus::audit::Finding| Check::new(found.name, found.passed, found.detail);
        Ok(findings.into_iter().map(check).collect())
    }

    fn record_verbs(&mut self) {
        self.recording = true;
    }

    fn replay(&mut self, secs: f64) -> Result<Replay, DeployError> {
        self.recording = false;
        let coroutines = self.cluster.config().coroutines;
        let before = self.traffic();
        let mut replays = Vec::new();
        for coordinator_id in self.cluster.coordinators() {
            let trace = self
                .cluster
                .submit(coordinator_id, |session| async move { Ok(session.take_trace()) });
            let trace = self.cluster.wait(trace).map_err(failed)?;
            let trace = trace.filter(|trace| trace.transaction_count() > 0);
            let trace = Arc::new(trace.ok_or_else(|| failed("no transaction was recorded"))?);
            replays.push((coordinator_id, trace));
        }
        let mut submitted = Vec::new();
        for (coordinator_id, trace) in replays {
            for number in 0..coroutines {
                let trace = Arc::clone(&trace);
                submitted.push(self.cluster.submit(coordinator_id, move |session| async move {
                    replay_for(&session, &trace, number, coroutines, secs).await
                }));
            }
        }
        let mut transactions = 0;
        let mut longest_s = 0.0_f64;
        for task in submitted {
            let (replayed, took_s) = self.cluster.wait(task).map_err(failed)?;
            transactions += replayed;
            longest_s = longest_s.max(took_s);
        }
        let verbs = (self.traffic() - before).verbs();
        Ok(Replay { tps: transactions as f64 / longest_s, verbs_per_s: verbs as f64 / longest_s })
    }
}

/// Replays every `step`-th recorded transaction from `first` on, over and over, for `secs` seconds.
/// Returns the number of replayed transactions and the seconds taken.
async fn replay_for(
    session: &Session,
    trace: &Trace,
    first: usize,
    step: usize,
    secs: f64,
) -> Result<(u64, f64), lotus::TxnError> {
    let start = session.now();
    let mut replayed = 0;
    let mut next = first;
    loop {
        let took_s = session.now().since(start).as_secs_f64();
        if took_s >= secs {
            return Ok((replayed, took_s));
        }
        session.replay(trace, next % trace.transaction_count()).await?;
        next += step;
        replayed += 1;
    }
}

/// Resident memory of this process in bytes; the kernel reports KiB.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// One coroutine slot of a coordinator.
pub struct Slot {
    /// The session; `None` once the engine has taken it.
    session: RefCell<Option<Session>>,
    /// View of the session, which stays usable after the engine has taken the session.
    view: SessionView,
    /// The clients' clock, shared by all coordinators.
    clock: Env,
}

impl Slot {
    fn new(session: Session, clock: Env) -> Self {
        Self { view: session.view(), session: RefCell::new(Some(session)), clock }
    }
}

impl Host for Slot {
    type Engine = Engine;

    fn engine(&self) -> Result<Engine, DeployError> {
        let taken = self.session.borrow_mut().take();
        let view = self.view.clone();
        taken.map(|session| Engine { session, view }).ok_or_else(|| failed("the slot is taken"))
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.now().0
    }

    async fn sleep_until(&self, ns: u64) {
        // The coordinator's own clock may have jumped during the sleep.
        loop {
            match ns.saturating_sub(self.now_ns()) {
                0 => return,
                left => {
                    let deadline = self.view.now().after(Duration::from_nanos(left));
                    self.view.sleep_until(deadline).await;
                }
            }
        }
    }

    #[inline]
    fn owner(&self, table: TableId, key: &PrimaryKey) -> usize {
        // The harness asks only about tables that the harness has created.
        self.view.owner_of(table, key).unwrap_or(0)
    }

    fn activity(&self) -> Activity {
        counts::activity(&self.view)
    }

    fn give(&self, table: TableId, key: &PrimaryKey, to: usize) {
        let Ok(shard) = self.view.shard_of(table, key) else { return };
        // The outcome of the move appears only in the counters.
        let _ = self.view.start_move(&[shard], to);
    }
}

/// Begins transactions in one coroutine slot.
pub struct Engine {
    session: Session,
    view: SessionView,
}

impl TxnEngine for Engine {
    type Txn = LotusTxn;

    #[inline]
    async fn begin(&mut self, kind: TxnKind) -> Result<LotusTxn, TxnError> {
        self.view.transaction_begins();
        let begun = match kind {
            TxnKind::ReadWrite(Isolation::Serializable) => {
                self.session.begin(lotus::Isolation::Serializable).await
            }
            TxnKind::ReadWrite(Isolation::Snapshot) => {
                self.session.begin(lotus::Isolation::Snapshot).await
            }
            TxnKind::ReadOnly => self.session.begin_read_only().await,
        };
        Ok(LotusTxn::of(begun.map_err(mapped)?))
    }

    #[inline]
    fn new_transaction(&mut self) {
        self.session.new_transaction();
    }

    #[inline]
    fn retries_in_order(&self) -> bool {
        self.session.retries_in_order()
    }
}

/// A transaction of the engine, owned or borrowed. Both interfaces number items in the order in
/// which rows were added.
pub struct LotusTxn<T = Transaction> {
    txn: T,
    /// The engine's last error, if any.
    cause: Option<lotus::TxnError>,
}

/// Reason why a workload's code, run in a borrowed transaction, does not want the commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoCommit {
    /// The engine reported an error.
    Engine(lotus::TxnError),
    /// The workload rolls back, as its rules ask.
    Logic,
    /// The run has become worthless.
    Fatal(String),
}

/// Runs a workload's part of one attempt in a transaction that the caller commits. Returns the
/// change of the balance.
pub(crate) async fn attempt_in<W: Workload>(
    workload: &W,
    txn: &mut Transaction,
    request: &W::Request,
) -> Result<i64, NoCommit> {
    let mut lent = LotusTxn::of(txn);
    let outcome = workload.attempt(&mut lent, request).await;
    outcome.map_err(|error| no_commit(error, lent.cause))
}

/// As [`attempt_in`], and also returns the attempt's reads and writes.
pub(crate) async fn traced_in<W: Workload>(
    workload: &W,
    txn: &mut Transaction,
    request: &W::Request,
) -> Result<(i64, Vec<Operation>), NoCommit> {
    let mut log = Log::default();
    let mut recorded = Recorded::new(LotusTxn::of(txn), &mut log);
    let outcome = workload.attempt(&mut recorded, request).await;
    let cause = recorded.into_inner().cause;
    let effect = outcome.map_err(|error| no_commit(error, cause))?;
    Ok((effect, log.take_operations()))
}

fn no_commit(error: TxnError, cause: Option<lotus::TxnError>) -> NoCommit {
    match (error, cause) {
        (TxnError::Fatal(why), _) => NoCommit::Fatal(why),
        // A row that exists already is the workload's rollback, as in `mapped`.
        (TxnError::Aborted(AbortReason::Logic), _) | (_, None) => NoCommit::Logic,
        (_, Some(cause)) => NoCommit::Engine(cause),
    }
}

/// Abort reason under which reports count an engine's error; `None` if the error is not an abort.
pub fn abort_reason(error: &lotus::TxnError) -> Option<AbortReason> {
    match mapped(error.clone()) {
        TxnError::Aborted(reason) => Some(reason),
        _ => None,
    }
}

#[cold]
fn mapped(error: lotus::TxnError) -> TxnError {
    use lotus::TxnError as Lotus;
    match error {
        Lotus::Conflict { .. } => TxnError::Aborted(AbortReason::Conflict),
        Lotus::InDoubt { .. } => TxnError::Aborted(AbortReason::InDoubt),
        Lotus::SnapshotTooOld { .. } => TxnError::Aborted(AbortReason::SnapshotTooOld),
        Lotus::LockTableFull => TxnError::Aborted(AbortReason::LockTableFull),
        Lotus::Timeout => TxnError::Aborted(AbortReason::Unavailable),
        // Lost data may come back, as long as the membership has not given up the memory node.
        Lotus::DataLost { .. } => TxnError::Aborted(AbortReason::Unavailable),
        Lotus::Unavailable { .. } => TxnError::Aborted(AbortReason::Unowned),
        Lotus::Suspected { .. } => TxnError::Aborted(AbortReason::Suspected),
        Lotus::Unknown(_) => TxnError::Unknown,
        Lotus::Fenced => TxnError::Lost,
        Lotus::AlreadyExists { .. } => TxnError::Aborted(AbortReason::Logic),
        Lotus::TableFull { .. } => TxnError::Aborted(AbortReason::MemoryFull),
        fatal => TxnError::Fatal(fatal.to_string()),
    }
}

impl<T: BorrowMut<Transaction>> LotusTxn<T> {
    const fn of(txn: T) -> Self {
        Self { txn, cause: None }
    }

    /// Maps an error, and keeps the original as the cause.
    #[cold]
    fn note(&mut self, error: lotus::TxnError) -> TxnError {
        self.cause = Some(error.clone());
        mapped(error)
    }
}

impl<T: BorrowMut<Transaction>> Txn for LotusTxn<T> {
    #[inline]
    fn id(&self) -> TxnId {
        self.txn.borrow().id()
    }

    #[inline]
    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        let added = self.txn.borrow_mut().add_ro(table, key);
        added.map(|item| Item(item.index())).map_err(|error| self.note(error))
    }

    #[inline]
    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        let added = self.txn.borrow_mut().add_rw(table, key);
        added.map(|item| Item(item.index())).map_err(|error| self.note(error))
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let added = self.txn.borrow_mut().insert(table, key, value);
        added.map(|item| Item(item.index())).map_err(|error| self.note(error))
    }

    #[inline]
    async fn execute(&mut self) -> Result<(), TxnError> {
        self.txn.borrow_mut().execute().await.map_err(|error| self.note(error))
    }

    #[inline]
    fn value(&self, item: Item) -> Option<&[u8]> {
        self.txn.borrow().value(lotus::Item::from_index(item.0))
    }

    #[inline]
    fn writer(&self, item: Item) -> Option<TxnId> {
        self.txn.borrow().writer(lotus::Item::from_index(item.0))
    }

    #[inline]
    fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let put = self.txn.borrow_mut().put(lotus::Item::from_index(item.0), value);
        put.map_err(|error| self.note(error))
    }

    fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        let deleted = self.txn.borrow_mut().delete(lotus::Item::from_index(item.0));
        deleted.map_err(|error| self.note(error))
    }

    async fn ordered(
        &mut self,
        table: TableId,
        operation: Ordered<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, TxnError> {
        let carried_out = carry_out(self.txn.borrow_mut(), table, operation, visit).await;
        carried_out.map_err(|error| self.note(error))
    }

    fn for_each_stored(&self, visit: &mut dyn FnMut(StoredRow)) {
        self.txn.borrow().for_each_node(&mut |node| {
            let lotus::ordered::NodeUse { table, key, read, written, deleted } = node;
            visit(StoredRow { table, key, read, written, deleted });
        });
    }
}

/// Carries out an operation on an ordered table.
async fn carry_out(
    txn: &mut Transaction,
    table: TableId,
    operation: Ordered<'_>,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<usize, lotus::TxnError> {
    let mut ordered = txn.ordered(table)?;
    match operation {
        Ordered::Declare { key, for_update } => {
            match for_update {
                true => ordered.declare_for_update(key)?,
                false => ordered.declare(key)?,
            }
            Ok(0)
        }
        Ordered::Get { key, for_update } => {
            let found = match for_update {
                true => ordered.get_for_update(key).await?,
                false => ordered.get(key).await?,
            };
            found.into_iter().for_each(|value| visit(key, value));
            Ok(usize::from(found.is_some()))
        }
        Ordered::Range(KeyRange { from, until, reverse, limit, for_update }) => {
            let bounds = (Bound::Included(from), until.map_or(Bound::Unbounded, Bound::Excluded));
            let mut range = ordered.range(bounds).limit(limit);
            if reverse {
                range = range.reverse();
            }
            if for_update {
                range = range.for_update();
            }
            let rows = range.rows().await?;
            rows.iter().for_each(|(key, value)| visit(key, value));
            Ok(rows.len())
        }
        Ordered::Put { key, value } => ordered.put(key, value).await.map(|()| 1),
        Ordered::Insert { key, value } => ordered.insert(key, value).await.map(|()| 1),
        Ordered::Delete { key } => ordered.delete(key).await.map(usize::from),
    }
}

impl Finish for LotusTxn {
    #[inline]
    async fn commit(self) -> Result<Receipt, TxnError> {
        let receipt = self.txn.commit().await.map_err(mapped)?;
        Ok(Receipt {
            commit_ts: receipt.commit_ts.map(lotus::Timestamp::raw),
            snapshot: receipt.snapshot.map(lotus::Timestamp::raw),
        })
    }

    fn abort(self) {
        self.txn.abort();
    }
}
