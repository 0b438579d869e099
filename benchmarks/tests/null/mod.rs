//! An engine and a deployment that cost nothing, so that only the harness's own cost is left.
//!
//! SmallBank's records follow from their keys and writes are dropped. The clock advances by
//! [`TICK_NS`] at every reading, so that a run of so many ticks serves about so many transactions.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use lotus_benchmarks::audit::Check;
use lotus_benchmarks::config::{Aborted, ClusterConfig, LoadConfig, Routing};
use lotus_benchmarks::deployment::{
    DeployError, Deployment, Host, Memory, Replay, RowSource, RowVisitor, TaskPlace, Traffic,
};
use lotus_benchmarks::engine::{
    Finish, Isolation, Item, Receipt, Txn, TxnEngine, TxnError, TxnKind,
};
use lotus_benchmarks::harness::{self, Options};
use lotus_benchmarks::progress::Progress;
use lotus_benchmarks::smallbank::SmallBank;
use lotus_fabric::ids::{TableId, TxnId};
use lotus_mvcc::{PrimaryKey, TableSpec};

const TICK_NS: u64 = 100;
const SLOTS: usize = 4;

/// Serves about `transactions` SmallBank transactions on one coroutine; returns the exact number.
pub fn serve(transactions: u64) -> u64 {
    let options = Options {
        cluster: ClusterConfig {
            cns: 1,
            coroutines: 1,
            mns: 1,
            replicas: 1,
            lock_table_bytes: 1 << 20,
            ..ClusterConfig::default()
        },
        load: LoadConfig {
            isolation: Isolation::Serializable,
            other_isolation: 0.0,
            routing: Routing::Hybrid,
            aborted: Aborted::Retry,
            secs: (transactions * TICK_NS) as f64 / 1e9,
            warmup_secs: 0.0,
            rate_tps: None,
            seed: 1,
            in_flight: None,
            move_us: None,
            timeline_us: None,
            txns: None,
        },
        audit: false,
        floor: false,
        history: false,
    };
    let bank = SmallBank::new(1_000_000, 40_000, 0.9, 1);
    let progress = Arc::new(Progress::new(1, |_| ()));
    let outcome = harness::run(&mut Null, bank, &options, &progress).expect("nothing can fail");
    outcome.tally.all_committed
}

struct Null;

impl Deployment for Null {
    type Host = NullHost;

    fn create_table(&mut self, _spec: TableSpec) -> Result<TableId, DeployError> {
        Ok(TableId(0))
    }

    fn load(&mut self, _: TableId, _: u64, _: &RowSource<'_>) -> Result<(), DeployError> {
        Ok(())
    }

    fn run<F, Fut, T>(&mut self, tasks: usize, task: F) -> Result<Vec<T>, DeployError>
    where
        F: Fn(TaskPlace, NullHost) -> Fut + Clone + Send + 'static,
        Fut: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        assert_eq!(tasks, 1, "one task that never waits needs no executor");
        let host = NullHost { clock: Rc::new(Cell::new(0)) };
        let mut future = Box::pin(task(TaskPlace { cn: 0, thread: 0, task: 0 }, host));
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(output) => Ok(vec![output]),
            std::task::Poll::Pending => Err(DeployError::Failed("it waited".to_owned())),
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn scan(&mut self, _: TableId, _: &mut RowVisitor<'_>) -> Result<(), DeployError> {
        Ok(())
    }

    fn audit(&mut self) -> Result<Vec<Check>, DeployError> {
        Ok(Vec::new())
    }

    fn record_verbs(&mut self) {}

    fn replay(&mut self, _secs: f64) -> Result<Replay, DeployError> {
        Err(DeployError::Refused("there are no verbs".to_owned()))
    }
}

struct NullHost {
    clock: Rc<Cell<u64>>,
}

impl Host for NullHost {
    type Engine = NullEngine;

    fn engine(&self) -> Result<NullEngine, DeployError> {
        Ok(NullEngine { attempts: 0 })
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.clock.set(self.clock.get() + TICK_NS);
        self.clock.get()
    }

    async fn sleep_until(&self, _ns: u64) {}

    #[inline]
    fn owner(&self, _table: TableId, _key: &PrimaryKey) -> usize {
        0
    }
}

struct NullEngine {
    attempts: u64,
}

impl TxnEngine for NullEngine {
    type Txn = NullTxn;

    #[inline]
    async fn begin(&mut self, _kind: TxnKind) -> Result<NullTxn, TxnError> {
        self.attempts += 1;
        Ok(NullTxn { id: TxnId::from_raw(self.attempts), records: [[0; 16]; SLOTS], items: 0 })
    }
}

struct NullTxn {
    id: TxnId,
    records: [[u8; 16]; SLOTS],
    items: u32,
}

impl Txn for NullTxn {
    #[inline]
    fn id(&self) -> TxnId {
        self.id
    }

    #[inline]
    fn add_ro(&mut self, table: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        self.add_rw(table, key)
    }

    #[inline]
    fn add_rw(&mut self, _: TableId, key: impl Into<PrimaryKey>) -> Result<Item, TxnError> {
        let item = Item(self.items);
        let record = &mut self.records[item.0 as usize];
        record[..8].copy_from_slice(key.into().as_bytes());
        record[..8].reverse();
        record[8..].copy_from_slice(&1_000_i64.to_le_bytes());
        self.items += 1;
        Ok(item)
    }

    fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        _value: &[u8],
    ) -> Result<Item, TxnError> {
        self.add_rw(table, key)
    }

    #[inline]
    async fn execute(&mut self) -> Result<(), TxnError> {
        Ok(())
    }

    #[inline]
    fn value(&self, item: Item) -> Option<&[u8]> {
        Some(&self.records[item.0 as usize])
    }

    #[inline]
    fn writer(&self, _item: Item) -> Option<TxnId> {
        None
    }

    #[inline]
    fn put(&mut self, _item: Item, _value: &[u8]) -> Result<(), TxnError> {
        Ok(())
    }

    fn delete(&mut self, _item: Item) -> Result<(), TxnError> {
        Ok(())
    }
}

impl Finish for NullTxn {
    #[inline]
    async fn commit(self) -> Result<Receipt, TxnError> {
        Ok(Receipt::default())
    }

    fn abort(self) {}
}
