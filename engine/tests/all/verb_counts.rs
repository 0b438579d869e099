//! Verb costs of transactions are independent of the fabric: the engine decides on verbs, and back
//! ends carry them out. The same transactions, one after the other, take the same verbs everywhere.

use std::time::Duration;

use crate::common::*;
use lotus::{
    Addresses, ClusterBuilder, CoordinatorId, Machines, Retention, TableSpec, Threads, VerbCounters,
};
use lotus_fabric::sim::{Config, Profile, Rates, SimMachines, World};

const SEED: u64 = 11;
const ROWS: u64 = 24;
const ROUNDS: u64 = 6;
/// Horizon interval and time-outs, longer than the test takes on an emulated machine: nothing is
/// repeated or given up.
const LONG: Duration = Duration::from_secs(3600);

fn builder() -> ClusterBuilder {
    small()
        .compute_nodes(2)
        .retention(Retention::None)
        .horizon_interval(LONG)
        .lock_timeout(LONG)
        .commit_timeout(LONG)
        .seed(SEED)
}

/// Inserts, changes, reads and deletes rows from both compute nodes in turn. Returns the verbs
/// used.
fn verbs_on<M: Machines>(spec: TableSpec, machines: impl FnOnce(u16) -> M) -> VerbCounters {
    let nodes = builder().node_count().expect("the settings are sound");
    let cluster = builder().start_on(machines(nodes)).expect("the machines work");
    let table = cluster.create_table(spec).expect("there is room");
    for round in 0..ROUNDS {
        for key in 0..ROWS {
            let coordinator_id =
                CoordinatorId { compute_node: (key + round) as usize % 2, thread: 0 };
            let done = cluster.submit(coordinator_id, move |mut session| async move {
                match round {
                    0 => session.insert(table, key, key).await.map(|_| ()),
                    1 | 3 => session.read(table, key).await.map(|_| ()),
                    5 => session.delete(table, key).await.map(|_| ()),
                    _ => session.update(table, key, round).await.map(|_| ()),
                }
            });
            cluster.wait(done).expect("nobody is in the way");
            cluster.settle().expect("no coordinator has failed");
        }
    }
    cluster.counters().expect("no coordinator has failed")
}

/// Picks the counts that the engine decides. Messages are repeated until they are answered, so
/// their number depends on time.
fn decided(counters: &VerbCounters) -> [u64; 6] {
    let VerbCounters { reads, writes, compare_and_swaps, fetch_and_adds, .. } = *counters;
    let VerbCounters { doorbells, verb_bytes, .. } = *counters;
    [reads, writes, compare_and_swaps, fetch_and_adds, doorbells, verb_bytes]
}

/// Simulates machines with lanes that declare stable READs, or none, as a NIC's do.
fn simulated(nodes: u16, torn_reads: f64) -> SimMachines {
    let rates = Rates { torn_reads, ..Rates::default() };
    let config = Config { rates, ..Config::new(SEED, nodes, Profile::ideal()) };
    SimMachines::new(World::new(config).expect("a valid configuration"))
}

#[test]
fn local_and_sim_take_the_same_verbs() {
    for spec in [NUMBERS, NUMBERS_APART] {
        let local = verbs_on(spec.clone(), |nodes| Threads::new(nodes, SEED));
        let sim = verbs_on(spec, |nodes| simulated(nodes, 0.0));
        assert!(local.verbs() > 2 * ROWS * ROUNDS);
        assert_eq!(decided(&local), decided(&sim));
    }
}

/// A row at a known place takes a READ of its version table, and another one a READ of the bucket
/// that it is in. Without an address for each row at the start, each node learns its own.
#[test]
fn places_of_loaded_rows_are_known_from_the_start_or_learned() {
    const LOADED: u64 = 1_000;
    // A row in a thousand gives way to another.
    for (addresses, known) in [(Addresses::Warm, 0.99..=1.0), (Addresses::Cold, 0.0..=0.0)] {
        let (cluster, table) = with_zeroes(builder().addresses(addresses), LOADED);
        let read_all = || {
            let before = cluster.cache_counters().expect("no coordinator has failed").addresses;
            for key in 0..LOADED {
                let coordinator_id = CoordinatorId { compute_node: key as usize % 2, thread: 0 };
                let read = cluster.submit(coordinator_id, move |mut session| async move {
                    session.read(table, key).await.map(|row| row.is_some())
                });
                assert!(cluster.wait(read).expect("nobody is in the way"), "{key}");
            }
            let now = cluster.cache_counters().expect("no coordinator has failed").addresses;
            let asked = now - before;
            assert_eq!(asked.lookups, LOADED);
            asked.hits as f64 / LOADED as f64
        };
        let share = read_all();
        assert!(known.contains(&share), "{addresses:?}: {share}");
        let share = read_all();
        assert!(share > 0.99, "{addresses:?}: {share}");
        stop_clean(cluster);
    }
}

/// Coordinators of simulated machines run on the thread that simulates. A single future for all
/// their work beside transactions took two megabytes of its stack, in a build without optimization.
#[test]
fn a_simulated_cluster_takes_half_a_megabyte_of_stack() {
    let run = || decided(&verbs_on(NUMBERS, |nodes| simulated(nodes, 0.0)));
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(run).expect("a thread");
    assert!(thread.join().expect("it does not panic")[0] > 0);
}

#[cfg(feature = "rdma")]
#[test]
#[ignore = "needs RDMA devices"]
fn rdma_takes_the_same_verbs() {
    use lotus_fabric::env::Env;
    use lotus_fabric::rdma::{Config, RdmaFabric};

    let devices = |nodes| {
        let (config, env) = (Config::in_process(nodes, &[]).expect("devices"), Env::real(SEED));
        Threads::over(RdmaFabric::new(config, env.clone()).expect("the devices work"), env)
    };
    let tearing = |nodes| simulated(nodes, f64::MIN_POSITIVE);
    assert_eq!(decided(&verbs_on(NUMBERS, tearing)), decided(&verbs_on(NUMBERS, devices)));
    let rdma = verbs_on(NUMBERS_APART, devices);
    let local = verbs_on(NUMBERS_APART, |nodes| Threads::new(nodes, SEED));
    let sim = verbs_on(NUMBERS_APART, |nodes| simulated(nodes, 0.0));
    let torn = verbs_on(NUMBERS_APART, tearing);
    println!("                        READ, WRITE, CAS, FAA, doorbells, bytes");
    let all = [("local", &local), ("sim", &sim), ("sim, READs may tear", &torn), ("rdma", &rdma)];
    for (name, counters) in all {
        println!("{name:20} {:?}", decided(counters));
    }
    assert_eq!(decided(&torn), decided(&rdma));
    // A device declares no stable READs. So a row that is read without its lock, and is not in the
    // reading node's cache, has its versions read twice; that is all the difference.
    let again = rdma.reads - local.reads;
    assert_eq!(again, ROWS);
    assert_eq!(rdma.verb_bytes - local.verb_bytes, again * 72);
    let rest = |counters| decided(counters)[1..5].to_vec();
    assert_eq!(rest(&local), rest(&rdma));
}
