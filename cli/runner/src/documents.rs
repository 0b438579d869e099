//! Helpers of the tests that compare documents with a program: flags, and command lines. Nothing is
//! carried out.

use std::collections::BTreeSet;

use clap::error::ErrorKind;
use lotus_benchmarks::config::Locks;

use crate::args::BenchArgs;
use crate::args::common::has;
use crate::bench;
use crate::show::exit::sentence;

/// Long flags of a program and of all its commands, without the dashes.
pub fn flags(mut program: clap::Command) -> BTreeSet<String> {
    fn collect(command: &clap::Command, flags: &mut BTreeSet<String>) {
        let long = command.get_arguments().filter_map(clap::Arg::get_long);
        flags.extend(long.map(str::to_owned));
        for subcommand in command.get_subcommands() {
            collect(subcommand, flags);
        }
    }
    program.build();
    let mut flags = BTreeSet::new();
    collect(&program, &mut flags);
    flags
}

/// Judges a command line that a program has parsed, by `check`; one that asks for help is sound.
///
/// # Errors
/// A sentence.
pub fn whole<T>(
    parsed: Result<T, clap::Error>,
    check: impl FnOnce(&T) -> Result<(), String>,
) -> Result<(), String> {
    match parsed {
        Ok(parsed) => check(&parsed),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(()),
            _ => Err(sentence(&error.render().to_string())),
        },
    }
}

/// Judges a command line of which parts may be missing, such as a required flag.
///
/// # Errors
/// A sentence.
pub fn mentioned<T>(
    parsed: Result<T, clap::Error>,
    check: impl FnOnce(&T) -> Result<(), String>,
) -> Result<(), String> {
    let kind = parsed.as_ref().err().map(clap::Error::kind);
    let is_incomplete = matches!(
        kind,
        Some(
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                | ErrorKind::MissingRequiredArgument
                | ErrorKind::MissingSubcommand
        )
    );
    if is_incomplete { Ok(()) } else { whole(parsed, check) }
}

/// Checks flags of a benchmark that are invalid only together. Other builds may have a fabric or a
/// bound that this one lacks.
///
/// # Errors
/// A sentence.
pub fn benchmark(args: &BenchArgs) -> Result<(), String> {
    let common = args.common();
    let is_bound = common.locks == Locks::IdealRdma && !cfg!(feature = "sabotage");
    if !has(common.fabric) || is_bound {
        return Ok(());
    }
    bench::check(args).map_err(|error| error.to_string())
}
