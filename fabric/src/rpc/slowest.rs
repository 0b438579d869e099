//! The slowest answer of late, by which a missing one is judged.
//!
//! # What it is
//! A memory of how long answers took that forgets slowly: a machine with more threads than cores,
//! or a network that is slow at times, raises the time after which an answer counts as late by
//! itself, and lowers it again when it is fast.

use std::time::Duration;

/// So many least tolerances fit in a lease.
const TOLERANCES_PER_LEASE: u32 = 32;
/// An answer may take so many times as long as the slowest one of late.
const SLOWEST_TIMES: u64 = 4;
/// Each answer takes so little of what the slowest one took: a part of two to the power of this.
const FORGETTING: u32 = 8;

/// The least tolerance where nodes have a lease of this length.
pub fn least_tolerance(lease: Duration) -> Duration {
    lease / TOLERANCES_PER_LEASE
}

/// See the module's essay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slowest {
    ns: u64,
}

impl Slowest {
    /// Notes how long an answer took.
    #[inline]
    pub fn note(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.ns = took_ns.max(self.ns - (self.ns >> FORGETTING));
    }

    /// The time after which an answer is late; never less than `least`.
    #[inline]
    pub fn tolerance(&self, least: Duration) -> Duration {
        least.max(Duration::from_nanos(self.ns.saturating_mul(SLOWEST_TIMES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_tolerance_is_a_small_part_of_the_lease() {
        assert_eq!(least_tolerance(Duration::from_millis(10)), Duration::from_nanos(312_500));
    }

    #[test]
    fn a_slow_answer_is_remembered_for_a_while() {
        let (mut slowest, least) = (Slowest::default(), Duration::from_micros(100));
        assert_eq!(slowest.tolerance(least), least);
        slowest.note(Duration::from_micros(500));
        assert_eq!(slowest.tolerance(least), Duration::from_millis(2));
        let mut later: Vec<_> = (0..3_000)
            .map(|_| {
                slowest.note(Duration::from_micros(2));
                slowest.tolerance(least)
            })
            .collect();
        assert!(later.is_sorted_by(|before, after| before >= after));
        assert!(later[100] > Duration::from_millis(1));
        assert_eq!(later.pop(), Some(least));
    }
}
