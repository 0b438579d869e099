//! The load of `lotus chaos`: applications whose calls have ids, so that every outcome is known in
//! the end.
//!
//! The client library repeats an unanswered call, at other nodes too: a call with an id takes
//! effect once (I80). If repetition does not help, the outcome is looked up until a node knows it.
//! So the balances are known exactly, whichever node was killed.
//!
//! The table of remembered ids has room for a quarter of a million calls in ten minutes, and for
//! fewer calls with a history, since a call's operations are part of its result. The callers pause
//! between calls so that the room suffices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lotus_benchmarks::engine::{Isolation, Receipt};
use lotus_benchmarks::harness::BenchError;
use lotus_benchmarks::history::{Attempt, Log, Operation, Status};
use lotus_benchmarks::stats::Tally;
use lotus_benchmarks::workload::{Access, Workload};
use lotus_client::{CallError, CallId, Client};
use lotus_fabric::env::{Env, Nanos};
use lotus_fabric::ids::TxnId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::apps::connect::connect;
use lotus_node::config::file::ClusterFile;
use lotus_runner::applications::load::{
    IN_DOUBT, LOOKING_UP, a_fault_explains, failed, forgive, look_up,
};
use lotus_runner::applications::requests::Procedures;
use lotus_runner::applications::traced::{MalformedResult, Traced};

/// Number of applications, each with one call at a time.
const CALLERS: usize = 16;
/// Share of the remembered calls' room to use in ten minutes. Below one, since calls are spread
/// unevenly over rows.
const USED_ROOM: f64 = 0.3;
/// Approximate bytes remembered for a call, without its operations.
const CALL_BYTES: usize = 40;
/// Bytes remembered for each operation.
const OPERATION_BYTES: usize = 18;
/// Time for which a call is remembered.
const RETENTION: Duration = Duration::from_secs(600);
/// Maximum calls per second: the test is not about throughput.
const MOST_TPS: f64 = 5_000.0;
/// Isolation level of the calls.
const ISOLATION: Isolation = Isolation::Serializable;
/// Timeout of a call: long enough for the cluster to notice the loss of a node.
const PATIENCE: Duration = Duration::from_secs(10);

/// Minimum number of outcomes kept of a caller's last calls, to look them up again.
const REMEMBERED: usize = 32;

/// Results of the callers.
pub struct CallerResults {
    /// Committed calls.
    pub tally: Tally,
    /// Calls rejected by the workload's own logic.
    pub refused: u64,
    /// Calls that ended without an answer, or with an error that a fault explains.
    pub unanswered: u64,
    /// Number of unanswered calls found to be committed.
    pub found: u64,
    /// Read-write calls of unknown outcome, even after a lookup.
    pub open: u64,
    /// Longest time without a commit.
    pub silence: Duration,
    /// Reads and writes of the calls, by caller, if `traced`.
    pub logs: Vec<Log>,
    /// Outcomes of the last calls with ids.
    pub known: Vec<Known>,
}

/// Final outcome of a call.
pub struct Known {
    id: CallId,
    /// Result of the call; `None` if the call has not committed.
    told: Option<Value>,
}

/// Applications that make calls until a point in time.
pub struct Callers<W> {
    /// Source of the calls.
    pub workload: Arc<W>,
    /// Clock, and seed of the callers' choices.
    pub clock: Env,
    /// Time at which the applications stop.
    pub until: Nanos,
    /// Time from the start of the applications to `until`.
    pub span: Duration,
    /// Whether calls report the rows read and written.
    pub traced: bool,
    /// Room for remembered calls, in bytes.
    pub room: f64,
    /// Number of earlier restores of the cluster; part of call ids, to keep ids unique.
    pub life: u32,
}

/// Result type of a call.
trait CallResult: DeserializeOwned + Serialize + Send + 'static {
    /// Stored transactions with this result type.
    fn procedures<W: Workload>() -> Procedures;

    /// Change of the balance.
    fn effect(&self) -> i64;

    /// Attempt and operations of the call; `None` if the type does not report them.
    fn operations(&self) -> Option<Result<(TxnId, Vec<Operation>), MalformedResult>>;
}

impl CallResult for i64 {
    fn procedures<W: Workload>() -> Procedures {
        Procedures::of::<W>(ISOLATION)
    }

    fn effect(&self) -> i64 {
        *self
    }

    fn operations(&self) -> Option<Result<(TxnId, Vec<Operation>), MalformedResult>> {
        None
    }
}

impl CallResult for Traced {
    fn procedures<W: Workload>() -> Procedures {
        Procedures::traced::<W>(ISOLATION)
    }

    fn effect(&self) -> i64 {
        self.effect
    }

    fn operations(&self) -> Option<Result<(TxnId, Vec<Operation>), MalformedResult>> {
        Some(Self::operations(self))
    }
}

/// An issued call.
#[derive(Clone, Copy)]
struct IssuedCall {
    caller: usize,
    id: CallId,
    kind: usize,
    issued: Nanos,
}

/// Time of the last commit, and the longest gap between two commits. All callers share a thread.
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

impl CallerResults {
    fn new<W: Workload>() -> Self {
        Self {
            tally: Tally::new(W::TRANSACTIONS.len()),
            refused: 0,
            unanswered: 0,
            found: 0,
            open: 0,
            silence: Duration::ZERO,
            logs: Vec::new(),
            known: Vec::new(),
        }
    }

    /// Adds the results of another caller.
    pub fn merge(&mut self, other: Self) {
        self.tally.merge(&other.tally);
        self.refused += other.refused;
        self.unanswered += other.unanswered;
        self.found += other.found;
        self.open += other.open;
        self.silence = self.silence.max(other.silence);
        self.logs.extend(other.logs);
        self.known.extend(other.known);
    }

    /// Keeps the outcome of a call; old outcomes are dropped in batches.
    fn remember<T: CallResult>(&mut self, id: CallId, told: Option<&T>) {
        if self.known.len() >= 2 * REMEMBERED {
            self.known.drain(..REMEMBERED);
        }
        let told = told.map(|told| serde_json::to_value(told).expect("numbers and text"));
        self.known.push(Known { id, told });
    }

    /// Records a commit, and the time of the answer if there was an answer; returns the number of
    /// the call's operations.
    fn note<T: CallResult>(
        &mut self,
        made: IssuedCall,
        told: &T,
        end: Option<Nanos>,
    ) -> Result<usize, BenchError> {
        let latency = end.map(|end| end.since(made.issued).as_nanos() as u64);
        self.tally.commit(made.kind, latency, told.effect());
        let Some(operations) = told.operations() else { return Ok(0) };
        let (id, operations) = operations.map_err(|nonsense| failed(&nonsense))?;
        let attempt = Attempt {
            id,
            session: made.caller as u32,
            start_ns: made.issued.0,
            end_ns: end.map_or(0, |end| end.0),
            isolation: ISOLATION,
            // An unanswered call may have taken effect at any time after it was issued.
            status: if end.is_some() { Status::Ok } else { Status::Info },
            receipt: Receipt::default(),
        };
        let count = operations.len();
        if self.logs.is_empty() {
            self.logs.push(Log::default());
        }
        self.logs[0].add(attempt, operations);
        Ok(count)
    }
}

impl<W: Workload> Callers<W> {
    /// Calls until the time is up, then looks up the outcome of every unanswered call.
    ///
    /// # Errors
    /// A call failed in a way that no fault explains.
    pub async fn call(self, client: &Client) -> Result<CallerResults, BenchError> {
        let began = self.clock.now().0;
        let silence = Arc::new(Silence { last: AtomicU64::new(began), longest: AtomicU64::new(0) });
        let callers = Arc::new(self);
        let mut tasks = JoinSet::new();
        for caller in 0..CALLERS {
            let (callers, client) = (Arc::clone(&callers), client.clone());
            let silence = Arc::clone(&silence);
            tasks.spawn(async move {
                match callers.traced {
                    true => callers.keep_calling::<Traced>(&client, caller, &silence).await,
                    false => callers.keep_calling::<i64>(&client, caller, &silence).await,
                }
            });
        }
        let mut seen = CallerResults::new::<W>();
        while let Some(ended) = tasks.join_next().await {
            seen.merge(ended.map_err(|error| failed(&error))??);
        }
        silence.ends(callers.until);
        seen.silence = Duration::from_nanos(silence.longest.load(Ordering::Relaxed));
        Ok(seen)
    }

    /// Pause after a call with this number of operations, so that remembered calls fit into their
    /// room.
    fn pause(&self, operations: usize) -> Duration {
        let bytes = (CALL_BYTES + OPERATION_BYTES * operations) as f64;
        let tps =
            (self.room * USED_ROOM / bytes / self.span.min(RETENTION).as_secs_f64()).min(MOST_TPS);
        Duration::from_secs_f64(CALLERS as f64 / tps)
    }

    async fn keep_calling<T: CallResult>(
        &self,
        client: &Client,
        caller: usize,
        silence: &Silence,
    ) -> Result<CallerResults, BenchError> {
        let procedures = T::procedures::<W>();
        let mut rng = self.clock.rng(u64::from(self.life) << 32 | caller as u64);
        let mut seen = CallerResults::new::<W>();
        let mut doubtful = Vec::new();
        let began = self.clock.now();
        let mut number = 0_u64;
        loop {
            let issued = self.clock.now();
            if issued >= self.until {
                break;
            }
            let is_old = |made: &&IssuedCall| issued >= made.issued.after(IN_DOUBT);
            if let Some(made) = doubtful.first().filter(is_old).copied()
                && self.find_out::<T>(client, made, issued.after(IN_DOUBT), &mut seen).await?
            {
                doubtful.remove(0);
            }
            let request = self.workload.draw_at(&mut rng, issued.since(began));
            let access = W::access(&request);
            let call = client.call::<_, T>(procedures.serving(access), &request);
            let (table, key) = self.workload.first_record(&request);
            let mut call = call.at(table, key).timeout(PATIENCE);
            number += 1;
            let whose = u128::from(self.life) << 96 | (caller as u128) << 64;
            let id = CallId::from(whose | u128::from(number));
            let made = IssuedCall { caller, id, kind: W::kind(&request), issued };
            if access == Access::ReadWrite {
                call = call.idempotent(id);
            }
            let mut operations = 0;
            match call.send().await {
                Ok(told) => {
                    let now = self.clock.now();
                    silence.ends(now);
                    operations = seen.note(made, &told, Some(now))?;
                    if access == Access::ReadWrite {
                        seen.remember(id, Some(&told));
                    }
                }
                Err(error @ CallError::Rejected(_)) => {
                    forgive(error)?;
                    seen.refused += 1;
                }
                Err(error) if !a_fault_explains(&error) => return Err(failed(&error)),
                Err(_) => {
                    seen.unanswered += 1;
                    doubtful.extend((access == Access::ReadWrite).then_some(made));
                }
            }
            tokio::time::sleep(self.pause(operations)).await;
        }
        for made in doubtful {
            let deadline = self.until.after(LOOKING_UP);
            if !self.find_out::<T>(client, made, deadline, &mut seen).await? {
                seen.open += 1;
            }
        }
        Ok(seen)
    }

    /// Looks up the outcome of a call until `deadline`; returns whether a node knew the outcome.
    async fn find_out<T: CallResult>(
        &self,
        client: &Client,
        made: IssuedCall,
        deadline: Nanos,
        seen: &mut CallerResults,
    ) -> Result<bool, BenchError> {
        let outcome = look_up::<T>(client, made.id, &self.clock, deadline).await;
        match &outcome {
            Some(Some(told)) => {
                seen.found += 1;
                seen.note(made, told, None)?;
                seen.remember(made.id, Some(told));
            }
            Some(None) => seen.remember::<T>(made.id, None),
            None => {}
        }
        Ok(outcome.is_some())
    }
}

/// Looks up the outcomes of known calls again. Returns the number of calls, and the differences.
///
/// # Errors
/// Errors of the operating system; no compute node accepts the connection.
pub fn ask_again(
    file: &ClusterFile,
    known: &[Known],
    traced: bool,
) -> Result<(usize, Vec<String>), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let client = connect(file).await.map_err(|error| error.to_string())?;
        let clock = Env::real(0);
        let deadline = clock.now().after(LOOKING_UP);
        let mut others = Vec::new();
        for Known { id, told } in known {
            let found = match traced {
                true => found_again::<Traced>(&client, *id, &clock, deadline).await,
                false => found_again::<i64>(&client, *id, &clock, deadline).await,
            };
            if found.as_ref() != Some(told) {
                others.push(format!("{id:?} was {told:?}, and is {found:?}"));
            }
        }
        Ok((known.len(), others))
    })
}

/// Outcome of a call: its result, if the call has committed. `None` if no node knew the outcome in
/// time.
async fn found_again<T: CallResult>(
    client: &Client,
    id: CallId,
    clock: &Env,
    deadline: Nanos,
) -> Option<Option<Value>> {
    let found = look_up::<T>(client, id, clock, deadline).await?;
    Some(found.map(|told| serde_json::to_value(told).expect("numbers and text")))
}
