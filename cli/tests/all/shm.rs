//! `lotus bench --fabric shm`: memory nodes as processes, and their ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::common::{Scratch, is_alive};

const SMALL_BANK: [&str; 3] = ["smallbank", "--accounts", "500"];
const LOCKS: [&str; 5] = ["locks", "--count", "50", "--threads", "2"];
/// Longer than any test waits: such a run does not end by itself.
const FOR_EVER: &str = "80000";

/// A run with its own directory for sockets.
struct Run {
    process: Child,
    errors: BufReader<ChildStderr>,
    temporary: PathBuf,
}

impl Run {
    /// Starts a run that goes on for ever, and waits until clients issue transactions.
    fn start(name: &str, what: &[&str]) -> Self {
        let temporary = std::env::temp_dir().join(format!("lotus-{name}-{}", std::process::id()));
        fs::create_dir(&temporary).expect("a fresh directory");
        let mut process = Command::new(env!("CARGO_BIN_EXE_lotus"))
            .arg("bench")
            .args(what)
            .args(["--fabric", "shm", "--secs", FOR_EVER])
            .env("TMPDIR", &temporary)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("the binary was built for this test");
        let mut errors = BufReader::new(process.stderr.take().expect("piped"));
        let running = errors.by_ref().lines().any(|line| line.is_ok_and(|line| line == "running"));
        assert!(running, "the run ended before it ran");
        Self { process, errors, temporary }
    }

    /// The processes that are memory nodes of this run.
    fn memory_nodes(&self) -> Vec<u32> {
        let parent = format!(" {} ", self.process.id());
        let is_child = |process: &u32| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            // After the name: the state, then the parent.
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.get(2..).is_some_and(|rest| rest.starts_with(&parent)))
        };
        let all = fs::read_dir("/proc").expect("a list of processes");
        let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.filter(is_child).collect()
    }

    /// Waits until the run, all its nodes and all their files are gone.
    fn expect_gone(mut self, nodes: &[u32]) -> (Option<i32>, String) {
        let status = self.process.wait().expect("it is ours");
        let mut said = String::new();
        self.errors.read_to_string(&mut said).expect("text");
        for node in nodes {
            while is_alive(*node) {
                std::thread::yield_now();
            }
        }
        let left: Vec<_> = fs::read_dir(&self.temporary).expect("it is there").collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        fs::remove_dir(&self.temporary).expect("it is empty");
        (status.code(), said)
    }
}

fn signal(name: &str, process: u32) {
    let number = process.to_string();
    let sent =
        Command::new("kill").args([name, &number]).status().expect("there is such a command");
    assert!(sent.success(), "process {process} is not there");
}

#[test]
fn a_benchmark_passes_its_audit_and_its_memory_nodes_do_nothing() {
    let scratch = Scratch::new("shm");
    let json = scratch.path("report.json");
    let output = Command::new(env!("CARGO_BIN_EXE_lotus"))
        .arg("bench")
        .args(SMALL_BANK)
        .args(["--fabric", "shm", "--txns", "20000", "--json"])
        .arg(&json)
        .output()
        .expect("the binary was built for this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&json).expect("the result");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["fabric"], "shm");
    assert_eq!(report["audit"]["passed"], true);
    assert!(report["committed"].as_u64().is_some_and(|committed| committed > 0));
    assert_eq!(report["memory_nodes"]["processes"], 3);
    // From loading to audit; the little that is allowed is the end of the last answer before.
    let busy_s = report["memory_nodes"]["processor_s"].as_f64().expect("the kernel says");
    assert!(busy_s < 0.01, "the memory nodes ran for {busy_s} s");
}

#[test]
fn a_memory_node_that_dies_ends_the_run_with_a_sentence() {
    for (name, what, count) in [("bank", &SMALL_BANK[..], 3), ("locks", &LOCKS, 1)] {
        let run = Run::start(&format!("dies-{name}"), what);
        let nodes = run.memory_nodes();
        assert_eq!(nodes.len(), count);
        let last = nodes[count - 1];
        signal("-KILL", last);
        let (code, said) = run.expect_gone(&nodes);
        assert_eq!(code, Some(2));
        let sentence = said.lines().last().expect("it says something");
        assert!(sentence.contains(&format!("(process {last}) has ended")), "{sentence}");
    }
}

#[test]
fn whatever_ends_the_run_ends_its_memory_nodes() {
    // An interrupt is no cause to test: a shell that runs tests in the background may ignore it.
    for cause in ["-TERM", "-KILL"] {
        let run = Run::start(cause.trim_start_matches('-'), &SMALL_BANK);
        let nodes = run.memory_nodes();
        assert_eq!(nodes.len(), 3);
        signal(cause, run.process.id());
        assert_eq!(run.expect_gone(&nodes).0, None, "{cause}");
    }
}

#[test]
fn a_place_where_no_socket_can_be_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_lotus"))
        .args(["host", "--shm", "/nowhere/at/all", "--node", "0", "--nodes", "4"])
        .output()
        .expect("the binary was built for this test");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nowhere/at/all/node-0.sock"), "{said}");
}
