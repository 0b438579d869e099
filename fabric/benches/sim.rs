//! Verbs per second of wall time that the simulator carries out.
//!
//! The cluster of LOTUS's figures: nine compute nodes with ten cores and six coroutines each, three
//! memory nodes. A transaction of a coroutine has the verbs of SmallBank: READs of two version
//! tables, of two records, then three WRITEs to every replica and a word to every replica; no
//! engine. `per_verb` and `per_batch` are the two interleavings.
//!
//! `messages` are requests of the same clients to a server, and its replies: `direct`, and
//! `switched`, by way of a switch that passes them on, so that there are twice as many.

use std::cell::Cell;
use std::rc::Rc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::{Batch, Lane};
use lotus_fabric::region::Rights;
use lotus_fabric::sim::{Config, Interleaving, Profile, World};
use lotus_fabric::transport::Fabric;

const MEMORY_NODES: u16 = 3;
const COMPUTE_NODES: u16 = 9;
const CORES: u16 = 10;
const COROUTINES: u64 = 6;
const REGION: RegionId = RegionId(0);
const REGION_BYTES: u64 = 256 << 20;
const VERBS: u64 = 4 + 4 * MEMORY_NODES as u64;

/// Addresses in an order that no hardware prefetcher follows (Knuth's MMIX generator).
struct Scatter(u64);

impl Scatter {
    fn line(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % (REGION_BYTES / 128) * 128
    }
}

async fn complete(lane: &Lane, build: impl FnOnce(&mut Batch)) {
    let mut batch = lane.batch();
    build(&mut batch);
    batch.post().await.expect("no fault is injected");
}

async fn transaction(lane: &Lane, scatter: &mut Scatter) {
    let rows = [scatter.line(), scatter.line()];
    let primary = NodeId((rows[0] / 128) as u16 % MEMORY_NODES);
    let addr = |node, offset| RemoteAddr::new(node, REGION, offset);
    complete(lane, |batch| rows.iter().for_each(|row| _ = batch.read(addr(primary, *row), 72)))
        .await;
    complete(lane, |batch| rows.iter().for_each(|row| _ = batch.read(addr(primary, *row), 64)))
        .await;
    complete(lane, |batch| {
        let staged = batch.stage(64);
        for node in (0..MEMORY_NODES).map(NodeId) {
            rows.iter().for_each(|row| batch.write(addr(node, *row), staged));
            batch.write_word(addr(node, rows[0] + 64), 1);
        }
    })
    .await;
    complete(lane, |batch| {
        for node in (0..MEMORY_NODES).map(NodeId) {
            batch.write_word(addr(node, rows[0]), 2);
        }
    })
    .await;
}

fn cluster(interleaving: Interleaving, done: &Rc<Cell<u64>>) -> World {
    let profile = Profile::named("cx3-56g").expect("built in");
    let config = Config::new(1, MEMORY_NODES + COMPUTE_NODES, profile);
    let mut world = World::new(Config { interleaving, ..config }).expect("a valid configuration");
    for node in 0..MEMORY_NODES {
        let registered = world.fabric().register(NodeId(node), REGION, REGION_BYTES, Rights::ALL);
        registered.expect("maps");
    }
    for core in 0..COMPUTE_NODES * CORES {
        let node = NodeId(MEMORY_NODES + core / CORES);
        let at = Endpoint { node, lane: LaneId(core % CORES) };
        let mut executor = Executor::new(world.env(node));
        let transport = world.fabric().open_lane(at, Epoch(1), executor.handle().waker());
        let lane = Lane::new(at, executor.handle().clone(), transport.expect("free"));
        executor.add_driver(lane.driver());
        for coroutine in 0..COROUTINES {
            let (lane, done) = (lane.clone(), Rc::clone(done));
            let mut scatter = Scatter(u64::from(core) * COROUTINES + coroutine);
            executor.handle().spawn(async move {
                loop {
                    transaction(&lane, &mut scatter).await;
                    done.set(done.get() + 1);
                }
            });
        }
        world.add_core(node, executor);
    }
    world
}

fn verbs(criterion: &mut Criterion) {
    let wall = Env::real(0);
    let mut group = criterion.benchmark_group("sim");
    group.throughput(Throughput::Elements(VERBS));
    group.sample_size(20);
    for (name, interleaving) in
        [("per_verb", Interleaving::PerVerb), ("per_batch", Interleaving::PerBatch)]
    {
        let done = Rc::new(Cell::new(0));
        let mut world = cluster(interleaving, &done);
        let mut run = |transactions: u64| {
            let goal = done.get() + transactions;
            let start = wall.now();
            world.run_while(|| done.get() < goal).expect("no limit is set");
            wall.now().since(start)
        };
        run(100_000);
        group.bench_function(name, |bencher| bencher.iter_custom(&mut run));
    }
}

/// Clients of a server; messages go by way of a switch if there is one.
fn messengers(has_switch: bool, done: &Rc<Cell<u64>>) -> World {
    let (server, switch) = (NodeId(COMPUTE_NODES), NodeId(COMPUTE_NODES + 1));
    let profile = Profile::named("tofino-cx5").expect("built in");
    let config = Config::new(1, COMPUTE_NODES + 2, profile);
    let mut world = World::new(Config { switches: vec![switch], ..config }).expect("it is valid");
    let at = |node: NodeId, lane: u16| Endpoint { node, lane: LaneId(lane) };
    // A message has the place that it is for, as client and core, and whether it is a reply.
    let place = |bytes: &[u8]| (NodeId(bytes[0].into()), u16::from(bytes[1]), bytes[2] == 1);
    let clients = (0..COMPUTE_NODES).flat_map(|node| (0..CORES).map(move |core| (node, core)));
    let cores = (0..CORES).flat_map(|core| [(server.0, core), (switch.0, core)]);
    for (node, core) in clients.chain(cores) {
        let (node, here) = (NodeId(node), at(NodeId(node), core));
        let mut executor = Executor::new(world.env(node));
        let transport = world.fabric().open_lane(here, Epoch(1), executor.handle().waker());
        let lane = Lane::new(here, executor.handle().clone(), transport.expect("free"));
        executor.add_driver(lane.driver());
        let next = move |end: NodeId| at(if has_switch { switch } else { end }, core);
        let (out, done) = (lane.clone(), Rc::clone(done));
        lane.on_message(Box::new(move |_, bytes| {
            let (client, core, is_reply) = place(bytes);
            if out.at().node == switch {
                let end = if is_reply { client } else { server };
                out.send(at(end, core), bytes);
            } else if out.at().node == server {
                out.send(next(client), &[bytes[0], bytes[1], 1]);
            } else {
                done.set(done.get() + 1);
                out.send(next(server), &[bytes[0], bytes[1], 0]);
            }
        }));
        if node.0 < COMPUTE_NODES {
            executor.handle().spawn(async move {
                for _ in 0..COROUTINES {
                    lane.send(next(server), &[node.0 as u8, core as u8, 0]);
                }
            });
        }
        world.add_core(node, executor);
    }
    world
}

fn messages(criterion: &mut Criterion) {
    let wall = Env::real(0);
    let mut group = criterion.benchmark_group("messages");
    group.sample_size(20);
    for (name, has_switch, each) in [("direct", false, 2), ("switched", true, 4)] {
        group.throughput(Throughput::Elements(each));
        let done = Rc::new(Cell::new(0));
        let mut world = messengers(has_switch, &done);
        let mut run = |round_trips: u64| {
            let goal = done.get() + round_trips;
            let start = wall.now();
            world.run_while(|| done.get() < goal).expect("no limit is set");
            wall.now().since(start)
        };
        run(100_000);
        group.bench_function(name, |bencher| bencher.iter_custom(&mut run));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = verbs, messages
}
criterion_main!(benches);
