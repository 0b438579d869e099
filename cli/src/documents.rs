//! Entry points for the tests that compare documents with this program: flags, command lines, and
//! texts of files. Nothing is carried out.

use std::collections::BTreeSet;
#[cfg(feature = "tcp")]
use std::path::Path;

use clap::CommandFactory;
use clap::error::ErrorKind;
use lotus_benchmarks::config::Locks;
#[cfg(feature = "tcp")]
use lotus_node::config::file::ClusterFile;
use lotus_sim::named;

use crate::args::common::has;
use crate::args::{BenchArgs, BenchTask, Cli, Command, FiguresTask, ScenarioArgs, SimTask};
#[cfg(feature = "tcp")]
use crate::config::load::Load;
use crate::{bench, figures, sentence};

#[cfg(feature = "tcp")]
pub use crate::chaos::check as schedule;

/// Long flags of the program and of all its commands, without the dashes.
pub fn flags() -> BTreeSet<String> {
    fn collect(command: &clap::Command, flags: &mut BTreeSet<String>) {
        let long = command.get_arguments().filter_map(clap::Arg::get_long);
        flags.extend(long.map(str::to_owned));
        for subcommand in command.get_subcommands() {
            collect(subcommand, flags);
        }
    }
    let mut command = Cli::command();
    command.build();
    let mut flags = BTreeSet::new();
    collect(&command, &mut flags);
    flags
}

/// Checks a whole command line without quotes, which begins with the program's name.
///
/// # Errors
/// A sentence.
pub fn command(line: &str) -> Result<(), String> {
    match Cli::typed(line) {
        Ok(cli) => check(&cli.command),
        Err(error) if is_help(error.kind()) => Ok(()),
        Err(error) => Err(said(&error)),
    }
}

/// Checks a command line of which parts may be missing, such as a required flag.
///
/// # Errors
/// A sentence.
pub fn mention(line: &str) -> Result<(), String> {
    match Cli::typed(line) {
        Ok(cli) => check(&cli.command),
        Err(error) if is_help(error.kind()) || is_incomplete(error.kind()) => Ok(()),
        Err(error) => Err(said(&error)),
    }
}

fn is_help(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

fn is_incomplete(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
    )
}

fn said(error: &clap::Error) -> String {
    sentence(&error.render().to_string())
}

/// Checks flags that are invalid only together, and names of scenarios, rules and experiments.
fn check(command: &Command) -> Result<(), String> {
    match command {
        Command::Bench(task) => match &**task {
            BenchTask::Load(workload) => {
                let common = workload.common();
                // Other builds have this fabric, or this bound.
                let is_bound = common.locks == Locks::IdealRdma && !cfg!(feature = "sabotage");
                if !has(common.fabric) || is_bound {
                    return Ok(());
                }
                let args = BenchArgs { workload: workload.clone() };
                bench::check(&args).map_err(|error| error.to_string())
            }
            _ => Ok(()),
        },
        Command::Sim(args) => check_simulation(&args.task),
        Command::Figures(args) => match &args.task {
            FiguresTask::List => Ok(()),
            FiguresTask::Run(args) => args.names.iter().try_for_each(|name| experiment(name)),
            FiguresTask::Report(args) => args.names.iter().try_for_each(|name| experiment(name)),
        },
        _ => Ok(()),
    }
}

fn check_simulation(task: &SimTask) -> Result<(), String> {
    match task {
        SimTask::Run(args) => scenario(&args.scenario),
        SimTask::Replay(args) | SimTask::Shrink(args) => scenario(&args.scenario),
        SimTask::Locks(args) => match args.scenario.as_deref() {
            None | Some("all" | "list") => Ok(()),
            Some(name) => known(lotus_sim::locks::find(name).is_some(), "scenario", name),
        },
        #[cfg(feature = "sabotage")]
        SimTask::Sabotage(args) => match args.rule.as_deref() {
            None => Ok(()),
            Some(name) => {
                let is_rule = lotus_sabotage::Rule::ALL.iter().any(|rule| rule.name() == name);
                known(is_rule, "rule", name)
            }
        },
        #[cfg(feature = "fault-points")]
        SimTask::Matrix(_) => Ok(()),
        SimTask::List => Ok(()),
    }
}

fn scenario(args: &ScenarioArgs) -> Result<(), String> {
    match args.scenario.as_deref() {
        None | Some("all") => Ok(()),
        Some(name) => known(is_file(name) || named::find(name).is_some(), "scenario", name),
    }
}

fn experiment(name: &str) -> Result<(), String> {
    known(is_file(name) || figures::is_known(name), "experiment", name)
}

fn is_file(name: &str) -> bool {
    name.ends_with(".toml")
}

fn known(is_known: bool, kind: &str, name: &str) -> Result<(), String> {
    is_known.then_some(()).ok_or_else(|| format!("there is no {kind} {name}"))
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
