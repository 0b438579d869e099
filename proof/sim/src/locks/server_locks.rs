//! Scenarios drawn from a seed, of locks kept by a switch, servers or a Redis.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::sim::Rates;
use lotus_locks::Recovery;
use lotus_locksystems::LockSpec;
use lotus_locksystems::fisslock::{Preference, Rules};
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::trial::server_locks::{Plan, ServerFaults, ServerTrial};
use rand::Rng;
use rand::rngs::SmallRng;

use super::drawn::share;

/// Random stream that draws scenarios.
const STREAM: u64 = 0x5E17;
/// Random stream that draws the number of racks.
const RACKS_STREAM: u64 = 0x5E18;

/// Valid lock services for `recovery`. Services of a switch appear more than once: they have the
/// most possible faults.
pub(super) fn offered(recovery: Recovery) -> Vec<ServerLock> {
    let switched =
        [ServerLock::FissLock, ServerLock::FissLock].into_iter().chain(ServerLock::SWITCHED);
    let all = switched.chain(ServerLock::ALL).chain([ServerLock::RedLock]);
    all.filter(|server_lock| LockSpec::Server(*server_lock).check(recovery).is_ok()).collect()
}

/// The scenario of a seed, with the lock service `server_lock`.
pub(super) fn drawn(seed: u64, server_lock: ServerLock, recovery: Recovery) -> ServerTrial {
    let rng = &mut Env::real(seed).rng(STREAM);
    let trial = ServerTrial::of(server_lock);
    let preference = if rng.random() { Preference::Writers } else { Preference::Readers };
    let rules = match recovery {
        Recovery::Paper => Rules::PUBLISHED,
        Recovery::Fenced => Rules::CLOSED,
    };
    let plan = Plan { racks: racks(seed, server_lock), ..plan(trial.plan, rng) };
    let faults = faults(server_lock, rng);
    ServerTrial { preference, rules, plan, faults, ..trial }
}

/// Number of racks: at most two, as there may be only two machines.
fn racks(seed: u64, server_lock: ServerLock) -> u16 {
    let is_split = server_lock.is_switched() && Env::real(seed).rng(RACKS_STREAM).random_bool(0.4);
    1 + u16::from(is_split)
}

fn plan(small: Plan, rng: &mut SmallRng) -> Plan {
    let most = Duration::from_micros(rng.random_range(1..30));
    Plan {
        machines: rng.random_range(2..=5),
        lanes: rng.random_range(1..=2),
        clients: rng.random_range(1..=4),
        locks: rng.random_range(1..=4),
        rounds: rng.random_range(10..80),
        shared: rng.random(),
        refusing: share(0.3, rng),
        hurried: share(0.3, rng),
        dropped: share(0.3, rng),
        hurry: most * 2,
        hold: most,
        think: Duration::from_micros(rng.random_range(1..30)),
        ..small
    }
}

fn faults(server_lock: ServerLock, rng: &mut SmallRng) -> ServerFaults {
    let none = ServerFaults::none();
    if server_lock == ServerLock::RedLock {
        return none;
    }
    let rates = if rng.random() { rates(rng) } else { Rates::default() };
    let is_switched = server_lock.is_switched();
    // A machine that keeps a table of locks does not return.
    let keeps_tables = !server_lock.outlasts_clients();
    let loses_server = server_lock.has_server() && rng.random_bool(0.15);
    ServerFaults {
        rates,
        crashes: rng.random_range(0..=2),
        pauses: rng.random_range(0..=2),
        pause: Duration::from_micros(rng.random_range(100..3000)),
        partitions: rng.random_range(0..=1),
        returns: rng.random::<bool>() && !keeps_tables,
        switch_losses: if is_switched { rng.random_range(0..=2) } else { 0 },
        server_losses: u32::from(loses_server),
        recoveries: if is_switched { rng.random_range(0..=1) } else { 0 },
        unfinished: share(0.6, rng),
        span: Duration::from_micros(rng.random_range(100..1500)),
        ..none
    }
}

/// Rates of lost, duplicated, late and overtaken messages.
fn rates(rng: &mut SmallRng) -> Rates {
    Rates {
        message_loss: share(0.25, rng),
        message_duplication: share(0.3, rng),
        message_delay: share(0.3, rng),
        message_delay_max: Duration::from_micros(rng.random_range(5..200)),
        ..Rates::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locks;

    #[test]
    fn both_preferences_are_drawn_for_each_lock_of_a_switch() {
        for server_lock in ServerLock::SWITCHED {
            let of = |seed| drawn(seed, server_lock, Recovery::Fenced).preference;
            let writers = (0..100).filter(|seed| of(*seed) == Preference::Writers).count();
            assert!((30..=70).contains(&writers), "{server_lock}: {writers} of 100");
        }
    }

    /// Machines keep a part of the locks in tables, and ask one another again after up to fifty
    /// milliseconds. Five losses in a row were taken for a lock that is stuck: those seeds first.
    #[test]
    fn locks_of_switches_and_servers_stand_what_is_drawn() {
        for seed in [2516, 2633, 4232, 9134, 9288, 9373].into_iter().chain(0..12) {
            let scenario = locks::drawn(seed, None, Recovery::Fenced);
            if matches!(scenario, locks::LockScenario::Server(_)) {
                let judged = scenario.run(seed).expect("it can be run");
                assert!(judged.violations.is_empty(), "seed {seed}: {judged}");
            }
        }
    }
}
