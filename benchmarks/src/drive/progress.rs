//! Live progress of a run, for an observer on another thread.
//!
//! Each coordinator has a cache line and updates the line after every transaction with plain
//! stores; an observer may read all lines at any time. The numbers may lag, but never slow down the
//! run.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::contract::deployment::Activity;
use crate::contract::engine::AbortReason;
use crate::drive::live::{Counters, Reading};

/// Number of commits after which a coordinator publishes its own counts again.
const SHOWING: u64 = 64;

/// A phase of a run; phases come in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Loads rows.
    Loading,
    /// Runs clients, first without and then with measurement.
    Running,
    /// Looks up the outcomes of calls that had no answer.
    LookingUp,
    /// Audits the data.
    Auditing,
    /// Measures the fabric alone.
    Floor,
}

impl Phase {
    const ALL: [Self; 5] =
        [Self::Loading, Self::Running, Self::LookingUp, Self::Auditing, Self::Floor];

    /// The phase for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Running => "running",
            Self::LookingUp => "asking for outcomes",
            Self::Auditing => "auditing",
            Self::Floor => "measuring the floor",
        }
    }
}

/// Progress shared by a run and its observer.
pub struct Progress {
    coordinators: Box<[ProgressLine]>,
    span: OnceLock<(u64, u64)>,
    failure: OnceLock<String>,
    enter: Box<dyn Fn(Phase) + Send + Sync>,
    /// Commits at which the run ends, if the run is limited by commits.
    most_commits: Option<u64>,
    /// Number of commits that complete the share of a coordinator.
    share: u64,
    /// Counters of the coordinators for an observer, if the run is observed.
    observed: Option<Box<[Counters]>>,
    /// The last announced phase, as an index into [`Phase::ALL`].
    phase: AtomicU8,
}

/// Cache line of a coordinator (two lines, as processors fetch lines in pairs).
#[repr(align(128))]
#[derive(Default)]
struct ProgressLine {
    committed: AtomicU64,
    now_ns: AtomicU64,
}

impl Progress {
    /// Progress of a run with `coordinators` coordinators; `enter` is called at every new phase.
    pub fn new(coordinators: usize, enter: impl Fn(Phase) + Send + Sync + 'static) -> Self {
        let coordinators = (0..coordinators).map(|_| ProgressLine::default()).collect();
        let (span, failure) = (OnceLock::new(), OnceLock::new());
        Self {
            coordinators,
            span,
            failure,
            enter: Box::new(enter),
            most_commits: None,
            share: u64::MAX,
            observed: None,
            phase: AtomicU8::new(0),
        }
    }

    /// Counts latencies, aborts and activity as well, for [`Self::read`].
    #[must_use]
    pub fn observed(self) -> Self {
        let counters = self.coordinators.iter().map(|_| Counters::default()).collect();
        Self { observed: Some(counters), ..self }
    }

    /// The counts so far; latencies and aborts stay zero unless [`Self::observed`].
    pub fn read(&self) -> Reading {
        let now = self.coordinators.iter().map(|line| line.now_ns.load(Ordering::Relaxed)).max();
        let mut reading = Reading {
            done: self.committed(),
            now_ns: now.unwrap_or(0),
            span: self.span.get().copied(),
            phase: Phase::ALL[usize::from(self.phase.load(Ordering::Relaxed))].name(),
            ..Reading::default()
        };
        let counters = self.observed.iter().flatten();
        counters.for_each(|counters| counters.read_into(&mut reading));
        reading
    }

    /// Ends the run at the latest when a coordinator has committed its equal share of `commits`
    /// transactions, so that the run does about the same work whatever the clock shows.
    /// Transactions in flight then end as usual.
    #[must_use]
    pub fn ending_after(self, commits: u64) -> Self {
        let share = commits.div_ceil(self.coordinators.len() as u64);
        Self { most_commits: Some(commits), share, ..self }
    }

    /// Whether the coordinator has committed its share of the run's transactions.
    #[inline]
    pub fn is_complete(&self, coordinator: usize) -> bool {
        self.coordinators[coordinator].committed.load(Ordering::Relaxed) >= self.share
    }

    /// Whether the whole run's transactions have committed, where one coordinator counts for all.
    pub fn is_over(&self) -> bool {
        self.most_commits.is_some_and(|all| self.committed() >= all)
    }

    /// Time at which the coordinator's last transaction has ended, in nanoseconds.
    pub fn last_end_ns(&self, coordinator: usize) -> u64 {
        self.coordinators[coordinator].now_ns.load(Ordering::Relaxed)
    }

    /// Transactions committed so far.
    pub fn committed(&self) -> u64 {
        self.coordinators.iter().map(|line| line.committed.load(Ordering::Relaxed)).sum()
    }

    /// Part of the run that is over, in 0..=1: share of its transactions, or of the time in which
    /// clients issue transactions.
    pub fn fraction(&self) -> f64 {
        if let Some(all) = self.most_commits {
            return (self.committed() as f64 / all.max(1) as f64).min(1.0);
        }
        let Some(&(from, until)) = self.span.get() else { return 0.0 };
        let now = self.coordinators.iter().map(|line| line.now_ns.load(Ordering::Relaxed)).max();
        let elapsed = now.unwrap_or(0).saturating_sub(from);
        (elapsed as f64 / until.saturating_sub(from).max(1) as f64).min(1.0)
    }

    /// Tells the run to stop early, because an external failure makes the run worthless. Only the
    /// first reason is kept.
    pub fn fail(&self, why: String) {
        let _ = self.failure.set(why);
    }

    /// Reason given to [`Self::fail`], if any.
    #[inline]
    pub fn failure(&self) -> Option<&String> {
        self.failure.get()
    }

    /// Announces a new phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        (self.enter)(phase);
    }

    /// Sets the interval in which clients issue transactions.
    pub fn set_span(&self, from_ns: u64, until_ns: u64) {
        // The floor's recording is a second, short run; the interval of the first run stays.
        let _ = self.span.set((from_ns, until_ns));
    }

    /// Counts the end of a transaction. Only tasks of `coordinator`, which share a thread, may call
    /// this function; hence no read-modify-write is needed.
    #[inline]
    pub fn tick(&self, coordinator: usize, now_ns: u64, committed: bool) {
        let line = &self.coordinators[coordinator];
        let sum = line.committed.load(Ordering::Relaxed) + u64::from(committed);
        line.committed.store(sum, Ordering::Relaxed);
        line.now_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Counts the latency of an operation, for an observer. The same callers as [`Self::tick`].
    #[inline]
    pub fn note_latency(&self, coordinator: usize, ns: u64) {
        if let Some(observed) = &self.observed {
            note_latency(&observed[coordinator], ns);
        }
    }

    /// Counts an aborted attempt, for an observer. The same callers as [`Self::tick`].
    #[inline]
    pub fn note_abort(&self, coordinator: usize, reason: AbortReason) {
        if let Some(observed) = &self.observed {
            note_abort(&observed[coordinator], reason);
        }
    }

    /// Counts a commit for an observer: the commit's latency, and now and then the coordinator's
    /// own counts. The same callers as [`Self::tick`].
    #[inline]
    pub fn note_commit(
        &self,
        coordinator: usize,
        latency_ns: u64,
        activity: impl FnOnce() -> Activity,
    ) {
        if let Some(observed) = &self.observed {
            let commits = self.coordinators[coordinator].committed.load(Ordering::Relaxed);
            note_commit(&observed[coordinator], latency_ns, commits, activity);
        }
    }
}

// Most runs have no observer: the cost of observing stays out of the code of clients.

#[cold]
#[inline(never)]
fn note_latency(counters: &Counters, ns: u64) {
    counters.note_latency(ns);
}

#[cold]
#[inline(never)]
fn note_commit(
    counters: &Counters,
    latency_ns: u64,
    commits: u64,
    activity: impl FnOnce() -> Activity,
) {
    counters.note_latency(latency_ns);
    if commits.is_multiple_of(SHOWING) {
        counters.set_activity(&activity());
    }
}

#[cold]
#[inline(never)]
fn note_abort(counters: &Counters, reason: AbortReason) {
    counters.note_abort(reason);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_reads_what_coordinators_count() {
        let idle = Progress::new(1, |_| ());
        idle.tick(0, 7, true);
        idle.note_commit(0, 5, || unreachable!("there is no observer"));
        idle.note_abort(0, AbortReason::Conflict);
        let without = Reading { done: 1, now_ns: 7, phase: "loading", ..Reading::default() };
        assert_eq!(idle.read(), without);
        let observed = Progress::new(2, |_| ()).observed();
        observed.enter(Phase::Auditing);
        (0..SHOWING).for_each(|_| observed.tick(1, 9, true));
        let before = observed.read();
        assert_eq!((before.done, before.phase), (SHOWING, "auditing"));
        observed.note_commit(1, 5, || Activity { shards: 3, ..Activity::default() });
        observed.note_abort(0, AbortReason::Conflict);
        assert_ne!(observed.read(), before);
    }

    #[test]
    fn the_phases_are_in_their_order() {
        assert!(Phase::ALL.iter().enumerate().all(|(at, phase)| *phase as usize == at));
    }

    #[test]
    fn it_sums_over_coordinators_and_stops_at_one() {
        let progress = Progress::new(2, |_| ());
        assert_eq!((progress.committed(), progress.fraction()), (0, 0.0));
        progress.set_span(100, 200);
        progress.tick(0, 120, true);
        progress.tick(1, 150, true);
        progress.tick(1, 140, false);
        assert_eq!((progress.committed(), progress.fraction()), (2, 0.4));
        progress.tick(0, 300, true);
        assert_eq!(progress.fraction(), 1.0);
        let progress = progress.ending_after(4);
        assert!(progress.is_complete(0) && !progress.is_complete(1) && !progress.is_over());
        assert_eq!(progress.fraction(), 0.75);
        progress.tick(1, 310, true);
        assert!(progress.is_complete(1) && progress.is_over());
        assert_eq!((progress.fraction(), progress.last_end_ns(1)), (1.0, 310));
    }
}
