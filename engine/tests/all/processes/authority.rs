//! Authorities that misbehave in one way each, within the contract.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lotus::{Authority, Cluster, ClusterBuilder};
use lotus_authority::testing::{Fate, Question, TestAuthority};

/// Builds a cluster of one compute node that asks `authority` as if it were far away.
pub fn alone(authority: Arc<dyn Authority>) -> ClusterBuilder {
    Cluster::embedded()
        .memory_nodes(1)
        .replicas(1)
        .memory_limit(64 << 20)
        .lock_table_bytes(1 << 20)
        .part([0], authority, Duration::ZERO)
}

/// Creates an authority at which another process writes the first value of the catalogue just
/// before this one would. The flag says whether that has happened.
pub fn outrun() -> (TestAuthority, Arc<AtomicBool>) {
    let happened = Arc::new(AtomicBool::new(false));
    let happens = Arc::clone(&happened);
    let authority = TestAuthority::following(move |question, values| {
        if let Question::Swap { key: "tables", expected, value } = question
            && !happens.swap(true, Ordering::SeqCst)
        {
            // An empty catalogue: its format, and no table.
            let written = values.compare_and_swap("tables", expected, &value[..1]);
            written.expect("this process would be the first");
        }
        Fate::Answered
    });
    (authority, happened)
}
