//! `lotus bench --live`, and `lotus top` at its socket.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lotus_fabric::env::Env;
use lotus_fabric::exec::Executor;
use serde_json::Value;

use crate::common::{Scratch, lotus};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// A benchmark under way.
struct Running(Child);

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
        let command = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the binary was built for this test"))
    }

    /// Waits for its end, which must be a good one.
    fn ends_well(mut self) {
        let ended = self.0.wait().expect("it was started");
        let mut said = String::new();
        let error = self.0.stderr.as_mut().expect("it is piped");
        error.read_to_string(&mut said).expect("text");
        assert!(ended.success(), "{said}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A failed test leaves nothing running.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects to a socket as soon as something listens there.
fn connected(path: &str) -> UnixStream {
    let mut executor = Executor::new(Env::real(0));
    let handle = executor.handle().clone();
    let mut found = None;
    executor.run(async {
        let deadline = handle.now().after(PATIENCE);
        while found.is_none() {
            assert!(handle.now() < deadline, "nothing listens at {path}");
            found = UnixStream::connect(path).ok();
            handle.sleep(Duration::from_millis(10)).await;
        }
    });
    found.expect("it is connected")
}

fn lines(stream: UnixStream) -> impl Iterator<Item = Value> {
    stream.set_read_timeout(Some(PATIENCE)).expect("it is not nothing");
    let lines = BufReader::new(stream).lines();
    lines.map(|line| serde_json::from_str(&line.expect("text")).expect("JSON"))
}

#[test]
fn a_benchmark_is_shown_while_it_runs_and_leaves_no_socket() {
    let scratch = Scratch::new("live");
    let socket = scratch.path("live.sock");
    let bench = ["bench", "smallbank", "--accounts", "1000", "--secs", "4", "--live", &socket];
    let running = Running::start(&bench);
    // It reads nothing, to the end.
    let _lazy = connected(&socket);
    let all = lines(connected(&socket));

    let refused = lotus(&["bench", "kvs", "--secs", "1", "--live", &socket]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("another benchmark is shown"), "{said}");

    let shown = lotus(&["top", &socket, "--once"]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.contains("smallbank on local: "), "{shown}");

    let all: Vec<Value> = all.collect();
    let running_lines = all.iter().filter(|line| line["phase"] == "running");
    let busy = running_lines.clone().filter(|line| line["per_s"].as_f64() > Some(0.0));
    assert!(busy.clone().count() >= 4, "{all:#?}");
    let has = |line: &Value| {
        line["p50_us"].as_f64() > Some(0.0)
            && line["p99_us"].as_f64() >= line["p50_us"].as_f64()
            && line["hits"]["own locks"].as_f64() > Some(0.0)
    };
    assert!(busy.clone().any(has), "{all:#?}");
    assert!(
        busy.clone().any(|line| line["aborts_per_s"]["logic"].as_f64() > Some(0.0)),
        "{all:#?}"
    );
    let left = |line: &Value| line["left_s"].as_f64().expect("a number");
    assert!(left(&all[0]) >= left(&all[all.len() - 1]), "{all:#?}");
    running.ends_well();
    assert!(UnixStream::connect(&socket).is_err() && !std::path::Path::new(&socket).exists());
}

#[test]
fn a_simulated_benchmark_shows_virtual_seconds_and_a_dead_one_is_replaced() {
    let scratch = Scratch::new("live-sim");
    let socket = scratch.path("live.sock");
    let bench = |secs| {
        ["bench", "kvs", "--fabric", "sim", "--keys", "1000", "--secs", secs, "--live", &socket]
    };
    let running = Running::start(&bench("60"));
    let line = lines(connected(&socket)).find(|line| line["phase"] == "running");
    let line = line.expect("it runs");
    assert_eq!((&line["is_virtual"], &line["fabric"]), (&true.into(), &"sim".into()), "{line}");
    drop(running);
    let dead = lotus(&["top", &socket, "--once"]);
    let said = String::from_utf8_lossy(&dead.stderr).into_owned();
    assert_eq!(dead.status.code(), Some(2), "{said}");
    assert!(said.contains("has ended"), "{said}");
    Running::start(&bench("0.001")).ends_well();
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn a_benchmark_of_locks_is_shown_too() {
    let scratch = Scratch::new("live-locks");
    let socket = scratch.path("live.sock");
    let bench =
        ["bench", "locks", "--lock", "dslr", "--count", "100", "--secs", "2", "--live", &socket];
    let running = Running::start(&bench);
    let shown = lines(connected(&socket)).find(|line| line["p50_us"].as_f64() > Some(0.0));
    let shown = shown.expect("locks are released");
    assert_eq!((&shown["counted"], &shown["bench"]), (&"released".into(), &"locks dslr".into()));
    running.ends_well();
}
