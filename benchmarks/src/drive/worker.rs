//! A coroutine that serves clients' calls, and its counts.
//!
//! A worker runs one transaction at a time until it commits, rolls itself back, has an unknown
//! outcome, or needs locks whose owner is lost or suspected. After any other abort it waits for a
//! random time and retries as a new attempt, or goes on with the next transaction ([`Aborted`]).
//!
//! A worker reads the clock once per attempt: the end of a transaction on a worker is also the
//! start of the next transaction.

use std::cell::Cell;
use std::sync::Arc;

use lotus_fabric::ids::TxnId;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::contract::config::{Aborted, LoadConfig};
use crate::contract::deployment::{Host, TaskPlace};
use crate::contract::engine::{
    AbortReason, Finish, Isolation, Receipt, Txn, TxnEngine, TxnError, TxnKind,
};
use crate::contract::stats::Tally;
use crate::contract::workload::{Access, Workload};
use crate::drive::clients::{Call, Run, Window};
use crate::judge::history::{Attempt, Log, Recorded, Status};

/// Longest wait after a first abort, in nanoseconds; it doubles with every further abort.
const FIRST_BACK_OFF_NS: u64 = 20_000;
/// Number of doublings: up to about a millisecond.
const MOST_DOUBLINGS: u32 = 6;

/// Results of a worker.
pub(crate) struct Ended {
    pub(crate) tally: Tally,
    pub(crate) log: Option<Log>,
}

/// The body of every task: a worker, the coordinator's pacer, or the mover of shards.
pub(crate) async fn task<W: Workload, H: Host>(
    run: Arc<Run<W>>,
    task_place: TaskPlace,
    host: H,
    log: Option<Log>,
) {
    let returns = run.begin(task_place);
    if returns && (run.is_pacer(task_place) || run.is_mover(task_place)) {
        // The earlier task ended with the node, and so did the requests it was to issue.
        return;
    }
    if let (true, Some(rate_tps)) = (run.is_pacer(task_place), run.load.rate_tps) {
        return run.pace(task_place, &host, rate_tps).await;
    }
    if let (true, Some(every_us)) = (run.is_mover(task_place), run.load.move_us) {
        return run.keep_moving(task_place, &host, every_us).await;
    }
    let engine = match host.engine() {
        Ok(engine) => engine,
        Err(error) => return run.fail(error.to_string()),
    };
    let mut worker = Worker {
        window: run.window(host.now_ns()),
        rng: run.worker_rng(task_place),
        tally: Tally::new(W::TRANSACTIONS.len()).with_timeline(run.load.timeline_us),
        run: &run,
        host: &host,
        engine,
        task_place,
        log,
        flight: None,
        effect: Cell::new(0),
        lost: false,
        finished: false,
    };
    worker.work(returns).await;
    worker.finished = !worker.lost;
}

struct Worker<'r, W: Workload, H: Host> {
    run: &'r Run<W>,
    host: &'r H,
    engine: H::Engine,
    task_place: TaskPlace,
    window: Window,
    rng: SmallRng,
    tally: Tally,
    log: Option<Log>,
    /// The attempt under way, if any.
    flight: Option<Flight>,
    /// Change of the balance by the attempt's commit.
    effect: Cell<i64>,
    /// Set once the compute node is lost.
    lost: bool,
    /// Set once no calls are left.
    finished: bool,
}

/// An attempt whose outcome is not known yet.
#[derive(Clone, Copy)]
struct Flight {
    id: TxnId,
    session: u32,
    kind: usize,
    start_ns: u64,
    isolation: Isolation,
    /// Whether the attempt's call was issued after the warm-up.
    counts: bool,
}

impl<W: Workload, H: Host> Drop for Worker<'_, W, H> {
    /// Hands in the counts however the worker ends, as the node may be lost during the attempt.
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.tally.by_transaction[flight.kind].unknown += u64::from(flight.counts);
            self.tally.effects.add_unknown(self.effect.get());
            self.note(flight, Status::Info, Receipt::default(), self.host.now_ns());
        }
        let tally = std::mem::replace(&mut self.tally, Tally::new(0));
        let ended = Ended { tally, log: self.log.take() };
        self.run.hand_in(self.run.worker(self.task_place), ended);
        if !self.finished {
            self.run.lose(self.task_place.cn);
        }
    }
}

/// Outcome of an attempt, with its effect on the balance if the attempt may have had an effect.
enum CallOutcome {
    Committed(i64),
    Aborted(AbortReason),
    Unknown(i64),
    /// The outcome is unknown, and the compute node is lost.
    Lost(i64),
    Fatal(String),
}

impl CallOutcome {
    fn of_error(error: TxnError, effect: i64) -> Self {
        match error {
            TxnError::Aborted(reason) => Self::Aborted(reason),
            TxnError::Unknown => Self::Unknown(effect),
            TxnError::Lost => Self::Lost(effect),
            TxnError::Fatal(why) => Self::Fatal(why),
        }
    }

    fn status(&self) -> Status {
        match self {
            Self::Committed(_) => Status::Ok,
            Self::Aborted(_) => Status::Fail,
            Self::Unknown(_) | Self::Lost(_) | Self::Fatal(_) => Status::Info,
        }
    }
}

impl<W: Workload, H: Host> Worker<'_, W, H> {
    /// Serves calls until none are left. Begins with a new client, unless the worker's compute node
    /// `returns`; the worker then only serves clients from other nodes.
    async fn work(&mut self, returns: bool) {
        let mut held = match returns {
            true => None,
            false => self.run.first_call(self.task_place, self.host, self.window.starts_ns),
        };
        let coordinator = self.run.coordinator(self.task_place);
        loop {
            let call = match held.take() {
                Some(call) => call,
                None => match self.run.receive(self.task_place).await {
                    Some(call) => call,
                    None => return,
                },
            };
            if self.run.is_stopped() {
                // The stop may come from outside, so close the queues for the other workers too.
                return self.run.stop();
            }
            let end_ns = self.serve(&call).await;
            if self.lost {
                // Calls are routed to other nodes from now on, and this call's client goes there.
                self.run.lose(self.task_place.cn);
                if let Some(client) = call.client {
                    let _elsewhere = self.run.next_call(client, self.task_place, self.host, end_ns);
                }
                return;
            }
            let Some(client) = call.client else { continue };
            if end_ns >= self.window.until_ns || self.run.progress.is_complete(coordinator) {
                return self.run.stop();
            }
            held = self.run.next_call(client, self.task_place, self.host, end_ns);
        }
    }

    /// Runs a call to its end; returns the end time.
    async fn serve(&mut self, call: &Call<W::Request>) -> u64 {
        let kind = W::kind(&call.request);
        let counts = self.counts(call);
        let coordinator = self.run.coordinator(self.task_place);
        self.engine.new_transaction();
        let mut aborts = 0;
        loop {
            let (mut outcome, end_ns) = self.attempt(call).await;
            if self.run.breaks_data && matches!(outcome, CallOutcome::Fatal(_)) {
                outcome = CallOutcome::Aborted(AbortReason::InDoubt);
            }
            self.tally.last_end_ns = end_ns;
            let committed = matches!(outcome, CallOutcome::Committed(_));
            self.lost = matches!(outcome, CallOutcome::Lost(_));
            self.run.progress.tick(coordinator, end_ns, committed);
            match outcome {
                CallOutcome::Committed(effect) => {
                    let latency_ns = end_ns.saturating_sub(call.issued_ns);
                    self.tally.commit(kind, counts.then_some(latency_ns), effect);
                    let activity = || self.host.activity();
                    self.run.progress.note_commit(coordinator, latency_ns, activity);
                    self.tally.note_commit(self.window.counts_from_ns, end_ns);
                    return end_ns;
                }
                CallOutcome::Aborted(AbortReason::MemoryFull) if !W::FILLS_MEMORY => {
                    self.run.fail("no memory is left for another row".to_owned());
                    return end_ns;
                }
                CallOutcome::Aborted(reason) => {
                    self.run.progress.note_abort(coordinator, reason);
                    let seen = &mut self.tally.by_transaction[kind].aborted[reason.index()];
                    *seen += u64::from(counts);
                    let drops = reason.drops_request() || self.run.load.aborted == Aborted::Drop;
                    if drops || self.is_over(call, end_ns) {
                        return end_ns;
                    }
                }
                CallOutcome::Unknown(effect) | CallOutcome::Lost(effect) => {
                    self.tally.by_transaction[kind].unknown += u64::from(counts);
                    self.tally.effects.add_unknown(effect);
                    return end_ns;
                }
                CallOutcome::Fatal(why) => {
                    self.run.fail(why);
                    return end_ns;
                }
            }
            if !self.engine.retries_in_order() {
                self.back_off(aborts, end_ns).await;
            }
            aborts += 1;
        }
    }

    /// Whether a call is part of the measurement: issued after the warm-up.
    fn counts(&self, call: &Call<W::Request>) -> bool {
        call.issued_ns >= self.window.counts_from_ns
    }

    /// Whether to give up instead of starting another attempt. Calls queued by an open loop are
    /// served however long they take, unless the run is stopped.
    fn is_over(&self, call: &Call<W::Request>, now_ns: u64) -> bool {
        let late = call.client.is_some() && now_ns >= self.window.until_ns;
        late || self.run.is_stopped()
    }

    /// Runs one attempt; returns its outcome and the time of its end.
    async fn attempt(&mut self, call: &Call<W::Request>) -> (CallOutcome, u64) {
        let isolation = self.isolation();
        let kind = match W::access(&call.request) {
            Access::ReadOnly => TxnKind::ReadOnly,
            Access::ReadWrite => TxnKind::ReadWrite(isolation),
        };
        let start_ns = if self.log.is_some() { self.host.now_ns() } else { 0 };
        let txn = match self.engine.begin(kind).await {
            Ok(txn) => txn,
            Err(error) => return (CallOutcome::of_error(error, 0), self.host.now_ns()),
        };
        let id = txn.id();
        let session = call.session(self.run.worker(self.task_place) as u32);
        let kind = W::kind(&call.request);
        let counts = self.counts(call);
        self.flight = Some(Flight { id, session, kind, start_ns, isolation, counts });
        self.effect.set(0);
        let (workload, effect) = (&*self.run.workload, &self.effect);
        let (outcome, receipt) = match self.log.as_mut() {
            None => carry_out(workload, txn, &call.request, effect).await,
            Some(log) => carry_out(workload, Recorded::new(txn, log), &call.request, effect).await,
        };
        let end_ns = self.host.now_ns();
        if let Some(flight) = self.flight.take() {
            self.note(flight, outcome.status(), receipt, end_ns);
        }
        (outcome, end_ns)
    }

    /// Adds an attempt to the history, if a history is recorded.
    fn note(&mut self, flight: Flight, status: Status, receipt: Receipt, end_ns: u64) {
        let Flight { id, session, start_ns, isolation, .. } = flight;
        if let Some(log) = &mut self.log {
            log.finish(Attempt { id, session, start_ns, end_ns, isolation, status, receipt });
        }
    }

    fn isolation(&mut self) -> Isolation {
        let LoadConfig { isolation, other_isolation, .. } = self.run.load;
        // Draw no random number when all attempts have the same level.
        if other_isolation > 0.0 && self.rng.random::<f64>() < other_isolation {
            isolation.other()
        } else {
            isolation
        }
    }

    /// Waits for a random time that grows with the number of aborts, so that two conflicting
    /// transactions separate.
    async fn back_off(&mut self, aborts: u32, now_ns: u64) {
        let longest_ns = FIRST_BACK_OFF_NS << aborts.min(MOST_DOUBLINGS);
        self.host.sleep_until(now_ns + self.rng.random_range(0..longest_ns)).await;
    }
}

/// Runs the workload's part of one attempt and commits the attempt. The receipt is empty unless the
/// attempt committed.
#[inline]
async fn carry_out<W: Workload, T: Finish>(
    workload: &W,
    mut txn: T,
    request: &W::Request,
    committing: &Cell<i64>,
) -> (CallOutcome, Receipt) {
    let outcome = match workload.attempt(&mut txn, request).await {
        Ok(effect) => {
            committing.set(effect);
            match txn.commit().await {
                Ok(receipt) => return (CallOutcome::Committed(effect), receipt),
                Err(error) => CallOutcome::of_error(error, effect),
            }
        }
        Err(error) => {
            txn.abort();
            CallOutcome::of_error(error, 0)
        }
    };
    (outcome, Receipt::default())
}
