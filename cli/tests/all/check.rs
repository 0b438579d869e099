//! Histories through the command: the checker's fixtures, and those that benchmarks write.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::common::{NOT_JUDGED, Scratch, lotus};

const CLEAN: i32 = 0;
const VIOLATED: i32 = 1;

/// A history that the checker is tested with.
fn fixture(name: &str) -> String {
    let path =
        format!("{}/../proof/checker/tests/histories/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    assert!(Path::new(&path).exists(), "there is no {name}");
    path
}

/// All fixtures: the path of each, and the anomaly that it is named after, if any.
fn fixtures() -> Vec<(PathBuf, Option<String>)> {
    let any = PathBuf::from(fixture("G0"));
    let folder = any.parent().expect("it is in a folder");
    let files =
        fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let named = files.map(|path| {
        let name = path.file_name().expect("a file").to_str().expect("UTF-8");
        let anomaly = name.split('.').next().expect("never empty").to_owned();
        let anomaly = Some(anomaly).filter(|anomaly| anomaly != "clean");
        (path, anomaly)
    });
    named.collect()
}

/// Runs `lotus check`; returns the exit code and what was printed.
fn check(flags: &[&str]) -> (i32, String) {
    let output = lotus(&[&["check"], flags].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.is_empty(), "{flags:?}: {said}");
    (output.status.code().expect("it exits"), String::from_utf8(output.stdout).expect("text"))
}

/// Regression: a history of which nothing took effect, so that nothing was judged, passed.
#[test]
fn a_history_without_effect_has_not_passed() {
    let scratch = Scratch::new("check-nothing");
    let history = scratch.path("failed.jsonl");
    let failed = r#"{"id":1,"session":1,"start":1,"end":2,"iso":"sr","status":"fail","ops":[]}"#;
    fs::write(&history, failed).expect("it is writable");
    let (code, text) = check(&[&history]);
    let verdict = text.lines().last().expect("there is a verdict");
    assert_eq!((code, verdict), (NOT_JUDGED, "check judged nothing: no transaction took effect"));
    let json = lotus(&["check", &history, "--json", "-"]).stdout;
    let found: Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!((&found["passed"], &found["transactions"]), (&false.into(), &0.into()));
}

#[test]
fn every_anomaly_is_named_and_fails_the_check() {
    for (path, anomaly) in fixtures() {
        let (code, text) = check(&[path.to_str().expect("UTF-8"), "--strict"]);
        let verdict = text.lines().last().expect("there is a verdict");
        match anomaly {
            None => assert_eq!((code, verdict), (CLEAN, "check passed"), "{path:?}: {text}"),
            Some(anomaly) => {
                assert_eq!(code, VIOLATED, "{path:?}: {text}");
                let count = format!("check FAILED: {anomaly} x ");
                assert!(verdict.starts_with(&count), "{path:?}: {text}");
                let evidence = format!("{anomaly}: ");
                assert!(text.lines().any(|line| line.starts_with(&evidence)), "{path:?}: {text}");
            }
        }
    }
}

#[test]
fn a_counter_example_is_shown_with_what_was_checked() {
    let (_, text) = check(&[&fixture("G2.write-skew")]);
    for line in [
        "attempts      2 in 2 sessions: 2 committed, 0 aborted, 0 unknown",
        "judged        2 transactions, for isolation and session order",
        "G2: T1 --rw(acct/1)--> T2 --rw(acct/2)--> T1",
        "check FAILED: G2 x 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line:?} is missing from\n{text}");
    }
}

#[test]
fn real_time_counts_only_if_asked_for() {
    assert_eq!(check(&[&fixture("real-time")]).0, CLEAN);
    assert_eq!(check(&[&fixture("real-time"), "--strict"]).0, VIOLATED);
    assert_eq!(check(&[&fixture("session-order")]).0, VIOLATED);
}

#[test]
fn of_a_flood_the_first_few_are_shown() {
    let dir = Scratch::new("flood");
    let path = dir.path("history.jsonl");
    let line = |id: u64| {
        let attempt = r#""start":1,"end":2,"iso":"sr","status":"ok","ops":[["r","t",1,7]]"#;
        format!("{{\"id\":{id},\"session\":{id},{attempt}}}")
    };
    let lines: Vec<String> = (1..=1200).map(line).collect();
    fs::write(&path, lines.join("\n")).expect("writable");
    let (code, text) = check(&[&path]);
    assert_eq!(code, VIOLATED);
    assert_eq!(text.lines().filter(|line| line.starts_with("unwritten-read: ")).count(), 10);
    let verdict = "check FAILED: unwritten-read x 1,200 (the first 10 shown)";
    assert_eq!(text.lines().last(), Some(verdict));
}

#[test]
fn the_standard_input_is_read_like_a_file() {
    for (name, code) in [("clean.serial", CLEAN), ("G1c", VIOLATED)] {
        let file = File::open(fixture(name)).expect("readable");
        let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
        let output = command.args(["check", "-"]).stdin(file).output().expect("it was built");
        assert_eq!(output.status.code(), Some(code), "{name}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.starts_with("history       the standard input\n"), "{text}");
    }
}

#[test]
fn a_program_gets_json() {
    let dir = Scratch::new("check-json");
    let json = dir.path("out.json");
    assert_eq!(check(&[&fixture("real-time"), "--strict", "--json", &json]).0, VIOLATED);
    let found: Value = serde_json::from_slice(&fs::read(&json).expect("written")).expect("JSON");
    assert_eq!((&found["passed"], &found["strict"]), (&false.into(), &true.into()));
    assert_eq!((&found["attempts"], &found["committed"]), (&2.into(), &2.into()));
    assert_eq!(found["anomalies"], serde_json::json!({ "real-time": 1 }));
    let edges = &found["violations"][0]["edges"];
    assert_eq!(edges[0]["dependency"], "real time");
    assert_eq!((&edges[1]["dependency"], &edges[1]["row"]), (&"rw".into(), &"acct/1".into()));

    let output = lotus(&["check", &fixture("clean.serial"), "--json", "-"]);
    assert_eq!(output.status.code(), Some(CLEAN));
    let found: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!(found["passed"], true);
    assert!(String::from_utf8_lossy(&output.stderr).ends_with("check passed\n"));
}

/// Histories of the engine pass the check, with any locks, fabric and isolation.
#[test]
fn what_benchmarks_leave_passes_the_check() {
    let dir = Scratch::new("check-bench");
    let history = dir.path("history.jsonl");
    let cases: &[&[&str]] = &[
        &["smallbank", "--accounts", "300", "--hot-accounts", "30", "--coroutines", "64"],
        &["smallbank", "--accounts", "100", "--routing", "random", "--threads", "2"],
        &["smallbank", "--accounts", "100", "--read-rule", "snapshot"],
        &["smallbank", "--accounts", "100", "--isolation", "si"],
        &["tatp", "--subscribers", "20", "--routing", "random"],
        &["tatp", "--subscribers", "20", "--isolation", "si", "--sharding", "hash"],
        &["smallbank", "--accounts", "100", "--locks", "cas", "--timestamps", "oracle"],
        &["smallbank", "--accounts", "50", "--locks", "dslr"],
        &["smallbank", "--accounts", "50", "--locks", "shiftlock"],
        &["smallbank", "--accounts", "50", "--locks", "declock"],
        &["kvs", "--keys", "100", "--zipf", "1.2", "--visible", "all-at-once"],
    ];
    for flags in cases {
        let run = ["--txns", "3000", "--history", &history];
        assert!(lotus(&[&["bench"], *flags, &run].concat()).status.success(), "{flags:?}");
        let (code, text) = check(&[&history, "--strict"]);
        assert_eq!(code, CLEAN, "{flags:?}\n{text}");
    }
}

/// So do histories of locks on memory nodes that many wait for, in clusters that go on without a
/// node that is silent.
fn what_contended_benchmarks_leave_passes_the_check(fabric: &str) {
    let dir = Scratch::new("check-lease");
    let history = dir.path("history.jsonl");
    for locks in ["cas", "dslr", "shiftlock", "declock"] {
        let flags = ["--fabric", fabric, "--locks", locks, "--accounts", "60"];
        // A node that is given up leaves its share undone: then time ends the run.
        let run = ["--lease", "200", "--txns", "3000", "--secs", "60", "--history", &history];
        let output = lotus(&[&["bench", "smallbank"], &flags[..], &run].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?}: {said}");
        let (code, text) = check(&[&history, "--strict"]);
        assert_eq!(code, CLEAN, "{flags:?}\n{text}");
        fs::remove_file(&history).expect("it was written");
    }
}

#[test]
fn contended_locks_on_memory_nodes_pass_the_check_in_one_process() {
    what_contended_benchmarks_leave_passes_the_check("local");
}

#[test]
fn contended_locks_on_memory_nodes_pass_the_check_over_shm() {
    what_contended_benchmarks_leave_passes_the_check("shm");
}

#[cfg(feature = "tcp")]
#[test]
fn contended_locks_on_memory_nodes_pass_the_check_over_tcp() {
    what_contended_benchmarks_leave_passes_the_check("tcp");
}

/// In virtual time.
#[test]
fn contended_locks_on_memory_nodes_pass_the_check_in_simulation() {
    what_contended_benchmarks_leave_passes_the_check("sim");
}
