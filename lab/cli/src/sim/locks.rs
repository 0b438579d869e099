//! `lotus-lab sim locks`: trials of lock systems under faults, one for each seed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use comfy_table::{Table, presets};
use lotus_benchmarks::output::Output;
use lotus_benchmarks::report::grouped;
use lotus_benchmarks::stream::StandardOutput;
use lotus_fabric::env::Env;
use lotus_locks::Recovery;
use lotus_locksystems::trial::{TrialError, TrialResult};
use lotus_sim::locks::{self, LockScenario};
use serde_json::json;

use super::{MOST_FAILURES, SimulationError, bar};
use crate::args::SimLocksArgs;
use lotus_runner::show::{Verdict, screen};

/// Results of the trials of one lock system.
#[derive(Default)]
struct Sum {
    trials: u64,
    judged: TrialResult,
}

/// A trial with violations.
struct Failed {
    seed: u64,
    scenario: String,
    violations: Vec<String>,
}

/// Runs the trials and sums up.
///
/// # Errors
/// [`SimulationError`] if there is no verdict.
pub fn run(args: &SimLocksArgs) -> Result<Verdict, SimulationError> {
    if args.scenario.as_deref() == Some("list") {
        return list();
    }
    let json = args.json.as_deref().map(Output::check).transpose()?;
    let source = Source::new(args)?;
    let env = Env::real(0);
    let workers = args.workers.unwrap_or_else(|| env.parallelism());
    let watch = bar(args.seeds);
    let next = AtomicU64::new(args.from);
    let end = args.from.saturating_add(args.seeds);
    let state = Mutex::new((BTreeMap::<&str, Sum>::new(), Vec::new()));
    let work = |_| -> Result<(), TrialError> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return Ok(());
            }
            let (name, scenario) = source.scenario(seed);
            let judged = scenario.run(seed)?;
            watch.inc(1);
            let (sums, failed) = &mut *state.lock().unwrap_or_else(PoisonError::into_inner);
            if !judged.violations.is_empty() {
                let violations = judged.violations.clone();
                failed.push(Failed { seed, scenario: name, violations });
            }
            let sum = sums.entry(scenario.lock().name()).or_default();
            sum.trials += 1;
            sum.judged += judged;
        }
    };
    env.in_parallel(workers, work).into_iter().collect::<Result<Vec<()>, _>>()?;
    watch.finish_and_clear();
    let (sums, mut failed) = state.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_by_key(|failed: &Failed| failed.seed);
    if let Some(output) = &json {
        screen::write_json(output, &as_json(args, &sums, &failed))?;
    }
    screen::show(&text(args, &sums, &failed), &[&json])?;
    Ok(if failed.is_empty() { Verdict::Sound } else { Verdict::Unsound })
}

fn list() -> Result<Verdict, SimulationError> {
    let mut out = StandardOutput;
    for named in locks::all() {
        let fails = match named.published_fail {
            true if named.is_offered(Recovery::Fenced) => "fails as published",
            true => "fails, as published only",
            false => "",
        };
        writeln!(out, "{:<24}{:<26}{}", named.name, fails, named.shows)?;
    }
    Ok(Verdict::Sound)
}

/// Source of each seed's scenario.
enum Source<'a> {
    Drawn(&'a SimLocksArgs),
    Named(Vec<&'static locks::Named>, Recovery),
}

impl<'a> Source<'a> {
    fn new(args: &'a SimLocksArgs) -> Result<Self, SimulationError> {
        let recovery = recovery(args);
        args.lock.map(|lock| lock.check(recovery)).transpose()?;
        Ok(match args.scenario.as_deref() {
            None => Self::Drawn(args),
            Some("all") => {
                let offered = locks::all().filter(|named| named.is_offered(recovery));
                Self::Named(offered.collect(), recovery)
            }
            Some(name) => match locks::find(name) {
                Some(named) if named.is_offered(recovery) => Self::Named(vec![named], recovery),
                Some(named) if named.published_fail => {
                    return Err(SimulationError::NothingMends(named.name));
                }
                Some(named) => {
                    named.scenario(recovery).lock().check(recovery)?;
                    Self::Named(vec![named], recovery)
                }
                None => return Err(SimulationError::UnknownOfLocks(name.to_owned())),
            },
        })
    }

    /// The scenario of a seed, and the options that select it.
    fn scenario(&self, seed: u64) -> (String, LockScenario) {
        match self {
            Self::Drawn(args) => {
                let scenario = locks::drawn(seed, args.lock, recovery(args));
                let lock = args.lock.map(|lock| format!(" --lock {lock}")).unwrap_or_default();
                (lock, scenario)
            }
            Self::Named(all, recovery) => {
                let named = all[(seed % all.len() as u64) as usize];
                (format!(" --scenario {}", named.name), named.scenario(*recovery))
            }
        }
    }
}

const fn recovery(args: &SimLocksArgs) -> Recovery {
    if args.as_published { Recovery::Paper } else { Recovery::Fenced }
}

fn text(args: &SimLocksArgs, sums: &BTreeMap<&str, Sum>, failed: &[Failed]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["lock", "trials", "held", "refused", "retries", "ghosts", "resets"]);
    for (lock, Sum { trials, judged }) in sums {
        let counts = judged.counts;
        let cells = [judged.entered, judged.refused, counts.retries, counts.ghosts, counts.resets];
        let cells = cells.into_iter().map(grouped);
        table.add_row([(*lock).to_owned(), grouped(*trials)].into_iter().chain(cells));
    }
    let mut text = format!("{table}\n");
    for Failed { seed, scenario, violations } in failed.iter().take(MOST_FAILURES) {
        let published = if args.as_published { " --as-published" } else { "" };
        let _ = writeln!(text, "lotus-lab sim locks --from {seed} --seeds 1{scenario}{published}");
        for violation in violations {
            let _ = writeln!(text, "  {violation}");
        }
    }
    let _ = match failed.len() {
        0 => writeln!(text, "no violation"),
        count => writeln!(text, "{} of {} trials violated something", count, args.seeds),
    };
    text
}

fn as_json(
    args: &SimLocksArgs,
    sums: &BTreeMap<&str, Sum>,
    failed: &[Failed],
) -> serde_json::Value {
    let of = |Sum { trials, judged }: &Sum| {
        json!({
            "trials": trials,
            "held": judged.entered,
            "refused": judged.refused,
            "retries": judged.counts.retries,
            "ghosts": judged.counts.ghosts,
            "resets": judged.counts.resets,
        })
    };
    let locks: BTreeMap<_, _> = sums.iter().map(|(lock, sum)| (*lock, of(sum))).collect();
    let failures =
        failed.iter().map(|failed| json!({ "seed": failed.seed, "violations": failed.violations }));
    json!({
        "from": args.from,
        "trials": args.seeds,
        "locks": locks,
        "failures": failures.collect::<Vec<_>>(),
    })
}
