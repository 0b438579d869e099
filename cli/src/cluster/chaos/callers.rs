//! The load of `lotus chaos`: applications whose calls have ids, so that what became of each is
//! known in the end.
//!
//! A call that has no answer is repeated by the client library, at other nodes too: with an id it
//! takes effect once (I80). Where that does not help either, its outcome is asked for until
//! somebody knows it. So the balances are known exactly, whoever was killed.
//!
//! What is remembered of ids has room for half a million calls in ten minutes; the callers pause
//! between calls so that it suffices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::stats::Tally;
use lotus_benchmarks::workload::{Access, Workload};
use lotus_client::{CallError, CallId, Client, Failure};
use lotus_fabric::env::{Env, Nanos};
use tokio::task::JoinSet;

use crate::applications::{Procedures, failed, forgive};

/// Applications, each with one call at a time.
const CALLERS: usize = 16;
/// Calls with an id that the cluster has room for in ten minutes, with something to spare.
const CALLS: f64 = 400_000.0;
/// How long what is remembered of a call is kept.
const RETENTION: Duration = Duration::from_secs(600);
/// The most calls in a second: what is looked for is not throughput.
const MOST_TPS: f64 = 5_000.0;
/// How long a call may take: somebody has to notice first that a node is gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the outcome of a call may stay unknown when all faults are over.
const LOOKING_UP: Duration = Duration::from_secs(60);

/// What the callers have seen.
pub struct Seen {
    /// What has committed.
    pub tally: Tally,
    /// What the workload itself refused.
    pub refused: u64,
    /// Calls that ended without an answer, or with an error.
    pub unanswered: u64,
    /// How many of those turned out to be committed.
    pub found: u64,
    /// Writes of which nobody knows what became.
    pub open: u64,
    /// The longest time in which nothing committed.
    pub silence: Duration,
}

/// Those who call.
pub struct Callers<W> {
    /// What they ask for.
    pub workload: Arc<W>,
    /// Their clock, and where their choices start.
    pub clock: Env,
    /// When they stop.
    pub until: Nanos,
    /// How long that is from when they began.
    pub span: Duration,
}

/// When somebody committed last, and the longest time in between. All callers share a thread.
struct Silence {
    last: AtomicU64,
    longest: AtomicU64,
}

impl Silence {
    fn ends(&self, now: Nanos) {
        let last = self.last.swap(now.0, Ordering::Relaxed);
        self.longest.fetch_max(now.0.saturating_sub(last), Ordering::Relaxed);
    }
}

impl Seen {
    fn new<W: Workload>() -> Self {
        Self {
            tally: Tally::new(W::TRANSACTIONS.len()),
            refused: 0,
            unanswered: 0,
            found: 0,
            open: 0,
            silence: Duration::ZERO,
        }
    }

    fn merge(&mut self, other: &Self) {
        self.tally.merge(&other.tally);
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.found += other.found;
        self.open += other.open;
    }
}

impl<W: Workload> Callers<W> {
    /// Calls until the time is up, and finds out what became of every call.
    ///
    /// # Errors
    /// A call failed in a way that no fault explains.
    pub async fn call(self, client: &Client) -> Result<Seen, BenchError> {
        let began = self.clock.now().0;
        let silence = Arc::new(Silence { last: AtomicU64::new(began), longest: AtomicU64::new(0) });
        let callers = Arc::new(self);
        let mut tasks = JoinSet::new();
        for caller in 0..CALLERS {
            let (callers, client) = (Arc::clone(&callers), client.clone());
            let silence = Arc::clone(&silence);
            tasks.spawn(async move { callers.keep_calling(&client, caller, &silence).await });
        }
        let mut seen = Seen::new::<W>();
        while let Some(ended) = tasks.join_next().await {
            seen.merge(&ended.map_err(|error| failed(&error))??);
        }
        silence.ends(callers.until);
        seen.silence = Duration::from_nanos(silence.longest.load(Ordering::Relaxed));
        Ok(seen)
    }

    /// How long a caller waits between calls.
    fn pause(&self) -> Duration {
        let tps = (CALLS / self.span.min(RETENTION).as_secs_f64()).min(MOST_TPS);
        Duration::from_secs_f64(CALLERS as f64 / tps)
    }

    async fn keep_calling(
        &self,
        client: &Client,
        caller: usize,
        silence: &Silence,
    ) -> Result<Seen, BenchError> {
        let procedures = Procedures::of::<W>(Isolation::Serializable);
        let mut rng = self.clock.rng(caller as u64);
        let mut seen = Seen::new::<W>();
        let mut doubtful = Vec::new();
        let began = self.clock.now();
        let mut number = 0_u64;
        loop {
            let issued = self.clock.now();
            if issued >= self.until {
                break;
            }
            let request = self.workload.draw_at(&mut rng, issued.since(began));
            let access = W::access(&request);
            let call = client.call::<_, i64>(procedures.serving(access), &request);
            let (table, key) = self.workload.first_record(&request);
            let mut call = call.at(table, key).timeout(PATIENCE);
            number += 1;
            let id = CallId::from((caller as u128) << 64 | u128::from(number));
            if access == Access::ReadWrite {
                call = call.idempotent(id);
            }
            let called = call.send().await;
            let now = self.clock.now();
            let kind = W::kind(&request);
            match called {
                Ok(effect) => {
                    silence.ends(now);
                    seen.tally.commit(kind, Some(now.since(issued).as_nanos() as u64), effect);
                }
                Err(error @ CallError::Rejected(_)) => {
                    forgive(error)?;
                    seen.refused += 1;
                }
                Err(error) if !a_fault_explains(&error) => return Err(failed(&error)),
                Err(_) => {
                    seen.unanswered += 1;
                    doubtful.extend((access == Access::ReadWrite).then_some((id, kind)));
                }
            }
            tokio::time::sleep(self.pause()).await;
        }
        for (id, kind) in doubtful {
            match self.look_up(client, id).await {
                Some(Some(effect)) => {
                    seen.found += 1;
                    seen.tally.commit(kind, None, effect);
                }
                Some(None) => {}
                None => seen.open += 1,
            }
        }
        Ok(seen)
    }

    /// What became of a call: its effect, if it had one. `None` if nobody says.
    async fn look_up(&self, client: &Client, id: CallId) -> Option<Option<i64>> {
        let deadline = self.until.after(LOOKING_UP);
        loop {
            match client.outcome(id).await {
                Ok(outcome) => return Some(outcome),
                Err(_) if self.clock.now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(_) => return None,
            }
        }
    }
}

/// Whether it is what may happen to a call when nodes go. Anything else makes no sense here.
fn a_fault_explains(error: &CallError) -> bool {
    match error {
        CallError::Unknown | CallError::Unreachable(_) => true,
        CallError::Failed(failure) => matches!(
            failure,
            Failure::Busy(_)
                | Failure::Conflict(_)
                | Failure::Leaving
                | Failure::Timeout
                | Failure::Unknown
                | Failure::WrongOwner { .. }
        ),
        _ => false,
    }
}
