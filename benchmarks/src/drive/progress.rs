//! Live progress of a run, for an observer on another thread.
//!
//! Each coordinator has its own cache line and updates it after every transaction with plain
//! stores; an observer may read all lines at any time. The numbers may lag, but never slow down the
//! run.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Commits of one coordinator at which the run ends.
    most_commits: u64,
}

/// One coordinator's cache line (two, as processors fetch them in pairs).
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
        Self { coordinators, span, failure, enter: Box::new(enter), most_commits: u64::MAX }
    }

    /// Ends the run at the latest when a coordinator has committed `commits` transactions, so that
    /// it does the same work whatever the clock shows.
    #[must_use]
    pub fn ending_after(self, commits: u64) -> Self {
        Self { most_commits: commits, ..self }
    }

    /// Whether the coordinator has committed all transactions that the run asks for.
    #[inline]
    pub(crate) fn is_complete(&self, coordinator: usize) -> bool {
        self.coordinators[coordinator].committed.load(Ordering::Relaxed) >= self.most_commits
    }

    /// Transactions committed so far.
    pub fn committed(&self) -> u64 {
        self.coordinators.iter().map(|line| line.committed.load(Ordering::Relaxed)).sum()
    }

    /// Elapsed share of the time in which clients issue transactions, in 0..=1.
    pub fn fraction(&self) -> f64 {
        let Some(&(from, until)) = self.span.get() else { return 0.0 };
        let now = self.coordinators.iter().map(|line| line.now_ns.load(Ordering::Relaxed)).max();
        let elapsed = now.unwrap_or(0).saturating_sub(from);
        (elapsed as f64 / until.saturating_sub(from).max(1) as f64).min(1.0)
    }

    /// Tells the run to stop early, because something outside of it makes it worthless. Only the
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
        (self.enter)(phase);
    }

    /// Sets the interval in which clients issue transactions.
    pub fn set_span(&self, from_ns: u64, until_ns: u64) {
        // The floor's recording is a second, short run; the interval of the first one stays.
        let _ = self.span.set((from_ns, until_ns));
    }

    /// Counts the end of a transaction. Only tasks of `coordinator`, which share a thread, may call
    /// this; hence no read-modify-write is needed.
    #[inline]
    pub fn tick(&self, coordinator: usize, now_ns: u64, committed: bool) {
        let line = &self.coordinators[coordinator];
        let sum = line.committed.load(Ordering::Relaxed) + u64::from(committed);
        line.committed.store(sum, Ordering::Relaxed);
        line.now_ns.store(now_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let progress = progress.ending_after(2);
        assert!(progress.is_complete(0) && !progress.is_complete(1));
    }
}
