//! Hot locks that change: a set of locks takes a share of all requests, and after a while another
//! set becomes hot (FissLock §7.5).

use std::time::Duration;

use lotus_fabric::env::SmallRng;
use rand::Rng;

/// Hot locks; requests for the other locks are spread evenly.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HotLocks {
    /// Number of locks that are hot at a time; less than the number of all locks.
    pub count: u64,
    /// Share of requests for hot locks, in 0..=1.
    pub share: f64,
    /// Interval after which the next set of locks becomes hot; zero for never.
    pub every: Duration,
}

impl HotLocks {
    /// Draws the next of `locks` locks to ask for, `elapsed` after the first request.
    ///
    /// # Panics
    /// If all locks are hot.
    pub(super) fn draw(&self, locks: u64, elapsed: Duration, rng: &mut SmallRng) -> u64 {
        let changes = elapsed.as_nanos().checked_div(self.every.as_nanos()).unwrap_or(0) as u64;
        let first = (changes % locks) * self.count % locks;
        let is_hot = rng.random::<f64>() < self.share;
        let range = if is_hot { 0..self.count } else { self.count..locks };
        (first + rng.random_range(range)) % locks
    }

    /// The initially hot locks, with their shares of the requests.
    pub(super) fn first(&self) -> Vec<(u64, f64)> {
        (0..self.count).map(|lock| (lock, self.share / self.count as f64)).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn hot_locks_take_their_share_and_change() {
        let hot = HotLocks { count: 30, share: 0.5, every: Duration::from_millis(5) };
        let mut rng = SmallRng::seed_from_u64(1);
        for (elapsed_ms, first) in [(0, 0), (4, 0), (5, 30), (11, 60), (15, 90), (16, 90)] {
            let elapsed = Duration::from_millis(elapsed_ms);
            let draws: Vec<u64> = (0..20_000).map(|_| hot.draw(100, elapsed, &mut rng)).collect();
            assert!(draws.iter().all(|lock| *lock < 100));
            let is_hot = |lock: &&u64| (**lock + 100 - first) % 100 < 30;
            let share = draws.iter().filter(is_hot).count() as f64 / draws.len() as f64;
            assert!((share - 0.5).abs() < 0.02, "{elapsed_ms} ms: {share}");
        }
    }

    #[test]
    fn hot_locks_stay_without_an_interval() {
        let hot = HotLocks { count: 3, share: 1.0, every: Duration::ZERO };
        let mut rng = SmallRng::seed_from_u64(1);
        let draws = (0..1000).map(|_| hot.draw(10, Duration::from_secs(9), &mut rng));
        assert!(draws.into_iter().all(|lock| lock < 3));
        assert_eq!(hot.first(), [0, 1, 2].map(|lock| (lock, 1.0 / 3.0)));
    }
}
