//! Address of a coordinator, and application code that holds up a coordinator.

use std::time::Duration;

/// Coordinator that a job runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinatorId {
    /// Place of the compute node, from zero.
    pub compute_node: usize,
    /// Number of the coordinator on the node, from zero.
    pub thread: usize,
}

/// Code of an application that holds up a coordinator's thread:
/// [`Cluster::held_up`](crate::Cluster::held_up).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldUp {
    /// The coordinator.
    pub coordinator_id: CoordinatorId,
    /// Name of the transaction or job, or the line of the program that submitted it.
    pub what: String,
    /// Time for which the code is known to have held up the thread.
    pub since: Duration,
}
