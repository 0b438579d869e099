//! Banks on threads and in simulation, with and without a node that is lost.

use lotus_fabric::machines::Threads;
use lotus_fabric::sim::{Config, Fault, MemoryFate, Profile, Scheduled, SimMachines, When, World};
use lotus_locksystems::servers::ServerLock;
use lotus_locksystems::systems::Choice;

use super::*;
use crate::lanes::{START, ServerOptions};

fn short(kind: Kind, business: BankWorkload) -> BankLoad {
    BankLoad {
        clients: Clients {
            choice: Choice::of(kind),
            server_lock: None,
            server_options: ServerOptions::default(),
            policy: None,
            cns: 2,
            threads: 2,
            coroutines: 2,
            warmup: 0.002,
            secs: 0.02,
        },
        business,
        customers: 20,
        request: Duration::from_micros(1),
        patience: Duration::from_millis(10),
        loses: None,
        seed: 1,
        audit: true,
    }
}

fn progress() -> Arc<Progress> {
    Arc::new(Progress::new(4, |_| ()))
}

fn simulated(load: &BankLoad, seed: u64) -> BankOutcome {
    let crash = load.lost_node().zip(load.loses).map(|(node, after)| Scheduled {
        when: When::At(START + after),
        fault: Fault::Crash { node, memory: MemoryFate::Lost },
    });
    let profile = Profile::named("tofino-cx5").expect("built in");
    let config = Config::new(seed, load.nodes(), profile);
    let switches = load.clients.switches();
    let config = Config { schedule: crash.into_iter().collect(), switches, ..config };
    let machines = SimMachines::new(World::new(config).expect("a valid world"));
    run(&machines, load, &progress()).expect("it runs")
}

#[test]
fn no_money_comes_or_goes() {
    for kind in [Kind::ShiftLock, Kind::Declock, Kind::Dslr, Kind::Cas] {
        for business in [BankWorkload::SmallBank, BankWorkload::Transfer] {
            let outcome = simulated(&short(kind, business), 1);
            assert_eq!(outcome.findings, Some(Vec::new()), "{kind}, {business:?}");
            let BankTally { transactions, of_kind_ns, lost, .. } = outcome.tally;
            assert!(transactions > 100 && lost == 0, "{kind}: {transactions}");
            assert_eq!(of_kind_ns.iter().filter(|ns| !ns.is_empty()).count(), of_kind_ns.len());
            assert_eq!(of_kind_ns.len(), business.kinds().len());
            assert!(outcome.requests > transactions && outcome.unfinished == 0);
        }
    }
}

/// A server that is slow bounds the rate: two requests of a transaction at the most common.
#[test]
fn the_server_takes_one_request_after_another() {
    let load = short(Kind::ShiftLock, BankWorkload::Transfer);
    let request = Duration::from_micros(20);
    let load = BankLoad { request, customers: 1000, ..load };
    let BankOutcome { tally, requests, .. } = simulated(&load, 1);
    let most = (0.022 + 0.001) / request.as_secs_f64();
    assert!((0.9 * most..most).contains(&(requests as f64)), "{requests} of {most}");
    // A balance takes one request, a transfer four.
    let each = requests as f64 / tally.transactions as f64;
    assert!((1.1..1.7).contains(&each), "{each}");
}

/// Some seeds end the node between the two changes of a transfer.
#[test]
fn what_a_lost_node_leaves_is_explained() {
    let mut unfinished = 0;
    for kind in [Kind::ShiftLock, Kind::Declock, Kind::Dslr, Kind::Cas] {
        for seed in 1..=3 {
            let load = short(kind, BankWorkload::SmallBank);
            let clients = Clients { warmup: 0.4, secs: 0.02, ..load.clients.clone() };
            let loses = Some(Duration::from_micros(2000 + 7 * seed));
            let request = Duration::from_micros(20);
            // Locks that wait for a reset do so for 50 ms.
            let patience = Duration::from_millis(100);
            let load = BankLoad { loses, clients, request, patience, ..load };
            assert_eq!(load.check(), Ok(()));
            let outcome = simulated(&load, seed);
            assert_eq!(outcome.findings, Some(Vec::new()), "{kind}, seed {seed}");
            let ended = outcome.tally.transactions;
            assert!(ended > 100, "{kind}: the others go on, {ended}");
            unfinished += outcome.unfinished;
        }
    }
    assert!(unfinished > 0, "no transaction was struck within its changes");
}

/// The audit finds money that no transaction has moved.
#[test]
fn money_that_vanishes_is_found() {
    let bank = Bank::new(BankWorkload::Transfer, 4, 1);
    let balances: Vec<i64> = (0..4).map(|account| bank.initial(account)).collect();
    let load = BankLoad { customers: 4, ..short(Kind::Cas, BankWorkload::Transfer) };
    let shared = |change: i64| {
        let mut balances = balances.clone();
        balances[2] += change;
        let (load, bank, books) = (load.clone(), bank.clone(), Books::default());
        let store = Store::new(balances, None, Duration::ZERO);
        Shared { load, bank, spaces: Arc::new([]), holders: None, store, books }
    };
    assert_eq!(shared(0).money(), Vec::<String>::new());
    let found = shared(-1).money();
    assert!(found[0].contains("in all, and should have"), "{found:?}");
    let torn = shared(0);
    torn.books.begin(1, 1, &[plan::Change { account: 0, delta: -5, after: 5 }]);
    assert_eq!(torn.money(), ["1 transactions have not ended"]);
}

#[test]
fn a_bank_runs_on_threads() {
    let load = short(Kind::Declock, BankWorkload::SmallBank);
    let clients = Clients { warmup: 0.0, secs: 0.3, ..load.clients.clone() };
    let load = BankLoad { clients, request: Duration::ZERO, ..load };
    let outcome = run(&Threads::new(load.nodes(), 1), &load, &progress()).expect("it runs");
    assert!(outcome.tally.transactions > 0);
    assert_eq!(outcome.findings, Some(Vec::new()));
}

#[test]
fn no_money_comes_or_goes_under_locks_of_servers() {
    for service in [
        ServerLock::SrvLock,
        ServerLock::ParLock,
        ServerLock::Rpc,
        ServerLock::FissLock,
        ServerLock::RedLock,
    ] {
        let load = short(Kind::Dslr, BankWorkload::SmallBank);
        let server_options =
            ServerOptions { request: Duration::from_micros(1), ..ServerOptions::default() };
        let clients =
            Clients { server_lock: Some(service), server_options, ..load.clients.clone() };
        let load = BankLoad { clients, ..load };
        assert_eq!(load.check(), Ok(()));
        let outcome = simulated(&load, 1);
        assert_eq!(outcome.findings, Some(Vec::new()), "{service}");
        assert!(outcome.tally.transactions > 100, "{service}");
    }
}

/// As for locks in words: some seeds end the node between the two changes of a transfer.
#[test]
fn what_a_lost_node_leaves_is_explained_under_locks_of_servers() {
    let mut unfinished = 0;
    for service in [ServerLock::SrvLock, ServerLock::Rpc, ServerLock::NetLock, ServerLock::FissLock]
    {
        for seed in 1..=3 {
            let load = short(Kind::Dslr, BankWorkload::SmallBank);
            let clients =
                Clients { server_lock: Some(service), warmup: 0.03, ..load.clients.clone() };
            let loses = Some(Duration::from_micros(2000 + 7 * seed));
            let request = Duration::from_micros(20);
            let load = BankLoad { clients, loses, request, ..load };
            assert_eq!(load.check(), Ok(()));
            let outcome = simulated(&load, seed);
            assert_eq!(outcome.findings, Some(Vec::new()), "{service}, seed {seed}");
            let ended = outcome.tally.transactions;
            assert!(ended > 100, "{service}: the others go on, {ended}");
            unfinished += outcome.unfinished;
        }
    }
    assert!(unfinished > 0, "no transaction was struck within its changes");
}

#[test]
fn nobody_outlasts_a_loss_that_takes_locks_along() {
    let reasons = [
        (ServerLock::ParLock, "takes its locks"),
        (ServerLock::FissParLock, "takes its locks"),
        (ServerLock::RedLock, "no fence"),
    ];
    for (server_lock, reason) in reasons {
        let load = short(Kind::Dslr, BankWorkload::SmallBank);
        let clients = Clients { server_lock: Some(server_lock), ..load.clients.clone() };
        let loses = Some(Duration::from_micros(2000));
        let refused = BankLoad { clients, loses, ..load }.check();
        assert!(refused.is_err_and(|why| why.contains(reason)), "{server_lock}");
    }
}
