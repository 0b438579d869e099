//! Entry points for the tests that compare documents with this program: flags, and command lines.
//! Nothing is carried out.

use std::collections::BTreeSet;

use clap::CommandFactory;
use lotus_runner::args::BenchArgs;
use lotus_runner::documents::{self, benchmark};
use lotus_sim::named;

use crate::args::{BenchTask, Cli, Command, FiguresTask, ScenarioArgs, SimTask};
use crate::figures;

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

/// Checks flags that are invalid only together, and names of scenarios, rules and experiments.
fn check(cli: &Cli) -> Result<(), String> {
    match &cli.command {
        Command::Bench(task) => match &**task {
            BenchTask::Load(workload) => benchmark(&BenchArgs { workload: workload.clone() }),
            _ => Ok(()),
        },
        Command::Sim(args) => check_simulation(&args.task),
        Command::Figures(args) => match &args.task {
            FiguresTask::List => Ok(()),
            FiguresTask::Run(args) => args.names.iter().try_for_each(|name| experiment(name)),
            FiguresTask::Report(args) => args.names.iter().try_for_each(|name| experiment(name)),
        },
        Command::Host(_) => Ok(()),
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
