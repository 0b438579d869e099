//! The load of `lotus chaos`: applications whose calls have ids, so that what became of each is
//! known in the end.
//!
//! A call that has no answer is repeated by the client library, at other nodes too: with an id it
//! takes effect once (I80). Where that does not help either, its outcome is asked for until
//! somebody knows it. So the balances are known exactly, whoever was killed.
//!
//! What is remembered of ids has room for a quarter of a million calls in ten minutes, and for
//! fewer where a history is wanted, since a call's operations are part of its result; the callers
//! pause between calls so that it suffices.

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

use crate::applications::{LOOKING_UP, Procedures, a_fault_explains, failed, forgive, look_up};
use crate::cluster::drive::connect;
use crate::cluster::file::ClusterFile;
use crate::traced::{Nonsense, Traced};

/// Applications, each with one call at a time.
const CALLERS: usize = 16;
/// How much of the room for what is remembered of calls is used in ten minutes, at most: some rows
/// get more calls than others.
const USED_ROOM: f64 = 0.3;
/// What is remembered of a call beside its operations, in bytes, about.
const CALL_BYTES: usize = 40;
/// What is remembered of an operation.
const OPERATION_BYTES: usize = 18;
/// How long what is remembered of a call is kept.
const RETENTION: Duration = Duration::from_secs(600);
/// The most calls in a second: what is looked for is not throughput.
const MOST_TPS: f64 = 5_000.0;
/// What the calls ask for.
const ISOLATION: Isolation = Isolation::Serializable;
/// How long a call may take: somebody has to notice first that a node is gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Of how many calls of a caller it is remembered what became of them, at least.
const REMEMBERED: usize = 32;

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
    /// What the calls read and wrote, by caller, if that was wanted.
    pub logs: Vec<Log>,
    /// What is known of the last calls with ids.
    pub known: Vec<Known>,
}

/// What became of a call, for good.
pub struct Known {
    id: CallId,
    /// Its result, if it has committed.
    told: Option<Value>,
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
    /// Whether to find out what they read and write.
    pub traced: bool,
    /// The room for what is remembered of calls, in bytes.
    pub room: f64,
    /// How often the cluster was restored before: ids of calls are not used again.
    pub life: u32,
}

/// What a call returns.
trait Told: DeserializeOwned + Serialize + Send + 'static {
    /// The stored transactions that return it.
    fn procedures<W: Workload>() -> Procedures;

    /// By how much the balance has moved.
    fn effect(&self) -> i64;

    /// The attempt and what it read and wrote, if it says so.
    fn operations(&self) -> Option<Result<(TxnId, Vec<Operation>), Nonsense>>;
}

impl Told for i64 {
    fn procedures<W: Workload>() -> Procedures {
        Procedures::of::<W>(ISOLATION)
    }

    fn effect(&self) -> i64 {
        *self
    }

    fn operations(&self) -> Option<Result<(TxnId, Vec<Operation>), Nonsense>> {
        None
    }
}

impl Told for Traced {
    fn procedures<W: Workload>() -> Procedures {
        Procedures::traced::<W>(ISOLATION)
    }

    fn effect(&self) -> i64 {
        self.effect
    }

    fn operations(&self) -> Option<Result<(TxnId, Vec<Operation>), Nonsense>> {
        Some(Self::operations(self))
    }
}

/// A call that was made.
#[derive(Clone, Copy)]
struct Made {
    caller: usize,
    id: CallId,
    kind: usize,
    issued: Nanos,
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
            logs: Vec::new(),
            known: Vec::new(),
        }
    }

    /// Adds what others have seen.
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

    /// What became of a call is known now. Of all that are known, the last ones are remembered.
    fn remember<T: Told>(&mut self, id: CallId, told: Option<&T>) {
        if self.known.len() >= 2 * REMEMBERED {
            self.known.drain(..REMEMBERED);
        }
        let told = told.map(|told| serde_json::to_value(told).expect("numbers and text"));
        self.known.push(Known { id, told });
    }

    /// Writes down that a call has committed, and when that was known; how many operations it had.
    fn note<T: Told>(
        &mut self,
        made: Made,
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
            // Of one that had no answer nobody knows when it took effect.
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
            tasks.spawn(async move {
                match callers.traced {
                    true => callers.keep_calling::<Traced>(&client, caller, &silence).await,
                    false => callers.keep_calling::<i64>(&client, caller, &silence).await,
                }
            });
        }
        let mut seen = Seen::new::<W>();
        while let Some(ended) = tasks.join_next().await {
            seen.merge(ended.map_err(|error| failed(&error))??);
        }
        silence.ends(callers.until);
        seen.silence = Duration::from_nanos(silence.longest.load(Ordering::Relaxed));
        Ok(seen)
    }

    /// How long a caller waits after a call with so many operations.
    fn pause(&self, operations: usize) -> Duration {
        let bytes = (CALL_BYTES + OPERATION_BYTES * operations) as f64;
        let tps =
            (self.room * USED_ROOM / bytes / self.span.min(RETENTION).as_secs_f64()).min(MOST_TPS);
        Duration::from_secs_f64(CALLERS as f64 / tps)
    }

    async fn keep_calling<T: Told>(
        &self,
        client: &Client,
        caller: usize,
        silence: &Silence,
    ) -> Result<Seen, BenchError> {
        let procedures = T::procedures::<W>();
        let mut rng = self.clock.rng(u64::from(self.life) << 32 | caller as u64);
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
            let call = client.call::<_, T>(procedures.serving(access), &request);
            let (table, key) = self.workload.first_record(&request);
            let mut call = call.at(table, key).timeout(PATIENCE);
            number += 1;
            let whose = u128::from(self.life) << 96 | (caller as u128) << 64;
            let id = CallId::from(whose | u128::from(number));
            let made = Made { caller, id, kind: W::kind(&request), issued };
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
            match look_up::<T>(client, made.id, &self.clock, deadline).await {
                Some(Some(told)) => {
                    seen.found += 1;
                    seen.note(made, &told, None)?;
                    seen.remember(made.id, Some(&told));
                }
                Some(None) => seen.remember::<T>(made.id, None),
                None => seen.open += 1,
            }
        }
        Ok(seen)
    }
}

/// Asks again what became of these calls: how many there were, and what differs now.
///
/// # Errors
/// The operating system's; no compute node lets an application in.
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

/// What became of a call: its result, if it has committed. `None` if nobody says.
async fn found_again<T: Told>(
    client: &Client,
    id: CallId,
    clock: &Env,
    deadline: Nanos,
) -> Option<Option<Value>> {
    let found = look_up::<T>(client, id, clock, deadline).await?;
    Some(found.map(|told| serde_json::to_value(told).expect("numbers and text")))
}
