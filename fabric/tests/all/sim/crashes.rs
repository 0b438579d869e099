//! Crashes and restarts, at any boundary.

use std::collections::BTreeSet;
use std::time::Duration;

use lotus_fabric::ids::Epoch;
use lotus_fabric::lane::Lane;
use lotus_fabric::region::Rights;
use lotus_fabric::sim::{Config, Fault, MemoryFate, Scheduled, Stop, When, World};
use lotus_fabric::transport::Fabric;
use lotus_fabric::verbs::VerbError;

use super::{
    CLIENT, MEMORY, OTHER, REGION, REGION_BYTES, Running, at, ideal, open, peek, post, read,
    run_alone, word, world, write,
};

const TIME: Duration = Duration::from_millis(20);

/// Writes 1, 2, 3 … to successive words, in batches of four.
async fn count_up(lane: Lane) {
    for first in (0..).step_by(4) {
        let batch = |batch: &mut lotus_fabric::lane::Batch| {
            (first..first + 4).for_each(|index| batch.write_word(word(index), index + 1));
        };
        if post(&lane, batch).await.is_err() {
            return;
        }
    }
}

fn crashing(seed: u64, when: When) -> World {
    let fault = Fault::Crash { node: CLIENT, memory: MemoryFate::Lost };
    let mut world = world(Config { schedule: vec![Scheduled { when, fault }], ..ideal(seed, 3) });
    Running::default().start(&mut world, at(CLIENT, 0), count_up);
    world
}

/// Number of words written: always a prefix, because all go over one connection.
fn written(world: &World) -> u64 {
    let count = (0..).find(|index| peek(world, *index) == 0).expect("the count ends");
    assert_eq!(peek(world, count + 1), 0, "a later verb landed without an earlier one");
    count
}

#[test]
fn a_client_crashes_at_any_verb_and_the_seed_says_what_still_lands() {
    let mut landed = BTreeSet::new();
    for seed in 0..20 {
        for count in 5..9 {
            let mut world = crashing(seed, When::AfterVerbs { node: CLIENT, count });
            assert_eq!(world.run_until(TIME), Ok(Stop::Crashed(CLIENT)));
            assert_eq!(written(&world), count, "the crash came late");
            assert_eq!(world.run_until(TIME), Ok(Stop::Done));
            landed.insert(written(&world) - count);
        }
    }
    // The batch in flight has 0 to 3 verbs left, and any number of them may land.
    assert_eq!(landed, BTreeSet::from([0, 1, 2, 3]));
}

#[test]
fn a_client_crashes_at_a_message() {
    let fault = Fault::Crash { node: CLIENT, memory: MemoryFate::Lost };
    let when = When::AfterMessages { node: CLIENT, count: 3 };
    let mut world = world(Config { schedule: vec![Scheduled { when, fault }], ..ideal(1, 3) });
    Running::default().start(&mut world, at(CLIENT, 0), async |lane: Lane| {
        for round in 1.. {
            lane.send(at(MEMORY, 0), b"one more");
            write(&lane, word(0), round).await;
        }
    });
    assert_eq!(world.run_until(TIME), Ok(Stop::Crashed(CLIENT)));
    world.run_until(TIME).expect("no limit");
    assert!((2..=3).contains(&peek(&world, 0)), "{}", peek(&world, 0));
    assert_eq!(world.faults().crashes, 1);
}

#[test]
fn a_crashed_client_comes_back_with_new_executors() {
    let mut world = crashing(1, When::At(Duration::from_micros(50)));
    assert_eq!(world.run_until(TIME), Ok(Stop::Crashed(CLIENT)));
    world.fabric().fence(MEMORY, CLIENT, Epoch(2)).expect("both exist");
    let frozen = written(&world);
    world.restart(CLIENT).expect("the node exists");
    world.run_until(TIME).expect("no limit");
    assert_eq!(written(&world), frozen, "a verb of the old life came after the fence");
    let mut executor = lotus_fabric::exec::Executor::new(world.env(CLIENT));
    // The same lane, in a newer epoch.
    let waker = executor.handle().waker();
    let transport = world.fabric().open_lane(at(CLIENT, 0), Epoch(2), waker).expect("free");
    let lane = Lane::new(at(CLIENT, 0), executor.handle().clone(), transport);
    executor.add_driver(lane.driver());
    executor.handle().spawn(async move { write(&lane, word(1000), 5).await });
    let core = world.add_core(CLIENT, executor);
    world.run_for(TIME).expect("no limit");
    assert_eq!(world.executor(core).expect("alive").live_tasks(), 0);
    assert_eq!(peek(&world, 1000), 5);
}

#[test]
fn a_memory_node_crashes_and_loses_its_memory_or_not() {
    for memory in [MemoryFate::Lost, MemoryFate::Kept] {
        let mut world = world(ideal(1, 3));
        run_alone(&mut world, at(CLIENT, 0), async |lane| write(&lane, word(0), 7).await);
        world.fabric().fence(MEMORY, OTHER, Epoch(2)).expect("both exist");
        world.crash(MEMORY, memory).expect("the node exists");
        run_alone(&mut world, at(CLIENT, 0), async |lane| {
            let error = post(&lane, |batch| batch.write_word(word(0), 8)).await;
            assert_eq!(error.expect_err("it is down").first().error, VerbError::Unreachable);
        });
        world.restart(MEMORY).expect("the node exists");
        let again = world.fabric().register(MEMORY, REGION, REGION_BYTES, Rights::ALL);
        assert_eq!(again.is_ok(), memory == MemoryFate::Lost);
        // Fences are state of the process, as memory is.
        let fence = world.fabric().refused_below(MEMORY, OTHER);
        assert_eq!(fence, Some(if memory == MemoryFate::Lost { Epoch(0) } else { Epoch(2) }));
        let found = run_alone(&mut world, at(CLIENT, 0), async |lane| read(&lane, word(0)).await);
        assert_eq!(found, if memory == MemoryFate::Lost { 0 } else { 7 });
    }
}

/// Regression: it never was, so who tried again outside of time did so for ever.
#[test]
fn a_reconnect_outside_of_time_is_answered() {
    let mut world = world(ideal(1, 3));
    let reconnected = |world: &World| {
        let (mut executor, lane) = open(world.fabric(), at(CLIENT, 0));
        executor.run(lane.reconnect(MEMORY))
    };
    assert_eq!(reconnected(&world), Ok(()));
    world.fabric().fence(MEMORY, CLIENT, Epoch(2)).expect("both exist");
    assert_eq!(reconnected(&world), Err(VerbError::Revoked));
    world.crash(MEMORY, MemoryFate::Lost).expect("the node exists");
    assert_eq!(reconnected(&world), Err(VerbError::Unreachable));
}

/// Regression: an audit that acted as the first compute node reached nothing once that was lost.
#[test]
fn a_lane_from_before_a_crash_reaches_nothing_and_one_from_after_it_does() {
    let mut world = world(ideal(1, 3));
    run_alone(&mut world, at(CLIENT, 0), async |lane| write(&lane, word(0), 7).await);
    let (mut before, old) = open(world.fabric(), at(CLIENT, 1));
    world.crash(CLIENT, MemoryFate::Kept).expect("the node exists");
    let error = before.run(post(&old, |batch| batch.write_word(word(0), 8)));
    assert_eq!(error.expect_err("it is down").first().error, VerbError::Unreachable);
    let (mut after, new) = open(world.fabric(), at(CLIENT, 2));
    assert_eq!(after.run(read(&new, word(0))), 7);
}

/// Even after the quickest restart its queue pairs are gone.
#[test]
fn connections_do_not_survive_a_restart_of_the_target() {
    let down = Scheduled {
        when: When::At(Duration::from_micros(100)),
        fault: Fault::Crash { node: MEMORY, memory: MemoryFate::Kept },
    };
    let up = Scheduled {
        when: When::At(Duration::from_micros(101)),
        fault: Fault::Restart { node: MEMORY },
    };
    let mut world = world(Config { schedule: vec![down, up], ..ideal(1, 3) });
    let running = Running::default();
    running.start(&mut world, at(CLIENT, 0), async |lane: Lane| {
        write(&lane, word(0), 1).await;
        lane.executor().sleep(Duration::from_micros(200)).await;
        let error = post(&lane, |batch| batch.write_word(word(0), 2)).await;
        assert!(error.expect_err("the connection is gone").first().error.outcome_unknown());
        lane.reconnect(MEMORY).await.expect("the node is up again");
        write(&lane, word(0), 3).await;
    });
    assert_eq!(world.run_until(TIME), Ok(Stop::Crashed(MEMORY)));
    assert_eq!(world.run_until(TIME), Ok(Stop::Restarted(MEMORY)));
    running.finish(&mut world);
    assert_eq!(peek(&world, 0), 3);
}
