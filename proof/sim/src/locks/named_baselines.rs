//! Named scenarios of baselines in words of memory nodes that exist only as published: each with a
//! fault that breaks the baseline for good.

use std::time::Duration;

use lotus_fabric::sim::Rates;
use lotus_locksystems::systems::Kind;
use lotus_locksystems::trial::{Faults, Settings};

use super::named::{Named, ScenarioSubject, answers_are_lost, one_dies, same};

/// Clients wait for each lease to end, so few leases fit into a trial.
fn writers(small: Settings) -> Settings {
    Settings { shared: 0.2, rounds: 20, clients: 2, ..small }
}

fn leases(small: Settings) -> Settings {
    let hold = Duration::from_micros(1_500);
    Settings { shared: 0.6, rounds: 20, clients: 2, locks: 1, hold, ..small }
}

/// Locks that are held most of the time.
fn long_writers(small: Settings) -> Settings {
    let hold = Duration::from_micros(200);
    Settings { shared: 0.0, rounds: 20, clients: 2, hold, ..small }
}

fn two_die(none: Faults) -> Faults {
    Faults { crashes: 2, ..none }
}

fn clocks_drift(none: Faults) -> Faults {
    Faults { drift_ppm: 100_000, ..none }
}

fn pauses_past_leases(none: Faults) -> Faults {
    Faults { pauses: 2, pause: Duration::from_millis(90), expelled: 0.0, ..none }
}

fn notices_come_twice(none: Faults) -> Faults {
    let rates = Rates {
        message_duplication: 0.2,
        message_delay: 0.2,
        message_delay_max: Duration::from_micros(100),
        ..none.rates
    };
    Faults { rates, ..none }
}

pub(super) const NAMED_BASELINES: &[Named] = &[
    Named {
        name: "rma-rw-dead-user",
        shows: "readers are counted and have no names, and a writer hands over to the dead",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::RmaRw,
            left: None,
            settings: same,
            faults: one_dies,
        },
    },
    Named {
        name: "rma-rw-lost-notice",
        shows: "a notice is lost: nobody knows who comes next, or that it is its turn",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::RmaRw,
            left: None,
            settings: same,
            faults: Faults::lossy,
        },
    },
    Named {
        name: "rma-rw-lost-answer",
        shows: "a fetch-and-add without an answer was counted, or was not",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::RmaRw,
            left: None,
            settings: same,
            faults: answers_are_lost,
        },
    },
    Named {
        name: "ncosed-dead-user",
        shows: "the lock is handed to the dead, and readers are counted that never leave",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::Ncosed,
            left: None,
            settings: same,
            faults: one_dies,
        },
    },
    Named {
        name: "ncosed-lost-notice",
        shows: "a notice is lost: nobody knows who comes next, or that it is its turn",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::Ncosed,
            left: None,
            settings: same,
            faults: Faults::lossy,
        },
    },
    Named {
        name: "ncosed-lost-answer",
        shows: "a request whose answer was lost is in the queue, and nobody is there",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::Ncosed,
            left: None,
            settings: same,
            faults: answers_are_lost,
        },
    },
    Named {
        name: "drtm-dead-writer",
        shows: "the word says that it is written, its writer is dead, and no lease ends",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::Drtm,
            left: None,
            settings: long_writers,
            faults: two_die,
        },
    },
    Named {
        name: "drtm-lost-answer",
        shows: "a writer's bit whose answer was lost is nobody's",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::Drtm,
            left: None,
            settings: writers,
            faults: answers_are_lost,
        },
    },
    Named {
        name: "drtm-drifting-clocks",
        shows: "a clock is fast: a lease is over there while its reader relies on it",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::Drtm,
            left: None,
            settings: leases,
            faults: clocks_drift,
        },
    },
    Named {
        name: "shiftlock-wide-slow-holder",
        shows: "as shiftlock-slow-holder, in words of 16 bytes",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLockWide,
            left: None,
            settings: same,
            faults: pauses_past_leases,
        },
    },
    Named {
        name: "shiftlock-wide-late-notice",
        shows: "as shiftlock-late-notice, in words of 16 bytes",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Words {
            kind: Kind::ShiftLockWide,
            left: None,
            settings: same,
            faults: notices_come_twice,
        },
    },
];
