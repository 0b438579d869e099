//! Output of a command's results: text for a person, data for a program.

use std::io::{self, Write};

use lotus_benchmarks::output::{Output, OutputError};
use lotus_benchmarks::stream::{ClosedPipeTolerant, StandardOutput};
use lotus_security::printable;
use serde::Serialize;

use crate::show::verdict::Verdict;

/// Writes `result` as indented JSON.
///
/// # Errors
/// [`OutputError`] if the output refuses it.
pub fn write_json(output: &Output, result: &impl Serialize) -> Result<(), OutputError> {
    output.write(|out| {
        serde_json::to_writer_pretty(&mut *out, result)?;
        out.write_all(b"\n")
    })
}

/// Shows `text` to a person: on the standard output, or on the standard error if the standard
/// output carries `data`.
///
/// # Errors
/// Errors of the system.
pub fn show(text: &str, data: &[&Option<Output>]) -> io::Result<()> {
    if data.contains(&&Some(Output::Stdout)) {
        ClosedPipeTolerant(io::stderr()).write_all(text.as_bytes())
    } else {
        StandardOutput.write_all(text.as_bytes())
    }
}

/// Prints to standard output.
pub fn say(what: &str) -> Result<Verdict, String> {
    let written = StandardOutput.write_all(what.as_bytes());
    written.map_err(|error| format!("cannot write: {error}"))?;
    Ok(Verdict::Sound)
}

/// Reports on the standard error why a command has failed, in one sentence.
pub fn complain(why: &str) -> Verdict {
    // A closed standard error is ignored.
    let _ = writeln!(io::stderr(), "error: {}", printable(why));
    Verdict::Unsound
}

/// The value as `show` writes it; a dash for none.
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// A share as a percentage with one digit.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
