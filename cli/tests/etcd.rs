//! Clusters of processes that agree in etcd: a real server, which is killed and started again
//! (Debian's `etcd-server`).

#[path = "../../authority/tests/common/mod.rs"]
mod etcd;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use etcd::{Server, eventually};
use serde_json::Value;

const COMPUTE_NODES: u16 = 2;
/// Metrics port of compute node 0.
const METRICS: u16 = 7600;
/// Transactions that must commit while etcd is gone, and again once it is back.
const PROGRESS: u64 = 200;

/// An address that only this test of this process uses: all of 127/8 is this machine.
fn host(number: u32) -> Ipv4Addr {
    let process = std::process::id() % (1 << 18);
    Ipv4Addr::from(0x7f80_0000 | process << 4 | number)
}

/// A cluster over shared memory, in a directory of its own. Dropping it ends what it has started.
struct Cluster {
    directory: PathBuf,
    host: Ipv4Addr,
}

impl Cluster {
    fn new(name: &str, number: u32, endpoint: &str) -> Self {
        let host = host(number);
        let name = format!("lotus-in-etcd-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir(&directory).expect("a fresh directory");
        let node = |index: u16| {
            let (client, metrics) = (7500 + index, METRICS + index);
            format!(
                "[[compute_node]]\nclient = \"{host}:{client}\"\nmetrics = \"{host}:{metrics}\"\n"
            )
        };
        let nodes: String = (0..COMPUTE_NODES).map(node).collect();
        let text = format!(
            "fabric = \"shm\"\nclient_key_file = \"key\"\nreplicas = 2\nmemory = \"64M\"\n\
             lock_table = \"1M\"\ncoroutines = 4\nlease_ms = 3000\n\
             [etcd]\nendpoints = [\"{endpoint}\"]\nprefix = \"/lotus/{number}/\"\n\
             [[memory_node]]\n[[memory_node]]\n{nodes}[load.smallbank]\naccounts = 200\n"
        );
        fs::write(directory.join("c.toml"), text).expect("it is ours");
        Self { directory, host }
    }

    fn lotus(&self, words: &[&str], flag: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
        command.args(words).arg(flag).arg(self.directory.join("c.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn cluster(&self, task: &str) -> Output {
        let discard: &[&str] = if task == "down" { &["--discard"] } else { &[] };
        self.lotus(&[&["cluster", task], discard].concat(), "--file").output().expect("it runs")
    }

    /// Runs a task; the error is its output.
    fn succeeds(&self, task: &str) -> Result<(), String> {
        match self.cluster(task) {
            output if output.status.success() => Ok(()),
            output => Err(format!("{task}: {}", text(&output))),
        }
    }

    #[track_caller]
    fn done(&self, task: &str) {
        self.succeeds(task).expect("nothing is in its way");
    }

    fn status(&self) -> Value {
        let status = self.lotus(&["cluster", "status", "--json"], "--file").output();
        serde_json::from_slice(&status.expect("it runs").stdout).expect("JSON")
    }

    /// Runs a short benchmark, with its audit.
    #[track_caller]
    fn is_sound(&self) {
        let bench = self.lotus(&["bench", "smallbank"], "--cluster").args(["--secs", "1"]).output();
        let bench = bench.expect("it runs");
        assert!(bench.status.success(), "{}", text(&bench));
    }

    /// Kills the processes of nodes of these names.
    fn kill(&self, is_meant: impl Fn(&str) -> bool) {
        let status = self.status();
        let nodes = status["nodes"].as_array().expect("all nodes").iter();
        for node in nodes.filter(|node| is_meant(node["node"].as_str().expect("a name"))) {
            let process = node["process"].to_string();
            let killed = Command::new("kill").args(["-KILL", &process]).status();
            assert!(killed.expect("there is such a command").success(), "{node}");
        }
    }

    /// Transactions that applications have committed; `None` if a compute node does not answer.
    fn committed(&self) -> Option<u64> {
        (0..COMPUTE_NODES).map(|node| committed_at(self.host, METRICS + node)).sum()
    }

    /// Waits until every compute node says that it serves: each learns by itself, a little after
    /// the membership has changed, that a memory node is not needed any more.
    fn all_serve(&self) {
        for node in 0..COMPUTE_NODES {
            eventually(|| match get(self.host, METRICS + node, "/health") {
                Some(answer) if answer.ends_with("serving\n") => Ok(()),
                answer => Err(format!("compute node {node}: {answer:?}")),
            });
        }
    }

    /// Waits until `more` transactions have committed than by now; returns whether they did before
    /// the benchmark ended.
    fn goes_on(&self, benchmark: &mut Child, more: u64) -> bool {
        let begin = self.committed().expect("all nodes serve");
        let mut outlived = true;
        eventually(|| {
            let now = self.committed().ok_or("a node does not answer")?;
            outlived = matches!(benchmark.try_wait(), Ok(None));
            let reached = now >= begin + more || !outlived;
            reached.then_some(()).ok_or_else(|| format!("{begin} have committed, and then {now}"))
        });
        outlived
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A failed test leaves nothing running.
        let _ = self.cluster("down");
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// What a node answers at its metrics port; `None` if it does not.
fn get(host: Ipv4Addr, port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect((host, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: lotus\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn committed_at(host: Ipv4Addr, port: u16) -> Option<u64> {
    let answer = get(host, port, "/metrics")?;
    let line = "lotus_transactions_total{outcome=\"committed\"} ";
    answer.lines().find_map(|found| found.strip_prefix(line))?.trim().parse().ok()
}

/// Transactions go on while etcd is dead, and after it has come back; then the audit passes.
/// Returns the report, or `None` if a benchmark of `secs` seconds was over too soon to tell.
fn survives_an_outage(etcd: &mut Server, cluster: &Cluster, secs: &str) -> Option<Value> {
    let report = cluster.directory.join("report.json");
    let mut command = cluster.lotus(&["bench", "smallbank"], "--cluster");
    command.args(["--secs", secs, "--warmup", "0", "--json"]).arg(&report);
    let mut benchmark = command.spawn().expect("it runs");
    let begun = cluster.goes_on(&mut benchmark, 1);
    etcd.kill();
    let without = begun && cluster.goes_on(&mut benchmark, PROGRESS);
    etcd.start_again();
    eventually(|| cluster.succeeds("status"));
    let again = without && cluster.goes_on(&mut benchmark, PROGRESS);
    let output = benchmark.wait_with_output().expect("it ends");
    if !again {
        return None;
    }
    assert!(output.status.success(), "{}", text(&output));
    let report = fs::read(report).expect("it was written");
    Some(serde_json::from_slice(&report).expect("JSON"))
}

#[test]
fn transactions_go_on_while_etcd_is_killed_and_started_again() {
    let mut etcd = Server::start();
    let cluster = Cluster::new("outage", 0, &etcd.endpoint());
    eventually(|| cluster.succeeds("up"));
    // The time that a slow machine takes is unknown. Each attempt has a cluster of its own: a
    // benchmark that ends while etcd is dead cannot say what it has done.
    let attempts = ["6", "30", "150"].into_iter();
    let report = attempts.clone().find_map(|secs| {
        let report = survives_an_outage(&mut etcd, &cluster, secs);
        if report.is_none() {
            cluster.done("down");
            cluster.done("up");
        }
        report
    });
    let report = report.expect("150 s are enough for any machine");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert!(report["committed"].as_u64() > Some(2 * PROGRESS), "{report}");
    cluster.done("down");
}

/// State in etcd of a cluster that was killed is not taken for that of the next one.
#[test]
fn a_cluster_that_was_killed_leaves_nothing_to_the_next() {
    let etcd = Server::start();
    let cluster = Cluster::new("lives", 1, &etcd.endpoint());
    eventually(|| cluster.succeeds("up"));
    cluster.kill(|_| true);
    for task in ["up", "status", "down"] {
        cluster.done(task);
    }
    assert_eq!(cluster.cluster("status").status.code(), Some(1));
}

/// Memory node 0 begins a cluster's life in etcd, and is killed like any other; it does not begin
/// another life while the others live.
#[test]
fn memory_node_0_returns_to_a_cluster_that_goes_on() {
    let etcd = Server::start();
    let cluster = Cluster::new("returns", 3, &etcd.endpoint());
    eventually(|| cluster.succeeds("up"));
    let begun = cluster.status()["epoch"].as_u64().expect("an epoch");
    cluster.kill(|node| node == "mn-0");
    let returned = cluster.cluster("up");
    assert!(returned.status.success(), "{}", text(&returned));
    assert!(text(&returned).contains("of which 1 had ended"), "{}", text(&returned));
    let has_come_to = |changes| match cluster.status() {
        now if now["epoch"].as_u64() >= Some(begun + changes) => Ok(()),
        now => Err(now.to_string()),
    };
    // Lost, joined, whole. Only then the audit: it needs all locks free, and filling takes some.
    eventually(|| has_come_to(3));
    // All rows are there; another life would have none.
    cluster.is_sound();
    // The node that it was filled from may go.
    cluster.kill(|node| node == "mn-1");
    eventually(|| has_come_to(4));
    cluster.all_serve();
    cluster.is_sound();
    cluster.done("down");
}

/// Process ids of the compute nodes.
fn compute_nodes(cluster: &Cluster) -> Vec<u64> {
    let status = cluster.status();
    let nodes = status["nodes"].as_array().expect("all nodes").iter();
    nodes
        .filter(|node| node["node"].as_str().expect("a name").starts_with("cn"))
        .map(|node| node["process"].as_u64().expect("it runs"))
        .collect()
}

fn signal(processes: &[u64], signal: &str) {
    for process in processes {
        let sent = Command::new("kill").args([signal, &process.to_string()]).status();
        assert!(sent.expect("there is such a command").success(), "{process}");
    }
}

/// Whether a process has not ended; nothing may collect an ended one.
fn is_alive(process: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Regression: compute nodes did not reach etcd for some seconds while memory node 0 was started
/// again: it began another life beside the one that went on, which nodes started later found empty.
#[test]
fn no_life_begins_beside_one_whose_compute_nodes_do_not_answer() {
    let etcd = Server::start();
    let cluster = Cluster::new("silent", 4, &etcd.endpoint());
    eventually(|| cluster.succeeds("up"));
    // A stopped node is as silent as one that does not reach etcd.
    let processes = compute_nodes(&cluster);
    signal(&processes, "-STOP");
    cluster.kill(|node| node == "mn-0");
    let began = cluster.lotus(&["mn", "--node", "0"], "--file").output().expect("it runs");
    signal(&processes, "-CONT");
    assert_eq!(began.status.code(), Some(2), "{}", text(&began));
    let said = text(&began);
    assert!(said.contains("a life of the cluster has begun in etcd and not ended"), "{said}");
    assert!(said.contains("compute node 0, compute node 1 does not answer"), "{said}");
    // The life goes on, and the memory node returns to it once the compute nodes answer.
    eventually(|| cluster.succeeds("up"));
    eventually(|| cluster.succeeds("status"));
    cluster.is_sound();
    cluster.done("down");
}

/// Regression: `down` on the host of memory node 0 ended the life in which compute nodes of other
/// hosts went on: nodes that were started later found another, empty one.
#[test]
fn down_ends_no_life_in_which_compute_nodes_of_other_hosts_take_part() {
    let etcd = Server::start();
    let cluster = Cluster::new("elsewhere", 5, &etcd.endpoint());
    eventually(|| cluster.succeeds("up"));
    let down = |flag: &str| {
        let mut down = cluster.lotus(&["cluster", "down", "--discard", "--force"], "--file");
        down.args((!flag.is_empty()).then_some(flag));
        let output = down.output().expect("it runs");
        (output.status.code(), text(&output))
    };
    // As on a host of memory nodes alone.
    let state = cluster.directory.join("c.state");
    let names = ["cn-0.pid", "cn-1.pid"];
    let moved = |from: &Path, to: &Path| {
        for name in names {
            fs::rename(from.join(name), to.join(name)).expect("it was started there");
        }
    };
    moved(&state, &cluster.directory);
    let processes = compute_nodes(&cluster);
    let live = down("");
    signal(&processes, "-STOP");
    let silent = down("");
    let told = down("--others-have-ended");
    let after = text(&cluster.cluster("status"));
    moved(&cluster.directory, &state);
    // The operator was wrong. A node learns that its life is over, and ends.
    signal(&processes[..1], "-CONT");
    eventually(|| {
        let log = fs::read_to_string(state.join("cn-0.log")).expect("it was started there");
        let knows = log.contains("the life of the cluster in etcd was ended");
        (knows && !is_alive(processes[0])).then_some(()).ok_or(log)
    });
    // What is left can be ended, although nobody answers any more.
    cluster.done("down");
    assert!(!is_alive(processes[1]));

    assert_eq!(live.0, Some(2), "{}", live.1);
    // One that answers is enough.
    assert!(live.1.contains(": compute node ") && live.1.contains("part in it"), "{}", live.1);
    assert_eq!(silent.0, Some(2), "{}", silent.1);
    assert!(silent.1.contains("compute node 0, compute node 1 does not answer"), "{}", silent.1);
    assert!(silent.1.contains("--others-have-ended"), "{}", silent.1);
    assert_eq!(told.0, Some(0), "{}", told.1);
    assert!(after.contains("no cluster runs"), "{after}");
}

#[test]
fn an_etcd_that_is_not_there_is_named_and_nothing_is_started() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let endpoint = format!("http://{}", nobody.local_addr().expect("it is bound"));
    drop(nobody);
    let cluster = Cluster::new("absent", 2, &endpoint);
    let refused = cluster.cluster("up");
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    let said = text(&refused);
    assert!(said.contains(&format!("etcd does not answer at {endpoint}")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    let state = fs::read_dir(cluster.directory.join("c.state")).expect("it was made");
    assert_eq!(state.count(), 1, "a lock, and no logs");
}
