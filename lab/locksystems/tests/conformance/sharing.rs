//! Locks that the clients of a node share before they ask the memory node, by each policy.

use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_locksystems::local::Policy;
use lotus_locksystems::systems::{Choice, Kind};
use lotus_locksystems::trial::{Faults, Settings, Struck, StruckAfter};

use super::families::nearly_used_up;
use super::platforms::{Platform, settings, trial};
use super::{SEEDS, seeds};

/// Systems with policies that they can be had with: all of them with more seeds than usual.
fn shared() -> Vec<(Choice, Policy)> {
    const BOUND: Policy = Policy::LocalBound(4);
    let usual = |kind| match kind {
        Kind::Cas => vec![BOUND, Policy::LocalPrefer],
        Kind::Dslr => vec![Policy::RemotePrefer, Policy::LocalPrefer],
        Kind::ShiftLock => vec![Policy::LocalPrefer],
        Kind::Mcs => vec![BOUND],
        _ => Policy::ALL.to_vec(),
    };
    let of = |kind| if seeds() > SEEDS { Policy::ALL.to_vec() } else { usual(kind) };
    let pairs = KINDS.into_iter().flat_map(|kind| {
        let choice = Choice { entries: 16, ..Choice::of(kind) };
        of(kind).into_iter().map(move |policy| (choice, policy))
    });
    pairs.filter(|(choice, policy)| policy.check(*choice).is_ok()).collect()
}

const KINDS: [Kind; 5] = [Kind::Cas, Kind::Dslr, Kind::Declock, Kind::ShiftLock, Kind::Mcs];

#[expect(clippy::print_stdout, reason = "the table is what the suite has to say")]
fn check(
    (choice, policy): (Choice, Policy),
    name: &str,
    platform: Platform,
    settings: Settings,
    faults: &Faults,
) -> lotus_locksystems::trial::TrialResult {
    let settings = Settings { lanes: 2, policy: Some(policy), ..settings };
    let (verdict, _) = trial(choice, platform, &settings, faults);
    let kind = choice.kind;
    let transfers = verdict.transfers;
    println!("{kind} {policy} | {name} | {platform:?} | {verdict}; {transfers:?}");
    assert!(verdict.violations.is_empty(), "{choice:?}, {policy}, {name}, {platform:?}: {verdict}");
    verdict
}

fn mixed(small: Settings) -> Settings {
    Settings { refusing: 0.1, hurried: 0.2, dropped: 0.2, ..small }
}

/// What is asked of a pair without faults.
fn check_calm(pair: (Choice, Policy), platform: Platform) {
    let none = Faults::none();
    let calm = Settings { is_calm: true, rounds: 15, ..settings() };
    let verdict = check(pair, "exclusion", platform, calm.clone(), &none);
    assert_eq!(verdict.refused, 0, "each waits as long as it takes");
    let transfers = verdict.transfers;
    let is_handed = transfers.local > 0 || pair.1 == Policy::RemotePrefer;
    assert!(is_handed && transfers.remote > 0, "{transfers:?}");
    let mixed = mixed(calm.clone());
    for settings in [mixed.clone(), Settings { hurried: 1.0, ..mixed }] {
        let verdict = check(pair, "requests of all kinds", platform, settings, &none);
        assert!(verdict.late <= 2 * platform.round_trip(), "{:?} late", verdict.late);
    }
    let hold = Duration::from_micros(50);
    let readers = Settings { locks: 1, shared: 1.0, hold, rounds: 10, ..calm };
    let verdict = check(pair, "sharing", platform, readers, &none);
    if platform.is_simulated() {
        let shares = !matches!(pair.0.kind, Kind::Cas | Kind::Mcs);
        assert_eq!(verdict.together > 1, shares, "{} together", verdict.together);
    }
}

#[test]
fn nodes_that_share_locks_among_their_clients_keep_the_promises() {
    for pair in shared() {
        check_calm(pair, Platform::Sim(seeds().div_ceil(SEEDS)));
    }
    for (kind, policy) in KINDS.into_iter().zip(Policy::ALL) {
        check_calm(
            (Choice { entries: 16, ..Choice::of(kind) }, shown(kind, policy)),
            Platform::Local,
        );
    }
}

/// The policy, or another where the system does not have it.
fn shown(kind: Kind, policy: Policy) -> Policy {
    match policy.check(Choice::of(kind)) {
        Ok(()) => policy,
        Err(_) => Policy::LocalPrefer,
    }
}

#[test]
fn faults_break_no_promise_of_nodes_that_share_locks() {
    type Family = (&'static str, fn(Faults) -> Faults);
    let families: &[Family] = &[
        ("lost messages, lost answers", |none| none.lossy().doubtful()),
        ("nodes die and return", |none| Faults { crashes: 2, returns: true, ..none.lossy() }),
        ("nodes pause", |none| Faults { pauses: 2, pause: Duration::from_millis(60), ..none }),
        ("the memory node loses its memory", |none| Faults { losses: 2, ..none }),
        ("all of these", |none| Faults {
            crashes: 1,
            pauses: 1,
            partitions: 1,
            outages: 1,
            losses: 1,
            returns: true,
            drift_ppm: 100_000,
            ..none.lossy().doubtful()
        }),
    ];
    for pair in shared() {
        for (name, faults) in families {
            let first_words = [0].into_iter().chain(nearly_used_up(pair.0));
            for first_word in first_words {
                let mixed = Settings { first_word, rounds: 20, ..mixed(settings()) };
                let limit = mixed.limit * 10;
                let mixed = Settings { limit, ..mixed };
                check(
                    pair,
                    name,
                    Platform::Sim(seeds().div_ceil(SEEDS)),
                    mixed,
                    &faults(Faults::none()),
                );
            }
        }
    }
}

/// A node dies, or stands still until it is expelled, after each of its first verbs and messages.
#[test]
fn a_node_that_shares_locks_may_be_lost_between_any_two_of_its_steps() {
    const STEPS: u64 = 16;
    let pairs = [(Kind::Cas, Policy::LocalBound(4)), (Kind::Declock, Policy::TsPf)];
    let steps =
        (1..=STEPS).flat_map(|step| [StruckAfter::Verbs(step), StruckAfter::Messages(step)]);
    for after in steps {
        for pause in [None, Some(Duration::from_millis(70))] {
            for (kind, policy) in pairs {
                let struck = Some(Struck { node: NodeId(1), after, pause });
                let small = mixed(settings());
                let limit = small.limit * 10;
                let contended = Settings { locks: 1, clients: 2, rounds: 6, limit, ..small };
                let pair = (Choice { entries: 16, ..Choice::of(kind) }, policy);
                let faults = Faults { struck, ..Faults::none() };
                let platform = Platform::Sim(seeds().div_ceil(SEEDS));
                check(pair, &format!("{struck:?}"), platform, contended, &faults);
            }
        }
    }
}
