//! The order service as its users run it: its nodes and its clients are processes, and one of them
//! is killed. Its nodes also serve tables that their program does not know.

#![expect(clippy::disallowed_methods, reason = "it watches real processes")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for something that a loaded machine does sooner or later.
const PATIENCE: Duration = Duration::from_secs(120);

/// The examples are built with all of this package's targets.
const BUILT: &str = "cargo test -p lotus-examples builds it";

/// An example's program, beside the folder of this test's own.
fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program");
    let profile = this.ancestors().nth(2).expect("target/PROFILE/deps/PROGRAM");
    profile.join("examples").join(name)
}

/// Nodes that end with the test.
struct Nodes {
    file: PathBuf,
    running: Vec<(String, Child)>,
}

impl Nodes {
    fn start(&mut self, kind: &str, index: &str) {
        let mut node = Command::new(example("orders-node"));
        node.args([kind, "--node", index, "--file"]).arg(&self.file);
        let node = node.stderr(Stdio::null()).spawn().expect(BUILT);
        self.running.push((format!("{kind}-{index}"), node));
    }

    fn kill(&mut self, name: &str) {
        let place = self.running.iter().position(|(running, _)| running == name);
        let (_, mut node) = self.running.remove(place.expect("it runs"));
        node.kill().expect("it is ours");
        node.wait().expect("it ends");
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (_, node) in &mut self.running {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

fn unused_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("it is bound").to_string()
}

fn file(directory: &Path, clients: &[String; 2]) -> PathBuf {
    let [one, other] = clients;
    let text = format!(
        "fabric = \"shm\"\nmemory = \"64M\"\n[[memory_node]]\n[[memory_node]]\n\
         [[compute_node]]\nclient = \"{one}\"\n[[compute_node]]\nclient = \"{other}\"\n"
    );
    let path = directory.join("orders.toml");
    std::fs::write(&path, text).expect("there is room");
    path
}

fn await_service(address: &str) {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "nothing serves at {address} after {PATIENCE:?}");
        sleep(Duration::from_millis(50));
    }
}

fn order(address: &str) -> Output {
    client("orders-client", address)
}

/// Runs a client to its end.
fn client(name: &str, address: &str) -> Output {
    Command::new(example(name)).arg(address).output().expect(BUILT)
}

fn text(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{error}")
}

#[test]
fn orders_outlive_a_compute_node_that_is_killed() {
    let directory = tempfile::tempdir().expect("there is room");
    let clients = [unused_address(), unused_address()];
    let file = file(directory.path(), &clients);
    let mut nodes = Nodes { file, running: Vec::new() };
    for (kind, index) in [("mn", "0"), ("mn", "1"), ("cn", "0"), ("cn", "1")] {
        nodes.start(kind, index);
    }
    clients.iter().for_each(|address| await_service(address));
    let ordered = order(&clients[0]);
    assert!(ordered.status.success(), "{}", text(&ordered));
    assert!(text(&ordered).contains("100 of 100 pieces are ordered"), "{}", text(&ordered));

    nodes.kill("cn-1");
    let ordered = order(&clients[0]);
    assert!(ordered.status.success(), "{}", text(&ordered));
    assert!(text(&ordered).contains("200 of 200 pieces are ordered"), "{}", text(&ordered));

    nodes.start("cn", "1");
    await_service(&clients[1]);
    let ordered = order(&clients[1]);
    assert!(ordered.status.success(), "{}", text(&ordered));
    assert!(text(&ordered).contains("300 of 300 pieces are ordered"), "{}", text(&ordered));
}

#[test]
fn a_node_that_cannot_run_says_why() {
    let directory = tempfile::tempdir().expect("there is room");
    let file = file(directory.path(), &[unused_address(), unused_address()]);
    let node = |arguments: &[&str]| {
        let mut node = Command::new(example("orders-node"));
        let ended = node.args(arguments).arg("--file").arg(&file).output().expect(BUILT);
        assert!(!ended.status.success(), "{}", text(&ended));
        text(&ended)
    };
    let none = node(&["cn", "--node", "7"]);
    assert!(none.contains("describes no compute node 7: there are 2"), "{none}");
    let snapshots = node(&["cn", "--node", "0", "--older-snapshot"]);
    assert!(snapshots.contains("has no [snapshots] directory"), "{snapshots}");
    assert!(node(&["--node", "0"]).contains("Usage"), "it names no kind of node");
}

/// The nodes run the order service, and serve the tables of their file and of clients beside it.
#[test]
fn tables_need_nothing_of_the_program() {
    let directory = tempfile::tempdir().expect("there is room");
    let clients = [unused_address(), unused_address()];
    let file = file(directory.path(), &clients);
    let described = include_str!("../tables.toml");
    let tables = described.find("[clients]").expect("clients may create tables");
    let nodes = std::fs::read_to_string(&file).expect("it is ours");
    std::fs::write(&file, nodes + &described[tables..]).expect("there is room");
    let mut nodes = Nodes { file, running: Vec::new() };
    for (kind, index) in [("mn", "0"), ("mn", "1"), ("cn", "0"), ("cn", "1")] {
        nodes.start(kind, index);
    }
    clients.iter().for_each(|address| await_service(address));
    for (visit, address) in (1..).zip(clients.iter().cycle().take(4)) {
        let visited = client("tables-client", address);
        assert!(visited.status.success(), "{}", text(&visited));
        assert!(text(&visited).contains(&format!("visit {visit} of")), "{}", text(&visited));
        assert!(text(&visited).contains("is called Ada Lovelace"), "{}", text(&visited));
    }
    let ordered = order(&clients[0]);
    assert!(ordered.status.success(), "{}", text(&ordered));
}
