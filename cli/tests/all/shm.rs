//! `lotus bench --fabric shm`: memory nodes as processes, and their ends.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::common::Scratch;
use crate::common::runs::{self, Apart, signal};

const SMALL_BANK: [&str; 3] = ["smallbank", "--accounts", "500"];

const LOTUS: &str = env!("CARGO_BIN_EXE_lotus");
#[test]
fn a_benchmark_passes_its_audit_and_its_memory_nodes_do_nothing() {
    let scratch = Scratch::new("shm");
    let json = scratch.path("report.json");
    let output = Command::new(LOTUS)
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
    runs::ends_with_a_memory_node(LOTUS, &SMALL_BANK, 3);
}

#[test]
fn whatever_ends_the_run_ends_its_memory_nodes() {
    // An interrupt is no cause to test: a shell that runs tests in the background may ignore it.
    for cause in ["-TERM", "-KILL"] {
        let run = Apart::start(LOTUS, &SMALL_BANK);
        let nodes = run.memory_nodes();
        assert_eq!(nodes.len(), 3);
        signal(cause, run.process.id());
        assert_eq!(run.expect_gone(&nodes).0, None, "{cause}");
    }
}

#[test]
fn a_place_where_no_socket_can_be_is_an_error() {
    let output = Command::new(LOTUS)
        .args(["host", "--shm", "/nowhere/at/all", "--node", "0", "--nodes", "4"])
        .output()
        .expect("the binary was built for this test");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("/nowhere/at/all/node-0.sock"), "{said}");
}
