//! The spread of measurements: latencies of one run in buckets, and results of several runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::report::{Report, grouped};

/// Buckets of each power of two: a bucket's width is at most an eighth of its lower bound.
const STEPS: u64 = 8;

/// Transactions with latencies in one range.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Bucket {
    /// Lower bound, in microseconds; the upper bound is the lower bound of the next bucket of its
    /// scale.
    pub from_us: f64,
    /// Number of transactions.
    pub count: u64,
}

/// Latencies, in nanoseconds, as buckets of [`STEPS`] for each power of two, without empty buckets.
pub(super) fn buckets(latency_ns: &Histogram<u32>) -> Vec<Bucket> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for recorded in latency_ns.iter_recorded() {
        let from = lower_bound(latency_ns.lowest_equivalent(recorded.value_iterated_to()));
        *counts.entry(from).or_default() += u64::from(recorded.count_at_value());
    }
    let bucket = |(from, count)| Bucket { from_us: from as f64 / 1e3, count };
    counts.into_iter().map(bucket).collect()
}

/// Lower bound of the bucket that contains `value`.
const fn lower_bound(value: u64) -> u64 {
    match value / STEPS {
        0 => value,
        beyond => {
            let shift = beyond.ilog2();
            value >> shift << shift
        }
    }
}

/// Results of several runs that differ in their seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Repeated {
    /// Number of runs.
    pub runs: usize,
    /// Committed transactions a second.
    pub throughput_tps: Quartiles,
    /// Aborted attempts among all attempts, in 0..=1.
    pub abort_rate: Quartiles,
    /// Medians of the latency, in microseconds.
    pub p50_us: Quartiles,
    /// 99th percentiles of the latency, in microseconds.
    pub p99_us: Quartiles,
}

/// Five numbers that sum up a sample.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Quartiles {
    /// Least value.
    pub least: f64,
    /// A quarter of the values is below this number.
    pub lower: f64,
    /// Half of the values is below this number.
    pub median: f64,
    /// Three quarters of the values are below this number.
    pub upper: f64,
    /// Greatest value.
    pub most: f64,
}

impl Quartiles {
    /// Sums up the values, interpolated between neighbours; zeroes without values.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |quantile: f64| {
            let place = quantile * sorted.len().saturating_sub(1) as f64;
            let [below, above] = [place.floor(), place.ceil()]
                .map(|place| sorted.get(place as usize).copied().unwrap_or_default());
            below + (above - below) * place.fract()
        };
        Self { least: at(0.0), lower: at(0.25), median: at(0.5), upper: at(0.75), most: at(1.0) }
    }

    fn row(self, show: impl Fn(f64) -> String) -> [String; 5] {
        [self.median, self.lower, self.upper, self.least, self.most].map(show)
    }
}

impl Repeated {
    /// Sums up the runs of a benchmark.
    pub fn new(runs: &[Report]) -> Self {
        let of = |value: &dyn Fn(&Report) -> f64| Quartiles::of(runs.iter().map(value));
        Self {
            runs: runs.len(),
            throughput_tps: of(&|run| run.total.throughput_tps),
            abort_rate: of(&|run| run.total.abort_rate),
            p50_us: of(&|run| run.total.latency_us.p50),
            p99_us: of(&|run| run.total.latency_us.p99),
        }
    }

    /// Formats the summary for display; ends with a line break.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        let columns =
            ["of the runs", "median", "lower quartile", "upper quartile", "least", "most"];
        table.load_preset(presets::ASCII_MARKDOWN).set_header(columns);
        let us = |us: f64| format!("{us:.1}");
        let rows = [
            ("txn/s", self.throughput_tps.row(|tps| grouped(tps as u64))),
            ("aborts %", self.abort_rate.row(|rate| format!("{:.2}", rate * 100.0))),
            ("p50 us", self.p50_us.row(us)),
            ("p99 us", self.p99_us.row(us)),
        ];
        for (what, values) in rows {
            table.add_row([what.to_owned()].into_iter().chain(values));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{} runs\n\n{table}", self.runs);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_an_eighth_of_a_power_of_two() {
        let cases = [(0, 0), (7, 7), (8, 8), (15, 15), (16, 16), (17, 16), (31, 30), (1000, 960)];
        for (value, from) in cases {
            assert_eq!(lower_bound(value), from, "{value}");
        }
        assert_eq!(lower_bound(u64::MAX), 15 << 60);
    }

    #[test]
    fn every_latency_is_in_one_bucket() {
        let mut latency_ns =
            Histogram::<u32>::new_with_bounds(1, 60_000_000_000, 2).expect("sound");
        assert_eq!(buckets(&latency_ns), []);
        for value in [3, 1_000, 1_010, 7_000_000] {
            latency_ns.record(value).expect("within bounds");
        }
        let expected = [(0.003, 1), (0.96, 2), (6_815.744, 1)];
        let expected = expected.map(|(from_us, count)| Bucket { from_us, count });
        assert_eq!(buckets(&latency_ns), expected);
    }

    #[test]
    fn quartiles_are_between_the_values() {
        let of = |values: &[f64]| Quartiles::of(values.iter().copied());
        let five =
            |least, lower, median, upper, most| Quartiles { least, lower, median, upper, most };
        assert_eq!(of(&[]), five(0.0, 0.0, 0.0, 0.0, 0.0));
        assert_eq!(of(&[3.0]), five(3.0, 3.0, 3.0, 3.0, 3.0));
        assert_eq!(of(&[4.0, 2.0]), five(2.0, 2.5, 3.0, 3.5, 4.0));
        assert_eq!(of(&[5.0, 1.0, 4.0, 2.0, 3.0]), five(1.0, 2.0, 3.0, 4.0, 5.0));
    }
}
