//! What each service promises, on each fabric.

use std::time::Duration;

use lotus_locksystems::servers::ServerLock;

use super::platforms::{LOAD, Load, Outcome, Platform, run};

/// All kinds of requests.
const MIXED: Load = Load { refusing: 0.15, hurried: 0.2, dropped: 0.2, ..LOAD };

/// All services of servers.
fn all() -> impl Iterator<Item = ServerLock> {
    ServerLock::ALL.into_iter().chain([ServerLock::RedLock])
}

fn passes(server_lock: ServerLock, platform: Platform, load: Load) -> Outcome {
    let outcome = run(server_lock, platform, load);
    assert_eq!(outcome.violations, [""; 0], "{server_lock}, {platform:?}, {load:?}");
    assert_eq!(outcome.used, 0, "{server_lock}, {platform:?}, {load:?}: locks are free in the end");
    assert!(outcome.counts.acquired > 0, "{server_lock}, {platform:?}");
    outcome
}

/// Exclusion, whole data, an end, free locks, deadlines, and dropped requests.
fn keep_the_promises(platforms: &[Platform]) {
    for server_lock in all() {
        for platform in platforms.iter().copied() {
            let patient = passes(server_lock, platform, LOAD);
            let is_lossy = matches!(platform, Platform::Lossy(_));
            assert!(patient.counts.retries > 0 || !is_lossy, "{server_lock}: messages are lost");
            assert_eq!(
                patient.refused, 0,
                "{server_lock}, {platform:?}: each waits as long as it takes"
            );
            passes(server_lock, platform, MIXED);
        }
    }
}

#[test]
fn threads_of_one_process_keep_the_promises() {
    keep_the_promises(&[Platform::Local]);
}

#[test]
fn sockets_keep_the_promises() {
    keep_the_promises(&[Platform::Tcp]);
}

#[test]
fn simulated_nodes_keep_the_promises() {
    keep_the_promises(&[0, 1, 2].map(Platform::Sim));
}

#[test]
fn lost_repeated_and_reordered_messages_break_no_promise() {
    keep_the_promises(&[0, 1, 2].map(Platform::Lossy));
}

#[test]
fn readers_share() {
    for server_lock in ServerLock::ALL {
        let hold = Duration::from_micros(50);
        let load = Load { locks: 1, shared: 1.0, hold, rounds: 10, ..LOAD };
        let outcome = passes(server_lock, Platform::Sim(1), load);
        match server_lock {
            // As many as the lock has slots in the switch.
            ServerLock::NetLock => assert_eq!(outcome.together, 3),
            _ => assert!(outcome.together > 3, "{server_lock}: {} together", outcome.together),
        }
    }
}

#[test]
fn requests_are_refused_and_end_at_their_deadlines() {
    for server_lock in all() {
        let refusing = Load { refusing: 1.0, shared: 0.1, ..LOAD };
        assert!(passes(server_lock, Platform::Sim(1), refusing).refused > 0, "{server_lock}");
        let hurried = Load { hurried: 1.0, shared: 0.1, locks: 1, ..LOAD };
        let outcome = passes(server_lock, Platform::Sim(1), hurried);
        assert!(outcome.refused > 0, "{server_lock}");
        assert!(
            outcome.late <= Duration::from_micros(20),
            "{server_lock}: {:?} late",
            outcome.late
        );
    }
}
