//! Model of DSLR's update locks, explored exhaustively by a model checker.
//!
//! # What it is
//! Clients take one lock, as readers, with update locks and as writers, and upgrade what may be
//! upgraded, while the counters reach their limit. The state machine is the system's own
//! ([`DslrU`](lotus_locksystems::systems::DslrU)). A verb takes effect when it is posted, and its
//! answer comes at any later time; only looks are taken that lead on. Waits and upgrades are given
//! up. In every state the properties must hold.
//!
//! # That it can fail
//! `every_broken_rule_is_noticed` breaks one rule after another, and expects a property to fail
//! that it names.
//!
//! # What it is not
//! A model of deaths and of atomics whose answer is lost: they end in a reset, which
//! `locks/tests/reset` has.

#![expect(clippy::print_stdout, reason = "how many states there were is what one wants to know")]

mod world;

use std::collections::BTreeSet;

use lotus_locks::word::Mode;
use lotus_locksystems::word::UpdateTickets;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use world::{
    BESIDE, COUNTS, EXCLUSION, ORDER, PROGRESS, Plan, Rule, SENT_AWAY, SET_BACK, UPGRADED, Wish,
    World,
};

const S: Wish = Wish { mode: Mode::Shared, upgrades: false };
const U: Wish = Wish { mode: Mode::Update, upgrades: false };
/// An update lock that is upgraded.
const UX: Wish = Wish { mode: Mode::Update, upgrades: true };
const X: Wish = Wish { mode: Mode::Exclusive, upgrades: false };

/// With more states than these the test takes too long.
const MANY: usize = 200_000;

/// A world in which `left` tickets of each mode are left until the counters are used up.
fn world(plans: &[Plan], left: u32) -> World {
    let served = UpdateTickets::LIMIT - left;
    World { plans: plans.to_vec(), served, give_ups: 0, broken: None }
}

/// Explores all states, and expects that no property fails. What is `reached` must occur.
#[track_caller]
fn holds(world: World, reached: &[&str]) {
    let checker = world.clone().checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{world:?}: {states} states, {} deep", checker.max_depth());
    assert!(states < MANY, "{states} states");
    for property in world.properties() {
        match property.expectation {
            Expectation::Sometimes if !reached.contains(&property.name) => {}
            Expectation::Sometimes => drop(checker.assert_any_discovery(property.name)),
            _ => checker.assert_no_discovery(property.name),
        }
    }
}

#[test]
fn two_that_upgrade_do_not_wait_for_each_other() {
    holds(world(&[&[UX], &[UX], &[S, S]], 100), &[BESIDE, UPGRADED]);
    holds(world(&[&[UX, S], &[UX], &[S]], 2), &[BESIDE, UPGRADED, SET_BACK, SENT_AWAY]);
    holds(world(&[&[UX], &[U], &[X, S]], 100), &[BESIDE, UPGRADED]);
}

#[test]
fn waits_and_upgrades_are_given_up() {
    let plans: [Plan; 3] = [&[UX], &[UX], &[S]];
    holds(World { give_ups: 2, ..world(&plans, 100) }, &[BESIDE, UPGRADED]);
    let used_up = World { give_ups: 1, ..world(&[&[UX, S], &[S], &[X]], 1) };
    holds(used_up, &[SET_BACK, SENT_AWAY]);
}

#[test]
fn counters_are_set_back() {
    holds(world(&[&[UX, UX], &[S, UX], &[S]], 2), &[BESIDE, UPGRADED, SET_BACK, SENT_AWAY]);
    holds(world(&[&[U, UX], &[U, X], &[S]], 2), &[BESIDE, SET_BACK, SENT_AWAY]);
}

#[test]
fn every_broken_rule_is_noticed() {
    for (rule, property) in [
        (Rule::UpgradesWaitForReaders, EXCLUSION),
        (Rule::ReadersWaitForUpdates, ORDER),
        (Rule::UpdatesWaitForUpdates, EXCLUSION),
        (Rule::WritersWaitForUpdates, EXCLUSION),
        (Rule::ReadersIgnoreLaterUpdates, PROGRESS),
        (Rule::DrainsWaitForTheirTurn, COUNTS),
        (Rule::UpgradesKeepTheLock, COUNTS),
    ] {
        let plans: [Plan; 3] = [&[X, S], &[U, UX], &[U, S]];
        let left = if rule == Rule::DrainsWaitForTheirTurn { 1 } else { 100 };
        let broken = World { give_ups: 1, broken: Some(rule), ..world(&plans, left) };
        let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
        let checker = broken.checker().finish_when(wanted).spawn_bfs().join();
        println!("{rule:?}: {property:?} in {} states", checker.unique_state_count());
        let path = checker.discovery(property).map(stateright::Path::into_actions);
        println!("{path:?}");
        assert!(path.is_some(), "{rule:?} may be broken, and {property:?} does not fail");
    }
}
