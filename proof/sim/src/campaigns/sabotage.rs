//! Tests of the checkers: each breakable rule is broken, and a checker must notice.
//!
//! # What it is
//! A table lists for each [`Rule`] the named scenarios that provoke it and the properties expected
//! to fail. [`hunt`] breaks the rule and runs the scenarios seed by seed until an expected property
//! fails. [`control`] runs the same scenarios with no rule broken; no property may fail in these
//! runs. Together, hunt and control show that the checkers can tell a broken engine from a sound
//! engine.
//!
//! # What it is not
//! Failures of unexpected properties are no proof about the rule: a stopped run may be slow for any
//! reason. They are recorded, to help find out why a rule is missed.
//!
//! # Ownership and threads
//! A rule is broken on one thread for one run. Hunts for several rules use all cores.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lotus_fabric::env::Env;
use lotus_sabotage::{Rule, break_rule};

use crate::campaigns::named;
use lotus_locks::Recovery;

use crate::drive::run::{Budget, run};
use crate::locks;
use crate::scenario::format::ScenarioError;
use crate::verdict::{LOCKS, Violation};

mod table;

use table::row_of;

/// Limits of a run. A broken engine may spin forever; these scenarios end long before.
const BUDGET: Budget = Budget { events: 1_000_000, bytes: 4 << 30 };

/// Result of the hunt for one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The rule; [`Rule`] knows its hazard.
    pub rule: Rule,
    /// Runs until an expected property failed, or all runs.
    pub runs: u64,
    /// The failed property, if any.
    pub verdict: Verdict,
}

/// Whether a checker noticed that a rule was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// An expected property failed.
    Caught {
        /// Named scenario of the run.
        scenario: &'static str,
        /// Seed of the run.
        seed: u64,
        /// The property, and the finding.
        violation: Violation,
    },
    /// No expected property failed.
    Missed {
        /// Names of other failed properties; may be empty.
        others: BTreeSet<String>,
    },
}

/// Run with no rule broken in which a property failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FalseAlarm {
    /// Named scenario of the run.
    pub scenario: &'static str,
    /// Seed of the run.
    pub seed: u64,
    /// Violations, the first of each property.
    pub violations: Vec<Violation>,
}

/// Breaks `rule` in run after run, of every seed in all scenarios of the rule, until an expected
/// property fails.
///
/// # Errors
/// `Impossible`, if a scenario cannot be run at all.
pub fn hunt(rule: Rule, seeds: Range<u64>) -> Result<Row, ScenarioError> {
    let hunted = row_of(rule);
    let (mut runs, mut others) = (0, BTreeSet::new());
    for seed in seeds {
        for scenario in hunted.scenarios {
            runs += 1;
            let violations = {
                let _broken = break_rule(rule);
                violations(scenario, seed)?
            };
            for violation in violations {
                if hunted.is_meant(&violation.property) {
                    let verdict = Verdict::Caught { scenario, seed, violation };
                    return Ok(Row { rule, runs, verdict });
                }
                others.insert(violation.property);
            }
        }
    }
    Ok(Row { rule, runs, verdict: Verdict::Missed { others } })
}

/// Hunts for every rule of `rules` on `workers` threads. Calls `after` with each finished row;
/// returns the rows in the order of `rules`.
///
/// # Errors
/// `Impossible`, if a scenario cannot be run at all.
///
/// # Panics
/// If `after` does.
pub fn hunt_all(
    rules: &[Rule],
    seeds: Range<u64>,
    workers: usize,
    after: impl Fn(&Row) + Sync,
) -> Result<Vec<Row>, ScenarioError> {
    side_by_side(rules, workers, |rule| {
        let row = hunt(*rule, seeds.clone())?;
        after(&row);
        Ok(row)
    })
}

/// Runs for [`control`]: every scenario of the hunts, with all seeds up to the seeds that noticed,
/// and with at least `at_least` seeds if given.
pub fn controlled(rows: &[Row], at_least: Option<u64>) -> Vec<(&'static str, u64)> {
    let mut seeds: BTreeMap<&'static str, u64> = BTreeMap::new();
    for row in rows {
        let seen = match row.verdict {
            Verdict::Caught { seed, .. } => seed + 1,
            Verdict::Missed { .. } => 0,
        };
        for scenario in row_of(row.rule).scenarios {
            let known = seeds.entry(scenario).or_default();
            *known = seen.max(*known).max(at_least.unwrap_or(0));
        }
    }
    let all_of = |(scenario, seeds)| (0..seeds).map(move |seed| (scenario, seed));
    seeds.into_iter().flat_map(all_of).collect()
}

/// Runs scenarios by name and seed on `workers` threads, with no rule broken. Returns the runs in
/// which a property failed: none, if engine and checkers are sound.
///
/// # Errors
/// `Impossible`, if a scenario cannot be run at all.
pub fn control(
    runs: &[(&'static str, u64)],
    workers: usize,
) -> Result<Vec<FalseAlarm>, ScenarioError> {
    let alarms = side_by_side(runs, workers, |(scenario, seed)| {
        let violations = violations(scenario, *seed)?;
        let alarm = FalseAlarm { scenario, seed: *seed, violations };
        Ok((!alarm.violations.is_empty()).then_some(alarm))
    })?;
    Ok(alarms.into_iter().flatten().collect())
}

/// Calls `work` for each of `items` on `workers` threads; returns the results in the order of
/// `items`.
fn side_by_side<I: Sync, T: Send>(
    items: &[I],
    workers: usize,
    work: impl Fn(&I) -> Result<T, ScenarioError> + Sync,
) -> Result<Vec<T>, ScenarioError> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    Env::real(0).in_parallel(workers.max(1), |_| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return };
            let result = work(item);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Violations of a run of a scenario, of the engine or of a lock system.
fn violations(scenario: &str, seed: u64) -> Result<Vec<Violation>, ScenarioError> {
    if let Some(locks) = locks::find(scenario) {
        let recovery = match locks.published_only {
            true => Recovery::Paper,
            false => Recovery::Fenced,
        };
        let verdict = locks.scenario(recovery).run(seed);
        let verdict = verdict.unwrap_or_else(|error| panic!("{scenario}: {error}"));
        let violation = |detail| Violation { property: LOCKS.to_owned(), detail };
        return Ok(verdict.violations.into_iter().map(violation).collect());
    }
    let scenario = named::find(scenario).expect("the table names scenarios that exist");
    Ok(run(&scenario, seed, BUDGET, None)?.violations)
}
