//! Scenarios that show the flaws of published systems, a scenario for each flaw. With fenced locks,
//! no violation occurs.

use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::sim::Rates;
use lotus_locks::Recovery;
use lotus_locksystems::LockSpec;
use lotus_locksystems::fisslock::Rules;
use lotus_locksystems::local::Policy;
use lotus_locksystems::redlock::rules::Times;
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::systems::{Choice, Kind};
use lotus_locksystems::trial::server_locks::{Plan, ServerFaults, ServerTrial};
use lotus_locksystems::trial::{Faults, Settings};

use super::drawn::nearly_used_up;
use super::named_baselines::NAMED_BASELINES;
use super::named_servers::NAMED_SERVERS;
use super::{LockScenario, MASKED, PROFILE, WordsScenario};

/// A named scenario.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// Name, as on the command line.
    pub name: &'static str,
    /// Description of the behaviour shown.
    pub shows: &'static str,
    /// Whether locks as published fail in the scenario.
    pub published_fail: bool,
    /// Whether only locks as published show the behaviour.
    pub published_only: bool,
    pub(super) subject: ScenarioSubject,
}

/// Subject of a named scenario.
#[derive(Clone, Copy, Debug)]
pub(super) enum ScenarioSubject {
    /// A lock system in words of a memory node.
    Words {
        kind: Kind,
        /// Requests left until the counters are used up.
        left: Option<u32>,
        settings: fn(Settings) -> Settings,
        faults: fn(Faults) -> Faults,
    },
    /// Locks with a keeper, with the rules of FissLock as published.
    Server {
        server_lock: ServerLock,
        published: Rules,
        plan: fn(Plan) -> Plan,
        faults: fn(ServerFaults) -> ServerFaults,
    },
}

impl Named {
    /// Whether the scenario can be run with `recovery`: not with fenced locks if the lock has no
    /// fenced form, or if the failure belongs to published locks only.
    pub fn is_offered(&self, recovery: Recovery) -> bool {
        let lock = match self.subject {
            ScenarioSubject::Words { kind, .. } => LockSpec::Words(kind),
            ScenarioSubject::Server { server_lock, .. } => LockSpec::Server(server_lock),
        };
        recovery == Recovery::Paper
            || lock.check(recovery).is_ok() && !(self.published_only && self.published_fail)
    }

    /// The scenario, with locks as published or fenced.
    pub fn scenario(&self, recovery: Recovery) -> LockScenario {
        let (kind, left, settings, faults) = match self.subject {
            ScenarioSubject::Words { kind, left, settings, faults } => {
                (kind, left, settings, faults)
            }
            ScenarioSubject::Server { server_lock, published, plan, faults } => {
                let trial = ServerTrial::of(server_lock);
                let rules = match recovery {
                    Recovery::Paper => published,
                    Recovery::Fenced => Rules::CLOSED,
                };
                let (plan, faults) = (plan(trial.plan), faults(trial.faults));
                let times = Times::BANK;
                return LockScenario::Server(ServerTrial { rules, plan, faults, times, ..trial });
            }
        };
        // With back-off, waiting for a lock that no client releases costs little time. Writers of
        // ShiftLock often give the lock to the readers.
        let choice = Choice { recovery, backs_off: true, threshold: 2, ..Choice::of(kind) };
        let small = Settings::small(NodeId(0), (1..=4).map(NodeId).collect());
        let settings = Settings {
            first_word: left.map_or(0, |left| nearly_used_up(choice, left)),
            ..settings(small)
        };
        let faults = faults(Faults::none());
        let profile = if kind.needs_wide_atomics() { MASKED } else { PROFILE };
        let words = WordsScenario { choice, settings, faults, profile };
        LockScenario::Words(words.with(recovery))
    }
}

/// The scenario with the name `name`.
pub fn find(name: &str) -> Option<&'static Named> {
    all().find(|named| named.name == name)
}

/// All named scenarios.
pub fn all() -> impl Iterator<Item = &'static Named> {
    NAMED.iter().chain(NAMED_BASELINES).chain(NAMED_SERVERS)
}

pub(super) const fn same(settings: Settings) -> Settings {
    settings
}

pub(super) fn one_dies(none: Faults) -> Faults {
    Faults { crashes: 1, ..none }
}

pub(super) fn answers_are_lost(none: Faults) -> Faults {
    none.doubtful()
}

/// One lock; readers and writers take turns.
fn shifting(small: Settings) -> Settings {
    let moment = Duration::from_micros(2);
    Settings { locks: 1, clients: 4, hold: moment, think: moment, ..small }
}

/// Delays messages for longer than a reset takes.
fn messages_are_late(none: Faults) -> Faults {
    let message_delay_max = Duration::from_millis(1);
    Faults { rates: Rates { message_delay: 0.2, message_delay_max, ..none.rates }, ..none }
}

const NAMED: &[Named] = &[
    Named {
        name: "cas-dead-holder",
        shows: "the word names a holder that is dead, and nobody takes the lock from it",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Cas,
            left: None,
            settings: same,
            faults: one_dies,
        },
    },
    Named {
        name: "cas-lost-answer",
        shows: "an acquisition whose answer was lost leaves a lock that nobody knows of",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Cas,
            left: None,
            settings: same,
            faults: answers_are_lost,
        },
    },
    Named {
        name: "cas-rw-dead-reader",
        shows: "readers are counted and have no names: a dead one is counted for ever",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::CasRw,
            left: None,
            settings: |small| Settings { shared: 0.8, ..small },
            faults: one_dies,
        },
    },
    Named {
        name: "cas-rw-lost-answer",
        shows: "a fetch-and-add without an answer was counted, or was not",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::CasRw,
            left: None,
            settings: same,
            faults: answers_are_lost,
        },
    },
    Named {
        name: "dslr-slow-holder",
        shows: "a lease ends while its holder pauses; the holder goes on beside the next one (H2)",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Dslr,
            left: None,
            settings: |small| Settings { shared: 0.2, ..small },
            faults: |none| Faults {
                pauses: 2,
                pause: Duration::from_millis(60),
                expelled: 0.0,
                ..none
            },
        },
    },
    Named {
        name: "dslr-dead-resetter",
        shows: "the counters are used up, and the one who was to set them back is dead",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::DslrPlus,
            left: Some(8),
            settings: |small| Settings { terms: 3, ..small },
            faults: one_dies,
        },
    },
    Named {
        name: "dslr-lost-answer",
        shows: "a ticket whose answer was lost belongs to nobody, and is waited for",
        // The lease skips the ticket, after twenty milliseconds.
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Dslr,
            left: None,
            settings: same,
            faults: answers_are_lost,
        },
    },
    Named {
        name: "dslr-siblings",
        shows: "a reader leaves before an earlier one: Algorithm 2 fails the earlier one's ticket",
        published_fail: false,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::Dslr,
            left: None,
            settings: |small| Settings {
                locks: 1,
                shared: 0.8,
                clients: 6,
                is_calm: true,
                ..small
            },
            // A reader that pauses before its turn finds later readers gone.
            faults: |none| Faults {
                pauses: 2,
                pause: Duration::from_millis(1),
                expelled: 0.0,
                ..none
            },
        },
    },
    Named {
        name: "dslr-impatient",
        shows: "waiters give up: they stay in the queue, take their turns, and hold nothing",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Dslr,
            left: None,
            settings: |small| Settings {
                locks: 1,
                shared: 0.3,
                hurried: 0.5,
                is_calm: true,
                ..small
            },
            faults: |none| none,
        },
    },
    Named {
        name: "mcs-lost-notice",
        shows: "a notice is lost: nobody knows who comes next, or that it is its turn",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Mcs,
            left: None,
            settings: same,
            faults: Faults::lossy,
        },
    },
    Named {
        name: "mcs-dead-waiter",
        shows: "a node that is in the queue dies: the lock is handed to it, and to nobody after it",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Mcs,
            left: None,
            settings: same,
            faults: one_dies,
        },
    },
    Named {
        name: "mcs-impatient",
        shows: "waiters give up: they stay in the queue, and hand the lock on",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Mcs,
            left: None,
            settings: |small| Settings { locks: 1, hurried: 0.5, is_calm: true, ..small },
            faults: |none| none,
        },
    },
    Named {
        name: "declock-lost-notice",
        shows: "a notice is lost: who was to have the lock waits until it looks for itself",
        // Published locks are reset after a while.
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings { rounds: 10, ..small },
            faults: Faults::lossy,
        },
    },
    Named {
        name: "declock-overflow",
        shows: "more ask than the queue has room for: the lock is reset, and no entry is lost",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings {
                locks: 1,
                clients: 4,
                is_calm: true,
                may_reset: true,
                ..small
            },
            faults: |none| none,
        },
    },
    Named {
        name: "declock-late-notice",
        shows: "a notice arrives when the lock has been reset, and its one waits at the same place",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings { locks: 1, clients: 4, rounds: 20, shared: 0.2, ..small },
            faults: messages_are_late,
        },
    },
    Named {
        name: "declock-slow-resetter",
        shows: "a node that resets a lock is taken for dead, returns, and writes over its header",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: Some(6),
            settings: |small| Settings { clients: 4, shared: 0.2, ..small },
            faults: |none| Faults {
                pauses: 2,
                pause: Duration::from_millis(40),
                expelled: 1.0,
                span: Duration::from_micros(60),
                ..none
            },
        },
    },
    Named {
        name: "declock-late-verbs",
        shows: "a reset does not wait for the dead: what they have posted lands in the next queue",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings { hurried: 0.2, ..small },
            faults: |none| Faults {
                pauses: 2,
                pause: Duration::from_millis(120),
                expelled: 1.0,
                ..none
            },
        },
    },
    Named {
        name: "declock-laps",
        shows: "entries of an earlier lap are there still when those of this one are looked for",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings { locks: 1, clients: 2, is_calm: true, ..small },
            faults: |none| none,
        },
    },
    Named {
        name: "declock-impatient",
        shows: "waiters give up: they stay in the queue, take their turns, and hold nothing",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings {
                locks: 1,
                clients: 2,
                hurried: 0.5,
                is_calm: true,
                ..small
            },
            faults: |none| none,
        },
    },
    Named {
        name: "declock-lost-answer",
        shows: "a request whose answer was lost is in the queue, or is not",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: same,
            faults: answers_are_lost,
        },
    },
    Named {
        name: "declock-resets",
        shows: "locks are reset while nodes hold them, wait for them, die, pause and return",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings { hold: Duration::from_micros(30), dropped: 0.2, ..small },
            faults: |none| Faults {
                crashes: 1,
                pauses: 1,
                returns: true,
                ..none.doubtful().lossy()
            },
        },
    },
    Named {
        name: "memory-lost",
        shows: "the memory node loses its memory: nobody keeps a lock or a place in a queue there",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Dslr,
            left: None,
            settings: |small| Settings { hold: Duration::from_micros(100), dropped: 0.2, ..small },
            faults: |none| Faults { losses: 2, ..none.lossy() },
        },
    },
    Named {
        name: "cas-rw-resets",
        shows: "locks are reset while nodes hold them, wait for them, die, pause and return",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::CasRw,
            left: None,
            settings: |small| Settings { hold: Duration::from_micros(30), dropped: 0.2, ..small },
            faults: |none| Faults {
                crashes: 1,
                pauses: 1,
                returns: true,
                ..none.doubtful().lossy()
            },
        },
    },
    Named {
        name: "dslr-resets",
        shows: "the same with tickets",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Dslr,
            left: None,
            settings: |small| Settings { hold: Duration::from_micros(30), dropped: 0.2, ..small },
            faults: |none| Faults {
                crashes: 1,
                pauses: 1,
                returns: true,
                ..none.doubtful().lossy()
            },
        },
    },
    Named {
        name: "mcs-resets",
        shows: "the same with a queue whose notices are late, or come twice",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Mcs,
            left: None,
            settings: |small| Settings { hold: Duration::from_micros(30), dropped: 0.2, ..small },
            faults: |none| Faults {
                crashes: 1,
                pauses: 1,
                returns: true,
                ..none.doubtful().lossy()
            },
        },
    },
    Named {
        name: "shiftlock-late-count",
        shows: "a lock is handed over before that is counted; a writer enters beside a reader",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLock,
            left: None,
            settings: shifting,
            // Atomics are late, but all are answered.
            faults: |none| {
                let mut faults = none;
                faults.rates.verb_delay = 0.3;
                faults.rates.verb_delay_max = Duration::from_micros(40);
                faults
            },
        },
    },
    Named {
        name: "shiftlock-lost-notice",
        shows: "a notice is lost: nobody goes on, as published until the keeper frees the lock",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLock,
            left: None,
            settings: |small| Settings { rounds: 20, ..small },
            faults: |none| {
                let mut faults = none;
                faults.rates.message_loss = 0.05;
                faults
            },
        },
    },
    Named {
        name: "shiftlock-late-notice",
        shows: "a notice comes twice, to one who uses its addressee's name by then",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLock,
            left: Some(8),
            settings: |small| Settings { shared: 0.2, ..shifting(small) },
            faults: |none| {
                let mut faults = none;
                faults.rates.message_duplication = 0.2;
                faults.rates.message_delay = 0.2;
                faults.rates.message_delay_max = Duration::from_micros(100);
                faults
            },
        },
    },
    Named {
        name: "shiftlock-dead-user",
        shows: "a node dies: nobody goes on, as published until the keeper frees the lock",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLock,
            left: None,
            settings: same,
            faults: one_dies,
        },
    },
    Named {
        name: "shiftlock-slow-holder",
        shows: "the keeper frees a lock while its holder pauses, which then counts itself out",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLock,
            left: None,
            settings: same,
            faults: |none| Faults {
                pauses: 2,
                pause: Duration::from_millis(90),
                expelled: 0.0,
                ..none
            },
        },
    },
    Named {
        name: "shiftlock-impatient",
        shows: "readers take themselves out of the count; writers stay in the queue and hand it on",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLock,
            left: None,
            settings: |small| Settings { hurried: 0.5, is_calm: true, ..shifting(small) },
            faults: |none| none,
        },
    },
    Named {
        name: "shiftlock-resets",
        shows: "the same as mcs-resets, with readers, and with pauses longer than leases",
        // As published, the lock has two holders in few seeds only.
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLock,
            left: None,
            settings: |small| Settings { hold: Duration::from_micros(30), dropped: 0.2, ..small },
            faults: |none| Faults {
                crashes: 1,
                pauses: 1,
                pause: Duration::from_millis(90),
                returns: true,
                ..none.doubtful().lossy()
            },
        },
    },
    Named {
        name: "shared-by-readers",
        shows: "readers of one node leave one after the other; the last gives up the node's lock",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Declock,
            left: None,
            settings: |small| Settings {
                locks: 1,
                lanes: 2,
                clients: 4,
                shared: 0.8,
                policy: Some(Policy::TsPf),
                is_calm: true,
                ..small
            },
            faults: |none| none,
        },
    },
    Named {
        name: "shared-by-writers",
        shows: "the first client of a node asks for the lock that its neighbours wait for",
        published_fail: false,
        published_only: false,
        subject: ScenarioSubject::Words {
            kind: Kind::Cas,
            left: None,
            settings: |small| Settings {
                locks: 1,
                lanes: 2,
                policy: Some(Policy::LocalBound(4)),
                hurried: 0.2,
                dropped: 0.2,
                is_calm: true,
                ..small
            },
            faults: |none| none,
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds that are tried at most.
    const SEEDS: u64 = 12;

    #[test]
    fn fenced_locks_stand_what_published_ones_do_not() {
        for named in all() {
            let fails = |recovery, seed| {
                let verdict = named.scenario(recovery).run(seed).expect("it can be run");
                (!verdict.violations.is_empty()).then_some(verdict)
            };
            let passes = match (named.is_offered(Recovery::Fenced), named.published_fail) {
                (true, _) => Some(Recovery::Fenced),
                (false, true) => None,
                (false, false) => Some(Recovery::Paper),
            };
            for (recovery, seed) in
                passes.into_iter().flat_map(|one| (0..3).map(move |at| (one, at)))
            {
                let failed = fails(recovery, seed);
                assert!(failed.is_none(), "{} seed {seed}: {}", named.name, failed.unwrap());
            }
            if named.published_fail {
                let noticed = (0..SEEDS).any(|seed| fails(Recovery::Paper, seed).is_some());
                assert!(noticed, "{} shows nothing", named.name);
            }
        }
    }

    #[test]
    fn names_differ() {
        for named in all() {
            assert_eq!(all().filter(|other| other.name == named.name).count(), 1);
            assert_eq!(find(named.name).map(|found| found.name), Some(named.name));
        }
    }
}
