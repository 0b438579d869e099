//! Scenarios drawn from a seed.

use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::ids::NodeId;
use lotus_locks::Recovery;
use lotus_locks::systems::ShiftLock;
use lotus_locks::word::{DeclockFields, QueueHeader, ShiftWord, TicketFields, Tickets};
use lotus_locksystems::LockSpec;
use lotus_locksystems::local::Policy;
use lotus_locksystems::systems::{Choice, Kind, Release};
use lotus_locksystems::trial::{Faults, Settings};
use lotus_locksystems::word::{RmaRwCounts, UpdateTickets};
use rand::Rng;
use rand::rngs::SmallRng;

use super::{LockScenario, MASKED, PROFILE, WordsScenario, server_locks};

/// Random stream that draws scenarios.
const STREAM: u64 = 0x10C5;

/// Random stream that draws whether, and how, the clients of a node share its locks: a separate
/// stream, so that the rest of a seed is unchanged.
const SHARING: u64 = 0x5AA2;

/// Random stream that draws the place of the locks: words, or a keeper.
const PLACE: u64 = 0x91ACE;

/// The scenario of a seed, of the given lock or of any lock that is valid for `recovery`.
pub fn drawn(seed: u64, lock: Option<LockSpec>, recovery: Recovery) -> LockScenario {
    let words = |kind| LockScenario::Words(words(seed, kind, recovery));
    let served =
        |server_lock| LockScenario::Server(server_locks::drawn(seed, server_lock, recovery));
    match lock {
        Some(LockSpec::Words(kind)) => words(Some(kind)),
        Some(LockSpec::Server(server_lock)) => served(server_lock),
        None => {
            let of_words = Kind::ALL.iter().filter(|kind| kind.check(recovery).is_ok()).count();
            let offered = server_locks::offered(recovery);
            let rng = &mut Env::real(seed).rng(PLACE);
            match rng.random_range(0..of_words + offered.len()).checked_sub(of_words) {
                None => words(None),
                Some(place) => served(offered[place]),
            }
        }
    }
}

/// The scenario of a seed, of the given lock system or of any system that is valid for `recovery`.
fn words(seed: u64, kind: Option<Kind>, recovery: Recovery) -> WordsScenario {
    let rng = &mut Env::real(seed).rng(STREAM);
    let kinds = Kind::ALL.into_iter().filter(|kind| kind.check(recovery).is_ok());
    let kinds: Vec<Kind> = kinds.collect();
    let any = kinds[rng.random_range(0..kinds.len())];
    let mut choice = Choice {
        kind: kind.unwrap_or(any),
        recovery,
        backs_off: rng.random(),
        release: if rng.random() { Release::Add } else { Release::Swap },
        threshold: [1, 2, 4, ShiftLock::THRESHOLD][rng.random_range(0..4)],
        ..Choice::of(any)
    };
    let (mut settings, faults) = (settings(choice, rng), faults(rng));
    if choice.kind == Kind::Declock {
        choice.entries = entries(&settings, &faults, rng);
        // A lost notice costs milliseconds, and up to a fifth of the notices may be lost.
        settings.limit *= 10;
        if settings.first_word != 0 {
            settings.first_word = nearly_used_up(choice, 8);
        }
    }
    let (choice, settings, faults) = match choice.kind.check(Recovery::Fenced) {
        Ok(()) => (choice, settings, faults),
        Err(_) => without_faults(choice, settings),
    };
    let settings = Settings { policy: policy(seed, choice), ..settings };
    let is_masked = choice.kind.needs_wide_atomics() || choice.kind.likes_masks() && rng.random();
    let profile = if is_masked { MASKED } else { PROFILE };
    WordsScenario { choice, settings, faults, profile }.with(recovery)
}

/// Policy by which the clients of a node share its locks: in a third of the seeds.
fn policy(seed: u64, choice: Choice) -> Option<Policy> {
    let rng = &mut Env::real(seed).rng(SHARING);
    let drawn = Policy::ALL[rng.random_range(0..Policy::ALL.len())];
    let policy = match drawn {
        Policy::LocalBound(_) => Policy::LocalBound(rng.random_range(1..=4)),
        policy => policy,
    };
    (rng.random_bool(1.0 / 3.0) && policy.check(choice).is_ok()).then_some(policy)
}

/// The scenario of a baseline, which tolerates no failure.
fn without_faults(choice: Choice, settings: Settings) -> (Choice, Settings, Faults) {
    let settings = Settings { is_calm: true, ..settings };
    match choice.kind {
        // Clients wait for each lease to end, so few leases fit into a trial. Without back-off a
        // writer would try in each round trip.
        Kind::Drtm => {
            let (clients, rounds) = (settings.clients.min(2), settings.rounds.min(20));
            let settings = Settings { clients, rounds, terms: 1, ..settings };
            (Choice { backs_off: true, ..choice }, settings, Faults::none())
        }
        _ => (choice, settings, Faults::none()),
    }
}

/// A share of requests: often none.
pub(super) fn share(most: f64, rng: &mut SmallRng) -> f64 {
    if rng.random() { rng.random_range(0.0..most) } else { 0.0 }
}

fn settings(choice: Choice, rng: &mut SmallRng) -> Settings {
    let nodes = rng.random_range(2..=5);
    let most = Duration::from_micros(rng.random_range(1..30));
    let terms = rng.random_range(1..=4);
    Settings {
        lanes: rng.random_range(1..=2),
        clients: rng.random_range(1..=6),
        locks: rng.random_range(1..=3),
        shared: rng.random(),
        updates: share(1.0, rng),
        rounds: rng.random_range(10..60),
        refusing: share(0.3, rng),
        hurried: share(0.3, rng),
        dropped: share(0.3, rng),
        hurry: most * 2,
        hold: most,
        think: Duration::from_micros(rng.random_range(1..30)),
        terms,
        first_word: if rng.random_bool(0.3) { nearly_used_up(choice, 8) } else { 0 },
        // The last node only audits.
        ..Settings::small(NodeId(0), (1..=nodes + 1).map(NodeId).collect())
    }
}

/// Entries of a queue that overflows often, or seldom. The queue's header has room for all requests
/// of one generation, including requests of nodes that return.
fn entries(settings: &Settings, faults: &Faults, rng: &mut SmallRng) -> u32 {
    let returns = if faults.returns { faults.crashes } else { 0 };
    let lives = settings.nodes.len() as u32 + returns;
    let most = lives * u32::from(settings.lanes) * u32::from(settings.clients) + 1;
    let least = (most + 1).div_ceil(2).next_power_of_two().max(DeclockFields::MIN_CAPACITY);
    assert!(most <= DeclockFields::new(least).most_requests());
    least << rng.random_range(0..=2)
}

/// A free lock with counters that are used up, or wrap, after `left` requests; zero for systems
/// without counters.
pub(super) fn nearly_used_up(choice: Choice, left: u32) -> u64 {
    match choice.kind {
        Kind::Cas | Kind::CasRw | Kind::Mcs | Kind::Drtm | Kind::Ncosed => 0,
        Kind::RmaRw => {
            let count = RmaRwCounts::LIMIT - left;
            RmaRwCounts::new(count, count).word()
        }
        Kind::ShiftLock => ShiftWord::free((1 << 26) - left).word(),
        Kind::ShiftLockWide => u64::MAX - u64::from(left - 1),
        Kind::Dslr | Kind::DslrPlus => {
            let fields = match choice.recovery {
                Recovery::Paper => TicketFields::PAPER,
                Recovery::Fenced => TicketFields::WITH_RESETS,
            };
            let count = fields.limit() - left;
            let tickets = Tickets { n_x: count, n_s: count, max_x: count, max_s: count };
            fields.with(tickets, 0)
        }
        Kind::Declock => {
            let fields = DeclockFields::new(choice.entries);
            let head = DeclockFields::LAST_LAP * u64::from(choice.entries) - u64::from(left);
            fields.word(QueueHeader { head, ..fields.of(0) })
        }
        Kind::DslrU => {
            let count = UpdateTickets::LIMIT - left;
            let (n_x, n_s, n_u) = (count, count, count);
            let (max_x, max_s, max_u) = (count, count, count);
            UpdateTickets { n_x, n_s, n_u, max_x, max_s, max_u }.with(0)
        }
    }
}

fn faults(rng: &mut SmallRng) -> Faults {
    let mut faults = Faults::none();
    if rng.random() {
        faults = faults.lossy();
    }
    if rng.random() {
        faults = faults.doubtful();
    }
    Faults {
        crashes: rng.random_range(0..=2),
        pauses: rng.random_range(0..=2),
        pause: Duration::from_micros(rng.random_range(100..5000)),
        partitions: rng.random_range(0..=1),
        outages: rng.random_range(0..=1),
        losses: rng.random_range(0..=1),
        returns: rng.random(),
        drift_ppm: if rng.random() { 100_000 } else { 0 },
        struck: None,
        ..faults
    }
}
