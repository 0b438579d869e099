//! A thread of a compute node: lane, known addresses, part of shared memory.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use lotus_fabric::ids::{Incarnation, TxnId};
use lotus_fabric::lane::Lane;

use super::addresses::Addresses;
use super::{Store, System};

/// Bytes of shared memory that a thread allocates at once.
const STRETCH: u64 = 1 << 20;

/// Harm that an engine as published would do, or has done, to other transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Harm {
    /// Locks of other transactions that an abort has released, or would have released.
    pub freed: u64,
    /// Values that were overwritten while being read, and refused.
    pub torn: u64,
}

impl std::ops::AddAssign for Harm {
    fn add_assign(&mut self, other: Self) {
        self.freed += other.freed;
        self.torn += other.torn;
    }
}

/// A thread of a compute node.
pub(crate) struct ThreadContext<S: System> {
    pub(crate) store: Arc<Store<S>>,
    pub(crate) lane: Lane,
    pub(crate) addresses: RefCell<Addresses>,
    /// Incarnation of the compute node, as in transaction ids.
    node: Incarnation,
    first_slot: u16,
    free: Cell<(u64, u64)>,
    harm: Cell<Harm>,
}

impl<S: System> ThreadContext<S> {
    /// Thread `thread` of compute node `cn`, with `tasks` tasks.
    ///
    /// # Panics
    /// If transaction ids cannot name the node or its tasks.
    pub(crate) fn new(
        store: Arc<Store<S>>,
        lane: Lane,
        (cn, thread, tasks): (usize, usize, usize),
    ) -> Self {
        let node = Incarnation::new(cn as u16).expect("few compute nodes");
        let addresses = RefCell::new(Addresses::new(store.tables.len()));
        let first_slot = (thread * tasks) as u16;
        let (free, harm) = (Cell::default(), Cell::default());
        Self { store, lane, addresses, node, first_slot, free, harm }
    }

    /// Id of attempt number `attempt` of a task.
    #[inline]
    pub(crate) fn txn_id(&self, task: usize, attempt: u64) -> TxnId {
        TxnId::new(self.node, self.first_slot + task as u16, attempt)
    }

    /// Allocates `bytes` bytes of shared memory; `None` if no memory is left.
    pub(crate) fn take(&self, bytes: u64) -> Option<u64> {
        let (at, end) = self.free.get();
        if at + bytes <= end {
            self.free.set((at + bytes, end));
            return Some(at);
        }
        let stretch = STRETCH.max(bytes);
        let at = self.store.take(stretch)?;
        self.free.set((at + bytes, at + stretch));
        Some(at)
    }

    /// Bytes of shared memory that this thread has allocated and not used.
    pub(crate) fn spare_bytes(&self) -> u64 {
        let (at, end) = self.free.get();
        end - at
    }

    pub(crate) fn note_freed(&self) {
        let harm = self.harm.get();
        self.harm.set(Harm { freed: harm.freed + 1, ..harm });
    }

    pub(crate) fn note_torn(&self) {
        let harm = self.harm.get();
        self.harm.set(Harm { torn: harm.torn + 1, ..harm });
    }

    pub(crate) fn harm(&self) -> Harm {
        self.harm.get()
    }
}
