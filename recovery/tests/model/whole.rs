//! The protocol with no rule broken: no property fails, in any order of events.
//!
//! The larger configurations are ignored; docs/recovery.md says how large they are and how to run
//! them.

use stateright::{Checker, Expectation, Model};

use crate::properties::{FORWARD, INHERITED, RETURNED, UNDONE};
use crate::rules::{Rule, World};
use crate::state::Faults;

pub const NONE: Faults =
    Faults { deaths: 0, suspicions: 0, stops: 0, losses: 0, returns: 0, relapses: 0, absences: 0 };
pub const DEATH: Faults = Faults { deaths: 1, ..NONE };
pub const SUSPICION: Faults = Faults { suspicions: 1, ..NONE };
pub const ABSENCE: Faults = Faults { absences: 1, ..NONE };

/// One transaction writes both rows.
pub const ALONE: World =
    World { writes: [[true, true], [false, false]], attempts: [1, 0], faults: NONE, broken: None };

/// One transaction writes one row.
pub const ONE_ROW: World = World { writes: [[true, false], [false, false]], ..ALONE };

/// [`ALONE`], plus a transaction of the other node on the row that it owns the lock of.
pub const BOTH: World = World { writes: [[true, true], [false, true]], attempts: [1, 1], ..ALONE };

/// [`ALONE`], plus a transaction of the other node on both rows.
const CROSSED: World = World { writes: [[true, true], [true, true]], ..BOTH };

/// Events of recovery that must be observed where there is any.
const RECOVERY: &[&str] = &[FORWARD, UNDONE, INHERITED];
const RETURN: &[&str] = &[FORWARD, UNDONE, RETURNED];

/// Explores a configuration exhaustively. Each property in `reached` must occur somewhere.
#[track_caller]
fn holds(world: World, faults: Faults, reached: &[&str]) {
    let world = World { faults, ..world };
    let checker = world.checker().threads(2).spawn_bfs().join();
    println!("{faults:?}: {} states, {} deep", checker.unique_state_count(), checker.max_depth());
    for property in world.properties() {
        match property.expectation {
            Expectation::Always => checker.assert_no_discovery(property.name),
            Expectation::Sometimes if !reached.contains(&property.name) => {}
            _ => drop(checker.assert_any_discovery(property.name)),
        }
    }
}

#[test]
fn nothing_goes_wrong() {
    holds(BOTH, NONE, &[]);
    holds(CROSSED, NONE, &[]);
}

#[test]
fn a_node_dies() {
    holds(BOTH, DEATH, RECOVERY);
}

#[test]
fn a_node_is_taken_for_dead_and_goes_on() {
    holds(BOTH, SUSPICION, RECOVERY);
}

#[test]
fn a_node_dies_and_a_memory_node_is_lost() {
    holds(ALONE, Faults { losses: 1, ..DEATH }, RECOVERY);
}

#[test]
fn a_node_dies_and_so_does_who_recovers_it() {
    holds(ALONE, Faults { stops: 1, ..DEATH }, RECOVERY);
}

#[test]
fn a_node_dies_and_returns() {
    holds(ALONE, Faults { returns: 1, ..DEATH }, RETURN);
    holds(ONE_ROW, Faults { returns: 1, relapses: 1, ..DEATH }, RETURN);
}

#[test]
fn a_node_is_taken_for_dead_and_returns() {
    holds(ALONE, Faults { returns: 1, ..SUSPICION }, RETURN);
}

/// The other node is never started, in time, or late; and the one that was may die meanwhile.
#[test]
fn a_node_is_not_started_at_first() {
    let again = World { attempts: [2, 1], ..BOTH };
    holds(again, ABSENCE, &[INHERITED]);
    holds(again, Faults { returns: 1, ..ABSENCE }, &[INHERITED, RETURNED]);
    holds(BOTH, Faults { deaths: 1, ..ABSENCE }, RECOVERY);
    holds(BOTH, Faults { losses: 1, ..ABSENCE }, &[INHERITED]);
}

#[test]
fn both_write_both_rows() {
    holds(CROSSED, DEATH, RECOVERY);
    holds(CROSSED, SUSPICION, RECOVERY);
}

#[test]
#[ignore = "large"]
fn large_two_attempts() {
    holds(World { attempts: [2, 1], ..BOTH }, SUSPICION, RECOVERY);
    holds(World { attempts: [1, 2], ..BOTH }, SUSPICION, RECOVERY);
}

#[test]
#[ignore = "large"]
fn large_recoverers_stop() {
    holds(BOTH, Faults { stops: 1, ..DEATH }, RECOVERY);
    holds(BOTH, Faults { stops: 1, ..SUSPICION }, RECOVERY);
    holds(ALONE, Faults { stops: 2, ..DEATH }, RECOVERY);
}

#[test]
#[ignore = "large"]
fn large_memory_nodes_are_lost() {
    holds(BOTH, Faults { losses: 1, ..DEATH }, RECOVERY);
    holds(ALONE, Faults { losses: 2, ..DEATH }, RECOVERY);
    holds(ALONE, Faults { stops: 1, losses: 1, ..SUSPICION }, RECOVERY);
}

#[test]
#[ignore = "large"]
fn large_both_nodes_go() {
    holds(BOTH, Faults { suspicions: 1, ..DEATH }, RECOVERY);
}

/// Decisions about updates do not depend on fences between recoverers, as long as no memory node is
/// lost as well.
#[test]
#[ignore = "large"]
fn large_recoverers_work_side_by_side() {
    let world = World { broken: Some(Rule::RecoverersAreFenced), ..ONE_ROW };
    holds(world, Faults { stops: 1, ..DEATH }, &[FORWARD, UNDONE]);
    holds(world, Faults { stops: 1, ..SUSPICION }, &[FORWARD, UNDONE]);
}
