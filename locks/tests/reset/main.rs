//! Model of the quiescing reset under all faults, explored exhaustively by a model checker.
//!
//! # What it is
//! Three compute nodes read and write under one lock of [`CasRwWord`]; they die, are expelled, join
//! late, and have atomics of which they do not know whether they took effect. Every order of these
//! and of the reset's steps is tried, and in every state the properties must hold
//! ([`World::properties`]). Words and decisions come from the crate itself.
//!
//! # That it can fail
//! `every_broken_rule_is_noticed` breaks one rule after another, and expects a property to fail.
//!
//! # What it is not
//! A model of waiting in queues, of counters that wrap, of nodes that return in another life, or of
//! memory that is lost. A message that is lost here is one that is delivered later.

#![expect(clippy::print_stdout, reason = "how many states there were is what one wants to know")]

mod state;
mod steps;

use stateright::{Checker, HasDiscoveries, Model};

use state::{Budget, Rule, World};

/// Explores all states; returns the properties that failed.
fn explored(world: World) -> Vec<&'static str> {
    let checker = world.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{:?}: {} states", world, checker.unique_state_count());
    let mut failed: Vec<&str> = checker.discoveries().into_keys().collect();
    failed.retain(|name| world.is_demanded(name));
    failed.sort_unstable();
    if let Some(name) = failed.first() {
        println!("{name}: {:?}", checker.discovery(name).map(stateright::Path::into_actions));
    }
    // What must be possible is a failure if it was not found.
    if world.broken.is_none() {
        checker.assert_any_discovery("a lock is free again after a reset");
    }
    failed
}

const DEATHS: Budget = Budget { attempts: [1, 1, 1], deaths: 1, doubts: 0, joins: false };
const RESETTERS_DIE: Budget = Budget { attempts: [1, 1, 0], deaths: 2, doubts: 0, joins: false };
const DOUBTS: Budget = Budget { attempts: [2, 1, 0], deaths: 0, doubts: 2, joins: false };
const BOTH: Budget = Budget { attempts: [1, 1, 0], deaths: 1, doubts: 1, joins: false };
const JOINS: Budget = Budget { attempts: [1, 0, 1], deaths: 2, doubts: 0, joins: true };

#[test]
fn nobody_is_beside_a_writer_and_a_lock_at_rest_is_free() {
    for budget in [DEATHS, RESETTERS_DIE, DOUBTS, BOTH, JOINS] {
        assert_eq!(explored(World { budget, broken: None, nameless: false }), [""; 0]);
    }
}

/// The word of ShiftLock has no generation.
#[test]
fn resets_need_no_names() {
    for budget in [DEATHS, RESETTERS_DIE, DOUBTS, BOTH, JOINS] {
        assert_eq!(explored(World { budget, broken: None, nameless: true }), [""; 0]);
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    for (rule, budget) in [
        (Rule::AllAnswer, BOTH),
        (Rule::HoldersAreWaitedFor, BOTH),
        (Rule::VerbsUnderWayAreWaitedFor, BOTH),
        (Rule::WaitsEnd, DEATHS),
        (Rule::DoubtersAreTold, DOUBTS),
        (Rule::MembersAreLearntLast, JOINS),
        (Rule::ClaimsAreOfTheSettled, RESETTERS_DIE),
        (Rule::OnlyMarkedLocksAreFreed, DOUBTS),
        (Rule::TheDeadAreSettled, RESETTERS_DIE),
    ] {
        for nameless in [false, true] {
            let failed = explored(World { budget, broken: Some(rule), nameless });
            assert!(!failed.is_empty(), "{rule:?} may be broken, and nothing is noticed");
        }
    }
}
