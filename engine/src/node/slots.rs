//! Free slots that the coordinators of a node share ([`crate::space::slots`]).

use lotus_fabric::env::Nanos;
use lotus_mvcc::slab::{Purpose, SlabAllocator, SlotKind, reserve};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Purpose of taking a slot; see the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The first version of a row, or a bucket of the index.
    Insert,
    /// A version of an existing row with a cell that names no slot.
    Update,
    /// A version that may be needed by old snapshots, or the record of a deletion: both can be done
    /// without.
    Spare,
}

impl Use {
    /// Returns the number of free slots that this use leaves in reserve.
    #[inline]
    pub(crate) fn keeps_back(self, purpose: Purpose, bytes: u64) -> u64 {
        let all = self == Self::Update || purpose.slots != SlotKind::Record;
        if all { 0 } else { reserve(bytes) }
    }

    /// Takes a slot of `from`, unless only the reserve is left.
    #[inline]
    pub(crate) fn take(
        self,
        from: &mut SlabAllocator,
        purpose: Purpose,
        bytes: u64,
    ) -> Option<u64> {
        let kept_back = self.keeps_back(purpose, bytes);
        match self {
            Self::Insert => from.alloc_for_insert(purpose, bytes, kept_back),
            Self::Update | Self::Spare => from.alloc_beyond(purpose, bytes, kept_back),
        }
    }
}

/// Free slots that the coordinators of a node share.
pub(crate) struct NodeSlots {
    shared: Mutex<SlabAllocator>,
    /// Groups without a slab left, as far as this node has found out.
    full: Box<[AtomicBool]>,
    /// Times at which an insert, and an update, last found no slot; 0 for never.
    missed: [AtomicU64; 2],
}

impl NodeSlots {
    pub(crate) fn new(groups: u16) -> Self {
        Self {
            shared: Mutex::new(SlabAllocator::new(groups)),
            full: (0..groups).map(|_| AtomicBool::new(false)).collect(),
            missed: Default::default(),
        }
    }

    /// Locks the shared slots: for a moment, across no await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SlabAllocator> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a group has no slab left. Slabs are never given back, so this stays true.
    #[inline]
    pub(crate) fn is_full(&self, group: u16) -> bool {
        // Relaxed: only the mutex says which slots are free.
        self.full[usize::from(group)].load(Ordering::Relaxed)
    }

    /// Notes that a group has no slab left.
    pub(crate) fn set_full(&self, group: u16) {
        self.full[usize::from(group)].store(true, Ordering::Relaxed);
    }

    /// Notes that an insert or an update found no slot, here or at a node that asks.
    pub(crate) fn miss(&self, wanted: Use, now: Nanos) {
        self.missed[usize::from(wanted == Use::Update)].fetch_max(now.0, Ordering::Relaxed);
    }

    /// Returns the time of the last such miss.
    pub(crate) fn missed(&self, wanted: Use) -> Nanos {
        Nanos(self.missed[usize::from(wanted == Use::Update)].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use lotus_fabric::ids::TableId;

    use super::*;

    #[test]
    fn inserts_leave_what_updates_need_and_buckets_are_for_inserts_alone() {
        let records = Purpose { table: TableId(0), group: 0, slots: SlotKind::Record };
        let buckets = Purpose { slots: SlotKind::Bucket, ..records };
        let uses = [Use::Insert, Use::Update, Use::Spare];
        assert_eq!(uses.map(|wanted| wanted.keeps_back(records, 4096)), [16, 0, 16]);
        let fans = Purpose { slots: SlotKind::Fan, ..records };
        for purpose in [buckets, fans] {
            assert_eq!(uses.map(|wanted| wanted.keeps_back(purpose, 4096)), [0; 3]);
        }
    }

    #[test]
    fn a_group_is_full_by_itself() {
        let slots = NodeSlots::new(2);
        slots.set_full(1);
        assert_eq!([0, 1].map(|group| slots.is_full(group)), [false, true]);
    }
}
