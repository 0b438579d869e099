//! The slowest recent answer time, which decides when a missing answer counts as late.
//!
//! # What it is
//! A slowly decaying maximum of answer times. On a machine with more threads than cores, or on a
//! network that is slow at times, the tolerance for late answers rises by itself, and falls again
//! when answers are fast.

use std::time::Duration;

/// Lease divided by the least tolerance.
const TOLERANCES_PER_LEASE: u32 = 32;
/// Factor by which an answer may exceed the slowest recent answer time.
const SLOWEST_TIMES: u64 = 4;
/// Decay: every answer lowers the maximum by its 2^FORGETTING-th part.
const FORGETTING: u32 = 8;

/// Lower bound of the tolerance for a lease of length `lease`.
pub fn least_tolerance(lease: Duration) -> Duration {
    lease / TOLERANCES_PER_LEASE
}

/// Slowest recent answer time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Slowest {
    ns: u64,
}

impl Slowest {
    /// Records an answer time.
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
