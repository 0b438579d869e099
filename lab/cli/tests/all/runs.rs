//! Benchmarks of locks under way: shown at a socket, and on memory nodes that are processes.

use crate::common::Scratch;
use crate::common::runs::{Running, connected, ends_with_a_memory_node, lines};

const LAB: &str = env!("CARGO_BIN_EXE_lotus-lab");

#[test]
fn a_memory_node_that_dies_ends_the_run_with_a_sentence() {
    ends_with_a_memory_node(LAB, &["locks", "--count", "50", "--threads", "2"], 1);
}

#[test]
fn a_benchmark_of_locks_is_shown() {
    let scratch = Scratch::new("live-locks");
    let socket = scratch.path("live.sock");
    let bench =
        ["bench", "locks", "--lock", "dslr", "--count", "100", "--secs", "2", "--live", &socket];
    let running = Running::start(LAB, &bench);
    let shown = lines(connected(&socket)).find(|line| line["p50_us"].as_f64() > Some(0.0));
    let shown = shown.expect("locks are released");
    assert_eq!((&shown["counted"], &shown["bench"]), (&"released".into(), &"locks dslr".into()));
    running.ends_well();
}
