//! The `lotus` command: argument parsing, output and the exit code. Other modules do the work.
//!
//! The command is a library to make fuzzing of the input files possible; the program is only
//! [`main`].
//!
//! Exit codes: 0 when all is well; 1 when an audit failed, a history has a violation, a cluster is
//! not healthy, or a row does not exist or could not be read or written; 2 when the command could
//! not do its task: then one sentence on the standard error says why, and no file has been touched;
//! 3 when no fault was found, but part of the data could not be judged.
//!
//! # Floors
//! A room imports only from rooms on lower floors:
//! * this file, `cluster`, `fuzzing` and `documents`: from arguments to the commands, and entry
//!   points for fuzz targets and for tests of documents;
//! * `figures`; `top`: a running cluster or benchmark in a terminal;
//! * `bench`, `chaos`, `check`, `sim`: the commands that run load, or judge results;
//! * `operate`: an operator's commands for a cluster of processes, and for its data;
//! * `apps`: the workloads of `lotus bench` as applications of a cluster of processes, and their
//!   clients;
//! * `host`: sockets of this host, and resources used by its processes;
//! * `config`: the description of a cluster;
//! * `args`, `show`: the command line, and the output.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod check;
#[doc(hidden)]
pub mod documents;
mod figures;
mod host;
mod show;
mod sim;
mod top;

#[cfg(feature = "tcp")]
mod apps;
#[cfg(feature = "tcp")]
mod chaos;
#[cfg(feature = "tcp")]
mod cluster;
#[cfg(feature = "tcp")]
mod config;
#[cfg(feature = "tcp")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(feature = "tcp")]
mod operate;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::error::ErrorKind;

use lotus_fabric::env::Env;
use lotus_security::printable;
use signal_hook::consts::SIGXFSZ;

use args::{BenchArgs, BenchTask, Cli, Command};
use show::Verdict;

const UNSOUND: u8 = 1;
const REFUSED: u8 = 2;
/// Time limit for writing the last line of a failing process.
const LAST_WORDS: Duration = Duration::from_secs(5);
const UNJUDGED: u8 = 3;

/// Carries out the command line of this process.
pub fn main() -> ExitCode {
    // A write beyond the file size limit must be an error of that write, not the end of the
    // process. Without this handler, SIGXFSZ ends the process, as is the default.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return answer(&error),
    };
    let result = match &cli.command {
        Command::Bench(task) => match &**task {
            BenchTask::Load(workload) => bench::run(&BenchArgs { workload: workload.clone() }),
            BenchTask::Locks(args) => bench::locks::run(args),
            BenchTask::Objects(args) => bench::objects::run(args),
            BenchTask::Tree(args) => bench::tree::run(args),
            BenchTask::LockTrace(args) => bench::lock_trace::run(args),
            BenchTask::Bank(args) => bench::bank::run(args),
        }
        .map_err(|error| error.to_string()),
        Command::Check(args) => check::run(args).map_err(|error| error.to_string()),
        Command::Sim(args) => sim::run(args).map_err(|error| error.to_string()),
        Command::Figures(args) => figures::run(args).map_err(|error| error.to_string()),
        Command::Top(args) => top::run(args).map(|()| Verdict::Sound),
        #[cfg(feature = "tcp")]
        Command::Cluster(args) => cluster::run(args),
        #[cfg(feature = "tcp")]
        Command::Chaos(args) => cluster::chaos(args),
        #[cfg(feature = "tcp")]
        Command::Shards(args) => cluster::shards(args),
        #[cfg(feature = "tcp")]
        Command::Tables(args) => cluster::tables(args),
        #[cfg(feature = "tcp")]
        Command::Get(args) => cluster::get(args),
        #[cfg(feature = "tcp")]
        Command::Put(args) => cluster::put(args),
        #[cfg(feature = "tcp")]
        Command::Del(args) => cluster::del(args),
        #[cfg(feature = "tcp")]
        Command::Scan(args) => cluster::scan(args),
        #[cfg(feature = "tcp")]
        Command::Node(command) => cluster::serve(command).map(|()| Verdict::Sound),
        Command::Host(args) => bench::memory_nodes::serve(args).map(|()| Verdict::Sound),
    };
    match result {
        Ok(Verdict::Sound) => ExitCode::SUCCESS,
        Ok(Verdict::Unsound) => ExitCode::from(UNSOUND),
        Ok(Verdict::Unjudged) => ExitCode::from(UNJUDGED),
        Err(why) => refuse(&why),
    }
}

/// Prints help, or the error of a command line that clap refuses.
fn answer(error: &clap::Error) -> ExitCode {
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
fn sentence(message: &str) -> String {
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

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
