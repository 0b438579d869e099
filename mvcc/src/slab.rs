//! Sub-allocation of remote memory by one coordinator.
//!
//! A coordinator takes whole slabs from a group's region (one remote compare-and-swap each, see
//! [`crate::layout::region`]) and cuts slots from them without asking anybody. This is the
//! cutting; taking a slab is the engine's business, and so is naming it in the slab directory
//! *before* any slot of it is used. Slots of one slab have one table, kind and size for ever, so
//! a reader that follows a stale offset finds a record of the same table, or none (H13).
//!
//! Nothing is shared: every coordinator has its own allocator, and a slot that is given back
//! goes to whoever gives it.

use lotus_fabric::ids::TableId;

use crate::layout::region::SlabKind;

/// What slots are for: those of one purpose have one size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Purpose {
    /// The table.
    pub table: TableId,
    /// The replica group whose region they are in.
    pub group: u16,
    /// What they hold.
    pub slots: SlotKind,
}

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotKind {
    /// A record.
    Record,
    /// An overflow bucket.
    Bucket,
}

impl SlotKind {
    /// What the directory says about slabs that such slots are cut from.
    pub const fn slab(self) -> SlabKind {
        match self {
            Self::Record => SlabKind::Records,
            Self::Bucket => SlabKind::Overflow,
        }
    }
}

/// The slots that one coordinator may hand to its transactions.
#[derive(Debug)]
pub struct SlabAllocator {
    groups: usize,
    /// By table, then group, then kind: found by arithmetic, not by hashing.
    pools: Vec<Pool>,
}

#[derive(Clone, Default, Debug)]
struct Pool {
    /// The rest of the current slab.
    next: u64,
    end: u64,
    /// Slots given back; as many as are missing from earlier slabs.
    free: Vec<u64>,
    /// What is left of slabs that were added before the current one was used up.
    spare: Vec<(u64, u64)>,
}

impl SlabAllocator {
    /// An allocator without slabs, in a cluster of `groups` replica groups.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(groups: u16) -> Self {
        assert!(groups > 0, "a cluster has at least one replica group");
        Self { groups: usize::from(groups), pools: Vec::new() }
    }

    /// The offset of a slot of `slot_bytes` in the region of the purpose's group; `None` if the
    /// coordinator must take another slab first and [`add`](Self::add_slab) it.
    ///
    /// `slot_bytes` is the same in every call for a purpose.
    #[inline]
    pub fn alloc(&mut self, purpose: Purpose, slot_bytes: u64) -> Option<u64> {
        let index = self.index(purpose);
        self.pools.get_mut(index)?.alloc(slot_bytes)
    }

    /// Takes back a slot that nothing names any more.
    #[inline]
    pub fn release(&mut self, purpose: Purpose, slot: u64) {
        self.pool(purpose).free.push(slot);
    }

    /// Adds the memory from `offset` on: a slab just taken, or the unused rest of one adopted.
    ///
    /// # Panics
    /// If `offset` is 0, which would look like a cell without a record slot.
    pub fn add_slab(&mut self, purpose: Purpose, offset: u64, bytes: u64) {
        assert!(offset != 0, "no slab begins at offset 0");
        let pool = self.pool(purpose);
        pool.spare.push((offset, offset + bytes));
    }

    #[inline]
    fn index(&self, purpose: Purpose) -> usize {
        let group = usize::from(purpose.group);
        assert!(group < self.groups, "group {group} of {}", self.groups);
        (usize::from(purpose.table.0) * self.groups + group) * 2 + purpose.slots as usize
    }

    fn pool(&mut self, purpose: Purpose) -> &mut Pool {
        let index = self.index(purpose);
        if index >= self.pools.len() {
            self.pools.resize_with(index + 1, Pool::default);
        }
        &mut self.pools[index]
    }
}

impl Pool {
    #[inline]
    fn alloc(&mut self, slot_bytes: u64) -> Option<u64> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        while self.end - self.next < slot_bytes {
            (self.next, self.end) = self.spare.pop()?;
        }
        let slot = self.next;
        self.next += slot_bytes;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: Purpose = Purpose { table: TableId(3), group: 1, slots: SlotKind::Record };
    const BUCKETS: Purpose = Purpose { slots: SlotKind::Bucket, ..RECORDS };

    #[test]
    fn slots_are_cut_from_slabs_and_never_cross_their_end() {
        let mut slabs = SlabAllocator::new(2);
        assert_eq!(slabs.alloc(RECORDS, 64), None);
        slabs.add_slab(RECORDS, 1000, 200);
        let drawn = [(); 4].map(|()| slabs.alloc(RECORDS, 64));
        assert_eq!(drawn, [Some(1000), Some(1064), Some(1128), None]);
        slabs.add_slab(RECORDS, 5000, 64);
        slabs.add_slab(RECORDS, 6000, 64);
        let mut drawn = [(); 3].map(|()| slabs.alloc(RECORDS, 64));
        drawn.sort();
        assert_eq!(drawn, [None, Some(5000), Some(6000)]);
    }

    #[test]
    fn purposes_do_not_share() {
        let mut slabs = SlabAllocator::new(2);
        slabs.add_slab(RECORDS, 1000, 64);
        let others = [
            BUCKETS,
            Purpose { group: 0, ..RECORDS },
            Purpose { table: TableId(2), ..RECORDS },
            Purpose { table: TableId(4), ..RECORDS },
        ];
        assert_eq!(others.map(|purpose| slabs.alloc(purpose, 64)), [None; 4]);
        assert_eq!(slabs.alloc(RECORDS, 64), Some(1000));
    }

    #[test]
    fn a_released_slot_is_the_next_to_be_used() {
        let mut slabs = SlabAllocator::new(2);
        slabs.add_slab(BUCKETS, 512, 1024);
        assert_eq!(slabs.alloc(BUCKETS, 512), Some(512));
        slabs.release(BUCKETS, 512);
        let drawn = [(); 3].map(|()| slabs.alloc(BUCKETS, 512));
        assert_eq!(drawn, [Some(512), Some(1024), None]);
    }
}
