//! What each service promises, on each fabric.

use std::time::Duration;

use lotus_locksystems::servers::Kept;

use super::grounds::{Ground, LOAD, Load, Outcome, run};

/// All kinds of requests.
const MIXED: Load = Load { refusing: 0.15, hurried: 0.2, dropped: 0.2, ..LOAD };

/// All services of servers.
fn all() -> impl Iterator<Item = Kept> {
    Kept::ALL.into_iter().chain([Kept::RedLock])
}

fn passes(kept: Kept, ground: Ground, load: Load) -> Outcome {
    let outcome = run(kept, ground, load);
    assert_eq!(outcome.violations, [""; 0], "{kept}, {ground:?}, {load:?}");
    assert_eq!(outcome.used, 0, "{kept}, {ground:?}, {load:?}: locks are free in the end");
    assert!(outcome.counts.acquired > 0, "{kept}, {ground:?}");
    outcome
}

/// Exclusion, whole data, an end, free locks, deadlines, and dropped requests.
fn keep_the_promises(grounds: &[Ground]) {
    for kept in all() {
        for ground in grounds.iter().copied() {
            let patient = passes(kept, ground, LOAD);
            let is_lossy = matches!(ground, Ground::Lossy(_));
            assert!(patient.counts.retries > 0 || !is_lossy, "{kept}: messages are lost");
            assert_eq!(patient.refused, 0, "{kept}, {ground:?}: each waits as long as it takes");
            passes(kept, ground, MIXED);
        }
    }
}

#[test]
fn threads_of_one_process_keep_the_promises() {
    keep_the_promises(&[Ground::Local]);
}

#[test]
fn sockets_keep_the_promises() {
    keep_the_promises(&[Ground::Tcp]);
}

#[test]
fn simulated_nodes_keep_the_promises() {
    keep_the_promises(&[0, 1, 2].map(Ground::Sim));
}

#[test]
fn lost_repeated_and_reordered_messages_break_no_promise() {
    keep_the_promises(&[0, 1, 2].map(Ground::Lossy));
}

#[test]
fn readers_share() {
    for kept in Kept::ALL {
        let hold = Duration::from_micros(50);
        let load = Load { locks: 1, shared: 1.0, hold, rounds: 10, ..LOAD };
        let outcome = passes(kept, Ground::Sim(1), load);
        match kept {
            // As many as the lock has slots in the switch.
            Kept::NetLock => assert_eq!(outcome.together, 3),
            _ => assert!(outcome.together > 3, "{kept}: {} together", outcome.together),
        }
    }
}

#[test]
fn requests_are_refused_and_end_at_their_deadlines() {
    for kept in all() {
        let refusing = Load { refusing: 1.0, shared: 0.1, ..LOAD };
        assert!(passes(kept, Ground::Sim(1), refusing).refused > 0, "{kept}");
        let hurried = Load { hurried: 1.0, shared: 0.1, locks: 1, ..LOAD };
        let outcome = passes(kept, Ground::Sim(1), hurried);
        assert!(outcome.refused > 0, "{kept}");
        assert!(outcome.late <= Duration::from_micros(20), "{kept}: {:?} late", outcome.late);
    }
}
