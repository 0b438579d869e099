//! Which core of which node keeps a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

use super::hot::HotQueues;
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

/// The queues of a switch, which are looked at when all is over. Clones are the same ones.
#[derive(Clone, Debug)]
pub struct SharedQueues(Arc<Mutex<HotQueues>>);

impl SharedQueues {
    /// Queues of a switch.
    pub fn new(queues: HotQueues) -> Self {
        Self(Arc::new(Mutex::new(queues)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HotQueues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        self.lock().used()
    }
}

/// What a core keeps.
#[derive(Clone, Debug)]
pub enum Keeps {
    /// Locks, and what a switch has no room for, if there is one.
    Table(SharedTable, Option<Endpoint>),
    /// Queues of hot locks: it is a switch, in front of these servers of all others.
    Queues(SharedQueues, Placement),
}

impl Keeps {
    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        match self {
            Self::Table(table, _) => table.used(),
            Self::Queues(queues, _) => queues.used(),
        }
    }

    /// Whether it is a switch, which takes no core's time.
    pub const fn is_switch(&self) -> bool {
        matches!(self, Self::Queues(..))
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
