//! Benchmarks of running clusters: refused flags, and nodes that are killed meanwhile.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::described::{Described, METRICS};
use super::{get, kill, node, refusal, text, wait_until};
use crate::common::{NOT_JUDGED, lotus};

/// A benchmark of a running cluster: the command's words, and the path of its report.
fn words(described: &Described, txns: &str) -> (Vec<String>, String) {
    let json = described.directory.join("report.json").into_os_string();
    let json = json.into_string().expect("UTF-8");
    let file = described.file();
    let words = ["bench", "smallbank", "--cluster", &file, "--txns", txns];
    let words = words.into_iter().chain(["--json", &json]).map(str::to_owned).collect();
    (words, json)
}

/// Runs a benchmark; returns its report and its output.
#[track_caller]
fn bench(described: &Described, txns: &str) -> (Value, String) {
    bench_to(described, txns, 0)
}

/// Runs a benchmark to this exit code.
fn bench_to(described: &Described, txns: &str, code: i32) -> (Value, String) {
    let (words, json) = words(described, txns);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = lotus(&words);
    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output), described.logs());
    let report = serde_json::from_slice(&fs::read(&json).expect("it was written"));
    (report.expect("JSON"), text(&output))
}

/// Whether the sum of all balances was judged, and whether it was right.
fn sum(report: &Value) -> (bool, bool) {
    let checks = report["audit"]["checks"].as_array().expect("a list");
    let sum = checks.iter().find(|check| check["name"] == "the sum of all balances");
    let sum = sum.unwrap_or_else(|| panic!("nobody looked: {report}"));
    (sum["judged"] == true, sum["passed"] == true)
}

fn await_commits(described_host: std::net::Ipv4Addr, node: u16) {
    wait_until("transactions commit", || {
        let metrics = get((described_host, METRICS + node), "/metrics");
        let name = "lotus_transactions_total{outcome=\"committed\"} ";
        metrics.contains(name) && !metrics.contains(&format!("{name}0\n"))
    });
}

/// Regression: the first call without an answer ended the benchmark: it had no result, and every
/// later one said that money was lost.
#[test]
fn a_benchmark_has_a_result_when_a_node_is_killed_and_the_next_one_judges_the_sum() {
    let (described, host) = Described::serving("bench-killed");
    described.done(&["up"]);
    let (report, said) = std::thread::scope(|scope| {
        let running = scope.spawn(|| bench(&described, "20000"));
        await_commits(host, 1);
        kill(node(&described.status(), "cn-1").0);
        running.join().expect("it does not panic")
    });
    assert_eq!((sum(&report), &report["audit"]["passed"]), ((true, true), &Value::from(true)));
    let unanswered = &report["unanswered"];
    assert_eq!((&unanswered["unknown"], &unanswered["without_id"]), (&0.into(), &0.into()));
    let remarks = report["remarks"].as_array().expect("the counts of a node are missing");
    assert!(remarks.iter().any(|one| one.as_str().is_some_and(|one| one.contains("node 1"))));
    assert!(report["load_s"].is_null() && report["memory"].is_null(), "{report}");
    assert!(!said.contains("\nloading") && said.contains("\nmissing "), "{said}");

    let (report, said) = bench(&described, "500");
    assert_eq!(sum(&report), (true, true), "{said}");
    described.done(&["down", "--discard"]);
    assert!(!described.logs().contains("panicked"), "{}", described.logs());
}

/// The effect of a benchmark that was cut short is unknown: later ones cannot say whether the
/// balances are right, and do not say that they are wrong.
#[test]
fn after_a_benchmark_that_was_cut_short_the_sum_is_not_judged() {
    let (described, host) = Described::serving("bench-cut");
    described.done(&["up"]);
    let (words, _) = words(&described, "1000000");
    let mut running = Command::new(env!("CARGO_BIN_EXE_lotus"))
        .args(&words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary was built for this test");
    await_commits(host, 0);
    running.kill().expect("it is ours");
    running.wait().expect("it ends");
    let (report, said) = bench_to(&described, "500", NOT_JUDGED);
    assert_eq!((sum(&report).0, &report["audit"]["passed"]), (false, &Value::from(false)));
    assert!(said.contains("not judged the sum of all balances: "), "{said}");
    assert!(said.contains("audit INCOMPLETE: not judged: "), "{said}");

    let file = described.file();
    let refused = lotus(&["bench", "smallbank", "--cluster", &file, "--accounts", "5"]);
    let refused = refusal(&refused);
    assert!(refused.starts_with("--accounts makes no sense with --cluster"), "{refused}");
    described.done(&["down", "--discard"]);
}
