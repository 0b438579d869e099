//! Metrics of a running cluster, and what documents say of them.

use std::collections::BTreeSet;
use std::fs;

use super::described::{Described, MEMORY_METRICS, METRICS};
use super::{get, wait_until};
use crate::documents;

/// Every metric that a node serves is described, and every metric that a document names is served.
#[test]
fn metrics_that_documents_name_exist() {
    let (described, host) = Described::serving("documented");
    let described = described.with_memory_metrics(host);
    let file = fs::read_to_string(described.file()).expect("it is ours");
    let file = file.replacen("[[mem", "[snapshots]\ndirectory = \"kept\"\n[[mem", 1);
    fs::write(described.file(), file).expect("it is ours");
    described.done(&["up"]);
    described.done(&["snapshot"]);
    let served = |port| -> BTreeSet<String> {
        let metrics = get((host, port), "/metrics");
        let kinds = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        kinds.filter_map(|kind| kind.split(' ').next()).map(str::to_owned).collect()
    };
    // Before the first beat, and while a memory node does not answer, some are absent.
    let at_times = ["lotus_table_rows", "lotus_snapshot_age_seconds", "lotus_lease_margin_seconds"];
    let mut all = BTreeSet::new();
    wait_until("all metrics are there", || {
        all = served(METRICS);
        at_times.iter().all(|name| all.contains(*name))
    });
    all.extend(served(MEMORY_METRICS));
    assert_eq!(documents::metrics(), all, "told in documents (left), and served (right)");
    described.done(&["down", "--discard"]);
}
