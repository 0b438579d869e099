//! Named scenarios of locks kept by a switch, servers or a Redis: the flaws of FissLock as
//! published, a scenario for each, and unrepaired losses.

use std::time::Duration;

use lotus_fabric::sim::Rates;
use lotus_locksystems::fisslock::Rules;
use lotus_locksystems::fisslock::rules::Numbering;
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::trial::server_locks::{Plan, ServerFaults};

use super::named::{Named, ScenarioSubject};

/// Faults that delay and duplicate messages.
fn late(none: ServerFaults) -> ServerFaults {
    let rates = Rates {
        message_duplication: 0.2,
        message_delay: 0.3,
        message_delay_max: Duration::from_micros(60),
        ..none.rates
    };
    ServerFaults { rates, ..none }
}

/// One lock; clients often give up.
fn impatient(small: Plan) -> Plan {
    Plan { locks: 1, hurried: 0.3, dropped: 0.3, shared: 0.2, ..small }
}

const fn many_locks(small: Plan) -> Plan {
    Plan { locks: 8, ..small }
}

pub(super) const NAMED_SERVERS: &[Named] = &[
    Named {
        name: "fisslock-late-grant",
        shows: "a grant is late, and its task asks again: it is taken for the grant of that",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { nonces: false, ..Rules::CLOSED },
            plan: impatient,
            faults: late,
        },
    },
    Named {
        name: "fisslock-overlap",
        shows: "two tasks of a machine ask, and the one that gives up frees the other's lock",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { one_request: false, withdraws: false, ..Rules::CLOSED },
            plan: impatient,
            faults: late,
        },
    },
    Named {
        name: "fisslock-overtaken",
        shows: "a request is overtaken by a later one: it is granted, and its lock is not marked",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { numbering: Numbering::Largest, replays: false, ..Rules::CLOSED },
            plan: many_locks,
            faults: late,
        },
    },
    Named {
        name: "fisslock-repeated",
        shows: "the switch decides on a packet as often as it comes: locks of no task, or of two",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { numbering: Numbering::Ignored, ..Rules::CLOSED },
            plan: |small| small,
            faults: late,
        },
    },
    Named {
        name: "fisslock-first-reader",
        shows: "the switch counts the first reader, and the agent does not: never free again",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { first_counts: false, ..Rules::CLOSED },
            plan: |small| small,
            faults: |none| none,
        },
    },
    Named {
        name: "fisslock-refused-free",
        shows: "FREE meets a reader at the switch, and the machine has forgotten the agent",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { keeps_freed: false, ..Rules::CLOSED },
            plan: |small| Plan { shared: 0.8, ..small },
            faults: |none| none,
        },
    },
    Named {
        name: "fisslock-freed-under-way",
        shows: "the RELEASE of a task that gives up frees a lock whose agent comes with a queue",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { withdraws: false, ..Rules::CLOSED },
            plan: impatient,
            faults: |none| none,
        },
    },
    Named {
        name: "fisslock-lost-word",
        shows: "what the switch has sent for a packet is lost, and not sent again",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules { replays: false, ..Rules::CLOSED },
            plan: |small| small,
            faults: ServerFaults::lossy,
        },
    },
    Named {
        name: "fisslock-losses",
        shows: "machines are lost and return, and the switch loses its state, twice",
        published_fail: true,
        published_only: false,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::FissLock,
            published: Rules::PUBLISHED,
            plan: |small| small.mixed(),
            faults: |none| ServerFaults {
                crashes: 1,
                pauses: 1,
                partitions: 1,
                returns: true,
                switch_losses: 2,
                ..none.lossy()
            },
        },
    },
    Named {
        name: "redlock-slow-holder",
        shows: "a key's time is over while its holder pauses; the holder goes on beside the next",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::RedLock,
            published: Rules::CLOSED,
            plan: |small| Plan { locks: 1, ..small },
            faults: |none| ServerFaults {
                pauses: 2,
                pause: Duration::from_millis(60),
                expelled: 0.0,
                ..none
            },
        },
    },
    Named {
        name: "redlock-lost-server",
        shows: "a Redis returns without its keys, and grants what is held",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::RedLock,
            published: Rules::CLOSED,
            plan: held_for_long,
            faults: server_returns,
        },
    },
    Named {
        name: "redlock-delayed-restart",
        shows: "a Redis that has lost its keys stays down while they live, and grants none of them",
        published_fail: false,
        published_only: true,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::RedLock,
            published: Rules::CLOSED,
            plan: held_for_long,
            faults: |none| ServerFaults {
                server_down: Duration::from_micros(12_100),
                ..server_returns(none)
            },
        },
    },
    Named {
        name: "srvlock-lost-server",
        shows: "a server returns without its queues, and grants what is held",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::SrvLock,
            published: Rules::CLOSED,
            plan: held_for_long,
            faults: server_returns,
        },
    },
    Named {
        name: "netlock-lost-switch",
        shows: "a switch returns without its queues, and grants what is held",
        published_fail: true,
        published_only: true,
        subject: ScenarioSubject::Server {
            server_lock: ServerLock::NetLock,
            published: Rules::CLOSED,
            plan: |small| Plan { locks: 1, ..held_for_long(small) },
            faults: server_returns,
        },
    },
];

fn held_for_long(small: Plan) -> Plan {
    Plan { hold: Duration::from_micros(100), ..small }
}

fn server_returns(none: ServerFaults) -> ServerFaults {
    let detection = Duration::from_micros(20);
    ServerFaults { server_losses: 1, server_returns: true, detection, ..none }
}
