//! Model of RMA-RW's counters and queue, explored exhaustively by a model checker.
//!
//! # What it is
//! Clients take one lock, as readers and as writers, while the counters reach their limit. The
//! state machine is the system's own ([`RmaRw`](lotus_locksystems::systems::RmaRw)). A verb takes
//! effect when it is posted, and its answer comes at any later time, as a notice does; only looks
//! are taken that lead on. Waits are given up. In every state the properties must hold.
//!
//! # That it can fail
//! `every_broken_rule_is_noticed` breaks one rule after another, and expects a property to fail
//! that it names.
//!
//! # What it is not
//! A model of deaths, or of verbs and notices that are lost: the system tolerates none.

#![expect(clippy::print_stdout, reason = "how many states there were is what one wants to know")]

mod world;

use std::collections::BTreeSet;

use lotus_locks::word::Mode;
use lotus_locksystems::word::RmaRwCounts;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use world::{
    ADMITTED, BESIDE, CAME_BETWEEN, COUNTS, EXCLUSION, HANDED_ON, Plan, Rule, SET_BACK, World,
};

const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

/// With more states than these the test takes too long.
const MANY: usize = 300_000;

/// A world in which `left` readers may come until the counters are used up.
fn world(plans: &[Plan], left: u32) -> World {
    let come = RmaRwCounts::LIMIT - left;
    World {
        plans: plans.to_vec(),
        come,
        most_writers: 2,
        has_masks: true,
        give_ups: 0,
        broken: None,
    }
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
fn readers_and_writers_exclude_each_other() {
    let all = [BESIDE, CAME_BETWEEN, HANDED_ON];
    holds(world(&[&[S, X], &[S], &[X]], 100), &all);
    holds(
        World { has_masks: false, ..world(&[&[S], &[S], &[X, X]], 100) },
        &[BESIDE, CAME_BETWEEN],
    );
}

#[test]
fn writers_hand_on_and_admit_readers() {
    holds(world(&[&[X], &[X], &[X]], 100), &[HANDED_ON, ADMITTED]);
    holds(World { has_masks: false, ..world(&[&[X, S], &[X], &[X]], 100) }, &[HANDED_ON, ADMITTED]);
}

#[test]
fn counters_are_set_back_by_readers_and_by_writers() {
    holds(world(&[&[S, S], &[S, S], &[S]], 2), &[BESIDE, SET_BACK]);
    holds(world(&[&[S, S], &[S], &[X]], 1), &[CAME_BETWEEN, SET_BACK]);
}

#[test]
fn waits_are_given_up() {
    holds(World { give_ups: 2, ..world(&[&[X], &[X], &[S, S]], 1) }, &[HANDED_ON, SET_BACK]);
}

#[test]
fn every_broken_rule_is_noticed() {
    for (rule, property) in [
        (Rule::WritersWaitForReaders, EXCLUSION),
        (Rule::ReadersHeedWriters, EXCLUSION),
        (Rule::CountersAreSetBackOnce, COUNTS),
        (Rule::HandoversSayTheCounts, COUNTS),
        (Rule::RefusedReadersLeave, COUNTS),
    ] {
        let plans: [Plan; 3] = [&[S, S], &[S, X], &[X]];
        let broken = World { broken: Some(rule), ..world(&plans, 1) };
        let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
        let checker = broken.checker().finish_when(wanted).spawn_bfs().join();
        println!("{rule:?}: {property:?} in {} states", checker.unique_state_count());
        let path = checker.discovery(property).map(stateright::Path::into_actions);
        println!("{path:?}");
        assert!(path.is_some(), "{rule:?} may be broken, and {property:?} does not fail");
    }
}
