//! Entry points for the tests that compare documents with this program: flags, command lines, and
//! texts of files. Nothing is carried out.

use std::collections::BTreeSet;
#[cfg(feature = "tcp")]
use std::path::Path;

use clap::CommandFactory;
#[cfg(feature = "tcp")]
use lotus_node::config::file::ClusterFile;
use lotus_runner::documents::{self, benchmark};

use crate::args::{Cli, Command};
#[cfg(feature = "tcp")]
use crate::config::load::Load;

#[cfg(feature = "tcp")]
pub use crate::chaos::check as schedule;

/// Long flags of the program and of all its commands, without the dashes.
pub fn flags() -> BTreeSet<String> {
    documents::flags(Cli::command())
}

/// Checks a whole command line without quotes, which begins with the program's name.
///
/// # Errors
/// A sentence.
pub fn command(line: &str) -> Result<(), String> {
    documents::whole(Cli::typed(line), check)
}

/// Checks a command line of which parts may be missing, such as a required flag.
///
/// # Errors
/// A sentence.
pub fn mention(line: &str) -> Result<(), String> {
    documents::mentioned(Cli::typed(line), check)
}

/// Checks flags that are invalid only together.
fn check(cli: &Cli) -> Result<(), String> {
    match &cli.command {
        Command::Bench(args) => benchmark(args),
        _ => Ok(()),
    }
}

/// Checks the text of a cluster's file, and its load.
///
/// # Errors
/// A sentence.
#[cfg(feature = "tcp")]
pub fn cluster_file(text: &str) -> Result<(), String> {
    let file = ClusterFile::parse(Path::new("cluster.toml"), text, None);
    let load = file.and_then(|file| Load::of(&file));
    load.map(drop).map_err(|error| error.to_string())
}
