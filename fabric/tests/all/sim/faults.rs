//! Every kind of fault is visible to its victims.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::NodeId;
use lotus_fabric::lane::Lane;
use lotus_fabric::sim::{Config, Fault, Limits, Rates, Scheduled, SimError, Stop, When, World};
use lotus_fabric::transport::Fabric;
use lotus_fabric::verbs::VerbError;
use lotus_fabric::wide::WideSwap;

use super::{CLIENT, MEMORY, Running, at, ideal, peek, post, read, run_alone, word, world, write};

const OTHER: NodeId = NodeId(2);

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn with_rates(rates: Rates) -> World {
    world(Config { rates, ..ideal(1, 3) })
}

/// Sends a thousand numbered messages, one every microsecond; returns the numbers that arrive.
fn messages(world: &mut World) -> Vec<u64> {
    let (running, heard) = (Running::default(), Rc::new(RefCell::new(Vec::new())));
    let into = Rc::clone(&heard);
    running.start(world, at(OTHER, 0), |lane: Lane| async move {
        lane.on_message(Box::new(move |_, bytes| {
            let number = bytes.try_into().expect("eight bytes");
            into.borrow_mut().push(u64::from_le_bytes(number));
        }));
    });
    running.start(world, at(CLIENT, 0), |lane: Lane| async move {
        for number in 0..1000_u64 {
            lane.executor().sleep(micros(1)).await;
            lane.send(at(OTHER, 0), &number.to_le_bytes());
        }
    });
    running.finish(world);
    world.run_for(micros(1000)).expect("the rest arrives");
    heard.take()
}

#[test]
fn messages_are_lost_duplicated_delayed_and_overtaken() {
    assert_eq!(messages(&mut with_rates(Rates::default())), Vec::from_iter(0..1000));

    let mut world = with_rates(Rates { message_loss: 0.2, ..Rates::default() });
    let heard = messages(&mut world);
    assert!((700..900).contains(&heard.len()) && heard.is_sorted(), "{} heard", heard.len());
    assert_eq!(world.faults().messages_lost, 1000 - heard.len() as u64);

    let mut world = with_rates(Rates { message_duplication: 0.2, ..Rates::default() });
    let heard = messages(&mut world);
    assert!((1100..1300).contains(&heard.len()), "{} heard", heard.len());
    assert_eq!(world.faults().messages_duplicated, heard.len() as u64 - 1000);

    let delayed = Rates { message_delay: 0.2, message_delay_max: micros(50), ..Rates::default() };
    let heard = messages(&mut with_rates(delayed));
    assert!(heard.len() == 1000 && !heard.is_sorted(), "nobody was overtaken");
}

#[test]
fn a_cut_stops_one_direction_until_it_is_mended() {
    let mut cut = with_rates(Rates::default());
    cut.inject(Fault::Cut { from: CLIENT, to: OTHER }).expect("both exist");
    assert!(messages(&mut cut).is_empty());
    assert_eq!(cut.faults().messages_cut_off, 1000);
    let mut cut = with_rates(Rates::default());
    cut.inject(Fault::Cut { from: OTHER, to: CLIENT }).expect("both exist");
    assert_eq!(messages(&mut cut).len(), 1000);
    let mend = |time, fault| Scheduled { when: When::At(micros(time)), fault };
    let schedule =
        vec![mend(300, Fault::Isolate { node: OTHER }), mend(600, Fault::Rejoin { node: OTHER })];
    let heard = messages(&mut world(Config { schedule, ..ideal(1, 3) }));
    assert!((690..710).contains(&heard.len()), "{} heard", heard.len());
}

/// If the path to the target is cut, nothing lands. If the path back is cut, the verb has landed,
/// but the initiator does not know.
#[test]
fn a_verb_across_a_cut_has_an_unknown_outcome() {
    for (from, to, landed) in [(CLIENT, MEMORY, 0), (MEMORY, CLIENT, 7)] {
        let mut world = world(ideal(1, 3));
        world.inject(Fault::Cut { from, to }).expect("both exist");
        let fabric = world.fabric().clone();
        run_alone(&mut world, at(CLIENT, 0), async move |lane| {
            let error = post(&lane, |batch| batch.write_word(word(0), 7)).await;
            let error = error.expect_err("the way is cut").first().error;
            assert_eq!(error, VerbError::Unreachable);
            assert_eq!(lane.reconnect(MEMORY).await, Err(VerbError::Unreachable));
            fabric.inject(Fault::Mend { from, to }).expect("both exist");
            lane.reconnect(MEMORY).await.expect("the way is open");
            assert_eq!(read(&lane, word(0)).await, landed);
        });
        assert_eq!(world.faults().connections_timed_out, 2);
    }
}

/// A cut that is repaired in time is only a delay: the NIC tries again.
#[test]
fn a_short_cut_only_delays() {
    let mut world = world(ideal(1, 3));
    let fabric = world.fabric().clone();
    world.inject(Fault::Isolate { node: MEMORY }).expect("it exists");
    let healer = Running::default();
    healer.start(&mut world, at(OTHER, 0), async move |lane: Lane| {
        lane.executor().sleep(micros(1500)).await;
        fabric.inject(Fault::Rejoin { node: MEMORY }).expect("it exists");
    });
    run_alone(&mut world, at(CLIENT, 0), async move |lane| write(&lane, word(0), 1).await);
    assert!(world.now() > micros(1500) && world.now() < micros(4000), "{:?}", world.now());
}

/// H22: a WRITE is held up, its initiator times out, and then it lands over a later write, unless
/// the connection was re-made first.
#[test]
fn a_stalled_write_lands_late_unless_the_connection_was_made_anew() {
    for reconnect in [false, true] {
        let hour = Duration::from_secs(3600);
        let rates = Rates { verb_delay: 1.0, verb_delay_max: hour, ..Rates::default() };
        let mut world = with_rates(rates);
        let fabric = world.fabric().clone();
        run_alone(&mut world, at(CLIENT, 0), async move |lane| {
            let first = post(&lane, |batch| batch.write_word(word(0), 7));
            let error = first.await.expect_err("held up").first().error;
            assert_eq!(error, VerbError::TimedOut);
            assert!(fabric.now() < micros(5000), "{:?}", fabric.now());
            fabric.inject(Fault::SetRates(Rates::default())).expect("names no node");
            if reconnect {
                lane.reconnect(MEMORY).await.expect("the node answers");
            }
        });
        assert_eq!(peek(&world, 0), 0, "not yet");
        world.run_for(hour).expect("no limit");
        assert_eq!(peek(&world, 0), if reconnect { 0 } else { 7 });
        let faults = world.faults();
        let stragglers = (faults.stragglers_landed, faults.stragglers_refused);
        assert_eq!(stragglers, if reconnect { (0, 1) } else { (1, 0) });
    }
}

/// Atomics on 16 bytes change both words in one step, also after their batch is gone.
#[test]
fn wide_atomics_land_whole_after_their_initiator_has_given_up() {
    let mut world = world(ideal(1, 3));
    let stall = Fault::Stall { from: CLIENT, to: MEMORY, lasting: micros(6000) };
    world.inject(stall).expect("both exist");
    run_alone(&mut world, at(CLIENT, 0), async move |lane| {
        let low = u128::from(u64::MAX);
        let swap = WideSwap { compare: 0, compare_mask: !0, swap: low, swap_mask: low };
        let both = post(&lane, |batch| {
            batch.wide_compare_and_swap(word(2), swap);
            batch.wide_fetch_and_add(word(2), 7 << 64 | 2, 1 << 65);
        });
        let error = both.await.expect_err("stalled").first().error;
        assert!(error.outcome_unknown(), "{error:?}");
    });
    assert_eq!([1, 2, 3, 4].map(|index| peek(&world, index)), [0, 0, 0, 0], "not yet");
    world.run_for(micros(5000)).expect("no limit");
    assert_eq!(world.faults().stragglers_landed, 2);
    // A carry goes from the low word into the high one, whose two lowest bits are a field.
    assert_eq!([1, 2, 3, 4].map(|index| peek(&world, index)), [0, 1, 4, 0]);
}

/// H2: the same, but the node is fenced before the WRITE lands.
#[test]
fn a_fence_refuses_stragglers() {
    let mut world = world(ideal(1, 3));
    let stall = Fault::Stall { from: CLIENT, to: MEMORY, lasting: micros(6000) };
    world.inject(stall).expect("both exist");
    run_alone(&mut world, at(CLIENT, 0), async move |lane| {
        post(&lane, |batch| batch.write_word(word(0), 7)).await.expect_err("stalled");
    });
    let fenced = world.fabric().fence(MEMORY, CLIENT, lotus_fabric::ids::Epoch(2));
    fenced.expect("both exist");
    world.run_for(micros(5000)).expect("no limit");
    assert_eq!((peek(&world, 0), world.faults().stragglers_refused), (0, 1));
}

/// A delayed batch delays those behind it on the connection, and changes no order.
#[test]
fn delayed_verbs_keep_their_order() {
    let rates = Rates { verb_delay: 0.3, verb_delay_max: micros(100), ..Rates::default() };
    let mut world = with_rates(rates);
    run_alone(&mut world, at(CLIENT, 0), async |lane| {
        let posted: Vec<_> = (0..1000)
            .map(|value| {
                let mut batch = lane.batch();
                let before = batch.fetch_and_add(word(0), 1);
                (value, before, batch.post())
            })
            .collect();
        for (value, before, posted) in posted {
            assert_eq!(posted.await.expect("in time").words(before), [value]);
        }
    });
    assert!(world.faults().verbs_delayed > 200);
}

/// Number of READs of a record, of a thousand, that mix two states of it.
fn mixtures(rates: Rates) -> usize {
    const WORDS: usize = 12;
    let mut world = with_rates(rates);
    let (running, mixed) = (Running::default(), Rc::new(Cell::new(0)));
    running.start(&mut world, at(OTHER, 0), async move |lane: Lane| {
        for value in 1..=1000 {
            let mut batch = lane.batch();
            let staged = batch.stage(WORDS * 8);
            batch.words_mut(staged).fill(value);
            batch.write(word(0), staged);
            batch.post().await.expect("nothing fails");
        }
    });
    let counter = Rc::clone(&mixed);
    running.start(&mut world, at(CLIENT, 0), async move |lane: Lane| {
        for _ in 0..1000 {
            let mut batch = lane.batch();
            let buffer = batch.read(word(0), WORDS * 8);
            let done = batch.post().await.expect("nothing fails");
            let words = done.words(buffer);
            counter.set(counter.get() + usize::from(words.iter().any(|word| *word != words[0])));
        }
    });
    running.finish(&mut world);
    mixed.get()
}

/// H14.
#[test]
fn torn_verbs_show_mixtures_of_two_states() {
    let span = Rates { tear_span: micros(1), ..Rates::default() };
    assert_eq!(mixtures(span.clone()), 0);
    assert!(mixtures(Rates { torn_writes: 1.0, ..span.clone() }) > 100);
    assert!(mixtures(Rates { torn_reads: 1.0, ..span.clone() }) > 100);
    for (rates, stable) in [
        (Rates { torn_writes: 1.0, ..span.clone() }, true),
        (Rates { torn_reads: 0.1, ..span }, false),
    ] {
        let world = with_rates(rates);
        let (_executor, lane) = super::open(world.fabric(), at(CLIENT, 0));
        assert_eq!(lane.capabilities().stable_reads, stable);
    }
}

#[test]
fn a_paused_node_stands_still_and_its_verbs_do_not() {
    let mut world = world(ideal(1, 3));
    let fabric = world.fabric().clone();
    run_alone(&mut world, at(CLIENT, 0), async move |lane| {
        let mut batch = lane.batch();
        batch.write_word(word(0), 1);
        let posted = batch.post();
        fabric.inject(Fault::Pause { node: CLIENT, lasting: micros(2_000_000) }).expect("exists");
        posted.await.expect("it lands meanwhile");
        assert!(fabric.now() >= micros(2_000_000), "{:?}", fabric.now());
    });
    assert_eq!(peek(&world, 0), 1);
}

#[test]
fn clocks_jump_forwards_and_never_back() {
    let mut world = world(ideal(1, 3));
    let (here, there) = (world.env(CLIENT), world.env(OTHER));
    assert_eq!(here.now(), there.now());
    world.inject(Fault::ClockJump { node: CLIENT, nanos: 1_000_000 }).expect("it exists");
    assert_eq!(here.now().since(there.now()), micros(1000));
    world.inject(Fault::ClockJump { node: CLIENT, nanos: -1_500_000 }).expect("it exists");
    // The clock has shown a later time, and stands still until that is reached again.
    assert_eq!(here.now().since(there.now()), micros(1000));
    world.run_until(micros(1400)).expect("no limit");
    assert_eq!(there.now().since(here.now()), micros(400));
    world.run_until(micros(1600)).expect("no limit");
    assert_eq!(there.now().since(here.now()), micros(500));
}

#[test]
fn a_jump_of_the_clock_makes_timers_fire() {
    let mut world = world(ideal(1, 3));
    let fabric = world.fabric().clone();
    let (running, sleeper) = (Running::default(), Running::default());
    sleeper.start(&mut world, at(CLIENT, 0), async |lane: Lane| {
        lane.executor().sleep(Duration::from_secs(1)).await;
    });
    running.start(&mut world, at(OTHER, 0), async move |lane: Lane| {
        lane.executor().sleep(micros(100)).await;
        fabric.inject(Fault::ClockJump { node: CLIENT, nanos: 1_000_000_000 }).expect("exists");
    });
    sleeper.finish(&mut world);
    assert!(world.now() < micros(200), "{:?}", world.now());
}

#[test]
fn clocks_gain_and_lose_time_and_keep_what_they_have_gained() {
    let mut world = world(ideal(1, 3));
    let (here, there) = (world.env(CLIENT), world.env(OTHER));
    let mut run_at = |ppm, until| {
        world.inject(Fault::ClockRate { node: CLIENT, ppm }).expect("it exists");
        world.run_until(micros(until)).expect("no limit");
    };
    run_at(1000, 10_000);
    assert_eq!(here.now().since(there.now()), micros(10));
    run_at(-2000, 20_000);
    assert_eq!(there.now().since(here.now()), micros(10));
    run_at(0, 30_000);
    assert_eq!(there.now().since(here.now()), micros(10));
    // Beyond the bound.
    run_at(i32::MAX, 40_000);
    assert_eq!(here.now().since(there.now()), micros(1000 - 10));
}

#[test]
fn timers_follow_a_clock_that_gains_or_loses_time() {
    for (ppm, slept) in [(100_000, 9_090), (-100_000, 11_111), (7, 9_999), (0, 10_000)] {
        let mut world = world(ideal(1, 3));
        world.inject(Fault::ClockRate { node: CLIENT, ppm }).expect("it exists");
        let sleeper = Running::default();
        sleeper.start(&mut world, at(CLIENT, 0), async |lane: Lane| {
            lane.executor().sleep(micros(10_000)).await;
        });
        sleeper.finish(&mut world);
        let found = world.now().as_micros();
        assert!((slept..=slept + 1).contains(&found), "{ppm} ppm: {found} us");
    }
}

#[test]
fn a_storm_begins_and_ends_by_schedule() {
    let storm = |time, message_loss| Scheduled {
        when: When::At(micros(time)),
        fault: Fault::SetRates(Rates { message_loss, ..Rates::default() }),
    };
    let schedule = vec![storm(200, 1.0), storm(700, 0.0)];
    let heard = messages(&mut world(Config { schedule, ..ideal(1, 3) }));
    assert!((490..510).contains(&heard.len()), "{} heard", heard.len());
}

#[test]
fn what_waits_for_a_count_can_be_disarmed() {
    let lossy = Fault::SetRates(Rates { message_loss: 1.0, ..Rates::default() });
    let lossy = Scheduled { when: When::AfterMessages { node: CLIENT, count: 500 }, fault: lossy };
    let disarm = |time| Scheduled { when: When::At(micros(time)), fault: Fault::Disarm };
    for (time, expected) in [(300, 995..1_001), (700, 490..510)] {
        let schedule = vec![lossy.clone(), disarm(time)];
        let heard = messages(&mut world(Config { schedule, ..ideal(1, 3) }));
        assert!(expected.contains(&heard.len()), "{} heard", heard.len());
    }
}

#[test]
fn runs_end_at_their_limits() {
    let limited = |limits| {
        let mut world = world(Config { limits, ..ideal(1, 3) });
        Running::default().start(&mut world, at(CLIENT, 0), async |lane: Lane| {
            loop {
                lane.send(at(OTHER, 9), &[0; 1000]);
                lane.executor().yield_now().await;
            }
        });
        world.run_while(|| true).expect_err("a limit is set")
    };
    let none = Limits::default();
    let error = limited(Limits { events: 1000, ..none });
    assert!(matches!(error, SimError::TooManyEvents { limit: 1000, .. }), "{error}");
    let error = limited(Limits { bytes: super::REGION_BYTES + 50_000, ..none });
    assert!(matches!(error, SimError::TooMuchMemory { .. }), "{error}");
    let error = limited(Limits { time: micros(50), ..none });
    assert_eq!(error, SimError::TooLong { limit: micros(50) });
    let world = World::new(Config { limits: Limits { bytes: 100, ..none }, ..ideal(1, 3) });
    let fabric = world.expect("valid").fabric().clone();
    let rights = lotus_fabric::region::Rights::ALL;
    let refusal = fabric.register(MEMORY, super::REGION, 4096, rights).expect_err("too much");
    assert!(refusal.to_string().contains("limited to 100 bytes"), "{refusal}");
}

#[test]
fn a_deadlock_is_named() {
    let mut world = world(ideal(1, 3));
    Running::default().start(&mut world, at(CLIENT, 0), async |lane: Lane| {
        write(&lane, word(0), 1).await;
        lane.executor().suspend().await;
    });
    let error = world.run_while(|| true).expect_err("nobody will ever wake it");
    assert!(matches!(error, SimError::Deadlock { .. }), "{error}");
    assert_eq!(world.run_until(micros(5000)), Ok(Stop::Done), "waiting is no deadlock");
    assert_eq!(world.now(), micros(5000));
}

/// The longest durations mean "never", and cause no overflow.
#[test]
fn endless_delays_and_timeouts_never_end() {
    let rates = Rates {
        message_delay: 1.0,
        message_delay_max: Duration::MAX,
        verb_delay: 1.0,
        verb_delay_max: Duration::MAX,
        ..Rates::default()
    };
    let mut world = world(Config { rates, verb_timeout: Duration::MAX, ..ideal(1, 3) });
    let fault = Fault::Stall { from: CLIENT, to: MEMORY, lasting: Duration::MAX };
    world.inject(fault).expect("both exist");
    Running::default().start(&mut world, at(CLIENT, 0), async |lane: Lane| {
        lane.send(at(OTHER, 0), b"never");
        write(&lane, word(0), 1).await;
    });
    world.run_for(Duration::from_secs(3600)).expect("no limit");
    assert_eq!(peek(&world, 0), 0);
}

#[test]
fn unknown_nodes_are_refused() {
    let beyond = NodeId(3);
    let fault = Fault::Pause { node: beyond, lasting: micros(1) };
    let refused = Some(SimError::UnknownNode(beyond));
    assert_eq!(world(ideal(1, 3)).inject(fault.clone()).err(), refused);
    let by_count = When::AfterVerbs { node: beyond, count: 1 };
    let fine = Fault::Isolate { node: CLIENT };
    for (when, fault) in [(When::At(micros(1)), fault), (by_count, fine)] {
        let schedule = vec![Scheduled { when, fault }];
        assert_eq!(World::new(Config { schedule, ..ideal(1, 3) }).err(), refused);
    }
}

/// A channel between two cores: a wake from outside the executor ends its sleep.
#[test]
fn foreign_wakes_reach_sleeping_cores() {
    let mut world = world(ideal(1, 3));
    let (sender, receiver) = async_channel::bounded::<u32>(1);
    let running = Running::default();
    running.start(&mut world, at(OTHER, 0), async move |_: Lane| {
        assert_eq!(receiver.recv().await, Ok(7));
    });
    running.start(&mut world, at(CLIENT, 0), async move |lane: Lane| {
        lane.executor().sleep(micros(100)).await;
        sender.send(7).await.expect("somebody listens");
    });
    running.finish(&mut world);
    assert!(world.now() < micros(102), "{:?}", world.now());
}
