//! The slowest recent answer, which decides when a missing answer counts as late.
//!
//! # What it is
//! A maximum of answer times that decays slowly: on a machine with more threads than cores, or on a
//! network that is slow at times, the time after which an answer counts as late rises by itself,
//! and falls again when answers are fast.

use std::time::Duration;

/// Number of least tolerances in a lease.
const TOLERANCES_PER_LEASE: u32 = 32;
/// Factor by which an answer may exceed the slowest recent one.
const SLOWEST_TIMES: u64 = 4;
/// Decay: each answer lowers the maximum by its 2^FORGETTING-th part.
const FORGETTING: u32 = 8;

/// Lower bound of the tolerance for this length of lease.
pub fn least_tolerance(lease: Duration) -> Duration {
    lease / TOLERANCES_PER_LEASE
}

/// Slowest recent answer time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slowest {
    ns: u64,
}

impl Slowest {
    /// Records the time that an answer took.
    #[inline]
    pub fn note(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.ns = took_ns.max(self.ns - (self.ns >> FORGETTING));
    }

    /// Time after which an answer counts as late; at least `least`.
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
