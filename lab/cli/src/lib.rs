//! The `lotus-lab` command: lock systems and other engines under load, campaigns of simulation, and
//! published figures. Other modules do the work; flags, screens and benchmarks of transactions are
//! those of `lotus_runner`, as are the exit codes.
//!
//! # Floors
//! A room imports only from rooms on lower floors:
//! * this file and `documents`: from arguments to the commands, and entry points for tests of
//!   documents;
//! * `figures`: experiments of the papers;
//! * `bench`, `sim`: the commands that run load, or judge results;
//! * `args`: the command line.

#![forbid(unsafe_code)]

mod args;
mod bench;
#[doc(hidden)]
pub mod documents;
mod figures;
mod sim;

use std::process::ExitCode;

use args::{BenchTask, Cli, Command};
use lotus_runner::args::BenchArgs;
use lotus_runner::bench::memory_nodes;
use lotus_runner::show::{Verdict, exit};

/// Carries out the command line of this process.
pub fn main() -> ExitCode {
    exit::survive_file_size_limits();
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return exit::answer(&error),
    };
    exit::code(match &cli.command {
        Command::Bench(task) => match &**task {
            BenchTask::Load(workload) => bench::run(&BenchArgs { workload: workload.clone() }),
            BenchTask::Locks(args) => bench::locks::run(args),
            BenchTask::Objects(args) => bench::objects::run(args),
            BenchTask::Tree(args) => bench::tree::run(args),
            BenchTask::LockTrace(args) => bench::lock_trace::run(args),
            BenchTask::Bank(args) => bench::bank::run(args),
        }
        .map_err(|error| error.to_string()),
        Command::Sim(args) => sim::run(args).map_err(|error| error.to_string()),
        Command::Figures(args) => figures::run(args).map_err(|error| error.to_string()),
        Command::Host(args) => memory_nodes::serve(args).map(|()| Verdict::Sound),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
