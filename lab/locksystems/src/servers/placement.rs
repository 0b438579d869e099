//! Which core of which node keeps a lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lotus_fabric::ids::{Endpoint, LaneId, NodeId};

use super::hot::HotQueues;
use super::table::LockTable;

/// Cores that keep locks: a lock is kept by the one of its number, modulo theirs, or each core
/// keeps a block of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    cores: Vec<Endpoint>,
    /// Number of locks that are divided into blocks.
    blocks_of: Option<u64>,
}

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
        Self { cores, blocks_of: None }
    }

    /// The same cores, each with a block of so many locks, in order.
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
