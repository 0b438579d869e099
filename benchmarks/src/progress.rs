//! What a run is doing right now, for whoever watches it.
//!
//! Each coordinator owns one cache line that it writes plainly after every transaction; a watcher
//! on another thread reads them whenever it likes. Numbers may lag, never the run.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A stage of a run, in the order in which they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Rows are loaded.
    Loading,
    /// Clients run, first without and then with measurement.
    Running,
    /// It is asked what became of calls that had no answer.
    LookingUp,
    /// The data is looked at.
    Auditing,
    /// The fabric alone is measured.
    Floor,
}

impl Phase {
    /// What to show a person.
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

/// Shared by a run and its watcher.
pub struct Progress {
    coordinators: Box<[Line]>,
    span: OnceLock<(u64, u64)>,
    failure: OnceLock<String>,
    enter: Box<dyn Fn(Phase) + Send + Sync>,
}

/// One coordinator's cache line (two, as processors fetch them in pairs).
#[repr(align(128))]
#[derive(Default)]
struct Line {
    committed: AtomicU64,
    now_ns: AtomicU64,
}

impl Progress {
    /// Progress of a run with that many coordinators; `enter` is told of every new phase.
    pub fn new(coordinators: usize, enter: impl Fn(Phase) + Send + Sync + 'static) -> Self {
        let coordinators = (0..coordinators).map(|_| Line::default()).collect();
        let (span, failure) = (OnceLock::new(), OnceLock::new());
        Self { coordinators, span, failure, enter: Box::new(enter) }
    }

    /// Transactions committed so far.
    pub fn committed(&self) -> u64 {
        self.coordinators.iter().map(|line| line.committed.load(Ordering::Relaxed)).sum()
    }

    /// How much of the time in which clients issue transactions is over, in 0..=1.
    pub fn fraction(&self) -> f64 {
        let Some(&(from, until)) = self.span.get() else { return 0.0 };
        let now = self.coordinators.iter().map(|line| line.now_ns.load(Ordering::Relaxed)).max();
        let elapsed = now.unwrap_or(0).saturating_sub(from);
        (elapsed as f64 / until.saturating_sub(from).max(1) as f64).min(1.0)
    }

    /// Lets the run stop as soon as it can: something outside of it makes it worthless. Only the
    /// first reason counts.
    pub fn fail(&self, why: String) {
        let _ = self.failure.set(why);
    }

    /// Why the run makes no sense any more, if it does not.
    #[inline]
    pub fn failure(&self) -> Option<&String> {
        self.failure.get()
    }

    /// The benchmark has come to this phase.
    pub fn enter(&self, phase: Phase) {
        (self.enter)(phase);
    }

    /// Clients issue transactions from `from_ns` until `until_ns`.
    pub fn set_span(&self, from_ns: u64, until_ns: u64) {
        // A second run on the same progress is a short one that nobody watches.
        let _ = self.span.set((from_ns, until_ns));
    }

    /// A transaction ended. Only tasks of one coordinator may name it, and they share a thread;
    /// that is why no read-modify-write is needed.
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
    }
}
