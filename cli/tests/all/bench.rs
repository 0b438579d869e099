//! Short benchmarks through the command, from flags to files.

use std::fs;

use serde_json::Value;

#[cfg(feature = "sabotage")]
use crate::common::NOT_JUDGED;
use crate::common::{Scratch, lotus, program};

const TINY_COMPANY: [&str; 7] =
    ["tpcc", "--warehouses", "3", "--customers-per-district", "20", "--items", "50"];

/// Runs `lotus bench` to this exit code; returns what it printed.
fn run_to(flags: &[&str], code: i32) -> String {
    program::run_to(env!("CARGO_BIN_EXE_lotus"), &[&["bench"], flags].concat(), code)
}

/// Runs `lotus bench` for a few transactions; an open loop for a short time, which is its length.
/// Returns what it printed.
fn bench(flags: &[&str]) -> String {
    let length: &[&str] = match flags.contains(&"--rate") {
        true => &["--secs", "0.2", "--warmup", "0.05"],
        false => &["--txns", "500"],
    };
    run(&[flags, length].concat())
}

/// Runs `lotus bench`, which finds nothing wrong; returns what it printed.
fn run(flags: &[&str]) -> String {
    run_to(flags, 0)
}

#[test]
fn every_choice_of_the_engine_passes_its_audit() {
    let cases: &[&[&str]] = &[
        &["smallbank", "--accounts", "500"],
        &["smallbank", "--accounts", "500", "--isolation", "si", "--read-rule", "snapshot"],
        &["smallbank", "--accounts", "2", "--hot-accounts", "0", "--cns", "1", "--versions", "8"],
        &["smallbank", "--accounts", "500", "--locks", "cas", "--timestamps", "oracle"],
        &["smallbank", "--accounts", "500", "--locks", "dslr", "--threads", "2"],
        &["smallbank", "--accounts", "500", "--locks", "shiftlock", "--threads", "2"],
        &["smallbank", "--accounts", "500", "--locks", "declock", "--threads", "2"],
        &["tatp", "--subscribers", "500"],
        &["tatp", "--subscribers", "1", "--sharding", "hash", "--locks", "cas"],
        &["kvs", "--keys", "500", "--update-ratio", "1", "--zipf", "1.2", "--sharding", "hash"],
        &["kvs", "--keys", "500", "--routing", "random", "--visible", "all-at-once"],
        &["kvs", "--keys", "1", "--mns", "1", "--replicas", "1"],
        &["kvs", "--keys", "500", "--vt-cache", "0"],
        &["kvs", "--keys", "500", "--rate", "2000"],
        &["tpcc", "--customers-per-district", "20", "--items", "50"],
        &["tpcc", "--customers-per-district", "1", "--items", "1", "--isolation", "si"],
        &[&TINY_COMPANY[..], &["--critical-field", "customer", "--locks", "cas"]].concat(),
        &[&TINY_COMPANY[..], &["--sharding", "hash", "--read-rule", "snapshot"]].concat(),
    ];
    for flags in cases {
        let text = bench(flags);
        assert_eq!(text.lines().last(), Some("audit passed"), "{flags:?}");
    }
}

/// Traffic of a lock without one: a word of a memory node is added to when the first use of a lock
/// begins on a compute node, and when the last one ends. No money is counted afterwards.
#[cfg(feature = "sabotage")]
#[test]
fn the_bound_of_locks_on_memory_nodes_adds_twice_for_a_lock() {
    let scratch = Scratch::new("bound");
    let json = scratch.path("report.json");
    let flags = ["smallbank", "--accounts", "100000", "--fabric", "sim", "--cns", "3"];
    let short = ["--secs", "0.004", "--warmup", "0.001", "--locks", "ideal-rdma", "--json", &json];
    let text = run_to(&[&flags[..], &short].concat(), NOT_JUDGED);
    let report = fs::read(&json).expect("it was written");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let per_txn = report["verbs_per_txn"]["fetch_and_add"].as_f64().expect("a number");
    // 1.55 locks, a few of which are in use on the same node already; and aborted attempts.
    assert!((3.0..3.3).contains(&per_txn), "{per_txn}");
    assert_eq!(report["config"]["locks"], "ideal-rdma");
    assert!(text.contains("locks         ideal-rdma is a bound, not a lock"), "{text}");
    let checks = report["audit"]["checks"].as_array().expect("there are checks");
    let open = checks.iter().filter(|check| check["judged"] == false);
    let open: Vec<&Value> = open.map(|check| &check["name"]).collect();
    assert_eq!(open, ["the workload's data"], "{text}");
    let audit = &report["audit"];
    assert!(audit["passed"] == false && audit["outcome"] == "incomplete", "{text}");
}

/// Attempts that meet on a row, all of which go on, leave rows whole and nothing in use.
#[cfg(feature = "sabotage")]
#[test]
fn the_bound_of_locks_on_memory_nodes_leaves_rows_whole_where_writers_meet() {
    let meet: [&[&str]; 3] = [
        &["kvs", "--keys", "20", "--update-ratio", "0.8", "--inline", "never"],
        &["smallbank", "--accounts", "20", "--threads", "2"],
        &[&TINY_COMPANY[..], &["--threads", "2"]].concat(),
    ];
    for flags in meet {
        for fabric in ["sim", "local"] {
            let bound = ["--locks", "ideal-rdma", "--fabric", fabric];
            let short = ["--secs", "0.02", "--warmup", "0.005"];
            let text = run_to(&[flags, &bound, &short].concat(), NOT_JUDGED);
            let verdict = text.lines().last().expect("it says something");
            assert_eq!(verdict, "audit INCOMPLETE: not judged: the workload's data", "{text}");
            // Threads of a busy machine may not get to their first transaction in that time.
            assert!(fabric == "local" || !text.contains(" 0 txn/s"), "{text}");
        }
    }
}

/// Memory nodes that are reached over sockets, locks by messages between compute nodes.
#[cfg(feature = "tcp")]
#[test]
fn a_cluster_over_sockets_passes_its_audit() {
    let scratch = Scratch::new("tcp");
    let json = scratch.path("report.json");
    let to_json = ["--fabric", "tcp", "--json", &json];
    let cases: &[&[&str]] = &[
        &["smallbank", "--accounts", "500"],
        &["kvs", "--keys", "500", "--locks", "cas", "--timestamps", "oracle", "--threads", "2"],
        &["tatp", "--subscribers", "500", "--coroutines", "64"],
        &["smallbank", "--accounts", "500", "--locks", "declock"],
        &TINY_COMPANY,
    ];
    for flags in cases {
        let text = bench(&[flags, &to_json[..]].concat());
        assert_eq!(text.lines().last(), Some("audit passed"), "{flags:?}");
        let report: Value =
            serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("JSON");
        assert_eq!(report["fabric"], "tcp");
        let per_txn = |what: &str| report["verbs_per_txn"][what].as_f64().expect("a number");
        assert!(per_txn("doorbells") > 0.0 && per_txn("write") > 0.0, "{report}");
    }
}

#[test]
fn without_an_audit_there_is_no_verdict() {
    let text = bench(&["kvs", "--keys", "500", "--audit", "no"]);
    assert!(!text.contains("audit"), "{text}");
}

/// Runs `lotus bench smallbank` with files for its results; returns the report, and the number of
/// transactions that have committed by the history.
fn bench_to_files(flags: &[&str]) -> (Value, u64) {
    let scratch = Scratch::new("smallbank");
    let [json, history] = ["report.json", "history.jsonl"].map(|name| scratch.path(name));
    let files = ["smallbank", "--accounts", "500", "--json", &json, "--history", &history];
    run(&[&files, flags].concat());
    let [json, history] =
        [json, history].map(|path| fs::read_to_string(path).expect("it was written"));
    let ended_well = |line: &&str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["status"] == "ok"
    };
    let committed = history.lines().filter(ended_well).count() as u64;
    (serde_json::from_str(&json).expect("JSON"), committed)
}

/// The amount of work on threads depends on the machine, and may be zero.
#[test]
fn results_go_to_their_files() {
    let (report, committed) = bench_to_files(&["--secs", "0.2", "--warmup", "0.05"]);
    assert_eq!(report["workload"], "smallbank");
    assert_eq!(report["fabric"], "local");
    assert_eq!(report["audit"]["passed"], true);
    assert_eq!(report["config"]["vt_cache"], 65_536);
    assert_adds_up(&report, committed);
}

/// The amount of work in simulated time does not depend on the machine.
#[test]
fn results_are_those_of_transactions() {
    // Rows beside their cells are not cached.
    let flags = ["--fabric", "sim", "--secs", "0.01", "--warmup", "0.002", "--inline", "never"];
    let (report, committed) = bench_to_files(&flags);
    assert_eq!(report["fabric"], "sim");
    assert_eq!(report["audit"]["passed"], true);
    assert!(report["throughput_tps"].as_f64().expect("a number") > 0.0);
    let tables = &report["caches"]["version_tables"];
    let [lookups, hits, hit_rate] =
        ["lookups", "hits", "hit_rate"].map(|what| tables[what].as_f64().expect("a number"));
    assert!(hit_rate > 0.5 && hit_rate < 1.0, "{tables}");
    assert!((hit_rate * lookups - hits).abs() < 1e-6, "{tables}");
    assert_adds_up(&report, committed);
}

/// The report agrees with itself, and with the history's commits, which include the warm-up.
fn assert_adds_up(report: &Value, in_history: u64) {
    let [committed, throughput, elapsed] = ["committed", "throughput_tps", "elapsed_s"]
        .map(|what| report[what].as_f64().expect("a number"));
    assert!((throughput * elapsed - committed).abs() < 1e-6 * committed.max(1.0), "{report}");
    let parts = report["by_transaction"].as_object().expect("an object").values();
    let parts: u64 = parts.map(|part| part["committed"].as_u64().expect("a number")).sum();
    assert_eq!(report["committed"], parts, "{report}");
    assert!(in_history >= parts, "{in_history} in the history, {parts} in the report");
}

/// What a report says of the program, the machine and the time, and of the spread of latencies.
/// Simulated, so that something is committed in the time that counts on a busy machine too.
#[test]
fn a_report_says_where_it_comes_from_and_how_latencies_spread() {
    let short = ["--fabric", "sim", "--secs", "0.003", "--warmup", "0.001", "--json", "-"];
    let report = run(&[&["kvs", "--keys", "500"], &short[..]].concat());
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let commit = report.get("commit").map(|commit| commit.as_str().expect("text").len());
    assert!(commit.is_none_or(|length| length >= 40), "{report}");
    assert!(report["host"]["cores"].as_u64() > Some(0), "{report}");
    let date = report["date"].as_str().expect("text");
    assert!(date.starts_with("20") && date.ends_with('Z') && date.len() == 20, "{date}");
    let buckets = report["histogram"].as_array().expect("a list");
    let counted: u64 = buckets.iter().filter_map(|bucket| bucket["count"].as_u64()).sum();
    assert_eq!(report["committed"], counted);
    assert!(report["all_committed"].as_u64() >= Some(counted), "{report}");
    let from: Vec<f64> = buckets.iter().filter_map(|bucket| bucket["from_us"].as_f64()).collect();
    assert!(from.len() == buckets.len() && from.is_sorted(), "{from:?}");
    let latency = |what: &str| report["latency_us"][what].as_f64().expect("a number");
    assert!(latency("mean") > 0.0 && latency("mean") <= latency("max"), "{report}");
}

/// Simulated, so that a seed gives one result: the runs are those of their seeds.
#[test]
fn repeated_runs_are_those_of_their_seeds_summed_up() {
    let scratch = Scratch::new("repeat");
    let json = scratch.path("report.json");
    let short = ["--fabric", "sim", "--secs", "0.003", "--warmup", "0.001", "--json", &json];
    let measured = |flags: &[&str]| {
        let text = run(&[&["kvs", "--keys", "500"], flags, &short[..]].concat());
        let written = fs::read(&json).expect("it was written");
        (serde_json::from_slice::<Value>(&written).expect("JSON"), text)
    };
    let (all, text) = measured(&["--repeat", "3", "--seed", "7"]);
    assert!(text.contains("3 runs") && text.contains("all audits passed"), "{text}");
    let runs = all["runs"].as_array().expect("a list");
    let tps = |report: &Value| report["throughput_tps"].as_f64().expect("a number");
    let mut sorted: Vec<f64> = runs.iter().map(tps).collect();
    assert_eq!(sorted[1], tps(&measured(&["--seed", "8"]).0));
    sorted.sort_by(f64::total_cmp);
    let spread = &all["repeated"]["throughput_tps"];
    let [least, median, most] = ["least", "median", "most"].map(|which| spread[which].as_f64());
    assert_eq!([least, median, most], [0, 1, 2].map(|run| Some(sorted[run])));
    assert_eq!(all["repeated"]["runs"], 3);
    assert!(runs[0]["config"]["seed"] == 7 && runs[2]["config"]["seed"] == 9, "{all}");
}

#[test]
fn standard_output_takes_the_json_alone() {
    let text = bench(&["kvs", "--keys", "500", "--json", "-"]);
    let report: Value = serde_json::from_str(&text).expect("nothing but JSON");
    assert_eq!(report["workload"], "kvs");
}

#[test]
fn new_orders_a_minute_are_reported() {
    let flags = [&TINY_COMPANY[..], &["--json", "-"]].concat();
    let report: Value = serde_json::from_str(&bench(&flags)).expect("nothing but JSON");
    let orders = report["by_transaction"]["NewOrder"]["throughput_tps"].as_f64().expect("a number");
    let per_minute = report["tpmC"].as_f64().expect("a number");
    assert!((per_minute - orders * 60.0).abs() < 0.01, "{per_minute}");
}

#[test]
fn a_benchmark_on_virtual_time_says_what_bounded_it_and_repeats() {
    let scratch = Scratch::new("bench-sim");
    let mut results = Vec::new();
    for history in ["one.jsonl", "two.jsonl"] {
        let (json, history) = (scratch.path("result.json"), scratch.path(history));
        let text = run(&[
            "smallbank",
            "--fabric",
            "sim",
            "--accounts",
            "500",
            "--cns",
            "3",
            "--threads",
            "2",
            "--coroutines",
            "3",
            "--secs",
            "0.002",
            "--timestamps",
            "oracle",
            "--json",
            &json,
            "--history",
            &history,
        ]);
        assert!(text.ends_with("audit passed\n"), "{text}");
        let result: Value =
            serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("JSON");
        assert_eq!(result["config"]["profile"], "cx3-56g");
        let busy = result["simulation"]["bottleneck"]["busy"].as_f64().expect("a number");
        assert!(busy > 0.1 && busy <= 1.0, "{busy}");
        let nodes = result["simulation"]["nodes"].as_array().expect("a list");
        let reads = nodes.iter().filter(|node| node["kind"] == "memory").map(|node| {
            assert!(node["inbound_busy"].as_f64() > Some(0.0), "{node}");
            node["reads"].as_u64().expect("a count")
        });
        assert!(reads.sum::<u64>() > 1000, "{nodes:?}");
        assert!(text.contains(" memory node 0: inbound requests "), "{text}");
        assert!(result["committed"].as_u64().is_some_and(|count| count > 100));
        let checked = lotus(&["check", &history, "--strict"]);
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
        results.push(fs::read(history).expect("it was written"));
    }
    assert!(results[0] == results[1], "two runs of one seed differ");
}
