//! Proof that checkers complain: every rule that can be broken is, and somebody must notice.
//!
//! # What it is
//! A table says for each [`Rule`] which named scenarios provoke it and which properties are meant
//! to fall. [`hunt`] breaks the rule and runs the scenarios seed by seed until one does.
//! [`control`] runs the same with nothing broken; there, nothing may fall. Both together say that
//! the checkers can tell a broken engine from a sound one.
//!
//! # What it is not
//! Other properties that fall on the way prove nothing about the rule: a run that is stopped may
//! be slow for any reason. They are noted, for whoever wonders why a rule is missed.
//!
//! # Who owns what
//! A rule is broken on one thread for one run. Hunts for several rules use all cores.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lotus_fabric::env::Env;
use lotus_sabotage::{Rule, break_rule};

use crate::named;
use crate::run::{Budget, Violation, run};
use crate::scenario::ScenarioError;

mod table;

use table::row_of;

/// What a run may take. A broken engine may spin for ever; these scenarios end long before.
const BUDGET: Budget = Budget { events: 1_000_000, bytes: 4 << 30 };

/// What came of the hunt for one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The rule; it knows its hazard.
    pub rule: Rule,
    /// Runs until somebody noticed, or in vain.
    pub runs: u64,
    /// Who noticed.
    pub verdict: Verdict,
}

/// Whether anybody noticed that a rule was broken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Somebody who was meant to.
    Caught {
        /// Where: a named scenario.
        scenario: &'static str,
        /// Its seed.
        seed: u64,
        /// What fell, and how.
        violation: Violation,
    },
    /// Nobody who was meant to; these did, by the names of their properties.
    Missed {
        /// Empty if nobody noticed anything.
        others: BTreeSet<String>,
    },
}

/// A run without a broken rule in which something fell all the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FalseAlarm {
    /// Where: a named scenario.
    pub scenario: &'static str,
    /// Its seed.
    pub seed: u64,
    /// What fell, the first of each property.
    pub violations: Vec<Violation>,
}

/// Breaks `rule` in one run after the other, of every seed in all its scenarios, until somebody
/// notices.
///
/// # Errors
/// `Impossible`, if a scenario cannot be run at all.
pub fn hunt(rule: Rule, seeds: Range<u64>) -> Result<Row, ScenarioError> {
    let hunted = row_of(rule);
    let (mut runs, mut others) = (0, BTreeSet::new());
    for seed in seeds {
        for scenario in hunted.scenarios {
            runs += 1;
            let outcome = {
                let _broken = break_rule(rule);
                run(&find(scenario), seed, BUDGET, None)?
            };
            for violation in outcome.violations {
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

/// Hunts for every rule of `rules` on `workers` threads. `after` is told of every row when it is
/// there; the result has them in the order of `rules`.
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

/// What a control must run: every scenario of the hunts, with all seeds that one of them came to.
/// At least so many of each if that is given.
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

/// Runs scenarios by their names and seeds on `workers` threads, with nothing broken. Returns what
/// fell: nothing, if engine and checkers are sound.
///
/// # Errors
/// `Impossible`, if a scenario cannot be run at all.
pub fn control(
    runs: &[(&'static str, u64)],
    workers: usize,
) -> Result<Vec<FalseAlarm>, ScenarioError> {
    let alarms = side_by_side(runs, workers, |(scenario, seed)| {
        let violations = run(&find(scenario), *seed, BUDGET, None)?.violations;
        let alarm = FalseAlarm { scenario, seed: *seed, violations };
        Ok((!alarm.violations.is_empty()).then_some(alarm))
    })?;
    Ok(alarms.into_iter().flatten().collect())
}

/// Calls `work` for each of `items`, on `workers` threads; the results are in their order.
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

fn find(scenario: &str) -> crate::Scenario {
    named::find(scenario).expect("the table names scenarios that exist")
}
