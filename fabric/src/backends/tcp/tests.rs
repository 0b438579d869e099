//! The whole back end in one process: the contract, floods and garbage, and refusals.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZero;
use std::time::Duration;

use lotus_security::{Key, Security};

use super::handshake::{Hello, Purpose};
use super::*;
use crate::conformance::{self, Harness};
use crate::contract::ids::LaneId;
use crate::contract::ids::RemoteAddr;
use crate::contract::verbs::VerbError;
use crate::lane::Lane;
use crate::run::exec::Executor;

const MEMORY: NodeId = NodeId(0);
const CLIENT: NodeId = NodeId(1);
const REGION: RegionId = RegionId(0);
const REGION_BYTES: u64 = 1 << 16;

pub(super) struct Tcp(pub(super) TcpFabric);

impl Harness for Tcp {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.0.clone())
    }
    fn node_count(&self) -> u16 {
        self.0.inner.nodes
    }
    fn set_reachable(&self, node: NodeId, reachable: bool) {
        self.0.set_reachable(node, reachable).expect("the node exists");
    }
}

pub(super) fn start(config: Config) -> TcpFabric {
    TcpFabric::start(config, Env::real(0)).expect("loopback has free ports")
}

fn with_key(config: Config) -> Config {
    Config { security: Security::SharedKey(Key::random().expect("randomness")), ..config }
}

#[test]
fn passes_the_conformance_suite() {
    conformance::run(|| Tcp(start(Config::loopback(conformance::NODES + 1))));
}

/// Several threads then serve one node's connections, and a fence must wait for all of them.
#[test]
fn passes_the_conformance_suite_with_several_workers_and_a_key() {
    let workers = NonZero::new(3).expect("not zero");
    let config = Config { workers, ..with_key(Config::loopback(conformance::NODES)) };
    conformance::run(|| Tcp(start(config.clone())));
}

/// Runs `body` on a lane of the client.
fn with_lane<F: Future<Output = ()>>(fabric: &TcpFabric, body: impl FnOnce(Lane) -> F) {
    let at = Endpoint { node: CLIENT, lane: LaneId(0) };
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    let transport = fabric.open_lane(at, Epoch(1), handle.waker()).expect("nobody has it open");
    let lane = Lane::new(at, handle, transport);
    executor.add_driver(lane.driver());
    executor.run(body(lane));
}

fn word(index: u64) -> RemoteAddr {
    RemoteAddr::new(MEMORY, REGION, 8 * index)
}

async fn write(lane: &Lane, value: u64) -> Result<(), VerbError> {
    let mut batch = lane.batch();
    batch.write_word(word(0), value);
    batch.post().await.map(|_| ()).map_err(|error| error.first().error)
}

#[test]
fn workers_that_never_sleep_serve_as_well() {
    let fabric = start(Config { waiting: Waiting::Busy, ..Config::loopback(2) });
    fabric.register(MEMORY, REGION, REGION_BYTES, Rights::ALL).expect("there is memory");
    with_lane(&fabric, async |lane| {
        for value in 0..10 {
            write(&lane, value).await.expect("the node answers");
        }
    });
}

/// A fabric with a region and the given limits.
fn guarded(limits: Limits) -> TcpFabric {
    let fabric = start(Config { limits, ..with_key(Config::loopback(2)) });
    fabric.register(MEMORY, REGION, REGION_BYTES, Rights::ALL).expect("there is memory");
    fabric
}

/// Waits until the target's counters satisfy `holds`.
fn until(fabric: &TcpFabric, what: &str, holds: impl Fn(&TargetCounters) -> bool) {
    let deadline = fabric.inner.env.now().after(Duration::from_secs(30));
    while !holds(&fabric.counters(MEMORY).expect("served here")) {
        assert!(fabric.inner.env.now() < deadline, "{what}: {:?}", fabric.counters(MEMORY));
        std::thread::yield_now();
    }
}

fn knock(fabric: &TcpFabric) -> TcpStream {
    TcpStream::connect(fabric.address(MEMORY).expect("served here")).expect("it listens")
}

#[test]
fn garbage_on_the_port_is_counted_and_cut_off() {
    let fabric = guarded(Limits::default());
    let noises: [&[u8]; 4] =
        [&[0; 8], &[0xFF; 4096], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[1; 600]];
    for (count, noise) in (1..).zip(noises) {
        let mut stream = knock(&fabric);
        stream.write_all(noise).expect("a socket takes so much");
        until(&fabric, "the garbage", |counted| counted.garbage == count);
        // Closed or reset: at most a refusal comes back.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() <= 8, "{answer:?}");
    }
    with_lane(&fabric, async |lane| write(&lane, 1).await.expect("it still serves"));
}

#[test]
fn connections_that_say_nothing_are_closed_in_time() {
    let fabric = guarded(Limits { handshake: Duration::from_millis(50), ..Limits::default() });
    let mut silent: Vec<_> = (0..5).map(|_| knock(&fabric)).collect();
    until(&fabric, "the silent ones", |counted| counted.too_slow_to_greet == 5);
    for stream in &mut silent {
        assert_eq!(stream.read(&mut [0]).expect("closed, not broken"), 0);
    }
    with_lane(&fabric, async |lane| write(&lane, 1).await.expect("it still serves"));
}

#[test]
fn a_flood_of_connections_is_turned_away_and_does_not_last() {
    let limits = Limits { guests: 8, handshake: Duration::from_millis(200), ..Limits::default() };
    let fabric = guarded(limits);
    with_lane(&fabric, async |lane| {
        write(&lane, 1).await.expect("there is no other guest");
        let flood: Vec<_> = (0..100).map(|_| knock(&fabric)).collect();
        until(&fabric, "the flood", |counted| counted.accepted >= 100 && counted.turned_away > 0);
        write(&lane, 2).await.expect("admitted before the flood");
        // No connection is admitted while all guest places are taken, which does not last long.
        while lane.reconnect(MEMORY).await.is_err() {}
        write(&lane, 3).await.expect("let in");
        drop(flood);
    });
}

/// The target must neither wait for the peer nor buffer without bound.
#[test]
fn a_peer_that_does_not_read_its_answers_is_cut_off() {
    let fabric = guarded(Limits { unread: Duration::from_millis(100), ..Limits::default() });
    let at = |node| Endpoint { node, lane: LaneId(9) };
    let (purpose, from, to) = (Purpose::Verbs, at(CLIENT), at(MEMORY));
    let hello = Hello { purpose, from, to, epoch: Epoch(1), session: 1, number: 1 };
    let address = fabric.address(MEMORY).expect("served here");
    let security = &fabric.inner.security;
    let deadline = fabric.inner.env.now().after(Duration::from_secs(30));
    let mut dial =
        initiator::dial::Dial::start(address, hello, security, Duration::from_secs(2), deadline)
            .expect("it listens");
    while !dial.advance().expect("it has the key") {
        assert!(fabric.inner.env.now() < deadline, "not admitted");
    }
    let mut stream = dial.into_stream();
    let mut frame = vec![0];
    for _ in 0..3 {
        wire::encode_verb(&mut frame, word(0), crate::contract::verbs::Op::Read, 8192, &[]);
    }
    frame[0] = wire::Header::new(wire::FrameKind::Verbs, 3, 3).pack();
    let bytes = zerocopy::IntoBytes::as_bytes(&frame[..]);
    // Sends requests without end, and reads nothing.
    let mut sent = 0;
    let cut_off =
        |fabric: &TcpFabric| fabric.counters(MEMORY).expect("served here").too_slow_to_read == 1;
    while !cut_off(&fabric) {
        assert!(fabric.inner.env.now() < deadline, "{:?}", fabric.counters(MEMORY));
        // Fails when the socket is full, and once it is closed.
        sent += stream.write(&bytes[sent % bytes.len()..]).unwrap_or(0);
    }
    with_lane(&fabric, async |lane| write(&lane, 1).await.expect("it still serves"));
}

#[test]
fn memory_is_limited() {
    let fabric = start(Config {
        limits: Limits { memory_bytes: 100, ..Limits::default() },
        ..Config::loopback(1)
    });
    let register = |region, bytes| fabric.register(MEMORY, RegionId(region), bytes, Rights::ALL);
    register(0, 64).expect("it fits");
    assert!(matches!(register(1, 64), Err(FabricError::OutOfMemory { bytes: 64, .. })));
    assert!(matches!(register(1, 0), Err(FabricError::OutOfMemory { .. })));
    register(1, 36).expect("it fits");
    // Sizes beyond the address space are refused even without a limit.
    let unlimited = start(Config::loopback(1));
    for bytes in [(1 << 40) + 1, u64::MAX] {
        let refused = unlimited.register(MEMORY, REGION, bytes, Rights::ALL);
        assert!(matches!(refused, Err(FabricError::OutOfMemory { .. })), "{bytes}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    let beyond = SocketAddr::from(([192, 0, 2, 1], 0));
    let loopback = Config::loopback(2);
    let moved = |security| {
        let mut config = Config { security, served: Vec::new(), ..loopback.clone() };
        config.addresses.insert(NodeId(1), beyond);
        config
    };
    let taken = start(Config::loopback(1));
    let mut same_port = Config::loopback(1);
    same_port.addresses.insert(NodeId(0), taken.address(NodeId(0)).expect("served"));
    let cases = [
        (Config { nodes: 0, ..loopback.clone() }, "has 1 to 128 nodes, not 0"),
        (Config { nodes: 129, ..loopback.clone() }, "not 129"),
        (Config { nodes: 1, ..loopback.clone() }, "there is no node 1"),
        (Config { addresses: BTreeMap::new(), ..loopback.clone() }, "node 0 has no address"),
        (moved(Security::PlainOnLoopback), "beyond loopback, and needs a shared key"),
        (same_port, "node 0 cannot listen at 127.0.0.1"),
    ];
    for (config, sentence) in cases {
        let error = TcpFabric::start(config, Env::real(0)).err().expect("it makes no sense");
        assert!(error.to_string().contains(sentence), "{error}");
    }
    // No node listens at the address, but the configuration is allowed.
    start(moved(Security::PlainAnywhere));
    start(with_key(moved(Security::PlainOnLoopback)));
}

/// A node that others reach at another address than its host has.
#[test]
fn a_node_listens_elsewhere_than_where_it_is_reached() {
    let config = |port| {
        let mut config = Config { served: vec![MEMORY], ..Config::loopback(2) };
        config.addresses.insert(MEMORY, SocketAddr::from(([127, 0, 0, 1], port)));
        config.listen.insert(MEMORY, SocketAddr::from(([0, 0, 0, 0], port)));
        config
    };
    let refused = TcpFabric::start(config(1), Env::real(0)).err().expect("beyond loopback");
    assert!(refused.to_string().contains("beyond loopback"), "{refused}");
    // Ports below those that Linux gives to connections: one that another test has just given back
    // is taken by the next connection of any test.
    let started = |port| Some((port, TcpFabric::start(with_key(config(port)), Env::real(0)).ok()?));
    let (port, fabric) = (20_000..21_000).find_map(started).expect("one of a thousand is free");
    assert_eq!(fabric.address(MEMORY), Some(SocketAddr::from(([127, 0, 0, 1], port))));
    fabric.register(MEMORY, REGION, 4096, Rights::ALL).expect("it is reached there");
}

#[test]
fn lanes_of_other_processes_cannot_be_opened() {
    let fabric = start(Config { served: vec![MEMORY], ..Config::loopback(2) });
    let at = Endpoint { node: CLIENT, lane: LaneId(0) };
    let wake = Executor::new(Env::real(0)).handle().waker();
    let refused = fabric.open_lane(at, Epoch(1), wake).err();
    assert!(matches!(refused, Some(FabricError::Elsewhere(CLIENT))));
}
