//! `lotus-lab sim`: what it prints, that it repeats, and what it refuses.

use std::fs;

use crate::common::{Scratch, lab};
use serde_json::Value;

/// The exit code, the standard output and the standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = lab(arguments);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

const SCENARIO: &str = "
name = \"mine\"
storm-us = 300
calm-us = 300
workload = { smallbank = { accounts = 6, hot-accounts = 2, hot-ratio = 0.5 } }
cluster = { compute-nodes = 2, memory-nodes = 2, replicas = 2 }
rates = { message-loss = 0.1, torn-writes = 1.0, tear-span-us = 5 }
";

/// Regression: names, hazards and stories that were longer than their columns, or had lines of
/// their own, broke the table.
#[test]
fn the_list_of_scenarios_has_a_line_for_each_in_columns() {
    let (code, text, _) = run(&["sim", "list"]);
    assert_eq!(code, 0, "{text}");
    let first = text.lines().next().expect("there are some");
    let column = first.find(" H").expect("its hazards");
    for line in text.lines() {
        assert!(line.is_char_boundary(column), "{line}");
        let (name, hazards) = line.split_at(column);
        assert!(!name.trim().is_empty() && !name.trim().contains(' '), "{line}");
        assert!(hazards.starts_with(" H"), "{line}");
    }
}

#[test]
fn a_replay_is_the_same_every_time_and_ends_with_its_hash() {
    for seed in ["3", "8"] {
        let (code, text, _) = run(&["sim", "replay", "--seed", seed]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("# [cluster]") && text.contains(" completed\n"), "{text}");
        let last = text.lines().last().expect("a line");
        let hash = last.strip_prefix("trace hash ").expect("it ends with the hash");
        assert!(hash.len() == 16 && u64::from_str_radix(hash, 16).is_ok(), "{last}");
        assert_eq!(run(&["sim", "replay", "--seed", seed]).1, text);
    }
}

#[test]
fn a_campaign_sums_up_and_can_be_resumed() {
    let scratch = Scratch::new("campaign");
    let json = scratch.path("summary.json");
    let whole = ["sim", "run", "--seeds", "6", "--from", "40", "--json", &json];
    let (code, text, _) = run(&whole);
    assert_eq!(code, 0, "{text}");
    assert!(text.ends_with("no violation\n"), "{text}");
    let committed = |path: &str| {
        let summary: Value =
            serde_json::from_slice(&fs::read(path).expect("it was written")).expect("JSON");
        assert_eq!(summary["failures"].as_array().map(Vec::len), Some(0));
        summary["committed"].as_u64().expect("a count")
    };
    let all = committed(&json);
    let mut parts = 0;
    for from in ["40", "43"] {
        let part =
            ["sim", "run", "--seeds", "3", "--from", from, "--workers", "1", "--json", &json];
        assert_eq!(run(&part).0, 0);
        parts += committed(&json);
    }
    assert_eq!(parts, all);
}

#[test]
fn all_seeds_may_have_the_same_locks_and_failures_name_them() {
    let (code, text, said) = run(&["sim", "run", "--locks", "declock", "--seeds", "3"]);
    assert_eq!((code, text.lines().last()), (0, Some("no violation")), "{text}{said}");
    let short = ["sim", "run", "--locks", "dslr", "--seeds", "1", "--max-events", "500"];
    let (code, text, _) = run(&short);
    assert_eq!(code, 1, "{text}");
    let replay = "lotus-lab sim replay --seed 0 --locks dslr";
    assert!(text.lines().any(|line| line.ends_with(replay)), "{text}");
    let again = ["sim", "replay", "--seed", "0", "--locks", "dslr", "--max-events", "500"];
    let (code, text, _) = run(&again);
    assert!(code == 1 && text.contains("# locks = \"dslr\"\n"), "{text}");
    let shrink = ["sim", "shrink", "--seed", "0", "--locks", "dslr", "--max-events", "500"];
    let (code, text, _) = run(&shrink);
    assert!(code == 1 && text.contains("\nlocks = \"dslr\"\n"), "{text}");
    let (code, _, said) = run(&["sim", "run", "--locks", "cas", "--scenario", "all"]);
    assert!(code == 2 && said.contains("cannot be used with"), "{said}");
}

#[test]
fn a_scenario_comes_from_a_file_and_a_budget_ends_it_with_a_message() {
    let scratch = Scratch::new("scenario");
    let file = scratch.path("mine.toml");
    fs::write(&file, SCENARIO).expect("a scratch file");
    let (code, text, _) = run(&["sim", "run", "--scenario", &file, "--seeds", "3"]);
    assert_eq!(code, 0, "{text}");
    let short = ["sim", "run", "--scenario", &file, "--seeds", "1", "--max-events", "500"];
    let (code, text, _) = run(&short);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("stopped after 500 events"), "{text}");
    assert!(text.contains(&format!("lotus-lab sim replay --seed 0 --scenario {file}")), "{text}");
    let shrink = ["sim", "shrink", "--scenario", &file, "--seed", "0", "--max-events", "500"];
    let (code, text, _) = run(&shrink);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("message-loss = 0.0"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused_in_one_sentence() {
    let scratch = Scratch::new("refused");
    let cases = [
        ("calm-us = 300", "calm-us = \"long\"", "line 4"),
        ("replicas = 2", "replicas = 3", "replicas"),
        ("memory-nodes = 2", "memory-nodes = 0", "memory"),
        ("compute-nodes = 2", "compute-nodes = 70000", "compute nodes"),
        ("accounts = 6", "accounts = 1", "accounts"),
        ("torn-writes = 1.0", "torn-writes = -1.0", "rate"),
        ("rates =", "rats =", "line 7"),
        ("name = \"mine\"", "name = \"\u{0}\u{1}", "line 2"),
    ];
    let file = scratch.path("bad.toml");
    for (from, to, expected) in cases {
        assert!(SCENARIO.contains(from), "{from}");
        fs::write(&file, SCENARIO.replace(from, to)).expect("a scratch file");
        let (code, _, said) = run(&["sim", "run", "--scenario", &file, "--seeds", "1"]);
        assert_eq!(code, 2, "{to}: {said}");
        assert!(said.lines().count() == 1 && said.contains(expected), "{to}: {said}");
    }
    fs::write(&file, [0xFF, 0xFE, 0]).expect("a scratch file");
    let profile = scratch.path("profile.toml");
    fs::write(&profile, "name = 3\n").expect("a scratch file");
    let cases: [(&[&str], &str); 10] = [
        (&["sim", "run", "--scenario", &file], "line 1: not text"),
        (&["sim", "run", "--scenario", "no-such-thing"], "no-such-thing"),
        (&["sim", "run", "--seeds", "0"], "--seeds"),
        (&["sim", "run", "--max-events", "0"], "--max-events"),
        (&["sim", "replay"], "--seed"),
        (&["sim", "replay", "--seed", "1", "--scenario", "all"], "one scenario"),
        (&["sim", "shrink", "--seed", "3"], "violates nothing"),
        (&["bench", "kvs", "--fabric", "sim", "--profile", "cx9"], "cx3-56g"),
        (&["bench", "kvs", "--fabric", "sim", "--profile", &profile], "line 1"),
        (&["bench", "kvs", "--fabric", "sim", "--floor"], "--floor"),
    ];
    for (arguments, expected) in cases {
        let (code, _, said) = run(arguments);
        assert_eq!(code, 2, "{arguments:?}: {said}");
        assert!(said.lines().last().is_some_and(|line| line.contains(expected)), "{said}");
    }
}

#[test]
fn lock_systems_are_tried_and_holes_of_published_ones_are_shown() {
    let (code, text, _) = run(&["sim", "locks", "--seeds", "12"]);
    assert_eq!((code, text.lines().last()), (0, Some("no violation")), "{text}");
    let (code, text, _) = run(&["sim", "locks", "--scenario", "list"]);
    assert!(code == 0 && text.contains("dslr-slow-holder"), "{text}");
    let hole = ["sim", "locks", "--scenario", "cas-dead-holder", "--seeds", "12"];
    assert_eq!(run(&hole).0, 0);
    let (code, text, _) = run(&[&hole[..], &["--as-published"]].concat());
    assert_eq!(code, 1, "{text}");
    // What it names to run a trial again fails again.
    let again = text.lines().find_map(|line| line.strip_prefix("lotus-lab ")).expect("a command");
    assert_eq!(run(&again.split(' ').collect::<Vec<_>>()).0, 1, "{again}");
    let published = ["sim", "locks", "--lock", "dslr-u", "--as-published"];
    let (code, _, why) = run(&published);
    assert!(code == 2 && why.contains("there is no dslr-u as published"), "{why}");
    let (code, _, why) = run(&["sim", "locks", "--lock", "drtm"]);
    assert!(code == 2 && why.contains("there is drtm as published only"), "{why}");
    for baseline in ["rma-rw", "drtm", "ncosed", "shiftlock-wide"] {
        let flags = ["sim", "locks", "--lock", baseline, "--as-published", "--seeds", "4"];
        let (code, text, _) = run(&flags);
        assert_eq!((code, text.lines().last()), (0, Some("no violation")), "{text}");
    }
    let (code, _, why) = run(&["sim", "locks", "--scenario", "nix"]);
    assert!(code == 2 && why.contains("no scenario nix"), "{why}");
}

#[test]
fn locks_of_switches_and_servers_are_tried_and_shown() {
    for kept in ["fisslock", "fisslock+parlock", "srvlock", "parlock", "rpc", "netlock"] {
        let (code, text, _) = run(&["sim", "locks", "--lock", kept, "--seeds", "6"]);
        assert_eq!((code, text.lines().last()), (0, Some("no violation")), "{text}");
    }
    let redlock = ["sim", "locks", "--lock", "redlock", "--seeds", "2"];
    let (code, _, why) = run(&redlock);
    assert!(code == 2 && why.contains("there is redlock as published only"), "{why}");
    assert_eq!(run(&[&redlock[..], &["--as-published"]].concat()).0, 0);
    let (code, _, why) = run(&["sim", "locks", "--lock", "srvlock", "--as-published"]);
    assert!(code == 2 && why.contains("there is no srvlock as published"), "{why}");
    let delayed = ["sim", "locks", "--scenario", "redlock-delayed-restart", "--seeds", "3"];
    let (code, _, why) = run(&delayed);
    assert!(code == 2 && why.contains("there is redlock as published only"), "{why}");
    assert_eq!(run(&[&delayed[..], &["--as-published"]].concat()).0, 0);
    let slow = ["sim", "locks", "--scenario", "redlock-slow-holder", "--seeds", "6"];
    let (code, _, why) = run(&slow);
    assert!(code == 2 && why.contains("nothing closes the hole of redlock-slow-holder"), "{why}");
    let (code, text, _) = run(&[&slow[..], &["--as-published"]].concat());
    assert_eq!(code, 1, "{text}");
    // What it names to run a trial again fails again.
    let again = text.lines().find_map(|line| line.strip_prefix("lotus-lab ")).expect("a command");
    assert_eq!(run(&again.split(' ').collect::<Vec<_>>()).0, 1, "{again}");
}
