//! A running benchmark as an observer sees it, interval by interval.
//!
//! # Cost
//! Counts are kept only if [`Progress`](super::progress::Progress) was asked to. Each coordinator
//! then has counters of its own, written with plain stores, and the observer reads the counters at
//! any time: counts may lag, and never slow down the run. Two readings make a [`LiveFrame`].
//!
//! # Latencies
//! Latencies fall into buckets, sixteen per power of two, so that a quantile is precise to 6 %.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::contract::deployment::{Activity, Hits};
use crate::contract::engine::AbortReason;

/// Bits of a latency that select a bucket within a power of two.
const FINE_BITS: u32 = 4;
const FINE: usize = 1 << FINE_BITS;
/// Powers of two with buckets of their own; the last bucket holds all latencies above a minute.
const POWERS: usize = 34;
const BUCKETS: usize = FINE * POWERS;

/// Counters of a coordinator, written only by the coordinator's thread.
#[repr(align(128))]
pub(super) struct Counters {
    aborted: [AtomicU64; AbortReason::ALL.len()],
    latencies: Box<[AtomicU64]>,
    activity: [AtomicU64; 7],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            aborted: Default::default(),
            latencies: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            activity: Default::default(),
        }
    }
}

impl Counters {
    /// Counts a latency.
    pub(super) fn note_latency(&self, ns: u64) {
        add(&self.latencies[bucket(ns)]);
    }

    /// Counts an aborted attempt.
    pub(super) fn note_abort(&self, reason: AbortReason) {
        add(&self.aborted[reason.index()]);
    }

    /// Replaces the coordinator's own counts.
    pub(super) fn set_activity(&self, now: &Activity) {
        let Activity { caches, locks, shards } = now;
        let hits = [caches.version_tables, caches.addresses, *locks];
        let [tables, addresses, locks] = hits.map(|one| [one.lookups, one.hits]);
        let all = tables.into_iter().chain(addresses).chain(locks).chain([*shards]);
        self.activity.iter().zip(all).for_each(|(at, now)| at.store(now, Ordering::Relaxed));
    }

    /// Adds the counts to a reading.
    pub(super) fn read_into(&self, reading: &mut Reading) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |into: &mut [u64], from: &[AtomicU64]| {
            into.iter_mut().zip(from).for_each(|(sum, counter)| *sum += load(counter));
        };
        sum(&mut reading.aborted, &self.aborted);
        sum(&mut reading.latencies, &self.latencies);
        sum(&mut reading.activity, &self.activity);
    }
}

/// Adds one without locking the bus: with one writer, no count is lost between load and store.
fn add(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Bucket of a latency.
fn bucket(ns: u64) -> usize {
    let power = (u64::BITS - ns.leading_zeros()).saturating_sub(FINE_BITS + 1);
    let fine = (ns >> power) as usize & (FINE - 1);
    let above = usize::from(ns >= FINE as u64);
    ((power as usize + above) * FINE + fine).min(BUCKETS - 1)
}

/// Middle of a bucket, in nanoseconds.
fn middle(bucket: usize) -> f64 {
    let (row, fine) = (bucket / FINE, bucket % FINE);
    match row {
        0 => fine as f64,
        _ => {
            let width = (1_u64 << (row - 1)) as f64;
            (FINE + fine) as f64 * width + width / 2.0
        }
    }
}

/// Counts of all coordinators at a point in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Operations done so far.
    pub(super) done: u64,
    /// Time of the run's last event, and start and end of its load, in nanoseconds of its clock.
    pub(super) now_ns: u64,
    pub(super) span: Option<(u64, u64)>,
    /// Name of the phase.
    pub(super) phase: &'static str,
    pub(super) aborted: [u64; AbortReason::ALL.len()],
    pub(super) latencies: Vec<u64>,
    pub(super) activity: [u64; 7],
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            done: 0,
            now_ns: 0,
            span: None,
            phase: "",
            aborted: [0; AbortReason::ALL.len()],
            latencies: vec![0; BUCKETS],
            activity: [0; 7],
        }
    }
}

/// Clock by which rates are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiveClock {
    /// The observer's clock: this many nanoseconds have passed between two readings.
    Real(u64),
    /// Simulated time, taken from the readings.
    Virtual,
}

/// Activity of a benchmark in an interval. One line of JSON per frame.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LiveFrame {
    /// Benchmark, such as `smallbank`.
    pub bench: String,
    /// Fabric of the benchmark.
    pub fabric: String,
    /// Unit of the clients' counts: committed, or released.
    pub counted: String,
    /// Phase of the run, in words.
    pub phase: String,
    /// Whether the times of this frame are simulated.
    pub is_virtual: bool,
    /// Time since the load began, warm-up included, in seconds.
    pub elapsed_s: f64,
    /// Time until the load ends, in seconds.
    pub left_s: f64,
    /// Transactions, or uses of locks, since the start.
    pub done: u64,
    /// Transactions, or uses of locks, a second in the interval.
    pub per_s: f64,
    /// Median of the interval's latencies, in microseconds, if there were any.
    pub p50_us: Option<f64>,
    /// 99th percentile of the interval's latencies, in microseconds.
    pub p99_us: Option<f64>,
    /// Aborted attempts of the interval, a second, by reason.
    pub aborts_per_s: BTreeMap<String, f64>,
    /// Whether aborts are counted here; aborts of application load are counted at compute nodes.
    pub has_aborts: bool,
    /// Shards that compute nodes gave away since the start.
    pub shards_moved: u64,
    /// Hit rates of the interval: share of look-ups that found an entry, by cache, and share of
    /// locks owned by the node itself. Entries without look-ups are missing.
    pub hits: BTreeMap<String, f64>,
}

/// The parts of a frame that describe the benchmark as a whole.
#[derive(Clone, Debug)]
pub struct LiveTitle {
    /// See [`LiveFrame::bench`].
    pub bench: String,
    /// See [`LiveFrame::fabric`].
    pub fabric: String,
    /// See [`LiveFrame::counted`].
    pub counted: &'static str,
    /// See [`LiveFrame::has_aborts`].
    pub has_aborts: bool,
}

impl LiveFrame {
    /// Returns the activity between two readings.
    pub fn between(title: &LiveTitle, before: &Reading, now: &Reading, clock: LiveClock) -> Self {
        let passed_ns = match clock {
            LiveClock::Real(ns) => ns,
            LiveClock::Virtual => now.now_ns.saturating_sub(before.now_ns),
        };
        let a_second = |count: u64| match passed_ns {
            0 => 0.0,
            ns => count as f64 * 1e9 / ns as f64,
        };
        let since = |now: &[u64], before: &[u64]| -> Vec<u64> {
            now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before)).collect()
        };
        let latencies = since(&now.latencies, &before.latencies);
        let aborted = since(&now.aborted, &before.aborted);
        let aborts = AbortReason::ALL.iter().zip(aborted).filter(|(_, count)| *count > 0);
        let (from, until) = now.span.unwrap_or_default();
        let elapsed = now.now_ns.max(from).min(until) - from;
        let seconds = |ns: u64| ns as f64 / 1e9;
        let us = |share| quantile(&latencies, share).map(|ns| ns / 1e3);
        Self {
            bench: title.bench.clone(),
            fabric: title.fabric.clone(),
            counted: title.counted.to_owned(),
            phase: now.phase.to_owned(),
            is_virtual: clock == LiveClock::Virtual,
            elapsed_s: seconds(elapsed),
            left_s: seconds(until - from - elapsed),
            done: now.done,
            per_s: a_second(now.done.saturating_sub(before.done)),
            p50_us: us(0.5),
            p99_us: us(0.99),
            aborts_per_s: aborts
                .map(|(reason, count)| (reason.name().to_owned(), a_second(count)))
                .collect(),
            has_aborts: title.has_aborts,
            shards_moved: now.activity[6],
            hits: hits(&since(&now.activity, &before.activity)),
        }
    }
}

/// Shares of look-ups that found an entry, by kind of look-up.
fn hits(activity: &[u64]) -> BTreeMap<String, f64> {
    let pairs = activity.chunks_exact(2).map(|pair| Hits { lookups: pair[0], hits: pair[1] });
    let named = ["version tables", "addresses", "own locks"].into_iter().zip(pairs);
    let asked = named.filter(|(_, hits)| hits.lookups > 0);
    asked.map(|(name, hits)| (name.to_owned(), hits.hits as f64 / hits.lookups as f64)).collect()
}

/// Latency that the given share of all latencies does not exceed, in nanoseconds.
fn quantile(latencies: &[u64], share: f64) -> Option<f64> {
    let all: u64 = latencies.iter().sum();
    let wanted = (all as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    let reaches = |count: &u64| {
        seen += count;
        seen >= wanted
    };
    latencies.iter().position(reaches).map(middle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::deployment::Caches;

    #[test]
    fn every_latency_is_close_to_the_middle_of_its_bucket() {
        let mut before = 0;
        for ns in (0..2_000).chain((11..36).flat_map(|power| [1 << power, (1 << power) + 12_345])) {
            let at = bucket(ns);
            let error = (middle(at) - ns as f64).abs();
            assert!(error <= ns as f64 / 16.0, "{ns} is in bucket {at} at {}", middle(at));
            if ns < 2_000 {
                assert!(at >= before, "{ns}");
                before = at;
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert!(middle(BUCKETS - 1) > 60e9);
    }

    #[test]
    fn quantiles_are_those_of_the_buckets() {
        let mut latencies = vec![0; BUCKETS];
        assert_eq!(quantile(&latencies, 0.5), None);
        latencies[3] = 99;
        latencies[9] = 1;
        assert_eq!(quantile(&latencies, 0.5), Some(3.0));
        assert_eq!(quantile(&latencies, 0.99), Some(3.0));
        assert_eq!(quantile(&latencies, 1.0), Some(9.0));
    }

    fn title() -> LiveTitle {
        let (bench, fabric) = ("kvs".to_owned(), "local".to_owned());
        LiveTitle { bench, fabric, counted: "committed", has_aborts: true }
    }

    #[test]
    fn a_frame_has_the_rates_of_its_interval() {
        let counters = Counters::default();
        let read = |done, now_ns| {
            let span = Some((1_000_000_000, 5_000_000_000));
            let mut reading =
                Reading { done, now_ns, span, phase: "running", ..Reading::default() };
            counters.read_into(&mut reading);
            reading
        };
        counters.note_latency(5_000);
        counters.note_abort(AbortReason::Conflict);
        let before = read(10, 1_500_000_000);
        (0..50).for_each(|_| counters.note_latency(10_000));
        (0..4).for_each(|_| counters.note_abort(AbortReason::InDoubt));
        let own = Hits { lookups: 8, hits: 6 };
        let caches = Caches { addresses: own, ..Caches::default() };
        counters.set_activity(&Activity { caches, locks: own, shards: 3 });
        let now = read(60, 2_000_000_000);
        let frame = LiveFrame::between(&title(), &before, &now, LiveClock::Real(250_000_000));
        assert!((frame.per_s - 200.0).abs() < 1e-9, "{frame:?}");
        assert!(frame.p50_us.is_some_and(|us| (us - 10.0).abs() < 0.7), "{frame:?}");
        assert_eq!(frame.aborts_per_s, BTreeMap::from([("in_doubt".to_owned(), 16.0)]));
        assert_eq!((frame.elapsed_s, frame.left_s, frame.shards_moved), (1.0, 3.0, 3));
        let names: Vec<_> = frame.hits.keys().map(String::as_str).collect();
        assert_eq!(names, ["addresses", "own locks"]);
        let simulated = LiveFrame::between(&title(), &before, &now, LiveClock::Virtual);
        assert!(simulated.is_virtual && (simulated.per_s - 100.0).abs() < 1e-9, "{simulated:?}");
        let json = serde_json::to_string(&frame).expect("numbers and strings");
        assert_eq!(serde_json::from_str::<LiveFrame>(&json).expect("its own"), frame);
    }

    #[test]
    fn an_interval_without_time_or_work_has_no_rates() {
        let idle = Reading::default();
        let frame = LiveFrame::between(&title(), &idle, &idle, LiveClock::Virtual);
        assert_eq!((frame.per_s, frame.p50_us, frame.p99_us), (0.0, None, None));
        assert_eq!((frame.elapsed_s, frame.left_s), (0.0, 0.0));
        assert!(frame.aborts_per_s.is_empty() && frame.hits.is_empty());
    }
}
