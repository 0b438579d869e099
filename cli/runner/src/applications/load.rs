//! Load from applications: requests that reach the compute nodes from outside, through the client
//! library, as calls of stored transactions. The compute nodes are threads of this process
//! ([`run`]), or the nodes of a running cluster (`lotus bench --cluster`).
//!
//! The workload is the same as for load generated inside the compute nodes: a server at each
//! compute node registers its code, and the clients here only draw requests, call, and count. The
//! server retries aborted attempts, and the workload's code there counts them.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lotus::Transaction;
use lotus_benchmarks::AbortReason;
use lotus_benchmarks::config::LoadConfig;
use lotus_benchmarks::deployment::DeployError;
use lotus_benchmarks::engine::Isolation;
use lotus_benchmarks::harness::{BenchError, Driven, Options, Outcome, Unanswered};
use lotus_benchmarks::lotus::{Embedded, NoCommit, abort_reason};
use lotus_benchmarks::on_lotus::OnLotus;
use lotus_benchmarks::progress::{Phase, Progress};
use lotus_benchmarks::stats::Tally;
use lotus_benchmarks::workload::Access;
use lotus_client::{CallError, CallId, Client, Effect, Failure, Kind};
use lotus_fabric::env::{Env, Nanos, SmallRng};
use lotus_server::{Abort, Config, Key, Registry, Security, Server};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::requests::{Caller, DrawnCall, Procedures, Requests};
use super::traced::Traced;
use crate::host::sockets::Sockets;
use lotus_node::host::sockets::{local_address, local_door};

/// Time-out of a call: a longer transaction means a defect.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for looking up the outcomes of calls once the load has ended.
pub const LOOKING_UP: Duration = Duration::from_secs(60);
/// Interval at which outcomes are looked up while the load runs: servers forget calls after the
/// retention, ten minutes, and a load may run for longer.
pub const IN_DOUBT: Duration = Duration::from_secs(60);

/// Runs a workload with `in_flight` requests in flight, on a cluster that has
/// [`SPARE_COROUTINES`](crate::args::SPARE_COROUTINES) more per coordinator than the options say.
///
/// # Errors
/// The errors of [`OnLotus::bench_by`].
pub fn run<W: OnLotus>(
    cluster: &mut Embedded,
    workload: W,
    options: &Options,
    in_flight: usize,
    progress: &Arc<Progress>,
) -> Result<Outcome, BenchError> {
    workload.bench_by(cluster, options, progress, &mut |cluster, workload| {
        let aborts = Arc::new(Aborts::new(W::TRANSACTIONS.len()));
        let sockets = Sockets::new().map_err(|error| failed(&error))?;
        let (servers, address, key) = serve(cluster, workload, options, sockets.path(), &aborts)?;
        let clock = cluster.cluster().machines().outside();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let mut config = lotus_client::Config::new(address);
        (config.security, config.seed) = (Security::SharedKey(key), options.load.seed);
        let load = Load {
            requests: Arc::clone(workload) as Arc<dyn Requests>,
            options: options.clone(),
            clock,
            progress: Arc::clone(progress),
            ids: None,
        };
        let mut driven = runtime.block_on(async {
            let client = Client::connect(config).await.map_err(|error| failed(&error))?;
            load.generate(&client, in_flight).await.outcome()
        })?;
        for server in servers {
            server.stop().map_err(|error| failed(&error))?;
        }
        cluster.cluster().settle().map_err(|error| failed(&error))?;
        aborts.counts().add_to(&mut driven.tally);
        Ok(driven)
    })
}

/// The workload's own refusals, as sent to clients.
#[derive(Serialize, Deserialize)]
enum LoadRefusal {
    Logic,
    Fatal(String),
}

/// Running counts of aborted attempts, by type of transaction and reason.
pub struct Aborts(Vec<[AtomicU64; AbortReason::ALL.len()]>);

impl Aborts {
    /// Counts of zero, for `types` types of transactions.
    pub fn new(types: usize) -> Self {
        Self((0..types).map(|_| Default::default()).collect())
    }

    fn count(&self, kind: usize, reason: AbortReason) {
        self.0[kind][reason.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the reason why an attempt did not commit, and converts the reason for the server.
    fn explain(&self, kind: usize, lapse: NoCommit) -> Abort<LoadRefusal> {
        match lapse {
            NoCommit::Engine(error) => {
                if let Some(reason) = abort_reason(&error) {
                    self.count(kind, reason);
                }
                Abort::Engine(error)
            }
            NoCommit::Logic => {
                self.count(kind, AbortReason::Logic);
                Abort::Application(LoadRefusal::Logic)
            }
            NoCommit::Fatal(why) => Abort::Application(LoadRefusal::Fatal(why)),
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> AbortCounts {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AbortCounts(self.0.iter().map(|counts| counts.iter().map(now).collect()).collect())
    }
}

/// Counts of aborted attempts, by type of transaction and reason.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AbortCounts(Vec<Vec<u64>>);

impl AbortCounts {
    /// The aborts since `earlier`.
    pub fn since(mut self, earlier: &Self) -> Self {
        let pairs = self.0.iter_mut().zip(&earlier.0);
        let counts = pairs.flat_map(|(now, then)| now.iter_mut().zip(then));
        counts.for_each(|(now, then)| *now = now.saturating_sub(*then));
        self
    }

    /// Adds the counts to the clients' tally. Aborts of the warm-up are included: the servers do
    /// not know when the warm-up ended.
    pub fn add_to(&self, tally: &mut Tally) {
        for (counts, aborts) in tally.by_transaction.iter_mut().zip(&self.0) {
            counts.aborted.iter_mut().zip(aborts).for_each(|(sum, more)| *sum += more);
        }
    }
}

/// Starts a server for each compute node. Returns the servers, the address of the first server's
/// socket in `directory`, and the servers' key. A key is needed because other users of the machine
/// can reach the ports.
fn serve<W: OnLotus>(
    cluster: &Embedded,
    workload: &Arc<W>,
    options: &Options,
    directory: &Path,
    aborts: &Arc<Aborts>,
) -> Result<(Vec<Server>, String, Key), BenchError> {
    let key = Key::random().map_err(|error| failed(&error))?;
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let listeners: Result<Vec<_>, _> = (0..options.cluster.cns).map(bind).collect();
    let listeners = listeners.map_err(|error| failed(&error))?;
    let address = |listener: &TcpListener| listener.local_addr().map(|at| at.to_string());
    let addresses: Result<Vec<_>, _> = listeners.iter().map(address).collect();
    let addresses = addresses.map_err(|error| failed(&error))?;
    let mut servers = Vec::new();
    for (node, listener) in listeners.into_iter().enumerate() {
        let mut config = Config::new(listener, addresses.clone());
        let door = local_door(directory, node, options.cluster.cns);
        config.local = Some(door.map_err(|error| failed(&error))?);
        config.security = Security::SharedKey(key.clone());
        config.workers = Some(options.cluster.coroutines);
        let registry = registry(workload, aborts);
        let server = Server::start(cluster.shared(), node, registry, config);
        servers.push(server.map_err(|error| failed(&error))?);
    }
    Ok((servers, local_address(directory, 0), key))
}

/// Registry of the workload's transactions as stored transactions.
pub fn registry<W: OnLotus>(workload: &Arc<W>, aborts: &Arc<Aborts>) -> Registry {
    let levels = [Isolation::Serializable, Isolation::Snapshot];
    let [sr, si] = levels.map(Procedures::of::<W>);
    let mut registry = Registry::new();
    for (name, kind) in kinds(sr, si) {
        let (workload, aborts) = (Arc::clone(workload), Arc::clone(aborts));
        let run = async move |txn: &mut Transaction, request: W::Request| {
            let outcome = workload.attempt_in(txn, &request).await;
            outcome.map_err(|lapse| aborts.explain(W::kind(&request), lapse))
        };
        registry.register_as(kind, &name, run);
    }
    let [sr, si] = levels.map(Procedures::traced::<W>);
    for (name, kind) in kinds(sr, si) {
        let (workload, aborts) = (Arc::clone(workload), Arc::clone(aborts));
        let run = async move |txn: &mut Transaction, request: W::Request| {
            let outcome = workload.traced_in(txn, &request).await;
            let (effect, operations) =
                outcome.map_err(|lapse| aborts.explain(W::kind(&request), lapse))?;
            Ok(Traced::new(effect, txn.id(), &operations))
        };
        registry.register_as(kind, &name, run);
    }
    registry
}

/// Names of the stored transactions, with the kind of each.
fn kinds(sr: Procedures, si: Procedures) -> [(String, Kind); 3] {
    [(sr.read, Kind::ReadOnly), (sr.write, Kind::Serializable), (si.write, Kind::Snapshot)]
}

/// The load that applications generate.
pub struct Load {
    /// Source of the requests.
    pub requests: Arc<dyn Requests>,
    /// Options of the run.
    pub options: Options,
    /// Clock of the applications.
    pub clock: Env,
    /// Progress to report to.
    pub progress: Arc<Progress>,
    /// Ids for calls that write. With ids the load outlasts the loss of nodes, and the outcomes of
    /// unanswered calls are looked up afterwards; without ids, the first failed call ends the load.
    pub ids: Option<Ids>,
}

/// Ids for calls, as many as the servers have room to remember.
pub struct Ids {
    /// Number that distinguishes this load from previous loads.
    run: u64,
    room: u64,
    given: AtomicU64,
}

impl Ids {
    /// Ids for the load `run`, a number unique to this load.
    pub fn new(run: u64, room: u64) -> Self {
        Self { run, room, given: AtomicU64::new(0) }
    }

    fn next(&self) -> Option<CallId> {
        let number = self.given.fetch_add(1, Ordering::Relaxed);
        let id = u128::from(self.run) << 64 | u128::from(number);
        (number < self.room).then(|| CallId::from(id))
    }

    fn used(&self) -> u64 {
        self.given.load(Ordering::Relaxed).min(self.room)
    }
}

/// Result of a load.
pub struct Generated {
    /// Counts of the load.
    pub driven: Driven,
    /// Calls that ended without a result.
    pub unanswered: Unanswered,
    /// Number of ids given to calls.
    pub ids: u64,
    /// Error that ended the load early.
    pub stopped: Option<BenchError>,
}

impl Generated {
    /// The counts, if the load was complete.
    ///
    /// # Errors
    /// The error that ended the load early.
    pub fn outcome(self) -> Result<Driven, BenchError> {
        self.stopped.map_or(Ok(self.driven), Err)
    }
}

/// Times of a load: start, start of counting, and end.
#[derive(Clone, Copy)]
struct Window {
    started: Nanos,
    counts_from: Nanos,
    until: Nanos,
}

/// A call that has been sent.
#[derive(Clone, Copy)]
struct Made {
    id: Option<CallId>,
    kind: usize,
}

/// Totals over all applications.
struct LoadResults {
    tally: Tally,
    unanswered: Unanswered,
    /// Calls with an outcome still to be looked up.
    doubtful: Vec<Made>,
    stopped: Option<BenchError>,
}

impl Load {
    /// Keeps `in_flight` requests in flight until the time is up, or a call fails for good. From
    /// time to time, and at the end, looks up the outcome of every call with an id and no answer.
    pub async fn generate(self, client: &Client, in_flight: usize) -> Generated {
        let now = self.clock.now();
        let counts_from = now.after(Duration::from_secs_f64(self.options.load.warmup_secs));
        let until = counts_from.after(Duration::from_secs_f64(self.options.load.secs));
        self.progress.set_span(now.0, until.0);
        let window = Window { started: now, counts_from, until };
        // One `LoadResults` for all applications, which share this thread and its cache.
        let load = Arc::new(self);
        let seen = Arc::new(Mutex::new(LoadResults::new(load.requests.types())));
        let mut applications = JoinSet::new();
        for application in 0..in_flight {
            let (load, seen, client) = (Arc::clone(&load), Arc::clone(&seen), client.clone());
            let rng = load.clock.rng(application as u64);
            applications.spawn(async move {
                load.keep_asking(&client, rng, window, &seen).await;
            });
        }
        let (asker, asked, through) = (Arc::clone(&load), Arc::clone(&seen), client.clone());
        let mut asking = JoinSet::new();
        asking.spawn(async move {
            loop {
                tokio::time::sleep(IN_DOUBT).await;
                let deadline = asker.clock.now().after(IN_DOUBT);
                asker.ask_for_outcomes(&through, &asked, deadline).await;
            }
        });
        while let Some(ended) = applications.join_next().await {
            let mut seen = lock(&seen);
            if let Err(panicked) = ended {
                seen.stopped.get_or_insert_with(|| failed(&panicked));
            }
            if load.ids.is_none() && seen.stopped.is_some() {
                // The run has failed, so the remaining applications need not finish.
                break;
            }
        }
        applications.shutdown().await;
        // Calls with an outcome not found by now stay in doubt.
        asking.shutdown().await;
        load.settle(client, &seen).await;
        let seen = std::mem::replace(&mut *lock(&seen), LoadResults::new(load.requests.types()));
        let LoadResults { tally, unanswered, stopped, .. } = seen;
        let elapsed_s = Nanos(tally.last_end_ns).since(counts_from).as_secs_f64();
        let driven = Driven { tally, elapsed_s, logs: Vec::new() };
        let ids = load.ids.as_ref().map_or(0, Ids::used);
        Generated { driven, unanswered, ids, stopped }
    }

    /// Looks up the outcomes of the calls in doubt; calls without a known outcome count as unknown.
    async fn settle(&self, client: &Client, seen: &Mutex<LoadResults>) {
        let patience = {
            let seen = lock(seen);
            if seen.doubtful.is_empty() {
                return;
            }
            if seen.stopped.is_some() { Duration::ZERO } else { LOOKING_UP }
        };
        self.progress.enter(Phase::LookingUp);
        self.ask_for_outcomes(client, seen, self.clock.now().after(patience)).await;
        let mut seen = lock(seen);
        for _ in 0..std::mem::take(&mut seen.doubtful).len() {
            seen.is_unknown();
        }
    }

    /// Looks up the outcomes of the calls in doubt until `deadline`, all concurrently: a cluster
    /// that has lost rows answers no lookup.
    async fn ask_for_outcomes(&self, client: &Client, seen: &Mutex<LoadResults>, deadline: Nanos) {
        let mut asked = JoinSet::new();
        for made in lock(seen).doubtful.clone() {
            let (Some(id), client, clock) = (made.id, client.clone(), self.clock.clone()) else {
                continue;
            };
            asked.spawn(async move { (made, look_up::<i64>(&client, id, &clock, deadline).await) });
        }
        while let Some(told) = asked.join_next().await {
            let Ok((made, Some(outcome))) = told else { continue };
            let mut seen = lock(seen);
            seen.doubtful.retain(|other| other.id != made.id);
            if let Some(effect) = outcome {
                seen.unanswered.committed += 1;
                seen.tally.commit(made.kind, None, effect);
            }
        }
    }

    /// One application: runs requests one at a time.
    async fn keep_asking(
        &self,
        client: &Client,
        mut rng: SmallRng,
        window: Window,
        seen: &Mutex<LoadResults>,
    ) {
        let LoadConfig { isolation, routing, .. } = self.options.load;
        let caller = Caller { client, procedures: self.requests.procedures(isolation), routing };
        let mut now = self.clock.now();
        let is_over = || self.progress.is_over() || self.progress.failure().is_some();
        while now < window.until && !is_over() {
            let elapsed = now.since(window.started);
            let DrawnCall { call, access, kind } = self.requests.draw(&mut rng, elapsed, &caller);
            let mut call = call.timeout(PATIENCE);
            let ids = self.ids.as_ref().filter(|_| access == Access::ReadWrite);
            let id = ids.and_then(Ids::next);
            if let Some(id) = id {
                call = call.idempotent(id);
            }
            let called = call.send().await;
            let issued = std::mem::replace(&mut now, self.clock.now());
            let made = Made { id, kind };
            let mut seen = lock(seen);
            seen.tally.last_end_ns = now.0;
            seen.unanswered.without_id += u64::from(ids.is_some() && id.is_none());
            match called {
                Ok(effect) => {
                    let latency_ns = now.0.saturating_sub(issued.0);
                    let counts = issued >= window.counts_from;
                    seen.tally.commit(made.kind, counts.then_some(latency_ns), effect);
                    // One progress counter is enough, since the applications share this thread.
                    self.progress.tick(0, now.0, true);
                    self.progress.note_latency(0, latency_ns);
                }
                Err(error) => {
                    let goes_on = self.ids.is_some() && a_fault_explains(&error);
                    seen.fails(&error, made, access);
                    if !goes_on && let Err(fatal) = forgive(error) {
                        seen.stopped.get_or_insert(fatal);
                    }
                }
            }
            if seen.stopped.is_some() {
                return;
            }
        }
    }
}

impl LoadResults {
    /// Totals of zero, for `types` types of transactions.
    fn new(types: usize) -> Self {
        Self {
            tally: Tally::new(types),
            unanswered: Unanswered::default(),
            doubtful: Vec::new(),
            stopped: None,
        }
    }

    /// Counts a call without a result. The error may come from a repetition of the call, so a call
    /// with an id stays in doubt whatever the error.
    fn fails(&mut self, error: &CallError, made: Made, access: Access) {
        if matches!(error, CallError::Rejected(_)) {
            return;
        }
        self.unanswered.calls += 1;
        match (access, made.id, error.effect()) {
            (Access::ReadOnly, ..) | (_, None, Effect::Nothing) => {}
            (_, Some(_), _) => self.doubtful.push(made),
            (_, None, _) => self.is_unknown(),
        }
    }

    /// Counts a writing call with an unknown outcome.
    fn is_unknown(&mut self) {
        self.unanswered.unknown += 1;
        self.tally.effects.unjudged += 1;
    }
}

/// Outcome of a call: its result, or an inner `None` if the call never commits. The outer `None`
/// means that no server knew the outcome by `deadline`.
pub async fn look_up<R: DeserializeOwned>(
    client: &Client,
    id: CallId,
    clock: &Env,
    deadline: Nanos,
) -> Option<Option<R>> {
    loop {
        match client.outcome(id).await {
            Ok(outcome) => return Some(outcome),
            Err(_) if clock.now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(_) => return None,
        }
    }
}

/// Whether the loss of nodes explains a call's error. An unexplained error is a defect.
pub fn a_fault_explains(error: &CallError) -> bool {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts the workload's own refusals; any other error ends the run.
///
/// # Errors
/// Every error but these refusals.
pub fn forgive(error: CallError) -> Result<(), BenchError> {
    let fatal = match &error {
        CallError::Rejected(rejection) => match rejection.decode() {
            Some(LoadRefusal::Logic) => return Ok(()),
            Some(LoadRefusal::Fatal(why)) => why,
            None => error.to_string(),
        },
        _ => error.to_string(),
    };
    Err(BenchError::Fatal(fatal))
}

/// Wraps an error that leaves no result to report.
pub fn failed(error: &dyn std::fmt::Display) -> BenchError {
    DeployError::Failed(error.to_string()).into()
}
