//! The `sim` back end: the contract, the NIC model, faults, and runs determined by their seed.

mod conformance;
mod crashes;
mod depth;
mod determinism;
mod faults;
mod model;
mod switches;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::{Batch, BatchResult, Lane};
use lotus_fabric::region::Rights;
use lotus_fabric::sim::{Config, CoreId, Profile, SimFabric, Stop, World};
use lotus_fabric::transport::Fabric;

const REGION: RegionId = RegionId(0);
const REGION_BYTES: u64 = 1 << 20;
/// Node with the memory.
const MEMORY: NodeId = NodeId(0);
/// Node of the first client; others follow.
const CLIENT: NodeId = NodeId(1);
/// Another compute node.
const OTHER: NodeId = NodeId(2);

fn ideal(seed: u64, nodes: u16) -> Config {
    Config::new(seed, nodes, Profile::ideal())
}

/// A world with one region on [`MEMORY`].
fn world(config: Config) -> World {
    let world = World::new(config).expect("a valid configuration");
    world.fabric().register(MEMORY, REGION, REGION_BYTES, Rights::ALL).expect("maps");
    world
}

fn at(node: NodeId, lane: u16) -> Endpoint {
    Endpoint { node, lane: LaneId(lane) }
}

fn word(index: u64) -> RemoteAddr {
    RemoteAddr::new(MEMORY, REGION, index * 8)
}

/// An executor with a lane.
fn open(fabric: &SimFabric, at: Endpoint) -> (Executor, Lane) {
    let mut executor = Executor::new(fabric.env(at.node));
    let opened = fabric.open_lane(at, Epoch(1), executor.handle().waker());
    let lane = Lane::new(at, executor.handle().clone(), opened.expect("the lane is free"));
    executor.add_driver(lane.driver());
    (executor, lane)
}

/// Number of coroutines still running.
#[derive(Clone, Default)]
struct Running(Rc<Cell<usize>>);

impl Running {
    /// Adds a core at `at` that runs `body`.
    fn start<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        at: Endpoint,
        body: impl FnOnce(Lane) -> F,
    ) -> CoreId {
        let (executor, lane) = open(world.fabric(), at);
        let (running, body) = (self.0.clone(), body(lane));
        running.set(running.get() + 1);
        executor.handle().spawn(async move {
            body.await;
            running.set(running.get() - 1);
        });
        world.add_core(at.node, executor)
    }

    /// Runs the world until all have ended.
    fn finish(&self, world: &mut World) {
        let ended = world.run_while(|| self.0.get() > 0).expect("everybody ends");
        assert_eq!(ended, Stop::Done);
    }
}

/// Runs one coroutine on a core of its own to its end; returns its result.
fn run_alone<T: 'static, F: Future<Output = T> + 'static>(
    world: &mut World,
    at: Endpoint,
    body: impl FnOnce(Lane) -> F,
) -> T {
    let (running, result) = (Running::default(), Rc::new(Cell::new(None)));
    let into = Rc::clone(&result);
    let core = running.start(world, at, |lane| {
        let body = body(lane);
        async move { into.set(Some(body.await)) }
    });
    running.finish(world);
    drop(world.remove_core(core));
    result.take().expect("the body has ended")
}

/// Value of a word of [`MEMORY`], without time passing.
fn peek(world: &World, index: u64) -> u64 {
    let (mut executor, lane) =
        open(world.fabric(), at(NodeId(world.fabric().node_count() - 1), 99));
    executor.run(async move { read(&lane, word(index)).await })
}

async fn post(lane: &Lane, build: impl FnOnce(&mut Batch)) -> BatchResult {
    let mut batch = lane.batch();
    build(&mut batch);
    batch.post().await
}

async fn read(lane: &Lane, addr: RemoteAddr) -> u64 {
    let mut batch = lane.batch();
    let buffer = batch.read(addr, 8);
    batch.post().await.expect("nothing fails").words(buffer)[0]
}

async fn write(lane: &Lane, addr: RemoteAddr, value: u64) {
    post(lane, |batch| batch.write_word(addr, value)).await.expect("nothing fails");
}
