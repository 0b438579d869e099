//! The conformance suite of the lock systems: what each promises, on each fabric.
//!
//! `cargo test -p lotus-locksystems --test conformance -- --nocapture` prints a table: lock,
//! family, fabric, and what was done there. The environment variable `LOTUS_LOCK_SEEDS` sets the
//! number of seeds of each simulated family. With the feature `rdma` it also runs on network cards,
//! where there are some (`just rdma-test`).

mod abandoned;
mod bypass;
mod families;
mod lane;
mod nodes;
mod order;
mod platforms;
mod queues;
mod service;
mod sharing;
mod struck;
mod upgrade;

use lotus_locks::Recovery;
use lotus_locksystems::systems::{Choice, Kind, Release};
use platforms::Platform;

/// Seeds of each family in simulation, if the environment does not say.
const SEEDS: u64 = 4;

fn seeds() -> u64 {
    std::env::var("LOTUS_LOCK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS)
}

/// All systems that work on every fabric.
fn everywhere() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| !kind.needs_wide_atomics())
}

/// All of those with the options that matter.
fn all(recovery: Recovery) -> Vec<Choice> {
    let kinds = everywhere().filter(|kind| kind.check(recovery).is_ok());
    let choices = kinds.map(|kind| Choice { recovery, ..usual(kind) });
    let backs_off = Choice { recovery, backs_off: true, ..Choice::of(Kind::Cas) };
    let swaps = Choice { recovery, release: Release::Swap, ..Choice::of(Kind::CasRw) };
    let options = [backs_off, Choice { backs_off: true, ..swaps }];
    choices.chain(options).chain(shifting(recovery)).collect()
}

/// A lock that writers give to the readers often.
fn shifting(recovery: Recovery) -> [Choice; 1] {
    [Choice { recovery, threshold: 2, ..Choice::of(Kind::ShiftLock) }]
}

/// A system with its usual options: fenced, unless it is a baseline that is only had as published.
fn usual(kind: Kind) -> Choice {
    // A writer of `drtm` would try once in each round trip while a lease lasts. Queues of `declock`
    // count all clients of the suite.
    Choice { backs_off: kind == Kind::Drtm, entries: 64, ..Choice::of(kind) }
}

/// All systems fenced, and the baselines.
fn fenced_and_baselines() -> Vec<Choice> {
    let baselines = everywhere().filter(|kind| kind.check(Recovery::Fenced).is_err());
    all(Recovery::Fenced).into_iter().chain(baselines.map(usual)).collect()
}

#[test]
fn threads_of_one_process_keep_the_promises() {
    families::run(&fenced_and_baselines(), Platform::Local, families::CALM);
}

#[test]
fn memory_in_shared_files_keeps_the_promises() {
    families::run(&fenced_and_baselines(), Platform::Shm, families::CALM);
}

#[test]
fn memory_behind_sockets_keeps_the_promises() {
    families::run(&fenced_and_baselines(), Platform::Tcp, families::CALM);
}

/// The back end declares no masked atomics, so this is also the `mcs` that does without.
#[cfg(feature = "rdma")]
#[test]
#[ignore = "needs RDMA devices"]
fn memory_behind_network_cards_keeps_the_promises() {
    families::run(&everywhere().map(usual).collect::<Vec<_>>(), Platform::Rdma, &families::few());
}

#[test]
fn simulated_nodes_keep_the_promises() {
    families::run(&all(Recovery::Fenced), Platform::Sim(seeds()), families::CALM);
}

#[test]
fn faults_break_no_promise() {
    families::run(&all(Recovery::Fenced), Platform::Sim(seeds()), families::FAULTY);
}

#[test]
fn a_node_may_be_lost_between_any_two_of_its_steps() {
    struck::strike_everywhere(&all(Recovery::Fenced), seeds().div_ceil(SEEDS));
}

/// A queue with fewer entries than there are clients is reset again and again.
#[test]
fn queues_that_run_over_keep_the_promises() {
    let of = |recovery| Choice {
        recovery,
        entries: families::CROWDED_ENTRIES,
        ..Choice::of(Kind::Declock)
    };
    let fenced = [of(Recovery::Fenced)];
    for platform in [Platform::Local, Platform::Shm, Platform::Tcp, Platform::Sim(seeds())] {
        families::run(&fenced, platform, families::CROWDED);
    }
    families::run(&fenced, Platform::Sim(seeds()), families::CROWDED_AND_FAULTY);
    families::run(&[of(Recovery::Paper)], Platform::Sim(seeds()), families::CROWDED);
}

/// Locks that use masked atomics where there are any do without elsewhere.
#[test]
fn masked_atomics_keep_the_promises() {
    let of = |recovery| -> Vec<Choice> {
        let kinds = Kind::ALL.into_iter().filter(|kind| kind.likes_masks());
        kinds
            .filter(|kind| kind.check(recovery).is_ok())
            .map(|kind| Choice { recovery, ..Choice::of(kind) })
            .chain(shifting(recovery))
            .collect()
    };
    families::run(&of(Recovery::Fenced), Platform::Masked(seeds()), families::CALM);
    families::run(&of(Recovery::Fenced), Platform::Masked(seeds()), families::FAULTY);
    families::run(&of(Recovery::Paper), Platform::Masked(seeds()), families::CALM);
}

/// Locks of 16 bytes are had where the simulated cards have atomics on as many.
#[test]
fn atomics_on_sixteen_bytes_keep_the_promises() {
    let wide = Kind::ALL.into_iter().filter(|kind| kind.needs_wide_atomics());
    let choices: Vec<_> =
        wide.map(usual).flat_map(|choice| [choice, Choice { threshold: 2, ..choice }]).collect();
    families::run(&choices, Platform::Masked(seeds()), families::CALM);
}

/// As published, locks exclude as long as nobody is late or lost.
#[test]
fn published_locks_keep_the_promises_without_faults() {
    families::run(&all(Recovery::Paper), Platform::Sim(seeds()), families::CALM);
}
