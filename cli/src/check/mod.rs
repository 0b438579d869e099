//! `lotus check`: from a history to a verdict.
//!
//! `lotus_checker` judges. This module opens, watches and times the history; [`findings`] formats
//! the output. Imports `args`.

mod findings;

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use lotus_benchmarks::output::{Output, OutputError};
use lotus_checker::{History, HistoryError, Options, RealTime, check};
use lotus_fabric::env::Env;

use crate::args::CheckArgs;
use findings::{Findings, Times};
use lotus_runner::show::watch::ReadWatch;
use lotus_runner::show::{Verdict, screen};

/// Size of the read buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Failure to reach a verdict.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The system refuses to read the history; the error says why.
    #[error("cannot read {0}: {1}")]
    Unreadable(String, io::Error),
    /// A line is invalid. Fix the line, or the recording program.
    #[error("{0} is not a history: {1}")]
    NotAHistory(String, HistoryError),
    /// The history is empty. Any check would pass, so an empty history is refused.
    #[error("{0} is empty: there is nothing to check")]
    Empty(String),
    /// The result would replace the history. Name another path.
    #[error("--json names {}, which is the history itself", .0.display())]
    SameFile(PathBuf),
    /// The result could not be written to its path. Name another path.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The standard output is closed.
    #[error("cannot write the result: {0}")]
    Stdout(#[from] io::Error),
}

/// Checks a history and shows the findings.
///
/// # Errors
/// [`Failure`] if there is no verdict.
pub fn run(args: &CheckArgs) -> Result<Verdict, Failure> {
    let source = Source::open(&args.history)?;
    let json = args.json.as_deref().map(Output::check).transpose()?;
    if let Some(Output::Regular(path)) = &json
        && fs::canonicalize(&args.history).is_ok_and(|read| read == *path)
    {
        return Err(Failure::SameFile(args.history.clone()));
    }

    let env = Env::real(0);
    let began = env.now();
    let watch = ReadWatch::start(source.bytes);
    let name = source.name.clone();
    let history = source.read(&watch)?;
    let was_read = env.now();
    watch.checking();
    let real_time = if args.strict { RealTime::Enforced } else { RealTime::Ignored };
    let report = check(&history, &Options { real_time, ..Options::default() });
    drop(watch);
    let times = Times { read: was_read.since(began), check: env.now().since(was_read) };

    let findings = Findings::new(name, args.strict, &history, &report, times);
    if let Some(output) = &json {
        screen::write_json(output, &findings)?;
    }
    screen::show(&findings.text(), &[&json])?;
    Ok(findings.verdict())
}

/// Source of a history.
struct Source {
    /// Name for output and errors.
    name: String,
    /// Length, for a regular file.
    bytes: Option<u64>,
    reader: Box<dyn Read>,
}

impl Source {
    fn open(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() == "-" {
            let name = "the standard input".to_owned();
            return Ok(Self { name, bytes: None, reader: Box::new(io::stdin().lock()) });
        }
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((metadata, file)) => {
                let bytes = metadata.is_file().then_some(metadata.len());
                Ok(Self { name, bytes, reader: Box::new(file) })
            }
            Err(error) => Err(Failure::Unreadable(name, error)),
        }
    }

    fn read(self, watch: &ReadWatch) -> Result<History, Failure> {
        let Self { name, reader, .. } = self;
        let reader = BufReader::with_capacity(BUFFER_BYTES, watch.over(reader));
        match History::read(reader) {
            Ok(history) if history.attempts().is_empty() => Err(Failure::Empty(name)),
            Ok(history) => Ok(history),
            Err(HistoryError::Io(error)) => Err(Failure::Unreadable(name, error)),
            Err(error) => Err(Failure::NotAHistory(name, error)),
        }
    }
}
