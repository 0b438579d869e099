//! Command lines of points: the benchmark to run, and its measurement.

use clap::{Args, Parser};
use serde::Deserialize;

use super::measures::Seen;
use crate::args::{BankArgs, LockRunArgs, LockTraceArgs, LocksArgs, TreeArgs};
use crate::bench::{self, bank, lock_trace, locks, tree};

/// A benchmark without transactions, or with only the locks of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Bench {
    #[default]
    Locks,
    Tree,
    LockTrace,
    Bank,
}

impl Bench {
    const ALL: [Self; 4] = [Self::Locks, Self::Tree, Self::LockTrace, Self::Bank];

    /// Start of a point's command line.
    pub(super) const fn command(self) -> &'static str {
        match self {
            Self::Locks => "lotus-lab bench locks",
            Self::Tree => "lotus-lab bench tree",
            Self::LockTrace => "lotus-lab bench lock-trace",
            Self::Bank => "lotus-lab bench bank",
        }
    }
}

/// Parses flags in a file as if typed after the words of a benchmark.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, args_override_self = true)]
struct Line<A: Args> {
    #[command(flatten)]
    args: A,
}

/// Flags of a benchmark.
///
/// # Errors
/// The first line of the parser's message.
fn flags<A: Args>(words: &str) -> Result<A, String> {
    let parsed = Line::<A>::try_parse_from(words.split_whitespace());
    parsed.map(|line| line.args).map_err(|error| {
        let message = error.to_string();
        let first = message.lines().next().unwrap_or_default();
        first.trim_start_matches("error: ").to_owned()
    })
}

/// Arguments of a point for its benchmark.
#[derive(Debug)]
pub(super) enum BenchLine {
    Locks(LocksArgs),
    Tree(TreeArgs),
    Trace(LockTraceArgs),
    Bank(BankArgs),
}

impl BenchLine {
    /// Parses and checks the command line of a point.
    ///
    /// # Errors
    /// The first line of the parser's message, or the sentence of the benchmark's check.
    pub(super) fn parse(command: &str) -> Result<Self, String> {
        let words = |bench: &Bench| Some((*bench, command.strip_prefix(bench.command())?));
        let found = Bench::ALL.iter().find_map(words);
        let (bench, words) = found.unwrap_or((Bench::Locks, command));
        let (line, checked) = match bench {
            Bench::Locks => {
                let args = flags(words)?;
                let checked = locks::check(&args);
                (Self::Locks(args), checked)
            }
            Bench::Tree => {
                let args = flags(words)?;
                let checked = tree::check(&args);
                (Self::Tree(args), checked)
            }
            Bench::LockTrace => {
                let args = flags(words)?;
                let checked = lock_trace::check(&args);
                (Self::Trace(args), checked)
            }
            Bench::Bank => {
                let args = flags(words)?;
                let checked = bank::check(&args);
                (Self::Bank(args), checked)
            }
        };
        checked.map(|()| line).map_err(|error| error.to_string())
    }

    /// # Errors
    /// See [`locks::measure`], [`tree::measure`], [`lock_trace::measure`] and [`bank::measure`].
    pub(super) fn measure(&self) -> Result<Seen, bench::Failure> {
        match self {
            Self::Locks(args) => locks::measure(args).map(Seen::from),
            Self::Tree(args) => tree::measure(args).map(Seen::from),
            Self::Trace(args) => {
                let (load, outcome) = lock_trace::measure(args)?;
                Ok(Seen::of_trace(&load, outcome))
            }
            Self::Bank(args) => bank::measure(args).map(Seen::from),
        }
    }

    pub(super) const fn run_mut(&mut self) -> &mut LockRunArgs {
        match self {
            Self::Locks(args) => &mut args.run,
            Self::Tree(args) => &mut args.run,
            Self::Trace(args) => &mut args.run,
            Self::Bank(args) => &mut args.run,
        }
    }

    /// Measured time, in seconds.
    pub(super) fn secs(&self) -> f64 {
        match self {
            Self::Locks(args) => args.run.secs(),
            Self::Tree(args) => args.run.secs(),
            Self::Trace(args) => args.run.secs(),
            Self::Bank(args) => args.run.secs(),
        }
    }
}
