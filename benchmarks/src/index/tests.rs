//! Loads on small trees, in simulated worlds.

use lotus_fabric::ids::Epoch;
use lotus_fabric::sim::{Config, MemoryFate, Profile, Rates, SimMachines, World};
use lotus_locks::Recovery;
use lotus_locks::systems::Kind;

use super::*;

fn small(kind: Kind) -> TreeLoad {
    TreeLoad {
        choice: Choice { entries: 64, ..Choice::of(kind) },
        keys: 3_000,
        loaded: 0.1,
        zipf: 0.99,
        update_ratio: 0.5,
        cns: 2,
        threads: 2,
        coroutines: 4,
        warmup: 0.0005,
        secs: 0.004,
        audit: true,
    }
}

fn world(load: &TreeLoad, seed: u64, rates: Rates) -> SimMachines {
    load.check().expect("it makes sense");
    let profile = Profile::named("cx3-56g").expect("built in");
    let config = Config { rates, ..Config::new(seed, load.nodes(), profile) };
    SimMachines::new(World::new(config).expect("a valid world"))
}

fn in_world(load: &TreeLoad, seed: u64, rates: Rates) -> TreeOutcome {
    let machines = world(load, seed, rates);
    let lanes = usize::from(load.cns * load.threads);
    run(&machines, load, &Arc::new(Progress::new(lanes, |_| ()))).expect("it runs")
}

fn tearing() -> Rates {
    let tear_span = Duration::from_micros(40);
    Rates { torn_reads: 0.5, torn_writes: 0.5, tear_span, ..Rates::default() }
}

/// READs and WRITEs are torn, keys are added to a small tree, and each search finds what was there
/// while it ran.
#[test]
fn searches_find_what_was_there_while_pages_are_torn_and_split() {
    for kind in [Kind::Cas, Kind::Declock, Kind::Mcs, Kind::Dslr] {
        for seed in 1..=8 {
            let load =
                TreeLoad { keys: 800, loaded: 0.5, zipf: 0.0, coroutines: 16, ..small(kind) };
            let outcome = in_world(&load, seed, tearing());
            assert_eq!(outcome.findings, Some(Vec::new()), "{kind}, seed {seed}");
            let TreeTally { tree, search_ns, update_ns, .. } = outcome.tally;
            assert!(tree.torn > 0 && tree.splits > 0 && tree.hops > 0, "{kind}, {seed}: {tree:?}");
            assert!(!search_ns.is_empty() && !update_ns.is_empty());
            assert_eq!(tree.mended, 0, "no lane was lost");
        }
    }
}

/// More clients than a queue has entries: locks are reset under those that wait, which ask again.
#[test]
fn locks_that_are_reset_are_asked_for_again() {
    let choice = Choice { entries: 16, ..Choice::of(Kind::Declock) };
    let load = TreeLoad { choice, keys: 30, update_ratio: 1.0, coroutines: 6, ..small(Kind::Cas) };
    let outcome = in_world(&TreeLoad { secs: 0.02, ..load }, 1, tearing());
    assert_eq!(outcome.findings, Some(Vec::new()));
    let TreeTally { counts, tree, operations, .. } = outcome.tally;
    assert!(counts.resets > 0 && operations > 0, "{counts:?}");
    assert_eq!(tree.lost, 0, "{tree:?}");
}

/// A tree without a key grows until its root is split.
#[test]
fn a_tree_grows_from_nothing() {
    let load =
        TreeLoad { keys: 20_000, loaded: 0.0, zipf: 0.0, update_ratio: 1.0, ..small(Kind::Cas) };
    let load = TreeLoad { secs: 0.03, ..load };
    let outcome = in_world(&load, 1, Rates::default());
    assert_eq!(outcome.findings, Some(Vec::new()));
    let shape = outcome.shape.expect("it was judged");
    assert!(shape.levels >= 3 && shape.keys > 5_000, "{shape:?}");
}

/// An update of a known leaf is one READ, one WRITE and the lock's verbs; a search is one READ.
#[test]
fn each_operation_has_the_verbs_that_it_needs() {
    let load = TreeLoad { loaded: 1.0, zipf: 0.0, secs: 0.002, ..small(Kind::Cas) };
    let of = |update_ratio| {
        let load = TreeLoad { update_ratio, coroutines: 1, cns: 1, threads: 1, ..load.clone() };
        let TreeTally { verbs, operations, .. } = in_world(&load, 1, Rates::default()).tally;
        let each = |count: u64| (count as f64 / operations as f64 * 10.0).round() / 10.0;
        [each(verbs.reads), each(verbs.writes), each(verbs.compare_and_swaps)]
    };
    assert_eq!(of(0.0), [1.0, 0.0, 0.0]);
    assert_eq!(of(1.0), [1.0, 1.0, 2.0]);
}

#[test]
fn more_clients_than_a_lock_counts_are_refused() {
    let load = TreeLoad { coroutines: 256, threads: 64, ..small(Kind::Dslr) };
    let why = load.check().expect_err("too many");
    assert!(why.contains("32768 clients are more than a lock of dslr can count"), "{why}");
    let choice = Choice { recovery: Recovery::Paper, ..Choice::of(Kind::DslrU) };
    assert!(TreeLoad { choice, ..small(Kind::Cas) }.check().is_err());
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
        let machines = world(&TreeLoad { cns: load.cns + 1, ..load.clone() }, seed, tearing());
        let (busy, stopped) = (NodeId(2), NodeId(load.cns + 2));
        let progress = Arc::new(Progress::new(usize::from(load.cns * load.threads), |_| ()));
        let shared = prepare(&machines, &load, &progress, make).expect("it is made");
        let roster = Roster::default();
        let lanes = start_lanes(&machines, &roster, &shared).expect("they start");
        let member = roster.join(stopped, 1).expect("there is room");
        let open_one =
            |member| open(machines.fabric(), member, 0, roster.clone(), Arc::clone(&shared));
        let open = open_one(member);
        let program: Program = Box::new(move |executor| {
            let seat = open(executor).expect("it is not taken");
            Box::pin(async move { seat.stop_within_split().await.expect("it stops there") })
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
        let mut others = TreeTally::default();
        for _ in 0..load.threads {
            others += machines.wait(&lanes.reports).expect("the other node runs on");
        }
        assert_eq!(others.ended, None);
        // As a member that comes later, while the lanes that are left answer when locks are reset.
        let member = roster.join(NodeId(load.cns + 1), 1).expect("there is room");
        let (sender, found) = async_channel::bounded(1);
        let open = open_one(member);
        let program: Program = Box::new(move |executor| {
            let seat = open(executor).expect("it is not taken");
            Box::pin(async move {
                let counts = seat.visit_all().await.expect("all locks become free");
                let (_, findings) = seat.audit().await.expect("it can be read");
                sender.send((counts.mended, findings)).await.expect("it is awaited");
            })
        });
        let core = machines.start(member.node, "visit", program).expect("it has cores");
        let (mended, mut findings) = machines.wait(&found).expect("it ends");
        machines.join(core);
        let wrong = shared.ledger.as_ref().map_or(0, Ledger::wrong);
        findings.extend((wrong > 0).then(|| format!("{wrong} searches")));
        (mended + others.tree.mended, findings)
    }
}

/// A lost node may leave pages in pieces, and pages that no parent names. Then all is put in order
/// by those that come later; at most, a page that it has drawn and not written is lost.
#[test]
fn what_a_lost_node_has_left_is_put_in_order() {
    for kind in [Kind::Cas, Kind::Declock, Kind::Mcs] {
        for seed in 1..=8 {
            let load = TreeLoad { keys: 2_000, loaded: 0.4, zipf: 0.0, ..small(kind) };
            let load = TreeLoad { update_ratio: 1.0, coroutines: 8, ..load };
            let (mended, mut findings) = load.choice.visit(Losing { load: load.clone(), seed });
            findings.retain(|finding| {
                !finding.contains("is in pieces") && !finding.contains("of which")
            });
            assert_eq!(findings, [""; 0], "{kind}, seed {seed}");
            assert!(mended > 0, "{kind}, seed {seed}");
        }
    }
}
