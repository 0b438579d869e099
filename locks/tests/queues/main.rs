//! Model of DecLock's queue, explored exhaustively by a model checker.
//!
//! # What it is
//! Three clients take one lock several times, as readers and as writers. Its queue has two entries,
//! so it comes round, and it is full at times: then it is reset. The state machine is the system's
//! own ([`Declock`](lotus_locks::systems::Declock), fenced). Every order of its verbs, of the two
//! halves of its batches, of its notices and of its looks is tried, notices are lost, and late
//! beyond a reset, and in every state the properties must hold ([`World::all_properties`]).
//!
//! # That it can fail
//! `every_broken_rule_is_noticed` breaks one rule after another, and expects a property to fail
//! that it names.
//!
//! # What it is not
//! A model of deaths and of lost answers: they end in a reset, whose steps are in `tests/reset`.
//! Here a reset is one step.

#![expect(clippy::print_stdout, reason = "how many states there were is what one wants to know")]

mod steps;
mod world;

use std::collections::BTreeSet;

use lotus_locks::word::{DeclockFields, Mode};
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use world::{
    COUNTS, EXCLUSION, LAPS, LOOKED, PAST, PROGRESS, Plan, RESET, Rule, TOGETHER, TOLD, World,
};

const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

/// With more states than these the test takes too long.
const MANY: usize = 400_000;

fn world(capacity: u32, plans: &[Plan]) -> World {
    let window = capacity;
    World { plans: plans.to_vec(), capacity, window, served: 0, losses: 0, looks: 0, broken: None }
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

/// Three clients, of which two fit the queue.
#[test]
fn queues_that_run_over_exclude_and_are_reset() {
    let plans: [Plan; 3] = [&[X, S], &[S, X], &[X]];
    holds(world(2, &plans), &[TOLD, LOOKED, RESET]);
    let plans: [Plan; 3] = [&[S, X], &[S], &[X]];
    holds(World { losses: 1, looks: 1, ..world(2, &plans) }, &[TOGETHER, TOLD, LOOKED, RESET]);
}

#[test]
fn two_clients_fit_the_queue_for_two_laps() {
    let plans: [Plan; 2] = [&[X, S, X], &[S, X, S]];
    holds(World { losses: 1, looks: 1, ..world(2, &plans) }, &[TOGETHER, TOLD, LOOKED, LAPS]);
}

/// Three clients in a queue with the entries of a lap before.
#[test]
fn entries_of_earlier_laps_count_for_nothing() {
    let past = |plans: &[Plan]| World { served: PAST, looks: 1, ..world(4, plans) };
    holds(past(&[&[X, S], &[S], &[S]]), &[TOGETHER, TOLD, LOOKED]);
    holds(past(&[&[X], &[S, X], &[S]]), &[TOGETHER, TOLD, LOOKED]);
}

/// Releases that read one entry at first, and more if that was not enough.
#[test]
fn releases_that_read_a_part_of_the_queue_tell_all_that_they_have_to() {
    let part = |world: World| World { window: 1, ..world };
    let plans: [Plan; 3] = [&[S, X], &[S], &[X]];
    holds(World { losses: 1, ..part(world(4, &plans)) }, &[TOGETHER, TOLD, LOOKED]);
    let plans: [Plan; 3] = [&[X], &[S, X], &[S]];
    holds(part(World { served: PAST, looks: 1, ..world(4, &plans) }), &[TOGETHER, TOLD, LOOKED]);
    let plans: [Plan; 2] = [&[X, S, X], &[S, X, S]];
    holds(part(World { looks: 1, ..world(2, &plans) }), &[TOGETHER, TOLD, LOOKED, LAPS]);
}

/// Three clients use up the indexes.
fn last_lap() -> World {
    let served = 4 * DeclockFields::LAST_LAP - 1;
    World { served, ..world(4, &[&[X, X], &[X], &[S]]) }
}

#[test]
fn the_last_lap_ends_in_a_reset() {
    holds(last_lap(), &[TOLD, LOOKED, RESET]);
}

#[test]
fn every_broken_rule_is_noticed() {
    let crowded = || World { losses: 1, looks: 1, ..world(2, &[&[X, S], &[S, X], &[S, X]]) };
    let past = || World { served: PAST, looks: 1, ..world(4, &[&[X, S], &[S, X], &[S]]) };
    for (rule, property, world) in [
        (Rule::EntriesHaveLaps, EXCLUSION, past()),
        (Rule::TurnsNameGenerations, EXCLUSION, crowded()),
        (Rule::ResetsQuiesce, EXCLUSION, last_lap()),
        (Rule::ResetsClearEntries, EXCLUSION, last_lap()),
        (Rule::WritersAreLocated, EXCLUSION, past()),
        (Rule::WritersWaitForAll, EXCLUSION, past()),
        (Rule::WaitersLook, PROGRESS, crowded()),
        (Rule::OverflowIsReset, PROGRESS, crowded()),
        (Rule::HoldersRelease, COUNTS, past()),
        (Rule::WritersAreToldLast, EXCLUSION, past()),
    ] {
        let broken = World { broken: Some(rule), ..world };
        let wanted = HasDiscoveries::AllOf(BTreeSet::from([property]));
        let checker = broken.checker().finish_when(wanted).spawn_bfs().join();
        println!("{rule:?}: {property:?} in {} states", checker.unique_state_count());
        let path = checker.discovery(property).map(stateright::Path::into_actions);
        println!("{path:?}");
        assert!(path.is_some(), "{rule:?} may be broken, and {property:?} does not fail");
    }
}
