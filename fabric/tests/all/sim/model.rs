//! The NIC model reproduces the figures that the profile was calibrated on (`docs/simulation.md`).

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use lotus_fabric::ids::{NodeId, RemoteAddr};
use lotus_fabric::lane::{Batch, Lane};
use lotus_fabric::region::Rights;
use lotus_fabric::sim::{
    Config, Fault, Interleaving, NodeUse, Profile, Report, Resource, Served, World,
};
use lotus_fabric::transport::Fabric;

use super::{
    CLIENT, MEMORY, OTHER, REGION, REGION_BYTES, Running, at, post, run_alone, word, world,
};

/// Enough clients to make the memory node the bottleneck.
const CLIENTS: u16 = 4;
const LANES: u16 = 4;
const COROUTINES: usize = 4;
const MEASURED: Duration = Duration::from_millis(2);

fn cx3(interleaving: Interleaving) -> World {
    let profile = Profile::named("cx3-56g").expect("built in");
    world(Config { interleaving, ..Config::new(1, 1 + CLIENTS, profile) })
}

/// Adds a verb on the word of that number to a batch.
type Verb = fn(&mut Batch, u64);

/// Throughput of many coroutines that post batches of the same verb for ever.
struct Flood {
    mops: f64,
    report: Report,
}

fn flood(world: &mut World, verbs: u64, verb: Verb) -> Flood {
    let running = Running::default();
    let done = Rc::new(Cell::new(0_u64));
    for (node, lane) in (0..CLIENTS).flat_map(|node| (0..LANES).map(move |lane| (node, lane))) {
        let first = u64::from(node * LANES + lane) * 64;
        running.start(world, at(NodeId(CLIENT.0 + node), lane), |lane| {
            let count = Rc::clone(&done);
            async move {
                for _ in 0..COROUTINES {
                    let (lane, count) = (lane.clone(), Rc::clone(&count));
                    lane.executor().clone().spawn(async move {
                        loop {
                            let build = |batch: &mut Batch| {
                                (first..first + verbs).for_each(|index| verb(batch, index));
                            };
                            post(&lane, build).await.expect("nothing fails");
                            count.set(count.get() + verbs);
                        }
                    });
                }
            }
        });
    }
    world.run_for(MEASURED).expect("warms up");
    world.start_measuring();
    let warm = done.get();
    world.run_for(MEASURED).expect("runs");
    let mops = (done.get() - warm) as f64 / MEASURED.as_secs_f64() / 1e6;
    Flood { mops, report: world.report() }
}

#[track_caller]
fn assert_near(found: f64, expected: f64, part: f64) {
    assert!((found / expected - 1.0).abs() <= part, "{found} is not {expected}");
}

#[test]
fn floods_of_small_verbs_run_at_the_published_rates() {
    let read = |batch: &mut Batch, index| _ = batch.read(word(index), 8);
    let write = |batch: &mut Batch, index| batch.write_word(word(index), 1);
    let swap = |batch: &mut Batch, index| _ = batch.compare_and_swap(word(index), 0, 1);
    let cases: [(Verb, f64, Resource); 3] = [
        (read, 26.0, Resource::Inbound(MEMORY)),
        (write, 35.0, Resource::Inbound(MEMORY)),
        (swap, 2.5, Resource::AtomicUnit(MEMORY)),
    ];
    for interleaving in [Interleaving::PerVerb, Interleaving::PerBatch] {
        for (verb, mops, bound) in cases {
            let found = flood(&mut cx3(interleaving), 16, verb);
            assert_near(found.mops, mops, 0.03);
            let most = found.report.bound().expect("something was used");
            assert_eq!(most.resource, bound, "{interleaving:?}");
            assert!(most.busy > 0.97, "{most:?}");
        }
    }
}

/// The profile `cx3-56g` with another atomic unit, which may take atomics on 16 bytes.
fn cx3_with(atomic_unit: &str) -> World {
    const CX3: &str = include_str!("../../../profiles/cx3-56g.toml");
    let (before, rest) = CX3.split_once("[atomic_unit]").expect("it has one");
    let (_, after) = rest.split_once("[link]").expect("it has one");
    let wide = "[extended]\nwide = { value = true, source = \"a test\" }";
    let text = format!("{before}[atomic_unit]\n{atomic_unit}\n[link]{after}\n{wide}");
    let profile = Profile::parse("cx3", text.as_bytes()).expect("well-formed");
    world(Config { interleaving: Interleaving::PerBatch, ..Config::new(1, 1 + CLIENTS, profile) })
}

#[test]
fn atomics_on_one_word_are_slower_than_on_many_if_the_profile_says_so() {
    let unit = "mops = { value = 20, source = \"a test\" }\n\
                same_address_mops = { value = 2.6, source = \"a test\" }";
    let many: Verb = |batch, index| _ = batch.fetch_and_add(word(index), 1);
    let one: Verb = |batch, _| _ = batch.fetch_and_add(word(0), 1);
    for (verb, mops, bound) in
        [(many, 20.0, Resource::AtomicUnit(MEMORY)), (one, 2.6, Resource::HottestWord(MEMORY))]
    {
        let found = flood(&mut cx3_with(unit), 16, verb);
        assert_near(found.mops, mops, 0.03);
        assert_eq!(found.report.bound().map(|most| most.resource), Some(bound));
    }
    // READs of the word do not wait.
    let reads: Verb = |batch, index| match index % 16 {
        0 => _ = batch.fetch_and_add(word(0), 1),
        _ => _ = batch.read(word(0), 8),
    };
    assert_near(flood(&mut cx3_with(unit), 16, reads).mops, 26.0, 0.03);
}

#[test]
fn wide_atomics_run_at_their_own_rate_if_the_profile_says_so() {
    let unit = "mops = { value = 20, source = \"a test\" }\n";
    let slower = unit.to_owned() + "wide_mops = { value = 8, source = \"a test\" }";
    let wide: Verb = |batch, index| _ = batch.wide_fetch_and_add(word(2 * index), 1, 0);
    let narrow: Verb = |batch, index| _ = batch.fetch_and_add(word(2 * index), 1);
    for (unit, verb, mops) in
        [(unit, wide, 20.0), (&slower, wide, 8.0), (unit, narrow, 20.0), (&slower, narrow, 20.0)]
    {
        let found = flood(&mut cx3_with(unit), 16, verb);
        assert_near(found.mops, mops, 0.03);
        let bound = found.report.bound().map(|most| most.resource);
        assert_eq!(bound, Some(Resource::AtomicUnit(MEMORY)));
    }
}

#[test]
fn wide_atomics_wait_for_those_on_either_of_their_words() {
    let unit = "mops = { value = 20, source = \"a test\" }\n\
                same_address_mops = { value = 2.6, source = \"a test\" }";
    let wide: Verb = |batch, _| _ = batch.wide_fetch_and_add(word(0), 1, 0);
    let wide_and_low: Verb = |batch, index| match index % 2 {
        0 => _ = batch.wide_fetch_and_add(word(0), 1, 0),
        _ => _ = batch.fetch_and_add(word(0), 1),
    };
    let wide_and_high: Verb = |batch, index| match index % 2 {
        0 => _ = batch.wide_fetch_and_add(word(0), 1, 0),
        _ => _ = batch.fetch_and_add(word(1), 1),
    };
    let low_and_high: Verb = |batch, index| _ = batch.fetch_and_add(word(index % 2), 1);
    let wide_and_next: Verb = |batch, index| match index % 2 {
        0 => _ = batch.wide_fetch_and_add(word(0), 1, 0),
        _ => _ = batch.wide_fetch_and_add(word(2), 1, 0),
    };
    for (verb, mops) in [
        (wide, 2.6),
        (wide_and_low, 2.6),
        (wide_and_high, 2.6),
        (low_and_high, 5.2),
        (wide_and_next, 5.2),
    ] {
        assert_near(flood(&mut cx3_with(unit), 16, verb).mops, mops, 0.03);
    }
}

#[test]
fn atomics_hold_up_other_verbs_if_the_profile_says_so() {
    let mixed: Verb = |batch, index| match index % 4 {
        0 => _ = batch.fetch_and_add(word(index), 1),
        _ => _ = batch.read(word(index), 8),
    };
    let unit = "mops = { value = 2.5, source = \"a test\" }\n";
    let apart = flood(&mut cx3_with(unit), 16, mixed);
    assert_near(apart.mops, 4.0 * 2.5, 0.03);
    let blocking = unit.to_owned() + "blocks_inbound = { value = true, source = \"a test\" }";
    let together = flood(&mut cx3_with(&blocking), 16, mixed);
    // Four requests at 26 Mops, and one atomic at 2.5.
    assert_near(together.mops, 4.0 / (4.0 / 26.0 + 1.0 / 2.5), 0.03);
    assert_eq!(together.report.bound().map(|most| most.resource), Some(Resource::Inbound(MEMORY)));
}

/// A thousand WRITEs of so many bytes by one client, posted together: the time for which they keep
/// its outbound server busy, and all the time they take.
fn time_to_write(profile: &str, bytes: usize, interleaving: Interleaving) -> [f64; 2] {
    let profile = Profile::parse("cx3", profile.as_bytes()).expect("well-formed");
    let mut world = world(Config { interleaving, ..Config::new(1, 2, profile) });
    run_alone(&mut world, at(CLIENT, 0), async move |lane| {
        let build = |batch: &mut Batch| {
            for index in 0..1000 {
                let staged = batch.stage(bytes);
                batch.write(word(16 * index), staged);
            }
        };
        post(&lane, build).await.expect("nothing fails");
    });
    let took = world.now().as_secs_f64() * 1e6;
    [world.report().busy(Resource::Outbound(CLIENT)) * took, took]
}

#[test]
fn larger_writes_are_issued_more_slowly_if_the_profile_says_so() {
    const CX3: &str = include_str!("../../../profiles/cx3-56g.toml");
    let keys = "inline_bytes = { value = 64, source = \"a test\" }\n\
                dma_ns = { value = 50, source = \"a test\" }\n[atomic_unit]";
    let limited = CX3.replace("[atomic_unit]", keys);
    for interleaving in [Interleaving::PerVerb, Interleaving::PerBatch] {
        for (bytes, more) in [(8, 0.0), (64, 0.0), (72, 50.0), (96, 50.0)] {
            let before = time_to_write(CX3, bytes, interleaving);
            let after = time_to_write(&limited, bytes, interleaving);
            for (before, after) in before.into_iter().zip(after) {
                let found = after - before;
                assert!((found - more).abs() < 0.1, "{bytes} B: {before} and {after} us");
            }
        }
    }
}

#[test]
fn large_transfers_are_bounded_by_the_link() {
    let read = |batch: &mut Batch, _| _ = batch.read(word(0), 4096);
    let write = |batch: &mut Batch, _| {
        let staged = batch.stage(4096);
        batch.write(word(0), staged);
    };
    let cases: [(Verb, Resource); 2] =
        [(read, Resource::Sending(MEMORY)), (write, Resource::Receiving(MEMORY))];
    for (verb, bound) in cases {
        let found = flood(&mut cx3(Interleaving::PerVerb), 1, verb);
        // 54.5 Gbps, in packets of 4096 + 42 bytes.
        assert_near(found.mops, 54.5e3 / 8.0 / (4096.0 + 42.0), 0.03);
        assert_eq!(found.report.bound().expect("something was used").resource, bound);
    }
}

#[test]
fn an_idle_network_takes_two_microseconds_there_and_back() {
    let verbs: [fn(&mut Batch); 3] = [
        |batch| _ = batch.read(word(0), 8),
        |batch| batch.write_word(word(0), 1),
        |batch| _ = batch.fetch_and_add(word(0), 1),
    ];
    for (verb, expected) in verbs.into_iter().zip([2.0, 2.0, 2.4]) {
        const ROUNDS: u32 = 200;
        let mut world = cx3(Interleaving::PerVerb);
        run_alone(&mut world, at(CLIENT, 0), async move |lane| {
            for _ in 0..ROUNDS {
                post(&lane, verb).await.expect("nothing fails");
            }
        });
        assert_near(world.now().as_secs_f64() * 1e6 / f64::from(ROUNDS), expected, 0.03);
    }
}

/// Two memory nodes, of which each is asked for something else.
#[test]
fn each_node_reports_what_it_has_served() {
    let profile = Profile::named("cx3-56g").expect("built in");
    let mut world = world(Config::new(1, 3, profile));
    world.fabric().register(OTHER, REGION, REGION_BYTES, Rights::ALL).expect("maps");
    let round = async |lane: Lane| {
        let there = RemoteAddr::new(OTHER, REGION, 8);
        let build = |batch: &mut Batch| {
            (0..4).for_each(|index| _ = batch.read(word(index * 64), 512));
            (0..3).for_each(|index| batch.write_word(word(index), 1));
            (0..2).for_each(|_| _ = batch.compare_and_swap(there, 0, 0));
            _ = batch.fetch_and_add(there, 1);
        };
        post(&lane, build).await.expect("nothing fails");
    };
    // What happened before the span is not part of it.
    run_alone(&mut world, at(CLIENT, 0), round);
    world.start_measuring();
    run_alone(&mut world, at(CLIENT, 1), round);
    let report = world.report();
    let nodes: Vec<NodeUse> = report.nodes().collect();
    let here = Served { reads: 4, writes: 3, ..Served::default() };
    let there = Served { compare_and_swaps: 2, fetch_and_adds: 1, ..Served::default() };
    let served = nodes.iter().map(|node| (node.node, node.served));
    let expected = [(MEMORY, here), (CLIENT, Served::default()), (OTHER, there)];
    assert_eq!(served.collect::<Vec<_>>(), expected);

    let nanos = report.elapsed.as_nanos() as f64;
    let [memory, client, other] = nodes[..] else { panic!("{nodes:?}") };
    assert_near(memory.inbound * nanos, 4.0 * 1e3 / 26.0 + 3.0 * 1e3 / 35.0, 0.01);
    assert_near(other.atomic_unit * nanos, 3.0 * 400.0, 0.01);
    assert_near(memory.sending * nanos, 4.0 * (512.0 + 42.0) * 8.0 / 54.5, 0.01);
    assert!(memory.receiving > 0.0 && memory.sending > other.sending, "{nodes:?}");
    assert_eq!((memory.atomic_unit, client.inbound), (0.0, 0.0));
}

#[test]
fn a_slow_nic_serves_less() {
    let mut world = cx3(Interleaving::PerVerb);
    world.inject(Fault::SlowNic { node: MEMORY, percent: 400 }).expect("the node exists");
    let found = flood(&mut world, 16, |batch, index| batch.write_word(word(index), 1));
    assert_near(found.mops, 35.0 / 4.0, 0.03);
    assert_eq!(world.faults().slowdowns, 1);
}

#[test]
fn cpu_time_is_charged_and_reported() {
    let mut world = cx3(Interleaving::PerVerb);
    let (fabric, env) = (world.fabric().clone(), world.env(CLIENT));
    let core = Resource::Core { node: CLIENT, index: 0 };
    run_alone(&mut world, at(CLIENT, 0), async move |lane| {
        for _ in 0..100 {
            fabric.charge(Duration::from_micros(3));
            env.transaction_begins();
            lane.executor().yield_now().await;
        }
    });
    // A hundred times 3 us, and 1 us for a transaction's computation.
    assert_near(world.now().as_secs_f64() * 1e6, 400.0, 0.03);
    assert!(world.report().busy(core) > 0.99, "{:?}", world.report().bound());
    assert_eq!(world.report().bound().map(|most| most.resource), Some(core));
}

/// What a factor multiplies is what the profile charges, not what programs say that they take.
#[test]
fn cores_take_longer_by_the_factor_of_the_profile() {
    const CX3: &str = include_str!("../../../profiles/cx3-56g.toml");
    let factor = "[cpu]\nfactor = { value = 3, source = \"a test\" }";
    for (profile, expected) in [(CX3.to_owned(), 200.0), (CX3.replace("[cpu]", factor), 400.0)] {
        let profile = Profile::parse("cx3", profile.as_bytes()).expect("well-formed");
        let mut world = world(Config::new(1, 2, profile));
        let (fabric, env) = (world.fabric().clone(), world.env(CLIENT));
        run_alone(&mut world, at(CLIENT, 0), async move |lane| {
            for _ in 0..100 {
                fabric.charge(Duration::from_micros(1));
                env.transaction_begins();
                lane.executor().yield_now().await;
            }
        });
        assert_near(world.now().as_secs_f64() * 1e6, expected, 0.04);
    }
}

#[test]
fn slow_cores_take_longer() {
    let mut world = cx3(Interleaving::PerVerb);
    world.inject(Fault::SlowCores { node: CLIENT, percent: 1000 }).expect("the node exists");
    let fabric = world.fabric().clone();
    run_alone(&mut world, at(CLIENT, 0), async move |lane| {
        for _ in 0..100 {
            fabric.charge(Duration::from_micros(1));
            lane.executor().yield_now().await;
        }
    });
    assert_near(world.now().as_secs_f64() * 1e6, 1000.0, 0.05);
}

/// Time until a message from one node is taken in at another.
fn message_takes(profile: &Profile, from: NodeId, to: NodeId) -> Duration {
    let mut world = world(Config::new(1, 3, profile.clone()));
    let running = Running::default();
    let [sent, heard] = [(); 2].map(|()| Rc::new(Cell::new(None)));
    let (said, into) = (Rc::clone(&sent), Rc::clone(&heard));
    running.start(&mut world, at(to, 0), |lane: Lane| async move {
        let executor = lane.executor().clone();
        lane.on_message(Box::new(move |_, _| into.set(Some(executor.now()))));
    });
    running.start(&mut world, at(from, 0), |lane: Lane| async move {
        said.set(Some(lane.executor().now()));
        lane.send(at(to, 0), b"hello");
    });
    running.finish(&mut world);
    world.run_for(Duration::from_millis(1)).expect("it arrives");
    heard.get().expect("it was heard").since(sent.get().expect("it was sent"))
}

#[test]
fn messages_between_compute_nodes_take_longer_if_the_profile_says_so() {
    let near = Profile::named("cx3-56g").expect("built in");
    let far = near.clone().with_cn_cn_delay(Duration::from_micros(50));
    for (from, to) in [(CLIENT, MEMORY), (MEMORY, CLIENT)] {
        assert_eq!(message_takes(&near, from, to), message_takes(&far, from, to));
    }
    let [before, after] = [&near, &far].map(|profile| message_takes(profile, CLIENT, OTHER));
    assert!(before < Duration::from_micros(3), "{before:?}");
    assert!((50..53).contains(&after.as_micros()), "{after:?}");
}
