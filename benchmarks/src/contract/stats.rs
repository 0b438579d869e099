//! Counts and latencies of a worker, and their sums over all workers.
//!
//! A [`Tally`] belongs to one worker and is written without synchronisation; tallies are merged
//! when all workers have ended. Latencies go into histograms with two significant digits: 30 KiB
//! each instead of 300, so that the measurement stays in the cache.

use hdrhistogram::Histogram;

use crate::contract::audit::Effects;
use crate::contract::engine::AbortReason;

/// Upper bound of recorded latencies, in nanoseconds: a minute. Longer latencies count as a minute.
const MAX_LATENCY_NS: u64 = 60_000_000_000;
/// Significant digits of a latency: precise to one per cent.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Outcomes and latencies of transactions of one type.
#[derive(Clone, Debug)]
pub struct Counts {
    /// Transactions that committed.
    pub committed: u64,
    /// Transactions with unknown outcome.
    pub unknown: u64,
    /// Attempts that aborted, by [`AbortReason::index`].
    pub aborted: [u64; AbortReason::ALL.len()],
    /// Latency from a request's intended start to its commit, retries included, in nanoseconds.
    pub latency_ns: Histogram<u32>,
}

impl Default for Counts {
    fn default() -> Self {
        let latency_ns = Histogram::new_with_bounds(1, MAX_LATENCY_NS, SIGNIFICANT_DIGITS)
            .expect("the bounds are sound constants");
        Self { committed: 0, unknown: 0, aborted: [0; AbortReason::ALL.len()], latency_ns }
    }
}

impl Counts {
    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.committed += other.committed;
        self.unknown += other.unknown;
        for (sum, more) in self.aborted.iter_mut().zip(other.aborted) {
            *sum += more;
        }
        self.latency_ns.add(&other.latency_ns).expect("all histograms have the same bounds");
    }

    /// Number of aborted attempts, over all reasons.
    pub fn aborts(&self) -> u64 {
        self.aborted.iter().sum()
    }

    /// Aborted attempts among all attempts.
    pub fn abort_rate(&self) -> f64 {
        let attempts = self.aborts() + self.committed + self.unknown;
        if attempts == 0 { 0.0 } else { self.aborts() as f64 / attempts as f64 }
    }
}

/// Commits in equal steps of time, from the end of the warm-up on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    /// Length of a step, in nanoseconds.
    pub step_ns: u64,
    /// Number of commits in each step.
    pub commits: Vec<u64>,
}

impl Timeline {
    fn new(step_ns: u64) -> Self {
        Self { step_ns, commits: Vec::new() }
    }

    fn add(&mut self, step: usize, commits: u64) {
        if self.commits.len() <= step {
            self.commits.resize(step + 1, 0);
        }
        self.commits[step] += commits;
    }
}

/// Counts of a worker, or sums over workers.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Counts by transaction type, of requests issued after the warm-up.
    pub by_transaction: Vec<Counts>,
    /// Number of commits, warm-up included.
    pub all_committed: u64,
    /// Effects of all transactions on the balance, warm-up included.
    pub effects: Effects,
    /// End of the last transaction, in nanoseconds.
    pub last_end_ns: u64,
    /// Commits over time, if a timeline was requested.
    pub timeline: Option<Timeline>,
}

impl Tally {
    /// An empty tally for `types` types of transaction.
    pub fn new(types: usize) -> Self {
        Self {
            by_transaction: vec![Counts::default(); types],
            all_committed: 0,
            effects: Effects::default(),
            last_end_ns: 0,
            timeline: None,
        }
    }

    /// Adds an empty timeline with steps of `step_us` microseconds, if `step_us` is given.
    #[must_use]
    pub(crate) fn with_timeline(self, step_us: Option<u64>) -> Self {
        Self { timeline: step_us.map(|step_us| Timeline::new(step_us * 1_000)), ..self }
    }

    /// Adds another worker's tally.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.by_transaction.iter_mut().zip(&other.by_transaction) {
            sum.merge(more);
        }
        self.all_committed += other.all_committed;
        self.effects.merge(&other.effects);
        self.last_end_ns = self.last_end_ns.max(other.last_end_ns);
        if let Some(more) = &other.timeline {
            let timeline = self.timeline.get_or_insert_with(|| Timeline::new(more.step_ns));
            more.commits
                .iter()
                .enumerate()
                .for_each(|(step, commits)| timeline.add(step, *commits));
        }
    }

    /// The counts of all types together.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for counts in &self.by_transaction {
            total.merge(counts);
        }
        total
    }

    /// Counts a commit at `at_ns` in the timeline, if there is one; the timeline begins at
    /// `from_ns`.
    #[inline]
    pub(crate) fn note_commit(&mut self, from_ns: u64, at_ns: u64) {
        let Some(timeline) = &mut self.timeline else { return };
        if let Some(since) = at_ns.checked_sub(from_ns) {
            timeline.add((since / timeline.step_ns) as usize, 1);
        }
    }

    /// Counts a commit, and its latency if the request was issued after the warm-up.
    #[inline]
    pub fn commit(&mut self, kind: usize, latency_ns: Option<u64>, effect: i64) {
        self.all_committed += 1;
        self.effects.add_committed(effect);
        if let Some(latency_ns) = latency_ns {
            let counts = &mut self.by_transaction[kind];
            counts.committed += 1;
            counts.latency_ns.saturating_record(latency_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_add_up() {
        let mut first = Tally::new(2);
        first.commit(0, Some(1_000), 5);
        first.commit(1, None, -2);
        let mut second = Tally::new(2);
        second.commit(1, Some(3_000), 1);
        second.by_transaction[1].aborted[AbortReason::Conflict.index()] = 2;
        second.last_end_ns = 9;
        first.merge(&second);
        let total = first.total();
        assert_eq!((total.committed, total.aborts(), first.all_committed), (2, 2, 3));
        assert_eq!((first.effects.committed, first.last_end_ns), (4, 9));
        assert!((total.abort_rate() - 0.5).abs() < 1e-9);
        assert!(total.latency_ns.max() >= 2_970);
    }

    #[test]
    fn timelines_count_from_the_end_of_the_warm_up_and_add_up() {
        let mut sum = Tally::new(1);
        for at_ns in [[999, 1_000, 4_100], [3_999, 2_000, 1_999]] {
            let mut tally = Tally::new(1).with_timeline(Some(1));
            at_ns.into_iter().for_each(|at_ns| tally.note_commit(1_000, at_ns));
            sum.merge(&tally);
        }
        let timeline = sum.timeline.expect("both have one");
        assert_eq!((timeline.step_ns, timeline.commits), (1_000, vec![2, 1, 1, 1]));
    }

    #[test]
    fn a_latency_beyond_the_bounds_counts_as_the_longest() {
        let mut tally = Tally::new(1);
        tally.commit(0, Some(u64::MAX), 0);
        assert_eq!(tally.total().latency_ns.len(), 1);
    }
}
