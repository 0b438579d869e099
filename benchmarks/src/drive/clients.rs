//! Load generation: clients, and the routing of their requests to coordinators.
//!
//! # Closed loop
//! There are as many clients as coroutines in the whole cluster, and each has one transaction in
//! flight. A client is not bound to a compute node: a client is a token of randomness that draws a
//! request and goes to the node that the request belongs to (LOTUS §4.3). If the client already is
//! at that node, its worker serves the request; otherwise the client queues at the coordinator with
//! the same number on the other node.
//!
//! # Open loop
//! One pacer per coordinator draws requests at random intervals that keep to a rate and queues the
//! requests, whether or not earlier requests have ended. Latency counts from the intended start of
//! a request, so a stall is not hidden by the requests that it delays.
//!
//! # Moving shards
//! If configured, one task periodically draws a request and gives its shard to the next compute
//! node. Hot shards thus move most, as they would for load balancing.
//!
//! # Lost compute nodes
//! When a compute node is lost, the clients whose requests run on the node end with the node. The
//! remaining clients go on: calls queued at the node move to the next node, and no new calls go
//! there. The run ends when the last client is gone.
//!
//! # The end
//! Clients and pacers stop at the deadline; calls that pacers have queued by then are still served.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_channel::{Receiver, Sender};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};

use crate::contract::config::{ClusterConfig, LoadConfig, Routing};
use crate::contract::deployment::{Host, TaskPlace};
use crate::contract::workload::{Access, Workload, mix};
use crate::drive::progress::Progress;
use crate::drive::worker::Ended;

/// Capacity of a coordinator's queue in an open loop. A pacer that finds the queue full waits, and
/// its requests keep their intended start.
const OPEN_LOOP_BACKLOG: usize = 1 << 14;
/// Random streams of pacers, workers and the mover, apart from those of the clients.
const PACER_STREAM: u64 = 1 << 32;
const WORKER_STREAM: u64 = 2 << 32;
const MOVER_STREAM: u64 = 3 << 32;

/// A closed-loop client.
pub(crate) struct Client {
    rng: SmallRng,
    /// Session of the client in histories: the client's transactions never overlap.
    session: u32,
    /// Reference to [`Run::present`]; the reference count shows how many clients are left.
    _present: Arc<()>,
}

/// A request on its way to a worker.
pub(crate) struct Call<R> {
    pub(crate) request: R,
    /// Intended start.
    pub(crate) issued_ns: u64,
    /// The client that waits for the result; `None` in an open loop.
    pub(crate) client: Option<Client>,
}

impl<R> Call<R> {
    /// Session of this call in the history, given the worker that serves the call: the client's
    /// session, or else the worker's own.
    pub(crate) fn session(&self, worker: u32) -> u32 {
        self.client.as_ref().map_or(worker, |client| client.session)
    }
}

/// Interval in which clients issue transactions, and the end of its warm-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) starts_ns: u64,
    pub(crate) counts_from_ns: u64,
    pub(crate) until_ns: u64,
}

impl Window {
    /// Time from the first request to `now_ns`.
    #[inline]
    fn elapsed(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.starts_ns))
    }
}

/// State shared by the workers and pacers of a run.
pub(crate) struct Run<W: Workload> {
    pub(crate) workload: Arc<W>,
    pub(crate) load: LoadConfig,
    pub(crate) progress: Arc<Progress>,
    cns: usize,
    threads: usize,
    coroutines: usize,
    /// Whether the system under test may break its data, so that attempts may find rows that no
    /// serial execution leaves: such attempts count as aborted.
    pub(crate) breaks_data: bool,
    /// Queues of calls, by coordinator.
    queues: Vec<Queue<W::Request>>,
    window: OnceLock<Window>,
    /// Each client holds a reference; the count shows when no client is left.
    present: Arc<()>,
    stopped: AtomicBool,
    fatal: OnceLock<String>,
    pacing: AtomicUsize,
    /// Compute nodes known to be expelled.
    lost: Vec<AtomicBool>,
    /// Tasks that have begun, coordinator by coordinator.
    begun: Vec<AtomicBool>,
    /// Results of the workers that have ended, with their numbers.
    ended: Mutex<Vec<(usize, Ended)>>,
}

type Queue<R> = (Sender<Call<R>>, Receiver<Call<R>>);

impl<W: Workload> Run<W> {
    pub(crate) fn new(
        workload: Arc<W>,
        cluster: &ClusterConfig,
        load: LoadConfig,
        progress: Arc<Progress>,
    ) -> Self {
        let coordinators = cluster.cns * cluster.threads;
        let tasks = coordinators * (cluster.coroutines + load.helpers());
        let capacity = match load.rate_tps {
            Some(_) => OPEN_LOOP_BACKLOG,
            None => coordinators * cluster.coroutines,
        };
        Self {
            workload,
            load,
            progress,
            cns: cluster.cns,
            threads: cluster.threads,
            coroutines: cluster.coroutines,
            breaks_data: cluster.may_break_data(),
            queues: (0..coordinators).map(|_| async_channel::bounded(capacity)).collect(),
            window: OnceLock::new(),
            present: Arc::default(),
            stopped: AtomicBool::new(false),
            fatal: OnceLock::new(),
            pacing: AtomicUsize::new(coordinators),
            lost: (0..cluster.cns).map(|_| AtomicBool::new(false)).collect(),
            begun: (0..tasks).map(|_| AtomicBool::new(false)).collect(),
            ended: Mutex::default(),
        }
    }

    /// Registers the task that begins at this place. Returns true if another task had begun at the
    /// place before, which means that the compute node has returned; requests are then routed to
    /// the node again.
    pub(crate) fn begin(&self, task_place: TaskPlace) -> bool {
        let place = self.coordinator(task_place) * self.tasks() + task_place.task;
        let returns = self.begun[place].swap(true, Ordering::AcqRel);
        if returns {
            self.lost[task_place.cn].store(false, Ordering::Release);
        }
        returns
    }

    /// Tasks per coordinator: its workers, then a pacer in an open loop, then a mover if shards are
    /// to be moved.
    pub(crate) fn tasks(&self) -> usize {
        self.coroutines + self.load.helpers()
    }

    pub(crate) fn is_pacer(&self, task_place: TaskPlace) -> bool {
        self.load.rate_tps.is_some() && task_place.task == self.coroutines
    }

    pub(crate) fn is_mover(&self, task_place: TaskPlace) -> bool {
        self.load.move_us.is_some() && task_place.task + 1 == self.tasks()
    }

    pub(crate) fn coordinator(&self, task_place: TaskPlace) -> usize {
        task_place.cn * self.threads + task_place.thread
    }

    /// Number of a worker, unique in the cluster.
    pub(crate) fn worker(&self, task_place: TaskPlace) -> usize {
        self.coordinator(task_place) * self.coroutines + task_place.task
    }

    pub(crate) fn worker_rng(&self, task_place: TaskPlace) -> SmallRng {
        self.rng(WORKER_STREAM | self.worker(task_place) as u64)
    }

    /// The run's times, counted from the first call of this method.
    pub(crate) fn window(&self, now_ns: u64) -> Window {
        *self.window.get_or_init(|| {
            let after = |secs: f64, from_ns: u64| from_ns.saturating_add((secs * 1e9) as u64);
            let counts_from_ns = after(self.load.warmup_secs, now_ns);
            let until_ns = after(self.load.secs, counts_from_ns);
            self.progress.set_span(now_ns, until_ns);
            Window { starts_ns: now_ns, counts_from_ns, until_ns }
        })
    }

    /// End of the warm-up; `None` if no task has begun.
    pub(crate) fn counts_from_ns(&self) -> Option<u64> {
        self.window.get().map(|window| window.counts_from_ns)
    }

    /// Whether workers must start nothing more.
    #[inline]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.progress.failure().is_some()
    }

    /// Stops the run: starts no more calls, not even queued ones.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Stops the run as worthless, because of `why`.
    pub(crate) fn fail(&self, why: String) {
        // Only the first reason is kept; later reasons may follow from it.
        let _ = self.fatal.set(why);
        self.stop();
    }

    /// Reason why the run is worthless, if it is worthless.
    pub(crate) fn failure(&self) -> Option<&String> {
        self.fatal.get().or_else(|| self.progress.failure())
    }

    /// The next call queued for a worker; `None` when the queue is closed and empty.
    pub(crate) async fn receive(&self, task_place: TaskPlace) -> Option<Call<W::Request>> {
        self.queues[self.coordinator(task_place)].1.recv().await.ok()
    }

    /// Makes the client that starts at a worker's place, and returns the client's first call if the
    /// call stays at this compute node.
    pub(crate) fn first_call<H: Host>(
        &self,
        task_place: TaskPlace,
        host: &H,
        now_ns: u64,
    ) -> Option<Call<W::Request>> {
        if self.load.rate_tps.is_some() {
            return None;
        }
        let worker = self.worker(task_place);
        let (rng, _present) = (self.rng(worker as u64), Arc::clone(&self.present));
        let client = Client { rng, session: worker as u32, _present };
        self.next_call(client, task_place, host, now_ns)
    }

    /// The next call of a client at `task_place`; `None` if the call was queued at another compute
    /// node instead.
    #[inline]
    pub(crate) fn next_call<H: Host>(
        &self,
        mut client: Client,
        task_place: TaskPlace,
        host: &H,
        now_ns: u64,
    ) -> Option<Call<W::Request>> {
        let elapsed = self.window(now_ns).elapsed(now_ns);
        let request = self.workload.draw_at(&mut client.rng, elapsed);
        let cn = self.route(&request, &mut client.rng, host);
        let call = Call { request, issued_ns: now_ns, client: Some(client) };
        if cn == task_place.cn {
            return Some(call);
        }
        // The queue has room for all clients; if the queue is closed, the run is over.
        let _ = self.queues[self.coordinator(TaskPlace { cn, ..task_place })].0.try_send(call);
        None
    }

    /// Compute node that a request goes to (LOTUS §4.3).
    #[inline]
    fn route<H: Host>(&self, request: &W::Request, rng: &mut SmallRng, host: &H) -> usize {
        let cn = match (self.load.routing, W::access(request)) {
            (Routing::Hybrid, Access::ReadWrite) => {
                let (table, key) = self.workload.first_record(request);
                host.owner(table, &key)
            }
            _ => rng.random_range(0..self.cns),
        };
        self.serving(cn)
    }

    /// Queues one coordinator's share of an open loop's requests until the run ends.
    pub(crate) async fn pace<H: Host>(&self, task_place: TaskPlace, host: &H, rate_tps: f64) {
        let window = self.window(host.now_ns());
        let _paces = Paces(self);
        let mut rng = self.rng(PACER_STREAM | self.coordinator(task_place) as u64);
        let mean_gap_ns = 1e9 * self.queues.len() as f64 / rate_tps;
        let mut due_ns = window.starts_ns as f64;
        loop {
            let gap: f64 = Exp1.sample(&mut rng);
            due_ns += gap * mean_gap_ns;
            let issued_ns = due_ns as u64;
            if issued_ns >= window.until_ns || self.is_stopped() {
                break;
            }
            if host.now_ns() < issued_ns {
                host.sleep_until(issued_ns).await;
            }
            let request = self.workload.draw_at(&mut rng, window.elapsed(issued_ns));
            let cn = self.route(&request, &mut rng, host);
            let queue = &self.queues[self.coordinator(TaskPlace { cn, ..task_place })].0;
            if queue.send(Call { request, issued_ns, client: None }).await.is_err() {
                break;
            }
        }
    }

    /// Gives the shard of a drawn request to the next compute node every `every_us` microseconds,
    /// from the end of the warm-up until the run ends. Returns at once on all coordinators but the
    /// first.
    pub(crate) async fn keep_moving<H: Host>(
        &self,
        task_place: TaskPlace,
        host: &H,
        every_us: u64,
    ) {
        if self.coordinator(task_place) != 0 {
            return;
        }
        let window = self.window(host.now_ns());
        let mut rng = self.rng(MOVER_STREAM);
        let mut due_ns = window.counts_from_ns + every_us * 1_000;
        while due_ns < window.until_ns && !self.is_stopped() {
            host.sleep_until(due_ns).await;
            let request = self.workload.draw_at(&mut rng, window.elapsed(due_ns));
            let (table, key) = self.workload.first_record(&request);
            host.give(table, &key, (host.owner(table, &key) + 1) % self.cns);
            due_ns += every_us * 1_000;
        }
    }

    /// Marks a compute node as lost, and moves its queued calls to the next node.
    pub(crate) fn lose(&self, cn: usize) {
        self.lost[cn].store(true, Ordering::Release);
        let to = self.serving(cn);
        if to == cn {
            return self.fail("no compute node is left".to_owned());
        }
        if self.load.rate_tps.is_none() && Arc::strong_count(&self.present) == 1 {
            return self.stop();
        }
        for thread in 0..self.threads {
            let (from, to) = (cn * self.threads + thread, to * self.threads + thread);
            while let Ok(call) = self.queues[from].1.try_recv() {
                // The queue has room for all clients; in an open loop some requests may be lost.
                let _ = self.queues[to].0.try_send(call);
            }
        }
    }

    /// Returns compute node `cn`, or the next node that is not lost.
    fn serving(&self, cn: usize) -> usize {
        let mut turn = (0..self.cns).map(|step| (cn + step) % self.cns);
        turn.find(|cn| !self.lost[*cn].load(Ordering::Acquire)).unwrap_or(cn)
    }

    /// Stores the results of a worker that has ended.
    pub(crate) fn hand_in(&self, worker: usize, ended: Ended) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push((worker, ended));
    }

    /// Takes the results of the workers that have ended, in the order of their numbers.
    pub(crate) fn take_ended(&self) -> impl Iterator<Item = Ended> + use<W> {
        let mut all =
            std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        all.sort_by_key(|(worker, _)| *worker);
        all.into_iter().map(|(_, ended)| ended)
    }

    fn close(&self) {
        for (sender, _) in &self.queues {
            sender.close();
        }
    }

    fn rng(&self, stream: u64) -> SmallRng {
        SmallRng::seed_from_u64(self.load.seed ^ mix(stream + 1))
    }
}

/// Counts a pacer as active; the last one to be dropped closes the queues.
struct Paces<'r, W: Workload>(&'r Run<W>);

impl<W: Workload> Drop for Paces<'_, W> {
    fn drop(&mut self) {
        if self.0.pacing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.close();
        }
    }
}
