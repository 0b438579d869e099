//! Endless transactions beside the clients, and their required properties.
//!
//! # What it is
//! At an interval one more transaction begins on some compute node. The body awaits a future that
//! never completes: at once, after reading a row of the clients, or after locking such a row. The
//! transaction has a time limit, and ends at the limit, or earlier by a fault of its node; then the
//! next transaction gets the slot, and clients get the lock.
//!
//! # What it is not
//! Code that blocks a thread: no time passes meanwhile in a simulated world.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use lotus::{Cluster, Committed, Isolation, Submitted, TableId, Transaction, TxnError, TxnOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::scenario::format::Scenario;
use crate::verdict::Violation;

/// Property that a transaction is ended when its body does not end.
pub const IN_TIME: &str = "a transaction ends when its time is up";

/// Clients' rows that bodies access: few, so that bodies conflict with clients and with each other.
const ROWS: u64 = 8;
/// Shortest time limit.
const SHORTEST: Duration = Duration::from_micros(20);

/// Action of a body before it blocks forever.
#[derive(Clone, Copy)]
enum Deed {
    Nothing,
    Reads,
    Locks,
}

/// Begins endless transactions at an interval.
pub(crate) struct Endless {
    /// Interval; zero for never.
    every: Duration,
    since: Duration,
    longest: Duration,
    rng: SmallRng,
    running: Vec<Submitted<Committed<Infallible>>>,
    /// Number of transactions ended at their time limit.
    ended: u64,
}

impl Endless {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        Self {
            every: Duration::from_micros(scenario.cluster.endless_us),
            since: Duration::ZERO,
            longest: scenario.endless_limit().max(2 * SHORTEST),
            // A separate random stream; the other streams of the seed are unchanged.
            rng: SmallRng::seed_from_u64(seed ^ 0xE2D1_E550),
            running: Vec::new(),
            ended: 0,
        }
    }

    /// Time until the next transaction begins, at most `interval`.
    pub(crate) fn pause(&self, interval: Duration) -> Duration {
        if self.every.is_zero() { interval } else { self.every.min(interval) }
    }

    /// Advances time by `passed`: begins another transaction if fewer are running than there are
    /// coordinators. A coordinator has one slot for endless transactions.
    pub(crate) fn look(&mut self, cluster: &Cluster, passed: Duration) {
        self.since += passed;
        if self.every.is_zero() || self.since < self.every {
            return;
        }
        self.since = Duration::ZERO;
        self.note_ended(cluster);
        if self.running.len() >= cluster.coordinators().count() {
            return;
        }
        let deed = [Deed::Nothing, Deed::Reads, Deed::Locks, Deed::Locks];
        let deed = deed[self.rng.random_range(0..deed.len())];
        let row = self.rng.random_range(0..ROWS);
        let body = async move |txn: &mut Transaction| never_end(txn, deed, row).await;
        let limit = self.rng.random_range(SHORTEST..self.longest);
        let options = TxnOptions::new(Isolation::Serializable).name("endless").timeout(limit);
        self.running.extend(cluster.run_with(options, body));
    }

    /// Removes finished transactions, and counts the transactions that ended because their time was
    /// up.
    pub(crate) fn note_ended(&mut self, cluster: &Cluster) {
        let (ended, running) =
            std::mem::take(&mut self.running).into_iter().partition(Submitted::is_finished);
        self.running = running;
        let ended: Vec<Submitted<_>> = ended;
        for one in ended {
            let late = matches!(cluster.wait(one), Err(TxnError::DeadlinePassed { .. }));
            self.ended += u64::from(late);
        }
    }

    /// Number of transactions ended at their time limit so far.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Violation if some transactions have not ended.
    pub(crate) fn left(&self) -> Option<Violation> {
        let left = self.running.iter().filter(|one| !one.is_finished()).count();
        let detail = format!("{left} have not");
        (left > 0).then(|| Violation { property: IN_TIME.to_owned(), detail })
    }
}

/// Accesses a row, and never returns.
async fn never_end(txn: &mut Transaction, deed: Deed, row: u64) -> Result<Infallible, TxnError> {
    let table = TableId(0);
    let taken = match deed {
        Deed::Nothing => return pending().await,
        Deed::Reads => txn.add_ro(table, row),
        Deed::Locks => txn.add_rw(table, row),
    };
    // The first table of some workloads is an ordered table.
    if taken.is_ok() {
        txn.execute().await?;
    }
    pending().await
}
