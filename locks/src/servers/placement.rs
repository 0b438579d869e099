//! Which core of which node keeps a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

use super::table::LockTable;

/// Cores that keep locks: a lock is kept by the one of its number, modulo theirs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement(Vec<Endpoint>);

impl Placement {
    /// All locks on one node, shared out among its first lanes.
    ///
    /// # Panics
    /// If there is no core.
    pub fn on_one(node: NodeId, cores: u16) -> Self {
        Self::new((0..cores).map(|lane| Endpoint { node, lane: LaneId(lane) }).collect())
    }

    /// Locks shared out among nodes, of which each has a core for them on this lane.
    ///
    /// # Panics
    /// If there is no node.
    pub fn on_all(nodes: impl IntoIterator<Item = NodeId>, lane: LaneId) -> Self {
        Self::new(nodes.into_iter().map(|node| Endpoint { node, lane }).collect())
    }

    fn new(cores: Vec<Endpoint>) -> Self {
        assert!(!cores.is_empty(), "somebody keeps the locks");
        Self(cores)
    }

    /// The cores.
    pub fn cores(&self) -> &[Endpoint] {
        &self.0
    }

    /// The core that keeps a lock.
    pub fn core_of(&self, lock: u64) -> Endpoint {
        self.0[(lock % self.0.len() as u64) as usize]
    }
}

/// The locks of one core, for all lanes of its node. Clones are the same one.
#[derive(Clone, Debug)]
pub struct SharedTable(Arc<Mutex<LockTable>>);

impl SharedTable {
    /// A table that lanes share.
    pub fn new(table: LockTable) -> Self {
        Self(Arc::new(Mutex::new(table)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LockTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.lock().used()
    }
}
