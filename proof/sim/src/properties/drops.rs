//! Tables that are created, written and dropped while clients run, and the properties that must
//! hold of them.
//!
//! # What it is
//! Beside the clients, one job of every coordinator inserts, changes and deletes rows of an extra
//! table. At an interval the table is dropped meanwhile, and another table is created, which gets
//! its memory. Every value names its table and row: no row of another table may ever be seen. If
//! the memory of a dropped table goes elsewhere, the checks on the clients' own tables notice a
//! late write or a late clearing.
//!
//! Where memory is scarce, one table in four has an index of up to [`MOST_SLABS`] slabs in each
//! group. Often the index does not fit, at times in some groups only; an index that fits leaves the
//! clients no room. Either way inserts must find room again at the end ([`super::deletions`]).
//!
//! # What it is not
//! Part of the history: these tables do not belong to the workload.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lotus::{
    Cluster, ClusterError, Inline, Isolation, Session, Submitted, TableId, TableSpec, TxnError,
};
use lotus_mvcc::layout::region::SLAB_BYTES;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::scenario::format::{Scenario, Topology};
use crate::verdict::Violation;

/// Property that a table shows only its own rows.
pub const OWN_ROWS: &str = "a table shows no row of a table that was dropped";
/// Property that drops come to an end.
pub const GIVEN_BACK: &str = "the memory of dropped tables is given back";

/// Rows of a table: few, written by all coordinators.
const ROWS: u64 = 48;
const VALUE_BYTES: usize = 1200;
/// Maximum transactions of a writer in a storm, so that long storms end as well.
const MOST_WRITES: u32 = 500;
/// Maximum slabs in each group for the index of a large table.
const MOST_SLABS: u64 = 4;
/// Approximate bytes of an index for each row.
const INDEX_BYTES_PER_ROW: u64 = 64;

/// Creates and drops tables at an interval.
pub(crate) struct Drops {
    /// Interval between drops; zero for never.
    every: Duration,
    since: Duration,
    seed: u64,
    /// Pause of a writer after each transaction.
    pace: Duration,
    /// Number of replica groups, if some tables are to be large.
    scarce: Option<u64>,
    /// Random numbers for large tables.
    rng: SmallRng,
    /// Number of tables created, or that did not fit.
    made: u32,
    /// Name of the table in use.
    name: Option<String>,
    writers: Arc<Writers>,
    jobs: Vec<Submitted<()>>,
}

/// State shared by the jobs of all coordinators.
#[derive(Default)]
struct Writers {
    /// Number of the table in use, plus one; 0 for none.
    table: AtomicU32,
    over: AtomicBool,
    /// First wrong row.
    wrong: Mutex<Option<String>>,
}

impl Drops {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let every = Duration::from_micros(scenario.cluster.drops_us);
        let is_scarce = scenario.cluster.group_slabs < Topology::default().group_slabs;
        Self {
            every,
            since: Duration::ZERO,
            seed,
            pace: scenario.storm() / MOST_WRITES,
            scarce: is_scarce.then_some(scenario.cluster.memory_nodes as u64),
            rng: SmallRng::seed_from_u64(seed ^ 0xD209_5CA2),
            made: 0,
            name: None,
            writers: Arc::default(),
            jobs: Vec::new(),
        }
    }

    /// Time until the next drop, at most `interval`.
    pub(crate) fn pause(&self, interval: Duration) -> Duration {
        if self.every.is_zero() { interval } else { self.every.min(interval) }
    }

    /// Starts the jobs of the given compute nodes.
    pub(crate) fn start(&mut self, cluster: &Cluster, nodes: impl Fn(usize) -> bool) {
        if self.every.is_zero() {
            return;
        }
        for coordinator_id in
            cluster.coordinators().filter(|coordinator_id| nodes(coordinator_id.compute_node))
        {
            let (writers, pace) = (Arc::clone(&self.writers), self.pace);
            let stream = (coordinator_id.compute_node as u64) << 8 | coordinator_id.thread as u64;
            let rng = SmallRng::seed_from_u64(self.seed ^ 0xD209_0000 ^ stream);
            let job = move |session| async move {
                write(session, &writers, rng, pace).await;
                Ok(())
            };
            self.jobs.push(cluster.submit(coordinator_id, job));
        }
    }

    /// Advances time by `passed`: drops the table in use, or creates another.
    pub(crate) fn look(&mut self, cluster: &Cluster, passed: Duration) {
        self.since += passed;
        if self.every.is_zero() || self.since < self.every {
            return;
        }
        self.since = Duration::ZERO;
        if let Some(name) = self.name.take() {
            // Writers continue until they notice the drop.
            let dropped = cluster.begin_to_drop(&name, Duration::ZERO);
            self.name = dropped.is_err().then_some(name);
            return;
        }
        // One table in three is created while another is being dropped.
        if cluster.dropped_table().is_some() && !self.made.is_multiple_of(3) {
            return;
        }
        let name = format!("further {}", self.made);
        let spec = TableSpec::named(name.clone()).record_bytes(VALUE_BYTES as u32);
        let spec = spec.capacity(self.capacity()).shards(4).inline(Inline::Never);
        match cluster.create_table(spec) {
            Ok(table) => {
                self.writers.table.store(u32::from(table.0) + 1, Ordering::Relaxed);
                (self.made, self.name) = (self.made + 1, Some(name));
            }
            // The next table may be smaller.
            Err(ClusterError::OutOfMemory { .. }) => self.made += 1,
            // Nodes are lost, or the last table's memory has not been given back.
            Err(_) => {}
        }
    }

    /// Number of rows that the next table is made for.
    fn capacity(&mut self) -> u64 {
        match self.scarce {
            Some(groups) if self.made % 4 == 3 => {
                let slabs = self.rng.random_range(1..=MOST_SLABS) * groups;
                slabs * SLAB_BYTES / INDEX_BYTES_PER_ROW
            }
            _ => ROWS,
        }
    }

    /// Ends the jobs, and returns them.
    pub(crate) fn end(&mut self) -> Vec<Submitted<()>> {
        self.writers.over.store(true, Ordering::Relaxed);
        std::mem::take(&mut self.jobs)
    }

    /// A row with a wrong value.
    pub(crate) fn wrong_row(&self) -> Option<Violation> {
        let wrong = self.writers.wrong.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Violation { property: OWN_ROWS.to_owned(), detail: wrong })
    }

    /// A dropped table that still has memory.
    pub(crate) fn left(&self, cluster: &Cluster) -> Option<Violation> {
        let detail = format!("table {:?}", cluster.dropped_table()?);
        Some(Violation { property: GIVEN_BACK.to_owned(), detail })
    }
}

/// Value of a row of a table.
fn value(table: TableId, row: u64) -> [u8; VALUE_BYTES] {
    let mut value = [row as u8; VALUE_BYTES];
    value[..2].copy_from_slice(&table.0.to_le_bytes());
    value
}

/// Changes rows of the table in use until the run is over, or the node fails.
async fn write(mut session: Session, writers: &Writers, mut rng: SmallRng, pace: Duration) {
    let (view, mut attempts) = (session.view(), 0);
    while !writers.over.load(Ordering::Relaxed) {
        let Some(table) = writers.table.load(Ordering::Relaxed).checked_sub(1) else {
            view.sleep_until(view.now().after(pace)).await;
            continue;
        };
        match change(&mut session, TableId(table as u16), &mut rng, writers).await {
            Ok(()) => attempts = 0,
            Err(TxnError::Fenced) => return,
            Err(error) if error.is_retryable() => {
                attempts += 1;
                session.back_off(attempts).await;
            }
            // The table is dropped, or no memory is left.
            Err(_) => {}
        }
        view.sleep_until(view.now().after(pace)).await;
    }
}

/// Inserts, changes or deletes two rows.
async fn change(
    session: &mut Session,
    table: TableId,
    rng: &mut SmallRng,
    writers: &Writers,
) -> Result<(), TxnError> {
    let first = rng.random_range(0..ROWS);
    let rows = [first, (first + rng.random_range(1..ROWS)) % ROWS];
    let mut txn = session.begin(Isolation::Serializable).await?;
    let mut items = Vec::new();
    for row in rows {
        items.push((row, txn.add_rw(table, row)?));
    }
    txn.execute().await?;
    for (row, item) in items {
        let found = txn.value(item);
        if let Some(found) = found.filter(|found| **found != value(table, row)) {
            let mut wrong = writers.wrong.lock().unwrap_or_else(PoisonError::into_inner);
            let first = &found[..found.len().min(8)];
            wrong.get_or_insert_with(|| format!("row {row} of table {}: {first:?}", table.0));
        }
        match txn.value(item).is_some() {
            true if rng.random_bool(0.2) => txn.delete(item)?,
            _ => txn.upsert(item, &value(table, row))?,
        }
    }
    txn.commit().await.map(drop)
}
