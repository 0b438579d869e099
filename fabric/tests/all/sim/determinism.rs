//! One seed gives one run: equal seeds give equal traces, other seeds others.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lotus_fabric::env::SmallRng;
use lotus_fabric::ids::NodeId;
use lotus_fabric::lane::{Batch, Lane};
use lotus_fabric::rpc::{RetryPolicy, Rpc, Service};
use lotus_fabric::sim::{Config, Fault, Profile, Rates, Scheduled, When, World};
use rand::Rng;

use super::{MEMORY, Running, at, post, word, world};

const ECHO: Service = Service(1);
const CLIENTS: u16 = 3;
const LANES: u16 = 2;

/// A configuration with every random fault.
fn stormy(seed: u64) -> Config {
    let micros = Duration::from_micros;
    let rates = Rates {
        message_loss: 0.02,
        message_duplication: 0.02,
        message_delay: 0.1,
        message_delay_max: micros(100),
        verb_delay: 0.01,
        verb_delay_max: micros(6000),
        torn_writes: 0.2,
        torn_reads: 0.2,
        tear_span: micros(3),
    };
    let at = |time: u64, fault| Scheduled { when: When::At(micros(time)), fault };
    let (client, other) = (NodeId(1), NodeId(2));
    let schedule = vec![
        at(300, Fault::Cut { from: client, to: MEMORY }),
        at(9000, Fault::Mend { from: client, to: MEMORY }),
        at(2000, Fault::Cut { from: other, to: NodeId(3) }),
        at(4000, Fault::Mend { from: other, to: NodeId(3) }),
        at(5000, Fault::Pause { node: other, lasting: micros(2000) }),
        at(6000, Fault::ClockJump { node: other, nanos: 50_000 }),
        at(7000, Fault::ClockJump { node: other, nanos: -90_000 }),
        at(7500, Fault::ClockRate { node: other, ppm: 500 }),
        at(12_000, Fault::Stall { from: other, to: MEMORY, lasting: micros(5000) }),
    ];
    let profile = Profile::named("cx3-56g").expect("built in");
    Config { rates, schedule, ..Config::new(seed, 1 + CLIENTS, profile) }
}

fn random_verb(batch: &mut Batch, rng: &mut SmallRng) {
    let addr = word(rng.random_range(0..64));
    match rng.random_range(0..5) {
        0 => _ = batch.read(addr, 64),
        1 => {
            let staged = batch.stage(64);
            batch.words_mut(staged).fill(rng.random());
            batch.write(addr, staged);
        }
        2 => batch.write_word(addr, rng.random()),
        3 => _ = batch.compare_and_swap(addr, 0, rng.random()),
        _ => _ = batch.fetch_and_add(addr, rng.random()),
    }
}

/// Random verbs, calls and sleeps. Every failure is followed by a reconnect.
async fn wander(rpc: Rpc, mut rng: SmallRng) {
    let lane = rpc.lane().clone();
    loop {
        match rng.random_range(0..10) {
            0 => {
                let to = at(NodeId(1 + rng.random_range(0..CLIENTS)), rng.random_range(0..LANES));
                let patience = RetryPolicy::constant(Duration::from_micros(50), 5);
                let _lost_or_not = rpc.call(to, ECHO, &rng.random::<u64>().to_le_bytes(), patience);
                let _lost_or_not = _lost_or_not.await;
            }
            1 => lane.executor().sleep(Duration::from_nanos(rng.random_range(0..5000))).await,
            _ => {
                let verbs = rng.random_range(1..8);
                let done = post(&lane, |batch| {
                    (0..verbs).for_each(|_| random_verb(batch, &mut rng));
                });
                if done.await.is_err() {
                    let _again_or_not = lane.reconnect(MEMORY).await;
                }
            }
        }
    }
}

fn populate(world: &mut World) {
    for (node, number) in (1..=CLIENTS).flat_map(|node| (0..LANES).map(move |lane| (node, lane))) {
        let env = world.env(NodeId(node));
        Running::default().start(world, at(NodeId(node), number), |lane: Lane| async move {
            let rpc = Rpc::new(lane.clone());
            rpc.serve(ECHO, Box::new(|responder, request| responder.respond(request)));
            for coroutine in 0..3 {
                let rng = env.rng(u64::from(number) * 8 + coroutine);
                lane.executor().spawn(wander(rpc.clone(), rng));
            }
        });
    }
}

/// Runs a seed: the trace hash, the number of events, and the faults.
fn run(seed: u64, time: Duration) -> (u64, u64, String) {
    let mut world = world(stormy(seed));
    populate(&mut world);
    world.run_until(time).expect("no limit is set");
    (world.trace_hash(), world.events(), format!("{:?}", world.faults()))
}

#[test]
fn one_seed_gives_one_run() {
    let long = Duration::from_millis(60);
    let (hash, events, faults) = run(7, long);
    assert!(events > 100_000, "only {events} events");
    assert_eq!(run(7, long), (hash, events, faults));
    for seed in 8..16 {
        assert_ne!(run(seed, Duration::from_millis(1)).0, run(7, Duration::from_millis(1)).0);
    }
}

/// The hash is the same in debug and release builds: it changes only with the model, the hashed
/// values, or this test.
#[test]
fn the_hash_does_not_depend_on_how_it_was_compiled() {
    let (hash, events, _) = run(1, Duration::from_millis(20));
    assert_eq!((format!("{hash:016x}").as_str(), events), EXPECTED, "the model has changed");
}

const EXPECTED: (&str, u64) = ("471472d06bb5776a", 34397);

#[test]
fn listening_changes_nothing() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let mut quiet = world(stormy(3));
    let mut heard = world(stormy(3));
    let into = Arc::clone(&lines);
    heard.trace_to(Box::new(move |event| {
        into.lock().expect("one thread").push(event.to_string());
    }));
    for world in [&mut quiet, &mut heard] {
        populate(world);
        world.run_until(Duration::from_millis(10)).expect("no limit is set");
    }
    assert_eq!(quiet.trace_hash(), heard.trace_hash());
    let lines = lines.lock().expect("one thread");
    for part in ["READ 64B @n0/r0+", "CAS ", "begins, torn", "message", "fault: Cut", "completed"] {
        assert!(lines.iter().any(|line| line.contains(part)), "nothing about {part}");
    }
}

#[test]
fn every_fault_strikes_in_a_storm() {
    let mut world = world(stormy(5));
    populate(&mut world);
    world.run_until(Duration::from_millis(60)).expect("no limit is set");
    let missing: Vec<_> = world.faults().by_kind().into_iter().filter(|kind| kind.1 == 0).collect();
    let unused = ["slowdowns", "crashes", "restarts"].map(|kind| (kind, 0));
    assert_eq!(missing, unused);
}
