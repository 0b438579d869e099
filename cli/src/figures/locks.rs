//! Experiments with lock systems alone, each a file in `cli/figures/locks`.
//!
//! An experiment sweeps one flag of `lotus bench locks`, for some series; what is published is a
//! number of operations a second, a share of requests that were given up, a share of a NIC's
//! capacity, or only an order, which the file's remarks tell. Each experiment has the simulated
//! testbed of its paper.

use std::fmt::Write as _;
use std::path::Path;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use lotus_benchmarks::locks::LockOutcome;
use lotus_benchmarks::report::grouped;
use serde::{Deserialize, Serialize};

use super::plot::{Line, Plot};
use super::{Failure, announce};
use crate::args::LocksArgs;
use crate::bench::locks;

macro_rules! files {
    ($($name:literal)*) => {
        /// All experiments: names, and what their files say.
        pub(super) const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../figures/locks/", $name, ".toml"))),)*];
    };
}

files! {
    "shiftlock-one-lock"
    "dslr-backoff"
    "dslr-lease"
    "dslr-multi-slot"
    "dslr-polling"
    "dslr-skew"
}

/// Columns of each point. Those in which nothing stands are not shown.
const COLUMNS: [&str; 13] = [
    "series",
    "point",
    "operations/s",
    "published",
    "off by %",
    "given up %",
    "published %",
    "NIC %",
    "published %",
    "acquire p50 us",
    "acquire p99 us",
    "retries",
    "busiest",
];

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
    /// Flags that all points share: the paper's testbed and load.
    testbed: String,
    /// What the points differ in, with its unit.
    sweep: String,
    /// What is drawn.
    drawn: Drawn,
    series: Vec<LockSeries>,
}

/// A measure that is drawn over the sweep.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Drawn {
    Operations,
    GivenUp,
    Nic,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockSeries {
    name: String,
    flags: String,
    points: Vec<LockPoint>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LockPoint {
    label: String,
    /// Flags of this point alone.
    #[serde(default)]
    flags: String,
    /// Operations a second, as published.
    published: Option<f64>,
    /// Share of requests that were given up, as published.
    published_given_up: Option<f64>,
    /// Share of the capacity of the memory node's NIC, as published.
    published_nic: Option<f64>,
}

/// A measured point.
#[derive(Debug, Serialize)]
pub(super) struct LockMeasured {
    figure: &'static str,
    series: String,
    label: String,
    operations_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<f64>,
    /// Share of requests that were given up, lost to another, or failed.
    given_up: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_given_up: Option<f64>,
    /// Share of the time for which the memory node's NIC served requests.
    nic: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_nic: Option<f64>,
    acquire_us: [f64; 2],
    retries: f64,
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
    locks: LocksArgs,
}

impl LockSeries {
    fn line(&self, figure: &LockFigure, point: &LockPoint) -> Result<LocksArgs, clap::Error> {
        let words = ["--fabric sim", &figure.testbed, &self.flags, &point.flags];
        let words = words.into_iter().flat_map(|words| words.split_whitespace());
        LockLine::try_parse_from(words).map(|line| line.locks)
    }
}

impl LockFigure {
    /// # Panics
    /// Never: a test reads them all.
    pub(super) fn parse(file: &str) -> Self {
        toml::from_str(file).expect("the files are sound")
    }

    /// Measures all points.
    ///
    /// # Errors
    /// [`Failure::Bench`].
    pub(super) fn measure(&self, figure: &'static str) -> Result<Vec<LockMeasured>, Failure> {
        let mut measured = Vec::new();
        let points: usize = self.series.iter().map(|series| series.points.len()).sum();
        for series in &self.series {
            for point in &series.points {
                let label = format!("{}, {}", series.name, point.label);
                announce(figure, &label, measured.len(), points);
                let args = series.line(self, point).expect("the files are sound");
                let outcome =
                    locks::measure(&args).map_err(|error| Failure::Bench { label, error })?;
                measured.push(LockMeasured::new(figure, series, point, &args, &outcome));
            }
        }
        Ok(measured)
    }

    pub(super) fn show(&self, measured: &[LockMeasured]) -> String {
        let header = COLUMNS.map(|column| match column {
            "point" => self.sweep.clone(),
            other => other.to_owned(),
        });
        let rows: Vec<_> = measured.iter().map(LockMeasured::row).collect();
        let is_shown = |column: usize| rows.iter().any(|row| !row[column].is_empty());
        let shown: Vec<_> = (0..COLUMNS.len()).filter(|column| is_shown(*column)).collect();
        let cells = |row: &[String; COLUMNS.len()]| -> Vec<String> {
            shown.iter().map(|column| row[*column].clone()).collect()
        };
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(cells(&header));
        rows.iter().for_each(|row| _ = table.add_row(cells(row)));
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let Self { title, source, remarks, .. } = self;
        format!("{title} ({source})\n\n{table}\n\n{}\n\n", remarks.trim())
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
        let first = &self.series[0];
        let ticks: Vec<_> = first.points.iter().map(|point| point.label.clone()).collect();
        let mut lines = Vec::new();
        for series in &self.series {
            let of = |value: &dyn Fn(&LockMeasured) -> Option<f64>| -> Vec<(f64, f64)> {
                let points = measured.iter().filter(|point| point.series == series.name);
                let points = points.enumerate();
                points.filter_map(|(x, point)| Some((x as f64, value(point)?))).collect()
            };
            let label = series.name.clone();
            lines.push(Line { label, points: of(&|point| Some(point.drawn(self.drawn).0)) });
            let published = of(&|point| point.drawn(self.drawn).1);
            if !published.is_empty() {
                let label = format!("{}, published", series.name);
                lines.push(Line { label, points: published });
            }
        }
        let y = match self.drawn {
            Drawn::Operations => "operations a second",
            Drawn::GivenUp => "% of requests given up",
            Drawn::Nic => "% of the NIC's capacity",
        };
        let (name, x) = (name.to_owned(), self.sweep.clone());
        Plot { name, x, y, ticks, lines, marks: Vec::new() }.write(directory).map(drop)
    }
}

impl LockMeasured {
    fn new(
        figure: &'static str,
        series: &LockSeries,
        point: &LockPoint,
        args: &LocksArgs,
        outcome: &LockOutcome,
    ) -> Self {
        let tally = &outcome.tally;
        let lost = (tally.refused + tally.failed) as f64;
        let at = |quantile| tally.acquire_ns.value_at_quantile(quantile) as f64 / 1000.0;
        let memory = locks::nodes(outcome).into_iter().find(|node| node.is_memory());
        Self {
            figure,
            series: series.name.clone(),
            label: point.label.clone(),
            operations_per_s: tally.operations as f64 / args.run.secs,
            published: point.published,
            given_up: lost / (lost + tally.operations as f64).max(1.0),
            published_given_up: point.published_given_up,
            nic: memory.map_or(0.0, |node| node.inbound_busy),
            published_nic: point.published_nic,
            acquire_us: [at(0.5), at(0.99)],
            retries: tally.counts.retries as f64 / tally.counts.acquired.max(1) as f64,
            busiest: outcome.utilisation.as_ref().map_or_else(String::new, locks::busiest),
            audited: outcome.findings.as_ref().map(Vec::is_empty),
        }
    }

    pub(super) fn is_sound(&self) -> bool {
        self.audited != Some(false)
    }

    /// What is drawn of it: ours, and what is published.
    fn drawn(&self, drawn: Drawn) -> (f64, Option<f64>) {
        let percent = |share: f64| share * 100.0;
        match drawn {
            Drawn::Operations => (self.operations_per_s, self.published),
            Drawn::GivenUp => (percent(self.given_up), self.published_given_up.map(percent)),
            Drawn::Nic => (percent(self.nic), self.published_nic.map(percent)),
        }
    }

    fn row(&self) -> [String; COLUMNS.len()] {
        let percent = |share: f64| format!("{:.1}", share * 100.0);
        let maybe =
            |value: Option<f64>, show: &dyn Fn(f64) -> String| value.map_or_else(String::new, show);
        let off = self.published.map(|published| self.operations_per_s / published - 1.0);
        let mut busiest = self.busiest.clone();
        if !self.is_sound() {
            let _ = write!(busiest, ", AUDIT FAILED");
        }
        [
            self.series.clone(),
            self.label.clone(),
            grouped(self.operations_per_s as u64),
            maybe(self.published, &|published| grouped(published as u64)),
            maybe(off, &|off| format!("{:+.1}", off * 100.0)),
            percent(self.given_up),
            maybe(self.published_given_up, &percent),
            percent(self.nic),
            maybe(self.published_nic, &percent),
            format!("{:.1}", self.acquire_us[0]),
            format!("{:.1}", self.acquire_us[1]),
            format!("{:.2}", self.retries),
            busiest,
        ]
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
            for series in &figure.series {
                assert_eq!(series.points.len(), figure.series[0].points.len(), "{name}");
                for (point, first) in series.points.iter().zip(&figure.series[0].points) {
                    assert_eq!(point.label, first.label, "{name}: series share an axis");
                    let args = series.line(&figure, point);
                    let args = args.unwrap_or_else(|e| panic!("{name}, {}: {e}", point.label));
                    locks::check(&args).unwrap_or_else(|e| panic!("{name}: {e}"));
                }
            }
        }
    }
}
