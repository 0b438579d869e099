//! Tests that the model can fail: one rule after another is broken, and a property fails.
//!
//! Each test names the property that it waits for. Others may fail before it, and do.

use stateright::{Checker, HasDiscoveries, Model};

use crate::properties::{
    AGREED, ALIKE, ATOMIC, CONSISTENT, DURABLE, LOCKED, SERVED, SETTLED, SHOWN_STAYS,
};
use crate::rules::{Rule, World};
use crate::state::Faults;
use crate::whole::{ABSENCE, ALONE, BOTH, DEATH, NONE, ONE_ROW, SUSPICION};

/// Breaks a rule, and looks for an order of events in which the property fails.
#[track_caller]
fn falls(rule: Rule, property: &'static str, world: World, faults: Faults) {
    let world = World { faults, broken: Some(rule), ..world };
    let found = HasDiscoveries::AnyOf([property].into());
    let checker = world.checker().threads(2).finish_when(found).spawn_bfs().join();
    let actions = checker.assert_any_discovery(property).into_actions();
    println!("{rule:?}: {} states, {} steps", checker.unique_state_count(), actions.len());
}

#[test]
fn h2_without_fences_what_was_reported_is_lost() {
    falls(Rule::NodesAreFenced, DURABLE, ALONE, SUSPICION);
}

#[test]
fn h3_a_version_visible_on_its_primary_first_is_undone() {
    let faults = Faults { losses: 1, ..DEATH };
    falls(Rule::BackupsFirst, SHOWN_STAYS, ALONE, faults);
}

#[test]
fn h3_a_reply_that_comes_too_early_is_a_lie() {
    falls(Rule::RepliesWait, DURABLE, ALONE, DEATH);
}

#[test]
fn h3_timestamps_that_decide_nothing_are_undone() {
    falls(Rule::TimestampsDecide, DURABLE, ALONE, DEATH);
}

#[test]
fn h4_locks_dropped_too_early_are_granted_over_open_transactions() {
    falls(Rule::LocksOutlastRecovery, LOCKED, BOTH, DEATH);
    falls(Rule::LocksOutlastRecovery, CONSISTENT, BOTH, DEATH);
}

#[test]
fn h4_rows_adopted_too_early_have_two_writers() {
    falls(Rule::AdoptionWaits, LOCKED, BOTH, DEATH);
    falls(Rule::AdoptionWaits, CONSISTENT, BOTH, DEATH);
}

#[test]
fn h4_a_commit_on_lost_locks_has_none() {
    falls(Rule::LostLocksEndAttempts, LOCKED, ALONE, DEATH);
}

/// The returning node owns the rows of its earlier life, has an empty lock table, and one row is in
/// doubt.
#[test]
fn h4_who_returns_too_early_grants_locks_over_open_transactions() {
    falls(Rule::ReturnsWait, LOCKED, ALONE, Faults { returns: 1, ..DEATH });
}

/// Verbs posted in the node's earlier life arrive after everything was settled.
#[test]
fn h2_a_fence_that_is_lifted_lets_a_former_life_write() {
    falls(Rule::FencesLast, LOCKED, ALONE, Faults { returns: 1, ..DEATH });
}

/// A late end of the node's earlier life releases locks of the present one.
#[test]
fn h9_a_life_that_has_the_name_of_another_loses_its_locks() {
    falls(Rule::LivesDiffer, LOCKED, ALONE, Faults { returns: 1, ..DEATH });
}

/// The earlier life's log, which is done, is taken for the latest one.
#[test]
fn h16_a_log_that_does_not_name_its_life_hides_what_is_in_doubt() {
    let faults = Faults { returns: 1, relapses: 1, ..DEATH };
    falls(Rule::LogsNameLives, SETTLED, ONE_ROW, faults);
}

#[test]
fn h4_whoever_never_comes_keeps_rows_for_ever() {
    falls(Rule::TheAbsentAreExpelled, SERVED, ALONE, ABSENCE);
}

#[test]
fn h8_a_late_request_of_the_dead_locks_for_ever() {
    falls(Rule::TheExpelledAreRefused, SETTLED, ALONE, DEATH);
}

#[test]
fn h9_a_late_request_of_an_attempt_that_is_over_locks_for_ever() {
    falls(Rule::StaleRequestsAreRefused, SETTLED, BOTH, NONE);
}

#[test]
fn h12_cells_without_a_log_are_never_found() {
    falls(Rule::LogBeforeCells, SETTLED, ALONE, DEATH);
}

#[test]
fn h12_half_a_log_settles_half_a_transaction() {
    falls(Rule::LogNamesAll, ATOMIC, ALONE, DEATH);
}

#[test]
fn h15_repairing_only_what_landed_leaves_replicas_different() {
    falls(Rule::AllReplicasAreRepaired, ALIKE, ALONE, DEATH);
}

#[test]
fn h17_without_a_record_the_next_recoverer_does_not_know() {
    let faults = Faults { stops: 1, ..DEATH };
    falls(Rule::DecisionsAreRecorded, ALIKE, ALONE, faults);
    falls(Rule::DecisionsAreRecorded, AGREED, ALONE, Faults { losses: 1, ..faults });
}

/// A log is on one memory node, which is lost while one recoverer carries out its decision. The
/// other recoverer, which has never seen the log, finds nothing to do, and opens the rows half-way.
#[test]
fn h17_recoverers_that_do_not_exclude_one_another_differ_about_what_was_lost() {
    let faults = Faults { stops: 1, losses: 1, ..DEATH };
    falls(Rule::RecoverersAreFenced, ALIKE, ONE_ROW, faults);
}
