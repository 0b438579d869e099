//! Truncated exponential back-off whose bound follows the share of failed tries.

use std::time::Duration;

use lotus_fabric::env::{Nanos, SmallRng};
use rand::Rng;

/// Constants of a back-off.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pacing {
    /// Pause after the first failure. The pause doubles with each further failure, up to the bound.
    pub first: Duration,
    /// Smallest value of the bound.
    pub least: Duration,
    /// Largest value of the bound.
    pub most: Duration,
    /// Upper limit of the random time added to each pause.
    pub jitter: Duration,
    /// Share of failed tries above which the bound doubles.
    pub raised_above: f64,
    /// Share of failed tries below which the bound is halved.
    pub lowered_below: f64,
}

impl Pacing {
    /// Time between two adjustments of the bound.
    const PERIOD: Duration = Duration::from_micros(100);

    /// No pause at all.
    pub const NONE: Self = Self {
        first: Duration::ZERO,
        least: Duration::ZERO,
        most: Duration::ZERO,
        jitter: Duration::ZERO,
        raised_above: 1.0,
        lowered_below: 0.0,
    };

    /// The back-off of compare-and-swap locks in ShiftLock §2.3: a unit of 1,862 ns, and up to
    /// 1,024 units.
    pub const SMART: Self = Self {
        first: Duration::from_nanos(1862),
        least: Duration::from_nanos(1862),
        most: Duration::from_nanos(1862 * 1024),
        jitter: Duration::from_nanos(1862),
        raised_above: 0.5,
        lowered_below: 0.1,
    };

    /// The back-off of DSLR+ (DecLock §2.3).
    pub const DSLR_PLUS: Self = Self {
        first: Duration::from_nanos(100),
        least: Duration::from_nanos(100),
        most: Duration::from_nanos(3200),
        jitter: Duration::from_micros(2),
        raised_above: 0.7,
        lowered_below: 0.5,
    };
}

/// State of a back-off, shared by all requests of one lane.
#[derive(Clone, Debug)]
pub struct Backoff {
    pacing: Pacing,
    bound: Duration,
    tries: u32,
    failures: u32,
    judged: Nanos,
}

impl Backoff {
    /// Creates a back-off with the smallest bound.
    pub const fn new(pacing: Pacing) -> Self {
        Self { pacing, bound: pacing.least, tries: 0, failures: 0, judged: Nanos(0) }
    }

    /// Whether the back-off never pauses.
    pub const fn is_none(&self) -> bool {
        self.pacing.most.is_zero()
    }

    /// The present bound.
    pub const fn bound(&self) -> Duration {
        self.bound
    }

    /// Counts a successful try.
    pub const fn succeeded(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }

    /// Counts a failed try, the `failures`-th of its request, and returns the time until the next
    /// try.
    pub fn failed(&mut self, failures: u32, now: Nanos, rng: &mut SmallRng) -> Duration {
        self.tries = self.tries.saturating_add(1);
        self.failures = self.failures.saturating_add(1);
        if self.is_none() {
            return Duration::ZERO;
        }
        if now.since(self.judged) >= Pacing::PERIOD {
            self.judge();
            self.judged = now;
        }
        let doubled = self.pacing.first.saturating_mul(1 << failures.saturating_sub(1).min(31));
        doubled.min(self.bound) + rng.random_range(Duration::ZERO..self.pacing.jitter)
    }

    fn judge(&mut self) {
        let share = f64::from(self.failures) / f64::from(self.tries.max(1));
        let Pacing { least, most, raised_above, lowered_below, .. } = self.pacing;
        if share > raised_above {
            self.bound = (self.bound * 2).min(most);
        } else if share < lowered_below {
            self.bound = (self.bound / 2).max(least);
        }
        (self.tries, self.failures) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lotus_fabric::env::Env;

    #[test]
    fn pauses_double_up_to_the_bound_and_the_bound_follows_the_failures() {
        let mut rng = Env::real(1).rng(0);
        let mut backoff = Backoff::new(Pacing::SMART);
        let unit = Pacing::SMART.first;
        let mut now = Nanos(0);
        for _ in 0..20 {
            now = now.after(Pacing::PERIOD);
            let pause = backoff.failed(30, now, &mut rng);
            assert!((backoff.bound()..backoff.bound() + unit).contains(&pause));
        }
        assert_eq!(backoff.bound(), Pacing::SMART.most);
        assert!(backoff.failed(1, now, &mut rng) < unit * 2);
        assert!((unit * 4..unit * 5).contains(&backoff.failed(3, now, &mut rng)));
        for _ in 0..20 {
            (0..100).for_each(|_| backoff.succeeded());
            now = now.after(Pacing::PERIOD);
            backoff.failed(1, now, &mut rng);
        }
        assert_eq!(backoff.bound(), Pacing::SMART.least);
    }

    #[test]
    fn without_pacing_there_is_no_pause() {
        let mut rng = Env::real(1).rng(0);
        let mut backoff = Backoff::new(Pacing::NONE);
        assert_eq!(backoff.failed(9, Nanos(1 << 40), &mut rng), Duration::ZERO);
    }
}
