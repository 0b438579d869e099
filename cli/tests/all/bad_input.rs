//! The command refuses bad input: one clear sentence, exit code 2, nothing written, no existing
//! file touched.

use std::fs;

use crate::common::program::{self, REFUSED};
use crate::common::{Scratch, lotus};

/// The sentence with which the command was refused.
fn refusal(arguments: &[&str]) -> String {
    program::refusal(env!("CARGO_BIN_EXE_lotus"), arguments)
}

fn bench<'a>(workload: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["bench", workload], flags].concat()
}

#[test]
fn nonsense_flags_are_named_in_one_sentence() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("kvs", &["--cns", "0"], "--cns"),
        ("kvs", &["--cns", "65"], "1..=64"),
        ("kvs", &["--cns", "-1"], "--cns"),
        ("kvs", &["--cns", "two"], "--cns"),
        ("kvs", &["--cns", "1.5"], "--cns"),
        ("kvs", &["--cns"], "--cns"),
        ("kvs", &["--mns", "0"], "--mns"),
        ("kvs", &["--mns", "99999999999999999999"], "--mns"),
        ("kvs", &["--threads", "0"], "--threads"),
        ("kvs", &["--threads", "64", "--coroutines", "17"], "more than the 1024"),
        ("kvs", &["--threads", "16", "--coroutines", "64", "--rate", "9"], "pacers"),
        ("kvs", &["--replicas", "0"], "--replicas"),
        ("kvs", &["--replicas", "4"], "4 replicas do not fit on 3 memory nodes"),
        ("kvs", &["--versions", "1"], "2..=8"),
        ("kvs", &["--secs", "0"], "more than 0"),
        ("kvs", &["--secs", "-3"], "more than 0"),
        ("kvs", &["--secs", "inf"], "--secs"),
        ("kvs", &["--secs", "nan"], "--secs"),
        ("kvs", &["--warmup", "-1"], "--warmup"),
        ("kvs", &["--rate", "0"], "--rate"),
        ("kvs", &["--keys", "0"], "--keys"),
        ("kvs", &["--update-ratio", "1.1"], "between 0 and 1"),
        ("kvs", &["--zipf", "-0.5"], "--zipf"),
        ("kvs", &["--seed", "-1"], "--seed"),
        ("kvs", &["--lock-table", "10"], "--lock-table"),
        ("kvs", &["--lock-table", "1X"], "1048576"),
        ("kvs", &["--vt-cache", "-1"], "--vt-cache"),
        ("kvs", &["--vt-cache", "2000000000"], "--vt-cache"),
        ("kvs", &["--memory-limit", "1"], "--memory-limit"),
        ("kvs", &["--isolation", "rc"], "possible values: sr, si"),
        ("kvs", &["--locks", "lotos"], "lotus"),
        ("kvs", &["--audit", "maybe"], "--audit"),
        ("kvs", &["--cn", "2"], "--cns"),
        ("kvs", &["--accounts", "5"], "--accounts"),
        ("kvs", &["extra"], "extra"),
        ("kvs", &["--cns", "2", "--cns", "3"], "--cns"),
        ("kvs", &["--json", ""], "--json"),
        ("kvs", &["--profile", "cx3-56g"], "--fabric sim"),
        ("kvs", &["--cluster", "somewhere"], "cannot read somewhere"),
        ("kvs", &["--cluster", "somewhere", "--rate", "9"], "--rate makes no sense with --cluster"),
        ("kvs", &["--cluster", "somewhere", "--floor"], "--floor makes no sense with --cluster"),
        ("kvs", &["--rdma-devices", "mlx5_0"], "--fabric rdma only"),
        ("kvs", &["--cluster", "somewhere", "--fabric", "tcp"], "--fabric makes no sense with"),
        ("kvs", &["--fabric", "tcp", "--profile", "cx3-56g"], "--fabric sim"),
        (
            "kvs",
            &["--fabric", "tcp", "--mns", "64", "--cns", "64", "--replicas", "9"],
            "--replicas",
        ),
        ("smallbank", &["--accounts", "1"], "--accounts"),
        ("smallbank", &["--hot-accounts", "1"], "no one to pay"),
        ("smallbank", &["--accounts", "10", "--hot-accounts", "11"], "11 hot accounts"),
        ("smallbank", &["--hot-ratio", "2"], "--hot-ratio"),
        ("tatp", &["--subscribers", "0"], "--subscribers"),
        ("tatp", &["--subscribers", "4294967296"], "--subscribers"),
        ("tatp", &["--accounts", "5"], "--accounts"),
        ("tpcc", &["--warehouses", "0"], "--warehouses"),
        ("tpcc", &["--warehouses", "10001"], "1..=10000"),
        ("tpcc", &["--warehouses", "-1"], "--warehouses"),
        ("tpcc", &["--customers-per-district", "0"], "--customers-per-district"),
        ("tpcc", &["--customers-per-district", "3001"], "1..=3000"),
        ("tpcc", &["--items", "0"], "--items"),
        ("tpcc", &["--items", "100001"], "1..=100000"),
        ("tpcc", &["--items", "many"], "--items"),
        ("tpcc", &["--critical-field", "item"], "warehouse, district, customer"),
        ("tpcc", &["--accounts", "5"], "--accounts"),
        ("smallbonk", &[], "smallbank"),
    ];
    for (workload, flags, named) in cases {
        let sentence = refusal(&bench(workload, flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
    assert!(refusal(&["brench"]).contains("bench"));
}

#[test]
fn another_engine_is_referred_to_the_laboratory() {
    let sentence = refusal(&bench("kvs", &["--keys", "100", "--engine", "motor"]));
    assert!(sentence.contains("lotus-lab bench kvs --engine motor"), "{sentence}");
    let help = lotus(&["bench", "kvs", "--help"]);
    assert!(!String::from_utf8_lossy(&help.stdout).contains("--engine"));
}

#[test]
fn a_cache_of_other_engines_is_refused_in_one_sentence() {
    let sentence = refusal(&bench("kvs", &["--address-cache", "per-thread"]));
    assert!(sentence.contains("the coordinators of a compute node share one cache"), "{sentence}");
    assert!(refusal(&bench("kvs", &["--address-cache", "hot"])).contains("warm, cold, per-thread"));
}

#[cfg(not(feature = "sabotage"))]
#[test]
fn a_bound_that_excludes_nothing_takes_a_build_of_its_own() {
    let sentence = refusal(&bench("kvs", &["--locks", "ideal-rdma"]));
    assert_eq!(sentence, "ideal-rdma takes a build with the feature sabotage");
}

#[cfg(feature = "sabotage")]
#[test]
fn the_bound_of_locks_on_memory_nodes_recovers_and_moves_nothing() {
    for (flag, named) in [("--lease", "is a bound, not a lock"), ("--balance", "have no owners")] {
        let sentence = refusal(&bench("kvs", &["--locks", "ideal-rdma", flag, "100"]));
        assert!(sentence.contains(named), "{flag}: {sentence}");
    }
}

#[test]
fn what_cannot_be_repeated_is_named_in_one_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (&["--repeat", "0"], "--repeat"),
        (&["--repeat", "2", "--history", "h"], "--repeat makes no sense with --history"),
        (&["--repeat", "2", "--seed", "18446744073709551615"], "needs 2 seeds"),
        (&["--cluster", "somewhere", "--repeat", "2"], "--repeat makes no sense with"),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&bench("kvs", flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
}

#[test]
#[cfg(not(feature = "rdma"))]
fn a_build_without_rdma_names_the_feature() {
    let sentence = refusal(&bench("smallbank", &["--fabric", "rdma"]));
    assert!(sentence.contains("--features rdma"), "{sentence}");
}

/// Runs on a machine without a device. One that has some would run the benchmark.
#[test]
#[cfg(feature = "rdma")]
fn a_machine_without_rdma_devices_says_so() {
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return;
    }
    let cases: [(&[&str], &str); 4] = [
        (&[], "this machine has no RDMA device"),
        (&["--rdma-devices", "mlx5_0"], "this machine has no RDMA device"),
        (&["--rdma-devices", "mlx5_0:x"], "does not name an RDMA device"),
        (&["--rdma-mtu", "1500"], "this machine has no RDMA device"),
    ];
    for (flags, named) in cases {
        let flags = [&["--fabric", "rdma", "--secs", "1"], flags].concat();
        let sentence = refusal(&bench("smallbank", &flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
}

#[test]
fn without_a_command_help_is_shown() {
    for arguments in [&[][..], &["bench"], &["check"], &["cluster"]] {
        let output = lotus(arguments);
        assert_eq!(output.status.code(), Some(REFUSED));
        assert!(String::from_utf8_lossy(&output.stderr).contains("Usage:"));
    }
    assert!(lotus(&["bench", "kvs", "--help"]).status.success());
}

#[test]
fn unwritable_outputs_are_refused_before_the_run() {
    let dir = Scratch::new("unwritable");
    let file = dir.path("file");
    fs::write(&file, "kept").expect("writable");
    let cases = [
        (dir.path(""), "is a directory"),
        (dir.path("missing/out.json"), "directory does not exist"),
        (dir.path("file/out.json"), "cannot write"),
    ];
    for flag in ["--json", "--history"] {
        for (path, reason) in &cases {
            // A day, so that a refusal after the run would be noticed.
            let sentence = refusal(&bench("kvs", &["--secs", "86400", flag, path]));
            assert!(sentence.contains(reason), "{flag} {path}: {sentence}");
        }
    }
    let sentence = refusal(&bench("kvs", &["--json", &file, "--history", &file]));
    assert!(sentence.contains("both name"), "{sentence}");
    assert_eq!(fs::read_to_string(&file).expect("readable"), "kept");
    assert_eq!(fs::read_dir(dir.path("")).expect("readable").count(), 1);
}

#[test]
fn a_refused_run_touches_no_output() {
    let dir = Scratch::new("untouched");
    let (old, new) = (dir.path("old.json"), dir.path("new.jsonl"));
    fs::write(&old, "kept").expect("writable");
    refusal(&bench("smallbank", &["--fabric", "rdma", "--json", &old, "--history", &new]));
    refusal(&bench("smallbank", &["--cns", "0", "--json", &old, "--history", &new]));
    assert_eq!(fs::read_to_string(&old).expect("readable"), "kept");
    assert_eq!(fs::read_dir(dir.path("")).expect("readable").count(), 1);
}

/// A line of a history that is sound by itself.
const LINE: &str = r#"{"id":1,"session":1,"start":1,"end":2,"iso":"sr","status":"ok","ops":[]}"#;

#[test]
fn what_is_not_a_history_is_refused_with_its_line() {
    let after = |wrong: &str, right: &str| format!("{LINE}\n{}", LINE.replace(wrong, right));
    let cases: [(Vec<u8>, &str); 15] = [
        (b"\x1f\x8b\x08\0\xff\n\xfe".to_vec(), "line 1: expected an object at byte 1"),
        (b"id,session,start\n1,2,3\n".to_vec(), "line 1: expected an object"),
        (b"[]\n".to_vec(), "line 1: expected an object"),
        (b"\n".to_vec(), "line 1: expected an object"),
        (format!("{LINE}\n\n{LINE}").into(), "line 2: expected an object"),
        (format!("{LINE} {LINE}\n").into(), "line 1: expected the end of the line"),
        (format!("{LINE}\n{}", &LINE[..40]).into(), "line 2: expected"),
        (format!("{LINE}\n{{}}\n").into(), "line 2: expected a string"),
        (after("1", "\"1\"").into(), "line 2: expected a whole number"),
        (after("1", "-1").into(), "line 2: expected a whole number"),
        (after("[]", "[[\"r\",\"t\",1,2.5]]").into(), "line 2: expected a whole number"),
        (after("\"ok\"", "\"maybe\"").into(), "line 2: expected \"ok\", \"fail\" or \"info\""),
        (after("\"iso\":\"sr\",", "").into(), "line 2: the field \"iso\" is missing"),
        (after("\"session\":1", "\"session\":2").into(), "line 2: id 1 was used on line 1"),
        (after("\"id\":1", "\"id\":2").into(), "line 2: the attempt overlaps with line 1"),
    ];
    let dir = Scratch::new("not-a-history");
    let path = dir.path("history.jsonl");
    for (bytes, named) in cases {
        fs::write(&path, &bytes).expect("writable");
        let sentence = refusal(&["check", &path]);
        let expected = format!("{path} is not a history: {named}");
        assert!(sentence.starts_with(&expected), "{named}: {sentence}");
    }
}

#[test]
fn a_history_that_cannot_be_judged_says_why() {
    let dir = Scratch::new("no-history");
    let (empty, good, json) = (dir.path("empty"), dir.path("good"), dir.path("out.json"));
    fs::write(&empty, "").expect("writable");
    fs::write(&good, LINE).expect("writable");
    let cases: [(&[&str], &str); 8] = [
        (&[&dir.path("missing")], "cannot read"),
        (&[&dir.path("")], "cannot read"),
        (&[&dir.path("good/inside")], "cannot read"),
        (&[&empty], "is empty: there is nothing to check"),
        (&["/dev/null"], "is empty"),
        (&[&good, &good], "unexpected argument"),
        (&[&good, "--json", &good], "is the history itself"),
        (&[&good, "--json", &dir.path("missing/out.json")], "directory does not exist"),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&[&["check"], flags].concat());
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
    // Refusals after the outputs were checked touch them no more than earlier ones.
    refusal(&["check", &empty, "--json", &json]);
    assert_eq!(fs::read_to_string(&good).expect("readable"), LINE);
    assert_eq!(fs::read_dir(dir.path("")).expect("readable").count(), 2);
}

#[test]
fn top_needs_a_terminal_and_something_to_show() {
    let scratch = Scratch::new("top");
    let file = scratch.path("neither.txt");
    fs::write(&file, "half a fi").expect("it is ours");
    let folder = scratch.path("");
    let missing = scratch.path("missing.toml");
    let cases: &[(&[&str], &str)] = &[
        (&[&file], "standard output is none; --once prints a frame"),
        (&[&missing, "--once"], "missing.toml: No such file"),
        (&[&folder, "--once"], "neither the description of a cluster nor a socket"),
        (&["/dev/null", "--once"], "neither the description of a cluster nor a socket"),
        (&[&file, "--once"], "is no socket, and no description of a cluster: "),
        (&[&file, "--once", "--interval", "0"], "from 0.1 to 60 seconds"),
        (&[&file, "--once", "--interval", "nan"], "from 0.1 to 60 seconds"),
        (&[&file, "--once", "--interval", "soon"], "not a number of seconds"),
    ];
    for (arguments, said) in cases {
        let refused = refusal(&[&["top"], *arguments].concat());
        assert!(refused.contains(said), "{refused}");
    }
    let refused = refusal(&bench("kvs", &["--secs", "1", "--live", &file]));
    assert!(refused.contains("exists and is no socket"), "{refused}");
    assert_eq!(fs::read_to_string(&file).expect("it is left alone"), "half a fi");
}
