//! Memory nodes in a process of their own, reached over sockets: the same contract, and the death,
//! stall and return of that process.
//!
//! The test binary starts itself again as that process.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{resume, stop};
use lotus_fabric::conformance::{self, Harness};
use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use lotus_fabric::ids::{Endpoint, Epoch, LaneId, NodeId, RegionId, RemoteAddr};
use lotus_fabric::lane::Lane;
use lotus_fabric::region::Rights;
use lotus_fabric::tcp::{Config, Limits, TcpFabric};
use lotus_fabric::transport::{Fabric, FabricError};
use lotus_fabric::verbs::VerbError;
use lotus_security::{Key, Security};

const MEMORY: [NodeId; 2] = [NodeId(0), NodeId(1)];
const CLIENTS: [NodeId; 2] = [NodeId(2), NodeId(3)];
/// Environment variable that makes the program the child.
const CHILD: &str = "LOTUS_TEST_MEMORY_NODES";
const FREE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const KEY: [u8; 16] = *b"a key for a test";

fn config(served: &[NodeId]) -> Config {
    let key = Key::new(&KEY).expect("long enough");
    Config {
        addresses: served.iter().map(|node| (*node, FREE)).collect(),
        served: served.to_vec(),
        security: Security::SharedKey(key),
        ..Config::loopback(conformance::NODES)
    }
}

/// Serves memory nodes until its input ends; does nothing unless started by [`Nodes::start`].
#[test]
fn child_memory_nodes() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let fabric = TcpFabric::start(config(&MEMORY), Env::real(0)).expect("loopback has free ports");
    for node in MEMORY {
        println!("\nat {}", fabric.address(node).expect("it is served here"));
    }
    let _until_the_parent_is_gone = std::io::stdin().read_line(&mut String::new());
}

type Lines = std::io::Lines<BufReader<ChildStdout>>;

/// A process that serves memory nodes, and a fabric of this process that reaches them.
struct Nodes {
    child: Child,
    /// Kept open: the child still writes when it ends.
    _output: Lines,
    fabric: TcpFabric,
}

impl Nodes {
    fn start(limits: Limits) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("it has a path"))
            .args(["--exact", "tcp::child_memory_nodes", "--nocapture"])
            .env(CHILD, "yes")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the system has a process left");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let lines = output.by_ref().map(|line| line.expect("the child lives"));
        let found = lines.filter_map(|line| Some(line.strip_prefix("at ")?.to_owned()));
        let at = found.take(MEMORY.len()).map(|at| at.parse().expect("an address"));
        let mut config = Config { limits, ..config(&CLIENTS) };
        config.addresses.extend(MEMORY.into_iter().zip(at).collect::<BTreeMap<_, SocketAddr>>());
        let fabric = TcpFabric::start(config, Env::real(0)).expect("loopback has free ports");
        Self { child, _output: output, fabric }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // Killed, because a failing test may leave it stopped, and a stopped process ends in no
        // other way.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Harness for Nodes {
    fn fabric(&self) -> Arc<dyn Fabric> {
        Arc::new(self.fabric.clone())
    }

    fn set_reachable(&self, node: NodeId, reachable: bool) {
        self.fabric.set_reachable(node, reachable).expect("the node exists");
    }
}

/// Memory in one process, lanes in another. The suite neither registers memory on a node of the
/// lanes' process nor opens lanes on a memory node, which would need both in one process.
#[test]
fn memory_nodes_in_another_process_keep_the_contract() {
    conformance::run(|| Nodes::start(Limits::default()));
}

/// Runs `body` on a lane of this process.
fn with_lane<F: Future<Output = ()>>(fabric: &TcpFabric, body: impl FnOnce(Lane) -> F) {
    let at = Endpoint { node: CLIENTS[0], lane: LaneId(0) };
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    let transport = fabric.open_lane(at, Epoch(1), handle.waker()).expect("nobody has it open");
    let lane = Lane::new(at, handle, transport);
    executor.add_driver(lane.driver());
    executor.run(body(lane));
}

async fn write(lane: &Lane, value: u64) -> Result<(), VerbError> {
    let mut batch = lane.batch();
    batch.write_word(RemoteAddr::new(MEMORY[0], RegionId(0), 0), value);
    batch.post().await.map(|_| ()).map_err(|error| error.first().error)
}

async fn read(lane: &Lane) -> u64 {
    let mut batch = lane.batch();
    let buffer = batch.read(RemoteAddr::new(MEMORY[0], RegionId(0), 0), 8);
    batch.post().await.expect("the node answers").words(buffer)[0]
}

/// Short enough to wait for; any time does where the peer does not answer at all.
fn impatient() -> Limits {
    Limits {
        verb: Duration::from_millis(200),
        handshake: Duration::from_secs(5),
        ..Limits::default()
    }
}

#[test]
fn a_memory_node_that_is_killed_is_unreachable() {
    let mut nodes = Nodes::start(impatient());
    nodes.fabric.register(MEMORY[0], RegionId(0), 64, Rights::ALL).expect("there is memory");
    with_lane(&nodes.fabric, async |lane| {
        write(&lane, 1).await.expect("the node answers");
        nodes.child.kill().expect("it was not waited for");
        // Once the connection is known to be broken, it stays so.
        while write(&lane, 2).await.is_ok() {}
        let error = lane.reconnect(MEMORY[0]).await.expect_err("there is no process");
        assert_eq!(error, VerbError::Unreachable);
        write(&lane, 3).await.expect_err("there is no connection");
    });
    let again = nodes.fabric.register(MEMORY[0], RegionId(1), 64, Rights::ALL);
    assert!(matches!(again, Err(FabricError::Unreachable { .. })), "{again:?}");
    let fenced = nodes.fabric.fence(MEMORY[0], CLIENTS[0], Epoch(2));
    assert!(matches!(fenced, Err(FabricError::Unreachable { .. })), "{fenced:?}");
}

/// H22: a WRITE of a live lane is stalled with its memory node, times out, and must not land after
/// the lane's next write. When it wakes up, the target finds the WRITE in its socket and the lane's
/// new connection in its listener; it may carry the WRITE out or drop it, but not after it has
/// welcomed the new connection.
#[test]
fn a_stalled_write_does_not_land_after_the_reconnect() {
    let nodes = Nodes::start(impatient());
    nodes.fabric.register(MEMORY[0], RegionId(0), 64, Rights::ALL).expect("there is memory");
    with_lane(&nodes.fabric, async |lane| {
        write(&lane, 1).await.expect("the node answers");
        for round in 0..3 {
            stop(&nodes.child);
            assert_eq!(write(&lane, 100 + round).await, Err(VerbError::TimedOut));
            let reconnected = lane.reconnect(MEMORY[0]);
            resume(&nodes.child);
            reconnected.await.expect("the node answers again");
            write(&lane, round).await.expect("the new connection works");
            for _ in 0..20 {
                assert_eq!(read(&lane).await, round);
                lane.executor().sleep(Duration::from_millis(1)).await;
            }
        }
    });
}

#[test]
fn whoever_has_another_key_is_told_so() {
    let nodes = Nodes::start(Limits::default());
    let at = nodes.fabric.address(MEMORY[0]).expect("known");
    let others = [
        (Security::PlainOnLoopback, "one side demands a shared key"),
        (Security::SharedKey(Key::new(b"another key, as long").expect("long enough")), "differ"),
    ];
    for (security, sentence) in others {
        let mut config = Config { security, ..config(&CLIENTS) };
        config.addresses.insert(MEMORY[0], at);
        let stranger = TcpFabric::start(config, Env::real(0)).expect("loopback has free ports");
        let refused = stranger.register(MEMORY[0], RegionId(0), 64, Rights::ALL);
        let error = refused.expect_err("it has no key").to_string();
        assert!(error.contains(sentence), "{error}");
    }
}

/// A connection that ends in the middle of a frame has no effect.
#[test]
fn half_a_frame_does_nothing() {
    let nodes = Nodes::start(Limits::default());
    let at = nodes.fabric.address(MEMORY[0]).expect("known");
    for bytes in [&[0_u8; 3][..], &[0xFF; 100], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(at).expect("it listens");
        stream.write_all(bytes).expect("it takes a few bytes");
    }
    nodes.fabric.register(MEMORY[0], RegionId(0), 64, Rights::ALL).expect("it still serves");
}
