//! The common interface of all experiments: points to measure, each by a command, and the findings
//! from their results.
//!
//! Measuring and showing are separate, so that results can come from an earlier run.

use serde_json::Value;

use super::grid::Grid;
use super::plot::Plot;
use crate::bench;

/// Duration of the measurement of a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// The duration in the experiment's file.
    Full,
    /// A moment for each point, and at most three loads of a sweep: a smoke test that shows orders
    /// of magnitude.
    Short,
}

/// A measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Task {
    /// Series, point and load.
    pub label: String,
    /// The command that takes the measurement.
    pub command: String,
    /// Rules of the protocol to break during the measurement, which no command does.
    pub without: Vec<String>,
}

/// Findings from the results of an experiment.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// Tables and headings, in display order.
    pub blocks: Vec<Block>,
    pub plots: Vec<Plot>,
    /// Published claims that are not numbers, and reasons for differing results.
    pub remarks: String,
    /// The busiest resource and its share, for each measurement; empty if unknown.
    pub busiest: Vec<String>,
    /// Number of published values matched and missed by our values.
    pub tally: Tally,
    /// Labels of points that used to be in their band and no longer are.
    pub fallen: Vec<String>,
    /// Labels of points whose audit failed.
    pub unsound: Vec<String>,
    /// All points as JSON.
    pub json: Vec<Value>,
}

/// A part of the output.
#[derive(Clone, Debug)]
pub(super) enum Block {
    Table(Grid),
    Heading(String),
}

/// Number of values in band, and out of band.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tally {
    pub inside: usize,
    pub outside: usize,
}

impl Tally {
    /// Counts judgements.
    pub(super) fn of(in_band: impl IntoIterator<Item = bool>) -> Self {
        in_band.into_iter().fold(Self::default(), |sum, inside| Self {
            inside: sum.inside + usize::from(inside),
            outside: sum.outside + usize::from(!inside),
        })
    }
}

/// An experiment: a figure of transactions, a figure of locks alone, or a recovery.
pub(super) trait Experiment: Sync {
    /// Headline.
    fn title(&self) -> &str;

    /// Place of publication.
    fn source(&self) -> &str;

    /// All measurements of the experiment.
    fn tasks(&self, length: Length) -> Vec<Task>;

    /// Whether this build can run the experiment.
    fn is_possible(&self) -> bool {
        true
    }

    /// Carries out one task of the experiment; the result is input for [`Experiment::findings`].
    ///
    /// # Errors
    /// Errors of the benchmark.
    fn measure(&self, task: &Task) -> Result<Value, bench::Failure>;

    /// Returns the findings from the results of all tasks, in the order of the tasks.
    ///
    /// # Errors
    /// A parser error, if a result is not of this program.
    fn findings(&self, length: Length, results: &[Value]) -> Result<Findings, serde_json::Error>;
}

impl Findings {
    /// Tables and remarks as text, under a headline.
    pub(super) fn text(&self, headline: &str) -> String {
        let mut text = format!("{headline}\n");
        for block in &self.blocks {
            text.push('\n');
            match block {
                Block::Table(grid) => text.push_str(&grid.text()),
                Block::Heading(heading) => text.push_str(heading),
            }
            text.push('\n');
        }
        if !self.remarks.is_empty() {
            text.push_str(&format!("\n{}\n", self.remarks.trim()));
        }
        text.push('\n');
        text
    }
}
