//! Sub-allocation of remote memory by one coordinator.
//!
//! A coordinator takes whole slabs from a group's region (one remote compare-and-swap each, see
//! [`crate::layout::region`]) and cuts slots from them locally. This module does the cutting; the
//! engine takes slabs, and enters each slab in the slab directory *before* the first use of a slot.
//! Slots of one slab have one table, kind and size until the table is dropped and has no more
//! readers, so a reader that follows a stale offset finds a record of the same table, or no record
//! (H13).
//!
//! # Reserved slots
//!
//! Rows must be updatable in full memory as well: a row that was written once has one slot, and its
//! next version needs a second slot before the first can be given up. So inserts leave the last
//! [`reserve`] slots alone. Slots received from another node for inserts are exempt: otherwise the
//! receiver would reserve the slots that the giver could spare, and inserts could use them on
//! neither node.
//!
//! # Ownership of free slots
//!
//! Each coordinator has its own allocator, and each compute node has an allocator shared by its
//! coordinators. Slots move between allocators, and between nodes: a slot is removed from one
//! allocator and added to the next, so a free slot is in exactly one allocator. Allocators do not
//! remember the slab of a slot, so a slot may be free at a node other than the node that took its
//! slab.

use lotus_fabric::ids::TableId;

use crate::layout::bucket::FAN_OUT;
use crate::layout::region::{SLAB_BYTES, SlabKind};

/// Table, group and kind of slots; determines the slot size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Purpose {
    /// Table that uses the slots.
    pub table: TableId,
    /// Replica group whose region contains the slots.
    pub group: u16,
    /// Kind of the slots' contents.
    pub slots: SlotKind,
}

/// Kind of a slot's contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotKind {
    /// A record.
    Record,
    /// An overflow bucket.
    Bucket,
    /// A fan of overflow buckets, side by side.
    Fan,
}

impl SlotKind {
    /// Kind of slab, as in the directory, from which slots of this kind are cut.
    pub const fn slab(self) -> SlabKind {
        match self {
            Self::Record => SlabKind::Records,
            Self::Bucket | Self::Fan => SlabKind::Overflow,
        }
    }

    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Record, Self::Bucket, Self::Fan];
}

const KINDS: usize = SlotKind::ALL.len();

/// Largest number of slots kept back for updates.
const MOST_RESERVED: u64 = 512;

/// Number of record slots of `slot_bytes` that inserts leave for updates: a quarter of a slab, at
/// most 512.
///
/// # Panics
/// If `slot_bytes` is zero.
#[inline]
pub const fn reserve(slot_bytes: u64) -> u64 {
    let quarter = SLAB_BYTES / 4 / slot_bytes;
    if quarter < MOST_RESERVED { quarter } else { MOST_RESERVED }
}

/// Free slots of one coordinator, or of a compute node.
#[derive(Debug)]
pub struct SlabAllocator {
    groups: usize,
    /// Pools by table, then group, then kind: indexed by arithmetic, not by hashing.
    pools: Vec<Pool>,
}

#[derive(Clone, Default, Debug)]
struct Pool {
    /// Unused rest of the current slab.
    next: u64,
    end: u64,
    /// Slots given back, here or at the node that gave them to this one.
    free: Vec<u64>,
    /// Unused rests of slabs that were added before the current slab was used up.
    spare: Vec<(u64, u64)>,
    /// Number of free slots that inserts may take even below the reserve.
    for_inserts: u64,
}

impl SlabAllocator {
    /// Creates an allocator without slabs, in a cluster of `groups` replica groups.
    ///
    /// # Panics
    /// If `groups` is zero.
    pub fn new(groups: u16) -> Self {
        assert!(groups > 0, "a cluster has at least one replica group");
        Self { groups: usize::from(groups), pools: Vec::new() }
    }

    /// Takes a slot of `slot_bytes`; returns its offset in the region of the purpose's group, or
    /// `None` if the coordinator must take another slab first and [`add`](Self::add_slab) it.
    ///
    /// `slot_bytes` is the same in every call for a purpose.
    #[inline]
    pub fn alloc(&mut self, purpose: Purpose, slot_bytes: u64) -> Option<u64> {
        let index = self.index(purpose);
        self.pools.get_mut(index)?.alloc(slot_bytes)
    }

    /// Takes a single bucket of `bucket_bytes`, as [`Self::alloc`] does: a free bucket, or the
    /// first bucket of a fan, whose remaining buckets become free.
    pub fn alloc_bucket(&mut self, buckets: Purpose, bucket_bytes: u64) -> Option<u64> {
        self.alloc(buckets, bucket_bytes).or_else(|| {
            let fans = Purpose { slots: SlotKind::Fan, ..buckets };
            let first = self.alloc(fans, bucket_bytes * FAN_OUT as u64)?;
            let others = (1..FAN_OUT as u64).map(|index| first + index * bucket_bytes);
            others.for_each(|bucket| self.release(buckets, bucket));
            Some(first)
        })
    }

    /// Takes back a slot that is no longer named by a cell or link.
    #[inline]
    pub fn release(&mut self, purpose: Purpose, slot: u64) {
        self.pool(purpose).free.push(slot);
    }

    /// Adds a slot that another node has given for inserts.
    pub fn release_for_inserts(&mut self, purpose: Purpose, slot: u64) {
        let pool = self.pool(purpose);
        pool.free.push(slot);
        pool.for_inserts += 1;
    }

    /// Forgets all slots of a dropped table.
    pub fn forget(&mut self, table: TableId) {
        let of_table = self.groups * KINDS;
        let pools = self.pools.iter_mut().skip(usize::from(table.0) * of_table).take(of_table);
        pools.for_each(|pool| *pool = Pool::default());
    }

    /// Adds the memory from `offset` on: a newly taken slab, or the unused rest of an adopted slab.
    ///
    /// # Panics
    /// If `offset` is 0, which would look like a cell without a record slot.
    pub fn add_slab(&mut self, purpose: Purpose, offset: u64, bytes: u64) {
        assert!(offset != 0, "no slab begins at offset 0");
        let pool = self.pool(purpose);
        pool.spare.push((offset, offset + bytes));
    }

    /// Takes a slot like [`Self::alloc`], but only if more than `kept_back` slots are free, not
    /// counting slots for inserts.
    #[inline]
    pub fn alloc_beyond(
        &mut self,
        purpose: Purpose,
        slot_bytes: u64,
        kept_back: u64,
    ) -> Option<u64> {
        let index = self.index(purpose);
        let pool = self.pools.get_mut(index)?;
        if kept_back > 0 && !pool.has_more_than(kept_back + pool.for_inserts, slot_bytes) {
            return None;
        }
        pool.alloc(slot_bytes)
    }

    /// Takes a slot for an insert: a slot given for inserts, or else like [`Self::alloc_beyond`].
    /// Slots given for inserts are not kept back (I218).
    #[inline]
    pub fn alloc_for_insert(
        &mut self,
        purpose: Purpose,
        slot_bytes: u64,
        kept_back: u64,
    ) -> Option<u64> {
        let index = self.index(purpose);
        let pool = self.pools.get_mut(index)?;
        if pool.for_inserts == 0 {
            return self.alloc_beyond(purpose, slot_bytes, kept_back);
        }
        pool.for_inserts -= 1;
        pool.alloc(slot_bytes)
    }

    /// Number of slots that inserts may take, if `kept_back` slots are left alone.
    pub fn available_for_inserts(&self, purpose: Purpose, slot_bytes: u64, kept_back: u64) -> u64 {
        let Some(pool) = self.pools.get(self.index(purpose)) else { return 0 };
        pool.available(slot_bytes).saturating_sub(kept_back).max(pool.for_inserts)
    }

    /// Number of free slots of `slot_bytes`.
    pub fn available(&self, purpose: Purpose, slot_bytes: u64) -> u64 {
        self.pools.get(self.index(purpose)).map_or(0, |pool| pool.available(slot_bytes))
    }

    /// Number of released slots that were not reused.
    #[inline]
    pub fn given_back(&self, purpose: Purpose) -> usize {
        self.pools.get(self.index(purpose)).map_or(0, |pool| pool.free.len())
    }

    /// Moves up to `most` released slots to allocator `to`.
    pub fn spill(&mut self, purpose: Purpose, most: usize, to: &mut Self) {
        let index = self.index(purpose);
        let Some(pool) = self.pools.get_mut(index).filter(|pool| !pool.free.is_empty()) else {
            return;
        };
        let from = pool.free.len().saturating_sub(most);
        to.pool(purpose).free.extend(pool.free.drain(from..));
    }

    /// Moves all free slots and slabs of a group to allocator `to`.
    ///
    /// # Panics
    /// If `to` has a different number of groups.
    pub fn hand_over(&mut self, group: u16, to: &mut Self) {
        assert_eq!(self.groups, to.groups, "both are of one cluster");
        let groups = self.groups;
        let is_of = |index: &usize| index / KINDS % groups == usize::from(group);
        for index in (0..self.pools.len()).filter(is_of) {
            let from = &mut self.pools[index];
            if from.is_empty() {
                continue;
            }
            if index >= to.pools.len() {
                to.pools.resize_with(index + 1, Pool::default);
            }
            let into = &mut to.pools[index];
            into.for_inserts += std::mem::take(&mut from.for_inserts);
            into.free.append(&mut from.free);
            into.spare.append(&mut from.spare);
            if from.next < from.end {
                into.spare.push((from.next, from.end));
                from.next = from.end;
            }
        }
    }

    #[inline]
    fn index(&self, purpose: Purpose) -> usize {
        let group = usize::from(purpose.group);
        assert!(group < self.groups, "group {group} of {}", self.groups);
        (usize::from(purpose.table.0) * self.groups + group) * KINDS + purpose.slots as usize
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
    fn is_empty(&self) -> bool {
        self.free.is_empty() && self.spare.is_empty() && self.next == self.end
    }

    /// Whether more than `count` slots are free. Stops counting as soon as the answer is known.
    #[inline]
    fn has_more_than(&self, count: u64, slot_bytes: u64) -> bool {
        self.free.len() as u64 > count
            || (self.end - self.next) / slot_bytes > count
            || self.available(slot_bytes) > count
    }

    fn available(&self, slot_bytes: u64) -> u64 {
        let spare = self.spare.iter().map(|(next, end)| (end - next) / slot_bytes);
        self.free.len() as u64 + (self.end - self.next) / slot_bytes + spare.sum::<u64>()
    }

    #[inline]
    fn alloc(&mut self, slot_bytes: u64) -> Option<u64> {
        let slot = self.take(slot_bytes);
        if self.for_inserts > 0 {
            // Updates may take any slot.
            self.for_inserts = self.for_inserts.min(self.available(slot_bytes));
        }
        slot
    }

    #[inline]
    fn take(&mut self, slot_bytes: u64) -> Option<u64> {
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
    fn slots_of_a_dropped_table_are_given_up() {
        let mut slabs = SlabAllocator::new(2);
        let tables = [2, 3, 4].map(|table| Purpose { table: TableId(table), ..RECORDS });
        tables.iter().for_each(|of| slabs.add_slab(*of, 1000, 64));
        slabs.release(BUCKETS, 5000);
        [RECORDS.table, TableId(77)].into_iter().for_each(|table| slabs.forget(table));
        assert_eq!(tables.map(|of| slabs.alloc(of, 64)), [Some(1000), None, Some(1000)]);
        assert_eq!(slabs.alloc(BUCKETS, 512), None);
    }

    #[test]
    fn single_buckets_are_cut_from_fans() {
        let mut slabs = SlabAllocator::new(2);
        let fans = Purpose { slots: SlotKind::Fan, ..RECORDS };
        assert_eq!(slabs.alloc_bucket(BUCKETS, 512), None);
        slabs.add_slab(fans, 1 << 18, 2 * 2048);
        let mut cut: Vec<_> = (0..FAN_OUT).map(|_| slabs.alloc_bucket(BUCKETS, 512)).collect();
        cut.sort_unstable();
        let expected: Vec<_> =
            (0..FAN_OUT as u64).map(|index| Some((1 << 18) + index * 512)).collect();
        assert_eq!(cut, expected);
        assert_eq!(slabs.alloc(fans, 2048), Some((1 << 18) + 2048), "the next one is whole");
        assert_eq!(slabs.alloc_bucket(BUCKETS, 512), None);
    }

    #[test]
    fn what_is_kept_back_is_a_quarter_of_a_slab_and_at_most_512_slots() {
        assert_eq!([64, 128, 4096, 8192 + 64].map(reserve), [512, 512, 16, 7]);
    }

    #[test]
    fn the_last_slots_are_left_to_those_who_may_take_them() {
        let mut slabs = SlabAllocator::new(2);
        slabs.add_slab(RECORDS, 1000, 64);
        slabs.add_slab(RECORDS, 5000, 200);
        assert_eq!(slabs.available(RECORDS, 64), 4);
        let drawn = [(); 3].map(|()| slabs.alloc_beyond(RECORDS, 64, 2).is_some());
        assert_eq!(drawn, [true, true, false]);
        slabs.release(RECORDS, 9000);
        assert_eq!(slabs.alloc_beyond(RECORDS, 64, 2), Some(9000));
        let drawn = [(); 3].map(|()| slabs.alloc_beyond(RECORDS, 64, 0).is_some());
        assert_eq!(drawn, [true, true, false]);
        assert_eq!(slabs.available(RECORDS, 64), 0);
    }

    /// If the receiver reserved them, no insert could use them anywhere.
    #[test]
    fn slots_that_were_got_for_inserts_are_for_inserts_and_updates() {
        let mut slabs = SlabAllocator::new(2);
        slabs.add_slab(RECORDS, 1000, 128);
        let insert = |slabs: &mut SlabAllocator| slabs.alloc_for_insert(RECORDS, 64, 2).is_some();
        assert!(!insert(&mut slabs), "two are kept back");
        [5000, 6000].into_iter().for_each(|slot| slabs.release_for_inserts(RECORDS, slot));
        assert_eq!(slabs.alloc_beyond(RECORDS, 64, 2), None, "what can be done without");
        assert_eq!(slabs.available_for_inserts(RECORDS, 64, 2), 2);
        assert_eq!([(); 3].map(|()| insert(&mut slabs)), [true, true, false]);
        assert_eq!(
            (slabs.available(RECORDS, 64), slabs.available_for_inserts(RECORDS, 64, 2)),
            (2, 0)
        );

        // An update takes any slot.
        slabs.release_for_inserts(RECORDS, 7000);
        assert_eq!([(); 4].map(|()| slabs.alloc(RECORDS, 64).is_some()), [true, true, true, false]);
        slabs.release(RECORDS, 8000);
        assert!(!insert(&mut slabs));

        // A few of many.
        (0..4).for_each(|slot| slabs.release(RECORDS, 9000 + slot));
        slabs.release_for_inserts(RECORDS, 9500);
        assert_eq!(slabs.available_for_inserts(RECORDS, 64, 2), 4);
        assert_eq!([(); 5].map(|()| insert(&mut slabs)), [true, true, true, true, false]);
    }

    #[test]
    fn slots_move_and_are_in_one_place_only() {
        let (mut own, mut shared) = (SlabAllocator::new(2), SlabAllocator::new(2));
        let elsewhere = Purpose { group: 0, ..RECORDS };
        own.add_slab(RECORDS, 1000, 192);
        own.add_slab(elsewhere, 7000, 64);
        assert_eq!(own.alloc(RECORDS, 64), Some(1000));
        [2000, 3000, 4000].into_iter().for_each(|slot| own.release(RECORDS, slot));
        own.spill(RECORDS, 2, &mut shared);
        own.spill(BUCKETS, 2, &mut shared);
        assert_eq!([own.given_back(RECORDS), shared.given_back(RECORDS)], [1, 2]);
        own.hand_over(RECORDS.group, &mut shared);
        assert_eq!((own.available(RECORDS, 64), own.available(elsewhere, 64)), (0, 1));
        let mut slots: Vec<_> = std::iter::from_fn(|| shared.alloc(RECORDS, 64)).collect();
        slots.sort_unstable();
        assert_eq!(slots, [1064, 1128, 2000, 3000, 4000]);
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
