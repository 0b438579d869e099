//! The `lotus` command: argument parsing, output and the exit code. Other modules do the work.
//!
//! The command is a library to make fuzzing of the input files possible; the program is only
//! [`main`].
//!
//! Screens, exit codes and benchmarks on clusters of their own are those of `lotus_runner`.
//!
//! # Floors
//! A room imports only from rooms on lower floors:
//! * this file, `cluster`, `fuzzing` and `documents`: from arguments to the commands, and entry
//!   points for fuzz targets and for tests of documents;
//! * `top`: a running cluster or benchmark in a terminal;
//! * `bench`, `chaos`, `check`: the commands that run load, or judge results;
//! * `operate`: an operator's commands for a cluster of processes, and for its data;
//! * `apps`: the workloads of `lotus bench` as applications of a cluster of processes, and their
//!   clients;
//! * `config`: the description of a cluster;
//! * `args`: the command line.

#![forbid(unsafe_code)]

mod args;
mod bench;
mod check;
#[doc(hidden)]
pub mod documents;
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

use std::process::ExitCode;

use args::{Cli, Command};
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
        Command::Bench(args) => bench::run(args).map_err(|error| error.to_string()),
        Command::Check(args) => check::run(args).map_err(|error| error.to_string()),
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
