//! The command refuses bad input: one clear sentence, exit code 2, nothing written, no existing
//! file touched.

use std::fs;

use crate::common::{Scratch, lotus};

const REFUSED: i32 = 2;

/// The sentence on the standard error of a command that was refused.
fn refusal(arguments: &[&str]) -> String {
    let output = lotus(arguments);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(REFUSED), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?} wrote to the standard output");
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    said.strip_prefix("error: ").expect("it says that it is an error").trim_end().to_owned()
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
fn what_an_engine_cannot_do_is_refused_in_one_sentence() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("kvs", &["--engine", "motors"], "possible values: lotus, motor, ford"),
        ("kvs", &["--engine", "motor", "--lease", "5"], "--lease makes sense with --engine lotus"),
        ("kvs", &["--engine", "ford", "--balance"], "--balance makes sense with --engine lotus"),
        ("kvs", &["--engine", "motor", "--cluster", "x"], "--cluster makes sense with"),
        ("kvs", &["--engine", "motor", "--floor"], "--floor makes sense with --engine lotus"),
        ("kvs", &["--engine", "motor", "--fabric", "tcp"], "local and sim, not tcp"),
        ("kvs", &["--engine", "ford", "--fabric", "rdma"], "local and sim, not rdma"),
        ("kvs", &["--engine", "ford", "--isolation", "si"], "no sense with --engine ford"),
        ("kvs", &["--engine", "motor", "--flush"], "--flush makes no sense with --engine motor"),
        ("kvs", &["--engine", "motor", "--unlocked"], "say --audit no"),
        ("kvs", &["--engine", "motor", "--commit", "log-and-visible"], "needs --record-store full"),
        ("kvs", &["--engine", "ford", "--record-store", "full"], "no sense with --engine ford"),
        ("kvs", &["--commit", "at-once"], "--commit makes sense with engines other than"),
        (
            "kvs",
            &["--engine", "motor", "--record-store", "full", "--loaded-deltas"],
            "no sense with --record-store full",
        ),
        ("kvs", &["--engine", "motor", "--address-cache", "cold"], "say per-thread"),
        ("kvs", &["--address-cache", "per-thread"], "not for Lotus"),
        ("kvs", &["--placement", "shard"], "--placement makes sense with engines other than"),
        ("tpcc", &["--engine", "motor", "--ordered"], "no ordered tables"),
    ];
    for (workload, flags, expected) in cases {
        let sentence = refusal(&bench(workload, flags));
        assert!(sentence.contains(expected), "{flags:?}: {sentence}");
    }
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
fn nonsense_about_lock_systems_is_named_in_one_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (
            &["--lock", "spin"],
            "there are cas, cas-rw, dslr, dslr+, dslr-u, mcs, rma-rw, drtm, ncosed, shiftlock, \
             shiftlock-wide, declock",
        ),
        (&["--lock", "dslr-u", "--as-published"], "no dslr-u as published"),
        (&["--lock", "rma-rw"], "there is rma-rw as published only: it tolerates no failure"),
        (&["--lock", "drtm"], "there is drtm as published only: it tolerates no failure"),
        (&["--lock", "ncosed"], "there is ncosed as published only: it tolerates no failure"),
        (
            &["--lock", "shiftlock-wide"],
            "there is shiftlock-wide as published only: its lock has no room for the mark",
        ),
        (
            &["--lock", "shiftlock-wide", "--as-published"],
            "shiftlock-wide needs atomics on 16 bytes, which only the simulated fabric has",
        ),
        (
            &["--lock", "shiftlock-wide", "--as-published", "--fabric", "sim"],
            "where its profile has extended.wide",
        ),
        (&["--policy", "ts"], "there is no policy \"ts\"; there are remote-prefer, local-prefer"),
        (&["--policy", "local-bound:0"], "local-bound:K with K from 1 on"),
        (
            &["--lock", "cas", "--policy", "ts-pf"],
            "ts-pf compares times of requests, which only the queues of declock have",
        ),
        (
            &["--as-published", "--policy", "local-prefer"],
            "the leases of dslr, as published, are of one holder",
        ),
        (&["--count", "0"], "--count"),
        (&["--object-bytes", "12"], "a multiple of 8"),
        (&["--fabric", "rdma"], "locks alone run on local, shm, tcp and sim, not on rdma"),
        (
            &["--fabric", "shm", "--cns", "64", "--threads", "9", "--coroutines", "1"],
            "576 lanes are more than one process can have on shm: at most 512",
        ),
        (&["--profile", "cx3-56g"], "only the simulated fabric has a profile"),
        (&["--fabric", "sim", "--profile", "cx9"], "cx9"),
        (
            &["--cns", "64", "--threads", "2", "--coroutines", "256"],
            "32768 clients are more than a lock of dslr can count: at most 16384",
        ),
        (
            &["--lock", "dslr-u", "--threads", "17"],
            "544 clients are more than a lock of dslr-u can count: at most 512",
        ),
        (&["--lock", "spin"], "kept by servers, srvlock, parlock, parlock-local, rpc, traditional"),
        (
            &["--lock", "srvlock", "--policy", "local-prefer"],
            "--policy is of locks of memory nodes; servers keep those of srvlock",
        ),
        (&["--lock", "rpc", "--queue-entries", "8"], "--queue-entries is of locks of memory"),
        (&["--lock", "parlock", "--as-published"], "--as-published is of locks of memory nodes"),
        (&["--lock", "rpc", "--update-ratio", "0.5"], "rpc has no update locks"),
        (&["--lock", "srvlock", "--long-terms", "2"], "srvlock has no leases"),
        (
            &["--lock", "srvlock", "--failing", "0.1", "--no-audit"],
            "only dslr and shiftlock as published go on after holders that fail",
        ),
        (
            &["--lock", "parlock", "--fabric", "sim", "--lose-ms", "1", "--no-audit"],
            "a lost node takes its locks of parlock with it",
        ),
        (
            &["--lock", "fisslock", "--count", "1680001"],
            "FissLock switches have room for 1680000 locks, not 1680001",
        ),
        (&["--lock", "fisslock", "--backoff"], "a switch grants those of fisslock"),
        (&["--lock", "srvlock", "--fabric", "rdma"], "locks alone run on local, shm, tcp and sim"),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&bench("locks", flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
}

#[test]
fn preferences_and_racks_that_locks_do_not_have_are_named_in_one_sentence() {
    let benches: [(&str, &[&str]); 5] = [
        ("locks", &[]),
        ("objects", &[]),
        ("tree", &[]),
        ("lock-trace", &["tatp"]),
        ("bank", &["transfer"]),
    ];
    for (name, words) in benches {
        let sentence = refusal(&bench(name, &[words, &["--prefer", "writers"]].concat()));
        let expected = "only fisslock and fisslock-local have a preference, not dslr";
        assert!(sentence.contains(expected), "{name}: {sentence}");
    }
    let cases: &[(&[&str], &str)] = &[
        (&["--lock", "fisslock+parlock", "--prefer", "writers"], "not fisslock+parlock"),
        (&["--lock", "srvlock", "--prefer", "readers"], "not srvlock"),
        (&["--lock", "netlock", "--racks", "2"], "only fisslock and fisslock-local have racks"),
        (&["--lock", "fisslock", "--racks", "0"], "0 is not in 1..=255"),
        (
            &["--lock", "fisslock", "--cns", "3", "--racks", "4"],
            "3 machines of FissLock are in 1 to 3 racks, not 4",
        ),
        (&["--lock", "fisslock", "--prefer", "both"], "readers, writers"),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&bench("locks", flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
}

#[test]
fn nonsense_about_servers_of_redis_is_named_in_one_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (
            &["--lock", "redlock", "--fabric", "sim", "--redis", "127.0.0.1:6379"],
            "--redis is of fabrics in real time",
        ),
        (&["--redis", "127.0.0.1:6379"], "only redlock has servers of redis"),
        (
            &["--lock", "rpc", "--ttl-ms", "50"],
            "only redlock has servers of redis and times to live",
        ),
        (&["--lock", "redlock", "--ttl-ms", "0"], "--ttl-ms"),
        (&["--lock", "redlock", "--redis", "6379"], "no address of a server, as 127.0.0.1:6379 is"),
        (
            &["--lock", "redlock", "--redis", "127.0.0.1:9,127.0.0.1:9"],
            "the server of redis at 127.0.0.1:9 is named twice",
        ),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&bench("locks", flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
}

#[test]
fn nonsense_about_traces_is_named_in_one_sentence() {
    let scratch = Scratch::new("trace");
    let file = |name: &str, text: &str| {
        let path = scratch.path(name);
        fs::write(&path, text).expect("a file");
        path
    };
    let wrong = file("wrong", "NEW r12 w77\nNEW x1\n");
    let far = file("far", "NEW r134217728\n");
    let long = file("long", &format!("NEW {}\n", "r1 ".repeat(6000)));
    let (none, missing) = (file("none", "# nothing\n"), scratch.path("missing"));
    let cases: &[(&[&str], &str)] = &[
        (&[&wrong], "wrong: line 2: \"x1\" is not an operation: r12 reads, w12 writes"),
        (&[&far], "far: line 1: \"r134217728\" names no lock: 0 to 134217727"),
        (&[&long], "long: line 1: 18004 bytes are too long a line: at most 16384"),
        (&[&none], "none: it has no transaction"),
        (&[&missing], "missing cannot be read"),
        (&["tatp", "--lock", "spin"], "there are cas, cas-rw, dslr"),
        (&["tatp", "--lock", "srvlock", "--backoff"], "servers keep those of srvlock"),
        (&["tatp", "--subscribers", "0"], "--subscribers"),
        (&["tpcc", "--row-locks", "0"], "--row-locks"),
        (&["tpcc", "--exec-us", "-1"], "--exec-us"),
        (&["tpcc", "--warehouses", "1000", "--row-locks", "1"], "locks are too many"),
        (&["tatp", "--fabric", "rdma"], "traces run on local, shm, tcp and sim, not on rdma"),
        (&["tatp", "--fabric", "sim", "--lose-ms", "1"], "a trace loses no compute node"),
        (
            &["tatp", "--lock", "drtm", "--as-published"],
            "readers of drtm have leases, which end while transactions go on: no audit can pass",
        ),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&bench("lock-trace", flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
}

#[test]
fn nonsense_about_banks_is_named_in_one_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (&["savings"], "smallbank, transfer"),
        (&["transfer", "--accounts", "1"], "--accounts"),
        (&["transfer", "--request-us", "-1"], "--request-us"),
        (&["transfer", "--lock", "spin"], "there are cas, cas-rw, dslr"),
        (
            &["transfer", "--lock", "parlock", "--fabric", "sim", "--lose-ms", "1"],
            "a lost node takes its locks of parlock with it, and the run ends",
        ),
        (&["transfer", "--fabric", "rdma"], "banks run on local, shm, tcp and sim, not on rdma"),
        (&["transfer", "--lose-ms", "1"], "only simulated nodes are lost"),
        (
            &["transfer", "--fabric", "sim", "--cns", "1", "--lose-ms", "1"],
            "without its only compute node nobody goes on",
        ),
        (
            &["transfer", "--fabric", "sim", "--as-published", "--lose-ms", "1"],
            "locks as published do not outlast every loss",
        ),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&bench("bank", flags));
        assert!(sentence.contains(named), "{flags:?}: {sentence}");
    }
}

#[test]
fn nonsense_about_trees_is_named_in_one_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (&["--lock", "spin"], "there are cas, cas-rw, dslr"),
        (&["--lock", "drtm"], "there is drtm as published only: it tolerates no failure"),
        (&["--lock", "srvlock"], "trees have locks of memory nodes, which srvlock has not"),
        (&["--redis", "127.0.0.1:6379"], "only redlock has servers of redis"),
        (&["--keys", "0"], "--keys"),
        (&["--loaded", "1.5"], "--loaded"),
        (&["--update-ratio", "-1"], "--update-ratio"),
        (&["--fabric", "rdma"], "trees run on local, shm, tcp and sim, not on rdma"),
        (&["--lock", "cas", "--policy", "ts-pf"], "ts-pf compares times of requests"),
        (&["--fabric", "sim", "--lose-ms", "1"], "a tree loses no compute node"),
        (&["--profile", "cx3-56g"], "only the simulated fabric has a profile"),
        (
            &["--lock", "dslr", "--cns", "64", "--threads", "2", "--coroutines", "256"],
            "32768 clients are more than a lock of dslr can count: at most 16384",
        ),
    ];
    for (flags, named) in cases {
        let sentence = refusal(&bench("tree", flags));
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
    for arguments in [&[][..], &["bench"], &["check"], &["sim"]] {
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
fn a_file_that_is_no_experiment_is_refused_in_one_sentence() {
    let dir = Scratch::new("no-figure");
    let (file, plots) = (dir.path("figure.toml"), dir.path("plots"));
    let sound = "title = 'a'\nsource = 'b'\n[[series]]\nname = 's'\nbench = 'kvs'\n\
                 [[series.points]]\nlabel = 'p'\n";
    let cases = [
        (sound.replace("title", "titel"), "figure.toml: line 1: unknown field `titel`"),
        (sound.replace("label", "lable"), "line 7: unknown field `lable`"),
        (sound.replace("kvs", "kvs --cn 2"), "s, p: unexpected argument '--cn'"),
        (sound.replace("kvs", "kvsx"), "s, p: unrecognized subcommand 'kvsx'"),
        ("sweep = 'clients'\n".to_owned(), "missing field"),
        ("titel = [".to_owned(), "figure.toml: line 1: "),
        (String::new(), "missing field `title`"),
    ];
    for (text, named) in cases {
        fs::write(&file, &text).expect("writable");
        let sentence = refusal(&["figures", "run", &file, "--plots", &plots]);
        assert!(sentence.contains(named), "{text}: {sentence}");
    }
    let cases = [("gravity", "there is no experiment gravity"), ("no.toml", "cannot be read")];
    for (name, named) in cases {
        let sentence = refusal(&["figures", "run", name, "--plots", &plots]);
        assert!(sentence.contains(named), "{sentence}");
    }
    assert!(!fs::exists(&plots).expect("readable"));
}

#[test]
fn a_folder_that_is_no_report_is_refused_and_left_alone() {
    let dir = Scratch::new("no-report");
    let (file, full) = (dir.path("thesis.tex"), dir.path(""));
    fs::write(&file, "mine").expect("writable");
    let report = |out: &str, name: &str, again: &[&str]| {
        refusal(&[&["figures", "report", "--out", out, name], again].concat())
    };
    let cases = [
        (full.as_str(), "recovery", "is not empty, and what is in it is no report of lotus"),
        (file.as_str(), "recovery", "is not a folder"),
        ("/dev/null", "recovery", "is not a folder"),
        (full.as_str(), "gravity", "there is no experiment gravity"),
    ];
    for (out, name, named) in cases {
        for again in [&[][..], &["--again"]] {
            let sentence = report(out, name, again);
            assert!(sentence.contains(named), "{sentence}");
        }
    }
    assert!(refusal(&["figures", "report"]).contains("--out"));
    // A report of another program.
    let other = dir.path("other");
    fs::create_dir(&other).expect("writable");
    let manifest = format!("{other}/report.json");
    let text = r#"{"lotus_report":1,"version":"0.0.1","short":false,"experiments":[]}"#;
    fs::write(&manifest, text).expect("writable");
    let sentence = report(&other, "recovery", &[]);
    assert!(sentence.contains("is a report of version 0.0.1") && sentence.contains("--again"));
    assert_eq!(fs::read_to_string(&manifest).expect("readable"), text);
    assert_eq!(fs::read_dir(&other).expect("readable").count(), 1);
    assert_eq!(fs::read_dir(&full).expect("readable").count(), 2);
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
