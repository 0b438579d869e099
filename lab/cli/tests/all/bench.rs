//! Short benchmarks through the command: lock systems, structures under them, and other engines.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Scratch, program};

const TINY_COMPANY: [&str; 7] =
    ["tpcc", "--warehouses", "3", "--customers-per-district", "20", "--items", "50"];
const FULL_RECORDS: [&str; 4] = ["--engine", "motor", "--record-store", "full"];

/// Runs `lotus-lab bench`, which finds nothing wrong; returns what it printed.
fn run(flags: &[&str]) -> String {
    program::run_to(env!("CARGO_BIN_EXE_lotus-lab"), &[&["bench"], flags].concat(), 0)
}

/// Runs `lotus-lab bench` of locks, or of structures under them, for a few operations; where a node
/// is lost at a time, for a short time. Returns what it printed.
fn operate(flags: &[&str]) -> String {
    let length: &[&str] = match flags.contains(&"--lose-ms") {
        true => &["--secs", "0.2", "--warmup", "0.05"],
        false => &["--ops", "400"],
    };
    run(&[flags, length].concat())
}

/// Workloads on engines other than Lotus.
#[test]
fn other_engines_pass_their_audit() {
    let cases: &[&[&str]] = &[
        &["smallbank", "--accounts", "500", "--engine", "motor", "--versions", "3"],
        &["tatp", "--subscribers", "500", "--engine", "motor", "--placement", "shard"],
        &[&["tatp", "--subscribers", "500"], &FULL_RECORDS[..]].concat(),
        &[&TINY_COMPANY[..], &FULL_RECORDS, &["--commit", "log-and-visible"]].concat(),
        &["kvs", "--keys", "500", "--engine", "ford", "--address-cache", "warm"],
        &["smallbank", "--accounts", "500", "--engine", "ford", "--item-bytes", "720", "--flush"],
        &[&TINY_COMPANY[..], &["--engine", "motor", "--loaded-deltas"]].concat(),
        &[&TINY_COMPANY[..], &["--engine", "ford"]].concat(),
    ];
    for flags in cases {
        let text = run(&[flags, &["--txns", "500"][..]].concat());
        assert_eq!(text.lines().last(), Some("audit passed"), "{flags:?}");
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

/// Runs `lotus-lab bench locks` in simulation, where a seed gives one result.
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_lotus-lab"));
        let output = command.args(flags).args(more).output().expect("the binary was built");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with(phases), "{said}");
        assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok(), "only the report: {said}");
    }
}
