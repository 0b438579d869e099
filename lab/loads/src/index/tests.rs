//! Loads on small trees, in simulated worlds.

use std::time::Duration;

use lotus_fabric::ids::{Epoch, NodeId};
use lotus_fabric::machines::MachinesExt;
use lotus_fabric::sim::{Config, MemoryFate, Profile, Rates, SimMachines, World};
use lotus_locks::{Client, Recovery};
use lotus_locksystems::local::Policy;
use lotus_locksystems::systems::{Choice, Kind};

use super::*;
use crate::lanes::{START, ServerOptions};

fn small(kind: Kind) -> TreeLoad {
    TreeLoad {
        clients: Clients {
            choice: Choice { entries: 64, ..Choice::of(kind) },
            server_lock: None,
            server_options: ServerOptions::default(),
            policy: None,
            cns: 2,
            threads: 2,
            coroutines: 4,
            warmup: 0.0005,
            secs: 0.004,
        },
        keys: 3_000,
        loaded: 0.1,
        zipf: 0.99,
        update_ratio: 0.5,
        audit: true,
    }
}

fn world(load: &TreeLoad, seed: u64, rates: Rates) -> SimMachines {
    load.check().expect("it makes sense");
    let profile = Profile::named("cx3-56g").expect("built in");
    let config = Config { rates, ..Config::new(seed, load.clients.nodes(), profile) };
    SimMachines::new(World::new(config).expect("a valid world"))
}

fn in_world(load: &TreeLoad, seed: u64, rates: Rates) -> TreeOutcome {
    let machines = world(load, seed, rates);
    let lanes = usize::from(load.clients.cns * load.clients.threads);
    run(&machines, load, &Arc::new(Progress::new(lanes, |_| ()))).expect("it runs")
}

fn tearing() -> Rates {
    let tear_span = Duration::from_micros(40);
    Rates { torn_reads: 0.5, torn_writes: 0.5, tear_span, ..Rates::default() }
}

/// The same load of so many clients for each lane, for so long.
fn by(coroutines: u16, secs: f64, load: TreeLoad) -> TreeLoad {
    TreeLoad { clients: Clients { coroutines, secs, ..load.clients }, ..load }
}

/// READs and WRITEs are torn, keys are added to a small tree, and each search finds what was there
/// while it ran.
#[test]
fn searches_find_what_was_there_while_pages_are_torn_and_split() {
    for kind in [Kind::Cas, Kind::Declock, Kind::Mcs, Kind::Dslr] {
        for seed in 1..=8 {
            let load = TreeLoad { keys: 800, loaded: 0.5, zipf: 0.0, ..small(kind) };
            let load = by(16, 0.004, load);
            let outcome = in_world(&load, seed, tearing());
            assert_eq!(outcome.findings, Some(Vec::new()), "{kind}, seed {seed}");
            let TreeTally { tree, search_ns, update_ns, .. } = outcome.tally;
            assert!(tree.torn > 0 && tree.splits > 0 && tree.hops > 0, "{kind}, {seed}: {tree:?}");
            assert!(!search_ns.is_empty() && !update_ns.is_empty());
            assert_eq!(tree.mended, 0, "no lane was lost");
        }
    }
}

/// The clients of a node share the locks of leaves, and hand them to one another.
#[test]
fn clients_of_a_node_share_the_locks_of_leaves() {
    let policies = [(Kind::Declock, Policy::TsPf), (Kind::Cas, Policy::LocalBound(4))];
    for (kind, policy) in policies {
        for seed in 1..=4 {
            let load = TreeLoad { update_ratio: 0.9, loaded: 0.5, ..small(kind) };
            let clients = Clients { policy: Some(policy), coroutines: 8, ..load.clients };
            let outcome = in_world(&TreeLoad { clients, ..load }, seed, tearing());
            assert_eq!(outcome.findings, Some(Vec::new()), "{kind}, {policy}, seed {seed}");
            let transfers = outcome.used.transfers;
            assert!(transfers.local > 0 && transfers.remote > 0, "{transfers:?}");
        }
    }
}

/// More clients than a queue has entries: locks are reset under those that wait, which ask again.
#[test]
fn locks_that_are_reset_are_asked_for_again() {
    let choice = Choice { entries: 16, ..Choice::of(Kind::Declock) };
    let load = TreeLoad { keys: 30, update_ratio: 1.0, ..small(Kind::Cas) };
    let clients = Clients { choice, coroutines: 6, secs: 0.02, ..load.clients };
    let outcome = in_world(&TreeLoad { clients, ..load }, 1, tearing());
    assert_eq!(outcome.findings, Some(Vec::new()));
    let TreeTally { tree, operations, .. } = outcome.tally;
    let counts = outcome.used.counts;
    assert!(counts.resets > 0 && operations > 0, "{counts:?}");
    assert_eq!(tree.lost, 0, "{tree:?}");
}

/// A tree without a key grows until its root is split.
#[test]
fn a_tree_grows_from_nothing() {
    let load =
        TreeLoad { keys: 20_000, loaded: 0.0, zipf: 0.0, update_ratio: 1.0, ..small(Kind::Cas) };
    let outcome = in_world(&by(4, 0.03, load), 1, Rates::default());
    assert_eq!(outcome.findings, Some(Vec::new()));
    let shape = outcome.shape.expect("it was judged");
    assert!(shape.levels >= 3 && shape.keys > 5_000, "{shape:?}");
}

/// An update of a known leaf is one READ, one WRITE and the lock's verbs; a search is one READ.
#[test]
fn each_operation_has_the_verbs_that_it_needs() {
    let load = by(1, 0.002, TreeLoad { loaded: 1.0, zipf: 0.0, ..small(Kind::Cas) });
    let clients = Clients { cns: 1, threads: 1, ..load.clients };
    let load = TreeLoad { clients, ..load };
    let of = |update_ratio| {
        let load = TreeLoad { update_ratio, ..load.clone() };
        let TreeOutcome { tally, used, .. } = in_world(&load, 1, Rates::default());
        let (verbs, operations) = (used.verbs, tally.operations);
        let each = |count: u64| (count as f64 / operations as f64 * 10.0).round() / 10.0;
        [each(verbs.reads), each(verbs.writes), each(verbs.compare_and_swaps)]
    };
    assert_eq!(of(0.0), [1.0, 0.0, 0.0]);
    assert_eq!(of(1.0), [1.0, 1.0, 2.0]);
}

#[test]
fn more_clients_than_a_lock_counts_are_refused() {
    let clients = |kind| small(kind).clients;
    let many = Clients { coroutines: 256, threads: 64, ..clients(Kind::Dslr) };
    let load = TreeLoad { clients: many, ..small(Kind::Cas) };
    let why = load.check().expect_err("too many");
    assert!(why.contains("32768 clients are more than a lock of dslr can count"), "{why}");
    let choice = Choice { recovery: Recovery::Paper, ..Choice::of(Kind::DslrU) };
    let unpublished = Clients { choice, ..clients(Kind::Cas) };
    assert!(TreeLoad { clients: unpublished, ..small(Kind::Cas) }.check().is_err());
    let untimed = Clients { policy: Some(Policy::TsPf), ..clients(Kind::Cas) };
    assert!(TreeLoad { clients: untimed, ..small(Kind::Cas) }.check().is_err());
}

/// Loses a compute node while its lanes write, and one that has just written half of a page. Visits
/// all keys afterwards.
struct Losing {
    load: TreeLoad,
    seed: u64,
}

impl Visitor for Losing {
    /// Pages that were made whole, and what the audit has found.
    type Output = (u64, Vec<String>);

    fn visit<S: LockSystem>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self::Output {
        let Self { load, seed } = self;
        let Clients { cns, threads, .. } = load.clients;
        let one_more = Clients { cns: cns + 1, ..load.clients.clone() };
        let machines = world(&TreeLoad { clients: one_more, ..load.clone() }, seed, tearing());
        let (busy, stopped) = (NodeId(2), NodeId(cns + 2));
        let progress = Arc::new(Progress::new(usize::from(cns * threads), |_| ()));
        let (run, shared) = prepare(&machines, &load, &progress, make).expect("it is made");
        let roster = run.roster();
        let lanes = run.start(&machines, &shared).expect("they start");
        let member = roster.join(stopped, 1).expect("there is room");
        let (open, noted) =
            (run.open::<Client<S>>(machines.fabric(), member, 0, ()), Arc::clone(&shared));
        let program: Program = Box::new(move |executor| {
            let visits = Visits::new(open(executor).expect("it is not taken"), noted);
            Box::pin(async move { visits.stop_within_split().await.expect("it stops there") })
        });
        machines.start(stopped, "stops", program).expect("it has cores");
        machines.run_for(START + Duration::from_micros(600 + 50 * seed));
        for lost in [busy, stopped] {
            machines.world().crash(lost, MemoryFate::Lost).expect("it is there");
        }
        machines.run_for(Duration::from_micros(200));
        for lost in [busy, stopped] {
            machines.fabric().fence(MEMORY, lost, Epoch(1000)).expect("it is known");
            roster.settle(lost);
        }
        let mut others = Done::default();
        for _ in 0..threads {
            others += machines.wait(&lanes.reports).expect("the other node runs on");
        }
        assert_eq!(others.ended(), None);
        // As a member that comes later, while the lanes that are left answer when locks are reset.
        let noted = Arc::clone(&shared);
        let look = async move |context| {
            let visits = Visits::new(context, noted);
            let counts = visits.visit_all().await.expect("all locks become free");
            Ok((counts.mended, visits.audit().await?.1))
        };
        let (mended, mut findings) = run.audit(&machines, look).expect("it ends");
        let wrong = shared.ledger.as_ref().map_or(0, Ledger::wrong);
        findings.extend((wrong > 0).then(|| format!("{wrong} searches")));
        (mended + others.tally.tree.mended, findings)
    }
}

/// A lost node may leave pages in pieces, and pages that no parent names. Then all is put in order
/// by those that come later; at most, a page that it has drawn and not written is lost.
#[test]
fn what_a_lost_node_has_left_is_put_in_order() {
    for kind in [Kind::Cas, Kind::Declock, Kind::Mcs] {
        for seed in 1..=8 {
            let load = TreeLoad { keys: 2_000, loaded: 0.4, zipf: 0.0, ..small(kind) };
            let load = by(8, 0.004, TreeLoad { update_ratio: 1.0, ..load });
            let (mended, mut findings) =
                load.clients.choice.visit(Losing { load: load.clone(), seed });
            findings.retain(|finding| {
                !finding.contains("is in pieces") && !finding.contains("of which")
            });
            assert_eq!(findings, [""; 0], "{kind}, seed {seed}");
            assert!(mended > 0, "{kind}, seed {seed}");
        }
    }
}
