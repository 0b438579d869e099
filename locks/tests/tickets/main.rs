//! Model of DSLR's tickets, explored exhaustively by a model checker.
//!
//! # What it is
//! Clients take one lock several times, as readers and as writers, while its counters reach their
//! limit. The state machine is the system's own ([`Dslr`](lotus_locks::systems::Dslr), fenced).
//! Every order of its verbs, of their late answers and of its pauses is tried, waits are given up,
//! and in every state the properties must hold ([`World::all_properties`]).
//!
//! # That it can fail
//! `every_broken_rule_is_noticed` breaks one rule after another, and expects a property to fail
//! that it names.
//!
//! # What it is not
//! A model of deaths and of atomics whose answer is lost: they end in a reset, which `tests/reset`
//! has. Nor one of leases, as published.

#![expect(clippy::print_stdout, reason = "how many states there were is what one wants to know")]

mod steps;
mod world;

use std::collections::BTreeSet;

use lotus_locks::word::Mode;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use world::{
    COUNTS, EXCLUSION, FIELDS, FREEDOM, GHOST, ORDER, PROGRESS, Plan, Rule, SENT_AWAY, SET_BACK,
    TICKETS, TOGETHER, World,
};

const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

/// With more states than these the test takes too long.
const MANY: usize = 150_000;

/// Parts of the tickets that may be outstanding.
const HALF: u16 = 8192;
const QUARTER: u16 = 4096;

/// Two clients read and write, in either order, beside a reader.
const MIXED: [Plan; 3] = [&[(X, 1), (S, 1)], &[(S, 1), (X, 1)], &[(S, 1)]];

/// A world in which `left` tickets of each mode are left until the counters are used up.
fn world(plans: &[Plan], left: u32) -> World {
    let served = FIELDS.limit() - left;
    World { plans: plans.to_vec(), served, ghosts: 0, late: false, broken: None }
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
fn tickets_exclude_and_keep_the_order_and_are_set_back() {
    let readers = world(&[&[(X, 1), (S, 1)], &[(S, 1), (X, 1)], &[(S, 1), (S, 1)]], 2);
    holds(readers, &[TOGETHER, SET_BACK, SENT_AWAY]);
    let writers = world(&[&[(X, 1), (X, 1)], &[(X, 1), (S, 1)], &[(S, 1), (X, 1)]], 2);
    holds(writers, &[SET_BACK, SENT_AWAY]);
    let several_at_once = world(&[&[(X, 2), (S, 1)], &[(S, 3), (S, 1)], &[(S, 1), (X, 1)]], 3);
    holds(several_at_once, &[TOGETHER, SET_BACK, SENT_AWAY]);
}

/// As many tickets are outstanding as may be: few locks use the counters up.
#[test]
fn counters_are_set_back_again_and_again() {
    let [half, quarter] = [2, 4].map(|part| FIELDS.limit() / part);
    assert_eq!([half, quarter], [HALF, QUARTER].map(u32::from));
    let writers = [&[(X, HALF); 3] as Plan, &[(X, HALF), (X, HALF), (S, HALF)]];
    holds(world(&writers, FIELDS.limit()), &[SET_BACK, SENT_AWAY]);
    let lesser: Plan = &[(X, QUARTER), (S, QUARTER)];
    let three = [&[(X, HALF); 2] as Plan, lesser, lesser];
    holds(world(&three, FIELDS.limit()), &[TOGETHER, SET_BACK, SENT_AWAY]);
}

#[test]
fn waits_are_given_up() {
    let ghosts = World { ghosts: 2, ..world(&MIXED, 2) };
    holds(ghosts, &[TOGETHER, SET_BACK, SENT_AWAY, GHOST]);
}

#[test]
fn answers_are_late() {
    holds(World { late: true, ..world(&MIXED, 2) }, &[TOGETHER, SET_BACK, SENT_AWAY]);
    let plans: [Plan; 3] = [&[(X, 1)], &[(S, 1), (X, 1)], &[(S, 1)]];
    let ghost = World { late: true, ghosts: 1, ..world(&plans, 1) };
    holds(ghost, &[TOGETHER, SET_BACK, SENT_AWAY, GHOST]);
}

#[test]
fn every_broken_rule_is_noticed() {
    for (rule, property) in [
        (Rule::ReadersIgnoreSiblings, PROGRESS),
        (Rule::ReadersWaitForWriters, ORDER),
        (Rule::WritersWaitForReaders, EXCLUSION),
        (Rule::DrainsWaitForTheirTurn, EXCLUSION),
        (Rule::UsedUpCountersAreSetBack, TICKETS),
        (Rule::TheSentAwayTakeBack, PROGRESS),
        (Rule::GhostsWait, EXCLUSION),
        (Rule::GhostsRelease, PROGRESS),
        (Rule::HoldersRelease, FREEDOM),
        (Rule::ReleasesAreNotRepeated, COUNTS),
    ] {
        let broken = World { ghosts: 1, broken: Some(rule), ..world(&MIXED, 2) };
        let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
        let checker = broken.checker().finish_when(wanted).spawn_bfs().join();
        println!("{rule:?}: {property:?} in {} states", checker.unique_state_count());
        let path = checker.discovery(property).map(stateright::Path::into_actions);
        println!("{path:?}");
        assert!(path.is_some(), "{rule:?} may be broken, and {property:?} does not fail");
    }
}
