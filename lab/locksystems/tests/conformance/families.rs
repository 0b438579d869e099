//! Families of properties: settings and faults of trials, and what is demanded of their outcome.

use std::time::Duration;

use lotus_locks::word::{DeclockFields, QueueHeader, ShiftWord, TicketFields, Tickets};
use lotus_locks::{Guarantees, Recovery};
use lotus_locksystems::systems::{Choice, Kind};
use lotus_locksystems::trial::{Faults, Settings, TrialResult};
use lotus_locksystems::word::{RmaRwCounts, UpdateTickets};

use super::platforms::{Platform, settings, trial};

/// A family. All demand exclusion, whole data, an end, and free locks in the end.
#[derive(Clone, Copy)]
pub struct Family {
    name: &'static str,
    settings: fn(Settings) -> Settings,
    faults: fn(Faults) -> Faults,
    /// What else is demanded.
    demands: fn(&TrialResult, Guarantees, Platform),
}

const fn nothing(_: &TrialResult, _: Guarantees, _: Platform) {}

/// Families that need no faults.
pub const CALM: &[Family] = &[
    Family {
        name: "exclusion",
        settings: |small| Settings { clients: 8, ..small },
        faults: |none| none,
        demands: |verdict, _, _| assert_eq!(verdict.refused, 0, "each waits as long as it takes"),
    },
    Family {
        name: "one lock, two clients",
        settings: |small| {
            let nodes = small.nodes[2..].to_vec();
            Settings { locks: 1, clients: 1, shared: 0.2, nodes, ..small }
        },
        faults: |none| none,
        demands: nothing,
    },
    Family {
        name: "sharing",
        settings: |small| {
            let hold = Duration::from_micros(50);
            Settings { locks: 1, shared: 1.0, hold, rounds: 20, ..small }
        },
        faults: |none| none,
        demands: |verdict, guarantees, platform| {
            // Threads of one processor may never hold it at the same time.
            if platform.is_simulated() {
                assert_eq!(
                    verdict.together > 1,
                    guarantees.shares,
                    "{} together",
                    verdict.together
                );
            }
        },
    },
    Family {
        name: "upgrade",
        settings: |small| Settings {
            locks: 1,
            shared: 0.6,
            updates: 0.8,
            hurried: 0.2,
            dropped: 0.1,
            ..small
        },
        faults: |none| none,
        demands: |verdict, guarantees, platform| {
            let upgrades = |count: u64| (count > 0) == guarantees.upgrades;
            if matches!(platform, Platform::Sim(_)) {
                let TrialResult { beside, upgraded, .. } = verdict;
                assert!(upgrades(*beside) && upgrades(*upgraded), "{beside} beside, {upgraded}");
            }
        },
    },
    Family {
        name: "refusals",
        settings: |small| Settings { refusing: 1.0, shared: 0.2, ..small },
        faults: |none| none,
        demands: |verdict, _, platform| {
            let is_sure = platform.is_simulated();
            assert!(verdict.refused > 0 || !is_sure, "some have to be refused");
        },
    },
    Family {
        name: "deadlines",
        settings: |small| Settings { hurried: 1.0, ..small },
        faults: |none| none,
        demands: |verdict, _, platform| {
            assert!(verdict.late <= 2 * platform.round_trip(), "{:?} late", verdict.late);
        },
    },
    Family {
        name: "dropped requests",
        settings: |small| Settings { dropped: 0.5, ..small },
        faults: |none| none,
        demands: nothing,
    },
    Family {
        name: "all of these, several terms",
        settings: |small| Settings { refusing: 0.2, hurried: 0.2, dropped: 0.2, terms: 4, ..small },
        faults: |none| none,
        demands: nothing,
    },
];

/// Those of [`CALM`] that have a bit of everything, for a platform where each trial takes long.
#[cfg(feature = "rdma")]
pub fn few() -> Vec<Family> {
    const NAMES: [&str; 3] = ["exclusion", "upgrade", "all of these, several terms"];
    let few = CALM.iter().filter(|family| NAMES.contains(&family.name));
    let few: Vec<_> = few.copied().collect();
    assert_eq!(few.len(), NAMES.len(), "each is there");
    few
}

/// All kinds of requests.
fn mixed(small: Settings) -> Settings {
    Settings { refusing: 0.1, hurried: 0.2, dropped: 0.2, ..small }
}

/// Families whose demands are met by locks that survive losses.
pub const FAULTY: &[Family] = &[
    Family {
        name: "lost messages, lost answers",
        settings: mixed,
        faults: |none| none.lossy().doubtful(),
        demands: |verdict, _, _| assert!(verdict.counts.acquired > 0),
    },
    Family {
        name: "nodes die",
        settings: mixed,
        faults: |none| Faults { crashes: 2, ..none },
        demands: nothing,
    },
    Family {
        name: "nodes return",
        settings: mixed,
        faults: |none| Faults { crashes: 2, returns: true, ..none.lossy() },
        demands: nothing,
    },
    Family {
        name: "nodes pause",
        settings: mixed,
        faults: |none| Faults { pauses: 2, pause: Duration::from_millis(60), ..none },
        demands: |verdict, _, _| assert_eq!(verdict.lost, 0, "nothing is taken from the slow"),
    },
    Family {
        name: "partitions",
        settings: mixed,
        faults: |none| Faults { partitions: 2, ..none },
        demands: nothing,
    },
    Family {
        name: "the memory node is out of reach",
        settings: mixed,
        faults: |none| Faults { outages: 2, ..none },
        demands: nothing,
    },
    Family {
        name: "the memory node loses its memory",
        settings: mixed,
        faults: |none| Faults { losses: 2, ..none },
        demands: nothing,
    },
    Family {
        name: "all of these, clocks drift",
        settings: mixed,
        faults: |none| Faults {
            crashes: 1,
            pauses: 1,
            partitions: 1,
            outages: 1,
            losses: 1,
            returns: true,
            drift_ppm: 100_000,
            ..none.lossy().doubtful()
        },
        demands: nothing,
    },
];

/// Entries of a queue that has less room than the trials of [`settings`] ask for.
pub const CROWDED_ENTRIES: u32 = 8;

/// Families in which more ask than there is room for, in queues with no more than eight entries.
pub const CROWDED: &[Family] = &[
    Family {
        name: "more than there is room for",
        settings: |small| Settings { locks: 1, ..small },
        faults: |none| none,
        demands: |verdict, _, platform| {
            assert_eq!(verdict.refused, 0, "each waits as long as it takes");
            assert!(verdict.counts.resets > 0 || !platform.is_simulated(), "there is room for all");
        },
    },
    Family {
        name: "more than there is room for, all kinds of requests",
        settings: |small| mixed(Settings { locks: 1, ..small }),
        faults: |none| none,
        demands: nothing,
    },
    Family {
        name: "more than there is room for, readers",
        settings: |small| Settings { locks: 1, shared: 0.9, ..small },
        faults: |none| none,
        demands: nothing,
    },
];

/// The same with faults.
pub const CROWDED_AND_FAULTY: &[Family] = &[
    Family {
        name: "more than there is room for, lost messages, lost answers",
        settings: |small| mixed(Settings { locks: 1, ..small }),
        faults: |none| none.lossy().doubtful(),
        demands: |verdict, _, _| assert!(verdict.counts.acquired > 0),
    },
    Family {
        name: "more than there is room for, nodes die and pause",
        settings: |small| mixed(Settings { locks: 1, ..small }),
        faults: |none| Faults { crashes: 1, pauses: 1, outages: 1, ..none.lossy() },
        demands: nothing,
    },
];

/// Runs trials of all lock systems in all families, and prints a line for each.
///
/// # Panics
/// If something does not hold.
pub fn run(choices: &[Choice], platform: Platform, families: &[Family]) {
    for choice in choices {
        for family in families {
            let faults = (family.faults)(Faults::none());
            let is_calm = faults == Faults::none();
            let may_reset = choice.kind == Kind::Declock && choice.entries <= CROWDED_ENTRIES;
            let settings = (family.settings)(settings());
            let rounds = platform.rounds(settings.rounds);
            let settings = Settings { is_calm, may_reset, rounds, ..settings };
            check(*choice, platform, family, family.name, &settings, &faults);
            if let Some(first_word) = nearly_used_up(*choice) {
                // DecLock's are set back by a reset.
                let may_reset = choice.kind == Kind::Declock;
                let settings = Settings { first_word, may_reset, ..settings };
                let name = format!("{}, counters used up", family.name);
                check(*choice, platform, family, &name, &settings, &faults);
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "the table is what the suite has to say")]
fn check(
    choice: Choice,
    platform: Platform,
    family: &Family,
    name: &str,
    settings: &Settings,
    faults: &Faults,
) {
    let (verdict, guarantees) = trial(choice, platform, settings, faults);
    let Choice { kind, recovery, .. } = choice;
    println!("{kind} {recovery:?} | {name} | {platform:?} | {verdict}");
    assert!(verdict.violations.is_empty(), "{choice:?}, {name}, {platform:?}: {verdict}");
    (family.demands)(&verdict, guarantees, platform);
}

/// A free lock whose counters are nearly used up, for systems that have any.
pub fn nearly_used_up(choice: Choice) -> Option<u64> {
    match choice.kind {
        Kind::Dslr => {}
        Kind::RmaRw => {
            let count = RmaRwCounts::LIMIT - 3;
            return Some(RmaRwCounts::new(count, count).word());
        }
        // The count of releases.
        Kind::ShiftLock => return Some(ShiftWord::free((1 << 26) - 3).word()),
        Kind::ShiftLockWide => return Some(u64::MAX - 2),
        Kind::DslrU => {
            let count = UpdateTickets::LIMIT - 3;
            let (n_x, n_s, n_u) = (count, count, count);
            let (max_x, max_s, max_u) = (count, count, count);
            return Some(UpdateTickets { n_x, n_s, n_u, max_x, max_s, max_u }.with(0));
        }
        Kind::Declock => {
            let fields = DeclockFields::new(choice.entries);
            let head = DeclockFields::LAST_LAP * u64::from(choice.entries) - 3;
            return Some(fields.word(QueueHeader { head, ..fields.of(0) }));
        }
        Kind::Cas | Kind::CasRw | Kind::DslrPlus | Kind::Mcs | Kind::Drtm | Kind::Ncosed => {
            return None;
        }
    }
    let fields = match choice.recovery {
        Recovery::Paper => TicketFields::PAPER,
        Recovery::Fenced => TicketFields::WITH_RESETS,
    };
    let count = fields.limit() - 3;
    let tickets = Tickets { n_x: count, n_s: count, max_x: count, max_s: count };
    Some(fields.with(tickets, 0))
}
