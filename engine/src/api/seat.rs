//! Address of a coordinator.

/// Coordinator that a job runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Place of the compute node, from zero.
    pub compute_node: usize,
    /// Number of the coordinator on that node, from zero.
    pub thread: usize,
}
