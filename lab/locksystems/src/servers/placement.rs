//! The cores that keep locks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

use super::hot::HotQueues;
use super::table::LockTable;

/// Placement of locks on cores. A lock's core is its number modulo the number of cores, or every
/// core keeps a block of consecutive locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    cores: Vec<Endpoint>,
    /// Number of locks divided into blocks.
    blocks_of: Option<u64>,
}

impl Placement {
    /// Places all locks on a single node, divided among the node's first lanes.
    ///
    /// # Panics
    /// If there is no core.
    pub fn on_one(node: NodeId, cores: u16) -> Self {
        Self::new((0..cores).map(|lane| Endpoint { node, lane: LaneId(lane) }).collect())
    }

    /// Places locks on several nodes; lane `lane` of every node keeps a share.
    ///
    /// # Panics
    /// If there is no node.
    pub fn on_all(nodes: impl IntoIterator<Item = NodeId>, lane: LaneId) -> Self {
        Self::new(nodes.into_iter().map(|node| Endpoint { node, lane }).collect())
    }

    fn new(cores: Vec<Endpoint>) -> Self {
        assert!(!cores.is_empty(), "somebody keeps the locks");
        Self { cores, blocks_of: None }
    }

    /// Divides `locks` locks into consecutive blocks, one for each core.
    #[must_use]
    pub fn in_blocks(self, locks: u64) -> Self {
        Self { blocks_of: Some(locks), ..self }
    }

    /// The cores.
    pub fn cores(&self) -> &[Endpoint] {
        &self.cores
    }

    /// The core that keeps a lock.
    pub fn core_of(&self, lock: u64) -> Endpoint {
        let cores = self.cores.len() as u64;
        let core = match self.blocks_of {
            None => lock % cores,
            Some(locks) => {
                let block = u128::from(lock) * u128::from(cores) / u128::from(locks.max(1));
                (block as u64).min(cores - 1)
            }
        };
        self.cores[core as usize]
    }
}

/// The queues of a switch, inspected after a run. Clones share the queues.
#[derive(Clone, Debug)]
pub struct SharedQueues(Arc<Mutex<HotQueues>>);

impl SharedQueues {
    /// Wraps the queues of a switch.
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

/// Role of a core, with its locks.
#[derive(Clone, Debug)]
pub enum CoreRole {
    /// A table of locks, and the switch, if any, for which the server buffers requests.
    Table(SharedTable, Option<Endpoint>),
    /// A switch's queues of hot locks, and the servers of the remaining locks.
    Queues(SharedQueues, Placement),
}

impl CoreRole {
    /// Number of locks that are held or waited for.
    pub fn used(&self) -> usize {
        match self {
            Self::Table(table, _) => table.used(),
            Self::Queues(queues, _) => queues.used(),
        }
    }

    /// Whether this is a switch, which uses no core time.
    pub const fn is_switch(&self) -> bool {
        matches!(self, Self::Queues(..))
    }
}

/// The locks of a core, shared by all lanes of the node. Clones share the table.
#[derive(Clone, Debug)]
pub struct SharedTable(Arc<Mutex<LockTable>>);

impl SharedTable {
    /// Wraps a table for several lanes.
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
