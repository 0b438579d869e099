//! Transactions under two-phase locking, on threads and in simulation.

use lotus_fabric::machines::Threads;
use lotus_fabric::sim::{Config, Profile, SimMachines, World};
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::systems::Choice;

use super::*;
use crate::lanes::ServerOptions;
use crate::traces::{FileTrace, LockGranularity, TatpTrace, TpccTrace};

fn short(kind: Kind, trace: Trace) -> TraceLoad {
    TraceLoad {
        clients: Clients {
            choice: Choice::of(kind),
            server_lock: None,
            server_options: ServerOptions::default(),
            policy: None,
            cns: 2,
            threads: 2,
            coroutines: 2,
            warmup: 0.001,
            secs: 0.01,
        },
        mns: 1,
        trace: Arc::new(trace),
        sorted: true,
        execution: Duration::from_micros(2),
        busy: false,
        patience: Duration::from_millis(10),
        audit: true,
    }
}

fn file(text: &str) -> Trace {
    Trace::File(FileTrace::parse(text).expect("a trace"))
}

fn progress() -> Arc<Progress> {
    Arc::new(Progress::new(4, |_| ()))
}

fn simulated(load: &TraceLoad) -> TraceOutcome {
    let profile = Profile::named("tofino-cx5").expect("built in");
    let switches = load.clients.switches();
    let config = Config { switches, ..Config::new(1, load.nodes(), profile) };
    let world = World::new(config).expect("a valid world");
    let outcome = run(&SimMachines::new(world), load, &progress()).expect("it runs");
    assert_eq!(outcome.findings, load.audit.then(Vec::new));
    outcome
}

#[test]
fn both_workloads_run_on_every_kind_of_waiting() {
    let tatp = || Trace::Tatp(TatpTrace::new(100, 5, 1));
    let tpcc = || Trace::Tpcc(TpccTrace::new(2, LockGranularity::Parts, 1));
    for kind in [Kind::Cas, Kind::Dslr, Kind::Mcs, Kind::ShiftLock, Kind::Declock] {
        for (trace, locks) in [(tatp(), 1..3), (tpcc(), 6..12)] {
            let TraceOutcome { tally, .. } = simulated(&short(kind, trace));
            assert!(tally.transactions > 100, "{kind}: {}", tally.transactions);
            assert_eq!(tally.aborts + tally.lost, 0, "{kind}: sorted locks need no abort");
            let each = tally.locks / tally.transactions;
            assert!(locks.contains(&each), "{kind}: {each} locks of a transaction");
            assert_eq!(tally.transaction_ns.len(), tally.transactions);
            assert_eq!(tally.growing_ns.len(), tally.transactions);
            let of_kinds: u64 = tally.of_kind_ns.iter().map(|ns| ns.len()).sum();
            assert_eq!(of_kinds, tally.transactions);
            assert!(tally.acquire_ns.len() >= tally.locks * 9 / 10);
        }
    }
}

/// Two transactions take the same two locks in opposite orders.
#[test]
fn a_deadlock_ends_with_the_patience_of_one() {
    let crossed = || file("UP w0 w1\nDOWN w1 w0\n");
    let patience = Duration::from_micros(200);
    let load = TraceLoad { patience, sorted: false, ..short(Kind::Dslr, crossed()) };
    let TraceOutcome { tally, .. } = simulated(&load);
    assert!(tally.aborts > 0 && tally.transactions > 10, "{} ended", tally.transactions);
    let both = tally.of_kind_ns.iter().all(|ns| !ns.is_empty());
    assert!(both, "each is run again until it ends");
    let sorted = simulated(&TraceLoad { sorted: true, ..load });
    assert_eq!(sorted.tally.aborts, 0);
    assert!(sorted.tally.transactions > tally.transactions);
}

#[test]
fn a_transaction_lasts_as_long_as_its_phases() {
    let clients =
        Clients { cns: 1, threads: 1, coroutines: 2, ..short(Kind::Dslr, file("A w0")).clients };
    let execution = Duration::from_micros(50);
    // Two clients that never want the same lock.
    let trace = || file("A w0 w1 w2\nB w3 w4 w5");
    let run = |busy| {
        let load = short(Kind::Dslr, trace());
        simulated(&TraceLoad { clients: clients.clone(), execution, busy, ..load }).tally
    };
    let [free, busy] = [false, true].map(run);
    let median = |latencies: &Latencies| latencies.value_at_quantile(0.5);
    let growing = median(&free.growing_ns);
    assert!(growing > 3 * 1_500 && growing < 3 * 4_000, "three locks: {growing} ns");
    let difference = median(&free.transaction_ns) - growing;
    assert!((50_000..52_000).contains(&difference), "{difference} ns");
    // A lane that executes one at a time ends half as many: its execution is the bound.
    let ratio = free.transactions as f64 / busy.transactions as f64;
    assert!((1.5..2.0).contains(&ratio), "{ratio}");
}

#[test]
fn several_memory_nodes_share_the_locks() {
    let trace = Trace::Tpcc(TpccTrace::new(4, LockGranularity::Rows { divisor: 100 }, 1));
    let load = TraceLoad { mns: 3, ..short(Kind::ShiftLock, trace) };
    assert_eq!(load.check(), Ok(()));
    assert_eq!(load.nodes(), 2 + 1 + 3);
    let TraceOutcome { tally, utilisation, .. } = simulated(&load);
    assert!(tally.transactions > 50, "{}", tally.transactions);
    assert!(utilisation.is_some());
}

#[test]
fn threads_run_a_trace_as_well() {
    let trace = Trace::Tatp(TatpTrace::new(100, 5, 1));
    for mns in [1, 2] {
        let load = short(Kind::Declock, trace.clone());
        let clients = Clients { warmup: 0.0, secs: 0.3, ..load.clients.clone() };
        let load = TraceLoad { mns, clients, ..load };
        let outcome = run(&Threads::new(load.nodes(), 1), &load, &progress()).expect("it runs");
        assert!(outcome.tally.transactions > 0);
        assert_eq!(outcome.findings, Some(Vec::new()));
    }
}

#[test]
fn what_cannot_be_judged_is_refused() {
    let load = short(Kind::Drtm, file("A r0"));
    let choice = Choice { recovery: lotus_locks::Recovery::Paper, ..load.clients.choice };
    let load = TraceLoad { clients: Clients { choice, ..load.clients.clone() }, ..load };
    assert!(load.check().is_err_and(|why| why.contains("leases")));
    assert_eq!(TraceLoad { audit: false, ..load }.check(), Ok(()));
}

#[test]
fn servers_that_keep_the_locks_run_the_same_transactions() {
    let others = ServerLock::SWITCHED.into_iter().chain([ServerLock::RedLock]);
    for service in ServerLock::ALL.into_iter().chain(others) {
        for trace in [
            Trace::Tatp(TatpTrace::new(100, 5, 1)),
            Trace::Tpcc(TpccTrace::new(2, LockGranularity::Parts, 1)),
        ] {
            let load = short(Kind::Dslr, trace);
            let clients = Clients { server_lock: Some(service), ..load.clients.clone() };
            let load = TraceLoad { clients, ..load };
            assert_eq!(load.check(), Ok(()));
            let TraceOutcome { tally, used, .. } = simulated(&load);
            assert!(tally.transactions > 50, "{service}: {}", tally.transactions);
            // Without a queue, others may come first until the time is up.
            let is_given_up = tally.aborts + tally.lost > 0;
            assert!(!is_given_up || service == ServerLock::RedLock, "{service}: {tally:?}");
            assert_eq!(used.verbs.fetch_and_adds + used.verbs.compare_and_swaps, 0, "{service}");
            assert!(used.verbs.messages > 0, "{service}");
        }
    }
}
