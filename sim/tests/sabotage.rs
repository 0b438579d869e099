//! Whoever breaks a rule is caught, and whoever keeps all is not accused.

use lotus_fabric::env::Env;
use lotus_sabotage::Rule;
use lotus_sim::sabotage::{Verdict, control, hunt_all};

/// About three times what the rarest rule takes.
const SEEDS: u64 = 60;

#[test]
fn every_broken_rule_is_noticed_by_who_is_meant_to() {
    let workers = Env::real(0).parallelism();
    let rows = hunt_all(Rule::ALL, 0..SEEDS, workers, |_| ()).expect("all can be run");
    assert_eq!(rows.len(), Rule::ALL.len());
    let missed: Vec<_> =
        rows.iter().filter(|row| matches!(row.verdict, Verdict::Missed { .. })).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn nothing_falls_while_every_rule_is_kept() {
    let workers = Env::real(0).parallelism();
    assert_eq!(control(0..3, workers), Ok(Vec::new()));
}
