//! Free slots shared by the coordinators of a node ([`crate::space::slots`]).

use lotus_fabric::env::Nanos;
use lotus_mvcc::layout::region::{SlabKind, TAKE_BITS};
use lotus_mvcc::slab::{Purpose, SlabAllocator, SlotKind, reserve};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Divisor of time for searches of full groups: long searches are made rarely.
const SEARCH_SHARE: u32 = 10;

/// Purpose of taking a slot; see the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The first version of a row, or a bucket of the index.
    Insert,
    /// A version of an existing row, for a cell that names no slot.
    Update,
    /// A version that old snapshots may need, or the record of a deletion: both are dispensable.
    Spare,
}

impl Use {
    /// Returns the number of free slots left in reserve by this use. Inserts leave the reserve to
    /// updates (I204).
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

/// Free slots shared by the coordinators of a node.
pub(crate) struct NodeSlots {
    shared: Mutex<SlabAllocator>,
    /// Number of dropped tables whose memory has been given back.
    cleared: AtomicU32,
    /// By group, for records and for overflow buckets: one plus the number of tables cleared when
    /// this node found no slab left; 0 while slabs were found.
    full: Box<[[AtomicU32; 2]]>,
    /// By group: the end of the slabs known not to be marked free, and the number of tables cleared
    /// at that finding.
    searched: Box<[Mutex<(u32, u64)>]>,
    /// By group: the earliest time of the next search while the group is full.
    due: Box<[AtomicU64]>,
    /// Times of the last insert, and of the last update, without a slot; 0 for never.
    missed: [AtomicU64; 2],
    /// Number of slab allocations begun.
    takes: AtomicU32,
}

impl NodeSlots {
    pub(crate) fn new(groups: u16) -> Self {
        Self {
            shared: Mutex::new(SlabAllocator::new(groups)),
            cleared: AtomicU32::new(0),
            full: (0..groups).map(|_| Default::default()).collect(),
            searched: (0..groups).map(|_| Mutex::default()).collect(),
            due: (0..groups).map(|_| AtomicU64::new(0)).collect(),
            missed: Default::default(),
            takes: AtomicU32::new(0),
        }
    }

    /// Locks the shared slots: for a moment, across no await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, SlabAllocator> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a group has no slab left for records. Stays true until the memory of a dropped table
    /// is given back, or a search finds a slab marked free for another reason.
    #[inline]
    pub(crate) fn is_full(&self, group: u16) -> bool {
        self.is_full_of(group, SlabKind::Records)
    }

    /// Whether a group has no slab left for this purpose: overflow buckets have a reserve.
    pub(crate) fn is_full_for(&self, purpose: Purpose) -> bool {
        self.is_full_of(purpose.group, purpose.slots.slab())
    }

    #[inline]
    fn is_full_of(&self, group: u16, kind: SlabKind) -> bool {
        // Relaxed: only the mutex says which slots are free.
        let found = self.full_of(group, kind).load(Ordering::Relaxed);
        found > self.cleared.load(Ordering::Relaxed)
    }

    #[inline]
    fn full_of(&self, group: u16, kind: SlabKind) -> &AtomicU32 {
        &self.full[usize::from(group)][usize::from(kind == SlabKind::Overflow)]
    }

    /// Notes that a group has no slab left for this purpose, found after `cleared` tables had been
    /// cleared. A group without slabs for overflow buckets has none for records either.
    pub(crate) fn set_full(&self, purpose: Purpose, cleared: u32) {
        for kind in [SlabKind::Records, purpose.slots.slab()] {
            self.full_of(purpose.group, kind).fetch_max(cleared + 1, Ordering::Relaxed);
        }
    }

    /// Offset at which slabs marked free may begin in a group; 0 if unknown.
    pub(crate) fn free_from(&self, group: u16) -> u64 {
        let (cleared, end) = *self.lock_searched(group);
        if cleared == self.cleared() { end } else { 0 }
    }

    /// Notes that a group has no slab marked free before `end`, found after `cleared` tables had
    /// been cleared.
    pub(crate) fn set_searched(&self, group: u16, cleared: u32, end: u64) {
        let mut known = self.lock_searched(group);
        *known = (*known).max((cleared, end));
    }

    /// Notes that another node has found a group full, after `cleared` tables had been cleared. The
    /// other node may know less, so this node searches before trusting the news for long.
    pub(crate) fn hear_full(&self, purpose: Purpose, cleared: u32) {
        if !self.is_full_for(purpose) {
            self.due[usize::from(purpose.group)].store(0, Ordering::Relaxed);
        }
        self.set_full(purpose, cleared);
    }

    /// Takes slabs for this use from a group again, from the beginning of the slabs marked free:
    /// free slabs may exist.
    pub(crate) fn search_again_in(&self, group: u16, kind: SlabKind) {
        *self.lock_searched(group) = (0, 0);
        self.full_of(group, kind).store(0, Ordering::Relaxed);
    }

    /// As [`Self::search_again_in`], for all uses in all groups.
    pub(crate) fn search_again(&self) {
        for group in 0..self.full.len() as u16 {
            let uses = [SlabKind::Records, SlabKind::Overflow];
            uses.into_iter().for_each(|kind| self.search_again_in(group, kind));
        }
    }

    /// Whether to search a full group now: any process may mark free the slabs of a table that was
    /// not made after all, without telling other processes (I320). The next search is due after
    /// `pause`, or when this search [has ended](Self::has_searched).
    pub(crate) fn begins_search(&self, group: u16, now: Nanos, pause: Duration) -> bool {
        let due = &self.due[usize::from(group)];
        let found = due.load(Ordering::Relaxed);
        let next = now.after(pause).0;
        found <= now.0
            && due.compare_exchange(found, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Notes that a search has taken `took`.
    pub(crate) fn has_searched(&self, group: u16, now: Nanos, took: Duration) {
        let next = now.after(took * SEARCH_SHARE).0;
        self.due[usize::from(group)].fetch_max(next, Ordering::Relaxed);
    }

    fn lock_searched(&self, group: u16) -> MutexGuard<'_, (u32, u64)> {
        self.searched[usize::from(group)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of dropped tables whose memory has been given back.
    pub(crate) fn cleared(&self) -> u32 {
        self.cleared.load(Ordering::Relaxed)
    }

    /// Learns that the memory of `tables` dropped tables has been given back.
    pub(crate) fn learn_cleared(&self, tables: u32) {
        self.cleared.fetch_max(tables, Ordering::Relaxed);
    }

    /// Number for a slab allocation that begins now (`SlabEntry::take`).
    pub(crate) fn next_take(&self) -> u32 {
        self.takes.fetch_add(1, Ordering::Relaxed) % (1 << TAKE_BITS)
    }

    /// Notes an insert or update without a slot, here or at a node that asks.
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

    fn purpose(group: u16, slots: SlotKind) -> Purpose {
        Purpose { table: TableId(0), group, slots }
    }

    #[test]
    fn inserts_leave_what_updates_need_and_buckets_are_for_inserts_alone() {
        let records = purpose(0, SlotKind::Record);
        let uses = [Use::Insert, Use::Update, Use::Spare];
        assert_eq!(uses.map(|wanted| wanted.keeps_back(records, 4096)), [16, 0, 16]);
        for purpose in [SlotKind::Bucket, SlotKind::Fan].map(|slots| purpose(0, slots)) {
            assert_eq!(uses.map(|wanted| wanted.keeps_back(purpose, 4096)), [0; 3]);
        }
    }

    #[test]
    fn a_group_is_full_by_itself() {
        let slots = NodeSlots::new(2);
        slots.set_full(purpose(1, SlotKind::Record), 0);
        assert_eq!([0, 1].map(|group| slots.is_full(group)), [false, true]);
    }

    #[test]
    fn a_group_without_slabs_for_records_may_have_some_for_buckets_and_not_the_other_way_round() {
        let slots = NodeSlots::new(1);
        let uses = SlotKind::ALL.map(|kind| purpose(0, kind));
        let full = || uses.map(|purpose| slots.is_full_for(purpose));
        slots.set_full(uses[0], 0);
        assert_eq!(full(), [true, false, false]);
        slots.set_full(uses[2], 0);
        assert_eq!(full(), [true; 3]);
        slots.search_again_in(0, SlabKind::Overflow);
        assert_eq!(full(), [true, false, false]);
        slots.search_again();
        slots.hear_full(uses[1], 0);
        assert_eq!(full(), [true; 3]);
    }

    #[test]
    fn a_full_group_is_searched_now_and_then_and_soon_after_others_have_called_it_full() {
        let (slots, pause) = (NodeSlots::new(2), Duration::from_nanos(50));
        let begins = |at: u64| slots.begins_search(1, Nanos(at), pause);
        let records = purpose(1, SlotKind::Record);
        slots.set_full(records, 0);
        assert_eq!([100, 100, 149, 150, 151].map(begins), [true, false, false, true, false]);
        slots.has_searched(1, Nanos(160), Duration::from_nanos(9));
        assert_eq!([200, 249, 250].map(begins), [false, false, true], "it took long");
        slots.search_again_in(1, SlabKind::Records);
        slots.hear_full(records, 0);
        assert!(slots.is_full(1) && begins(251), "others may know less");
        slots.hear_full(records, 0);
        assert!(!begins(252), "that was known");
        assert!(slots.begins_search(0, Nanos(100), pause), "a group by itself");
    }

    #[test]
    fn a_group_is_full_until_the_memory_of_another_table_is_given_back() {
        let (slots, records) = (NodeSlots::new(1), purpose(0, SlotKind::Record));
        slots.set_full(records, slots.cleared());
        assert!(slots.is_full(0));
        slots.learn_cleared(1);
        assert!(!slots.is_full(0));
        slots.set_full(records, 0);
        assert!(!slots.is_full(0), "found before the memory was given back");
        slots.set_full(records, 1);
        slots.learn_cleared(0);
        assert!(slots.is_full(0));
    }
}
