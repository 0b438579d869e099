//! Tests that need devices. Run where there are some: `just rdma-test`.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use super::lane::RdmaLane;
use super::node::RdmaNode;
use super::wire::{Key, NodeRequest, VERSION};
use super::{Config, Place, RdmaFabric, SetupError};
use crate::conformance::{self, Harness};
use crate::contract::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use crate::contract::region::{Chunk, Rights};
use crate::contract::transport::{Fabric, FabricError, Sink, Token, Transport, Wake};
use crate::contract::verbs::{CHUNK_WORDS, Op, VerbError, Work};
use crate::run::env::Env;

struct Devices(RdmaFabric);

impl Devices {
    /// Small queues, so that the suite fills them.
    fn new() -> Self {
        let config = Config::in_process(conformance::NODES + 1, &[]).expect("there are devices");
        let config = Config { send_queue: 64, unsignalled: 16, ..config };
        Self(RdmaFabric::new(config, Env::real(0)).expect("the devices work"))
    }
}

impl Harness for Devices {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.0.clone())
    }

    fn node_count(&self) -> u16 {
        conformance::NODES + 1
    }

    fn set_reachable(&self, node: NodeId, reachable: bool) {
        self.0.set_reachable(node, reachable).expect("the node is here");
    }

    fn rounds(&self, rounds: u64) -> u64 {
        rounds / 40
    }

    fn tells_of_fences(&self) -> bool {
        false
    }
}

#[test]
#[ignore = "needs RDMA devices"]
fn passes_the_conformance_suite() {
    conformance::run(Devices::new);
}

const MEMORY: NodeId = NodeId(0);
const CLIENT: Endpoint = Endpoint { node: NodeId(1), lane: LaneId(0) };
const REGION: RegionId = RegionId(3);
const REGION_BYTES: u64 = 1 << 16;

/// Time limit of every wait here.
const LIMIT: Duration = Duration::from_secs(30);

/// A lane without an executor, so that its connections can be manipulated.
struct Probe {
    lane: RdmaLane,
    fabric: RdmaFabric,
    done: Ended,
    chunks: Vec<Chunk>,
}

/// Events collected by polling.
#[derive(Default)]
struct Ended {
    batches: Vec<(Token, Box<Work>)>,
    reconnects: Vec<Result<(), VerbError>>,
}

impl Sink for Ended {
    fn completed(&mut self, token: Token, work: Box<Work>) {
        self.batches.push((token, work));
    }
    fn reconnected(&mut self, _: Token, result: Result<(), VerbError>) {
        self.reconnects.push(result);
    }
    fn message(&mut self, _: Endpoint, _: &[u8]) {}
}

struct NoWake;

impl Wake for NoWake {
    fn wake(&self) {}
}

impl Probe {
    /// A fabric of two nodes with a region on one, and a connected lane on the other.
    fn new() -> Self {
        let config = Config::in_process(2, &[]).expect("there are devices");
        let fabric = RdmaFabric::new(config, Env::real(0)).expect("the devices work");
        fabric.register(MEMORY, REGION, REGION_BYTES, Rights::ALL).expect("memory");
        Self::on(fabric)
    }

    /// A connected lane.
    fn on(fabric: RdmaFabric) -> Self {
        let shared = Arc::clone(&fabric.shared);
        let node = Arc::clone(shared.here(CLIENT.node).expect("here"));
        let lane = RdmaLane::open(shared, &node, CLIENT, Epoch(1), Arc::new(NoWake));
        let chunks = Chunk::carve(256, CHUNK_WORDS).expect("memory");
        let lane = lane.expect("the lane is free");
        let mut probe = Self { lane, fabric, done: Ended::default(), chunks };
        // A node in another process may register its region after it begins to listen.
        let env = Env::real(0);
        let deadline = env.now().after(LIMIT);
        while let Some((_, error)) = probe.run(0, &[(0, WRITE)]) {
            assert_eq!(error, VerbError::OutOfBounds);
            assert!(env.now() < deadline, "the node has no region after {LIMIT:?}");
            assert_eq!(probe.reconnect(), Ok(()));
        }
        probe
    }

    fn post(&mut self, token: u32, verbs: &[(u64, Op)]) {
        let mut work = Box::<Work>::default();
        for (offset, op) in verbs {
            let buffer = work.reserve(1, || self.chunks.pop().expect("enough chunks"));
            work.push(RemoteAddr::new(MEMORY, REGION, *offset), *op, buffer);
        }
        self.lane.post(Token(token), work);
    }

    /// Polls until `ready`.
    fn poll_until(&mut self, ready: impl Fn(&Ended) -> bool) {
        let env = Env::real(0);
        let deadline = env.now().after(LIMIT);
        while !ready(&self.done) {
            assert!(
                env.now() < deadline,
                "nothing completed within {LIMIT:?}: the lane stands still"
            );
            if !self.lane.has_input() {
                std::thread::yield_now();
            }
            self.lane.poll(&mut self.done);
        }
    }

    /// First failure of a posted batch, as the verb's index and its error.
    fn outcome(&mut self, token: u32) -> Option<(usize, VerbError)> {
        let is_it = |(known, _): &(Token, Box<Work>)| *known == Token(token);
        self.poll_until(|done| done.batches.iter().any(is_it));
        let place = self.done.batches.iter().position(is_it).expect("found just now");
        let (_, mut work) = self.done.batches.swap_remove(place);
        let failure = work.failures().first().map(|failure| (failure.verb, failure.error));
        work.clear();
        failure
    }

    fn run(&mut self, token: u32, verbs: &[(u64, Op)]) -> Option<(usize, VerbError)> {
        self.post(token, verbs);
        self.outcome(token)
    }

    fn reconnect(&mut self) -> Result<(), VerbError> {
        self.lane.reconnect(Token(0), MEMORY);
        self.poll_until(|done| !done.reconnects.is_empty());
        self.done.reconnects.remove(0)
    }

    fn distort(&mut self, change: fn(&mut Key)) {
        let link = self.lane.connections[0].link.as_mut();
        link.expect("connected").distort(change);
    }

    fn node(&self) -> &RdmaNode {
        self.fabric.shared.here(MEMORY).expect("here")
    }
}

const READ: Op = Op::Read;
const WRITE: Op = Op::WriteWord { value: 7 };
const SWAP: Op = Op::CompareAndSwap { expected: 0, new: 9 };
const ADD: Op = Op::FetchAndAdd { addend: 9 };

/// This side has wrong data about the region, so that the device at the other end must refuse.
#[test]
#[ignore = "needs RDMA devices"]
fn the_target_s_device_refuses_what_this_side_let_through() {
    let bad_key: fn(&mut Key) = |key| key.key ^= 0x5A00;
    let too_long: fn(&mut Key) = |key| key.bytes += 4096;
    let odd: fn(&mut Key) = |key| key.address += 4;
    let denied = [VerbError::AccessDenied].as_slice();
    // Soft-RoCE's library does not even post it.
    let misaligned = &[VerbError::Misaligned, VerbError::Flushed];
    let all = [READ, WRITE, SWAP, ADD];
    let cases = [
        ("bad key", bad_key, 0, all.as_slice(), denied),
        ("out of bounds", too_long, REGION_BYTES, &all, denied),
        ("misaligned atomic", odd, 8, &[SWAP, ADD], misaligned),
    ];
    let mut probe = Probe::new();
    for (what, distortion, offset, verbs, errors) in cases {
        for verb in verbs {
            probe.distort(distortion);
            let outcome = probe.run(1, &[(64, WRITE), (offset, *verb), (72, WRITE)]);
            let (_, error) = outcome.unwrap_or_else(|| panic!("{what}: {verb:?} was let through"));
            assert!(errors.contains(&error), "{what}: {verb:?}: {error:?}");
            assert_eq!(probe.run(2, &[(0, READ)]), Some((0, VerbError::Broken)), "{what}");
            assert_eq!(probe.reconnect(), Ok(()), "{what}");
            assert_eq!(probe.run(3, &[(0, READ)]), None, "{what}: a new connection");
        }
    }
}

#[test]
#[ignore = "needs RDMA devices"]
fn a_region_that_is_gone_is_refused() {
    let mut probe = Probe::new();
    probe.node().deregister(REGION);
    assert_eq!(probe.run(1, &[(0, WRITE)]), Some((0, VerbError::AccessDenied)));
    assert_eq!(probe.reconnect(), Ok(()));
    assert_eq!(probe.run(2, &[(0, WRITE)]), Some((0, VerbError::OutOfBounds)));
}

/// The outcome of verbs behind a failed one, in their own batches, is unknown.
#[test]
#[ignore = "needs RDMA devices"]
fn what_was_under_way_is_flushed() {
    let mut probe = Probe::new();
    probe.distort(|key| key.key ^= 0x5A00);
    (1..=40).for_each(|token| probe.post(token, &[(0, WRITE), (8, READ)]));
    assert_eq!(probe.outcome(1), Some((0, VerbError::AccessDenied)));
    for token in 2..=40 {
        let (verb, error) = probe.outcome(token).expect("the connection is broken");
        assert_eq!(verb, 0);
        assert!(matches!(error, VerbError::Flushed | VerbError::Broken), "{error:?}");
    }
    assert_eq!(probe.reconnect(), Ok(()));
    assert_eq!(probe.run(41, &[(0, READ)]), None);
}

/// Batches whose verbs could overtake each other, on a switch that loses some of their packets: see
/// `scripts/rdma-vm/tests.sh`. Soft-RoCE repeats verbs then, and must find no fence flag.
#[test]
#[ignore = "needs RDMA devices"]
fn verbs_that_get_lost_are_repeated_in_order() {
    let mut probe = Probe::new();
    for round in 0..200 {
        let verbs = [READ, WRITE, ADD, WRITE, SWAP, READ, WRITE].map(|op| (0, op));
        assert_eq!(probe.run(round, &verbs), None, "round {round}");
    }
}

#[test]
#[ignore = "needs RDMA devices"]
fn a_target_that_dies_leaves_verbs_unknown() {
    let mut probe = Probe::new();
    probe.node().set_reachable(false);
    probe.post(1, &[(0, WRITE), (8, WRITE)]);
    probe.post(2, &[(16, WRITE)]);
    assert_eq!(probe.outcome(1), Some((0, VerbError::Unreachable)));
    assert_eq!(probe.outcome(2), Some((0, VerbError::Flushed)));
    assert_eq!(probe.reconnect(), Err(VerbError::Unreachable));
    assert_eq!(probe.run(3, &[(0, WRITE)]), Some((0, VerbError::Broken)));
    probe.node().set_reachable(true);
    assert_eq!(probe.reconnect(), Ok(()));
    assert_eq!(probe.run(4, &[(0, WRITE)]), None);
}

#[test]
#[ignore = "needs RDMA devices"]
fn a_fenced_node_learns_it_when_it_reconnects() {
    let mut probe = Probe::new();
    probe.fabric.fence(MEMORY, CLIENT.node, Epoch(2)).expect("both nodes exist");
    let (verb, error) = probe.run(1, &[(0, WRITE)]).expect("fenced out");
    assert!(verb == 0 && error.outcome_unknown(), "{error:?}");
    assert_eq!(probe.reconnect(), Err(VerbError::Revoked));
    assert_eq!(probe.run(2, &[(0, WRITE)]), Some((0, VerbError::Revoked)));
}

#[test]
#[ignore = "needs RDMA devices"]
fn a_node_tells_other_versions_which_one_it_is() {
    let probe = Probe::new();
    let at = probe.fabric.listens_at(MEMORY).expect("the node is here");
    probe.fabric.greet(MEMORY).expect("the same version");
    let mut stream = TcpStream::connect(at).expect("it listens");
    let mut question = NodeRequest::Greet { of: MEMORY }.encode();
    question[4] = 99;
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream.write_all(&question).expect("writes");
    stream.shutdown(Shutdown::Write).expect("shuts down");
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).expect("reads");
    assert_eq!(reply[4..6], VERSION.to_le_bytes());
}

/// Address of the process of [`a_process_that_is_killed_leaves_verbs_unknown`].
const OTHER_PROCESS: &str = "127.0.0.1:47811";

/// A process that does not outlive the test, even if the test fails.
struct KilledOnDrop(Child);

impl KilledOnDrop {
    fn kill(&mut self) {
        // Fails if it has ended by itself.
        let _ = self.0.kill();
        self.0.wait().expect("it is this process's own");
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Two processes: the one with the memory is killed.
#[test]
#[ignore = "needs RDMA devices"]
fn a_process_that_is_killed_leaves_verbs_unknown() {
    let mut config = Config::in_process(2, &[]).expect("there are devices");
    let here = config.nodes[1].clone();
    let at = OTHER_PROCESS.parse().expect("an address");
    config.nodes = vec![Place::There { at }, here];
    let fabric = RdmaFabric::new(config, Env::real(0)).expect("the devices work");
    assert!(fabric.greet(MEMORY).is_err(), "nobody listens yet");
    let refused = fabric.register(MEMORY, REGION, 64, Rights::ALL);
    let Err(FabricError::Rdma(cause)) = refused else { panic!("the memory is elsewhere") };
    assert!(matches!(cause.downcast_ref(), Some(SetupError::Elsewhere(MEMORY))));
    let this = std::env::current_exe().expect("this program");
    let only = ["--ignored", "--exact", "backends::rdma::tests::has_memory_until_it_is_killed"];
    let child = Command::new(this).args(only).env("LOTUS_RDMA_CHILD", "").spawn();
    let mut child = KilledOnDrop(child.expect("a process"));
    let env = Env::real(0);
    let deadline = env.now().after(LIMIT);
    while fabric.greet(MEMORY).is_err() {
        assert!(env.now() < deadline, "the other process does not answer within {LIMIT:?}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let mut probe = Probe::on(fabric);
    assert_eq!(probe.run(1, &[(8, WRITE), (16, READ)]), None);
    child.kill();
    assert_eq!(probe.run(2, &[(8, WRITE)]), Some((0, VerbError::Unreachable)));
    assert_eq!(probe.reconnect(), Err(VerbError::Unreachable));
}

#[test]
#[ignore = "is started by another test"]
fn has_memory_until_it_is_killed() {
    if std::env::var_os("LOTUS_RDMA_CHILD").is_none() {
        return;
    }
    let mut config = Config::in_process(2, &[]).expect("there are devices");
    config.nodes[1] = Place::There { at: "127.0.0.1:1".parse().expect("an address") };
    let Place::Here { listen, .. } = &mut config.nodes[0] else { panic!("all nodes are here") };
    *listen = OTHER_PROCESS.parse().expect("an address");
    let fabric = RdmaFabric::new(config, Env::real(0)).expect("the devices work");
    fabric.register(MEMORY, REGION, REGION_BYTES, Rights::ALL).expect("memory");
    // The process that should kill this one may be gone.
    let env = Env::real(0);
    let deadline = env.now().after(4 * LIMIT);
    while env.now() < deadline {
        std::thread::park_timeout(LIMIT);
    }
}
