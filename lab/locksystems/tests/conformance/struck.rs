//! Nodes that die, or stand still until they are expelled, between any two of their verbs and
//! messages: as holders, waiters, ghosts, and in releases.

use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_locks::Recovery;
use lotus_locksystems::systems::{Choice, Kind};
use lotus_locksystems::trial::{Faults, Settings, Struck, StruckAfter};

use super::families::nearly_used_up;
use super::platforms::{Platform, settings, trial};

const NODE: NodeId = NodeId(1);
/// Steps at which the node is struck: those of its first few requests.
const STEPS: u64 = 16;
/// Longer than a trial would take otherwise.
const PAUSE: Duration = Duration::from_millis(70);

/// One lock that all want.
fn contended() -> Settings {
    let small = settings();
    Settings { locks: 1, clients: 2, rounds: 6, hurried: 0.2, dropped: 0.1, ..small }
}

/// Strikes a node at each step, with some seeds each.
pub fn strike_everywhere(choices: &[Choice], seeds: u64) {
    for choice in choices {
        // A node of a system without notices sends messages only in resets.
        let messages = if choice.kind.tells() { STEPS } else { 0 };
        let verbs = (1..=STEPS).map(StruckAfter::Verbs);
        for after in verbs.chain((1..=messages).map(StruckAfter::Messages)) {
            for pause in [None, Some(PAUSE)] {
                let struck = Some(Struck { node: NODE, after, pause });
                let faults = Faults { struck, ..Faults::none() };
                let first_words = [0].into_iter().chain(nearly_used_up(*choice));
                for first_word in first_words {
                    let settings = Settings { first_word, ..contended() };
                    let (verdict, _) = trial(*choice, Platform::Sim(seeds), &settings, &faults);
                    let what = format!("{choice:?}, {struck:?}, {first_word:#x}");
                    assert!(verdict.violations.is_empty(), "{what}: {verdict}");
                }
            }
        }
    }
}

/// As published, a lock is lost with its holder.
#[test]
fn a_node_that_dies_is_missed_where_nothing_makes_up_for_it() {
    let choice = Choice { recovery: Recovery::Paper, ..Choice::of(Kind::Cas) };
    let is_stuck = |count| {
        let struck = Struck { node: NODE, after: StruckAfter::Verbs(count), pause: None };
        let faults = Faults { struck: Some(struck), ..Faults::none() };
        let (verdict, _) = trial(choice, Platform::Sim(1), &contended(), &faults);
        !verdict.violations.is_empty()
    };
    assert!((1..=STEPS).any(is_stuck), "the node was never struck");
}
