//! A simple engine and deployment that are obviously right, to test the harness against.
//!
//! One map behind one lock, two-phase locking that never waits, virtual time that advances with
//! every reading of the clock. All coordinators share the calling thread, so that a run is
//! deterministic. An ordered table is locked as a whole. [`Faults`] breaks it on purpose, so that
//! tests can make audits fail.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use lotus_fabric::ids::{Incarnation, TableId, TxnId};
use lotus_mvcc::{PrimaryKey, TableSpec};

use crate::contract::audit::Check;
use crate::contract::deployment::{
    DeployError, Deployment, Host, Memory, Replay, RowSource, RowVisitor, TaskPlace, Traffic,
};
use crate::contract::engine::{
    AbortReason, Finish, Item, KeyRange, Ordered, Receipt, Txn, TxnEngine, TxnError, TxnKind,
};

/// Step of the clock at every reading.
const TICK_NS: u64 = 100;

/// Injected faults, counted in commits; zero for never.
#[derive(Clone, Copy, Default)]
pub(crate) struct Faults {
    /// One of so many commits takes effect but is reported as unknown.
    pub(crate) unknown_every: u64,
    /// One of so many commits loses its writes.
    pub(crate) lose_every: u64,
    /// Number of the commit that finds the tables full.
    pub(crate) full_at: u64,
}

/// A row, existing or not: locks cover absent rows too.
#[derive(Default)]
struct StoredRow {
    value: Option<Vec<u8>>,
    writer: Option<TxnId>,
    readers: usize,
    writing: bool,
}

#[derive(Default)]
struct State {
    tables: Vec<BTreeMap<PrimaryKey, StoredRow>>,
    commits: u64,
    traffic: Traffic,
    recording_from: Option<(u64, Traffic)>,
}

impl State {
    /// The rows of a table that exist, as an ordered table has them.
    fn in_order(&self, table: TableId) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let existing = |(key, row): (&PrimaryKey, &StoredRow)| {
            Some((key.as_bytes().to_vec(), row.value.clone()?))
        };
        self.tables[at(table)].iter().filter_map(existing).collect()
    }
}

struct ReferenceStore {
    state: Mutex<State>,
    clock: AtomicU64,
    faults: Faults,
    cns: usize,
}

impl ReferenceStore {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the lock")
    }

    fn now_ns(&self) -> u64 {
        self.clock.fetch_add(TICK_NS, Ordering::Relaxed)
    }
}

/// A single-threaded deployment in this process.
pub(crate) struct Reference {
    shared: Arc<ReferenceStore>,
    cns: usize,
    threads: usize,
}

impl Reference {
    pub(crate) fn new(cns: usize, threads: usize, faults: Faults) -> Self {
        let clock = AtomicU64::new(TICK_NS);
        let shared = ReferenceStore { state: Mutex::default(), clock, faults, cns };
        Self { shared: Arc::new(shared), cns, threads }
    }

    /// Removes the first row of a table.
    pub(crate) fn lose_first(&mut self, table: TableId) {
        let mut state = self.shared.state();
        let mut rows = state.tables[at(table)].values_mut();
        let existing = rows.find(|row| row.value.is_some()).expect("the table has a row");
        existing.value = None;
    }

    pub(crate) fn commits(&self) -> u64 {
        self.shared.state().commits
    }
}

impl Deployment for Reference {
    type Host = ReferenceHost;

    fn create_table(&mut self, _spec: TableSpec) -> Result<TableId, DeployError> {
        let mut state = self.shared.state();
        state.tables.push(BTreeMap::new());
        // Ids do not start at zero, so that a guessed id fails.
        Ok(TableId(state.tables.len() as u16 + 10))
    }

    fn load(&mut self, table: TableId, rows: u64, row: &RowSource<'_>) -> Result<(), DeployError> {
        let mut state = self.shared.state();
        for number in 0..rows {
            let mut value = Vec::new();
            let key = row(number, &mut value);
            state.tables[at(table)]
                .insert(key, StoredRow { value: Some(value), ..StoredRow::default() });
        }
        Ok(())
    }

    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, ReferenceHost) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let task_places = (0..self.cns).flat_map(|cn| {
            let threads = 0..self.threads;
            threads
                .flat_map(move |thread| (0..tasks).map(move |task| TaskPlace { cn, thread, task }))
        });
        let host = |task_place| ReferenceHost { shared: Arc::clone(&self.shared), task_place };
        Ok(poll_all(task_places.map(|task_place| task(task_place, host(task_place)))))
    }

    fn traffic(&self) -> Traffic {
        self.shared.state().traffic
    }

    fn memory_loaded(&self) -> Vec<u64> {
        vec![2 << 20; 2]
    }

    fn memory(&self) -> Memory {
        Memory {
            bytes_per_record_and_replica: 100.0,
            resident_bytes: 1 << 20,
            bytes_per_node: vec![3 << 20; 2],
            ..Memory::default()
        }
    }

    fn scan(&mut self, table: TableId, visit: &mut RowVisitor<'_>) -> Result<(), DeployError> {
        for (key, row) in &self.shared.state().tables[at(table)] {
            if let Some(value) = &row.value {
                visit(key, value, row.writer);
            }
        }
        Ok(())
    }

    fn scan_ordered(
        &mut self,
        table: TableId,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), DeployError> {
        self.shared.state().in_order(table).iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn audit(&mut self) -> Result<Vec<Check>, DeployError> {
        let state = self.shared.state();
        let rows = || state.tables.iter().flat_map(BTreeMap::values);
        let held = rows().filter(|row| row.writing || row.readers > 0).count();
        Ok(vec![Check::new("no lock is left held", held == 0, format!("{held} held"))])
    }

    fn record_verbs(&mut self) {
        let mut state = self.shared.state();
        state.recording_from = Some((state.commits, state.traffic));
    }

    fn replay(&mut self, _secs: f64) -> Result<Replay, DeployError> {
        let state = self.shared.state();
        let (commits, traffic) = state
            .recording_from
            .ok_or_else(|| DeployError::Failed("nothing was recorded".to_owned()))?;
        let verbs = (state.traffic - traffic).verbs() as f64;
        let tps = 1e6;
        Ok(Replay { tps, verbs_per_s: tps * verbs / (state.commits - commits) as f64 })
    }
}

fn at(table: TableId) -> usize {
    usize::from(table.0) - 11
}

/// Polls futures in turn until all have ended, and returns their outputs in the order of ending.
fn poll_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut context = Context::from_waker(Waker::noop());
    let mut pending: Vec<Pin<Box<_>>> = futures.map(Box::pin).collect();
    let mut ended = Vec::new();
    while !pending.is_empty() {
        pending.retain_mut(|future| match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => {
                ended.push(output);
                false
            }
            Poll::Pending => true,
        });
    }
    ended
}

/// Lets the thread's other tasks run once.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

pub(crate) struct ReferenceHost {
    shared: Arc<ReferenceStore>,
    task_place: TaskPlace,
}

impl Host for ReferenceHost {
    type Engine = ReferenceEngine;

    fn engine(&self) -> Result<ReferenceEngine, DeployError> {
        Ok(ReferenceEngine {
            shared: Arc::clone(&self.shared),
            task_place: self.task_place,
            attempts: 0,
        })
    }

    fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    async fn sleep_until(&self, ns: u64) {
        while self.shared.now_ns() < ns {
            yield_now().await;
        }
    }

    fn owner(&self, _table: TableId, key: &PrimaryKey) -> usize {
        usize::from(key.as_bytes()[key.as_bytes().len() - 1]) % self.shared.cns
    }
}

pub(crate) struct ReferenceEngine {
    shared: Arc<ReferenceStore>,
    task_place: TaskPlace,
    attempts: u64,
}

impl TxnEngine for ReferenceEngine {
    type Txn = ReferenceTxn;

    async fn begin(&mut self, _kind: TxnKind) -> Result<ReferenceTxn, TxnError> {
        self.attempts += 1;
        let incarnation = Incarnation::new(self.task_place.cn as u16).expect("few nodes");
        let slot = (self.task_place.thread * 32 + self.task_place.task) as u16;
        let id = TxnId::new(incarnation, slot, self.attempts);
        let shared = Arc::clone(&self.shared);
        Ok(ReferenceTxn { shared, id, items: Vec::new(), locked: 0 })
    }
}

struct Touched {
    table: TableId,
    key: PrimaryKey,
    may_write: bool,
    value: Option<Vec<u8>>,
    writer: Option<TxnId>,
    /// The new value, or `None` inside for a deletion.
    change: Option<Option<Vec<u8>>>,
}

pub(crate) struct ReferenceTxn {
    shared: Arc<ReferenceStore>,
    id: TxnId,
    items: Vec<Touched>,
    locked: usize,
}

impl ReferenceTxn {
    fn add(&mut self, table: TableId, key: PrimaryKey, may_write: bool) -> Item {
        let (value, writer, change) = (None, None, None);
        self.items.push(Touched { table, key, may_write, value, writer, change });
        Item(self.items.len() as u32 - 1)
    }

    fn lock_and_read(&mut self) -> Result<(), TxnError> {
        let mut state = self.shared.state();
        while let Some(item) = self.items.get_mut(self.locked) {
            state.traffic.reads += 1;
            let row = state.tables[at(item.table)].entry(item.key).or_default();
            if row.writing || (item.may_write && row.readers > 0) {
                return Err(TxnError::Aborted(AbortReason::Conflict));
            }
            if item.change.is_some() && row.value.is_some() {
                return Err(TxnError::Aborted(AbortReason::Logic));
            }
            row.writing = item.may_write;
            row.readers += usize::from(!item.may_write);
            item.value.clone_from(&row.value);
            item.writer = row.writer;
            self.locked += 1;
        }
        Ok(())
    }
}

/// Key of the row, which never exists, whose lock stands for a whole ordered table.
const WHOLE_TABLE: [u8; 1] = [0xff];

impl ReferenceTxn {
    fn touched(&mut self, table: TableId, key: PrimaryKey) -> Option<&mut Touched> {
        self.items.iter_mut().find(|item| (item.table, item.key) == (table, key))
    }

    /// Locks a row, unless this attempt has.
    fn lock(&mut self, table: TableId, key: PrimaryKey, write: bool) -> Result<(), TxnError> {
        match self.touched(table, key) {
            Some(item) if item.may_write || !write => Ok(()),
            Some(_) => Err(TxnError::Fatal("a lock that would have to be raised".to_owned())),
            None => {
                self.add(table, key, write);
                self.lock_and_read()
            }
        }
    }

    /// The rows of an ordered table, which is locked, with this attempt's changes.
    fn in_order(&self, table: TableId) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut rows = self.shared.state().in_order(table);
        for item in self.items.iter().filter(|item| item.table == table) {
            match &item.change {
                Some(Some(value)) => drop(rows.insert(item.key.as_bytes().to_vec(), value.clone())),
                Some(None) => drop(rows.remove(item.key.as_bytes())),
                None => {}
            }
        }
        rows
    }

    fn change(
        &mut self,
        table: TableId,
        key: &[u8],
        change: Option<&[u8]>,
    ) -> Result<(), TxnError> {
        let key = PrimaryKey::try_from(key).map_err(|error| TxnError::Fatal(error.to_string()))?;
        self.lock(table, key, true)?;
        let item = self.touched(table, key).expect("it was locked");
        item.change = Some(change.map(<[u8]>::to_vec));
        Ok(())
    }
}

impl Txn for ReferenceTxn {
    fn id(&self) -> TxnId {
        self.id
    }

    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        Ok(self.add(table, key.into(), false))
    }

    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        Ok(self.add(table, key.into(), true))
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        let item = self.add(table, key.into(), true);
        self.items[item.0 as usize].change = Some(Some(value.to_owned()));
        Ok(item)
    }

    async fn execute(&mut self) -> Result<(), TxnError> {
        self.lock_and_read()?;
        // Other tasks run while the locks are held.
        yield_now().await;
        Ok(())
    }

    fn value(&self, item: Item) -> Option<&[u8]> {
        self.items[item.0 as usize].value.as_deref()
    }

    fn writer(&self, item: Item) -> Option<TxnId> {
        self.items[item.0 as usize].writer
    }

    fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        let item = &mut self.items[item.0 as usize];
        assert!(item.may_write, "a record that was declared read-only");
        item.change = Some(Some(value.to_owned()));
        Ok(())
    }

    fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        self.items[item.0 as usize].change = Some(None);
        Ok(())
    }

    async fn ordered(
        &mut self,
        table: TableId,
        operation: Ordered<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, TxnError> {
        if matches!(operation, Ordered::Declare { .. }) {
            return Ok(0);
        }
        let reads = matches!(
            operation,
            Ordered::Get { for_update: false, .. }
                | Ordered::Range(KeyRange { for_update: false, .. })
        );
        self.lock(table, WHOLE_TABLE.into(), !reads)?;
        yield_now().await;
        let rows = self.in_order(table);
        match operation {
            Ordered::Get { key, .. } => {
                let found = rows.get_key_value(key);
                found.inspect(|(key, value)| visit(key, value));
                Ok(usize::from(found.is_some()))
            }
            Ordered::Range(KeyRange { from, until, reverse, limit, .. }) => {
                let within = rows.iter().filter(|(key, _)| {
                    key.as_slice() >= from && until.is_none_or(|until| key.as_slice() < until)
                });
                let mut within: Vec<_> = within.collect();
                if reverse {
                    within.reverse();
                }
                within.truncate(limit);
                within.iter().for_each(|(key, value)| visit(key, value));
                Ok(within.len())
            }
            Ordered::Insert { key, .. } if rows.contains_key(key) => {
                Err(TxnError::Aborted(AbortReason::Logic))
            }
            Ordered::Insert { key, value } | Ordered::Put { key, value } => {
                self.change(table, key, Some(value)).map(|()| 1)
            }
            Ordered::Delete { key } if rows.contains_key(key) => {
                self.change(table, key, None).map(|()| 1)
            }
            Ordered::Delete { .. } | Ordered::Declare { .. } => Ok(0),
        }
    }
}

impl Finish for ReferenceTxn {
    async fn commit(mut self) -> Result<Receipt, TxnError> {
        // Also locks what was added since the last execution.
        self.lock_and_read()?;
        let faults = self.shared.faults;
        let mut state = self.shared.state();
        state.commits += 1;
        let commit_ts = state.commits;
        let due = |every: u64| every > 0 && commit_ts.is_multiple_of(every);
        if commit_ts == faults.full_at {
            return Err(TxnError::Fatal("the table is full".to_owned()));
        }
        let mut wrote = false;
        for item in &self.items {
            let Some(change) = &item.change else { continue };
            wrote = true;
            state.traffic.writes += 1;
            if due(faults.lose_every) {
                continue;
            }
            let row = state.tables[at(item.table)].get_mut(&item.key).expect("it was locked");
            row.value.clone_from(change);
            row.writer = change.as_ref().map(|_| self.id);
        }
        if due(faults.unknown_every) {
            return Err(TxnError::Unknown);
        }
        Ok(Receipt { commit_ts: wrote.then_some(commit_ts), snapshot: None })
    }

    fn abort(self) {}
}

impl Drop for ReferenceTxn {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        for item in &self.items[..self.locked] {
            let row = state.tables[at(item.table)].get_mut(&item.key).expect("it was locked");
            row.writing &= !item.may_write;
            row.readers -= usize::from(!item.may_write);
        }
    }
}
