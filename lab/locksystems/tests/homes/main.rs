//! Model of N-CoSED's queue, its groups of readers and the home, explored exhaustively by a model
//! checker.
//!
//! # What it is
//! Clients take one lock, as readers and as writers. The state machine is the system's own
//! ([`Ncosed`](lotus_locksystems::systems::Ncosed)). A verb takes effect when it is posted, and its
//! answer comes at any later time, as a notice does, in any order. Waits are given up. In every
//! state the properties must hold.
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
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use world::{BESIDE, EXCLUSION, HANDED_ON, OPENED, PROGRESS, Plan, Rule, TOLD, World};

const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

/// With more states than these the test takes too long.
const MANY: usize = 300_000;

fn world(plans: &[Plan]) -> World {
    World { plans: plans.to_vec(), give_ups: 0, broken: None }
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
    holds(world(&[&[S, X], &[S], &[X]]), &[BESIDE, OPENED, TOLD, HANDED_ON]);
    holds(world(&[&[S, S], &[S], &[X]]), &[BESIDE, OPENED, TOLD]);
}

#[test]
fn groups_of_readers_follow_one_another() {
    holds(world(&[&[S], &[S], &[X, X]]), &[BESIDE, OPENED, TOLD]);
    holds(world(&[&[S, S], &[X], &[X]]), &[OPENED, TOLD, HANDED_ON]);
}

#[test]
fn writers_hand_on() {
    holds(world(&[&[X, X], &[X], &[X]]), &[HANDED_ON]);
    holds(world(&[&[S], &[S], &[X], &[X]]), &[BESIDE, OPENED, TOLD, HANDED_ON]);
}

#[test]
fn waits_are_given_up() {
    let world = world(&[&[S, X], &[S], &[X]]);
    holds(World { give_ups: 2, ..world }, &[OPENED, TOLD, HANDED_ON]);
}

#[test]
fn every_broken_rule_is_noticed() {
    for (rule, property) in [
        (Rule::WritersWaitForReaders, EXCLUSION),
        (Rule::HomesWaitForAll, EXCLUSION),
        (Rule::ReadersHeedWriters, EXCLUSION),
        (Rule::ReadersReport, PROGRESS),
        (Rule::SuccessorsSayTheReaders, PROGRESS),
        (Rule::OpenedWordsKeepReaders, EXCLUSION),
    ] {
        let plans: [Plan; 3] = [&[S], &[S, X], &[X]];
        let broken = World { broken: Some(rule), ..world(&plans) };
        let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
        let checker = broken.checker().finish_when(wanted).spawn_bfs().join();
        println!("{rule:?}: {property:?} in {} states", checker.unique_state_count());
        let path = checker.discovery(property).map(stateright::Path::into_actions);
        println!("{path:?}");
        assert!(path.is_some(), "{rule:?} may be broken, and {property:?} does not fail");
    }
}
