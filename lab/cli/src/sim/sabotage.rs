//! `lotus-lab sim sabotage`: the table of broken rules, with the check that caught each.

use std::io::Write;

use lotus_benchmarks::report::grouped;
use lotus_benchmarks::stream::StandardOutput;
use lotus_fabric::env::Env;
use lotus_sabotage::Rule;
use lotus_sim::sabotage::{FalseAlarm, Row, Verdict as HuntVerdict, control, controlled, hunt_all};

use super::{SimulationError, bar};
use crate::args::SabotageArgs;
use lotus_runner::show::Verdict;

/// Hunts for every rule, then runs the seeds again with all rules intact.
///
/// # Errors
/// [`SimulationError`] if there is no verdict.
pub fn run(args: &SabotageArgs) -> Result<Verdict, SimulationError> {
    let rules: Vec<Rule> = match &args.rule {
        None => Rule::ALL.to_vec(),
        Some(name) => vec![named(name)?],
    };
    let workers = args.workers.unwrap_or_else(|| Env::real(0).parallelism());
    let watch = bar(rules.len() as u64);
    let rows = hunt_all(&rules, 0..args.seeds, workers, |_| watch.inc(1))?;
    watch.finish_and_clear();
    let mut out = StandardOutput;
    writeln!(out, "{:<15}{:<30}{:>6}  caught by", "hazard", "rule", "runs")?;
    for row in &rows {
        writeln!(
            out,
            "{:<15}{:<30}{:>6}  {}",
            row.rule.hazard(),
            row.rule.name(),
            grouped(row.runs),
            judged(row)
        )?;
    }
    let caught =
        rows.iter().filter(|row| matches!(row.verdict, HuntVerdict::Caught { .. })).count();
    writeln!(out, "{caught} of {} broken rules were caught", rows.len())?;

    let runs = controlled(&rows, args.control);
    let alarms = control(&runs, workers)?;
    for FalseAlarm { scenario, seed, violations } in &alarms {
        writeln!(out, "false alarm: {scenario}, seed {seed}: {violations:?}")?;
    }
    let verdict = if alarms.is_empty() { "no false alarm" } else { "FALSE ALARMS" };
    let count = grouped(runs.len() as u64);
    writeln!(out, "control, nothing broken: {count} runs of the same scenarios: {verdict}")?;
    let sound = caught == rows.len() && alarms.is_empty();
    Ok(if sound { Verdict::Sound } else { Verdict::Unsound })
}

fn named(name: &str) -> Result<Rule, SimulationError> {
    let found = Rule::ALL.iter().copied().find(|rule| rule.name() == name);
    found.ok_or_else(|| SimulationError::UnknownRule(name.to_owned()))
}

fn judged(row: &Row) -> String {
    match &row.verdict {
        HuntVerdict::Caught { scenario, seed, violation } => {
            format!("{} ({scenario}, seed {seed})", violation.property)
        }
        HuntVerdict::Missed { others } if others.is_empty() => "NOBODY".to_owned(),
        HuntVerdict::Missed { others } => {
            let others: Vec<_> = others.iter().map(String::as_str).collect();
            format!("NOBODY meant for it, but: {}", others.join("; "))
        }
    }
}
