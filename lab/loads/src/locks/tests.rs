//! What a load on locks measures, and how it ends.

use std::sync::Mutex;

use lotus_benchmarks::progress::Phase;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId};
use lotus_fabric::machines::Threads;
use lotus_fabric::sim::{Config, Fault, MemoryFate, Profile, Scheduled, SimMachines, When, World};
use lotus_locksystems::fisslock::Preference;
use lotus_locksystems::fisslock::capacity::MAX_LOCKS;
use lotus_locksystems::systems::Choice;

use super::*;
use crate::lanes::{START, ServerOptions};

fn short() -> LockLoad {
    LockLoad {
        clients: Clients {
            choice: Choice::of(Kind::Dslr),
            server_lock: None,
            server_options: ServerOptions::default(),
            policy: None,
            cns: 2,
            threads: 2,
            coroutines: 2,
            warmup: 0.01,
            secs: 0.05,
        },
        count: 20,
        zipf: 0.99,
        hot: None,
        read_ratio: 0.5,
        update_ratio: 0.0,
        section: 1,
        object_bytes: 8,
        patience: None,
        behaviour: ClientBehaviour::default(),
        loses: None,
        audit: true,
    }
}

/// The same load of other clients.
fn by(clients: Clients, load: LockLoad) -> LockLoad {
    LockLoad { clients, ..load }
}

fn of(choice: Choice) -> Clients {
    Clients { choice, ..short().clients }
}

fn within(warmup: f64, secs: f64) -> Clients {
    Clients { warmup, secs, ..short().clients }
}

#[test]
fn a_failure_outside_ends_the_run_long_before_its_time() {
    let load = by(within(0.01, 1e6), short());
    let progress = Arc::new(Progress::new(4, |_| ()));
    progress.fail("a memory node has ended".to_owned());
    let outcome = run(&Threads::new(load.clients.nodes(), 1), &load, &progress);
    let failed = DeployError::Failed("a memory node has ended".to_owned());
    assert_eq!(outcome.expect_err("it has failed"), failed);
}

#[test]
fn lanes_that_cannot_be_opened_end_the_run_with_a_sentence() {
    let (load, machines) = (by(within(0.01, 1e6), short()), Threads::new(4, 1));
    let progress = Arc::new(Progress::new(4, |_| ()));
    let taken = Endpoint { node: NodeId(2), lane: LaneId(1) };
    let executor = Executor::new(machines.outside());
    let lane = machines.fabric().open_lane(taken, Epoch(1), executor.handle().waker());
    let Err(DeployError::Failed(why)) = run(&machines, &load, &progress) else {
        panic!("the lane is taken")
    };
    assert!(why.contains("lane"), "{why}");
    drop(lane);
}

#[test]
fn progress_counts_what_is_done_on_all_lanes() {
    for audit in [true, false] {
        let load = LockLoad { audit, ..short() };
        let phases = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&phases);
        let enter = move |phase| seen.lock().expect("no panic").push(phase);
        let progress = Arc::new(Progress::new(4, enter));
        let outcome =
            run(&Threads::new(load.clients.nodes(), 1), &load, &progress).expect("it runs");
        // Those of the warm-up do not count in the outcome.
        assert!(progress.committed() >= outcome.tally.operations, "{outcome:?}");
        assert!(outcome.tally.operations > 0 && progress.fraction() > 0.0);
        assert_eq!(outcome.findings, audit.then(Vec::new));
        let expected = [Phase::Running, Phase::Auditing];
        assert_eq!(*phases.lock().expect("no panic"), expected[..1 + usize::from(audit)]);
    }
}

#[test]
fn readers_writers_and_releases_are_timed_and_utilisation_is_that_of_the_clients() {
    let load = by(Clients { cns: 1, coroutines: 1, ..within(0.0, 0.001) }, short());
    let world = Config::new(1, load.clients.nodes(), Profile::named("cx3-56g").expect("built in"));
    let machines = SimMachines::new(World::new(world).expect("a valid world"));
    let progress = Arc::new(Progress::new(2, |_| ()));
    let LockOutcome { tally, utilisation, .. } = run(&machines, &load, &progress).expect("runs");
    assert_eq!(tally.reader_acquire.count + tally.writer_acquire.count, tally.operations);
    assert_eq!(tally.released.count, tally.operations);
    for times in [tally.reader_acquire, tally.writer_acquire, tally.released] {
        assert!((1_000.0..20_000.0).contains(&times.mean_ns()), "{times:?}");
    }
    let report = utilisation.expect("simulated");
    assert!(report.elapsed < Duration::from_millis(2), "{:?}", report.elapsed);
    // Two clients that wait for nothing but the network keep no core idle for long.
    let busy = report.bound().expect("something was used").busy;
    assert!((0.02..=1.0).contains(&busy), "{busy}");
}

#[test]
fn the_others_go_on_without_a_compute_node_that_is_lost() {
    let choice = Choice { recovery: Recovery::Paper, ..Choice::of(Kind::Declock) };
    let loses = Some(Duration::from_millis(1));
    let clients = Clients { warmup: 0.12, secs: 0.01, ..of(choice) };
    let load = LockLoad { clients, loses, audit: false, ..short() };
    assert_eq!(load.check(), Ok(()));
    assert!(LockLoad { audit: true, ..load.clone() }.check().is_err());
    let node = load.lost_node().expect("one is lost");
    let crash = Scheduled {
        when: When::At(START + Duration::from_millis(1)),
        fault: Fault::Crash { node, memory: MemoryFate::Lost },
    };
    let profile = Profile::named("cx3-56g").expect("built in");
    let world = Config { schedule: vec![crash], ..Config::new(1, load.clients.nodes(), profile) };
    let machines = SimMachines::new(World::new(world).expect("a valid world"));
    let progress = Arc::new(Progress::new(4, |_| ()));
    let tally = run(&machines, &load, &progress).expect("the others end").tally;
    // The locks that it has held were reset meanwhile.
    assert!(tally.operations > 1000, "{tally:?}");
}

#[test]
fn releases_read_again_what_was_not_written_when_they_came() {
    let run = |kind| {
        let clients = Clients { warmup: 0.0, secs: 0.005, ..of(Choice::of(kind)) };
        let load = LockLoad { count: 8, section: 0, read_ratio: 0.0, zipf: 0.0, ..short() };
        let load = by(clients, load);
        let world =
            Config::new(1, load.clients.nodes(), Profile::named("cx3-56g").expect("built in"));
        let machines = SimMachines::new(World::new(world).expect("a valid world"));
        run(&machines, &load, &Arc::new(Progress::new(4, |_| ()))).expect("it runs").used.counts
    };
    let [queue, tickets] = [Kind::Declock, Kind::Dslr].map(run);
    assert!(queue.refetches > 0 && queue.refetches < queue.acquired, "{queue:?}");
    assert_eq!(tickets.refetches, 0);
}

#[test]
fn a_distribution_rises_to_the_slowest() {
    let mut tally = LockTally::default();
    assert_eq!(distribution(&tally.hottest_ns), []);
    for ns in 1..=1000 {
        tally.hottest_ns.saturating_record(ns);
    }
    let points = distribution(&tally.hottest_ns);
    assert!(points.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1), "{points:?}");
    assert_eq!((points[0], points[49]), ((0.01, 10), (0.5, 500)));
    assert_eq!(points.last(), Some(&(1.0, 1000)));
}

/// One lock and as many requests as fit: writers follow each other, and what is noted of all
/// lanes is put together.
#[test]
fn the_hottest_lock_and_the_treatment_of_requests_are_noted() {
    let run = |load: LockLoad| {
        let world =
            Config::new(1, load.clients.nodes(), Profile::named("cx3-56g").expect("built in"));
        let machines = SimMachines::new(World::new(world).expect("a valid world"));
        let progress = Arc::new(Progress::new(4, |_| ()));
        run(&machines, &load, &progress).expect("it runs").tally
    };
    let clients = Clients { coroutines: 4, ..within(0.0005, 0.002) };
    let short = by(clients.clone(), short());
    let one = LockLoad { count: 1, read_ratio: 0.2, ..short.clone() };
    let retrying = Clients { choice: Choice::of(Kind::Cas), ..clients };
    let (queue, retries) = (run(one.clone()), run(by(retrying, one.clone())));
    // There is one lock, so it is the hottest.
    assert_eq!(queue.hottest_ns, queue.acquire_ns);
    assert!(queue.fairness.longest_run > 2, "{:?}", queue.fairness);
    // Requests may change places on the way to the lock, but not in its queue.
    let clients = 2 * 2 * 4;
    assert!(queue.fairness.largest_bypass < clients, "{:?}", queue.fairness);
    assert!(retries.fairness.largest_bypass > clients, "{:?}", retries.fairness);
    let unseen = run(LockLoad { audit: false, ..one });
    assert_eq!(unseen.fairness, Fairness::default());
    assert_eq!(unseen.operations, queue.operations, "an audit takes no time of the clients");
    let readers = run(LockLoad { read_ratio: 1.0, ..short.clone() });
    assert_eq!(readers.fairness.longest_run, 0);
    assert!(!readers.hottest_ns.is_empty());
    assert!(readers.hottest_ns.len() < readers.operations);
    let uniform = run(LockLoad { zipf: 0.0, ..short });
    assert!(uniform.hottest_ns.is_empty());
}

/// The same clients on locks that servers keep, on simulated machines with these times.
fn outcome_of(server_lock: ServerLock, request: Duration, load: LockLoad) -> LockOutcome {
    let server_options = ServerOptions { request, ..load.clients.server_options.clone() };
    let load = by(
        Clients { server_lock: Some(server_lock), server_options, ..load.clients.clone() },
        load,
    );
    assert_eq!(load.check(), Ok(()));
    let profile = Profile::named("tofino-cx5").expect("built in");
    let switches = load.clients.switches();
    let world = Config { switches, ..Config::new(1, load.clients.nodes(), profile) };
    let machines = SimMachines::new(World::new(world).expect("a valid world"));
    let lanes = usize::from(load.clients.cns * load.clients.threads);
    run(&machines, &load, &Arc::new(Progress::new(lanes, |_| ()))).expect("it runs")
}

#[test]
fn locks_that_servers_keep_pass_the_same_audit() {
    for service in ServerLock::ALL {
        for section in [0, 2] {
            let load = LockLoad { section, ..by(within(0.0, 0.002), short()) };
            let LockOutcome { tally, used, findings, .. } =
                outcome_of(service, Duration::ZERO, load);
            assert_eq!(findings, Some(vec![]), "{service}");
            assert!(tally.operations > 100, "{service}: {tally:?}");
            assert_eq!(used.verbs.reads + used.verbs.writes > 0, section > 0, "{service}");
            assert_eq!(used.verbs.fetch_and_adds + used.verbs.compare_and_swaps, 0, "{service}");
            let is_retried = used.counts.retries > 0;
            assert_eq!(is_retried, service == ServerLock::Rpc, "{service}: nothing is lost");
        }
    }
}

#[test]
fn real_servers_are_asked_in_real_time_and_must_be_there() {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0));
    let address = listener.expect("a port").local_addr().expect("it is bound");
    let redis = Some([address].into());
    let server_options = ServerOptions { redis, ..ServerOptions::default() };
    let clients =
        Clients { server_lock: Some(ServerLock::RedLock), server_options, ..within(0.0, 0.01) };
    let (load, progress) = (by(clients, short()), Arc::new(Progress::new(4, |_| ())));
    assert_eq!(load.check(), Ok(()));
    let other =
        by(Clients { server_lock: Some(ServerLock::Rpc), ..load.clients.clone() }, load.clone());
    assert!(other.check().is_err_and(|why| why.starts_with("only redlock has servers of redis")));

    let refusal = |outcome| match outcome {
        Err(DeployError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let nodes = load.clients.nodes();
    let world = Config::new(1, nodes, Profile::named("tofino-cx5").expect("built in"));
    let simulated = SimMachines::new(World::new(world).expect("a valid world"));
    let why = refusal(run(&simulated, &load, &progress));
    assert_eq!(why, "redis answers in real time, and these machines have none");
    let why = refusal(run(&Threads::new(nodes, 1), &load, &progress));
    assert!(why.starts_with(&format!("redis does not answer at {address}: ")), "{why}");
}

#[test]
fn locks_of_a_redis_pass_the_same_audit_and_a_command_takes_its_time() {
    for section in [0, 2] {
        let load = LockLoad { section, ..by(within(0.0, 0.02), short()) };
        let LockOutcome { tally, used, findings, .. } =
            outcome_of(ServerLock::RedLock, Duration::ZERO, load);
        assert_eq!(findings, Some(vec![]));
        assert!(tally.operations > 100, "{tally:?}");
        assert_eq!(used.verbs.fetch_and_adds + used.verbs.compare_and_swaps, 0);
    }
    let load = LockLoad { count: 1 << 20, zipf: 0.0, ..by(within(0.0, 0.05), short()) };
    let tally = outcome_of(ServerLock::RedLock, Duration::from_micros(100), load).tally;
    // One core, two commands for each operation, and hardly a lock that is another's.
    let most = 0.05 / 100e-6;
    let operations = tally.operations as f64;
    assert!((0.9 * most..=1.01 * most).contains(&operations), "{operations} of {most}");
}

#[test]
fn locks_that_a_switch_grants_pass_the_same_audit() {
    for section in [0, 2] {
        let load = LockLoad { section, ..by(within(0.0, 0.002), short()) };
        let LockOutcome { tally, used, findings, .. } =
            outcome_of(ServerLock::FissLock, Duration::ZERO, load);
        assert_eq!(findings, Some(vec![]));
        assert!(tally.operations > 100, "{tally:?}");
        assert_eq!(used.verbs.reads + used.verbs.writes > 0, section > 0);
        assert_eq!(used.verbs.fetch_and_adds + used.verbs.compare_and_swaps, 0);
        assert_eq!(used.counts.retries, 0, "no request is refused");
    }
    let many = Clients { server_lock: Some(ServerLock::FissLock), cns: 256, ..short().clients };
    let refused = by(many, short()).check().expect_err("too many machines");
    assert_eq!(refused, "a FissLock switch serves 1 to 255 machines, not 256");
}

#[test]
fn the_preference_of_a_switch_decides_who_waits() {
    let waits = |service, prefer| {
        let server_options = ServerOptions { prefer, ..ServerOptions::default() };
        let clients = Clients { server_options, coroutines: 4, ..within(0.0, 0.004) };
        let load = LockLoad { count: 1, zipf: 0.0, read_ratio: 0.8, ..by(clients, short()) };
        let LockOutcome { tally, findings, .. } = outcome_of(service, Duration::ZERO, load);
        assert_eq!(findings, Some(vec![]), "{service}, {prefer:?}");
        tally.writer_acquire.mean_ns() / tally.reader_acquire.mean_ns()
    };
    for service in [ServerLock::FissLock, ServerLock::FissLockLocal] {
        let of = [None, Some(Preference::Readers), Some(Preference::Writers)];
        let [usual, readers, writers] = of.map(|prefer| waits(service, prefer));
        assert_eq!(usual, readers, "{service}: it is the usual one");
        assert!(readers > 1.5 * writers, "{service}: {readers}, {writers}");
    }
    let none = |server_lock| {
        let server_options =
            ServerOptions { prefer: Some(Preference::Writers), ..ServerOptions::default() };
        let clients = Clients { server_lock, server_options, ..short().clients };
        by(clients, short()).check().expect_err("it has no preference")
    };
    assert_eq!(none(None), "only fisslock and fisslock-local have a preference, not dslr");
    assert!(none(Some(ServerLock::FissParLock)).ends_with("not fisslock+parlock"));
}

/// The first locks are the switch's, the others are kept by the compute nodes.
#[test]
fn locks_beyond_a_switch_are_kept_by_compute_nodes() {
    let uniform = LockLoad { zipf: 0.0, ..by(within(0.0, 0.002), short()) };
    let beyond = LockLoad { count: MAX_LOCKS + MAX_LOCKS / 4, ..uniform.clone() };
    for (load, is_beyond) in [(uniform, false), (beyond.clone(), true)] {
        let LockOutcome { tally, used, findings, .. } =
            outcome_of(ServerLock::FissParLock, Duration::ZERO, load);
        assert_eq!(findings, Some(vec![]));
        assert!(tally.operations > 100, "{tally:?}");
        // Two to the switch, or to another node: a node asks itself by a call.
        let messages = used.verbs.messages as f64 / tally.operations as f64;
        assert_eq!(messages < 1.9, is_beyond, "{messages}");
        assert!((1.5..2.1).contains(&messages), "{messages}");
    }
    let alone = Clients { server_lock: Some(ServerLock::FissLock), ..beyond.clients.clone() };
    let refused = by(alone, beyond).check().expect_err("too many locks");
    let sentence = "FissLock switches have room for 1680000 locks, not 2100000, without";
    assert!(refused.starts_with(sentence), "{refused}");
}

/// A server that needs longer for a request grants fewer: at most one in that time on each core.
#[test]
fn a_request_takes_the_time_of_a_servers_core() {
    let clients = Clients { cns: 4, coroutines: 8, ..within(0.001, 0.004) };
    let load = by(clients, LockLoad { count: 1000, zipf: 0.0, section: 0, ..short() });
    let rate = |request| {
        outcome_of(ServerLock::SrvLock, request, load.clone()).tally.operations as f64 / 0.004
    };
    let (fast, slow) = (rate(Duration::ZERO), rate(Duration::from_micros(10)));
    let most = f64::from(ServerLock::SERVER_CORES) / 10e-6;
    assert!(fast > 1.5 * most, "{fast}");
    assert!(slow < most && slow > 0.5 * most, "{slow} of {most}");
}

/// Runs a load whose last node is lost when it says.
fn lose(load: &LockLoad) -> LockOutcome {
    assert_eq!(load.check(), Ok(()));
    let crash = load.lost_node().zip(load.loses).map(|(node, after)| Scheduled {
        when: When::At(START + after),
        fault: Fault::Crash { node, memory: MemoryFate::Lost },
    });
    let profile = Profile::named("tofino-cx5").expect("built in");
    let switches = load.clients.switches();
    let config = Config::new(1, load.clients.nodes(), profile);
    let world = Config { schedule: crash.into_iter().collect(), switches, ..config };
    let machines = SimMachines::new(World::new(world).expect("a valid world"));
    let lanes = usize::from(load.clients.cns * load.clients.threads);
    run(&machines, load, &Arc::new(Progress::new(lanes, |_| ()))).expect("ends")
}

#[test]
fn a_lost_node_keeps_no_lock_of_a_server_or_a_switch() {
    for server_lock in [ServerLock::SrvLock, ServerLock::NetLock, ServerLock::FissLock] {
        let loses = Some(Duration::from_millis(1));
        let clients = Clients {
            warmup: 0.01,
            secs: 0.005,
            server_lock: Some(server_lock),
            ..short().clients
        };
        let load = LockLoad { loses, audit: false, count: 2, ..by(clients, short()) };
        let outcome = lose(&load);
        assert!(outcome.tally.operations > 500, "{server_lock}: {:?}", outcome.tally);
        assert_eq!(outcome.recovery.is_some(), server_lock == ServerLock::FissLock);
    }
    let own = Clients { server_lock: Some(ServerLock::ParLock), ..short().clients };
    let loses = Some(Duration::from_millis(1));
    assert!(by(own, LockLoad { loses, audit: false, ..short() }).check().is_err());
}

/// Those of the lost node are free, and those of all others are restored.
#[test]
fn locks_that_are_held_to_the_end_are_restored_in_a_recovery() {
    const HELD: u64 = 4000;
    let clients = Clients { cns: 4, coroutines: 2, ..within(0.001, 0.003) };
    let clients = Clients { server_lock: Some(ServerLock::FissLock), ..clients };
    let (cns, lanes) = (u64::from(clients.cns), u64::from(clients.cns * clients.threads));
    let behaviour = ClientBehaviour {
        held_locks: HELD,
        think: Duration::from_micros(20),
        ..ClientBehaviour::default()
    };
    let loses = Some(Duration::from_millis(3));
    let load = LockLoad { loses, behaviour, audit: false, count: 2 * HELD, section: 0, ..short() };
    let outcome = lose(&by(clients, load));
    assert!(outcome.tally.operations > 100, "{:?}", outcome.tally);
    let LossRecovery { over, took } = outcome.recovery.expect("it recovers");
    let restored = (HELD - HELD / cns) as usize;
    assert!((restored..restored + lanes as usize * 2).contains(&over.locks), "{over:?}");
    assert!(over.took() <= took && took < Duration::from_millis(1), "{over:?} in {took:?}");
}

#[test]
fn locks_are_held_to_the_end_only_where_that_makes_sense() {
    let clients = Clients { server_lock: Some(ServerLock::FissLock), ..short().clients };
    let load = |held_locks, audit| {
        let behaviour = ClientBehaviour { held_locks, ..ClientBehaviour::default() };
        LockLoad { behaviour, audit, count: 100, ..by(clients.clone(), short()) }
    };
    assert_eq!(load(99, false).check(), Ok(()));
    let refused = |load: LockLoad| load.check().expect_err("it makes no sense");
    assert!(refused(load(100, false)).contains("fewer than all 100 locks"));
    assert!(refused(load(1, true)).contains("no audit"));
    let in_words = Clients { server_lock: None, ..clients.clone() };
    let of_words = LockLoad { clients: in_words, ..load(1, false) };
    assert!(refused(of_words).contains("only of servers and switches"));
    let hot = HotLocks { count: 8, share: 0.5, every: Duration::ZERO };
    assert!(refused(LockLoad { hot: Some(hot), ..load(1, false) }).contains("without hot ones"));
}

/// Hot locks are granted by the switch, so the server has less to do.
#[test]
fn a_switch_takes_the_hot_locks_off_the_server() {
    let clients = Clients { cns: 4, coroutines: 16, ..within(0.001, 0.004) };
    let load = LockLoad { count: 1000, zipf: 0.9, read_ratio: 0.9, section: 0, ..short() };
    let load = by(clients, load);
    let request = Duration::from_micros(10);
    let [server, switch] =
        [ServerLock::SrvLock, ServerLock::NetLock].map(|of| outcome_of(of, request, load.clone()));
    assert_eq!(switch.findings, Some(vec![]));
    let [server, switch] = [server, switch].map(|outcome| outcome.tally.operations);
    assert!(switch > 2 * server, "{switch} against {server}");
}

/// A switch that knows the hot locks grants half of the requests, until others are hot.
#[test]
fn a_switch_does_not_learn_of_new_hot_locks() {
    let clients = Clients { cns: 4, coroutines: 16, ..within(0.001, 0.004) };
    let clients = Clients { server_lock: Some(ServerLock::NetLock), ..clients };
    let rate = |every_us| {
        let hot = HotLocks { count: 100, share: 0.9, every: Duration::from_micros(every_us) };
        let load = LockLoad { count: 100_000, hot: Some(hot), section: 0, ..short() };
        let load = by(clients.clone(), LockLoad { read_ratio: 0.9, ..load });
        let outcome = outcome_of(ServerLock::NetLock, Duration::from_micros(10), load);
        assert_eq!(outcome.findings, Some(vec![]));
        outcome.tally.operations
    };
    let (known, unknown) = (rate(0), rate(500));
    assert!(known > 2 * unknown, "{known} against {unknown}");
}

#[test]
fn not_all_locks_are_hot() {
    let hot = HotLocks { count: 8, share: 0.5, every: Duration::ZERO };
    let load = |count| LockLoad { count, hot: Some(hot), ..short() };
    assert_eq!(load(9).check(), Ok(()));
    assert!(load(8).check().is_err_and(|why| why.contains("fewer than all 8 locks")));
}
