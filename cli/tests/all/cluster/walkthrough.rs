//! A new operator's first hour, from docs/operations.md: every line of status, at every step.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::described::Described;
use super::{kill, node, refusal_of, text, wait_until};
use crate::common::lotus;

const NODES: [&str; 4] = ["mn-0", "mn-1", "cn-0", "cn-1"];

/// The state of every node by `status`, as a table and as JSON, which must agree.
fn states(described: &Described) -> Vec<String> {
    let of = |status: &Value| -> Vec<String> {
        let nodes = status["nodes"].as_array().expect("a list");
        nodes.iter().map(|node| node["state"].as_str().expect("a word").to_owned()).collect()
    };
    // A state may change between two looks, but not for ever.
    for _ in 0..50 {
        let before = of(&described.status());
        let table = text(&described.cluster(&["status"]));
        let lines = table.lines().skip(1).take(NODES.len());
        let shown = lines.zip(NODES).zip(&before).all(|((line, name), state)| {
            line.trim_start().starts_with(name) && line.trim_end().ends_with(state)
        });
        if of(&described.status()) == before {
            assert!(shown, "{before:?}: {table}");
            let healthy = before.iter().all(|state| state == "serving");
            let verdict = if healthy { "\nhealthy; " } else { "\nnot healthy; " };
            assert!(table.contains(verdict), "{table}");
            return before;
        }
    }
    panic!("the states never stay: {:?}", described.status());
}

#[track_caller]
fn all_are(described: &Described, state: &str) {
    assert_eq!(states(described), [state; 4], "{}", described.logs());
}

/// Kills a node: from then on its state is not serving, and at last `end`; the others serve on.
fn loses(described: &Described, name: &str, end: &str) {
    kill(node(&described.status(), name).0);
    wait_until(end, || {
        let status = described.status();
        let states: Vec<String> = NODES.iter().map(|name| node(&status, name).1).collect();
        for (node, state) in NODES.iter().zip(&states) {
            let serves = state == "serving";
            assert_eq!(serves, *node != name, "{node} is {state}: {status}");
        }
        node(&status, name).1 == end
    });
}

/// Takes a snapshot; returns the number of its rows, and its file.
fn snapshot(described: &Described) -> (u64, PathBuf) {
    let said = described.done(&["snapshot", "--json"]);
    let snapshot: Value = serde_json::from_str(&said).expect("JSON");
    let path = PathBuf::from(snapshot["path"].as_str().expect("a path"));
    assert!(path.exists(), "{said}");
    (snapshot["rows"].as_u64().expect("a number"), path)
}

fn bench(described: &Described) {
    let file = described.file();
    let words = ["bench", "smallbank", "--cluster", &file, "--txns", "500"];
    let output = lotus(&words);
    assert!(output.status.success(), "{}{}", text(&output), described.logs());
    assert!(
        text(&output).ends_with("audit passed\n") || text(&output).contains("\naudit passed\n")
    );
}

#[test]
fn every_line_of_status_is_true_from_the_first_up_to_the_last_down() {
    let (described, _) = Described::serving("operator");
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let file = file.replacen("[[mem", "[snapshots]\ndirectory = \"kept\"\n[[mem", 1);
    fs::write(described.file(), file).expect("it is ours");
    all_are(&described, "unknown");

    let up = described.done(&["up"]);
    assert!(up.contains("4 nodes serve, 4 of them on this host; logs in"), "{up}");
    assert!(up.contains("begun afresh, with no data of an earlier life"), "{up}");
    all_are(&described, "serving");
    bench(&described);
    loses(&described, "cn-1", "expelled");
    let again = described.done(&["up"]);
    assert!(again.contains("4 nodes serve, 4 of them on this host, of which 1"), "{again}");
    assert!(!again.contains("begun"), "nothing was lost: {again}");
    all_are(&described, "serving");
    loses(&described, "mn-1", "lost");
    described.done(&["up"]);
    all_are(&described, "serving");
    bench(&described);

    let (rows, older) = snapshot(&described);
    assert!(rows >= 400, "{rows}");
    bench(&described);
    let (_, newest) = snapshot(&described);
    assert!(older.exists() && older != newest);
    assert!(described.done(&["down", "--no-snapshot"]).contains("4 nodes have ended"));
    all_are(&described, "ended");

    let mut bytes = fs::read(&newest).expect("it is ours");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&newest, bytes).expect("it is ours");
    let refused = refusal_of(&described.cluster(&["up"]));
    assert!(refused.contains(newest.to_str().expect("UTF-8")), "{refused}");
    all_are(&described, "ended");
    let said = described.done(&["up", "--older-snapshot"]);
    assert!(said.contains(older.to_str().expect("UTF-8")), "{said}");
    all_are(&described, "serving");
    bench(&described);

    let said = described.done(&["down"]);
    assert!(said.contains("a snapshot ") && said.contains("4 nodes have ended"), "{said}");
    all_are(&described, "ended");
    assert!(described.done(&["down"]).contains("nothing runs on this host"));
    assert!(described.left().is_empty(), "{:?}", described.left());
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}
