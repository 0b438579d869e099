//! Two samples of a node, and the rates between them. Pure.

use std::collections::BTreeMap;

use crate::top::parse::Sample;

/// Rates of a node between two samples, per second.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rates {
    pub committed: f64,
    pub aborts: BTreeMap<String, f64>,
    pub locks: f64,
    /// Share of locks owned by the node itself; `None` without locks.
    pub own_locks: Option<f64>,
    pub shards_moved: f64,
    /// Processors in use.
    pub processors: f64,
    /// Transactions by latency: upper bound in seconds, and count in the interval.
    pub latencies: Vec<(f64, f64)>,
}

impl Rates {
    /// Rates between two samples, `secs` apart; `None` if the counters were reset in between, or no
    /// time has passed.
    pub fn between(before: &Sample, now: &Sample, secs: f64) -> Option<Self> {
        if secs <= 0.0 || now.uptime_s < before.uptime_s {
            return None;
        }
        let since = |now: f64, before: f64| (now >= before).then_some(now - before);
        let (own, far) =
            (since(now.own_locks, before.own_locks)?, since(now.far_locks, before.far_locks)?);
        let mut aborts = BTreeMap::new();
        for (reason, count) in &now.aborts {
            let earlier = before.aborts.get(reason).copied().unwrap_or(0.0);
            aborts.insert(reason.clone(), since(*count, earlier)? / secs);
        }
        Some(Self {
            committed: since(now.committed, before.committed)? / secs,
            aborts,
            locks: (own + far) / secs,
            own_locks: (own + far > 0.0).then(|| own / (own + far)),
            shards_moved: since(now.shards_moved, before.shards_moved)? / secs,
            processors: since(now.processor_s, before.processor_s)? / secs,
            latencies: latencies(&before.latencies, &now.latencies)?,
        })
    }

    /// Sum of all aborts.
    pub fn all_aborts(&self) -> f64 {
        self.aborts.values().sum()
    }
}

/// Counts by latency between two cumulative histograms with the same bounds.
fn latencies(before: &[(f64, f64)], now: &[(f64, f64)]) -> Option<Vec<(f64, f64)>> {
    if before.len() != now.len() {
        // A process of another version may have different bounds.
        return None;
    }
    let mut below = 0.0;
    let mut counts = Vec::with_capacity(now.len());
    for ((bound, count), (earlier_bound, earlier)) in now.iter().zip(before) {
        let since = count - earlier;
        if bound != earlier_bound || since < below {
            return None;
        }
        counts.push((*bound, since - below));
        below = since;
    }
    Some(counts)
}

/// Adds the counts of `more` to the counts of `sum`, if both have the same bounds.
pub fn add(sum: &mut Vec<(f64, f64)>, more: &[(f64, f64)]) {
    if sum.is_empty() {
        sum.extend(more);
    } else if sum.len() == more.len() {
        sum.iter_mut().zip(more).for_each(|((_, sum), (_, more))| *sum += more);
    }
}

/// Quantile `share` of the latencies, in seconds: interpolated within its bucket as if latencies
/// were spread evenly. The last bucket has no upper bound and counts as its lower bound.
pub fn quantile(counts: &[(f64, f64)], share: f64) -> Option<f64> {
    let all: f64 = counts.iter().map(|(_, count)| count).sum();
    if all <= 0.0 {
        return None;
    }
    let (wanted, mut below, mut from) = (all * share, 0.0, 0.0);
    for (bound, count) in counts {
        if *count > 0.0 && below + count >= wanted {
            let within = ((wanted - below) / count).clamp(0.0, 1.0);
            return Some(if bound.is_finite() { from + (bound - from) * within } else { from });
        }
        below += count;
        from = if bound.is_finite() { *bound } else { from };
    }
    Some(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(uptime_s: f64, committed: f64, own_locks: f64, far_locks: f64) -> Sample {
        Sample { uptime_s, committed, own_locks, far_locks, ..Sample::default() }
    }

    #[test]
    fn rates_are_those_between_two_samples_of_one_process() {
        // Uptime, commits, locks; then the same later, the seconds between, and the rate.
        let cases = [
            ((10.0, 100.0, 8.0, 2.0), (12.0, 300.0, 14.0, 4.0), 2.0, Some(100.0)),
            // Nothing has happened.
            ((10.0, 100.0, 8.0, 2.0), (11.0, 100.0, 8.0, 2.0), 1.0, Some(0.0)),
            // The node was paused: the mean of all that time.
            ((10.0, 100.0, 8.0, 2.0), (60.0, 600.0, 8.0, 2.0), 50.0, Some(10.0)),
            // The process was started again, and has counted less, or more, than the one before.
            ((10.0, 100.0, 8.0, 2.0), (1.0, 3.0, 0.0, 0.0), 1.0, None),
            ((10.0, 100.0, 8.0, 2.0), (9.0, 900.0, 9.0, 9.0), 20.0, None),
            ((10.0, 100.0, 8.0, 2.0), (30.0, 50.0, 9.0, 9.0), 20.0, None),
            ((10.0, 100.0, 8.0, 2.0), (30.0, 900.0, 7.0, 9.0), 20.0, None),
            // Both answers are of the same moment.
            ((10.0, 100.0, 8.0, 2.0), (10.0, 101.0, 8.0, 2.0), 0.0, None),
        ];
        for (before, now, secs, expected) in cases {
            let of = |(uptime, committed, own, far)| sample(uptime, committed, own, far);
            let rates = Rates::between(&of(before), &of(now), secs);
            assert_eq!(rates.map(|rates| rates.committed), expected, "{before:?} {now:?}");
        }
        let (before, now) = (sample(1.0, 0.0, 8.0, 2.0), sample(3.0, 0.0, 14.0, 4.0));
        let rates = Rates::between(&before, &now, 2.0).expect("one process");
        assert_eq!((rates.locks, rates.own_locks), (4.0, Some(0.75)));
    }

    #[test]
    fn aborts_of_a_new_reason_count_from_zero() {
        let with = |uptime_s, aborts: &[(&str, f64)]| {
            let aborts = aborts.iter().map(|(reason, count)| ((*reason).to_owned(), *count));
            Sample { uptime_s, aborts: aborts.collect(), ..Sample::default() }
        };
        let before = with(1.0, &[("conflict", 10.0)]);
        let now = with(2.0, &[("conflict", 14.0), ("timeout", 2.0)]);
        let rates = Rates::between(&before, &now, 2.0).expect("one process");
        let found: Vec<_> = rates.aborts.iter().map(|(reason, rate)| (&**reason, *rate)).collect();
        assert_eq!(found, [("conflict", 2.0), ("timeout", 1.0)]);
        assert!((rates.all_aborts() - 3.0).abs() < 1e-9);
        assert_eq!(Rates::between(&now, &with(3.0, &[("conflict", 1.0)]), 1.0), None);
    }

    #[test]
    fn latencies_of_the_interval_are_those_that_came_since() {
        let before = [(0.001, 50.0), (0.01, 60.0), (f64::INFINITY, 60.0)];
        let now = [(0.001, 60.0), (0.01, 160.0), (f64::INFINITY, 161.0)];
        let found = latencies(&before, &now).expect("same bounds");
        assert_eq!(found, [(0.001, 10.0), (0.01, 90.0), (f64::INFINITY, 1.0)]);
        assert_eq!(latencies(&now, &before), None, "it began again");
        assert_eq!(latencies(&before[..2], &now), None, "other bounds");
        let mut sum = Vec::new();
        add(&mut sum, &found);
        add(&mut sum, &found);
        add(&mut sum, &found[..1]);
        assert_eq!(sum, [(0.001, 20.0), (0.01, 180.0), (f64::INFINITY, 2.0)]);
    }

    #[test]
    fn quantiles_lie_within_their_bucket() {
        let counts = [(0.001, 50.0), (0.002, 40.0), (0.005, 10.0), (f64::INFINITY, 0.0)];
        let cases = [(0.25, 0.0005), (0.5, 0.001), (0.7, 0.0015), (0.95, 0.0035), (1.0, 0.005)];
        for (share, expected) in cases {
            let found = quantile(&counts, share).expect("there are some");
            assert!((found - expected).abs() < 1e-9, "{share}: {found}");
        }
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[(1.0, 0.0)], 0.5), None);
        assert_eq!(quantile(&[(5.0, 0.0), (f64::INFINITY, 3.0)], 0.5), Some(5.0));
    }
}
