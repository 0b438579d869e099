//! `lotus-lab sim`: campaigns of simulated runs, replays, and shrinking of failed runs. Imports
//! `args`.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::ops::Range;
use std::path::Path;

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use lotus_benchmarks::config::Locks;
use lotus_benchmarks::output::{Output, OutputError};
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::stream::StandardOutput;
use lotus_fabric::env::Env;
use lotus_locksystems::trial::TrialError;
use lotus_sim::campaign::{Summary, campaign};
use lotus_sim::run::{Budget, run as run_once};
use lotus_sim::shrink::shrink;
use lotus_sim::{Outcome, Scenario, ScenarioError, named, swarm};
use serde_json::json;

use lotus_runner::args::LOCKS;

use crate::args::{ScenarioArgs, SimArgs, SimReplayArgs, SimRunArgs, SimTask};
use lotus_runner::show::{Verdict, screen};

mod locks;
#[cfg(feature = "fault-points")]
mod matrix;
#[cfg(feature = "sabotage")]
mod sabotage;

/// Maximum number of failing runs shown in full.
const MOST_FAILURES: usize = 10;
/// Maximum number of runs spent on shrinking one run.
const MOST_SHRINKING_RUNS: u64 = 2000;

/// Failure to reach a verdict.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The scenario cannot be run. Change the setting named in the sentence.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// There is neither a scenario nor a file with this name. See `lotus-lab sim list`.
    #[error("there is no scenario {0}, and no such file; `lotus-lab sim list` names them")]
    Unknown(String),
    /// There is no scenario of lock systems with this name. See the list.
    #[error(
        "there is no scenario {0} of lock systems; `lotus-lab sim locks --scenario list` names them"
    )]
    UnknownOfLocks(String),
    /// A lock system is not available as published. Leave out one of the two flags.
    #[error(transparent)]
    UnsupportedOption(#[from] lotus_locksystems::UnsupportedLockOption),
    /// A scenario of lock systems has no version that passes. Ask for the published version.
    #[error("nothing closes the hole of {0}: it can be had with --as-published only")]
    NothingMends(&'static str),
    /// A trial of locks cannot be run.
    #[error(transparent)]
    Locks(#[from] TrialError),
    /// The system refuses to read the file; the error says why.
    #[error("cannot read {0}: {1}")]
    Unreadable(String, io::Error),
    /// A campaign over all scenarios has no single scenario to replay. Name a scenario.
    #[error("name one scenario, not all")]
    NotOne,
    /// The rule does not exist. The whole table lists all rules.
    #[cfg(feature = "sabotage")]
    #[error("there is no rule {0}; `lotus-lab sim sabotage` lists them all")]
    UnknownRule(String),
    /// The coordinate does not exist. The whole table lists all coordinates.
    #[cfg(feature = "fault-points")]
    #[error("there is no coordinate {0}; `lotus-lab sim matrix --all` lists them")]
    UnknownCoordinate(String),
    /// The seed has no violation to shrink.
    #[error("seed {0} violates nothing")]
    Clean(u64),
    /// The result could not be written to its path. Name another path.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The standard output is closed.
    #[error("cannot write the result: {0}")]
    Stdout(#[from] io::Error),
}

/// Runs the subcommand.
///
/// # Errors
/// [`SimulationError`] if there is no verdict.
pub fn run(args: &SimArgs) -> Result<Verdict, SimulationError> {
    match &args.task {
        SimTask::Run(args) => run_campaign(args),
        SimTask::Replay(args) => replay(args),
        SimTask::Shrink(args) => make_short(args),
        SimTask::Locks(args) => locks::run(args),
        SimTask::List => list(),
        #[cfg(feature = "sabotage")]
        SimTask::Sabotage(args) => sabotage::run(args),
        #[cfg(feature = "fault-points")]
        SimTask::Matrix(args) => matrix::run(args),
    }
}

/// Source of each seed's scenario.
enum Source {
    /// A scenario drawn from each seed, with the given locks, if any.
    Swarm(Option<Locks>),
    /// The scenarios in turn, from seed to seed.
    Listed(Vec<Scenario>),
}

impl Source {
    fn new(args: &ScenarioArgs) -> Result<Self, SimulationError> {
        let Some(name) = args.scenario.as_deref() else {
            return Ok(Self::Swarm(args.locks));
        };
        if name == "all" {
            return Ok(Self::Listed(named::all().collect()));
        }
        if let Some(scenario) = named::find(name) {
            return Ok(Self::Listed(vec![scenario]));
        }
        if !Path::new(name).exists() {
            return Err(SimulationError::Unknown(name.to_owned()));
        }
        let bytes =
            fs::read(name).map_err(|error| SimulationError::Unreadable(name.to_owned(), error))?;
        Ok(Self::Listed(vec![Scenario::parse(name, &bytes)?]))
    }

    fn scenario(&self, seed: u64) -> Scenario {
        match self {
            Self::Swarm(None) => swarm::scenario(seed),
            Self::Swarm(Some(locks)) => swarm::with_locks(seed, *locks),
            Self::Listed(all) => all[(seed % all.len() as u64) as usize].clone(),
        }
    }

    /// The scenario for a replay of `seed`.
    fn one(&self, seed: u64) -> Result<Scenario, SimulationError> {
        match self {
            Self::Listed(all) if all.len() > 1 => Err(SimulationError::NotOne),
            _ => Ok(self.scenario(seed)),
        }
    }

    /// The command that replays a seed.
    fn replay_command(&self, seed: u64, given: Option<&str>) -> String {
        let mut command = format!("lotus-lab sim replay --seed {seed}");
        match self {
            Self::Swarm(locks) => {
                let name = |(_, of): &&(&str, Locks)| Some(*of) == *locks;
                if let Some((name, _)) = LOCKS.iter().find(name) {
                    let _ = write!(command, " --locks {name}");
                }
            }
            Self::Listed(all) if all.len() > 1 => {
                let _ = write!(command, " --scenario {}", self.scenario(seed).name);
            }
            Self::Listed(_) => {
                let _ = write!(command, " --scenario {}", given.unwrap_or_default());
            }
        }
        command
    }
}

fn budget(args: &ScenarioArgs) -> Budget {
    Budget { events: args.max_events, ..Budget::default() }
}

fn run_campaign(args: &SimRunArgs) -> Result<Verdict, SimulationError> {
    let json = args.json.as_deref().map(Output::check).transpose()?;
    let source = Source::new(&args.scenario)?;
    let seeds = args.from..args.from.saturating_add(args.seeds);
    let env = Env::real(0);
    let workers = args.workers.unwrap_or_else(|| env.parallelism());
    let bar = bar(args.seeds);
    let began = env.now();
    let after = |_, outcome: &Outcome| {
        bar.inc(1);
        if !outcome.is_clean() {
            bar.set_message("violations found");
        }
        true
    };
    let scenario_of = |seed| source.scenario(seed);
    let summary = campaign(seeds.clone(), scenario_of, workers, budget(&args.scenario), after);
    bar.finish_and_clear();
    let summary = summary?;
    let wall_s = env.now().since(began).as_secs_f64();
    if let Some(output) = &json {
        screen::write_json(output, &as_json(&summary, &seeds, wall_s))?;
    }
    let replay = |seed| source.replay_command(seed, args.scenario.scenario.as_deref());
    screen::show(&text(&summary, &seeds, wall_s, &replay), &[&json])?;
    Ok(if summary.failures.is_empty() { Verdict::Sound } else { Verdict::Unsound })
}

fn bar(runs: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{spinner} [{bar:30}] {pos} of {len} runs, {eta} to go {msg}";
    let style = ProgressStyle::with_template(template).expect("the template is a sound constant");
    ProgressBar::new(runs).with_style(style.progress_chars("= "))
}

fn as_json(summary: &Summary, seeds: &Range<u64>, wall_s: f64) -> serde_json::Value {
    let hazards = summary.hazards.iter().map(|(hazard, runs)| (hazard.to_string(), *runs));
    let failures = summary.failures.iter().map(|(seed, outcome)| {
        let violated: Vec<_> = outcome.violations.iter().map(|v| v.property.as_str()).collect();
        json!({ "seed": seed, "violated": violated })
    });
    json!({
        "from": seeds.start,
        "runs": summary.runs,
        "wall_s": wall_s,
        "virtual_s": summary.virtual_time.as_secs_f64(),
        "committed": summary.committed,
        "aborted": summary.aborted,
        "unknown": summary.unknown,
        "verbs": summary.verbs,
        "faults": summary.faults,
        "hazards": hazards.collect::<std::collections::BTreeMap<_, _>>(),
        "failures": failures.collect::<Vec<_>>(),
    })
}

fn text(
    summary: &Summary,
    seeds: &Range<u64>,
    wall_s: f64,
    replay: &dyn Fn(u64) -> String,
) -> String {
    let mut text = String::new();
    let counted = |counts: &mut dyn Iterator<Item = (String, u64)>| {
        let seen = counts.filter(|(_, count)| *count > 0);
        let seen: Vec<_> = seen.map(|(what, count)| format!("{what} {}", grouped(count))).collect();
        if seen.is_empty() { "none".to_owned() } else { seen.join(", ") }
    };
    let aborted = counted(&mut summary.aborted.iter().map(|(name, n)| ((*name).to_owned(), *n)));
    let faults = counted(&mut summary.faults.iter().map(|(name, n)| ((*name).to_owned(), *n)));
    let hazards = counted(&mut summary.hazards.iter().map(|(h, runs)| (h.to_string(), *runs)));
    let virtual_s = summary.virtual_time.as_secs_f64();
    for (what, line) in [
        ("runs", format!("{} of seeds {seeds:?}, in {wall_s:.1} s", grouped(summary.runs))),
        ("virtual time", format!("{virtual_s:.1} s")),
        ("committed", format!("{} transactions", grouped(summary.committed))),
        ("aborted", aborted),
        ("unknown", grouped(summary.unknown)),
        ("verbs", grouped(summary.verbs)),
        ("faults", faults),
        ("hazards", format!("met in runs: {hazards}")),
    ] {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{what:<14}{line}");
    }
    for (seed, outcome) in summary.failures.iter().take(MOST_FAILURES) {
        let _ = writeln!(text, "\nseed {seed}: {}", replay(*seed));
        for violation in &outcome.violations {
            let _ = writeln!(text, "    {}: {}", violation.property, violation.detail);
        }
    }
    let verdict = match summary.failures.len() {
        0 => "no violation".to_owned(),
        failed => format!("{failed} of {} runs VIOLATED something", summary.runs),
    };
    let _ = writeln!(text, "{verdict}");
    text
}

fn replay(args: &SimReplayArgs) -> Result<Verdict, SimulationError> {
    let source = Source::new(&args.scenario)?;
    let scenario = source.one(args.seed)?;
    let mut out = BufWriter::new(StandardOutput);
    for line in scenario.to_toml().lines() {
        writeln!(out, "# {line}")?;
    }
    // A closed pipe means that its reader has seen enough; the verdict still comes from the run.
    let mut trace = BufWriter::new(StandardOutput);
    let tracer = move |event: &lotus_fabric::sim::TraceEvent<'_>| _ = writeln!(trace, "{event}");
    out.flush()?;
    let outcome = run_once(&scenario, args.seed, budget(&args.scenario), Some(Box::new(tracer)))?;
    let figures = &outcome.figures;
    let (committed, unknown) = (grouped(figures.committed), grouped(figures.unknown));
    writeln!(
        out,
        "{committed} committed, {unknown} unknown, {} verbs, {} events in {:?}",
        grouped(figures.verbs),
        grouped(figures.events),
        figures.virtual_time
    )?;
    for violation in &outcome.violations {
        writeln!(out, "VIOLATED {}: {}", violation.property, violation.detail)?;
    }
    writeln!(out, "trace hash {:016x}", outcome.trace_hash)?;
    out.flush()?;
    Ok(if outcome.is_clean() { Verdict::Sound } else { Verdict::Unsound })
}

fn make_short(args: &SimReplayArgs) -> Result<Verdict, SimulationError> {
    let source = Source::new(&args.scenario)?;
    let scenario = source.one(args.seed)?;
    let budget = budget(&args.scenario);
    let outcome = run_once(&scenario, args.seed, budget, None)?;
    let violation = outcome.violations.first().ok_or(SimulationError::Clean(args.seed))?;
    let bar = bar(MOST_SHRINKING_RUNS);
    let short = shrink(&scenario, args.seed, budget, &violation.property, |runs, _| {
        bar.set_position(runs);
        runs < MOST_SHRINKING_RUNS
    });
    bar.finish_and_clear();
    let mut out = StandardOutput;
    writeln!(out, "# with seed {}: {}", args.seed, violation.property)?;
    out.write_all(short.to_toml().as_bytes())?;
    Ok(Verdict::Unsound)
}

fn list() -> Result<Verdict, SimulationError> {
    // On a terminal the columns share its width; otherwise a scenario takes one line.
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    for scenario in named::all() {
        let hazards: Vec<_> = scenario.hazards.iter().map(ToString::to_string).collect();
        let story: Vec<&str> = scenario.story.split_whitespace().collect();
        table.add_row([scenario.name, hazards.join(" "), story.join(" ")]);
    }
    writeln!(StandardOutput, "{}", table.trim_fmt())?;
    Ok(Verdict::Sound)
}
