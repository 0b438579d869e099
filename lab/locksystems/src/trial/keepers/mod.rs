//! Trials of locks kept by a switch, servers or a Redis, on virtual time and with faults.
//!
//! # What it is
//! The counterpart of [`super::simulate`] for locks whose state is not in words of a memory node:
//! the same judges and clients' work, and faults drawn from the seed. Machines crash, stand still,
//! are cut off and return; the switch loses its state; a server is lost. A core of the memory node
//! plays the membership: it fences a lost machine at the memory, informs the keepers, and starts
//! FissLock's recovery.
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
//! `load`: the clients' work; `locker`: one type for the locks of every keeper; `keeper`: the nodes
//! and cores that keep locks; `cluster`: cores and the audit; `faults`: scheduled faults;
//! `membership`: injection of faults, expulsion and recovery.

mod cluster;
mod faults;
mod keeper;
mod load;
mod locker;
mod membership;

use std::time::Duration;

use lotus_fabric::machines::Machines;
use lotus_fabric::sim::{Config, Limits, Profile, SimMachines, World};

use super::{Judgement, TrialError};
use crate::fisslock::{Preference, Rules};
use crate::redlock::rules::Times;
use crate::servers::Kept;
use cluster::Cluster;
use keeper::{nodes, switches};

pub use faults::KeptFaults;
pub use load::{Done, LockUser, MEMORY, Plan, REGION, Unkept, before};

/// Profile of the simulated machines: includes a switch.
const PROFILE: &str = "tofino-cx5";
/// Stream of the world's randomness from which faults are drawn.
const STREAM: u64 = u64::MAX;
/// Virtual time after which a trial counts as stuck. Longer than clients wait for lost servers.
const LIMIT: Duration = Duration::from_secs(120);

/// A trial of locks kept outside memory words.
#[derive(Clone, Debug)]
pub struct KeptTrial {
    /// The lock service.
    pub kept: Kept,
    /// Rules of FissLock.
    pub rules: Rules,
    /// Preference of FissLock.
    pub preference: Preference,
    /// Times of RedLock.
    pub times: Times,
    /// Load.
    pub plan: Plan,
    /// Faults.
    pub faults: KeptFaults,
}

impl KeptTrial {
    /// Returns a small load without faults, with all holes of FissLock closed.
    pub fn of(kept: Kept) -> Self {
        // Clients repeat requests to servers after milliseconds, up to fifty.
        let patience = match kept {
            Kept::FissLock | Kept::FissLockLocal => Plan::SMALL.patience,
            _ => Duration::from_secs(4),
        };
        let plan = Plan { patience, ..Plan::SMALL };
        Self {
            kept,
            rules: Rules::CLOSED,
            preference: Preference::Readers,
            times: Times::LOCKS,
            plan,
            faults: KeptFaults::none(),
        }
    }

    /// Runs the trial in a new world.
    ///
    /// # Errors
    /// [`TrialError`].
    pub fn simulate(&self, seed: u64) -> Result<Judgement, TrialError> {
        let profile = Profile::named(PROFILE).expect("it is built in");
        let config = Config {
            rates: self.faults.rates.clone(),
            limits: Limits { time: LIMIT, ..Limits::default() },
            switches: switches(&self.plan).collect(),
            ..Config::new(seed, nodes(&self.plan), profile)
        };
        let world = World::new(config).unwrap_or_else(|error| panic!("a world: {error}"));
        let machines = SimMachines::new(world);
        let fate = self.faults.draw(self, &mut machines.outside().rng(STREAM));
        Cluster::start(&machines, self, fate)?.finish()
    }
}

#[cfg(all(test, not(lotus_loom)))]
mod tests {
    use super::*;

    const KEPT: [Kept; 11] = [
        Kept::FissLock,
        Kept::FissLockLocal,
        Kept::FissParLock,
        Kept::SrvLock,
        Kept::ParLock,
        Kept::ParLockLocal,
        Kept::Rpc,
        Kept::Traditional,
        Kept::TraditionalRo,
        Kept::NetLock,
        Kept::RedLock,
    ];

    fn passes(trial: &KeptTrial, seed: u64) -> Judgement {
        let judged = trial.simulate(seed).expect("it can be run");
        assert!(judged.violations.is_empty(), "{}, seed {seed}: {judged}", trial.kept);
        judged
    }

    #[test]
    fn all_keepers_pass_without_faults_and_a_seed_tells_all() {
        for kept in KEPT {
            let trial = KeptTrial { plan: KeptTrial::of(kept).plan.mixed(), ..KeptTrial::of(kept) };
            let judged = [passes(&trial, 1), passes(&trial, 1)];
            assert!(judged[0].entered > 100, "{kept}: {}", judged[0]);
            assert_eq!(format!("{:?}", judged[0]), format!("{:?}", judged[1]), "{kept}");
        }
    }

    #[test]
    fn a_machine_returns_under_another_number_and_is_served() {
        for kept in [Kept::FissLock, Kept::SrvLock] {
            let trial = KeptTrial::of(kept);
            let (mut with, mut without) = (0, 0);
            for seed in 0..6 {
                let faults = KeptFaults { crashes: 1, ..KeptFaults::none() };
                let lost = KeptTrial { faults: faults.clone(), ..trial.clone() };
                let faults = KeptFaults { returns: true, ..faults };
                let back = KeptTrial { faults, ..trial.clone() };
                without += passes(&lost, seed).entered;
                with += passes(&back, seed).entered;
            }
            assert!(with > without + 400, "{kept}: {with} with returns, {without} without");
        }
    }

    #[test]
    fn locks_of_a_lost_server_are_refused_and_nothing_hangs() {
        for kept in [Kept::SrvLock, Kept::Rpc, Kept::NetLock] {
            let trial = KeptTrial::of(kept);
            let faults = KeptFaults { server_losses: 1, ..KeptFaults::none() };
            for seed in 0..2 {
                let judged = passes(&KeptTrial { faults: faults.clone(), ..trial.clone() }, seed);
                assert!(judged.refused > 0, "{kept}: {judged}");
            }
        }
    }
}
