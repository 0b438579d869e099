//! The command refuses bad input: one clear sentence, exit code 2, nothing written, no existing
//! file touched. Flags that `lotus` has too are in the tests of `lotus`.

use std::fs;

use crate::common::program::{self, REFUSED};
use crate::common::{Scratch, lab};

/// The sentence with which the command was refused.
fn refusal(arguments: &[&str]) -> String {
    program::refusal(env!("CARGO_BIN_EXE_lotus-lab"), arguments)
}

fn bench<'a>(workload: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["bench", workload], flags].concat()
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
fn without_a_command_help_is_shown() {
    for arguments in [&[][..], &["bench"], &["figures"], &["sim"]] {
        let output = lab(arguments);
        assert_eq!(output.status.code(), Some(REFUSED));
        assert!(String::from_utf8_lossy(&output.stderr).contains("Usage:"));
    }
}

#[test]
fn a_running_cluster_is_referred_to_the_other_program() {
    let sentence = refusal(&bench("kvs", &["--cluster", "somewhere"]));
    assert!(sentence.contains("of lotus-lab bench"), "{sentence}");
}
