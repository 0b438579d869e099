//! The fabrics on which the suite runs, and what is asked of the locks there.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_fabric::machines::{Machines, Threads};
#[cfg(feature = "rdma")]
use lotus_fabric::rdma::{self, RdmaFabric};
use lotus_fabric::shm::ShmFabric;
use lotus_fabric::sim::Profile;
use lotus_fabric::tcp::{Config, TcpFabric};
use lotus_locks::systems::Visitor;
use lotus_locks::{Guarantees, LockSystem};
use lotus_locksystems::systems::Choice;
use lotus_locksystems::trial::{Faults, Settings, Trial, TrialResult, simulate};

const MEMORY: NodeId = NodeId(0);
/// All nodes: the memory node, the compute nodes, and one that audits.
const COUNT: u16 = 6;

/// Two locks, and a few clients on each of four compute nodes. Some of those that do not only read
/// ask for update locks.
pub fn settings() -> Settings {
    let small = Settings::small(MEMORY, (1..COUNT).map(NodeId).collect());
    Settings { updates: 0.3, ..small }
}

/// A place where trials run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Platform {
    Local,
    /// Memory in files that lanes map, messages in rings.
    Shm,
    Tcp,
    /// Network cards of this machine, all nodes in this process.
    #[cfg(feature = "rdma")]
    Rdma,
    /// On virtual time, with these many seeds.
    Sim(u64),
    /// The same, with cards that have masked atomics.
    Masked(u64),
}

impl Platform {
    /// Time that a message takes there and back at most, if nothing is lost.
    pub fn round_trip(self) -> Duration {
        match self {
            // Threads of a busy machine may stand still for long.
            Self::Local | Self::Shm | Self::Tcp => Duration::from_secs(5),
            #[cfg(feature = "rdma")]
            Self::Rdma => Duration::from_secs(5),
            Self::Sim(_) | Self::Masked(_) => Duration::from_micros(10),
        }
    }

    /// Requests of each client, where a family asks for `rounds`.
    pub const fn rounds(self, rounds: u32) -> u32 {
        match self {
            // The processor may be emulated, and the cards software.
            #[cfg(feature = "rdma")]
            Self::Rdma => rounds / 10,
            _ => rounds,
        }
    }

    /// Profile of the simulated cards.
    const fn profile(self) -> &'static str {
        if matches!(self, Self::Masked(_)) { "ideal" } else { "cx3-56g" }
    }

    /// Whether time is virtual, so that what happens does not depend on the machine.
    pub const fn is_simulated(self) -> bool {
        matches!(self, Self::Sim(_) | Self::Masked(_))
    }
}

/// A directory for the sockets of one trial, removed with its contents when dropped.
struct Sockets(PathBuf);

impl Sockets {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lotus-locks-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a fresh directory");
        Self(path)
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's directory for such files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What is asked of a lock system in a trial.
pub struct Asked<'a> {
    pub platform: Platform,
    pub settings: &'a Settings,
    pub faults: &'a Faults,
}

impl Visitor for Asked<'_> {
    /// What came of it, and what the system promises.
    type Output = (TrialResult, Guarantees);

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let guarantees = make().guarantees();
        let make: Arc<dyn Fn() -> S + Send + Sync> = Arc::new(make);
        let env = Env::real(1);
        let verdict = match self.platform {
            Platform::Local => run(&Threads::new(COUNT, 1), self.settings, &make),
            Platform::Shm => {
                let sockets = Sockets::new();
                let fabric = ShmFabric::join(&sockets.0, COUNT, &env).expect("there is memory");
                let host = |node| fabric.host(NodeId(node)).expect("nobody else hosts it");
                (0..COUNT).for_each(host);
                run(&Threads::over(fabric, env), self.settings, &make)
            }
            Platform::Tcp => {
                let fabric = TcpFabric::start(Config::loopback(COUNT), env.clone());
                let fabric = fabric.expect("loopback has free ports");
                run(&Threads::over(fabric, env), self.settings, &make)
            }
            #[cfg(feature = "rdma")]
            Platform::Rdma => {
                let config = rdma::Config::in_process(COUNT, &[]).expect("there are devices");
                let fabric = RdmaFabric::new(config, env.clone()).expect("the devices work");
                run(&Threads::over(fabric, env), self.settings, &make)
            }
            Platform::Sim(seeds) | Platform::Masked(seeds) => {
                let mut all = TrialResult::default();
                for seed in 0..seeds {
                    let profile = Profile::named(self.platform.profile()).expect("built in");
                    let verdict = simulate(seed, profile, self.settings, self.faults, &make);
                    let mut verdict = verdict.expect("a valid trial");
                    let numbered = |what| format!("seed {seed}: {what}");
                    verdict.violations = verdict.violations.into_iter().map(numbered).collect();
                    all += verdict;
                }
                all
            }
        };
        (verdict, guarantees)
    }
}

fn run<S: LockSystem>(
    machines: &dyn Machines,
    settings: &Settings,
    make: &Arc<dyn Fn() -> S + Send + Sync>,
) -> TrialResult {
    // Threads of a busy machine may stand still for long, also between two verbs of an audit.
    let settings = Settings { audit: Duration::from_secs(10), ..settings.clone() };
    let trial = Trial::start(machines, settings, Arc::clone(make)).expect("a valid trial");
    trial.finish::<S>(machines).expect("an audit")
}

/// Runs a trial of a lock system.
pub fn trial(
    choice: Choice,
    platform: Platform,
    settings: &Settings,
    faults: &Faults,
) -> (TrialResult, Guarantees) {
    choice.visit(Asked { platform, settings, faults })
}
