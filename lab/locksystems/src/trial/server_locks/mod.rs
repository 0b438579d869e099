//! Trials of locks kept by a switch, servers or a Redis, on virtual time and with faults.
//!
//! # What it is
//! The counterpart of [`super::simulate`] for locks whose state is not in words of a memory node:
//! the same judges and clients' work, and faults drawn from the seed. Machines crash, stand still,
//! are cut off and return; the switch loses its state; a server is lost. A core of the memory node
//! plays the membership: it fences a lost machine at the memory, informs the lock servers, and
//! starts FissLock's recovery.
//!
//! # What it is not
//! No memory is lost, and no verb is delayed: these locks use no verbs.
//!
//! # Machines that return
//! A crashed machine returns in a new life. For FissLock it is a new machine, with an unused number
//! and unused lanes: packets for its earlier life reach no lane. Where machines keep tables of
//! locks (ParLock, Traditional), a returning machine would begin with free locks. So these services
//! have no recovery, no machine returns, and a lost machine's share of the locks is lost.
//!
//! # Rooms
//! `load`: the clients' work; `locker`: one type for the locks of every keeper; `lock_servers`: the
//! nodes and cores that keep locks; `cluster`: cores and the audit; `faults`: scheduled faults;
//! `membership`: injection of faults, expulsion and recovery.

mod cluster;
mod faults;
mod load;
mod lock_servers;
mod locker;
mod membership;

use std::time::Duration;

use lotus_fabric::machines::Machines;
use lotus_fabric::sim::{Config, Limits, Profile, SimMachines, World};

use super::{TrialError, TrialResult};
use crate::fisslock::{Preference, Rules};
use crate::redlock::rules::Times;
use crate::servers::ServerLock;
use cluster::Cluster;
use lock_servers::{nodes, switches};

pub use faults::ServerFaults;
pub use load::{Done, LockUser, LostLocks, MEMORY, Plan, REGION, before};

/// Profile of the simulated machines: includes a switch.
const PROFILE: &str = "tofino-cx5";
/// Stream of the world's randomness from which faults are drawn.
const STREAM: u64 = u64::MAX;
/// Virtual time after which a trial counts as stuck. Longer than clients wait for lost servers.
const LIMIT: Duration = Duration::from_secs(120);

/// A trial of locks kept outside memory words.
#[derive(Clone, Debug)]
pub struct ServerTrial {
    /// The lock service.
    pub server_lock: ServerLock,
    /// Rules of FissLock.
    pub rules: Rules,
    /// Preference of FissLock.
    pub preference: Preference,
    /// Times of RedLock.
    pub times: Times,
    /// Load.
    pub plan: Plan,
    /// Faults.
    pub faults: ServerFaults,
}

impl ServerTrial {
    /// Returns a small load without faults, with all holes of FissLock closed.
    pub fn of(server_lock: ServerLock) -> Self {
        // Clients repeat requests to servers after milliseconds, up to fifty.
        let patience = match server_lock {
            ServerLock::FissLock | ServerLock::FissLockLocal => Plan::SMALL.patience,
            _ => Duration::from_secs(4),
        };
        let plan = Plan { patience, ..Plan::SMALL };
        Self {
            server_lock,
            rules: Rules::CLOSED,
            preference: Preference::Readers,
            times: Times::LOCKS,
            plan,
            faults: ServerFaults::none(),
        }
    }

    /// Runs the trial in a new world.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn simulate(&self, seed: u64) -> Result<TrialResult, TrialError> {
        let profile = Profile::named(PROFILE).expect("it is built in");
        let config = Config {
            rates: self.faults.rates.clone(),
            limits: Limits { time: LIMIT, ..Limits::default() },
            switches: switches(&self.plan).collect(),
            ..Config::new(seed, nodes(&self.plan), profile)
        };
        let world = World::new(config).unwrap_or_else(|error| panic!("a world: {error}"));
        let machines = SimMachines::new(world);
        let fault_plan = self.faults.draw(self, &mut machines.outside().rng(STREAM));
        Cluster::start(&machines, self, fault_plan)?.finish()
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    const ALL: [ServerLock; 11] = [
        ServerLock::FissLock,
        ServerLock::FissLockLocal,
        ServerLock::FissParLock,
        ServerLock::SrvLock,
        ServerLock::ParLock,
        ServerLock::ParLockLocal,
        ServerLock::Rpc,
        ServerLock::Traditional,
        ServerLock::TraditionalRo,
        ServerLock::NetLock,
        ServerLock::RedLock,
    ];

    fn passes(trial: &ServerTrial, seed: u64) -> TrialResult {
        let judged = trial.simulate(seed).expect("it can be run");
        assert!(judged.violations.is_empty(), "{}, seed {seed}: {judged}", trial.server_lock);
        judged
    }

    #[test]
    fn all_keepers_pass_without_faults_and_a_seed_tells_all() {
        for server_lock in ALL {
            let trial = ServerTrial {
                plan: ServerTrial::of(server_lock).plan.mixed(),
                ..ServerTrial::of(server_lock)
            };
            let judged = [passes(&trial, 1), passes(&trial, 1)];
            assert!(judged[0].entered > 100, "{server_lock}: {}", judged[0]);
            assert_eq!(format!("{:?}", judged[0]), format!("{:?}", judged[1]), "{server_lock}");
        }
    }

    #[test]
    fn a_machine_returns_under_another_number_and_is_served() {
        for server_lock in [ServerLock::FissLock, ServerLock::SrvLock] {
            let trial = ServerTrial::of(server_lock);
            let (mut with, mut without) = (0, 0);
            for seed in 0..6 {
                let faults = ServerFaults { crashes: 1, ..ServerFaults::none() };
                let lost = ServerTrial { faults: faults.clone(), ..trial.clone() };
                let faults = ServerFaults { returns: true, ..faults };
                let back = ServerTrial { faults, ..trial.clone() };
                without += passes(&lost, seed).entered;
                with += passes(&back, seed).entered;
            }
            assert!(with > without + 400, "{server_lock}: {with} with returns, {without} without");
        }
    }

    #[test]
    fn locks_of_a_lost_server_are_refused_and_nothing_hangs() {
        for server_lock in [ServerLock::SrvLock, ServerLock::Rpc, ServerLock::NetLock] {
            let trial = ServerTrial::of(server_lock);
            let faults = ServerFaults { server_losses: 1, ..ServerFaults::none() };
            for seed in 0..2 {
                let judged = passes(&ServerTrial { faults: faults.clone(), ..trial.clone() }, seed);
                assert!(judged.refused > 0, "{server_lock}: {judged}");
            }
        }
    }
}
