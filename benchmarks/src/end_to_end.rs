//! Whole benchmarks on the reference engine: properties of every run, and faults injected on
//! purpose that must be noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::contract::config::{Aborted, ClusterConfig, LoadConfig, Routing};
use crate::contract::deployment::Deployment;
use crate::contract::engine::Isolation;
use crate::contract::workload::Workload;
use crate::drive::harness::{self, BenchError, Options, Outcome};
use crate::drive::progress::{Phase, Progress};
use crate::engines::reference::{Faults, Reference};
use crate::reports::report::Report;
use crate::workloads::kvs::{Kvs, integer_key};
use crate::workloads::smallbank::SmallBank;

pub(crate) fn options() -> Options {
    Options {
        cluster: ClusterConfig {
            threads: 2,
            coroutines: 3,
            lock_table_bytes: 1 << 20,
            ..ClusterConfig::default()
        },
        load: LoadConfig {
            isolation: Isolation::Serializable,
            other_isolation: 0.0,
            routing: Routing::Hybrid,
            aborted: Aborted::Retry,
            secs: 0.002,
            warmup_secs: 0.0005,
            rate_tps: None,
            seed: 1,
            in_flight: None,
            move_us: None,
            timeline_us: None,
            txns: None,
        },
        audit: true,
        floor: false,
        history: false,
    }
}

/// Runs a workload on a fresh reference deployment.
pub(crate) fn bench<W: Workload>(
    workload: W,
    options: &Options,
    faults: Faults,
) -> (Reference, Result<Outcome, BenchError>) {
    let ClusterConfig { cns, threads, .. } = options.cluster;
    let mut deployment = Reference::new(cns, threads, faults);
    let progress = Arc::new(Progress::new(cns * threads, |_| ()));
    let outcome = harness::run(&mut deployment, workload, options, &progress);
    (deployment, outcome)
}

fn bank() -> SmallBank {
    SmallBank::new(100, 4, 0.9, 1)
}

#[test]
fn a_sound_engine_passes_the_audit_and_counts_agree() {
    let (deployment, outcome) = bench(bank(), &options(), Faults::default());
    let outcome = outcome.expect("nothing is wrong");
    let audit = outcome.audit.as_ref().expect("it was asked for");
    assert!(audit.passed, "{audit:?}");
    let total = outcome.tally.total();
    assert_eq!(outcome.tally.all_committed, deployment.commits());
    assert!(total.committed > 100 && total.committed < outcome.tally.all_committed);
    assert!(total.aborts() > 0, "a hot set of four must conflict");
    let memory = outcome.memory.expect("it can be seen");
    assert_eq!(
        (&memory.bytes_per_node[..], memory.transactions),
        (&[3 << 20; 2][..], deployment.commits())
    );
    assert_eq!(memory.loaded_bytes_per_node, [2 << 20; 2]);
    assert!(outcome.elapsed_s >= 0.002, "{}", outcome.elapsed_s);
    for (name, counts) in outcome.transactions.iter().zip(&outcome.tally.by_transaction) {
        assert!(counts.committed > 0, "{name} never ran");
        assert_eq!(counts.latency_ns.len(), counts.committed, "{name}");
    }
}

#[test]
fn lost_writes_fail_the_audit() {
    let faults = Faults { lose_every: 50, ..Faults::default() };
    let audit = bench(bank(), &options(), faults).1.expect("it runs").audit.expect("asked for");
    let verdict = audit.verdict();
    assert!(verdict.starts_with("audit FAILED: the sum of all balances ("), "{verdict}");
}

#[test]
fn unknown_outcomes_widen_the_audit_but_do_not_fail_it() {
    let faults = Faults { unknown_every: 20, ..Faults::default() };
    let outcome = bench(bank(), &options(), faults).1.expect("it runs");
    assert!(outcome.tally.total().unknown > 0);
    let audit = outcome.audit.expect("asked for");
    assert!(audit.passed, "{audit:?}");
}

#[test]
fn a_fatal_error_ends_the_run_with_its_sentence() {
    for rate_tps in [None, Some(1e6)] {
        let mut options = options();
        options.load.rate_tps = rate_tps;
        options.load.secs = 1e6;
        let faults = Faults { full_at: 500, ..Faults::default() };
        let error = bench(bank(), &options, faults).1.expect_err("the table is full");
        assert_eq!(error.to_string(), "the run was stopped: the table is full");
    }
}

#[test]
fn hybrid_routing_takes_writers_to_their_owner() {
    let options = options();
    let kvs = Kvs::new(200, 1.0, 0.5);
    let (mut deployment, outcome) = bench(kvs, &options, Faults::default());
    assert!(outcome.expect("it runs").audit.expect("asked for").passed);
    let mut written = 0;
    let table = lotus_fabric::ids::TableId(11);
    let scanned = deployment.scan(table, &mut |key, _, writer| {
        let key = integer_key(key).expect("eight bytes");
        if let Some(writer) = writer {
            written += 1;
            assert_eq!(u64::from(writer.incarnation().raw()), key % 2, "key {key}");
        }
    });
    scanned.expect("the reference can be read");
    assert!(written > 100, "{written}");
}

#[test]
fn an_open_loop_keeps_its_rate_and_serves_what_is_queued() {
    let mut options = options();
    options.load.rate_tps = Some(500_000.0);
    options.load.warmup_secs = 0.0;
    let (_, outcome) = bench(bank(), &options, Faults::default());
    let outcome = outcome.expect("it runs");
    assert!(outcome.audit.expect("asked for").passed);
    let total = outcome.tally.total();
    let logic = total.aborted[crate::AbortReason::Logic.index()];
    let served = total.committed + logic;
    assert!((800..1200).contains(&served), "{served} instead of about 1000");
}

#[test]
fn the_report_has_every_field_of_the_design() {
    let options = Options { floor: true, ..options() };
    let (_, outcome) = bench(Kvs::new(50, 0.5, 0.99), &options, Faults::default());
    let report = Report::new(&options, &outcome.expect("it runs"));
    let json = serde_json::to_value(&report).expect("it is plain data");
    let keys: Vec<&str> = json.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = [
        "abort_rate",
        "aborted",
        "all_committed",
        "audit",
        "by_transaction",
        "committed",
        "config",
        "elapsed_s",
        "fabric",
        "floor",
        "histogram",
        "latency_us",
        "load_s",
        "memory",
        "throughput_tps",
        "unknown",
        "verbs_per_txn",
        "workload",
    ];
    assert_eq!(keys, expected);
    assert_eq!(json["audit"]["passed"], true, "{}", json["audit"]);
    assert_eq!(json["config"]["keys"], 50);
    assert_eq!(json["config"]["isolation"], "sr");
    assert!(json["verbs_per_txn"]["read"].as_f64().expect("a number") >= 1.0);
    let table = report.table();
    for word in ["ReadOne", "UpdateOne", "p99.9 us", "txn/s", "ok      no lock is left held"] {
        assert!(table.contains(word), "{word} is missing in\n{table}");
    }
}

#[test]
fn phases_come_in_order() {
    let phases = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&phases);
    let enter = move |phase| seen.lock().expect("nobody panics").push(phase);
    let options = Options { floor: true, ..options() };
    let progress = Arc::new(Progress::new(4, enter));
    let mut deployment = Reference::new(2, 2, Faults::default());
    harness::run(&mut deployment, bank(), &options, &progress).expect("it runs");
    let expected = [Phase::Loading, Phase::Running, Phase::Auditing, Phase::Floor];
    assert_eq!(*phases.lock().expect("nobody panics"), expected);
}

#[test]
fn a_history_is_complete_and_consistent() {
    for rate_tps in [None, Some(500_000.0)] {
        let mut options = Options { history: true, ..options() };
        options.load.rate_tps = rate_tps;
        let faults = Faults { unknown_every: 30, ..Faults::default() };
        let outcome = bench(bank(), &options, faults).1.expect("it runs");
        let mut text = Vec::new();
        outcome.history.expect("asked for").write(&mut text).expect("memory takes it");
        let text = String::from_utf8(text).expect("JSON is text");
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let committed = lines.iter().filter(|line| line["status"] == "ok").count();
        assert_eq!(committed as u64, outcome.tally.all_committed);
        assert!(lines.iter().any(|line| line["status"] == "fail"));
        assert!(lines.iter().any(|line| line["status"] == "info" && line["end"].is_null()));
        check_versions(&lines);
        check_sessions(&lines);
    }
}

/// Checks that ids are used once and that every version read was written by an attempt that may
/// have committed.
fn check_versions(lines: &[Value]) {
    let mut written = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let ops = |line: &Value| line["ops"].as_array().expect("a list").clone();
    for line in lines {
        assert!(ids.insert(line["id"].as_u64()), "an id came twice");
        for op in ops(line).iter().filter(|op| op[0] == "w") {
            assert_eq!(op[3], line["id"]);
            if line["status"] != "fail" {
                written.insert(op.to_string().replacen('w', "r", 1));
            }
        }
    }
    for line in lines {
        for op in ops(line).iter().filter(|op| op[0] == "r" && !op[3].is_null()) {
            assert!(written.contains(&op.to_string()), "{op} was never written");
        }
    }
}

/// Checks that the transactions of one session never overlap.
fn check_sessions(lines: &[Value]) {
    let mut ends = BTreeMap::new();
    for line in lines {
        let start = line["start"].as_u64().expect("always known");
        let end = line["end"].as_u64().unwrap_or(start);
        let before = ends.insert(line["session"].as_u64(), end);
        assert!(before.is_none_or(|before| before <= start), "{line} overlaps");
    }
    assert!(ends.len() > 1);
}
