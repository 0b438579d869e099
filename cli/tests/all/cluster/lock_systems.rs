//! Clusters of processes whose locks are on memory nodes.

use std::fs;

use serde_json::Value;

use super::described::Described;
use super::{kill, node, refusal, text, wait_until};
use crate::common::lotus;

/// Names the lock system, and a directory of snapshots, in the file of a cluster.
fn with_locks(described: &Described, locks: &str) {
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let said = format!("locks = \"{locks}\"\n[snapshots]\ndirectory = \"kept\"\n[[mem");
    fs::write(described.file(), file.replacen("[[mem", &said, 1)).expect("it is ours");
}

/// Drives the cluster and audits its data; returns the report.
#[track_caller]
fn bench(described: &Described) -> Value {
    let json = described.directory.join("report.json");
    let (file, report) = (described.file(), json.to_str().expect("UTF-8"));
    let words = ["bench", "smallbank", "--cluster", &file, "--txns", "500"];
    let output = lotus(&[&words[..], &["--json", report]].concat());
    assert!(output.status.success(), "{}{}", text(&output), described.logs());
    let report = serde_json::from_slice(&fs::read(&json).expect("it was written"));
    let report: Value = report.expect("JSON");
    assert_eq!(report["audit"]["passed"], true, "{report}");
    assert!(report["committed"].as_u64() > Some(0), "{report}");
    report
}

/// Kills a node, and starts it again once it is out.
fn dies_and_returns(described: &Described, name: &str, end: &str) {
    kill(node(&described.status(), name).0);
    wait_until(end, || node(&described.status(), name).1 == end);
    if name.starts_with("cn") {
        bench(described);
    }
    assert!(described.done(&["up"]).contains("of which 1 had ended"));
    assert_eq!(described.status()["healthy"], true, "{}", described.logs());
    bench(described);
}

/// What asks for owners of locks is refused in one sentence, also while the cluster runs.
fn what_needs_owners_is_refused(described: &Described) {
    let file = described.file();
    for words in [&["move", "0-3", "--to", "cn-1"][..], &["balance", "on"], &["balance", "off"]] {
        let refused = refusal(&lotus(&[&["shards"], words, &["--file", &file]].concat()));
        let said = "says locks = \"declock\": locks on memory nodes have no owners";
        assert!(refused.contains(said), "{words:?}: {refused}");
    }
}

/// H2, H4: load, a compute node that dies under its locks and returns, a snapshot, and a cluster
/// that begins with it.
fn a_compute_node_is_lost(described: &Described) {
    with_locks(described, "declock");
    described.done(&["up"]);
    what_needs_owners_is_refused(described);
    let report = bench(described);
    assert_eq!(report["config"]["locks"], "declock", "{report}");
    assert_eq!(report["ownership"]["local_locks"], 0.0, "{report}");
    let checks = report["audit"]["checks"].as_array().expect("a list");
    let free = |check: &&Value| check["name"] == "every lock object is free";
    assert_eq!(checks.iter().find(free).expect("it is judged")["passed"], true, "{report}");
    dies_and_returns(described, "cn-1", "expelled");
    assert!(described.done(&["down"]).contains("a snapshot "));
    described.done(&["up"]);
    assert!(described.logs().contains("restored the snapshot"), "{}", described.logs());
    bench(described);
    described.done(&["down", "--no-snapshot"]);
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

#[test]
fn h2_a_compute_node_dies_under_locks_on_memory_nodes_over_shm() {
    a_compute_node_is_lost(&Described::serving("locks-shm").0);
}

#[test]
fn h2_a_compute_node_dies_under_locks_on_memory_nodes_over_tcp() {
    a_compute_node_is_lost(&Described::serving_tcp("locks-tcp").0);
}

/// H23: the locks of a memory node that is lost move with its primaries, and back when it is
/// filled.
fn a_memory_node_is_lost(described: &Described) {
    with_locks(described, "declock");
    described.done(&["up"]);
    bench(described);
    dies_and_returns(described, "mn-1", "lost");
    described.done(&["down", "--no-snapshot"]);
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

#[test]
fn h23_locks_move_with_the_primaries_of_a_lost_memory_node_over_shm() {
    a_memory_node_is_lost(&Described::serving("lock-memory").0);
}

#[test]
fn h23_locks_move_with_the_primaries_of_a_lost_memory_node_over_tcp() {
    a_memory_node_is_lost(&Described::serving_tcp("lock-memory-tcp").0);
}

#[test]
fn a_node_with_another_lock_system_does_not_take_part() {
    let described = Described::shm("locks-differ");
    with_locks(&described, "declock");
    described.done(&["up"]);
    kill(node(&described.status(), "cn-1").0);
    let file = fs::read_to_string(described.file()).expect("it is ours");
    for (locks, theirs) in [("\"cas\"", "locks Cas"), ("\"lotus\"", "locks Lotus")] {
        fs::write(described.file(), file.replace("\"declock\"", locks)).expect("it is ours");
        let refused = text(&lotus(&["cn", "--file", &described.file(), "--node", "1"]));
        let said = format!("made with \"locks Declock\", and this process has \"{theirs}\"");
        assert!(refused.contains(&said), "{refused}");
    }
    fs::write(described.file(), file).expect("it is ours");
    assert!(described.done(&["up"]).contains("of which 1 had ended"));
}
