//! Experiments with lock systems, without transactions, each a file in `cli/figures/locks`.
//!
//! An experiment sweeps one flag of `lotus bench locks` or `tree`, for some series, on the
//! simulated testbed of its paper. What is published is values of its measures, multiples of one
//! point over another, or only an order, which the file's remarks tell. They also say what bounds
//! the points that differ: each names its busiest resource.
//!
//! `measures`: the quantities.

mod measures;

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::plot::{Line, Plot};
use super::{Failure, announce};
use crate::args::{LocksArgs, TreeArgs};
use crate::bench::{self, locks, tree};
use measures::{Measure, Seen};

macro_rules! files {
    ($($name:literal)*) => {
        /// All experiments: names, and what their files say.
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
}

/// One experiment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LockFigure {
    /// Headline.
    pub(super) title: String,
    /// Place of publication.
    pub(super) source: String,
    /// What is published if it is not a number, and why results differ from it.
    remarks: String,
    /// What its points run.
    #[serde(default)]
    bench: Bench,
    /// Flags that all points share: the paper's testbed and load.
    testbed: String,
    /// What the points differ in, with its unit.
    sweep: String,
    /// What is drawn.
    drawn: Measure,
    /// What is shown of each point.
    #[serde(default = "usual")]
    measures: Vec<Measure>,
    series: Vec<LockSeries>,
    points: Vec<LockPoint>,
    /// What is published of points.
    #[serde(default)]
    published: Vec<Published>,
    /// What is published of two points, one as a multiple of the other.
    #[serde(default)]
    ratios: Vec<Ratio>,
}

/// A benchmark without transactions.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Bench {
    #[default]
    Locks,
    Tree,
}

fn usual() -> Vec<Measure> {
    Measure::USUAL.into()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockSeries {
    name: String,
    flags: String,
    /// Labels of the points that it has, if not all.
    at: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockPoint {
    label: String,
    /// Flags of this point alone.
    #[serde(default)]
    flags: String,
}

/// A published value, of one point, or of all of a series.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    series: String,
    point: Option<String>,
    measure: Measure,
    value: f64,
}

/// A published multiple.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ratio {
    measure: Measure,
    /// Series and point.
    of: [String; 2],
    over: [String; 2],
    value: f64,
}

/// A measured point.
#[derive(Debug, Serialize)]
pub(super) struct LockMeasured {
    figure: &'static str,
    series: String,
    label: String,
    measured: BTreeMap<Measure, f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    published: BTreeMap<Measure, f64>,
    /// The busiest resource, and its share.
    busiest: String,
    /// Whether the audit passed, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    audited: Option<bool>,
}

/// Parses what stands in a file as if it had been typed after `lotus bench locks`.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct LockLine {
    #[command(flatten)]
    args: LocksArgs,
}

/// The same of `lotus bench tree`.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct TreeLine {
    #[command(flatten)]
    args: TreeArgs,
}

/// A point, as its benchmark takes it.
#[derive(Debug)]
enum BenchLine {
    Locks(LocksArgs),
    Tree(TreeArgs),
}

impl BenchLine {
    /// # Errors
    /// See [`locks::check`] and [`tree::check`].
    #[cfg(test)]
    fn check(&self) -> Result<(), bench::Failure> {
        match self {
            Self::Locks(args) => locks::check(args),
            Self::Tree(args) => tree::check(args),
        }
    }

    /// # Errors
    /// See [`locks::measure`] and [`tree::measure`].
    fn measure(&self) -> Result<Seen, bench::Failure> {
        match self {
            Self::Locks(args) => locks::measure(args).map(Seen::from),
            Self::Tree(args) => tree::measure(args).map(Seen::from),
        }
    }

    /// Time in which requests count, in seconds.
    const fn secs(&self) -> f64 {
        match self {
            Self::Locks(args) => args.run.secs,
            Self::Tree(args) => args.run.secs,
        }
    }
}

impl LockSeries {
    fn line(&self, figure: &LockFigure, point: &LockPoint) -> Result<BenchLine, clap::Error> {
        let words = ["--fabric sim", &figure.testbed, &self.flags, &point.flags];
        let words = words.into_iter().flat_map(|words| words.split_whitespace());
        match figure.bench {
            Bench::Locks => LockLine::try_parse_from(words).map(|line| BenchLine::Locks(line.args)),
            Bench::Tree => TreeLine::try_parse_from(words).map(|line| BenchLine::Tree(line.args)),
        }
    }

    fn has(&self, point: &LockPoint) -> bool {
        self.at.as_ref().is_none_or(|at| at.contains(&point.label))
    }
}

impl LockFigure {
    /// # Panics
    /// Never: a test reads them all.
    pub(super) fn parse(file: &str) -> Self {
        toml::from_str(file).expect("the files are sound")
    }

    /// All points, series by series.
    fn all(&self) -> impl Iterator<Item = (&LockSeries, &LockPoint)> {
        let of = |series| self.points.iter().map(move |point| (series, point));
        self.series.iter().flat_map(of).filter(|(series, point)| series.has(point))
    }

    /// Measures all points.
    ///
    /// # Errors
    /// [`Failure::Bench`].
    pub(super) fn measure(&self, figure: &'static str) -> Result<Vec<LockMeasured>, Failure> {
        let mut measured = Vec::new();
        let points = self.all().count();
        for (series, point) in self.all() {
            let label = format!("{}, {}", series.name, point.label);
            announce(figure, &label, measured.len(), points);
            let line = series.line(self, point).expect("the files are sound");
            let seen = line.measure().map_err(|error| Failure::Bench { label, error })?;
            let value = |measure: &Measure| Some((*measure, measure.of(line.secs(), &seen)?));
            measured.push(LockMeasured {
                figure,
                series: series.name.clone(),
                label: point.label.clone(),
                measured: self.measures.iter().filter_map(value).collect(),
                published: self.published_of(series, point),
                busiest: seen.busiest(),
                audited: seen.audited(),
            });
        }
        Ok(measured)
    }

    fn published_of(&self, series: &LockSeries, point: &LockPoint) -> BTreeMap<Measure, f64> {
        let is_of = |published: &&Published| {
            let is_point = published.point.as_ref().is_none_or(|label| *label == point.label);
            published.series == series.name && is_point
        };
        let of = self.published.iter().filter(is_of);
        of.map(|published| (published.measure, published.value)).collect()
    }

    pub(super) fn show(&self, measured: &[LockMeasured]) -> String {
        let mut columns: Vec<(String, Vec<String>)> = vec![
            ("series".to_owned(), measured.iter().map(|point| point.series.clone()).collect()),
            (self.sweep.clone(), measured.iter().map(|point| point.label.clone()).collect()),
        ];
        for measure in &self.measures {
            let column = |value: &dyn Fn(&LockMeasured) -> Option<String>| -> Vec<String> {
                measured.iter().map(|point| value(point).unwrap_or_default()).collect()
            };
            let ours = |point: &LockMeasured| point.measured.get(measure).copied();
            let theirs = |point: &LockMeasured| point.published.get(measure).copied();
            let shown = column(&|point| Some(measure.show(ours(point)?)));
            columns.push((measure.title().to_owned(), shown));
            if measured.iter().any(|point| theirs(point).is_some()) {
                let shown = column(&|point| Some(measure.show(theirs(point)?)));
                columns.push(("published".to_owned(), shown));
                let off = column(&|point| Some(off(ours(point)?, theirs(point)?)));
                columns.push(("off by %".to_owned(), off));
            }
        }
        columns.push(("busiest".to_owned(), measured.iter().map(LockMeasured::noted).collect()));
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(columns.iter().map(|(title, _)| title));
        for row in 0..measured.len() {
            table.add_row(columns.iter().map(|(_, cells)| &cells[row]));
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let Self { title, source, remarks, .. } = self;
        let ratios = self.show_ratios(measured);
        format!("{title} ({source})\n\n{table}\n\n{ratios}{}\n\n", remarks.trim())
    }

    /// A table of the published multiples beside ours; nothing if there are none.
    fn show_ratios(&self, measured: &[LockMeasured]) -> String {
        if self.ratios.is_empty() {
            return String::new();
        }
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(["measure", "of", "over", "ratio", "published", "off by %"]);
        for ratio in &self.ratios {
            let [of, over] = [&ratio.of, &ratio.over].map(|[series, label]| {
                let point =
                    measured.iter().find(|point| point.series == *series && point.label == *label);
                point.and_then(|point| point.measured.get(&ratio.measure)).copied()
            });
            let ours = of.zip(over).map_or(f64::NAN, |(of, over)| of / over);
            table.add_row([
                ratio.measure.title().to_owned(),
                ratio.of.join(", "),
                ratio.over.join(", "),
                format!("{ours:.2}"),
                format!("{:.2}", ratio.value),
                off(ours, ratio.value),
            ]);
        }
        for column in table.column_iter_mut().skip(3) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("{table}\n\n")
    }

    /// Draws the sweep into `directory`, ours and what is published.
    ///
    /// # Errors
    /// [`Failure::Plot`].
    pub(super) fn draw(
        &self,
        name: &str,
        measured: &[LockMeasured],
        directory: &Path,
    ) -> Result<(), Failure> {
        let ticks: Vec<_> = self.points.iter().map(|point| point.label.clone()).collect();
        let mut lines = Vec::new();
        for series in &self.series {
            let of = |values: &dyn Fn(&LockMeasured) -> Option<f64>| -> Vec<(f64, f64)> {
                let points = measured.iter().filter(|point| point.series == series.name);
                let at = |point: &LockMeasured| ticks.iter().position(|tick| *tick == point.label);
                let value = |point| Some(self.drawn.drawn(values(point)?));
                points.filter_map(|point| Some((at(point)? as f64, value(point)?))).collect()
            };
            let label = series.name.clone();
            let ours = of(&|point| point.measured.get(&self.drawn).copied());
            lines.push(Line { label, points: ours });
            let published = of(&|point| point.published.get(&self.drawn).copied());
            if !published.is_empty() {
                let label = format!("{}, published", series.name);
                lines.push(Line { label, points: published });
            }
        }
        let (name, x, y) = (name.to_owned(), self.sweep.clone(), self.drawn.title());
        Plot { name, x, y, ticks, lines, marks: Vec::new() }.write(directory).map(drop)
    }
}

/// Deviation of ours from what is published, in percent; nothing where that is zero.
fn off(ours: f64, published: f64) -> String {
    match published {
        0.0 => String::new(),
        _ => format!("{:+.1}", (ours / published - 1.0) * 100.0),
    }
}

impl LockMeasured {
    pub(super) fn is_sound(&self) -> bool {
        self.audited != Some(false)
    }

    /// The busiest resource, and whether the audit failed.
    fn noted(&self) -> String {
        let failed = if self.is_sound() { "" } else { ", AUDIT FAILED" };
        format!("{}{failed}", self.busiest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_sound_and_every_point_of_it_can_be_run() {
        for (name, file) in FILES {
            let figure =
                toml::from_str::<LockFigure>(file).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (series, point) in figure.all() {
                let args = series.line(&figure, point);
                let args = args.unwrap_or_else(|e| panic!("{name}, {}: {e}", point.label));
                args.check().unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }

    /// The first point of each series, with few clients and locks, for a short time.
    #[test]
    fn short_versions_of_all_experiments_measure_the_same_again() {
        const SHORT: &str = " --cns 2 --threads 2 --coroutines 1 --secs 0.0005 --warmup 0.0002";
        for (name, file) in FILES {
            let mut figure = LockFigure::parse(file);
            figure.points.truncate(1);
            figure.points[0].flags += SHORT;
            figure.points[0].flags += match figure.bench {
                Bench::Locks => " --count 1000",
                Bench::Tree => " --keys 1000",
            };
            let [first, again] = [(); 2].map(|()| figure.measure(name).expect("it runs"));
            for (one, other) in first.iter().zip(&again) {
                assert_eq!(one.measured, other.measured, "{name}, {}", one.series);
                assert!(one.measured.values().all(|value| value.is_finite()), "{one:?}");
                assert_eq!(one.measured.len(), figure.measures.len(), "{name}: {one:?}");
                assert!(one.measured[&figure.drawn] >= 0.0 && one.is_sound(), "{one:?}");
            }
            assert!(!first.is_empty() && figure.show(&first).contains(&figure.title));
        }
    }

    #[test]
    fn a_reader_or_writer_of_shiftlock_makes_two_atomics() {
        let (name, file) =
            FILES.iter().find(|(name, _)| *name == "shiftlock-verbs").expect("it is");
        let mut figure = LockFigure::parse(file);
        figure.series.truncate(1);
        for point in &mut figure.points {
            point.flags += " --cns 2 --threads 4 --count 100000 --secs 0.002 --warmup 0.001";
        }
        for point in figure.measure(name).expect("it runs") {
            let off = point.measured[&Measure::Atomics] / point.published[&Measure::Atomics] - 1.0;
            assert!(off.abs() < 0.05, "{point:?}");
        }
    }

    #[test]
    fn what_is_published_is_of_points_that_there_are() {
        for (name, file) in FILES {
            let figure = LockFigure::parse(file);
            let is_there = |of: &str, at: Option<&str>| {
                let is_it = |(series, point): (&LockSeries, &LockPoint)| {
                    series.name == of && at.is_none_or(|label| point.label == label)
                };
                figure.all().any(is_it)
            };
            let is_shown = |measure| figure.measures.contains(&measure);
            assert!(is_shown(figure.drawn), "{name}");
            for published in &figure.published {
                let Published { series, point, measure, .. } = published;
                assert!(is_there(series, point.as_deref()), "{name}: {published:?}");
                assert!(is_shown(*measure), "{name}: {published:?}");
            }
            for ratio in &figure.ratios {
                let [of, over] = [&ratio.of, &ratio.over];
                assert!(is_there(&of[0], Some(&of[1])), "{name}: {ratio:?}");
                assert!(is_there(&over[0], Some(&over[1])), "{name}: {ratio:?}");
                assert!(is_shown(ratio.measure), "{name}: {ratio:?}");
            }
            let labels = figure.points.iter().map(|point| &point.label);
            for at in figure.series.iter().filter_map(|series| series.at.as_ref()) {
                assert!(
                    at.iter().all(|label| labels.clone().any(|l| l == label)),
                    "{name}: {at:?}"
                );
            }
        }
    }
}
