//! Experiments with lock systems, without transactions, each a file in `lab/cli/figures/locks`.
//!
//! An experiment sweeps one flag of `lotus-lab bench locks`, `tree`, `lock-trace` or `bank`, for
//! some series, on the simulated testbed of its paper. Published results are values of the
//! experiment's measures, ratios between two points, or only an order, which the file's remarks
//! state. The remarks also name the bottleneck of points that differ: the results of a point
//! include the busiest resource.
//!
//! `measures`: the quantities; `lines`: command lines of points.

mod lines;
mod measures;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::command::CommandLine;
use super::experiment::{Block, Experiment, Findings, Length, Tally, Task};
use super::grid::Grid;
use super::judge::{Band, Judged, WITHIN, off, yes_no};
use super::plot::{Line, Plot};
use super::transactions::of_toml;
use crate::bench;
use lines::{Bench, BenchLine};
use measures::Measure;

macro_rules! files {
    ($($name:literal)*) => {
        /// All experiments: names, and contents of their files.
        pub(super) const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../figures/locks/", $name, ".toml"))),)*];
    };
}

files! {
    "shiftlock-one-lock"
    "shiftlock-workloads"
    "shiftlock-verbs"
    "shiftlock-clients"
    "shiftlock-breakdown"
    "shiftlock-threshold"
    "shiftlock-failures"
    "fisslock-grant"
    "fisslock-throughput"
    "fisslock-tatp"
    "fisslock-tpcc"
    "fisslock-granularity"
    "fisslock-scale"
    "fisslock-dynamic"
    "fisslock-bank"
    "fisslock-recovery"
    "shiftlock-2pl"
    "shiftlock-2pl-tatp"
    "shiftlock-bank"
    "declock-clients"
    "declock-length"
    "declock-reads"
    "declock-locks"
    "declock-policies"
    "declock-refetch"
    "declock-capacity"
    "declock-reset"
    "declock-failures"
    "declock-far"
    "declock-store"
    "declock-tree"
    "dslr-backoff"
    "dslr-lease"
    "dslr-multi-slot"
    "dslr-polling"
    "dslr-skew"
    "dslr-tpcc"
    "dslr-nodes"
    "dslr-long-reads"
}

/// A lock experiment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockFigure {
    /// Headline.
    title: String,
    /// Place of publication.
    source: String,
    /// Published claims that are not numbers, and reasons for differing results.
    remarks: String,
    /// Benchmark of the points.
    #[serde(default)]
    bench: Bench,
    /// Flags common to all points: the paper's testbed and load.
    testbed: String,
    /// Quantity that varies over the points, and its unit.
    sweep: String,
    /// Measure to plot.
    drawn: Measure,
    /// Measures shown for each point.
    #[serde(default = "usual")]
    measures: Vec<Measure>,
    series: Vec<LockSeries>,
    points: Vec<LockPoint>,
    /// Published values of points.
    #[serde(default)]
    published: Vec<Published>,
    /// Published ratios of two points.
    #[serde(default)]
    ratios: Vec<Ratio>,
}

fn usual() -> Vec<Measure> {
    Measure::USUAL.into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockSeries {
    name: String,
    flags: String,
    /// Labels of the series' points; `None` for all points.
    at: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockPoint {
    label: String,
    /// Flags of this point only.
    #[serde(default)]
    flags: String,
}

/// A published value, of one point, or of all points of a series.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    series: String,
    point: Option<String>,
    measure: Measure,
    value: f64,
}

/// A published ratio.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    measure: Measure,
    /// Series and point. [`MOST`] or [`LEAST`] in place of both points: the greatest or the least
    /// ratio over all points.
    of: [String; 2],
    over: [String; 2],
    value: f64,
}

/// Names of the greatest and the least ratio over all points.
const MOST: &str = "most";
const LEAST: &str = "least";

impl Ratio {
    /// Whether the ratio is the greatest or the least over all points.
    fn is_over_all(&self) -> bool {
        self.of[1] == self.over[1] && (self.of[1] == MOST || self.of[1] == LEAST)
    }

    /// Our ratio of the two named points.
    fn multiple(&self, rows: &[LockRow<'_>]) -> Option<f64> {
        self.between(&self.of[1], &self.over[1], rows)
    }

    /// Our ratio of the two series at one point, if both series have the point.
    fn at(&self, label: &str, rows: &[LockRow<'_>]) -> Option<f64> {
        self.between(label, label, rows)
    }

    fn between(&self, of: &str, over: &str, rows: &[LockRow<'_>]) -> Option<f64> {
        let value = |series: &str, label: &str| {
            let is_it = |row: &&LockRow<'_>| row.series.name == series && row.point.label == label;
            let row = rows.iter().find(is_it)?;
            row.ours.measured.get(&self.measure).copied()
        };
        Some(value(&self.of[0], of)? / value(&self.over[0], over)?)
    }
}

/// A measured point in its stored form.
#[derive(Debug, Deserialize, Serialize)]
struct LockMeasured {
    measured: BTreeMap<Measure, f64>,
    /// The busiest resource, and its share.
    busiest: String,
    /// Whether the audit passed; `None` without an audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    audited: Option<bool>,
}

/// A measured point with its published values.
struct LockRow<'a> {
    series: &'a LockSeries,
    point: &'a LockPoint,
    ours: LockMeasured,
    published: BTreeMap<Measure, f64>,
}

impl LockSeries {
    fn has(&self, point: &LockPoint) -> bool {
        self.at.as_ref().is_none_or(|at| at.contains(&point.label))
    }
}

impl LockFigure {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// One sentence about the error.
    fn parse(text: &str) -> Result<Self, String> {
        let figure: Self = toml::from_str(text).map_err(|error| of_toml(text, &error))?;
        if figure.all().next().is_none() {
            return Err("it has no points".to_owned());
        }
        for (series, point) in figure.all() {
            let command = figure.command(series, point);
            let parsed = BenchLine::parse(&command);
            parsed.map_err(|why| format!("{}, {}: {why}", series.name, point.label))?;
        }
        figure.check()?;
        Ok(figure)
    }

    /// Refuses published values of missing points or measures.
    fn check(&self) -> Result<(), String> {
        let is_there = |of: &str, at: Option<&str>| {
            let is_it = |(series, point): (&LockSeries, &LockPoint)| {
                series.name == of && at.is_none_or(|label| point.label == label)
            };
            self.all().any(is_it)
        };
        let is_shown = |measure| self.measures.contains(&measure);
        if !is_shown(self.drawn) {
            return Err("what is drawn is no measure of it".to_owned());
        }
        for Published { series, point, measure, .. } in &self.published {
            if !is_there(series, point.as_deref()) || !is_shown(*measure) {
                return Err(format!("what is published of {series} is of no point or measure"));
            }
        }
        for ratio in &self.ratios {
            let Ratio { of, over, measure, .. } = ratio;
            let is_over_all = ratio.is_over_all();
            let mut both = [of, over].into_iter();
            if !both.all(|[series, point]| is_there(series, (!is_over_all).then_some(point)))
                || !is_shown(*measure)
            {
                return Err(format!("a ratio of {} is of no point or measure", of.join(", ")));
            }
        }
        let labels = || self.points.iter().map(|point| &point.label);
        let mut at = self.series.iter().flat_map(|series| series.at.iter().flatten());
        match at.find(|at| labels().all(|label| label != *at)) {
            Some(at) => Err(format!("there is no point {at}")),
            None => Ok(()),
        }
    }

    /// All points, series by series.
    fn all(&self) -> impl Iterator<Item = (&LockSeries, &LockPoint)> {
        let of = |series| self.points.iter().map(move |point| (series, point));
        self.series.iter().flat_map(of).filter(|(series, point)| series.has(point))
    }

    /// The command line of a point's measurement.
    fn command(&self, series: &LockSeries, point: &LockPoint) -> String {
        let words = ["--fabric sim", &self.testbed, &series.flags, &point.flags];
        format!("{} {}", self.bench.command(), CommandLine::of(words).typed())
    }

    fn published_of(&self, series: &LockSeries, point: &LockPoint) -> BTreeMap<Measure, f64> {
        let is_of = |published: &&Published| {
            let is_point = published.point.as_ref().is_none_or(|label| *label == point.label);
            published.series == series.name && is_point
        };
        let of = self.published.iter().filter(is_of);
        of.map(|published| (published.measure, published.value)).collect()
    }

    /// A row for each point.
    fn grid(&self, rows: &[LockRow<'_>]) -> Grid {
        let mut grid = Grid::new(rows.len(), 2);
        let column = |value: &dyn Fn(&LockRow<'_>) -> Option<String>| -> Vec<String> {
            rows.iter().map(|row| value(row).unwrap_or_default()).collect()
        };
        grid.add("series", column(&|row| Some(row.series.name.clone())));
        grid.add(self.sweep.clone(), column(&|row| Some(row.point.label.clone())));
        for measure in &self.measures {
            let ours = |row: &LockRow<'_>| row.ours.measured.get(measure).copied();
            let theirs = |row: &LockRow<'_>| row.published.get(measure).copied();
            grid.add(measure.title(), column(&|row| Some(measure.show(ours(row)?))));
            grid.add_if_any("published", column(&|row| Some(measure.show(theirs(row)?))));
            if rows.iter().any(|row| theirs(row).is_some()) {
                grid.add("off by %", column(&|row| Some(off(ours(row)?, theirs(row)?))));
            }
        }
        grid.add("busiest", column(&|row| Some(row.noted())));
        grid
    }

    /// The published ratios beside our ratios.
    fn judged(&self, rows: &[LockRow<'_>]) -> Vec<Judged> {
        let labels = || self.points.iter().map(|point| point.label.as_str());
        let judge = |ratio: &Ratio| {
            let multiples = labels().filter_map(|label| ratio.at(label, rows));
            let ours = match (ratio.is_over_all(), ratio.of[1].as_str()) {
                (true, MOST) => multiples.fold(f64::NAN, f64::max),
                (true, _) => multiples.fold(f64::NAN, f64::min),
                (false, _) => ratio.multiple(rows).unwrap_or(f64::NAN),
            };
            Judged::new(ours, ratio.value, Band::around(ratio.value, WITHIN))
        };
        self.ratios.iter().map(judge).collect()
    }

    /// A table of the published ratios beside our ratios.
    fn ratios(&self, judged: &[Judged]) -> Grid {
        let header = ["measure", "of", "over", "ratio", "published", "off by %", "in band"];
        let row = |(ratio, judged): (&Ratio, &Judged)| {
            vec![
                ratio.measure.title().to_owned(),
                ratio.of.join(", "),
                ratio.over.join(", "),
                format!("{:.2}", judged.ours),
                format!("{:.2}", judged.published),
                judged.off(),
                yes_no(judged.in_band).to_owned(),
            ]
        };
        Grid::of_rows(3, header.map(str::to_owned), self.ratios.iter().zip(judged).map(row))
    }

    /// Whether our values are within the bands around the published values.
    fn in_band(&self, rows: &[LockRow<'_>]) -> Vec<bool> {
        let of = |row: &LockRow<'_>| -> Vec<bool> {
            let judge = |(measure, published): (&Measure, &f64)| {
                let ours = *row.ours.measured.get(measure)?;
                Some(Band::around(*published, WITHIN).has(ours))
            };
            row.published.iter().filter_map(judge).collect()
        };
        rows.iter().flat_map(of).collect()
    }

    /// A plot of the sweep, with our and the published values.
    fn plot(&self, name: &str, rows: &[LockRow<'_>]) -> Plot {
        let ticks: Vec<_> = self.points.iter().map(|point| point.label.clone()).collect();
        let mut lines = Vec::new();
        for series in &self.series {
            let of = |values: &dyn Fn(&LockRow<'_>) -> Option<f64>| -> Vec<(f64, f64)> {
                let rows = rows.iter().filter(|row| row.series.name == series.name);
                let at = |row: &LockRow<'_>| ticks.iter().position(|tick| *tick == row.point.label);
                let value = |row: &LockRow<'_>| Some(self.drawn.drawn(values(row)?));
                rows.filter_map(|row| Some((at(row)? as f64, value(row)?))).collect()
            };
            let ours = of(&|row| row.ours.measured.get(&self.drawn).copied());
            lines.push(Line::ours(&series.name, ours));
            let published = of(&|row| row.published.get(&self.drawn).copied());
            if !published.is_empty() {
                lines.push(Line::published(format!("{}, published", series.name), published));
            }
        }
        let (x, y) = (self.sweep.clone(), self.drawn.title().to_owned());
        Plot { x, y, ticks, ..Plot::new(name.to_owned(), lines) }
    }
}

impl LockRow<'_> {
    fn is_sound(&self) -> bool {
        self.ours.audited != Some(false)
    }

    fn label(&self) -> String {
        format!("{}, {}", self.series.name, self.point.label)
    }

    /// The busiest resource, and whether the audit failed.
    fn noted(&self) -> String {
        let failed = if self.is_sound() { "" } else { ", AUDIT FAILED" };
        format!("{}{failed}", self.ours.busiest)
    }

    fn json(&self, figure: &str) -> Value {
        let mut row = serde_json::json!({
            "figure": figure,
            "series": self.series.name,
            "label": self.point.label,
            "measured": self.ours.measured,
            "busiest": self.ours.busiest,
        });
        if !self.published.is_empty() {
            row["published"] = serde_json::json!(self.published);
        }
        if let Some(audited) = self.ours.audited {
            row["audited"] = audited.into();
        }
        row
    }
}

/// A figure of locks alone, with its name.
pub(super) struct LocksAlone {
    name: String,
    figure: LockFigure,
}

impl LocksAlone {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// One sentence about the error.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, String> {
        Ok(Self { name: name.to_owned(), figure: LockFigure::parse(text)? })
    }
}

impl Experiment for LocksAlone {
    fn title(&self) -> &str {
        &self.figure.title
    }

    fn source(&self) -> &str {
        &self.figure.source
    }

    /// Independent of the length: the longest of these figures takes half a minute.
    fn tasks(&self, _: Length) -> Vec<Task> {
        let task = |(series, point): (&LockSeries, &LockPoint)| Task {
            label: format!("{}, {}", series.name, point.label),
            command: self.figure.command(series, point),
            without: Vec::new(),
        };
        self.figure.all().map(task).collect()
    }

    fn measure(&self, task: &Task) -> Result<Value, bench::Failure> {
        let refused = bench::Failure::Arguments;
        let mut line = BenchLine::parse(&task.command).map_err(refused)?;
        line.run_mut().quiet = true;
        let seen = line.measure()?;
        let value = |measure: &Measure| Some((*measure, measure.of(line.secs(), &seen)?));
        let measured = LockMeasured {
            measured: self.figure.measures.iter().filter_map(value).collect(),
            busiest: seen.busiest(),
            audited: seen.audited(),
        };
        serde_json::to_value(measured).map_err(|error| refused(error.to_string()))
    }

    fn findings(&self, _: Length, results: &[Value]) -> Result<Findings, serde_json::Error> {
        let figure = &self.figure;
        let row = |((series, point), result)| {
            let ours = LockMeasured::deserialize(result)?;
            Ok(LockRow { series, point, ours, published: figure.published_of(series, point) })
        };
        let rows =
            figure.all().zip(results).map(row).collect::<Result<Vec<_>, serde_json::Error>>()?;
        let judged = figure.judged(&rows);
        let mut blocks = vec![Block::Table(figure.grid(&rows))];
        if !judged.is_empty() {
            blocks.push(Block::Table(figure.ratios(&judged)));
        }
        let ratios = judged.iter().map(|judged| judged.in_band);
        Ok(Findings {
            blocks,
            plots: vec![figure.plot(&self.name, &rows)],
            remarks: figure.remarks.clone(),
            busiest: rows.iter().map(|row| row.ours.busiest.clone()).collect(),
            tally: Tally::of(figure.in_band(&rows).into_iter().chain(ratios)),
            fallen: Vec::new(),
            unsound: rows.iter().filter(|row| !row.is_sound()).map(LockRow::label).collect(),
            json: rows.iter().map(|row| row.json(&self.name)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> LocksAlone {
        let (_, file) = FILES.iter().find(|(known, _)| *known == name).expect("it is");
        LocksAlone::parse(name, file).expect("sound")
    }

    fn measured(figure: &LocksAlone) -> Vec<Value> {
        let tasks = figure.tasks(Length::Full);
        tasks.iter().map(|task| figure.measure(task).expect("it runs")).collect()
    }

    #[test]
    fn every_file_is_sound_and_every_point_of_it_can_be_run() {
        for (name, file) in FILES {
            LockFigure::parse(file).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }

    #[test]
    fn a_bad_file_is_refused_in_one_sentence() {
        let (_, sound) = FILES.iter().find(|(name, _)| *name == "shiftlock-verbs").expect("it is");
        let ratio =
            "[[ratios]]\nmeasure = 'atomics'\nof = ['a', 'b']\nover = ['a', 'b']\nvalue = 1";
        let cases = [
            (format!("titel = 'a'\n{sound}"), "line 1: unknown field `titel`"),
            (sound.replacen("--lock", "--luck", 1), "unexpected argument '--luck'"),
            (format!("{sound}\n{ratio}"), "a ratio of a, b is of no point"),
        ];
        for (text, expected) in cases {
            let why = LockFigure::parse(&text).expect_err(expected);
            assert!(why.contains(expected) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn a_multiple_may_be_the_greatest_or_the_least_of_all_points() {
        let mut figure = known("shiftlock-verbs").figure;
        let [one, other] = [0, 1].map(|index| figure.series[index].name.clone());
        let ratio = |over_all: &str| Ratio {
            measure: figure.drawn,
            of: [one.clone(), over_all.to_owned()],
            over: [other.clone(), over_all.to_owned()],
            value: 1.0,
        };
        figure.ratios = vec![ratio(MOST), ratio(LEAST)];
        // The first series has 2, 4, 6 and so on, the others 2.
        let row = |(at, (series, point)): (usize, (_, _))| {
            let series: &LockSeries = series;
            let value = if series.name == one { 2.0 * (at + 1) as f64 } else { 2.0 };
            let measured = BTreeMap::from([(figure.drawn, value)]);
            let ours = LockMeasured { measured, busiest: String::new(), audited: None };
            LockRow { series, point, ours, published: BTreeMap::new() }
        };
        let rows: Vec<_> = figure.all().enumerate().map(row).collect();
        let judged = figure.judged(&rows);
        let points = figure.points.len() as f64;
        assert_eq!([judged[0].ours, judged[1].ours], [points, 1.0]);
    }

    /// The first point of each series, with few clients and locks, for a short time.
    #[test]
    fn short_versions_of_all_experiments_measure_the_same_again() {
        const LOSING: &str = " --count 3000 --held-locks 200 --lose-ms 0.3 --secs 0.001";
        const SHORT: &str = " --cns 2 --threads 2 --coroutines 1 --secs 0.0005 --warmup 0.0002";
        for (name, _) in FILES {
            let mut experiment = known(name);
            let figure = &mut experiment.figure;
            figure.points.truncate(1);
            figure.points[0].flags += SHORT;
            figure.points[0].flags += match figure.bench {
                Bench::Locks if figure.drawn == Measure::Recovery => LOSING,
                Bench::Locks => " --count 3000",
                Bench::Tree => " --keys 1000",
                Bench::Bank => " --accounts 1000",
                Bench::LockTrace => " --subscribers 100 --warehouses 1 --exec-us 1 --sorted",
            };
            let [first, again] = [(); 2].map(|()| measured(&experiment));
            for (one, other) in first.iter().zip(&again) {
                assert_eq!(one["measured"], other["measured"], "{name}");
                let one = LockMeasured::deserialize(one).expect("it was written so");
                assert!(one.measured.values().all(|value| value.is_finite()), "{one:?}");
                assert_eq!(one.measured.len(), experiment.figure.measures.len(), "{name}: {one:?}");
                assert!(one.measured[&experiment.figure.drawn] >= 0.0, "{one:?}");
                assert_ne!(one.audited, Some(false), "{name}");
            }
            let findings = experiment.findings(Length::Full, &first).expect("results");
            assert!(!first.is_empty() && findings.unsound.is_empty());
            assert!(findings.text(experiment.title()).contains(experiment.title()));
        }
    }

    #[test]
    fn a_reader_or_writer_of_shiftlock_makes_two_atomics() {
        let mut experiment = known("shiftlock-verbs");
        let figure = &mut experiment.figure;
        figure.series.truncate(1);
        for point in &mut figure.points {
            point.flags += " --cns 2 --threads 4 --count 100000 --secs 0.002 --warmup 0.001";
        }
        let results = measured(&experiment);
        for ((series, point), result) in experiment.figure.all().zip(&results) {
            let ours = LockMeasured::deserialize(result).expect("it was written so");
            let published = experiment.figure.published_of(series, point);
            let off = ours.measured[&Measure::Atomics] / published[&Measure::Atomics] - 1.0;
            assert!(off.abs() < 0.05, "{ours:?}");
        }
    }
}
