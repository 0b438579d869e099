//! From reports to rows: best loads of points, ratios, and verdicts.
//!
//! Pure.

use serde_json::{Value, json};

use super::file::{ClosedLoops, Figure, Point, Ratio, Series};
use crate::figures::experiment::Length;
use crate::figures::judge::Judged;
use crate::figures::observed::Observed;
use crate::figures::timeline::jumps;

/// A point, measured at its loads.
pub(super) struct SeriesRow<'a> {
    pub series: &'a Series,
    pub point: &'a Point,
    /// Results by load, in ascending order; the number is the index among all results.
    pub curve: Vec<(Option<ClosedLoops>, usize, &'a Observed)>,
    /// Index of the largest throughput in the curve.
    best: usize,
    /// Ratio of this point's compared quantity to the other point's.
    pub ratio: f64,
    pub judged: Option<Judged>,
    /// Ratios of this point's latencies to the other point's: median and 99th percentile.
    pub latencies: [f64; 2],
}

/// Name of a measurement.
pub(super) fn label(series: &Series, point: &Point, load: Option<ClosedLoops>) -> String {
    let load = load.map_or_else(String::new, |load| format!(", {}", String::from(load)));
    format!("{}, {}{load}", series.name, point.label)
}

/// The rows of a figure. `observed` has the results of the figure's tasks, in order.
pub(super) fn rows<'a>(
    figure: &'a Figure,
    length: Length,
    observed: &'a [Observed],
) -> Vec<SeriesRow<'a>> {
    let mut rows = Vec::new();
    let mut results = observed.iter().enumerate();
    for series in &figure.series {
        let loads = figure.loads(series, length);
        let first = rows.len();
        for point in &series.points {
            let curve: Vec<_> = (loads.iter().zip(results.by_ref()))
                .map(|(load, (place, observed))| (*load, place, observed))
                .collect();
            let tps = |at: &usize| curve[*at].2.throughput_tps;
            let best = (0..curve.len()).max_by(|one, other| tps(one).total_cmp(&tps(other)));
            let best = best.unwrap_or(0);
            let (ratio, latencies) = (f64::NAN, [f64::NAN; 2]);
            rows.push(SeriesRow { series, point, curve, best, ratio, judged: None, latencies });
        }
        compare(figure, series, &mut rows[first..]);
    }
    rows
}

/// Sets the ratios of the rows of a series.
fn compare(figure: &Figure, series: &Series, rows: &mut [SeriesRow<'_>]) {
    let values = |row: &SeriesRow<'_>| {
        let best = row.best();
        [figure.compares.of(best), best.latency_us.p50, best.latency_us.p99]
    };
    let all: Vec<_> = rows.iter().map(values).collect();
    for (row, ours) in rows.iter_mut().zip(&all) {
        let base = all[series.base(row.point)];
        let [ratio, p50, p99] = [0, 1, 2].map(|at| ours[at] / base[at]);
        (row.ratio, row.latencies) = (ratio, [p50, p99]);
        let judge = |published| Judged::new(ratio, published, figure.band(row.point, published));
        row.judged = row.point.published.map(judge);
    }
}

/// A published ratio beside our ratio.
pub(super) struct Multiple<'a> {
    pub ratio: &'a Ratio,
    /// Series of our ratio.
    pub series: &'a str,
    /// Rank of our ratio among the series: empty, `least` or `most`.
    pub which: &'static str,
    pub judged: Judged,
}

/// The ratios in the `ratios` of a figure.
pub(super) fn multiples<'a>(figure: &'a Figure, rows: &[SeriesRow<'a>]) -> Vec<Multiple<'a>> {
    let found = |series: &Series, label: &str| {
        let is_it =
            |row: &&SeriesRow<'_>| row.series.name == series.name && row.point.label == label;
        rows.iter().find(is_it).map_or(f64::NAN, |row| figure.compares.of(row.best()))
    };
    let mut all = Vec::new();
    for ratio in &figure.ratios {
        let series = figure.series.iter().filter(|series| ratio.is_of(series));
        let of =
            |one: &'a Series| (one.name.as_str(), found(one, &ratio.of) / found(one, &ratio.over));
        let mut ours: Vec<_> = series.map(of).collect();
        ours.sort_by(|one, other| one.1.total_cmp(&other.1));
        let ends = [(ratio.value, "", ours.first()), (ratio.least, "least", ours.first())];
        let ends = ends.into_iter().chain([(ratio.most, "most", ours.last())]);
        for (published, which, ours) in ends {
            if let (Some(published), Some((series, ours))) = (published, ours) {
                let judged = Judged::new(*ours, published, figure.band_around(published));
                all.push(Multiple { ratio, series, which, judged });
            }
        }
    }
    all
}

impl Multiple<'_> {
    /// Whether the ratio was once in its band and no longer is.
    pub(super) fn has_fallen(&self) -> bool {
        self.ratio.accepted && !self.judged.in_band
    }

    pub(super) fn label(&self) -> String {
        let Self { ratio, series, which, .. } = self;
        format!("{series}, {} over {} {which}", ratio.of, ratio.over).trim_end().to_owned()
    }

    pub(super) fn json(&self, figure: &str) -> Value {
        let Self { ratio, series, which, judged } = self;
        json!({
            "figure": figure,
            "series": series,
            "of": ratio.of,
            "over": ratio.over,
            "which": which,
            "judged": judged,
        })
    }
}

impl SeriesRow<'_> {
    /// The result at the load with the largest throughput.
    pub(super) fn best(&self) -> &Observed {
        self.curve[self.best].2
    }

    /// Transactions in flight on the whole cluster at that load.
    pub(super) fn concurrency(&self) -> usize {
        self.best().concurrency()
    }

    pub(super) fn label(&self) -> String {
        label(self.series, self.point, None)
    }

    /// Whether the ratio is in its band; `None` without a published value.
    pub(super) fn in_band(&self) -> Option<bool> {
        self.judged.map(|judged| judged.in_band)
    }

    /// Whether the ratio was once in its band and no longer is.
    pub(super) fn has_fallen(&self) -> bool {
        self.point.accepted && self.in_band() == Some(false)
    }

    /// Whether all audits passed.
    pub(super) fn is_sound(&self) -> bool {
        self.curve.iter().all(|(_, _, observed)| observed.is_sound())
    }

    /// Our and the published latency ratios: median and 99th percentile.
    pub(super) fn published_latencies(&self) -> [Option<(f64, f64)>; 2] {
        let Point { published_p50, published_p99, .. } = self.point;
        [0, 1].map(|at| [*published_p50, *published_p99][at].map(|one| (self.latencies[at], one)))
    }

    /// The row as JSON, with the report of its best load.
    pub(super) fn json(&self, figure: &str, results: &[Value]) -> Value {
        let Self { series, point, .. } = self;
        let jumps = self.best().jumping().map_or_else(Vec::new, |(times, s)| jumps(&times, s));
        let at = |(load, _, observed): &(Option<ClosedLoops>, usize, &Observed)| {
            json!({
                "load": load,
                "concurrency": observed.concurrency(),
                "throughput_tps": observed.throughput_tps,
                "p50_us": observed.latency_us.p50,
                "p99_us": observed.latency_us.p99,
                "abort_rate": observed.abort_rate,
            })
        };
        let mut row = json!({
            "figure": figure,
            "series": series.name,
            "label": point.label,
            "ratio": self.ratio,
            "report": results[self.curve[self.best].1],
        });
        let mut add = |key: &str, value: Value| {
            let is_there = !value.is_null() && value != json!([]);
            if let (true, Some(row)) = (is_there, row.as_object_mut()) {
                row.insert(key.to_owned(), value);
            }
        };
        add("engine", json!(point.engine));
        add("against", json!(point.against));
        add("published", json!(point.published));
        add("judged", json!(self.judged));
        add("published_p50", json!(point.published_p50));
        add("published_p99", json!(point.published_p99));
        add("published_aborts", json!(point.published_aborts));
        add("published_interruption_us", json!(point.published_interruption_us));
        add("jumps", json!(jumps));
        if !series.sweep.is_empty() {
            add("curve", self.curve.iter().map(at).collect());
        }
        row
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A swept series of two engines, and one series without a sweep.
    pub(in crate::figures::transactions) const FILE: &str = "
title = 'Engines'
source = 'a paper'
[[series]]
name = 'bank'
bench = 'smallbank'
sweep = ['1x1', '10x6']
[[series.points]]
label = 'Other'
flags = '--locks cas'
[[series.points]]
label = 'Ours'
published = 2.1
published-p50 = 0.5
accepted = true
[[series]]
name = 'store'
bench = 'kvs'
[[series.points]]
label = 'off'
[[series.points]]
label = 'more'
against = 'on'
published = 0.5
band = [0.1, 0.2]
[[series.points]]
label = 'on'
";

    /// A report in which this much is measured.
    pub(in crate::figures::transactions) fn report(tps: f64, p50: f64, passed: bool) -> Value {
        json!({
            "throughput_tps": tps,
            "abort_rate": 0.25,
            "latency_us": { "p50": p50, "p99": p50 * 4.0 },
            "committed": 100,
            "all_committed": 200,
            "verbs_per_txn": { "read": 1.0, "write": 2.0, "compare_and_swap": 0.5,
                               "fetch_and_add": 0.0 },
            "audit": { "outcome": if passed { "passed" } else { "failed" } },
            "simulation": {
                "bottleneck": { "resource": "atomic unit of node 1", "busy": 0.987 },
                "nodes": [
                    { "kind": "memory", "reads": 9, "writes": 9, "compare_and_swaps": 0,
                      "fetch_and_adds": 0 },
                    { "kind": "memory", "reads": 100, "writes": 200, "compare_and_swaps": 100,
                      "fetch_and_adds": 0 },
                    { "kind": "compute", "reads": 0, "writes": 0, "compare_and_swaps": 500,
                      "fetch_and_adds": 0 },
                ],
            },
            "config": { "cns": 9, "threads": 2, "coroutines": 3 },
        })
    }

    pub(in crate::figures::transactions) fn results() -> Vec<Value> {
        let tps = [(10.0, 4.0), (8.0, 9.0), (12.0, 3.0), (20.0, 2.0)];
        let bank = tps.map(|(tps, p50)| report(tps, p50, true));
        let store = [(5.0, true), (1.0, false), (8.0, true)];
        let store = store.map(|(tps, passed)| report(tps, 1.0, passed));
        bank.into_iter().chain(store).collect()
    }

    #[test]
    fn each_point_is_judged_at_its_own_best_load() {
        let figure = Figure::parse(FILE).expect("sound");
        let results = results();
        let observed: Vec<_> = results.iter().map(|r| Observed::of(r).expect("a report")).collect();
        let rows = rows(&figure, Length::Full, &observed);
        let tps: Vec<_> = rows.iter().map(|row| row.best().throughput_tps).collect();
        assert_eq!(tps, [10.0, 20.0, 5.0, 1.0, 8.0]);
        let ratios: Vec<_> = rows.iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [1.0, 2.0, 1.0, 0.125, 1.6]);
        let in_band: Vec<_> = rows.iter().map(SeriesRow::in_band).collect();
        assert_eq!(in_band, [None, Some(true), None, Some(true), None]);
        assert_eq!(rows[1].published_latencies(), [Some((0.5, 0.5)), None]);
        assert!(rows.iter().all(|row| !row.has_fallen()));
        let sound: Vec<_> = rows.iter().map(SeriesRow::is_sound).collect();
        assert_eq!(sound, [true, true, true, false, true]);
        assert_eq!(observed[0].busiest_memory_node(), Some([0.5, 2.0]));
        assert_eq!(rows[0].concurrency(), 54);
        let json = rows[1].json("engines", &results);
        assert_eq!(json["report"]["throughput_tps"], 20.0);
        assert_eq!(json["curve"][0]["load"], "1x1");
        assert_eq!(
            (&json["judged"]["in_band"], &json["published_p99"]),
            (&json!(true), &Value::Null)
        );
        assert!(rows[2].json("engines", &results).get("curve").is_none());
    }

    #[test]
    fn multiples_are_of_one_series_or_the_ends_of_all() {
        let ratios = "
[[ratios]]
of = 'A'
over = 'B'
least = 0.2
most = 5.0
accepted = true
[[ratios]]
series = 'two'
of = 'B'
over = 'A'
value = 0.5
";
        let point = |label: &str| format!("[[series.points]]\nlabel = '{label}'\n");
        let series = |name: &str| {
            format!("[[series]]\nname = '{name}'\nbench = 'kvs'\n{}{}", point("A"), point("B"))
        };
        let text = format!("title = 'a'\nsource = 'b'\n{}{}{ratios}", series("one"), series("two"));
        let figure = Figure::parse(&text).expect("sound");
        let results = [1.0, 5.0, 4.0, 2.0].map(|tps| report(tps, 1.0, true));
        let observed: Vec<_> = results.iter().map(|r| Observed::of(r).expect("a report")).collect();
        let rows = rows(&figure, Length::Full, &observed);
        let multiples = multiples(&figure, &rows);
        let ours = |one: &Multiple<'_>| (one.label(), one.judged.ours, one.judged.in_band);
        let ours: Vec<_> = multiples.iter().map(ours).collect();
        let expected = [
            ("one, A over B least", 0.2, true),
            ("two, A over B most", 2.0, false),
            ("two, B over A", 0.5, true),
        ];
        assert_eq!(ours, expected.map(|(label, ours, is)| (label.to_owned(), ours, is)));
        let fallen: Vec<_> = multiples.iter().map(Multiple::has_fallen).collect();
        assert_eq!(fallen, [false, true, false]);
        assert_eq!(multiples[2].json("f")["judged"]["published"], 0.5);
    }

    #[test]
    fn an_accepted_ratio_that_leaves_its_band_has_fallen() {
        let figure = Figure::parse(FILE).expect("sound");
        let mut results = results();
        results[3]["throughput_tps"] = json!(17.0);
        let observed: Vec<_> = results.iter().map(|r| Observed::of(r).expect("a report")).collect();
        let fallen: Vec<_> =
            rows(&figure, Length::Full, &observed).iter().map(SeriesRow::has_fallen).collect();
        assert_eq!(fallen, [false, true, false, false, false]);
    }
}
