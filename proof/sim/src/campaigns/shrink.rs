//! Shrinks a failing scenario: removes every part that the failure does not need.
//!
//! Greedy: each simplification is tried by a run with the same seed, and kept if the same property
//! is still violated, until no simplification helps. The result need not be the smallest possible.

use lotus_benchmarks::config::Inline;

use crate::drive::run::{Budget, run};
use crate::scenario::authority::AuthorityDelays;
use crate::scenario::format::Scenario;

/// Simplifies a scenario that violates `property` with the seed `seed`. `after` is called after
/// each run, with the number of runs so far and the best scenario, and returns whether to continue.
pub fn shrink(
    scenario: &Scenario,
    seed: u64,
    budget: Budget,
    property: &str,
    mut after: impl FnMut(u64, &Scenario) -> bool,
) -> Scenario {
    let mut best = scenario.clone();
    let mut runs = 0;
    loop {
        let mut improved = false;
        for candidate in simpler(&best) {
            runs += 1;
            // An impossible scenario is no simplification.
            let fails =
                run(&candidate, seed, budget, None).is_ok_and(|outcome| outcome.violates(property));
            if fails {
                best = candidate;
                improved = true;
            }
            if !after(runs, &best) {
                return best;
            }
            if improved {
                break;
            }
        }
        if !improved {
            return best;
        }
    }
}

/// Every scenario that is simpler by one step, the largest savings first.
fn simpler(scenario: &Scenario) -> Vec<Scenario> {
    let mut candidates = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = scenario.clone();
        change(&mut candidate);
        if candidate != *scenario {
            candidates.push(candidate);
        }
    };
    with(&|s| s.schedule.clear());
    for entry in 0..scenario.schedule.len() {
        with(&|s| _ = s.schedule.remove(entry));
    }
    for strike in 0..scenario.strikes.len() {
        with(&|s| _ = s.strikes.remove(strike));
    }
    with(&|s| s.rates.message_loss = 0.0);
    with(&|s| s.rates.message_duplication = 0.0);
    with(&|s| s.rates.message_delay = 0.0);
    with(&|s| s.rates.verb_delay = 0.0);
    with(&|s| s.rates.torn_writes = 0.0);
    with(&|s| s.rates.torn_reads = 0.0);
    with(&|s| s.authority = AuthorityDelays::default());
    with(&|s| s.authority.silences.clear());
    with(&|s| s.authority.loss = 0.0);
    with(&|s| s.authority.delay_max_us = 0);
    with(&|s| s.calm_us /= 2);
    with(&|s| s.storm_us /= 2);
    with(&|s| s.cluster.compute_nodes = (s.cluster.compute_nodes - 1).max(1));
    with(&|s| s.cluster.threads = 1);
    with(&|s| s.cluster.coroutines = (s.cluster.coroutines - 1).max(1));
    with(&|s| s.cluster.replicas = (s.cluster.replicas - 1).max(1));
    with(&|s| s.cluster.memory_nodes = (s.cluster.memory_nodes - 1).max(1));
    with(&|s| s.cluster.versions = 2);
    with(&|s| s.cluster.inline = Inline::Never);
    with(&|s| s.load.other_isolation = 0.0);
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaigns::swarm;
    use crate::verdict::ENDS;

    #[test]
    fn what_is_not_needed_is_left_out() {
        // A run that is stopped early violates this property for certain, whatever is in it.
        let budget = Budget { events: 1, ..Budget::default() };
        let scenario = (0..).map(swarm::scenario).find(|s| s.schedule.len() > 2).expect("some has");
        let shrunk = shrink(&scenario, 0, budget, ENDS, |runs, _| runs < 500);
        assert!(shrunk.schedule.is_empty(), "{:?}", shrunk.schedule);
        assert_eq!((shrunk.cluster.compute_nodes, shrunk.cluster.memory_nodes), (1, 1));
        assert_eq!(shrunk.rates.message_loss, 0.0);
    }
}
