//! Lock systems on virtual time, without an engine: trials with faults, drawn from a seed or named
//! after a flaw of a published system.

mod drawn;
mod named;
mod named_baselines;
mod named_servers;
mod server_locks;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lotus_fabric::sim::Profile;
use lotus_locks::systems::Visitor;
use lotus_locks::{LockSystem, Recovery};
use lotus_locksystems::LockSpec;
use lotus_locksystems::systems::Choice;
use lotus_locksystems::trial::server_locks::ServerTrial;
use lotus_locksystems::trial::{Faults, Settings, TrialError, TrialResult, simulate};

use crate::drive::run::message;

pub use drawn::drawn;
pub use named::{Named, all, find};

/// Profile of the simulated cards, without masked atomics.
const PROFILE: &str = "cx3-56g";
/// Profile with masked atomics, also on 16 bytes.
const MASKED: &str = "ideal";

/// A trial of locks with its faults.
#[derive(Clone, Debug)]
pub enum LockScenario {
    /// Trial of a lock system in words of a memory node.
    Words(WordsScenario),
    /// Trial of locks kept by a switch, servers or a Redis.
    Server(ServerTrial),
}

impl LockScenario {
    /// The lock.
    pub const fn lock(&self) -> LockSpec {
        match self {
            Self::Words(words) => LockSpec::Words(words.choice.kind),
            Self::Server(trial) => LockSpec::Server(trial.server_lock),
        }
    }

    /// Runs the scenario with a seed. A panic of a core is a violation.
    ///
    /// # Errors
    /// [`TrialError`], if the scenario's settings make no sense.
    pub fn run(&self, seed: u64) -> Result<TrialResult, TrialError> {
        let tried = catch_unwind(AssertUnwindSafe(|| match self {
            Self::Words(words) => words.run(seed),
            Self::Server(trial) => trial.simulate(seed),
        }));
        tried.unwrap_or_else(|panic| {
            let violations = vec![format!("a core panics: {}", message(&*panic))];
            Ok(TrialResult { violations, ..TrialResult::default() })
        })
    }
}

/// A trial of a lock system with its faults.
#[derive(Clone, Debug)]
pub struct WordsScenario {
    /// The lock system.
    pub choice: Choice,
    /// Load.
    pub settings: Settings,
    /// Faults.
    pub faults: Faults,
    /// Profile of the simulated cards.
    pub profile: &'static str,
}

impl WordsScenario {
    /// The same scenario with locks as published, or fenced.
    #[must_use]
    pub fn with(mut self, recovery: Recovery) -> Self {
        self.choice.recovery = recovery;
        self.faults.fences = recovery == Recovery::Fenced;
        self
    }

    fn run(&self, seed: u64) -> Result<TrialResult, TrialError> {
        self.choice.visit(Seeded { scenario: self, seed })
    }
}

struct Seeded<'a> {
    scenario: &'a WordsScenario,
    seed: u64,
}

impl Visitor for Seeded<'_> {
    type Output = Result<TrialResult, TrialError>;

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let WordsScenario { settings, faults, profile, .. } = self.scenario;
        let profile = Profile::named(profile).expect("it is built in");
        simulate(self.seed, profile, settings, faults, &(Arc::new(make) as Arc<_>))
    }
}
