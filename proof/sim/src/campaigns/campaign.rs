//! Many runs, on all cores, with a summary.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lotus_benchmarks::AbortReason;
use lotus_fabric::env::Env;

use crate::drive::run::{Budget, run};
use crate::scenario::format::{Scenario, ScenarioError};
use crate::scenario::hazard::{Hazard, met};
use crate::verdict::Outcome;

/// Totals of a campaign.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Number of runs.
    pub runs: u64,
    /// Virtual time of all runs.
    pub virtual_time: Duration,
    /// Attempts that committed.
    pub committed: u64,
    /// Attempts that aborted, by reason.
    pub aborted: BTreeMap<&'static str, u64>,
    /// Attempts with an unknown outcome.
    pub unknown: u64,
    /// One-sided verbs.
    pub verbs: u64,
    /// Faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Number of runs that met each hazard.
    pub hazards: BTreeMap<Hazard, u64>,
    /// Runs with violations, by seed.
    pub failures: BTreeMap<u64, Outcome>,
}

impl Summary {
    fn add(&mut self, seed: u64, scenario: &Scenario, outcome: Outcome) {
        let figures = &outcome.figures;
        self.runs += 1;
        self.virtual_time += figures.virtual_time;
        self.committed += figures.committed;
        self.unknown += figures.unknown;
        self.verbs += figures.verbs;
        for (reason, count) in AbortReason::ALL.iter().zip(figures.aborted) {
            *self.aborted.entry(reason.name()).or_default() += count;
        }
        for (kind, count) in figures.faults.by_kind() {
            *self.faults.entry(kind).or_default() += count;
        }
        for hazard in met(scenario, figures) {
            *self.hazards.entry(hazard).or_default() += 1;
        }
        if !outcome.is_clean() {
            self.failures.insert(seed, outcome);
        }
    }
}

/// Runs every seed on `workers` threads. `after` is called with each run, and returns whether to
/// continue.
///
/// # Errors
/// `Impossible`, if a scenario cannot be run at all.
///
/// # Panics
/// If `after` does.
pub fn campaign(
    seeds: Range<u64>,
    scenario_of: impl Fn(u64) -> Scenario + Sync,
    workers: usize,
    budget: Budget,
    after: impl Fn(u64, &Outcome) -> bool + Sync,
) -> Result<Summary, ScenarioError> {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let summary = Mutex::new(Ok(Summary::default()));
    Env::real(0).in_parallel(workers, |_| {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let scenario = scenario_of(seed);
            let outcome = run(&scenario, seed, budget, None);
            let go_on = outcome.as_ref().is_ok_and(|outcome| after(seed, outcome));
            stop.fetch_or(!go_on, Ordering::Relaxed);
            let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
            match (&mut *summary, outcome) {
                (Ok(summary), Ok(outcome)) => summary.add(seed, &scenario, outcome),
                (summary, Err(error)) => *summary = Err(error),
                (Err(_), Ok(_)) => {}
            }
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}
