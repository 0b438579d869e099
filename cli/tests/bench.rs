//! Short benchmarks through the command, from flags to files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const TINY_COMPANY: [&str; 7] =
    ["tpcc", "--warehouses", "3", "--customers-per-district", "20", "--items", "50"];

/// Runs `lotus bench` for a moment; returns what it printed.
fn bench(flags: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
    command.args(["bench"]).args(flags).args(["--secs", "0.2", "--warmup", "0.05"]);
    let output = command.output().expect("the binary was built for this test");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{flags:?}: {out}\n{err}");
    out.into_owned()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn every_choice_of_the_engine_passes_its_audit() {
    let cases: &[&[&str]] = &[
        &["smallbank", "--accounts", "500"],
        &["smallbank", "--accounts", "500", "--isolation", "si", "--read-rule", "snapshot"],
        &["smallbank", "--accounts", "2", "--hot-accounts", "0", "--cns", "1", "--versions", "8"],
        &["smallbank", "--accounts", "500", "--locks", "cas", "--timestamps", "oracle"],
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

/// Memory nodes that are reached over sockets, locks by messages between compute nodes.
#[cfg(feature = "tcp")]
#[test]
fn a_cluster_over_sockets_passes_its_audit() {
    let json = scratch("tcp.json");
    let to_json = ["--fabric", "tcp", "--json", json.to_str().expect("UTF-8")];
    let cases: &[&[&str]] = &[
        &["smallbank", "--accounts", "500", "--floor"],
        &["kvs", "--keys", "500", "--locks", "cas", "--timestamps", "oracle", "--threads", "2"],
        &["tatp", "--subscribers", "500", "--coroutines", "64"],
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

#[test]
fn results_go_to_their_files() {
    let (json, history) = (scratch("bench.json"), scratch("bench.jsonl"));
    let (json_path, history_path) =
        (json.to_str().expect("UTF-8"), history.to_str().expect("UTF-8"));
    bench(&["smallbank", "--accounts", "500", "--json", json_path, "--history", history_path]);
    let report: Value =
        serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("JSON");
    assert_eq!(report["workload"], "smallbank");
    assert_eq!(report["audit"]["passed"], true);
    assert_eq!(report["config"]["vt_cache"], 65_536);
    let hit_rate = report["caches"]["version_tables"]["hit_rate"].as_f64().expect("a number");
    assert!(hit_rate > 0.5 && hit_rate < 1.0, "{hit_rate}");
    assert!(report["throughput_tps"].as_f64().expect("a number") > 0.0);
    let history = fs::read_to_string(&history).expect("it was written");
    let ended_well = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        line["status"] == "ok"
    };
    let committed = history.lines().filter(|line| ended_well(line)).count() as u64;
    assert!(committed >= report["committed"].as_u64().expect("a number"));
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
