//! Shared parts of the engine's tests: small clusters, bounded waits, one-row transactions.
//!
//! No wait is unbounded. A coordinator that hangs fails the test that noticed it, by name, instead
//! of stopping the whole suite.

#![allow(dead_code, reason = "every test binary uses a part of this")]

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use lotus::{
    Cluster, ClusterBuilder, CoordinatorId, Inline, Isolation, Item, PrimaryKey, Receipt, Secret,
    Session, SessionView, Submitted, TableId, TableSpec, Transaction, TxnError,
};
use lotus_fabric::env::Env;

/// Limit of one wait. Nothing takes as long, on however busy a machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Lease of a node on a machine that has nothing else to do: tests wait for its end.
const QUIET_LEASE: Duration = Duration::from_millis(400);
/// Time of a processor over which a machine is judged.
const SAMPLE: Duration = Duration::from_millis(10);

/// A lease as short as this machine allows at the moment: as many times longer than on a quiet one
/// as a thread that computes gets fewer turns. Nodes whose threads wait for their turn keep it.
pub fn lease() -> Duration {
    let (clock, began) = (Env::real(0), thread_time());
    let since = clock.now();
    while thread_time() - began < SAMPLE {
        std::hint::spin_loop();
    }
    let slowness = clock.now().since(since).as_secs_f64() / SAMPLE.as_secs_f64();
    QUIET_LEASE.mul_f64(slowness.max(1.0))
}

/// Time for which this thread has had a processor.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Both ways to run a read-write transaction.
pub const ISOLATIONS: [Isolation; 2] = [Isolation::Serializable, Isolation::Snapshot];

/// Coordinator that every cluster has.
pub const FIRST: CoordinatorId = CoordinatorId { compute_node: 0, thread: 0 };

/// A cluster that starts fast: three memory nodes of 48 MiB, one compute node, 1 MiB of locks. Its
/// rows have the same names in every run, and so share the same buckets.
pub fn small() -> ClusterBuilder {
    let builder = Cluster::embedded().name_secret(Some(Secret::from_seed(0)));
    builder.memory_limit(48 << 20).lock_table_bytes(1 << 20).coroutines(8)
}

/// A table of 8-byte numbers under 8-byte keys.
pub const NUMBERS: TableSpec = TableSpec::new("numbers").record_bytes(16).capacity(1_000);

/// Cluster that a failed test leaves as it is: stopping it might take for ever.
pub struct Running(Option<Cluster>);

impl std::ops::Deref for Running {
    type Target = Cluster;
    fn deref(&self) -> &Cluster {
        self.0.as_ref().expect("taken only by `stop`")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

/// Starts `builder`, which must be valid.
#[track_caller]
pub fn start(builder: ClusterBuilder) -> Running {
    Running(Some(builder.start().expect("the settings are sound")))
}

/// [`NUMBERS`] with records in slots of their own.
pub const NUMBERS_APART: TableSpec = NUMBERS.inline(Inline::Never);

/// Starts `builder` and makes [`NUMBERS`] in it.
#[track_caller]
pub fn with_numbers(builder: ClusterBuilder) -> (Running, TableId) {
    with_table(builder, NUMBERS)
}

/// Starts `builder` and makes a table in it.
#[track_caller]
pub fn with_table(builder: ClusterBuilder, spec: TableSpec) -> (Running, TableId) {
    let cluster = start(builder);
    let table = cluster.create_table(spec).expect("there is room");
    (cluster, table)
}

/// Starts `builder`, makes [`NUMBERS`] in it, and sets its first `rows` rows to zero.
#[track_caller]
pub fn with_zeroes(builder: ClusterBuilder, rows: u64) -> (Running, TableId) {
    let (cluster, table) = with_numbers(builder);
    let zero = |row: u64, value: &mut Vec<u8>| {
        value.extend(0_u64.to_le_bytes());
        PrimaryKey::from(row)
    };
    cluster.load(table, rows, &zero, &Default::default()).expect("they fit");
    (cluster, table)
}

/// One thread's waker for any future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, as an application with some other runtime would.
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let env = Env::real(0);
    let deadline = env.now().after(PATIENCE);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = deadline.since(env.now());
        assert!(!left.is_zero(), "nothing came of it in {PATIENCE:?}");
        std::thread::park_timeout(left);
    }
}

/// Waits for the outcome of a job.
pub fn outcome<T: Send + 'static>(submitted: Submitted<T>) -> Result<T, TxnError> {
    block_on(submitted)
}

/// Waits for the result of a job that must succeed.
#[track_caller]
pub fn done<T: Send + 'static>(submitted: Submitted<T>) -> T {
    outcome(submitted).expect("nothing stands in its way")
}

/// Stops a cluster, which must succeed.
#[track_caller]
pub fn stop(mut running: Running) {
    let cluster = running.0.take().expect("nobody else takes it");
    let (sender, stopped) = mpsc::channel();
    let stopping = move || {
        let _ = sender.send(cluster.stop());
    };
    let _thread = Env::real(0).spawn("stop", stopping).expect("there is a thread");
    let outcome = stopped.recv_timeout(PATIENCE).expect("every coordinator comes to an end");
    outcome.expect("no coordinator has failed");
}

/// Runs all checks on an idle cluster, then stops it.
#[track_caller]
pub fn stop_clean(cluster: Running) {
    assert_clean(&cluster);
    stop(cluster);
}

/// Runs all checks on an idle cluster.
///
/// A commit is reported when every copy shows it, which is before its caches are renewed and its
/// remote locks released (H3); so a finding is given a moment to vanish.
#[track_caller]
pub fn assert_clean(cluster: &Cluster) {
    let mut faults = Vec::new();
    eventually_within(Duration::from_secs(3), || {
        let findings = cluster.audit().expect("all nodes can be reached");
        faults = findings.into_iter().filter(|finding| !finding.passed).collect();
        faults.is_empty()
    });
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Checks that a table has exactly these rows.
#[track_caller]
pub fn assert_keys(cluster: &Cluster, table: TableId, expected: impl IntoIterator<Item = u64>) {
    let (keys, expected) = (keys_of(cluster, table), Vec::from_iter(expected));
    let missing: Vec<_> = expected.iter().filter(|key| !keys.contains(key)).collect();
    assert!(
        missing.is_empty(),
        "{} of {} rows are missing: {missing:?}",
        missing.len(),
        expected.len()
    );
    assert_eq!(keys.len(), expected.len(), "there are rows that nobody has inserted");
}

/// Returns the keys of all rows of a table, once the cluster is idle.
#[track_caller]
pub fn keys_of(cluster: &Cluster, table: TableId) -> Vec<u64> {
    assert_clean(cluster);
    let mut keys = Vec::new();
    let mut visit = |key: &PrimaryKey, _: &[u8], _| {
        let bytes = key.as_bytes().try_into().expect("the keys of these tests are numbers");
        keys.push(u64::from_be_bytes(bytes));
    };
    cluster.audit_scan(table, &mut visit).expect("all nodes can be reached");
    keys.sort_unstable();
    keys
}

/// Waits, for a bounded time, until `happened`.
#[track_caller]
pub fn eventually(happened: impl FnMut() -> bool) {
    assert!(eventually_within(PATIENCE, happened), "it did not happen in {PATIENCE:?}");
}

/// Whether it `happened` within `limit`.
pub fn eventually_within(limit: Duration, mut happened: impl FnMut() -> bool) -> bool {
    let env = Env::real(0);
    let deadline = env.now().after(limit);
    loop {
        match happened() {
            true => return true,
            false if env.now() >= deadline => return false,
            false => std::thread::park_timeout(Duration::from_millis(1)),
        }
    }
}

/// Lets other coroutines run until `happened`, for a bounded time.
pub async fn until(view: &SessionView, mut happened: impl FnMut() -> bool) {
    let deadline = view.now().after(PATIENCE);
    while !happened() {
        assert!(view.now() < deadline, "it did not happen in {PATIENCE:?}");
        view.sleep_until(view.now().after(Duration::from_micros(50))).await;
    }
}

/// Decodes the number in a row.
pub fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the rows of these tests hold eight bytes"))
}

/// Returns the number in a row of a transaction; `None` if the row is absent.
pub fn number_of(txn: &Transaction, item: Item) -> Option<u64> {
    txn.value(item).map(number)
}

/// Adds one to a row, which exists. Returns the previous number.
pub async fn add_one(txn: &mut Transaction, table: TableId, row: u64) -> Result<u64, TxnError> {
    let item = txn.add_rw(table, row)?;
    txn.execute().await?;
    let before = number_of(txn, item).expect("it was loaded");
    txn.put(item, &(before + 1).to_le_bytes())?;
    Ok(before)
}

/// Has a coordinator lock the first `rows` to write, and keep them until its node ends. Returns
/// once they are locked. Owners that answer late are suspected for a while, so it may take several
/// attempts.
#[track_caller]
pub fn hold(
    cluster: &Cluster,
    coordinator_id: CoordinatorId,
    table: TableId,
    rows: u64,
) -> Submitted<()> {
    let (locked, is_locked) = mpsc::channel();
    let holding = cluster.submit(coordinator_id, move |mut session| async move {
        let _holder = loop {
            let mut txn = session.begin(Isolation::Serializable).await?;
            for row in 0..rows {
                txn.add_rw(table, row)?;
            }
            match txn.execute().await {
                Ok(()) => break txn,
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error),
            }
        };
        locked.send(()).expect("somebody waits");
        std::future::pending().await
    });
    match is_locked.recv_timeout(PATIENCE) {
        Ok(()) => holding,
        Err(RecvTimeoutError::Timeout) => panic!("the rows are not locked after {PATIENCE:?}"),
        Err(RecvTimeoutError::Disconnected) => panic!("{:?}", holding.wait()),
    }
}

/// Whether the error means that another transaction has the row.
pub fn is_conflict(error: &TxnError) -> bool {
    matches!(error, TxnError::Conflict { .. } | TxnError::InDoubt { .. })
}

/// Transactions of one row, each in one attempt.
#[allow(async_fn_in_trait, reason = "a session stays on its thread")]
pub trait OneRow {
    /// Inserts a row.
    async fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: u64,
    ) -> Result<Receipt, TxnError>;

    /// Changes a row.
    async fn update(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: u64,
    ) -> Result<Receipt, TxnError>;

    /// Deletes a row.
    async fn delete(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
    ) -> Result<Receipt, TxnError>;

    /// Reads a row in a read-only transaction, which is retried while writers are at work.
    async fn read(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
    ) -> Result<Option<u64>, TxnError>;
}

impl OneRow for Session {
    async fn insert(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: u64,
    ) -> Result<Receipt, TxnError> {
        let mut txn = self.begin(Isolation::Serializable).await?;
        txn.insert(table, key, &value.to_le_bytes())?;
        txn.commit().await
    }

    async fn update(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
        value: u64,
    ) -> Result<Receipt, TxnError> {
        let mut txn = self.begin(Isolation::Serializable).await?;
        let item = txn.add_rw(table, key)?;
        txn.execute().await?;
        txn.put(item, &value.to_le_bytes())?;
        txn.commit().await
    }

    async fn delete(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
    ) -> Result<Receipt, TxnError> {
        let mut txn = self.begin(Isolation::Serializable).await?;
        let item = txn.add_rw(table, key)?;
        txn.execute().await?;
        txn.delete(item)?;
        txn.commit().await
    }

    async fn read(
        &mut self,
        table: TableId,
        key: impl Into<PrimaryKey>,
    ) -> Result<Option<u64>, TxnError> {
        let key = key.into();
        for attempt in 0.. {
            let mut txn = self.begin_read_only().await?;
            let item = txn.add_ro(table, key)?;
            match txn.execute().await {
                Err(error) if error.is_retryable() && attempt < 1_000 => {}
                executed => return executed.map(|()| number_of(&txn, item)),
            }
            self.back_off(attempt).await;
        }
        unreachable!("the last attempt returns")
    }
}

/// Inserts `key` with `value` through the first coordinator.
#[track_caller]
pub fn insert(cluster: &Cluster, table: TableId, key: u64, value: u64) {
    insert_all(cluster, table, &[(key, value)]);
}

/// Inserts rows, one transaction each, through the first coordinator.
#[track_caller]
pub fn insert_all(cluster: &Cluster, table: TableId, rows: &[(u64, u64)]) {
    let rows = rows.to_vec();
    done(cluster.submit(FIRST, move |mut session| async move {
        for (key, value) in rows {
            session.insert(table, key, value).await?;
        }
        Ok(())
    }));
}

/// Reads `key` through the first coordinator.
#[track_caller]
pub fn read(cluster: &Cluster, table: TableId, key: u64) -> Option<u64> {
    done(cluster.submit(FIRST, move |mut session| async move { session.read(table, key).await }))
}

/// Changes `key` through the first coordinator.
pub fn update(
    cluster: &Cluster,
    table: TableId,
    key: u64,
    value: u64,
) -> Result<Receipt, TxnError> {
    outcome(
        cluster.submit(
            FIRST,
            move |mut session| async move { session.update(table, key, value).await },
        ),
    )
}

/// Returns the first key from `from` on with its lock at the compute node at place `owner`.
#[track_caller]
pub fn key_owned_by(cluster: &Cluster, table: TableId, owner: usize, from: u64) -> u64 {
    done(cluster.submit(FIRST, move |session| async move {
        let view = session.view();
        let owned = |key: &u64| view.owner_of(table, &PrimaryKey::from(*key)) == Ok(owner);
        Ok((from..).find(owned).expect("every node owns shards"))
    }))
}
