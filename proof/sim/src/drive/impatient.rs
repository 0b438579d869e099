//! Clients that give up in the middle: they drop the future of an execution or a commit (H21).
//!
//! The layer stands between harness and engine, and works with every workload. A dropped execution
//! has certainly failed; a dropped commit has an unknown outcome. Calls of patient clients are
//! passed through.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use lotus_benchmarks::deployment::{DeployError, Host, TaskPlace};
use lotus_benchmarks::engine::{
    AbortReason, Finish, Item, Ordered, Receipt, StoredRow, Txn, TxnEngine, TxnError, TxnKind,
};
use lotus_benchmarks::lotus::{self, LotusTxn, Slot};
use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::PrimaryKey;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Longest time that an impatient client waits, in nanoseconds: about the duration of an
/// undisturbed transaction.
const MOST_PATIENCE_NS: u64 = 15_000;

/// Behaviour of the clients of one run.
#[derive(Clone, Copy)]
pub(crate) struct Impatience {
    /// Share of transactions that the client abandons.
    pub(crate) impatience: f64,
    /// Seed of the run.
    pub(crate) seed: u64,
}

/// A coroutine slot with a client that may give up.
pub(crate) struct Client {
    slot: Rc<Slot>,
    behaviour: Impatience,
    rng: RefCell<SmallRng>,
}

impl Client {
    pub(crate) fn new(slot: Slot, task_place: TaskPlace, behaviour: Impatience) -> Self {
        let place = (task_place.cn as u64) << 32
            | (task_place.thread as u64) << 16
            | task_place.task as u64;
        let rng = SmallRng::seed_from_u64(behaviour.seed ^ place.rotate_left(13));
        Self { slot: Rc::new(slot), behaviour, rng: RefCell::new(rng) }
    }
}

impl Host for Client {
    type Engine = Engine;

    fn engine(&self) -> Result<Engine, DeployError> {
        let rng = self.rng.borrow().clone();
        let engine = self.slot.engine()?;
        Ok(Engine {
            engine,
            slot: Rc::clone(&self.slot),
            impatience: self.behaviour.impatience,
            rng,
        })
    }

    fn now_ns(&self) -> u64 {
        self.slot.now_ns()
    }

    async fn sleep_until(&self, ns: u64) {
        self.slot.sleep_until(ns).await;
    }

    fn owner(&self, table: TableId, key: &PrimaryKey) -> usize {
        self.slot.owner(table, key)
    }

    fn give(&self, table: TableId, key: &PrimaryKey, to: usize) {
        self.slot.give(table, key, to);
    }
}

/// Call that a client may abandon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Execute,
    Commit,
}

pub(crate) struct Engine {
    engine: lotus::Engine,
    slot: Rc<Slot>,
    impatience: f64,
    rng: SmallRng,
}

impl TxnEngine for Engine {
    type Txn = Hurried;

    async fn begin(&mut self, kind: TxnKind) -> Result<Hurried, TxnError> {
        // Patient clients make no draw, so runs without impatience are unchanged.
        let gives_up =
            (self.impatience > 0.0 && self.rng.random_bool(self.impatience)).then(|| {
                let step = if self.rng.random() { Step::Execute } else { Step::Commit };
                (step, self.rng.random_range(0..MOST_PATIENCE_NS))
            });
        let txn = self.engine.begin(kind).await?;
        Ok(Hurried { txn, slot: Rc::clone(&self.slot), gives_up })
    }

    fn new_transaction(&mut self) {
        self.engine.new_transaction();
    }

    fn retries_in_order(&self) -> bool {
        self.engine.retries_in_order()
    }
}

/// A transaction with a step that the client may abandon, after the given nanoseconds.
pub(crate) struct Hurried {
    txn: LotusTxn,
    slot: Rc<Slot>,
    gives_up: Option<(Step, u64)>,
}

impl Hurried {
    /// Time that the client waits for `step`, in nanoseconds; `None` for no limit.
    fn patience_for(&self, step: Step) -> Option<u64> {
        self.gives_up.filter(|(when, _)| *when == step).map(|(_, ns)| ns)
    }
}

/// Output of `future` within `patience_ns`; `None`, with the future dropped, after that time.
async fn within<F: Future>(slot: &Slot, patience_ns: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timeout = pin!(slot.sleep_until(slot.now_ns() + patience_ns));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        timeout.as_mut().poll(context).map(|()| None)
    })
    .await
}

impl Txn for Hurried {
    fn id(&self) -> TxnId {
        self.txn.id()
    }

    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.txn.add_ro(table, key)
    }

    fn add_rw(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.txn.add_rw(table, key)
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: &[u8],
    ) -> Result<Item, TxnError> {
        self.txn.insert(table, key, value)
    }

    async fn execute(&mut self) -> Result<(), TxnError> {
        match self.patience_for(Step::Execute) {
            None => self.txn.execute().await,
            Some(ns) => {
                let executed = within(&self.slot, ns, self.txn.execute()).await;
                executed.unwrap_or(Err(TxnError::Aborted(AbortReason::Unavailable)))
            }
        }
    }

    fn value(&self, item: Item) -> Option<&[u8]> {
        self.txn.value(item)
    }

    fn writer(&self, item: Item) -> Option<TxnId> {
        self.txn.writer(item)
    }

    fn put(&mut self, item: Item, value: &[u8]) -> Result<(), TxnError> {
        self.txn.put(item, value)
    }

    fn delete(&mut self, item: Item) -> Result<(), TxnError> {
        self.txn.delete(item)
    }

    async fn ordered(
        &mut self,
        table: TableId,
        operation: Ordered<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize, TxnError> {
        match self.patience_for(Step::Execute) {
            None => self.txn.ordered(table, operation, visit).await,
            Some(ns) => {
                let done = within(&self.slot, ns, self.txn.ordered(table, operation, visit)).await;
                done.unwrap_or(Err(TxnError::Aborted(AbortReason::Unavailable)))
            }
        }
    }

    fn for_each_stored(&self, visit: &mut dyn FnMut(StoredRow)) {
        self.txn.for_each_stored(visit);
    }
}

impl Finish for Hurried {
    async fn commit(self) -> Result<Receipt, TxnError> {
        match self.patience_for(Step::Commit) {
            None => self.txn.commit().await,
            Some(ns) => {
                let committed = within(&self.slot, ns, self.txn.commit()).await;
                committed.unwrap_or(Err(TxnError::Unknown))
            }
        }
    }

    fn abort(self) {
        self.txn.abort();
    }
}
