//! Model of ShiftLock's queue, readers and notices, explored exhaustively by a model checker.
//!
//! # What it is
//! Clients take one lock several times, as readers and as writers, under the same names each time.
//! The state machine is the system's own ([`ShiftLock`](lotus_locks::systems::ShiftLock), fenced).
//! Every order of its verbs, of their answers and of its notices is tried. Notices are late, come
//! again at any later time, and are lost until then; a client dies, an answer is lost, and the lock
//! is reset; readers give up. In every state the properties must hold ([`World::all_properties`]).
//!
//! # That it can fail
//! `every_broken_rule_is_noticed` breaks one rule after another, and expects a property to fail
//! that it names.
//!
//! # What it is not
//! A model of the reset, which is one step here: `tests/reset` has them all.

#![expect(clippy::print_stdout, reason = "how many states there were is what one wants to know")]

mod notices;
mod steps;
mod world;

use std::collections::BTreeSet;

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use lotus_locks::Mode;
use world::{
    ADMITTED, CHANGED, COUNTS, EXCLUSION, FREEDOM, HANDED, PROGRESS, Plan, REFUSED, RESET, Rule,
    TOGETHER, WITHDRAWN, World,
};

const S: Mode = Mode::Shared;
const X: Mode = Mode::Exclusive;

/// With more states than these the test takes too long.
const MANY: usize = 400_000;

/// A world without faults, in which writers hand the lock on once before the readers have it.
fn world(plans: &[Plan]) -> World {
    World {
        plans: plans.to_vec(),
        threshold: 2,
        has_masks: true,
        late: false,
        give_ups: 0,
        deaths: 0,
        doubts: 0,
        broken: None,
    }
}

/// Explores all states, and expects that no property fails. What is `reached` must occur.
#[track_caller]
fn holds(world: World, reached: &[&str]) {
    let checker = world.clone().checker().spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{world:?}: {states} states, {} deep", checker.max_depth());
    for property in world.properties() {
        match property.expectation {
            Expectation::Sometimes if !reached.contains(&property.name) => {}
            Expectation::Sometimes => drop(checker.assert_any_discovery(property.name)),
            _ => {
                if let Some(path) = checker.discovery(property.name) {
                    panic!("{}: {:?}", property.name, path.into_actions());
                }
            }
        }
    }
    assert!(states < MANY, "{states} states");
}

#[test]
fn writers_hand_the_lock_on_and_readers_have_their_turns() {
    holds(world(&[&[X, X], &[X, X], &[X, S]]), &[HANDED, CHANGED, REFUSED]);
    holds(world(&[&[X, S], &[S, X], &[X]]), &[HANDED, CHANGED, TOGETHER]);
    holds(world(&[&[S, X], &[S, S], &[X, S]]), &[TOGETHER]);
    let always = World { threshold: 1, ..world(&[&[X, X], &[X, S], &[S]]) };
    holds(always, &[CHANGED]);
}

#[test]
fn answers_are_late() {
    holds(World { late: true, ..world(&[&[X, X], &[X], &[S]]) }, &[HANDED]);
    holds(World { late: true, has_masks: false, ..world(&[&[X], &[X], &[S]]) }, &[HANDED]);
}

#[test]
fn masks_are_not_needed() {
    let plain = World { has_masks: false, ..world(&[&[X, X], &[X, S], &[X]]) };
    holds(plain, &[HANDED, CHANGED]);
}

#[test]
fn readers_give_up() {
    let impatient = World { give_ups: 2, ..world(&[&[X, X], &[S, S], &[X, S]]) };
    holds(impatient, &[WITHDRAWN, ADMITTED]);
}

#[test]
fn a_client_dies_and_the_lock_is_reset() {
    holds(World { deaths: 1, ..world(&[&[X], &[X, X], &[X]]) }, &[RESET, HANDED]);
    holds(World { deaths: 1, ..world(&[&[X], &[X, S], &[S, X]]) }, &[RESET]);
}

#[test]
fn answers_are_lost_and_the_lock_is_reset() {
    holds(World { doubts: 1, ..world(&[&[X], &[X, S], &[X]]) }, &[RESET, HANDED]);
}

#[test]
fn every_broken_rule_is_noticed() {
    let writers: [Plan; 3] = [&[X, X], &[X, X], &[X, S]];
    let mixed: [Plan; 3] = [&[X, X], &[X, S], &[S, X]];
    let faults = |plans| World { deaths: 1, ..world(plans) };
    for (rule, property, world) in [
        (Rule::CountsPrecedeHandovers, EXCLUSION, world(&[&[X, X], &[X, X], &[S, S]])),
        (Rule::SuccessorsAreOfThisUse, PROGRESS, world(&writers)),
        (Rule::TurnsNameTheirUse, EXCLUSION, faults(&writers)),
        (Rule::ResetsCount, PROGRESS, faults(&writers)),
        (Rule::ResetsRenumber, EXCLUSION, faults(&writers)),
        (Rule::ModeChangesCountReaders, EXCLUSION, world(&mixed)),
        (Rule::WritersWaitForReaders, EXCLUSION, world(&mixed)),
        (Rule::ReadersWaitForTheEpoch, EXCLUSION, world(&mixed)),
        (Rule::TheAdmittedRelease, PROGRESS, World { give_ups: 1, ..world(&mixed) }),
        (Rule::ReleasesAreNotRepeated, COUNTS, world(&mixed)),
        (Rule::ReadersRelease, FREEDOM, world(&[&[S], &[S], &[S]])),
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
