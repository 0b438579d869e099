//! Work of each lane of a run: the clients repeat an operation, and are counted.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::future::Future;
use std::ops::AddAssign;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use lotus_fabric::exec::{Executor, Handle};
use lotus_fabric::lane::Lane;
use lotus_fabric::rpc::{Rpc, Service};
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_locks::{Client, Counts, Identity, Member};
use lotus_locksystems::Locker;
use lotus_locksystems::local::{Access, Transfers};

use super::{Done, Run, RunContext, Times, Used};

/// RPC service for messages about locks between lanes.
const SERVICE: Service = Service(0);
/// Time after which a lane looks again whether the run has failed.
const LOOK: Duration = Duration::from_millis(10);
/// Time without a lock after which clients that still wait after the end of the run are given up,
/// and the run fails.
const STUCK: Duration = Duration::from_secs(30);

/// Time from one moment to a later one, in nanoseconds.
pub(crate) fn nanos(from: Nanos, to: Nanos) -> u64 {
    to.0.saturating_sub(from.0)
}

/// Work of all clients of a run.
pub(crate) trait Load: Clone + Send + 'static {
    /// Counts of a lane, or sums over lanes.
    type Tally: Default + AddAssign + Send + 'static;
    /// A lane's part of the load.
    type Work<A: Access>: Work<Access = A, Tally = Self::Tally>;

    /// Creates the part of a lane.
    fn work<A: Access>(&self, context: LaneClient<A>) -> Self::Work<A>;
}

/// A moment of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    /// Clients begin.
    Begin,
    /// Requests count from now on.
    From,
    /// The last request that counts has begun.
    To,
    /// All clients have ended.
    End,
}

/// Work of the clients of one lane.
pub(crate) trait Work: 'static {
    type Access: LaneLocks;
    type Tally;
    /// Reason why a client ends early.
    type Failed: Display;

    /// The lane.
    fn context(&self) -> &LaneClient<Self::Access>;

    /// Performs one operation, and tallies the operation if it counts.
    fn operate(
        &self,
        rng: &mut SmallRng,
        tally: &RefCell<Self::Tally>,
    ) -> impl Future<Output = Result<(), Self::Failed>>;

    /// Called at each mark, in the order of the marks.
    fn mark(self: &Rc<Self>, mark: Mark, tally: &mut Self::Tally);
}

/// A lane's use of locks, as far as every run inspects it.
pub(crate) trait LaneLocks: Clone + 'static {
    /// Counts of the lane so far.
    fn counts(&self) -> Counts;

    /// Locks that the lane's clients got from their own nodes, and from elsewhere.
    fn transfers(&self) -> Transfers;

    /// Waits until no operation of the lane is under way.
    fn quiet(&self) -> impl Future<Output = ()>;
}

impl<A: Access> LaneLocks for A {
    fn counts(&self) -> Counts {
        self.client().counts()
    }

    fn transfers(&self) -> Transfers {
        Access::transfers(self)
    }

    async fn quiet(&self) {
        self.client().quiet().await;
    }
}

/// A lane's use of locks that a service keeps, and the lane's messages.
#[derive(Clone)]
pub(crate) struct ServerLane<L>(pub(crate) L, pub(crate) Rpc);

impl<L: Locker> LaneLocks for ServerLane<L> {
    fn counts(&self) -> Counts {
        self.0.counts()
    }

    fn transfers(&self) -> Transfers {
        Transfers { local: 0, remote: self.0.counts().acquired }
    }

    async fn quiet(&self) {
        self.0.quiet().await;
    }
}

/// A lane of a run.
pub(crate) struct LaneClient<A> {
    lane: Lane,
    client: A,
    run_context: Arc<RunContext>,
    /// Number of the lane among all lanes with clients.
    index: usize,
}

impl<A: Access> LaneClient<A> {
    /// Opens a lane on its core.
    pub(super) fn open(
        run: &Run<A::System>,
        executor: &mut Executor,
        fabric: &dyn Fabric,
        member: Member,
        lane: u16,
        table: A::Table,
    ) -> Result<Self, FabricError> {
        let peers = Rc::new(run.run_context.roster().clone());
        let identity = Identity { member, peers, service: SERVICE };
        let (client, lane) = Client::open((run.make)(), executor, fabric, lane, identity)?;
        let client = A::of(client, table);
        client.keep_time(run.clocks);
        Ok(Self::new(&run.run_context, lane, client))
    }
}

impl<A> LaneClient<A> {
    /// Returns the client of an open lane.
    pub(crate) fn new(run_context: &Arc<RunContext>, lane: Lane, client: A) -> Self {
        let at = lane.at();
        let index = usize::from(at.node.0 - 1) * usize::from(run_context.clients().threads);
        let index = index + usize::from(at.lane.0);
        Self { lane, client, run_context: Arc::clone(run_context), index }
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(crate) fn client(&self) -> &A {
        &self.client
    }

    pub(crate) fn executor(&self) -> &Handle {
        self.lane.executor()
    }

    pub(crate) fn run_context(&self) -> &RunContext {
        &self.run_context
    }

    pub(crate) fn times(&self) -> &Times {
        &self.run_context.times
    }

    /// Number of the lane among all lanes with clients, from 0.
    pub(crate) const fn index(&self) -> usize {
        self.index
    }

    /// Whether this is the first lane of the run.
    pub(crate) fn is_first(&self) -> bool {
        self.index == 0
    }

    /// Counts an operation, for observers of the run.
    pub(crate) fn tick(&self, began: Nanos, now: Nanos) {
        self.run_context.progress.tick(self.index, now.0, true);
        self.run_context.progress.note_latency(self.index, now.0.saturating_sub(began.0));
    }

    /// Whether an external failure has made the run worthless. The lane then stops waiting: a
    /// client may wait forever for an answer that never comes.
    fn has_failed(&self) -> bool {
        self.run_context.progress.failure().is_some()
    }

    /// Whether the lane begins no further operation: see [`Self::has_failed`] and
    /// [`Progress::ending_after`].
    ///
    /// [`Progress::ending_after`]: lotus_benchmarks::progress::Progress::ending_after
    fn is_over(&self) -> bool {
        self.has_failed() || self.run_context.progress.is_complete(self.index)
    }

    /// End of the measured time: the last operation of a lane that has done its share.
    fn ended(&self) -> Nanos {
        let progress = &self.run_context.progress;
        let ends = self.times().ends;
        match progress.is_complete(self.index) {
            true => Nanos(progress.last_end_ns(self.index)).min(ends),
            false => ends,
        }
    }

    /// Waits until `time`, or until the run is over.
    async fn wait_until(&self, time: Nanos) {
        let executor = self.executor();
        while executor.now() < time && !self.is_over() {
            executor.sleep_until(time.min(executor.now().after(LOOK))).await;
        }
    }

    /// Use of locks and verbs by the lane so far.
    fn used(&self) -> Used
    where
        A: LaneLocks,
    {
        let counts = self.client.counts();
        let (transfers, verbs) = (self.client.transfers(), self.lane.counters());
        Used { counts, transfers, verbs, secs: 0.0 }
    }

    /// Number of locks that the lane's clients have acquired so far, from any source.
    fn locked(&self) -> u64
    where
        A: LaneLocks,
    {
        self.client.counts().acquired + self.client.transfers().local
    }

    /// Randomness of one client.
    fn rng(&self, number: u16) -> SmallRng {
        let at = self.lane.at();
        let stream = [at.node.0, at.lane.0, number].into_iter();
        self.executor().env().rng(stream.fold(0, |stream, part| stream << 16 | u64::from(part)))
    }
}

/// Runs the clients of a lane until the time is over, or the run has failed.
pub(super) async fn run<W: Work>(work: W) -> Done<W::Tally>
where
    W::Tally: Default,
{
    let work = Rc::new(work);
    let executor = work.context().executor().clone();
    let Times { begins, counts_from, ends } = *work.context().times();
    let clients = work.context().run_context.clients.coroutines;
    let ended = Rc::new(RefCell::new(None));
    let tally = Rc::new(RefCell::new(W::Tally::default()));
    let (running, is_quiet) = (Rc::new(Cell::new(clients)), Rc::new(Cell::new(false)));
    work.context().wait_until(begins).await;
    work.mark(Mark::Begin, &mut tally.borrow_mut());
    for number in 0..clients {
        let (work, tally, ended) = (Rc::clone(&work), Rc::clone(&tally), Rc::clone(&ended));
        let (running, is_quiet) = (Rc::clone(&running), Rc::clone(&is_quiet));
        executor.spawn(async move {
            if let Err(why) = run_client(&*work, number, &tally).await {
                *ended.borrow_mut() = Some(why.to_string());
            }
            running.set(running.get() - 1);
            if running.get() == 0 {
                // The last client makes sure that the lane has nothing outstanding.
                work.context().client.quiet().await;
                is_quiet.set(true);
            }
        });
    }
    work.context().wait_until(counts_from).await;
    let before = work.context().used();
    work.mark(Mark::From, &mut tally.borrow_mut());
    work.context().wait_until(ends).await;
    let after = work.context().used();
    work.mark(Mark::To, &mut tally.borrow_mut());
    let mut last = LastLock::new(work.context().locked(), executor.now());
    while !is_quiet.get() && !work.context().has_failed() {
        executor.sleep(Duration::from_micros(20)).await;
        if last.is_long_ago(work.context().locked(), executor.now()) {
            let (left, stuck) = (running.get(), STUCK.as_secs());
            work.context().run_context.progress.fail(format!(
                "the time of the run is over, and {left} clients of a lane, none of which got a \
                 lock in {stuck} s, still wait for one"
            ));
        }
    }
    work.mark(Mark::End, &mut tally.borrow_mut());
    let used = Used {
        counts: after.counts - before.counts,
        transfers: after.transfers - before.transfers,
        verbs: after.verbs - &before.verbs,
        secs: work.context().ended().since(counts_from).as_secs_f64(),
    };
    Done { tally: tally.take(), used, ended: ended.take(), utilisation: None }
}

/// The last time at which a lane was seen to acquire a lock.
struct LastLock {
    locked: u64,
    at: Nanos,
}

impl LastLock {
    fn new(locked: u64, at: Nanos) -> Self {
        Self { locked, at }
    }

    /// Whether no lock was acquired in the last [`STUCK`] before `now`, given `locked` locks so
    /// far.
    fn is_long_ago(&mut self, locked: u64, now: Nanos) -> bool {
        if locked != self.locked {
            *self = Self::new(locked, now);
        }
        now >= self.at.after(STUCK)
    }
}

/// Runs one client until the time is over.
async fn run_client<W: Work>(
    work: &W,
    number: u16,
    tally: &RefCell<W::Tally>,
) -> Result<(), W::Failed> {
    let context = work.context();
    let mut rng = context.rng(number);
    while context.executor().now() < context.times().ends && !context.is_over() {
        work.operate(&mut rng, tally).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one Redis by two addresses never gave a lock, and the run never ended.
    #[test]
    fn a_lane_is_stuck_when_it_gets_no_lock_for_long() {
        let at = |secs| Nanos(0).after(Duration::from_secs(secs));
        let mut last = LastLock::new(7, at(100));
        assert!(!last.is_long_ago(7, at(129)));
        // Any lock begins the time anew.
        assert!(!last.is_long_ago(8, at(129)));
        assert!(!last.is_long_ago(8, at(158)));
        assert!(last.is_long_ago(8, at(159)));
    }
}
