//! `lotus figures`: experiments of the papers, simulated, beside the published results.
//!
//! An experiment is a file in `cli/figures`: series of benchmarks that differ in a flag or two.
//! All run on the simulated testbed of LOTUS (§8.1) with everything divided by ten: data, caches,
//! lock tables. (TPC-C keeps its warehouses, which contention depends on, and has a tenth of their
//! customers and items.) Absolute figures of another cluster mean little, so each point is set
//! against the first of its series, and so is the published one. Where results differ, the file
//! says why; parameters are not adjusted to match. `locks` has the experiments with lock systems
//! alone, on the testbeds of their papers.
//!
//! Imports `bench`, `args` and `show`.

mod locks;
mod plot;
mod recovery;
mod timeline;
mod without;

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use lotus_benchmarks::output::{Output, OutputError};
use lotus_benchmarks::report::{Report, TimelineFigures, grouped};
use serde::{Deserialize, Serialize};

use crate::args::{BenchArgs, FiguresArgs, FiguresRunArgs, FiguresTask};
use crate::bench;
use crate::show::{Verdict, screen};
use locks::{LockFigure, LockMeasured};
use timeline::{Jump, jumps};

/// The testbed at one tenth, with the paper's layout of rows. Simulated time is short because
/// nothing warms up but caches.
const TESTBED: &str = "--fabric sim --profile cx3-56g --cns 9 --mns 3 --replicas 3 --threads 10 \
                       --coroutines 6 --inline never --lock-table 3276800 --secs 0.05 \
                       --warmup 0.05";

macro_rules! files {
    ($($name:literal)*) => {
        const FILES: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../figures/", $name, ".toml"))),)*];
    };
}

files! {
    "version-table-cache"
    "cache-sizes"
    "versions"
    "isolation"
    "critical-fields"
    "warehouses"
    "spin-locks"
    "visible-order"
    "routing"
    "moves"
    "hotspot"
    "log-and-visible"
    "engine-locks"
}

/// Columns of each point. Verbs are per committed transaction.
const COLUMNS: [&str; 11] = [
    "series",
    "point",
    "txn/s",
    "ratio",
    "published",
    "off by %",
    "aborts %",
    "p50 us",
    "p99 us",
    "verbs",
    "CVT hits %",
];

/// Further columns, where the ownership of shards matters.
const OWNERSHIP: [&str; 5] =
    ["local locks %", "shards moved", "interrupted us", "at most us", "published us"];

/// Failure of an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// There is no such experiment.
    #[error("there is no experiment {0}; `lotus figures list` names them")]
    Unknown(String),
    /// A benchmark did not finish.
    #[error("{label}: {error}")]
    Bench {
        /// The point that was measured.
        label: String,
        /// The benchmark's failure.
        error: bench::Failure,
    },
    /// The result could not be written there. Name another path.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The standard output is gone.
    #[error("cannot write the result: {0}")]
    Stdout(#[from] io::Error),
    /// The experiment breaks rules, to measure what they cost, which this build cannot do.
    #[error("{0} takes a build with the feature sabotage")]
    Unbreakable(&'static str),
    /// A plot could not be drawn there. Name another directory.
    #[error("cannot draw {0}: {1}")]
    Plot(PathBuf, String),
}

/// One experiment.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    /// Headline.
    title: String,
    /// Place of publication.
    source: String,
    /// Explanation of deviations from the published results, if there are any.
    remarks: Option<String>,
    /// Type of transaction to show aborts of.
    watch: Option<String>,
    /// Whether to show the columns of [`OWNERSHIP`].
    #[serde(default)]
    ownership: bool,
    series: Vec<Series>,
}

/// Benchmarks that are compared with each other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    name: String,
    /// Workload and flags that all points share.
    bench: String,
    /// Points; the first is what the others are compared with.
    points: Vec<Point>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Point {
    label: String,
    /// Flags of this point alone.
    #[serde(default)]
    flags: String,
    /// Names of the protocol's rules that are broken meanwhile.
    #[serde(default)]
    without: Vec<String>,
    /// Throughput relative to the first point, as published.
    published: Option<f64>,
    /// Aborted attempts of the watched type among all, as published.
    published_aborts: Option<f64>,
    /// Time in which no node grants locks of a shard that moves, in microseconds, as published.
    published_interruption_us: Option<f64>,
}

/// A measured point.
#[derive(Debug, Serialize)]
struct Measured {
    figure: &'static str,
    series: String,
    label: String,
    /// Throughput relative to the first point of the series.
    ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    published: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_aborts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_interruption_us: Option<f64>,
    /// Effect of each jump of a hotspot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    jumps: Vec<Jump>,
    report: Report,
}

/// Parses what stands in an experiment's file as if it had been typed after `lotus bench`.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct Line {
    #[command(flatten)]
    bench: BenchArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// [`Failure`] if there is no result.
pub fn run(args: &FiguresArgs) -> Result<Verdict, Failure> {
    match &args.task {
        FiguresTask::List => list(),
        FiguresTask::Run(args) => run_all(args),
    }
}

fn list() -> Result<Verdict, Failure> {
    let mut text = String::new();
    for (name, file) in FILES {
        let Figure { title, source, .. } = parse(file);
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{name:<20}{title} ({source})");
    }
    for (name, file) in locks::FILES {
        let LockFigure { title, source, .. } = LockFigure::parse(file);
        let _ = writeln!(text, "{name:<20}{title} ({source})");
    }
    let _ = writeln!(text, "{:<20}{}", recovery::NAME, recovery::TITLE);
    io::stdout().write_all(text.as_bytes())?;
    Ok(Verdict::Sound)
}

fn run_all(args: &FiguresRunArgs) -> Result<Verdict, Failure> {
    let recovery = args.names.iter().any(|name| name == recovery::NAME || name == "all");
    let others = args.names.iter().filter(|name| *name != recovery::NAME);
    let is_alone = |name: &&String| locks::FILES.iter().any(|(known, _)| known == name);
    let others: Vec<_> = others.filter(|name| !is_alone(name)).collect();
    let chosen = chosen(&others)?;
    let output = args.json.as_deref().map(Output::check).transpose()?;
    let mut results = Vec::new();
    for (name, figure) in chosen {
        let measured = measure(name, &figure)?;
        screen::show(&figure.show(&measured), &[&output])?;
        results.extend(measured);
    }
    let mut of_locks = Vec::new();
    for (name, figure) in alone(&args.names) {
        let measured = figure.measure(name)?;
        screen::show(&figure.show(&measured), &[&output])?;
        figure.draw(name, &measured, &args.plots)?;
        of_locks.extend(measured);
    }
    let recovered = if recovery { recovery::run(&output, &args.plots)? } else { Vec::new() };
    if let Some(output) = &output {
        match (recovery, of_locks.is_empty()) {
            (true, _) => screen::write_json(output, &(&results, &recovered, &of_locks))?,
            (false, true) => screen::write_json(output, &results)?,
            (false, false) => screen::write_json(output, &(&results, &of_locks))?,
        }
    }
    let sound = |point: &Measured| point.report.audit.as_ref().is_none_or(|audit| audit.passed);
    let all_sound = results.iter().all(sound) && of_locks.iter().all(LockMeasured::is_sound);
    Ok(if all_sound { Verdict::Sound } else { Verdict::Unsound })
}

/// The experiments with locks alone among these names; `all` means all.
fn alone(names: &[String]) -> Vec<(&'static str, LockFigure)> {
    let is_chosen = |known: &str| names.iter().any(|name| name == known || name == "all");
    let chosen = locks::FILES.iter().filter(|(known, _)| is_chosen(known));
    chosen.map(|(name, file)| (*name, LockFigure::parse(file))).collect()
}

/// The experiments of these names; `all` means those that this build can run.
fn chosen(names: &[&String]) -> Result<Vec<(&'static str, Figure)>, Failure> {
    let known = || FILES.iter().map(|(name, file)| (*name, parse(file)));
    if names.len() == 1 && names[0] == "all" {
        return Ok(known().filter(|(name, figure)| without::check(name, figure).is_ok()).collect());
    }
    let find = |name: &&String| {
        let found = known().find(|(known, _)| *known == **name);
        let (name, figure) = found.ok_or_else(|| Failure::Unknown((*name).clone()))?;
        without::check(name, &figure).map(|()| (name, figure))
    };
    names.iter().map(find).collect()
}

/// # Panics
/// Never: a test reads them all.
fn parse(file: &str) -> Figure {
    toml::from_str(file).expect("the files are sound")
}

fn measure(name: &'static str, figure: &Figure) -> Result<Vec<Measured>, Failure> {
    let mut measured = Vec::new();
    let points: usize = figure.series.iter().map(|series| series.points.len()).sum();
    for series in &figure.series {
        let mut first_tps = None;
        for point in &series.points {
            let label = format!("{}, {}", series.name, point.label);
            announce(name, &label, measured.len(), points);
            let _broken = without::broken(&point.without);
            let report = bench::report(&series.line(point).bench)
                .map_err(|error| Failure::Bench { label, error })?;
            let tps = report.total.throughput_tps;
            measured.push(Measured {
                figure: name,
                series: series.name.clone(),
                label: point.label.clone(),
                ratio: tps / *first_tps.get_or_insert(tps),
                published: point.published,
                published_aborts: point.published_aborts,
                published_interruption_us: point.published_interruption_us,
                jumps: jumping(&report).map_or_else(Vec::new, |(times, s)| jumps(times, s)),
                report,
            });
        }
    }
    Ok(measured)
}

/// Prints which measurement begins, and of how many.
fn announce(name: &str, label: &str, done: usize, all: usize) {
    // A closed standard error is ignored.
    let _ = writeln!(io::stderr(), "{name}: {label} ({} of {all})", done + 1);
}

/// Timeline of a benchmark with a hotspot, and the interval of its jumps in seconds.
fn jumping(report: &Report) -> Option<(&TimelineFigures, f64)> {
    let every_s = report.config.workload.get("jump_s")?.as_f64().filter(|s| *s > 0.0)?;
    Some((report.timeline.as_ref()?, every_s))
}

impl Series {
    /// The command line of a point. Later flags win over earlier ones.
    ///
    /// # Panics
    /// Never: a test parses them all.
    fn line(&self, point: &Point) -> Line {
        let words = [&self.bench, TESTBED, &point.flags];
        let words = words.into_iter().flat_map(|words| words.split_whitespace());
        Line::try_parse_from(words).expect("the files are sound")
    }
}

impl Figure {
    fn show(&self, measured: &[Measured]) -> String {
        let mut header: Vec<String> = COLUMNS.map(str::to_owned).into();
        if let Some(watched) = &self.watch {
            header.extend([format!("{watched} aborts %"), "published %".to_owned()]);
        }
        if self.ownership {
            header.extend(OWNERSHIP.map(str::to_owned));
        }
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
        for point in measured {
            let mut row = point.row(self.watch.as_deref());
            row.extend(self.ownership.then(|| point.ownership()).into_iter().flatten());
            table.add_row(row);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = format!("{} ({})\n\n{table}\n", self.title, self.source);
        for point in measured {
            let Some((times, every_s)) = jumping(&point.report) else { continue };
            let _ = write!(text, "\n{}", timeline::show(&point.label, times, every_s));
        }
        if let Some(remarks) = &self.remarks {
            let _ = writeln!(text, "\n{}", remarks.trim());
        }
        text.push('\n');
        text
    }
}

impl Measured {
    fn row(&self, watched: Option<&str>) -> Vec<String> {
        let percent = |part: f64| format!("{:.2}", part * 100.0);
        let Report { total, verbs_per_txn: verbs, caches, .. } = &self.report;
        let verbs = verbs.read + verbs.write + verbs.compare_and_swap + verbs.fetch_and_add;
        let hits = caches.as_ref().map(|caches| caches.version_tables);
        let hits = hits.filter(|tables| tables.lookups > 0);
        let off = self.published.map(|published| self.ratio / published - 1.0);
        let mut row = vec![
            self.series.clone(),
            self.label.clone(),
            grouped(total.throughput_tps as u64),
            format!("{:.3}", self.ratio),
            self.published.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
            off.map_or_else(String::new, |off| format!("{:+.1}", off * 100.0)),
            percent(total.abort_rate),
            format!("{:.1}", total.latency_us.p50),
            format!("{:.1}", total.latency_us.p99),
            format!("{verbs:.2}"),
            hits.map_or_else(String::new, |tables| percent(tables.hit_rate)),
        ];
        if let Some(watched) = watched {
            let figures = self.report.by_transaction.get(watched);
            row.push(figures.map_or_else(String::new, |figures| percent(figures.abort_rate)));
            row.push(self.published_aborts.map_or_else(String::new, percent));
        }
        row
    }
}

impl Measured {
    /// Values of the columns of [`OWNERSHIP`].
    fn ownership(&self) -> [String; OWNERSHIP.len()] {
        let Some(figures) = self.report.ownership else { return Default::default() };
        let moved = figures.shards_moved > 0;
        let us = |us: f64| if moved { format!("{us:.0}") } else { String::new() };
        let published = self.published_interruption_us;
        [
            format!("{:.1}", figures.local_locks * 100.0),
            grouped(figures.shards_moved),
            us(figures.interruption_us),
            us(figures.interruption_us_max),
            published.map_or_else(String::new, |us| format!("{us:.0}")),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_sound_and_every_point_of_it_can_be_run() {
        for (name, file) in FILES {
            let figure = toml::from_str::<Figure>(file).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(!figure.title.is_empty() && !figure.source.is_empty(), "{name}");
            for series in &figure.series {
                assert!(series.points.len() > 1, "{name}: nothing to compare");
                for point in &series.points {
                    let words = [&series.bench, TESTBED, &point.flags];
                    let words = words.into_iter().flat_map(|words| words.split_whitespace());
                    let line = Line::try_parse_from(words);
                    let line = line.unwrap_or_else(|e| panic!("{name}, {}: {e}", point.label));
                    bench::check(&line.bench).unwrap_or_else(|e| panic!("{name}: {e}"));
                    for rule in &point.without {
                        assert!(without::rule(rule).is_some(), "{name}: there is no rule {rule}");
                    }
                }
            }
        }
    }
}
