//! The time by which records of calls expire: agreed on by all servers, and not read from a clock.
//!
//! # What it is
//! A row of the table of call records has the *time*, in milliseconds; a further row per compute
//! node has the time that the node has *reached*. Now and then a server adds the time passed on its
//! own clock since the last turn to its reached time, and sets the time to the least reached by any
//! live node, in a single transaction. So the time runs with the slowest node. A clock's reading
//! plays no part, and a jump of a clock moves the time by a [step](Pace) at most.
//!
//! A record is stamped with the time reached by its node, which is never before the time, and
//! expires by the time: so every live node has counted the whole retention since. The time and the
//! reached times go into snapshots with the records, and stand still while the cluster is down.
//!
//! # What it costs
//! Nothing before the first record, which begins the time. Then every server has a transaction 32
//! times in a retention.
//!
//! # What may fail
//! A failed turn is left out: the time stands still meanwhile, and records are kept for longer. An
//! expelled node counts no more; a node that lives on without its server still counts, and holds
//! the time up. A node learning of the live nodes a moment late moves the time by a step at most;
//! records are therefore kept longer than the retention.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus::{Isolation, Nanos, PrimaryKey, Session, TxnError};
use tokio::sync::watch;

use crate::calls;
use crate::node::NodeServer;
use crate::worker::WorkerTask;

/// Key of the row with the time, behind the keys of all records; the nodes' rows follow.
const TIME_KEY: u64 = 1 << 32;
/// Steps in a retention, and turns in a step.
const STEPS: u32 = 16;
const TURNS: u32 = 2;
/// Steps for which a record is kept beyond the retention: a node may lag a step behind its own row,
/// and a node not knowing a newcomer yet may move the time a step further.
const SPARE_STEPS: u64 = 2;
/// Attempts of a turn that conflicts with other turns.
const ATTEMPTS: u32 = 16;

/// Speed of the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pace {
    retention_ms: u64,
    /// The most by which a turn moves the time, and by which a node is ahead of the time.
    step_ms: u64,
}

impl Pace {
    fn of(retention: Duration) -> Self {
        let step = (retention / STEPS).as_millis() as u64;
        Self { retention_ms: retention.as_millis() as u64, step_ms: step.max(1) }
    }

    /// Returns the stamp of a node that has reached `own_ms` while it knows `time_ms`.
    fn stamp(self, Reached { time_ms, own_ms }: Reached) -> Stamp {
        let kept_ms = self.retention_ms + SPARE_STEPS * self.step_ms;
        Stamp { at_ms: own_ms, expired_ms: time_ms.saturating_sub(kept_ms) }
    }

    /// Computes a node's turn: `time_ms` is the time, `own_ms` the time reached in this life if the
    /// node had a turn, `others` the times reached by the remaining live nodes, and `passed_ms` the
    /// time since the node's last turn by its own clock.
    fn turn(
        self,
        time_ms: u64,
        own_ms: Option<u64>,
        others: impl Iterator<Item = u64>,
        passed_ms: u64,
    ) -> Reached {
        let from_ms = own_ms.map_or(time_ms, |own_ms| own_ms.max(time_ms));
        let passed_ms = if own_ms.is_some() { passed_ms.min(self.step_ms) } else { 0 };
        let own_ms = (from_ms + passed_ms).min(time_ms + self.step_ms);
        let least_ms = others.fold(own_ms, u64::min);
        let reached = Reached { time_ms: time_ms.max(least_ms), own_ms };
        debug_assert!(
            (time_ms..=time_ms + self.step_ms).contains(&reached.time_ms)
                && reached.time_ms <= reached.own_ms,
            "I333: the time of call records goes on by a step at most, and behind every live node"
        );
        reached
    }
}

/// The time, and the time that a node has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reached {
    time_ms: u64,
    own_ms: u64,
}

/// Times for writing a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Stamp {
    /// The record's own time.
    pub(crate) at_ms: u64,
    /// Records written before this time have expired.
    pub(crate) expired_ms: u64,
}

/// A server's turn in the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeTurn {
    /// Takes the first turn, and begins the time if it has not begun: a record is to be written.
    Begin,
    /// Takes a turn, if the time has begun.
    GoOn,
}

/// The time as known to one server.
#[derive(Debug)]
pub(crate) struct CallTime {
    pace: Pace,
    /// Outcome of the last turn, and the moment of the turn by this node's clock.
    last: Mutex<Option<(Reached, Nanos)>>,
    /// Times reached by the last turn, for stamps; zero before the first turn.
    time_ms: AtomicU64,
    own_ms: AtomicU64,
    /// Whether a turn is due that no worker has taken up.
    is_due: AtomicBool,
    /// Number of turns under way.
    under_way: AtomicUsize,
}

impl CallTime {
    pub(crate) fn new(retention: Duration) -> Self {
        Self {
            pace: Pace::of(retention),
            last: Mutex::new(None),
            time_ms: AtomicU64::new(0),
            own_ms: AtomicU64::new(0),
            is_due: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
        }
    }

    /// Returns the times for a record written now; `None` before the first turn.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        // Relaxed: the words only grow, and an older value keeps records for longer.
        let time_ms = self.time_ms.load(Ordering::Relaxed);
        let own_ms = self.own_ms.load(Ordering::Relaxed);
        (own_ms > 0).then(|| self.pace.stamp(Reached { time_ms, own_ms }))
    }

    /// Whether a turn is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(self.pace.step_ms) / TURNS
    }

    /// Returns the time since the last turn, by this node's clock.
    fn passed_ms(&self, now: Nanos) -> u64 {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map_or(0, |(_, then)| now.since(then).as_millis() as u64)
    }

    /// Records a turn begun at `then`. Without `reached`, whether the turn took place is unknown;
    /// time passed until the turn is not counted again.
    fn note(&self, reached: Option<Reached>, then: Nanos) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(reached) = reached.or_else(|| last.map(|(before, _)| before)) else { return };
        *last = Some((reached, then));
        self.time_ms.fetch_max(reached.time_ms, Ordering::Relaxed);
        self.own_ms.fetch_max(reached.own_ms, Ordering::Relaxed);
    }
}

/// Has a worker take the server's turns, until the server stops.
pub(crate) async fn ask_now_and_then(node: Arc<NodeServer>, mut stopped: watch::Receiver<bool>) {
    let CallTime { is_due, .. } = &node.call_time;
    loop {
        if !is_due.swap(true, Ordering::Relaxed) {
            node.queues[0].push_all(&mut vec![WorkerTask::KeepTime(TimeTurn::GoOn)]);
        }
        tokio::select! {
            () = tokio::time::sleep(node.call_time.interval()) => {}
            // An error means a dropped `Server`, with the same effect.
            _ = stopped.wait_for(|stopped| *stopped) => return,
        }
    }
}

/// Takes this server's turn, in a transaction. Retries after a conflict with another turn.
///
/// # Errors
/// Errors of the engine. Nothing is lost: a later turn makes up for a failed turn.
pub(crate) async fn keep(
    node: &NodeServer,
    session: &mut Session,
    part: TimeTurn,
) -> Result<(), TxnError> {
    node.call_time.is_due.store(false, Ordering::Relaxed);
    let _under_way = UnderWay::begin(&node.call_time.under_way);
    // Skipped: other nodes, or a memory node needed by the turn, may be gone before the turn ends.
    if part == TimeTurn::GoOn && (node.is_draining() || node.check_memory().is_err()) {
        return Ok(());
    }
    session.new_transaction();
    let mut attempts = 0;
    loop {
        // Another worker was faster.
        if part == TimeTurn::Begin && node.call_time.stamp().is_some() {
            return Ok(());
        }
        match attempt(node, session, part).await {
            Err(error) if error.is_retryable() && attempts < ATTEMPTS => {
                session.back_off(attempts).await;
                attempts += 1;
            }
            outcome => return outcome,
        }
    }
}

/// A turn under way.
struct UnderWay<'n>(&'n AtomicUsize);

impl<'n> UnderWay<'n> {
    fn begin(count: &'n AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn attempt(node: &NodeServer, session: &mut Session, part: TimeTurn) -> Result<(), TxnError> {
    let (now, live) = (session.now(), node.live_nodes());
    let own_life = live.iter().find(|(index, _)| *index == node.index);
    // An expelled node counts no more, and commits no call.
    let Some((_, own_life)) = own_life.copied() else { return Err(TxnError::Fenced) };
    let mut txn = session.begin(Isolation::Serializable).await?;
    let time = txn.add_rw(node.calls, key(None))?;
    let own = txn.add_rw(node.calls, key(Some(node.index)))?;
    let mut others = Vec::new();
    for (index, life) in live.into_iter().filter(|(index, _)| *index != node.index) {
        others.push((life, txn.add_ro(node.calls, key(Some(index)))?));
    }
    txn.execute().await?;
    if part != TimeTurn::Begin && txn.value(time).is_none() {
        return Ok(());
    }
    let reached_in = |item, life| txn.value(item).and_then(|row| reached_in(row, life));
    // Records of earlier versions have the time of day: a new time begins with the time of day,
    // once.
    let time_ms = txn.value(time).and_then(|row| Some(u64::from_le_bytes(row.try_into().ok()?)));
    let time_ms = time_ms.unwrap_or(now.0 / 1_000_000).max(1);
    let own_ms = reached_in(own, own_life);
    let others = others.into_iter().filter_map(|(life, item)| reached_in(item, life));
    let passed_ms = node.call_time.passed_ms(now);
    let reached = node.call_time.pace.turn(time_ms, own_ms, others, passed_ms);
    txn.upsert(time, &reached.time_ms.to_le_bytes())?;
    txn.upsert(own, &node_row(own_life, reached.own_ms))?;
    // At first as if the turn failed: this future may be dropped while the commit is under way.
    node.call_time.note(None, now);
    txn.commit().await?;
    node.call_time.note(Some(reached), now);
    Ok(())
}

/// Whether a row belongs to the time by which records of calls expire. The rows change without an
/// action of applications.
pub fn is_call_time(table: &str, key: &PrimaryKey) -> bool {
    let number = key.as_bytes().try_into().map(u64::from_be_bytes);
    table == calls::TABLE && number.is_ok_and(|number| number >= TIME_KEY)
}

/// Returns the key of a node's row, or of the row with the time.
fn key(node: Option<usize>) -> PrimaryKey {
    (TIME_KEY + node.map_or(0, |index| 1 + index as u64)).into()
}

fn node_row(life: u16, reached_ms: u64) -> Vec<u8> {
    [&life.to_le_bytes()[..], &reached_ms.to_le_bytes()].concat()
}

/// Returns the time reached by a node, from the node's row; `None` if the row was written in
/// another life of the node.
fn reached_in(row: &[u8], life: u16) -> Option<u64> {
    let (of, reached_ms) = row.split_first_chunk()?;
    let reached_ms = u64::from_le_bytes(reached_ms.try_into().ok()?);
    (u16::from_le_bytes(*of) == life).then_some(reached_ms)
}

#[cfg(test)]
mod tests;
