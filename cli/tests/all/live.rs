//! `lotus bench --live`, and `lotus top` at its socket.

use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::common::runs::{Running, connected, lines};
use crate::common::{Scratch, lotus};

fn start(arguments: &[&str]) -> Running {
    Running::start(env!("CARGO_BIN_EXE_lotus"), arguments)
}

#[test]
fn a_benchmark_is_shown_while_it_runs_and_leaves_no_socket() {
    let scratch = Scratch::new("live");
    let socket = scratch.path("live.sock");
    let bench = ["bench", "smallbank", "--accounts", "1000", "--secs", "4", "--live", &socket];
    let running = start(&bench);
    // It reads nothing, to the end.
    let _lazy = connected(&socket);
    let all = lines(connected(&socket));

    let refused = lotus(&["bench", "kvs", "--secs", "1", "--live", &socket]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("another benchmark is shown"), "{said}");

    let shown = lotus(&["top", &socket, "--once"]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.contains("smallbank on local: "), "{shown}");

    let all: Vec<Value> = all.collect();
    let running_lines = all.iter().filter(|line| line["phase"] == "running");
    let busy = running_lines.clone().filter(|line| line["per_s"].as_f64() > Some(0.0));
    assert!(busy.clone().count() >= 4, "{all:#?}");
    let has = |line: &Value| {
        line["p50_us"].as_f64() > Some(0.0)
            && line["p99_us"].as_f64() >= line["p50_us"].as_f64()
            && line["hits"]["own locks"].as_f64() > Some(0.0)
    };
    assert!(busy.clone().any(has), "{all:#?}");
    assert!(
        busy.clone().any(|line| line["aborts_per_s"]["logic"].as_f64() > Some(0.0)),
        "{all:#?}"
    );
    let left = |line: &Value| line["left_s"].as_f64().expect("a number");
    assert!(left(&all[0]) >= left(&all[all.len() - 1]), "{all:#?}");
    running.ends_well();
    assert!(UnixStream::connect(&socket).is_err() && !std::path::Path::new(&socket).exists());
}

#[test]
fn a_simulated_benchmark_shows_virtual_seconds_and_a_dead_one_is_replaced() {
    let scratch = Scratch::new("live-sim");
    let socket = scratch.path("live.sock");
    let bench = |secs| {
        ["bench", "kvs", "--fabric", "sim", "--keys", "1000", "--secs", secs, "--live", &socket]
    };
    let running = start(&bench("60"));
    let line = lines(connected(&socket)).find(|line| line["phase"] == "running");
    let line = line.expect("it runs");
    assert_eq!((&line["is_virtual"], &line["fabric"]), (&true.into(), &"sim".into()), "{line}");
    drop(running);
    let dead = lotus(&["top", &socket, "--once"]);
    let said = String::from_utf8_lossy(&dead.stderr).into_owned();
    assert_eq!(dead.status.code(), Some(2), "{said}");
    assert!(said.contains("has ended"), "{said}");
    start(&bench("0.001")).ends_well();
    assert!(!std::path::Path::new(&socket).exists());
}
