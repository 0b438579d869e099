//! Short benchmarks through the command, from flags to files.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

#[cfg(feature = "sabotage")]
use crate::common::NOT_JUDGED;
use crate::common::Scratch;

const TINY_COMPANY: [&str; 7] =
    ["tpcc", "--warehouses", "3", "--customers-per-district", "20", "--items", "50"];
const FULL_RECORDS: [&str; 4] = ["--engine", "motor", "--record-store", "full"];

/// Runs `lotus bench` for a few transactions; an open loop for a short time, which is its length.
/// Returns what it printed.
fn bench(flags: &[&str]) -> String {
    let length: &[&str] = match flags.contains(&"--rate") {
        true => &["--secs", "0.2", "--warmup", "0.05"],
        false => &["--txns", "500"],
    };
    run(&[flags, length].concat())
}

/// Runs `lotus bench` of locks, or of structures under them, for a few operations; where a node is
/// lost at a time, for a short time. Returns what it printed.
fn operate(flags: &[&str]) -> String {
    let length: &[&str] = match flags.contains(&"--lose-ms") {
        true => &["--secs", "0.2", "--warmup", "0.05"],
        false => &["--ops", "400"],
    };
    run(&[flags, length].concat())
}

/// Runs `lotus bench`, which finds nothing wrong; returns what it printed.
fn run(flags: &[&str]) -> String {
    run_to(flags, 0)
}

/// Runs `lotus bench` to this exit code; returns what it printed.
fn run_to(flags: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
    command.args(["bench"]).args(flags);
    let output = command.output().expect("the binary was built for this test");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{flags:?}: {out}\n{err}");
    out.into_owned()
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
        &["smallbank", "--accounts", "500", "--engine", "motor", "--versions", "3"],
        &["tatp", "--subscribers", "500", "--engine", "motor", "--placement", "shard"],
        &[&["tatp", "--subscribers", "500"], &FULL_RECORDS[..]].concat(),
        &[&TINY_COMPANY[..], &FULL_RECORDS, &["--commit", "log-and-visible"]].concat(),
        &["kvs", "--keys", "500", "--engine", "ford", "--address-cache", "warm"],
        &["smallbank", "--accounts", "500", "--engine", "ford", "--item-bytes", "720", "--flush"],
        &[&TINY_COMPANY[..], &["--engine", "motor", "--loaded-deltas"]].concat(),
        &[&TINY_COMPANY[..], &["--engine", "ford"]].concat(),
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

/// Lock systems alone, on each fabric that they run on.
#[test]
fn lock_systems_pass_their_audit() {
    let scratch = Scratch::new("locks");
    let json = scratch.path("report.json");
    let few = ["--count", "50", "--coroutines", "4", "--json", &json];
    let cases: &[&[&str]] = &[
        &["--lock", "cas", "--backoff"],
        &["--lock", "cas-rw", "--release-by-swap", "--read-ratio", "0.9"],
        &["--lock", "dslr", "--patience-us", "30"],
        // Published locks may be lost where threads stand still for longer than their leases.
        &["--lock", "dslr+", "--as-published", "--fabric", "sim"],
        &["--lock", "dslr-u", "--update-ratio", "0.8", "--critical-section", "2"],
        &["--lock", "cas", "--fabric", "shm", "--threads", "2"],
        &["--lock", "dslr", "--fabric", "shm", "--patience-us", "30"],
        &["--lock", "dslr", "--fabric", "sim", "--zipf", "0", "--critical-section", "2"],
        &["--lock", "mcs", "--fabric", "sim"],
        &["--lock", "mcs", "--cns", "2"],
        &["--lock", "rma-rw", "--as-published"],
        &["--lock", "rma-rw", "--as-published", "--fabric", "sim", "--zipf", "0.9"],
        &["--lock", "drtm", "--as-published", "--backoff"],
        &["--lock", "drtm", "--as-published", "--fabric", "sim"],
        &["--lock", "ncosed", "--as-published"],
        &["--lock", "ncosed", "--as-published", "--fabric", "sim", "--threads", "2"],
        &["--lock", "shiftlock", "--threshold", "2"],
        &["--lock", "shiftlock", "--cns", "2", "--fabric", "sim"],
        &["--lock", "shiftlock-wide", "--as-published", "--fabric", "sim", "--profile", "cx5-100g"],
        &["--lock", "fisslock", "--cns", "2", "--threads", "2"],
        #[cfg(feature = "tcp")]
        &["--lock", "dslr", "--fabric", "tcp", "--object-bytes", "64"],
        #[cfg(feature = "tcp")]
        &["--lock", "fisslock", "--fabric", "tcp"],
    ];
    for flags in cases {
        let text = operate(&[&["locks"], *flags, &few].concat());
        assert!(text.contains("audit                 passed"), "{flags:?}: {text}");
        let report: Value =
            serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("JSON");
        assert!(report["operations"].as_u64() > Some(0), "{report}");
        assert_eq!(report["audit"], Value::Array(Vec::new()));
        if flags.contains(&"sim") {
            let atomics = ["compare_and_swaps", "fetch_and_adds"];
            let of = |from: &Value| atomics.iter().filter_map(|kind| from[kind].as_u64()).sum();
            // Those after the time that counts were served as well.
            let [sent, served]: [u64; 2] = [of(&report), of(&report["nodes"][0])];
            assert!(sent > 0 && served >= sent, "{sent}, {served}");
            assert!(text.contains("served                memory node 0: "), "{text}");
        }
        assert!(report["acquire"]["p50_us"].as_f64() <= report["operation"]["p50_us"].as_f64());
    }
}

/// Locks that servers keep, on each fabric that they run on.
#[test]
fn locks_of_servers_pass_their_audit() {
    let scratch = Scratch::new("kept");
    let json = scratch.path("report.json");
    let few = ["--count", "50", "--coroutines", "4", "--json", &json];
    let cases: &[&[&str]] = &[
        &["--lock", "srvlock"],
        &["--lock", "srvlock", "--fabric", "shm", "--patience-us", "200"],
        &["--lock", "parlock", "--cns", "3", "--object-bytes", "64"],
        &["--lock", "rpc", "--critical-section", "0"],
        &["--lock", "traditional-ro", "--read-ratio", "0.9"],
        &["--lock", "srvlock", "--fabric", "sim", "--zipf", "0"],
        &["--lock", "parlock", "--fabric", "sim", "--profile", "cx5-100g"],
        &["--lock", "traditional", "--fabric", "sim"],
        &["--lock", "netlock", "--patience-us", "200"],
        &["--lock", "netlock", "--fabric", "sim"],
        #[cfg(feature = "tcp")]
        &["--lock", "srvlock", "--fabric", "tcp"],
    ];
    for flags in cases {
        let text = operate(&[&["locks"], *flags, &few].concat());
        assert!(text.contains("audit                 passed"), "{flags:?}: {text}");
        let report: Value =
            serde_json::from_slice(&fs::read(&json).expect("it was written")).expect("JSON");
        assert_eq!((&report["lock"], &report["audit"]), (&Value::from(flags[1]), &json!([])));
        assert!(report["operations"].as_u64() > Some(0), "{report}");
        let has_verbs = !flags.contains(&"--critical-section");
        assert_eq!(report["writes"].as_u64() > Some(0), has_verbs, "{report}");
        assert_eq!(report["compare_and_swaps"].as_u64(), Some(0), "{report}");
    }
}

/// Runs `lotus bench locks` in simulation, where a seed gives one result.
fn simulated_locks(flags: &[&str]) -> (Value, String) {
    let scratch = Scratch::new("locks");
    let json = scratch.path("report.json");
    let short = ["--secs", "0.005", "--warmup", "0.001"];
    let few = ["locks", "--fabric", "sim", "--count", "20", "--json", &json];
    let text = run(&[&few, &short[..], flags].concat());
    let report = fs::read(&json).expect("it was written");
    (serde_json::from_slice(&report).expect("JSON"), text)
}

#[test]
fn an_object_store_gets_and_sets_whole_objects() {
    let scratch = Scratch::new("objects");
    let json = scratch.path("report.json");
    for (trace, bytes, gets) in [("small", 416, 0.65), ("large", 9216, 0.89)] {
        let short = ["--fabric", "sim", "--secs", "0.01", "--warmup", "0.001"];
        let flags = ["objects", "--lock", "declock", "--objects", "50", "--trace", trace];
        let text = run(&[&flags[..], &short, &["--json", &json]].concat());
        let written = fs::read(&json).expect("it was written");
        let report: Value = serde_json::from_slice(&written).expect("JSON");
        let number = |name: &str| report[name].as_f64().unwrap_or_else(|| panic!("{report}"));
        assert_eq!((number("object_bytes"), number("objects")), (f64::from(bytes), 50.0));
        assert_eq!(number("gets") + number("sets"), number("operations"));
        let share = number("gets") / number("operations");
        assert!((share - gets).abs() < 0.05, "{trace}: {share}");
        assert_eq!(report["audit"], serde_json::json!([]));
        let each = |kind: &str| report[kind]["p50_us"].as_f64().expect("a time");
        assert!(each("get") > 0.0 && each("set") > 0.0);
        assert!(text.contains("gets a second") && text.contains("passed"), "{text}");
    }
}

#[test]
fn load_on_locks_reports_what_the_papers_do() {
    let (report, text) = simulated_locks(&["--lock", "dslr", "--coroutines", "8"]);
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}: {report}"));
    let operations = number(&report["operations"]);
    for (name, count) in [
        ("read", "reads"),
        ("write", "writes"),
        ("compare_and_swap", "compare_and_swaps"),
        ("fetch_and_add", "fetch_and_adds"),
        ("messages", "messages"),
    ] {
        let each = number(&report["per_operation"][name]);
        assert!((each * operations - number(&report[count])).abs() < 0.5, "{name}: {report}");
    }
    // A ticket and its return; those under way at either end of the time count on one side.
    let adds = number(&report["per_operation"]["fetch_and_add"]);
    assert!((adds - 2.0).abs() < 0.1, "{adds}");
    let retries = number(&report["retries"]) / number(&report["acquired"]);
    assert!((number(&report["retries_per_acquisition"]) - retries).abs() < 1e-9);
    let hottest = &report["hottest"];
    assert!(number(&hottest["operations"]) < operations);
    let cdf = hottest["acquire_cdf"].as_array().expect("points");
    let half = cdf.iter().find(|point| point["share"] == 0.5).expect("a median");
    assert_eq!(half["us"], hottest["acquire"]["p50_us"]);
    assert_eq!(cdf.last().expect("points")["share"], 1.0);
    assert!(number(&report["acquire"]["mean_us"]) > 0.0);
    let run = number(&report["longest_writer_run"]);
    let bypass = number(&report["largest_bypass"]);
    assert!(run >= 1.0 && text.contains(&format!("at most               {run} writers in a row")));
    assert!(text.contains(&format!("{bypass} later requests first")), "{text}");
    assert!(text.contains("hottest lock, µs") && text.contains(" mean, "), "{text}");

    let flags = ["--lock", "dslr", "--coroutines", "8", "--no-audit", "--zipf", "0"];
    let (report, text) = simulated_locks(&flags);
    for absent in ["longest_writer_run", "largest_bypass", "hottest", "audit"] {
        assert_eq!(report[absent], Value::Null, "{absent}");
    }
    assert!(!text.contains("at most") && !text.contains("hottest"), "{text}");
}

/// Clients of a node share its locks by a policy, and the bench counts who had them from where.
#[test]
fn load_on_shared_locks_reports_its_transfers() {
    let few = ["--coroutines", "8", "--threads", "2"];
    for (lock, policy) in [("declock", "ts-pf"), ("cas", "local-bound:4")] {
        let sharing = ["--lock", lock, "--policy", policy];
        let (report, text) = simulated_locks(&[&sharing, &few[..]].concat());
        assert_eq!((&report["policy"], &report["audit"]), (&policy.into(), &Value::Array(vec![])));
        let count = |name: &str| report[name].as_u64().expect("a number");
        let (local, remote) = (count("local_transfers"), count("remote_transfers"));
        assert!(local > 0 && remote > 0, "{report}");
        // Those under way at either end of the time count on one side.
        assert!((local + remote).abs_diff(count("operations")) < 64, "{report}");
        assert!(text.contains(&format!("{policy}: ")) && text.contains(" within nodes"), "{text}");
    }
    let (report, text) = simulated_locks(&["--lock", "declock"]);
    assert_eq!((&report["policy"], &report["local_transfers"]), (&Value::Null, &0.into()));
    assert!(!text.contains("transfers"), "{text}");
}

/// Searches and updates of a tree under each kind of lock, on each fabric that it runs on.
#[test]
fn trees_pass_their_audit() {
    let scratch = Scratch::new("tree");
    let json = scratch.path("report.json");
    let few = ["--keys", "3000", "--coroutines", "4", "--json", &json];
    let cases: &[&[&str]] = &[
        &["--lock", "cas", "--loaded", "0"],
        &["--lock", "declock", "--update-ratio", "1"],
        &["--lock", "shiftlock", "--zipf", "0"],
        &["--lock", "declock", "--fabric", "shm", "--threads", "2"],
        &["--lock", "declock", "--policy", "ts-pf", "--threads", "2"],
        &["--lock", "cas", "--policy", "local-bound:4", "--fabric", "sim"],
        &["--lock", "cas", "--backoff", "--fabric", "sim", "--update-ratio", "0.05"],
        &["--lock", "declock", "--as-published", "--fabric", "sim"],
        #[cfg(feature = "tcp")]
        &["--lock", "dslr", "--fabric", "tcp"],
    ];
    for flags in cases {
        let text = operate(&[&["tree"], *flags, &few].concat());
        assert!(text.contains("audit                 passed"), "{flags:?}: {text}");
        let report = fs::read(&json).expect("it was written");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        assert!(report["updates"].as_u64() > Some(0), "{report}");
        assert_eq!(report["audit"], Value::Array(Vec::new()));
        assert!(report["tree"]["levels"].as_u64() >= Some(2), "{report}");
        let searches_too = !flags.contains(&"1");
        assert_eq!(report["searches"].as_u64() > Some(0), searches_too, "{report}");
        assert_eq!(text.contains("search, µs"), searches_too, "{text}");
        assert_eq!(text.contains("served                memory node 0: "), flags.contains(&"sim"));
        let shares = flags.contains(&"--policy");
        assert_eq!(report["local_transfers"].as_u64() > Some(0), shares, "{report}");
    }
    let text = operate(&["tree", "--keys", "100", "--no-audit"]);
    assert!(text.contains("audit                 not made"), "{text}");
}

/// Transactions of a trace under each kind of waiting, on each fabric that they run on.
#[test]
fn traces_pass_their_audit() {
    let scratch = Scratch::new("lock-trace");
    let (json, file) = (scratch.path("report.json"), scratch.path("trace"));
    fs::write(&file, "NEW r1 w2 w3\nPAY w3\n").expect("a file");
    let few = ["--coroutines", "4", "--json", &json];
    let cases: &[&[&str]] = &[
        &["tatp", "--lock", "dslr", "--subscribers", "500"],
        &["tpcc", "--lock", "declock", "--sorted"],
        &["tpcc", "--lock", "cas", "--warehouses", "2", "--mns", "2", "--sorted"],
        &[&file, "--lock", "shiftlock"],
        &[&file, "--lock", "declock", "--fabric", "shm", "--threads", "2"],
        &["tpcc", "--lock", "declock", "--policy", "ts-pf", "--threads", "2", "--sorted"],
        &["tpcc", "--lock", "mcs", "--row-locks", "100", "--fabric", "sim"],
        &["tatp", "--lock", "dslr", "--as-published", "--fabric", "sim", "--busy"],
        &["tpcc", "--lock", "traditional-ro", "--sorted", "--fabric", "sim", "--scans", "0.01"],
        &["tatp", "--lock", "parlock"],
        &["tatp", "--lock", "fisslock", "--fabric", "sim"],
        #[cfg(feature = "tcp")]
        &["tatp", "--lock", "shiftlock", "--fabric", "tcp"],
    ];
    for flags in cases {
        let text = operate(&[&["lock-trace"], *flags, &few].concat());
        assert!(text.contains("audit                 passed"), "{flags:?}: {text}");
        let report = fs::read(&json).expect("it was written");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        assert!(report["operations"].as_u64() > Some(0), "{report}");
        assert_eq!(report["audit"], Value::Array(Vec::new()));
        let kinds = report["kinds"].as_array().expect("types");
        let of_kinds = kinds.iter().filter_map(|kind| kind["transactions"].as_u64()).sum::<u64>();
        assert_eq!(Some(of_kinds), report["operations"].as_u64(), "{report}");
        let mean = |name: &str| report[name]["mean_us"].as_f64().expect("a time");
        // Acquisitions of transactions that end too late to count are counted as well: of few that
        // a busy machine has done in real time, they may be the longer ones.
        if of_kinds > 100 || report["fabric"] == "sim" {
            assert!(mean("acquire") <= mean("growing"), "{report}");
        }
        assert!(mean("growing") <= mean("transaction"), "{report}");
        let first = kinds[0]["kind"].as_str().expect("a name");
        assert!(text.contains(first) && text.contains("all locks, µs"), "{text}");
    }
    let text = operate(&["lock-trace", "tatp", "--subscribers", "10", "--no-audit"]);
    assert!(text.contains("audit                 not made"), "{text}");
}

/// Money at a server under each kind of waiting, on each fabric, and without a node that is lost.
#[test]
fn banks_pass_their_audit() {
    let scratch = Scratch::new("bank");
    let json = scratch.path("report.json");
    let few = ["--accounts", "500", "--coroutines", "4", "--json", &json];
    let lost = ["--fabric", "sim", "--lose-ms", "5", "--timeout-us", "100000"];
    let cases: &[&[&str]] = &[
        &["smallbank", "--lock", "shiftlock"],
        &["transfer", "--lock", "declock", "--policy", "ts-pf", "--threads", "2"],
        &["transfer", "--lock", "dslr", "--fabric", "shm"],
        &["smallbank", "--lock", "cas", "--fabric", "sim", "--request-us", "2.5"],
        &["transfer", "--lock", "srvlock", "--fabric", "sim"],
        &[&["smallbank", "--lock", "shiftlock", "--request-us", "20"], &lost[..]].concat(),
        #[cfg(feature = "tcp")]
        &["smallbank", "--lock", "declock", "--fabric", "tcp"],
    ];
    for flags in cases {
        let text = operate(&[&["bank"], *flags, &few].concat());
        assert!(text.contains("audit                 passed: no money came or went"), "{text}");
        let report = fs::read(&json).expect("it was written");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        assert!(report["operations"].as_u64() > Some(0), "{report}");
        assert!(report["requests"].as_u64() > report["operations"].as_u64(), "{report}");
        assert_eq!(report["audit"], Value::Array(Vec::new()));
        let kinds = report["kinds"].as_array().expect("types");
        let of_kinds = kinds.iter().filter_map(|kind| kind["transactions"].as_u64()).sum::<u64>();
        assert_eq!(Some(of_kinds), report["operations"].as_u64(), "{report}");
        assert!(text.contains("Balance") && text.contains("at the bank"), "{text}");
    }
}

/// Whatever is no result goes to the standard error, one line for each phase where no terminal is.
#[test]
fn load_on_locks_tells_its_phases_as_other_benchmarks_do() {
    let flags = ["bench", "locks", "--count", "50", "--secs", "0.05", "--json", "-"];
    for (more, phases) in [(&[][..], "running\nauditing\n"), (&["--no-audit"], "running\n")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lotus"));
        let output = command.args(flags).args(more).output().expect("the binary was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(phases), "{said}");
        assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok(), "only the report: {said}");
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
