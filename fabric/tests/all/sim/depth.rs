//! Initiator depth: READs and atomics beyond it, and what is behind them, wait for an answer.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lotus_fabric::ids::RemoteAddr;
use lotus_fabric::lane::Batch;
use lotus_fabric::region::Rights;
use lotus_fabric::sim::{Config, Interleaving, Profile, TraceEventKind};
use lotus_fabric::transport::Fabric;

use super::{
    CLIENT, MEMORY, OTHER, REGION, REGION_BYTES, Running, at, post, read, run_alone, world,
};

/// NICs that issue a verb in 100 ns and serve any number at once, 1 us away from one another.
fn profile(depth: Option<u32>) -> Profile {
    const IDEAL: &str = include_str!("../../../profiles/ideal.toml");
    let (inbound, outbound) = IDEAL.split_once("[outbound]").expect("it has one");
    let text = inbound.to_owned() + "[outbound]" + &outbound.replacen("inf", "10", 4);
    let mut text = text
        .replace("delay_ns = { value = 100,", "delay_ns = { value = 1000,")
        .replace("jitter_ns = { value = 20,", "jitter_ns = { value = 0,");
    if let Some(depth) = depth {
        text += "\n[connection]\ninitiator_depth = ";
        text += &format!("{{ value = {depth}, source = \"a test\" }}");
    }
    Profile::parse("depth", text.as_bytes()).expect("well-formed")
}

fn config(depth: Option<u32>, interleaving: Interleaving) -> Config {
    Config { interleaving, ..Config::new(1, 3, profile(depth)) }
}

/// Adds a verb: READ, WRITE, compare-and-swap or fetch-and-add, or a READ of the other node.
fn add(batch: &mut Batch, verb: char) {
    let addr = |node| RemoteAddr::new(node, REGION, 8);
    match verb {
        'r' => _ = batch.read(addr(MEMORY), 8),
        'w' => batch.write_word(addr(MEMORY), 1),
        'c' => _ = batch.compare_and_swap(addr(MEMORY), 0, 1),
        'f' => _ = batch.fetch_and_add(addr(MEMORY), 1),
        'o' => _ = batch.read(addr(OTHER), 8),
        other => panic!("{other} is no verb"),
    }
}

/// Posts all batches, words of verbs, in one turn. Returns when verbs took effect, in nanoseconds
/// since the first one did, and how long all of it took.
fn times(config: Config, batches: &str) -> (Vec<u128>, Duration) {
    let mut world = world(config);
    world.fabric().register(OTHER, REGION, REGION_BYTES, Rights::ALL).expect("maps");
    let found = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&found);
    world.trace_to(Box::new(move |event| {
        if let TraceEventKind::Applied { .. } = event.what {
            into.lock().expect("one thread").push(event.at.as_nanos());
        }
    }));
    let batches: Vec<String> = batches.split(' ').map(str::to_owned).collect();
    run_alone(&mut world, at(CLIENT, 0), async move |lane| {
        let posted: Vec<_> = batches
            .iter()
            .map(|verbs| {
                let mut batch = lane.batch();
                verbs.chars().for_each(|verb| add(&mut batch, verb));
                batch.post()
            })
            .collect();
        for batch in posted {
            batch.await.expect("nothing fails");
        }
    });
    let found = found.lock().expect("one thread");
    (found.iter().map(|at| at - found[0]).collect(), world.now())
}

#[test]
fn verbs_beyond_the_depth_leave_when_the_oldest_is_answered() {
    // A verb is answered 2 us after it left, and the next one needs 100 ns to leave.
    let cases: [(Option<u32>, &str, &[u128]); 11] = [
        (None, "rrrrr", &[0, 100, 200, 300, 400]),
        (Some(5), "rrrrr", &[0, 100, 200, 300, 400]),
        (Some(2), "rrrrr", &[0, 100, 2100, 2200, 4200]),
        // Atomics count like READs, WRITEs do not.
        (Some(1), "rfc", &[0, 2100, 4200]),
        (Some(1), "wwrww", &[0, 100, 200, 300, 400]),
        // A WRITE leaves behind the READ that waits, one in front of it does not wait.
        (Some(2), "rrrww", &[0, 100, 2100, 2200, 2300]),
        (Some(1), "rwrw", &[0, 100, 2100, 2200]),
        // The same over several batches.
        (Some(2), "rrr ww", &[0, 100, 2100, 2200, 2300]),
        (Some(2), "rr r w rw", &[0, 100, 2100, 2200, 2300, 2400]),
        (Some(1), "w w r w", &[0, 100, 200, 300]),
        // Another connection has a depth of its own.
        (Some(1), "ro", &[0, 100]),
    ];
    for (depth, batches, expected) in cases {
        let (found, took) = times(config(depth, Interleaving::PerVerb), batches);
        assert_eq!(found, expected, "{depth:?}, {batches}");
        let (_, took_together) = times(config(depth, Interleaving::PerBatch), batches);
        assert_eq!(took_together, took, "{depth:?}, {batches}");
    }
}

#[test]
fn verbs_that_take_effect_together_are_those_that_leave_together() {
    let (found, _) = times(config(Some(2), Interleaving::PerBatch), "rrrrr");
    assert_eq!(found, [0, 0, 2100, 2100, 4200]);
}

#[test]
fn a_verb_is_not_late_because_it_has_waited() {
    for interleaving in [Interleaving::PerVerb, Interleaving::PerBatch] {
        let verb_timeout = Duration::from_micros(3);
        let config = Config { verb_timeout, ..config(Some(1), interleaving) };
        let (found, took) = times(config, "rrrrrrrr rrrr w");
        assert_eq!(found.len(), 13, "{interleaving:?}");
        assert!(took > Duration::from_micros(24), "{took:?}");
    }
}

/// The target's server is not booked for verbs that are still to leave.
#[test]
fn the_target_serves_others_while_a_verb_waits() {
    const ROUNDS: u32 = 20;
    let mut world = world(config(Some(1), Interleaving::PerBatch));
    let running = Running::default();
    let worst = Rc::new(Cell::new(Duration::ZERO));
    running.start(&mut world, at(CLIENT, 0), async move |lane| {
        for _ in 0..ROUNDS {
            post(&lane, |batch| (0..8).for_each(|_| add(batch, 'r'))).await.expect("works");
        }
    });
    let (into, fabric) = (Rc::clone(&worst), world.fabric().clone());
    running.start(&mut world, at(OTHER, 0), async move |lane| {
        for _ in 0..ROUNDS {
            let begun = fabric.now();
            read(&lane, super::word(0)).await;
            into.set(into.get().max(fabric.now() - begun));
        }
    });
    running.finish(&mut world);
    assert!(worst.get() < Duration::from_nanos(2200), "{worst:?}");
}

/// A deep queue of READs on one connection of ConnectX-3s: four in each round trip.
#[test]
fn one_connection_reads_no_more_than_its_depth_in_a_round_trip() {
    const CX3: &str = include_str!("../../../profiles/cx3-56g.toml");
    let limit = "[connection]\ninitiator_depth = { value = 4, source = \"a test\" }\n";
    let limited = Profile::parse("cx3", (CX3.to_owned() + limit).as_bytes());
    for (profile, least, most) in
        [(Profile::named("cx3-56g"), 10.0, 22.0), (limited, 4.0 / 2.0, 4.0 / 1.7)]
    {
        let mut world = world(Config::new(1, 2, profile.expect("well-formed")));
        const READS: usize = 2000;
        run_alone(&mut world, at(CLIENT, 0), async move |lane| {
            post(&lane, |batch| (0..READS).for_each(|_| add(batch, 'r'))).await.expect("works");
        });
        let mops = READS as f64 / world.now().as_secs_f64() / 1e6;
        assert!((least..most).contains(&mops), "{mops} is not {least} to {most}");
    }
}
