//! `lotus cluster`: processes that are started, inspected, killed and ended.

mod authority;
mod benchmarks;
mod described;
mod honest;
mod lock_systems;
mod metrics;
mod parts;
mod rows;
mod tables;
mod told;
mod top;
mod walkthrough;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
#[cfg(feature = "tls")]
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use serde_json::Value;

use crate::common::{is_alive, lotus};
use described::{Described, MEMORY_METRICS, METRICS};

/// Longest wait for an event: tests that pass never come near it, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// The sentence of a command that was refused.
#[track_caller]
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", text(output));
    assert!(output.stdout.is_empty(), "{}", text(output));
    let said = String::from_utf8(output.stderr.clone()).expect("text");
    // On a busy machine, steps that take longer than two seconds have lines of their own before it.
    assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
    let last = said.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").expect("it says that it is an error").trim_end().to_owned()
}

/// Sends a signal to a process.
fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.expect("there is such a command").success());
}

/// The process of a node, and its state.
fn node(status: &Value, name: &str) -> (u32, String) {
    let nodes = status["nodes"].as_array().expect("a list");
    let node = nodes.iter().find(|node| node["node"] == name).expect("it is listed");
    let process = node["process"].as_u64().expect("it was started");
    (process as u32, node["state"].as_str().expect("a word").to_owned())
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    executor.run(async move {
        let deadline = handle.now().after(PATIENCE);
        while !holds() {
            assert!(handle.now() < deadline, "not within {PATIENCE:?}: {what}");
            handle.sleep(Duration::from_millis(100)).await;
        }
    });
}

fn comes_and_goes(described: &Described) {
    assert!(described.done(&["up"]).contains("4 nodes serve, 4 of them on this host"));
    let status = described.status();
    assert_eq!(status["healthy"], true, "{status}");
    let processes = ["mn-0", "mn-1", "cn-0", "cn-1"].map(|name| node(&status, name).0);
    assert!(processes.iter().all(|process| is_alive(*process)));
    let table = described.done(&["status"]);
    assert_eq!(table.matches("serving").count(), 4, "{table}");
    assert!(described.logs().contains("loaded workload=\"smallbank\" rows=400"));

    assert!(refusal(&described.cluster(&["up"])).contains("runs already"));
    let twice = lotus(&["mn", "--file", &described.file(), "--node", "1"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice).contains("in use"), "{}", text(&twice));

    // Regression: it ended all nodes, and their data, with no question.
    let refused = refusal(&described.cluster(&["down"]));
    assert!(refused.contains("no [snapshots]") && refused.contains("--discard"), "{refused}");
    assert_eq!(described.status()["healthy"], true, "nothing was ended");
    assert!(described.done(&["down", "--discard"]).contains("4 nodes have ended"));
    assert!(processes.iter().all(|process| !is_alive(*process)));
    assert!(described.left().is_empty(), "{:?}", described.left());
    assert!(!described.logs().contains("error: "), "{}", described.logs());
    assert!(described.done(&["down"]).contains("nothing runs"));
    assert_eq!(described.status()["healthy"], false);
}

#[test]
fn a_cluster_over_shm_comes_and_goes_and_leaves_logs_only() {
    let described = Described::shm("comes");
    comes_and_goes(&described);
    // And again, with the logs of the first.
    described.done(&["up"]);
}

#[test]
fn a_cluster_over_tcp_comes_and_goes_and_leaves_logs_only() {
    let (described, _) = Described::tcp("tcp");
    comes_and_goes(&described);
    let key = fs::metadata(described.directory.join("key")).expect("it was made");
    assert_eq!((key.len(), key.permissions().mode() & 0o777), (32, 0o600));
}

#[test]
fn nodes_that_are_killed_are_left_and_return() {
    let described = Described::shm("killed");
    described.done(&["up"]);
    kill(node(&described.status(), "cn-1").0);
    wait_until("it is expelled", || node(&described.status(), "cn-1").1 == "expelled");
    let status = described.status();
    assert_eq!((&status["healthy"], &status["epoch"]), (&Value::from(false), &Value::from(2)));
    for name in ["mn-0", "mn-1", "cn-0"] {
        let (process, state) = node(&status, name);
        assert!(state == "serving" && is_alive(process), "{name}: {state}");
    }
    assert!(described.done(&["up"]).contains("4 of them on this host, of which 1 had ended"));
    for name in ["cn-1", "cn-0"] {
        kill(node(&described.status(), name).0);
        described.done(&["up"]); // Before the others have noticed.
    }
    let status = described.status();
    assert_eq!((&status["healthy"], &status["epoch"]), (&Value::from(true), &Value::from(7)));
    let beside = text(&lotus(&["cn", "--file", &described.file(), "--node", "1"]));
    assert!(beside.contains("in use") && described.status()["healthy"] == true, "{beside}");
    ["mn-1", "cn-1"].iter().for_each(|name| kill(node(&status, name).0));
    assert!(described.done(&["up"]).contains("of which 2 had ended"));
    assert_eq!(described.status()["healthy"], true, "all take part");
    // The end of the authority's host ends everything.
    let status = described.status();
    ["mn-0", "cn-1"].iter().for_each(|name| kill(node(&status, name).0));
    let refused = refusal(&described.cluster(&["up"]));
    assert!(refused.contains("2 of 4 nodes") && refused.contains("cluster down"), "{refused}");
    assert!(described.done(&["down", "--discard"]).contains("2 nodes have ended; 2 had before"));
    assert!(described.left().is_empty(), "{:?}", described.left());
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_left_running() {
    let (described, host) = Described::serving_tcp("taken");
    let ports = [
        (7402, "memory node 1"),
        (7404, "compute node 1"),
        (7501, "compute node 1"),
        (METRICS + 1, "compute node 1"),
    ];
    for (port, node) in ports {
        let _taken = TcpListener::bind((host, port)).expect("nobody else has it");
        let refused = refusal(&described.cluster(&["up"]));
        assert!(refused.contains(&format!("{node} did not start")), "{refused}");
        assert!(refused.contains(&format!("cannot listen at {host}:{port}")), "{refused}");
        assert!(described.left().is_empty(), "{:?}", described.left());
    }
}

#[test]
fn other_keys_and_sizes_are_refused() {
    let (described, host) = Described::tcp("other");
    described.done(&["up"]);
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let other = Described::new("another", &file);
    let key = other.directory.join("key");
    fs::write(&key, [7; 32]).expect("it is ours");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let status = other.status();
    assert_eq!(
        (&status["authority"], status["reason"].as_str().is_some()),
        (&"refuses".into(), true)
    );
    assert!(status["reason"].to_string().contains("the shared keys differ"), "{status}");
    let shown = text(&lotus(&["cluster", "status", "--file", &other.file()]));
    assert!(shown.contains("the authority: refuses (") && shown.contains("keys differ"), "{shown}");
    wait_until("the log tells of it", || described.logs().contains("connections were not let in"));
    let refused = lotus(&["cn", "--file", &other.file(), "--node", "1"]);
    assert!(text(&refused).contains("the shared keys differ"), "{}", text(&refused));

    // A node with other settings does not take part, if it gets that far.
    fs::copy(described.directory.join("key"), &key).expect("it is ours");
    let elsewhere = file
        .replace("coroutines = 4", "coroutines = 5")
        .replace(&format!("{host}:7404"), &format!("{host}:7405"));
    fs::write(other.file(), elsewhere).expect("it is ours");
    let refused = lotus(&["cn", "--file", &other.file(), "--node", "1"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused).contains("\"coroutines 4\""), "{}", text(&refused));
}

/// Response of a node over HTTP, head included.
fn get(address: (Ipv4Addr, u16), path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is not nothing");
    let request = format!("GET {path} HTTP/1.1\r\nHost: lotus\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

/// The value of a metric, by its whole name with labels.
fn metric(metrics: &str, name: &str) -> f64 {
    let lines = metrics.lines();
    let found = lines.filter_map(|line| line.rsplit_once(' ')).find(|(known, _)| *known == name);
    let found = found.unwrap_or_else(|| panic!("no {name} in:\n{metrics}")).1;
    found.parse().expect("a number")
}

/// Regression: memory nodes had no metrics, and logs did not mention refused connections.
fn all_nodes_show_themselves(described: &Described, host: Ipv4Addr) {
    described.done(&["up"]);
    for index in 0..2 {
        let shown = || get((host, MEMORY_METRICS + index), "/metrics");
        wait_until("compute nodes are connected", || metric(&shown(), "lotus_connections") > 0.0);
        let metrics = shown();
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        let of = |name: &str| metric(&metrics, name);
        assert!(of("lotus_region_bytes") > 1e6, "{metrics}");
        assert!(of("lotus_region_used_bytes") > 0.0, "{metrics}");
        assert!((of("lotus_region_limit_bytes") - f64::from(64 << 20)).abs() < 1.0, "{metrics}");
        assert!(of("lotus_uptime_seconds") > 0.0 && of("process_cpu_seconds_total") > 0.0);
        assert!(of("process_resident_memory_bytes") > 1e6, "{metrics}");
        assert!(metrics.contains("lotus_build_info{version="), "{metrics}");
        let health = get((host, MEMORY_METRICS + index), "/health");
        assert!(health.ends_with("serving\n"), "{health}");
    }
    // A client that speaks another protocol.
    let mut stranger = TcpStream::connect((host, 7500)).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it listens");
    wait_until("the log tells of it", || described.logs().contains("a client was not let in"));
    let line = described.logs();
    let line = line.lines().find(|line| line.contains("a client was not let in"));
    assert!(line.is_some_and(|line| line.contains("does not speak this protocol")), "{line:?}");
    described.done(&["down", "--discard"]);
}

#[test]
fn all_nodes_show_themselves_over_shm_and_strangers_are_named() {
    let (described, host) = Described::serving("shown");
    all_nodes_show_themselves(&described.with_memory_metrics(host), host);
}

#[test]
fn all_nodes_show_themselves_over_tcp_and_strangers_are_named() {
    let (described, host) = Described::serving_tcp("shown-tcp");
    all_nodes_show_themselves(&described.with_memory_metrics(host), host);
}

#[test]
fn a_running_cluster_is_driven_again_and_again() {
    let (described, host) = Described::serving("driven");
    let bench = |workload: &str, flags: &[&str]| {
        let file = described.file();
        lotus(&[&["bench", workload, "--cluster", &file, "--txns", "500"], flags].concat())
    };
    let refused = refusal(&bench("smallbank", &[]));
    assert!(refused.contains("authority"), "{refused}");

    described.done(&["up"]);
    let doors = [0, 1].map(|node| described.directory.join(format!("c.state/client-{node}.sock")));
    assert!(doors.iter().all(|door| door.exists()), "applications of this host have their doors");
    let refused = refusal(&bench("kvs", &[]));
    assert!(refused.contains("is loaded with smallbank"), "{refused}");
    let json = described.directory.join("report.json");
    let report = json.to_str().expect("UTF-8");
    // The first one's changes of the balances must not surprise the second.
    for _ in 0..2 {
        let output = bench("smallbank", &["--json", report]);
        assert!(output.status.success(), "{}{}", text(&output), described.logs());
        let report: Value =
            serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("JSON");
        assert_eq!(report["audit"]["passed"], true, "{report}");
        assert!(report["committed"].as_u64() > Some(0), "{report}");
    }
    for node in 0..2 {
        let health = get((host, METRICS + node), "/health");
        assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("serving\n"), "{health}");
        let metrics = get((host, METRICS + node), "/metrics");
        let committed = "lotus_transactions_total{outcome=\"committed\"} ";
        assert!(metrics.contains(committed), "{metrics}");
        assert!(!metrics.contains(&format!("{committed}0\n")), "{metrics}");
    }
    described.done(&["down", "--discard"]);
    assert!(doors.iter().all(|door| !door.exists()));
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

/// Number of a compute node's shards, and the latest of their epochs.
fn shards(described: &Described, node: usize) -> (u64, u64) {
    let output = lotus(&["shards", "--json", "--file", &described.file()]);
    assert!(output.status.success(), "{}{}", text(&output), described.logs());
    let shards: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let node = &shards["nodes"][node];
    let number = |value: &Value| value.as_u64().expect("a number");
    (number(&node["shards"]), number(&node["epochs"][1]))
}

/// Shards go to and fro between two processes, by orders to either, while applications call
/// transactions in both; the benchmark audits the data.
#[test]
fn shards_are_moved_by_hand_while_transactions_run() {
    let (described, host) = Described::serving("moved");
    let file = described.file();
    let refused = refusal(&lotus(&["shards", "--file", &file]));
    assert!(refused.contains("does not run: the authority"), "{refused}");
    described.done(&["up"]);
    assert_eq!((shards(&described, 0), shards(&described, 1)), ((2048, 1), (2048, 1)));
    let all = lotus(&["shards", "--file", &file]);
    assert!(text(&all).contains("0-4094/2") && text(&all).contains("1-4095/2"), "{}", text(&all));

    let balance = |switch: &str, said: &str| {
        let output = lotus(&["shards", "balance", switch, "--file", &file]);
        assert!(text(&output).contains(said), "{}", text(&output));
    };
    // Shards that are moved by hand are to stay there.
    balance("off", "load balancing: turned off");
    let move_to =
        |shards: &str, to: &str| lotus(&["shards", "move", shards, "--to", to, "--file", &file]);
    let json = described.directory.join("report.json");
    std::thread::scope(|scope| {
        let arguments = ["bench", "smallbank", "--cluster", &file, "--txns", "10000", "--json"];
        let report = json.to_str().expect("UTF-8");
        let bench = scope.spawn(move || lotus(&[&arguments[..], &[report]].concat()));
        for to in ["cn-1", "cn-0", "cn-1"] {
            let moved = move_to("0-299", to);
            assert!(moved.status.success(), "{}{}", text(&moved), described.logs());
        }
        let output = bench.join().expect("it does not panic");
        assert!(output.status.success(), "{}{}", text(&output), described.logs());
    });
    let report: Value =
        serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert!(report["ownership"]["local_locks"].as_f64() > Some(0.0), "{report}");

    let status = described.status();
    let given = |node: usize| status["nodes"][2 + node]["shards_given"].as_u64();
    assert!(given(0) > Some(0) && given(1) > Some(0), "{status}");
    assert!(status["nodes"][1]["processor_s"].as_f64().is_some(), "{status}");
    let metrics = get((host, METRICS), "/metrics");
    assert!(!metrics.contains("lotus_shards_moved_total 0\n"), "{metrics}");

    for (shards, to, said) in [
        ("0-3", "cn-1", "compute node 1 has shards 0-3 already"),
        ("0-3", "7", "describes no compute node 7: there are 2"),
        ("4096", "cn-1", "\"4096\" names no shards"),
        ("0", "mn-0", "a compute node is cn-0"),
    ] {
        let refused = refusal(&move_to(shards, to));
        assert!(refused.contains(said), "{refused}");
    }
    for (flags, said) in [
        (&["--cn", "9"][..], "describes no compute node 9"),
        (&["--table", "none"], "the cluster has no table none, but"),
    ] {
        let refused = refusal(&lotus(&[&["shards", "--file", &file], flags].concat()));
        assert!(refused.contains(said), "{refused}");
    }
    balance("on", "load balancing: on");
    let (process, _) = node(&described.status(), "cn-1");
    kill(process);
    wait_until("it is expelled", || node(&described.status(), "cn-1").1 == "expelled");
    let refused = refusal(&move_to("0", "cn-1"));
    assert!(refused.contains("compute node 1 does not serve"), "{refused}");
}

fn kill(process: u32) {
    let killed = Command::new("kill").args(["-KILL", &process.to_string()]).status();
    assert!(killed.expect("there is such a command").success());
    wait_until("it has ended", || !is_alive(process));
}

/// A memory node that is killed while transactions run is given up: they go on with the copies that
/// are left and lose nothing, and status and metrics show it. Last copies are never given up.
fn memory_nodes_disappear(described: &Described, host: Ipv4Addr) {
    let bench = |txns: &str| {
        let file = described.file();
        let output = lotus(&["bench", "smallbank", "--cluster", &file, "--txns", txns]);
        (output.status.success(), text(&output))
    };
    described.done(&["up"]);
    let committed = || {
        let metrics = get((host, METRICS), "/metrics");
        let name = "lotus_transactions_total{outcome=\"committed\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| bench("50000"));
        wait_until("transactions commit", || committed() > 0);
        kill(node(&described.status(), "mn-2").0);
        wait_until("it is lost", || node(&described.status(), "mn-2").1 == "lost");
        let before = committed();
        wait_until("transactions go on", || committed() > before + 100);
        let (sound, said) = running.join().expect("it does not panic");
        assert!(sound, "{said}{}", described.logs());
    });
    let status = described.status();
    assert_eq!((&status["healthy"], &status["copies"]), (&Value::from(false), &Value::from(2)));
    for name in ["mn-0", "mn-1", "cn-0", "cn-1"] {
        assert_eq!(node(&status, name).1, "serving", "{name}");
    }
    assert!(described.logs().contains("memory node 2 is lost: copies of each row left"));
    for node in 0..2 {
        let health = get((host, METRICS + node), "/health");
        assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("serving\n"), "{health}");
        let metrics = get((host, METRICS + node), "/metrics");
        let says = |line: &str| assert!(metrics.contains(&format!("\n{line}\n")), "{metrics}");
        says("lotus_memory_nodes_lost 1");
        says("lotus_memory_nodes_silent 0");
        says("lotus_copies 2");
    }
    // Balancing has left the shard with either of them.
    let moves = ["cn-0", "cn-1"].map(|to| {
        let moved = lotus(&["shards", "move", "0", "--to", to, "--file", &described.file()]);
        (moved.status.success(), text(&moved))
    });
    assert!(moves.iter().any(|(moved, _)| *moved), "{moves:?}");

    // One copy of everything is left, on the node whose process keeps the authority.
    kill(node(&described.status(), "mn-1").0);
    wait_until("it is lost", || node(&described.status(), "mn-1").1 == "lost");
    wait_until("transactions go on", || bench("500").0);
    assert_eq!(described.status()["copies"], 1);
    assert!(described.done(&["down", "--discard"]).contains("3 nodes have ended; 2 had before"));
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

/// A node with the last copies is not given up: the error of a write names the missing node.
fn last_copies_disappear(described: &Described, host: Ipv4Addr) {
    let bench = || {
        let file = described.file();
        lotus(&["bench", "smallbank", "--cluster", &file, "--secs", "60", "--warmup", "0"])
    };
    let file = fs::read_to_string(described.file()).expect("it is ours");
    fs::write(described.file(), file.replace("replicas = 3", "replicas = 1")).expect("it is ours");
    described.done(&["up"]);
    std::thread::scope(|scope| {
        let running = scope.spawn(bench);
        wait_until("transactions commit", || {
            let metrics = get((host, METRICS), "/metrics");
            let committed = "lotus_transactions_total{outcome=\"committed\"} ";
            metrics.contains(committed) && !metrics.contains(&format!("{committed}0\n"))
        });
        kill(node(&described.status(), "mn-1").0);
        let stopped = refusal_of(&running.join().expect("it does not panic"));
        let named = stopped.contains("memory node 1");
        assert!(named, "{stopped}");
    });
    wait_until("its loss is known", || node(&described.status(), "mn-1").1 == "last copies lost");
    assert_eq!(described.status()["copies"], 0);
    let refused = refusal_of(&bench());
    assert!(refused.contains("memory node 1 does not answer"), "{refused}");
    // At least one compute node has tried to write.
    let healths = [0, 1].map(|node| get((host, METRICS + node), "/health"));
    let says_so = |health: &String| {
        let lost = "the last copies of some rows do not answer\n";
        health.starts_with("HTTP/1.1 503") && health.ends_with(lost)
    };
    assert!(healths.iter().any(says_so), "{healths:?}");
    let moved = lotus(&["shards", "move", "0", "--to", "cn-1", "--file", &described.file()]);
    assert!(refusal(&moved).contains("memory node 1 does not answer"), "{}", text(&moved));
    assert!(described.done(&["down", "--discard"]).contains("4 nodes have ended; 1 had before"));
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

/// Same as [`refusal`], for a command that shows its progress.
#[track_caller]
fn refusal_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", text(output));
    text(output).lines().last().expect("it says something").to_owned()
}

#[test]
fn transactions_go_on_without_memory_nodes_over_shm() {
    let (described, host) = Described::serving("gone");
    memory_nodes_disappear(&described.with_three_copies(None), host);
}

#[test]
fn transactions_go_on_without_memory_nodes_over_tcp() {
    let (described, host) = Described::serving_tcp("gone-tcp");
    memory_nodes_disappear(&described.with_three_copies(Some(host)), host);
}

#[test]
fn last_copies_that_disappear_are_named_over_shm() {
    let (described, host) = Described::serving("last");
    last_copies_disappear(&described.with_three_copies(None), host);
}

#[test]
fn last_copies_that_disappear_are_named_over_tcp() {
    let (described, host) = Described::serving_tcp("last-tcp");
    last_copies_disappear(&described.with_three_copies(Some(host)), host);
}

/// A certificate authority, and what it signs.
#[cfg(feature = "tls")]
struct Certificates(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

#[cfg(feature = "tls")]
impl Certificates {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new([]).expect("no names");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("randomness");
        Self(rcgen::CertifiedIssuer::self_signed(params, key).expect("it signs itself"))
    }

    /// Writes what a node of the cluster needs.
    fn write(&self, directory: &Path, cluster: &str) {
        fs::write(directory.join("ca.pem"), self.0.pem()).expect("it is ours");
        self.sign(directory, "node", cluster, 4000);
    }

    /// Writes a certificate that runs out with a year, and its key.
    fn sign(&self, directory: &Path, whose: &str, name: &str, last_year: i32) {
        let key = rcgen::KeyPair::generate().expect("randomness");
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).expect("a name");
        params.not_after = rcgen::date_time_ymd(last_year, 12, 31);
        let certificate = params.signed_by(&key, &self.0).expect("it signs");
        let write = |ending: &str, text: String| {
            fs::write(directory.join(format!("{whose}.{ending}")), text).expect("it is ours");
        };
        write("pem", certificate.pem());
        write("key", key.serialize_pem());
        // One that others can read is refused.
        let key = directory.join(format!("{whose}.key"));
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    }
}

#[cfg(feature = "tls")]
const TLS: &str = "[tls]\nca = \"ca.pem\"\ncertificate = \"node.pem\"\nkey = \"node.key\"\n\
                   cluster = \"orders.lotus\"\n";

#[cfg(feature = "tls")]
#[test]
fn with_tls_only_nodes_of_the_cluster_are_let_in() {
    let (described, _) = Described::tcp_with("sealed", "", TLS);
    let ours = Certificates::new();
    ours.write(&described.directory, "orders.lotus");
    comes_and_goes(&described);

    described.done(&["up"]);
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let invoices = file.replace("orders.lotus", "invoices.lotus");
    let theirs = Certificates::new();
    let plain = file.split("[tls]").next().expect("all before").to_owned();
    let other_name = "bears another name than is let in";
    // Issuer, name and file, and the refusal.
    let cases = [
        (&theirs, "orders.lotus", &file, "was signed by another authority"),
        (&ours, "invoices.lotus", &invoices, other_name),
        (&ours, "applications.orders.lotus", &file, other_name),
        (&ours, "orders.lotus", &plain, "one side demands a shared key or TLS"),
    ];
    let other = Described::new("unsealed", "");
    for (issuer, name, file, said) in cases {
        issuer.write(&other.directory, name);
        fs::write(other.file(), file).expect("it is ours");
        let status = other.status();
        assert_eq!(status["authority"], "refuses", "{status}");
        assert!(status["reason"].as_str().is_some_and(|why| why.contains(said)), "{status}");
        let refused = lotus(&["cn", "--file", &other.file(), "--node", "1"]);
        assert!(text(&refused).contains(said), "{}", text(&refused));
    }
    // A node refuses its own expired certificate before others do.
    fs::write(other.file(), file).expect("it is ours");
    ours.sign(&other.directory, "node", "orders.lotus", 1999);
    let refused = refusal(&other.cluster(&["up"]));
    assert!(refused.ends_with("node.pem: the certificate has run out"), "{refused}");
    assert_eq!(described.status()["healthy"], true);
}

#[cfg(feature = "tls")]
#[test]
fn applications_are_served_over_tls_if_they_have_certificates_of_their_own() {
    let (described, host) = Described::tcp_with("applications", "", TLS);
    let tls = format!("{TLS}client_certificate = \"app.pem\"\nclient_key = \"app.key\"\n");
    let served = |file: String, node: u16| {
        let address = format!("address = \"{host}:{}\"\n", 7403 + node);
        let client = format!("{address}client = \"{host}:{}\"\n", 7500 + node);
        file.replace(&address, &client)
    };
    let file = fs::read_to_string(described.file()).expect("it is ours").replace(TLS, &tls);
    fs::write(described.file(), served(served(file, 0), 1)).expect("it is ours");
    let directory = &described.directory;
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    ours.write(directory, "orders.lotus");
    described.done(&["up"]);

    let bench = || {
        let (file, short) = (described.file(), ["--txns", "100"]);
        lotus(&[&["bench", "smallbank", "--cluster", &file], &short[..]].concat())
    };
    let application = "applications.orders.lotus";
    let cases = [
        (&theirs, application, 4000, "another authority has signed this side's certificate"),
        (&ours, "orders.lotus", 4000, "bears another name than is let in there"),
        (&ours, "applications.invoices.lotus", 4000, "bears another name than is let in there"),
        (&ours, application, 1999, "app.pem: the certificate has run out"),
    ];
    let refused = refusal(&bench());
    assert!(refused.contains("app.key: "), "{refused}");
    for (issuer, name, last_year, said) in cases {
        issuer.sign(directory, "app", name, last_year);
        let refused = refusal(&bench());
        assert!(refused.contains(said), "{said}: {refused}");
    }
    ours.sign(directory, "app", application, 4000);
    let output = bench();
    assert!(output.status.success(), "{}{}", text(&output), described.logs());
    described.done(&["down", "--discard"]);
}

#[test]
fn descriptions_that_make_no_sense_are_named_with_their_line() {
    let cases = [
        ("fabric = \"shm\"\nnodes = 3\n", "c.toml, line 2: unknown field `nodes`"),
        ("fabric = \"shm\"\n[[memory_node]]\n", "c.toml, line 1: missing field `compute_node`"),
        (
            "fabric = \"shm\"\nreplicas = 2\n[[memory_node]]\n[[compute_node]]\n",
            "line 2: 2 replicas",
        ),
        ("half a fi", "c.toml, line 1: "),
        ("", "c.toml, line 1: missing field `fabric`"),
    ];
    let described = Described::new("nonsense", "");
    for (description, said) in cases {
        fs::write(described.file(), description).expect("it is ours");
        let refused = refusal(&described.cluster(&["up"]));
        assert!(refused.contains(said), "{description}: {refused}");
    }
    let nodes = "fabric = \"shm\"\n[[memory_node]]\n[[compute_node]]\n";
    fs::write(described.file(), nodes).expect("it is ours");
    let refused = refusal(&lotus(&["cn", "--file", &described.file(), "--node", "1"]));
    assert!(refused.contains("describes no compute node 1: there are 1"), "{refused}");
    let refused = refusal(&lotus(&["cluster", "up", "--file", "/nowhere/c.toml"]));
    assert!(refused.contains("cannot read /nowhere/c.toml"), "{refused}");
}

/// A cluster that was made by `lotus cn` would lack the program's tables.
#[test]
fn the_compute_nodes_of_a_program_are_run_by_nothing_else() {
    let described = Described::shm("program");
    let file = fs::read_to_string(described.file()).expect("it was written");
    fs::write(described.file(), format!("program = \"no-such-program\"\n{file}"))
        .expect("it is ours");
    let refused = refusal(&lotus(&["cn", "--file", &described.file(), "--node", "0"]));
    assert!(refused.contains("no-such-program, not by lotus cn"), "{refused}");
    let refused = refusal(&described.cluster(&["up"]));
    assert!(refused.contains("cannot start compute node 0 by"), "{refused}");
    assert!(refused.contains("no-such-program: No such file"), "{refused}");
    assert_eq!(described.status()["healthy"], false, "memory nodes have ended as well");
}
