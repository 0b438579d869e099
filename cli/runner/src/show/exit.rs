//! Exit codes and last words of a program, the same for `lotus` and `lotus-lab`.
//!
//! Codes: 0 when all is well; 1 when an audit failed, a history has a violation, a cluster is not
//! healthy, or a row does not exist or could not be read or written; 2 when the command could not
//! do its task: then one sentence on the standard error says why, and no file has been touched; 3
//! when no fault was found, but part of the data could not be judged.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::error::ErrorKind;
use lotus_fabric::env::Env;
use lotus_security::printable;
use signal_hook::consts::SIGXFSZ;

use super::Verdict;

const UNSOUND: u8 = 1;
const REFUSED: u8 = 2;
const UNJUDGED: u8 = 3;
/// Time limit for writing the last line of a failing process.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Makes a write beyond the file size limit an error of that write. Without this handler, SIGXFSZ
/// ends the process, as is the default.
pub fn survive_file_size_limits() {
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// The exit code of a command's result. An error is printed first.
pub fn code(result: Result<Verdict, String>) -> ExitCode {
    match result {
        Ok(Verdict::Sound) => ExitCode::SUCCESS,
        Ok(Verdict::Unsound) => ExitCode::from(UNSOUND),
        Ok(Verdict::Unjudged) => ExitCode::from(UNJUDGED),
        Err(why) => refuse(&why),
    }
}

/// Prints help, or the error of a command line that clap refuses.
pub fn answer(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed standard output is ignored.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(REFUSED)
        }
        _ => refuse(&sentence(&error.render().to_string())),
    }
}

/// Prints the reason, and returns the exit code. A standard error that accepts nothing, such as a
/// full pipe, delays the end of the process by at most [`LAST_WORDS`]: otherwise an expelled node
/// would never be restarted.
fn refuse(why: &str) -> ExitCode {
    let line = format!("error: {}\n", printable(why));
    // A closed standard error is ignored.
    let say = |line: &str| drop(io::stderr().write_all(line.as_bytes()));
    let (said, is_said) = std::sync::mpsc::channel();
    let theirs = line.clone();
    let saying = Env::real(0).spawn("last words", move || {
        say(&theirs);
        let _ = said.send(());
    });
    match saying {
        Ok(_) => drop(is_said.recv_timeout(LAST_WORDS)),
        Err(_) => say(&line),
    }
    ExitCode::from(REFUSED)
}

/// The first paragraph of clap's message and its tip, as one sentence.
pub(crate) fn sentence(message: &str) -> String {
    let paragraphs: Vec<String> = message
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let mut sentence = paragraphs[0].trim_start_matches("error: ").to_owned();
    if let Some(tip) = paragraphs.iter().find_map(|paragraph| paragraph.strip_prefix("tip: ")) {
        sentence.push_str("; ");
        sentence.push_str(tip);
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_becomes_a_sentence() {
        let message = "error: unexpected argument '--cn' found\n\n  tip: a similar argument \
                       exists: '--cns'\n\nUsage: lotus bench kvs\n\nFor more, try '--help'.\n";
        let expected = "unexpected argument '--cn' found; a similar argument exists: '--cns'";
        assert_eq!(sentence(message), expected);
        assert_eq!(sentence("error: a\n  b, c\n"), "a b, c");
    }
}
