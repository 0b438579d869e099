//! The data path does not allocate once it is warm.
//!
//! A counting allocator replaces the system's. Counts are kept by thread, so a job reads the
//! allocations of its own coordinator, unaffected by the other threads of the process; they include
//! those of its lane, lock table and executor.

#[path = "all/common/mod.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use lotus::{
    Cluster, ClusterBuilder, Isolation, Retention, Session, SessionView, TableId, TableSpec,
    TxnError,
};
use lotus_rows::{Purpose, Schema};

struct Counting;

thread_local! {
    // `const` and without a destructor, so that reaching it never allocates.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is being torn down counts no more.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

/// Returns the number of allocations of this thread so far.
fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches no memory but a
// thread-local integer, and neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rows to choose from: few enough that every version slot is taken while warming up.
const ACCOUNTS: u64 = 64;
const WARM_UP: u64 = 1_500;
const MEASURED: u64 = 3_000;

const TYPED: Schema<u64, u64> = Schema::new("checking").record_bytes(16);

/// Transaction that a job repeats.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Reads and writes two accounts, like SmallBank's payments.
    Transfer,
    /// The same by typed rows.
    Typed,
    /// Reads three accounts in one snapshot.
    ReadOnly,
    /// Reads two accounts under locks and writes nothing.
    Locked,
    /// Reads one account, then in a second round writes another, and aborts.
    Abort,
}

impl Work {
    /// Runs one transaction on accounts `first`, `first + 1` and `first + 2`.
    async fn once(
        self,
        session: &mut Session,
        isolation: Isolation,
        table: TableId,
        first: u64,
    ) -> Result<(), TxnError> {
        if let Self::ReadOnly = self {
            let mut txn = session.begin_read_only().await?;
            let items = [txn.add_ro(table, first)?, txn.add_ro(table, first + 1)?];
            let last = txn.add_ro(table, first + 2)?;
            txn.execute().await?;
            let balances = items.map(|item| number_of(&txn, item));
            assert!(balances.iter().all(Option::is_some) && txn.value(last).is_some());
            return txn.commit().await.map(drop);
        }
        let mut txn = session.begin(isolation).await?;
        match self {
            Self::Transfer => {
                let (from, to) = (txn.add_rw(table, first)?, txn.add_rw(table, first + 1)?);
                txn.execute().await?;
                let balance = |item| number_of(&txn, item).expect("the accounts exist");
                let (left, right) = (balance(from), balance(to));
                txn.put(from, &(left - 1).to_le_bytes())?;
                txn.put(to, &(right + 1).to_le_bytes())?;
            }
            Self::Typed => {
                let accounts = TYPED.table(table);
                let [from, to] = [first, first + 1];
                accounts.declare(&mut txn, &from, Purpose::Update)?;
                accounts.declare(&mut txn, &to, Purpose::Update)?;
                let left = accounts.get_for_update(&mut txn, &from).await?;
                let right = accounts.get_for_update(&mut txn, &to).await?;
                let (left, right) = left.zip(right).expect("the accounts exist");
                accounts.put(&mut txn, &from, &(left - 1)).await?;
                accounts.put(&mut txn, &to, &(right + 1)).await?;
            }
            Self::Abort => {
                txn.add_ro(table, first)?;
                txn.execute().await?;
                let item = txn.add_rw(table, first + 1)?;
                txn.execute().await?;
                txn.put(item, b"12345678")?;
                txn.abort();
                return Ok(());
            }
            Self::Locked | Self::ReadOnly => {
                txn.add_ro(table, first)?;
                txn.add_ro(table, first + 1)?;
                txn.execute().await?;
            }
        }
        txn.commit().await.map(drop)
    }

    /// Returns the number of the coordinator's allocations in [`MEASURED`] transactions of
    /// `workers` slots, each on accounts of its own.
    fn measure(self, cluster: &Cluster, isolation: Isolation, table: TableId, workers: u64) -> u64 {
        let warm = Arc::new(AtomicU64::new(0));
        let finished = Arc::new(AtomicU64::new(0));
        let jobs: Vec<_> = (0..workers)
            .map(|worker| {
                let (warm, finished) = (Arc::clone(&warm), Arc::clone(&finished));
                cluster.submit(FIRST, move |mut session| async move {
                    let (view, share) = (session.view(), ACCOUNTS / workers);
                    let account = |step| worker * share + step % (share - 2);
                    for step in 0..WARM_UP {
                        self.once(&mut session, isolation, table, account(step)).await?;
                    }
                    // Beginning and ending jobs allocate: all must have begun before one measures,
                    // and have measured before one ends.
                    all(&view, &warm, workers).await;
                    let before = allocations();
                    for step in 0..MEASURED / workers {
                        self.once(&mut session, isolation, table, account(step)).await?;
                    }
                    let made = allocations() - before;
                    all(&view, &finished, workers).await;
                    Ok(made)
                })
            })
            .collect();
        jobs.into_iter().map(done).max().expect("there is a worker")
    }
}

/// Waits until `workers` have arrived.
async fn all(view: &SessionView, arrived: &AtomicU64, workers: u64) {
    arrived.fetch_add(1, Ordering::SeqCst);
    until(view, || arrived.load(Ordering::SeqCst) >= workers).await;
}

fn bank(builder: ClusterBuilder) -> (Running, TableId) {
    let cluster = start(builder);
    let spec = TableSpec::new("checking").record_bytes(16).capacity(1_000);
    let table = cluster.create_table(spec).expect("there is room");
    let rows: Vec<_> = (0..ACCOUNTS).map(|account| (account, 1 << 20)).collect();
    insert_all(&cluster, table, &rows);
    (cluster, table)
}

const ALL: [Work; 5] = [Work::Transfer, Work::Typed, Work::ReadOnly, Work::Locked, Work::Abort];

#[test]
fn a_warm_coordinator_allocates_nothing() {
    for isolation in ISOLATIONS {
        // Versions kept for readers depend on when the horizon moves, see below.
        let alone = small().retention(Retention::None).horizon_interval(Duration::from_secs(3600));
        let (cluster, table) = bank(alone);
        for work in ALL {
            for workers in [1, 4] {
                // Buffers grow to the most that was ever in use at once, so warming up takes as
                // many slots as are measured, for as long.
                let _warm = work.measure(&cluster, isolation, table, workers);
                let made = work.measure(&cluster, isolation, table, workers);
                assert_eq!(made, 0, "{work:?}, {isolation:?}, {workers} workers");
            }
        }
        stop_clean(cluster);
    }
}

/// The same with displaced versions kept and the horizon moving at any moment: buffers grow until
/// they fit the most that was ever in use at once, which takes a few more allocations.
#[test]
fn neither_does_one_that_keeps_versions() {
    let (cluster, table) = bank(small());
    for work in ALL {
        let made = work.measure(&cluster, Isolation::Serializable, table, 4);
        assert!(made * 100 <= MEASURED, "{work:?}: {made} in {MEASURED} transactions");
    }
    stop_clean(cluster);
}

/// The same on two compute nodes, where half of the locks are requested by message. Message buffers
/// move between coordinators and grow to the longest datagram that each has carried, so a few still
/// grow long after the start; but only a few in total, and not some for each transaction.
#[test]
fn neither_does_one_whose_locks_are_remote() {
    let (cluster, table) = bank(small().compute_nodes(2));
    for work in ALL {
        let made = work.measure(&cluster, Isolation::Serializable, table, 1);
        assert!(made * 100 <= MEASURED, "{work:?}: {made} in {MEASURED} transactions");
    }
    stop_clean(cluster);
}

/// The allocator counts: without this, the tests above would pass with a broken counter.
#[test]
fn an_allocation_is_counted() {
    let (cluster, _) = bank(small());
    let made = done(cluster.submit(FIRST, |_| async {
        let before = allocations();
        drop(std::hint::black_box(Box::new(7u64)));
        Ok(allocations() - before)
    }));
    assert_eq!(made, 1);
    stop_clean(cluster);
}
