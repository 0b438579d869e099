//! The file of a figure of transactions: format, checks, and command lines of the points.

use lotus_benchmarks::config::Fabric;
use serde::{Deserialize, Serialize};

use crate::args::{BenchTask, Cli, Command};
use crate::bench;
use crate::figures::command::CommandLine;
use crate::figures::experiment::Length;
use crate::figures::judge::{Band, WITHIN};
use crate::figures::observed::Observed;
use crate::figures::without;
use lotus_runner::args::BenchArgs;

/// The testbed at one tenth, with the paper's layout of rows. Simulated time is short because only
/// caches need a warm-up.
pub(crate) const TESTBED: &str = "--fabric sim --profile cx3-56g --cns 9 --mns 3 --replicas 3 \
                                  --threads 10 --coroutines 6 --inline never \
                                  --lock-table 3276800 --secs 0.05 --warmup 0.05";
/// Flags of the short mode, unless a figure has its own. With a shorter warm-up, SmallBank would
/// show its first 20 ms, in which compare-and-swaps on the memory nodes are the bottleneck.
const SHORT: &str = "--secs 0.005 --warmup 0.025";
/// Flags of the testbed and of workloads that other engines refuse.
const OF_LOTUS: [&str; 12] = [
    "--read-rule",
    "--inline",
    "--lock-table",
    "--vt-cache",
    "--sharding",
    "--routing",
    "--locks",
    "--lock-wait",
    "--timestamps",
    "--visible",
    "--retain-versions",
    "--balance",
];
/// Name of our own engine.
const LOTUS: &str = "lotus";
/// Start of a point's command line.
const BENCH: &str = "lotus-lab bench";

/// A figure of transactions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Figure {
    /// Headline.
    pub title: String,
    /// Place of publication.
    pub source: String,
    /// Explanation of deviations from the published results, if there are any.
    pub remarks: Option<String>,
    /// Type of transaction to show aborts of.
    pub watch: Option<String>,
    /// Whether to show columns of lock ownership and moved shards.
    #[serde(default)]
    pub ownership: bool,
    /// Flags of all points. They override [`TESTBED`]: another profile, for example.
    #[serde(default)]
    testbed: String,
    /// Flags of the short mode. They override all other flags.
    short: Option<String>,
    /// Permitted deviation of a ratio [default: [`WITHIN`]].
    within: Option<f64>,
    /// Quantity that ratios compare.
    #[serde(default)]
    pub compares: Quantity,
    /// Quantity that varies over the series, and its unit. A series gives its value as `at`; points
    /// with the same label form a line over `x`.
    pub x: Option<String>,
    /// Whether the figure needs a build that can break rules of the protocol.
    #[serde(default)]
    pub needs_sabotage: bool,
    pub series: Vec<Series>,
    /// Published ratios of two points, in addition to the points' own published values.
    #[serde(default)]
    pub ratios: Vec<Ratio>,
}

/// Quantity that the ratios of a figure compare.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Quantity {
    /// Transactions a second.
    #[default]
    Throughput,
    /// Bytes in use on the fullest memory node.
    Memory,
}

impl Quantity {
    pub(super) fn of(self, observed: &Observed) -> f64 {
        match self {
            Self::Throughput => observed.throughput_tps,
            Self::Memory => observed.memory_bytes()[1],
        }
    }
}

/// A published ratio: of one series, or the minimum and maximum over all series.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ratio {
    /// Series of `value` [default: the only series].
    pub series: Option<String>,
    /// Labels of the points.
    pub of: String,
    pub over: String,
    pub value: Option<f64>,
    pub least: Option<f64>,
    pub most: Option<f64>,
    /// Whether the ratio was once in its band: leaving the band is then a fault.
    #[serde(default)]
    pub accepted: bool,
}

/// Points to compare with each other.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Series {
    pub name: String,
    /// Workload and flags common to all points.
    bench: String,
    /// Flags of the short mode, which override the figure's flags.
    #[serde(default)]
    short: String,
    /// Loads for measuring the points; the load with the largest throughput gives the result.
    /// Without loads, a point is measured once.
    #[serde(default)]
    pub sweep: Vec<ClosedLoops>,
    /// Value of the figure's `x`.
    pub at: Option<f64>,
    /// Points. Points are compared with the first point, unless they name another.
    pub points: Vec<Point>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Point {
    pub label: String,
    /// Engine that runs the transactions [default: Lotus].
    pub engine: Option<String>,
    /// Flags of this point only.
    #[serde(default)]
    flags: String,
    /// Label of the point in the denominator of this point's ratios [default: the first].
    pub against: Option<String>,
    /// Names of the protocol's rules to break during the measurement.
    #[serde(default)]
    pub without: Vec<String>,
    /// Published ratio of this point's compared quantity to the other point's.
    pub published: Option<f64>,
    /// Range in which our ratio counts as equal to the published ratio.
    band: Option<[f64; 2]>,
    /// Whether the ratio was once in its band: leaving the band is then a fault.
    #[serde(default)]
    pub accepted: bool,
    /// Published ratio of this point's median latency to the other point's.
    pub published_p50: Option<f64>,
    /// The same for the 99th percentile.
    pub published_p99: Option<f64>,
    /// Published share of aborted attempts of the watched type.
    pub published_aborts: Option<f64>,
    /// Published time in which no node grants locks of a moving shard, in microseconds.
    pub published_interruption_us: Option<f64>,
}

/// Load of closed loops: threads of each compute node, and transactions in flight on each thread.
/// Written `THREADSxIN_FLIGHT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct ClosedLoops {
    threads: usize,
    in_flight: usize,
}

impl TryFrom<String> for ClosedLoops {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parse = |part: &str| part.parse().ok().filter(|count| *count > 0);
        let parts = text.split_once('x');
        let parsed = parts.and_then(|(one, other)| Some((parse(one)?, parse(other)?)));
        let (threads, in_flight) =
            parsed.ok_or_else(|| format!("{text:?} is no load; 10x6 is 10 threads of 6"))?;
        Ok(Self { threads, in_flight })
    }
}

impl From<ClosedLoops> for String {
    fn from(ClosedLoops { threads, in_flight }: ClosedLoops) -> Self {
        format!("{threads}x{in_flight}")
    }
}

/// Parses the command line of a point.
///
/// # Errors
/// The first line of the parser's message.
pub(crate) fn parse(command: &str) -> Result<BenchArgs, String> {
    let cli = Cli::typed(command).map_err(|error| {
        let message = error.to_string();
        let first = message.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })?;
    match cli.command {
        Command::Bench(task) => match *task {
            BenchTask::Load(workload) => Ok(BenchArgs { workload }),
            _ => Err("it is no benchmark of transactions".to_owned()),
        },
        _ => Err("it is no benchmark".to_owned()),
    }
}

impl Figure {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// One sentence about the error.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let figure: Self = toml::from_str(text).map_err(|error| of_toml(text, &error))?;
        figure.check()?;
        Ok(figure)
    }

    fn check(&self) -> Result<(), String> {
        if self.series.is_empty() {
            return Err("it has no series".to_owned());
        }
        if self.within.is_some_and(|within| !(0.0..1.0).contains(&within)) {
            return Err("within is not between 0 and 1".to_owned());
        }
        for series in &self.series {
            series.check().map_err(|why| format!("{}: {why}", series.name))?;
            if self.x.is_some() != series.at.is_some() {
                return Err(format!("{}: x and at go together", series.name));
            }
            let unchecked = self.needs_sabotage && !without::can_be_broken();
            for (point, load, line) in self.lines(series).filter(|_| !unchecked) {
                let command = format!("{BENCH} {}", line.typed());
                let checked = parse(&command).and_then(|args| check_line(&args));
                let load =
                    load.map_or_else(String::new, |load| format!(" at {}", String::from(load)));
                checked.map_err(|why| format!("{}, {}{load}: {why}", series.name, point.label))?;
            }
        }
        self.ratios.iter().try_for_each(|ratio| ratio.check(&self.series))
    }

    /// The points of a series at all loads, with full-length command lines.
    fn lines<'a>(
        &'a self,
        series: &'a Series,
    ) -> impl Iterator<Item = (&'a Point, Option<ClosedLoops>, CommandLine)> {
        let loads = self.loads(series, Length::Full);
        series.points.iter().flat_map(move |point| {
            let line = move |load| (point, load, self.line(series, point, load, Length::Full));
            loads.clone().into_iter().map(line)
        })
    }

    fn line(
        &self,
        series: &Series,
        point: &Point,
        load: Option<ClosedLoops>,
        length: Length,
    ) -> CommandLine {
        let mut line = CommandLine::of([&series.bench, TESTBED, self.testbed.as_str()]);
        if let Some(engine) = point.engine.as_ref().filter(|engine| *engine != LOTUS) {
            line.remove(&OF_LOTUS);
            line.add(&format!("--engine {engine}"));
        }
        line.add(&point.flags);
        if let Some(ClosedLoops { threads, in_flight }) = load {
            line.add(&format!("--threads {threads} --coroutines {in_flight}"));
        }
        if length == Length::Short {
            line.add(self.short.as_deref().unwrap_or(SHORT));
            line.add(&series.short);
        }
        line
    }

    /// The command line of a point's measurement.
    pub(super) fn command(
        &self,
        series: &Series,
        point: &Point,
        load: Option<ClosedLoops>,
        length: Length,
    ) -> String {
        format!("{BENCH} {}", self.line(series, point, load, length).typed())
    }

    /// Loads for the points of a series; one `None` without a sweep. A short sweep has the smallest
    /// load, the largest, and one in between; or only the largest if no curve is plotted.
    pub(super) fn loads(&self, series: &Series, length: Length) -> Vec<Option<ClosedLoops>> {
        let all = &series.sweep;
        match (length, all.len()) {
            (_, 0) => vec![None],
            (Length::Short, some) if self.x.is_some() => vec![Some(all[some - 1])],
            (Length::Short, 4..) => {
                [0, all.len() / 2, all.len() - 1].map(|at| Some(all[at])).into()
            }
            _ => all.iter().copied().map(Some).collect(),
        }
    }

    /// The band around a published ratio.
    pub(super) fn band_around(&self, published: f64) -> Band {
        Band::around(published, self.within.unwrap_or(WITHIN))
    }

    /// The range in which a point's ratio counts as equal to the published ratio.
    pub(super) fn band(&self, point: &Point, published: f64) -> Band {
        match point.band {
            Some([low, high]) => Band { low, high },
            None => self.band_around(published),
        }
    }

    /// All points.
    pub(super) fn points(&self) -> impl Iterator<Item = (&Series, &Point)> {
        let series = self.series.iter();
        series.flat_map(|series| series.points.iter().map(move |point| (series, point)))
    }
}

impl Series {
    fn check(&self) -> Result<(), String> {
        if self.points.is_empty() {
            return Err("it has no points".to_owned());
        }
        for (index, point) in self.points.iter().enumerate() {
            let Point { label, against, band, accepted, published, without, .. } = point;
            if self.points[..index].iter().any(|other| other.label == *label) {
                return Err(format!("two points are called {label}"));
            }
            if let Some(against) = against
                && self.points.iter().all(|other| other.label != *against)
            {
                return Err(format!("{label} is against {against}, which there is not"));
            }
            if band.is_some_and(|[low, high]| !(0.0 <= low && low <= high)) {
                return Err(format!("the band of {label} ends before it begins"));
            }
            if (band.is_some() || *accepted) && published.is_none() {
                return Err(format!("{label} has a band, and nothing published"));
            }
            if let Some(rule) = without.iter().find(|rule| !without::is_known(rule)) {
                return Err(format!("{label} breaks the rule {rule}, which there is not"));
            }
        }
        Ok(())
    }

    /// Index of the point in the denominator of a point's ratios.
    pub(super) fn base(&self, point: &Point) -> usize {
        let named = |label: &String| self.points.iter().position(|other| other.label == *label);
        point.against.as_ref().and_then(named).unwrap_or(0)
    }
}

impl Ratio {
    /// Whether the ratio concerns a series.
    pub(super) fn is_of(&self, series: &Series) -> bool {
        self.series.as_ref().is_none_or(|name| *name == series.name)
    }

    fn check(&self, all: &[Series]) -> Result<(), String> {
        let Self { of, over, value, least, most, .. } = self;
        let what = format!("the ratio of {of} over {over}");
        let series: Vec<_> = all.iter().filter(|series| self.is_of(series)).collect();
        let has = |series: &Series, label: &str| series.points.iter().any(|one| one.label == label);
        if series.is_empty() || !series.iter().all(|one| has(one, of) && has(one, over)) {
            return Err(format!("{what} is of a series or point that there is not"));
        }
        if value.is_some() && series.len() > 1 {
            return Err(format!("{what} has a value and no series"));
        }
        match value.or(*least).or(*most) {
            Some(_) => Ok(()),
            None => Err(format!("{what} has no value")),
        }
    }
}

/// Refuses command lines that figures cannot use.
fn check_line(args: &BenchArgs) -> Result<(), String> {
    bench::check(args).map_err(|error| error.to_string())?;
    let common = args.common();
    if common.fabric != Fabric::Sim {
        return Err("figures are simulated: it needs --fabric sim".to_owned());
    }
    let writes = common.json.is_some() || common.history.is_some();
    if writes || common.repeat > 1 || common.cluster.is_some() {
        return Err("--json, --history, --repeat and --cluster make no sense here".to_owned());
    }
    Ok(())
}

/// The parser's error as one sentence, with the line.
pub(crate) fn of_toml(text: &str, error: &toml::de::Error) -> String {
    let line =
        error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().lines().collect::<Vec<_>>().join(" ");
    line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "title = 'a'\nsource = 'b'\n[[series]]\nname = 's'\nbench = 'kvs'\n";

    #[test]
    fn a_bad_file_is_refused_in_one_sentence() {
        let point = "[[series.points]]\nlabel = 'p'\n";
        let cases = [
            ("titel = 'a'\n".to_owned(), "line 1: unknown field `titel`"),
            (format!("{SMALL}{point}flag = ''\n"), "line 8: unknown field `flag`"),
            (SMALL.to_owned(), "points"),
            ("title = 'a'\nsource = 'b'\nseries = []\n".to_owned(), "it has no series"),
            (format!("{SMALL}points = []\n"), "s: it has no points"),
            (format!("{SMALL}{point}{point}"), "s: two points are called p"),
            (format!("{SMALL}{point}against = 'q'\n"), "p is against q, which there is not"),
            (format!("{SMALL}{point}accepted = true\n"), "a band, and nothing published"),
            (format!("{SMALL}{point}published = 1.0\nband = [2, 1]\n"), "ends before it begins"),
            (format!("{SMALL}{point}without = ['gravity']\n"), "breaks the rule gravity"),
            (format!("{SMALL}{point}flags = '--cn 9'\n"), "s, p: unexpected argument '--cn'"),
            (format!("{SMALL}{point}flags = '--replicas 4'\n"), "4 replicas do not fit on 3"),
            (format!("{SMALL}{point}flags = '--repeat 2'\n"), "make no sense here"),
            (format!("{SMALL}{point}flags = '--fabric local'\n"), "sim"),
            (format!("{SMALL}sweep = ['9']\n{point}"), "is no load"),
            (format!("{SMALL}sweep = ['65x1']\n{point}"), "s, p at 65x1: "),
            (format!("{SMALL}at = 1\n{point}"), "x and at go together"),
            (
                format!("{SMALL}{point}[[ratios]]\nof = 'p'\nover = 'q'\nvalue = 1\n"),
                "there is not",
            ),
            (format!("{SMALL}{point}[[ratios]]\nof = 'p'\nover = 'p'\n"), "has no value"),
            (format!("within = 2.0\n{SMALL}{point}"), "within is not between 0 and 1"),
        ];
        for (text, expected) in cases {
            let why = Figure::parse(&text).expect_err(&text);
            assert!(why.contains(expected) && !why.contains('\n'), "{why}\n{text}");
        }
    }

    #[test]
    fn a_point_has_one_command_line_at_each_load() {
        let text = format!(
            "testbed = '--profile ideal'\nshort = '--secs 0.001'\n{SMALL}short = '--keys 5'\n\
             sweep = ['1x1', '2x1', '4x1', '4x4']\n[[series.points]]\nlabel = 'p'\n\
             flags = '--cns 1'\n"
        );
        let figure = Figure::parse(&text).expect("sound");
        let series = &figure.series[0];
        let command = |load, length| figure.command(series, &series.points[0], load, length);
        let [full, short] =
            [Length::Full, Length::Short].map(|length| figure.loads(series, length));
        assert_eq!((full.len(), short), (4, vec![full[0], full[2], full[3]]));
        let typed = command(full[3], Length::Full);
        assert!(typed.starts_with("lotus-lab bench kvs --fabric sim --mns 3"), "{typed}");
        assert!(typed.ends_with("--profile ideal --cns 1 --threads 4 --coroutines 4"), "{typed}");
        let mut other = series.points[0].clone();
        other.engine = Some("motor".to_owned());
        let typed = figure.command(series, &other, None, Length::Full);
        assert!(typed.ends_with("--profile ideal --engine motor --cns 1"), "{typed}");
        assert!(!typed.contains("--inline") && typed.contains("--mns 3"), "{typed}");
        let typed = command(full[0], Length::Short);
        assert!(typed.ends_with("--secs 0.001 --keys 5"), "{typed}");
    }
}
