//! What all experiments have in common: points to measure, each by a command, and what the results
//! show.
//!
//! Measuring and showing are apart, so that results can come from an earlier run.

use serde_json::Value;

use super::grid::Grid;
use super::plot::Plot;
use crate::bench;

/// How long points are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Length {
    /// As long as their files say.
    Full,
    /// A moment each, at three loads of a sweep at most: to see that all works, and orders of
    /// magnitude.
    Short,
}

/// One measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Task {
    /// Series, point and load.
    pub label: String,
    /// The command that measures it.
    pub command: String,
    /// Rules of the protocol that are broken meanwhile, which no command does.
    pub without: Vec<String>,
}

/// What the results of an experiment show.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// Tables and headings, in the order in which they are shown.
    pub blocks: Vec<Block>,
    pub plots: Vec<Plot>,
    /// What is published if it is not a number, and why results differ from it.
    pub remarks: String,
    /// The busiest resource of each measurement, and its share; empty where that is not known.
    pub busiest: Vec<String>,
    /// Published values that ours are judged by.
    pub tally: Tally,
    /// Labels of points that were in their band once and are not now.
    pub fallen: Vec<String>,
    /// Labels of points with an audit that failed.
    pub unsound: Vec<String>,
    /// All points as JSON.
    pub json: Vec<Value>,
}

/// A part of what is shown.
#[derive(Clone, Debug)]
pub(super) enum Block {
    Table(Grid),
    Heading(String),
}

/// Number of values that are in their band, and out of it.
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

/// An experiment: a figure of transactions, one with locks alone, or the one of recovery.
pub(super) trait Experiment: Sync {
    /// Headline.
    fn title(&self) -> &str;

    /// Place of publication.
    fn source(&self) -> &str;

    /// All measurements that it takes.
    fn tasks(&self, length: Length) -> Vec<Task>;

    /// Whether this build can run it.
    fn is_possible(&self) -> bool {
        true
    }

    /// Carries out one of its tasks; the result is what [`Experiment::findings`] takes.
    ///
    /// # Errors
    /// The benchmark's.
    fn measure(&self, task: &Task) -> Result<Value, bench::Failure>;

    /// What the results of all tasks show, in their order.
    ///
    /// # Errors
    /// The parser's, if one is no result of this program.
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
